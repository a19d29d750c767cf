"""Policies that maximise a sum over columns: throughput, throughput per dollar, cost with deadlines.

    maximise  sum_c value[c] x[c]      s.t.  u[m] >= floor[m]   where a job has one

Prices are in the sum's own unit, so a newcomer is worth what it would add. Decides what becomes of floors that cannot
all be held: those of single jobs that no configuration reaches are dropped, and if the rest is too much together, the
largest total part of it is kept (`optimizer.programs.definition.attainable`).
"""

from dataclasses import dataclass

import numpy as np

from optimizer.decision import Quote, Shares, Status
from optimizer.fairness.utility import Utility
from optimizer.market.class_market import market_of
from optimizer.market.objective import Total
from optimizer.packing.blocks import sharing_keys
from optimizer.problem import FloatArray, IntArray, Problem
from optimizer.programs.route import solve
from optimizer.staged.stages import certificate_of, in_stages, one_stage, shares_of
from optimizer.staged.told import Asked, Staged

#: A floor missed by less than this part is held.
_HELD = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Sum:
    """What is added up, and what each job keeps."""

    #: Value of running each column all the time (c,).
    value: FloatArray
    #: Fair-share utility that each job keeps, 0 for none (n,).
    floor: FloatArray
    #: Of one accelerator's price.
    unit: str
    #: False: the sum is one of negative costs, and the certificate speaks of the cost.
    maximise: bool = True
    #: True: jobs may be packed two by two.
    packed: bool = False


def largest_sum(problem: Problem, utility: Utility, wanted: Sum) -> Shares:
    """Solve and answer; `relaxed` lists the jobs whose floor was too much to hold together with the others."""
    keep = utility.usable & ((wanted.value > 0) | (wanted.floor > 0)[problem.columns.job])
    classes = market_of(
        problem, keep, [utility.worth, wanted.value], [wanted.floor, *sharing_keys(problem, packed=wanted.packed)]
    )
    asked = Asked(problem, utility, classes, wanted.packed)
    quote = Quote(np.zeros(len(problem.pools)), wanted.unit, 1.0)
    if not keep.any():
        staged = Staged(asked, Status.OPTIMAL, "nothing adds anything", np.zeros(len(problem.columns)), ())
    else:
        value, worth = classes.per_column(wanted.value), classes.per_column(utility.worth)
        staged = _solved(asked, Total(value, worth, classes.per_class(wanted.floor)))
        quote = Quote(staged.stages[0].prices, wanted.unit, 1.0)
    objective, bound = staged.first()
    if not wanted.maximise:
        objective, bound = 0.0 - objective, 0.0 - bound
    certificate = certificate_of(staged, objective, bound, maximise=wanted.maximise)
    gain = np.where(utility.usable, wanted.value, 0.0)
    return shares_of(staged, certificate, quote, gain, _missed(staged, wanted.floor))


def _solved(asked: Asked, objective: Total) -> Staged:
    """One stage, with the floors that can all be held at once; where jobs may be packed there are none."""
    if asked.packed:
        return in_stages(asked, objective, leftover=False)
    market, found = asked.classes.market, solve(asked.classes.market, objective)
    if found.status is Status.INFEASIBLE and objective.floor.any():
        from optimizer.programs.definition import (
            attainable,  # imports cvxpy: only where deadlines are too much together
        )

        objective = Total(objective.value, objective.worth, attainable(market, objective.worth, objective.floor))
        found = solve(market, objective)
    return one_stage(asked, objective, found)


def _missed(staged: Staged, floor: FloatArray) -> IntArray:
    reached = staged.worth_of(staged.asked.utility.worth)
    return np.flatnonzero(reached < floor * (1 - _HELD))
