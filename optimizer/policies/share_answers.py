"""Turns a staged solution into the answer of a share policy: certificate, quoted prices, surplus of each job.

Fair policies quote in *fair-share units per accelerator*: at the quoted prices, one unit of fair-share utility (one
accelerator of the fleet's average speed for the job) costs 1 on average over the jobs that pay. An average accelerator
of a contended fleet thus has a price of about 1, one that is worth two of those a price of 2, and one for which no job
waits a price of 0.

    price[p] = l[p] sum worth x / sum cost x    of the first stage in which the pool is scarce; the sums are over the
                                                columns that cost something at the stage's prices l, of its active jobs
    price[p] = l[p]                             where that stage maximises a sum of utilities: it is in that unit
    exchange = 1 / mean weight of the entitled jobs

Policies that maximise a sum over columns (`maximise_sum`) quote the prices of that program with exchange 1, so an
arriving job is worth what it would add. Certificates keep the raw prices. Where floors (deadlines) are infeasible, a
floor that no configuration of its job reaches is dropped; if the others are infeasible together, the largest total
part of them is kept.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from optimizer.classes.aggregation import aggregate_problem
from optimizer.classes.class_problem import (
    MaxSum,
    relative_gap,
)
from optimizer.classes.segments import max_by
from optimizer.decision import Certificate, Quote, Shares, StageKind, Status
from optimizer.lp.pair_columns import colocation_keys
from optimizer.lp.solver import solve
from optimizer.lp.staged_solution import (
    SolveInput,
    StagedSolution,
    colocated_violation,
    scarce_pools,
    shares_per_column,
)
from optimizer.policy import Newcomer
from optimizer.problem import FloatArray, IntArray, Problem
from optimizer.utility.fair_share import Utility, column_costs, newcomer_worth

FAIR_UNIT = "fair-share units per accelerator"

#: A gap up to this counts as optimal. Where the exact program was solved the gap is 1e-8 or less, unless a job is full
#: and another pool is almost as good for it: the difference between the two then magnifies the solver's rounding.
OPTIMAL_GAP = 1e-4
NO_JOBS: IntArray = np.zeros(0, dtype=np.int64)


class ValuedByWeight:
    """What policies that quote in fair-share units say to an arriving job."""

    aware: bool
    #: False: each job counts with 1, not with its weight over the mean of the others.
    weighs: ClassVar[bool] = True

    def value(self, newcomer: Newcomer, quote: Quote) -> FloatArray:
        """Returns the worth of each configuration (c,): the price that its utility would be worth if the arriving job
        competed like the mean job; 0 for what it cannot run.
        """
        weight = newcomer.weight if self.weighs else 1.0
        return newcomer_worth(newcomer, aware=self.aware) * (quote.exchange * weight)


def staged_certificate(solved: StagedSolution, objective: float, bound: float, *, maximise: bool = True) -> Certificate:
    """Returns the certificate in the policy's own objective. Its status is optimal only if the gap of the first level
    is small, too.
    """
    gap = relative_gap(objective, bound)
    level = bool(solved.stages) and solved.stages[0].kind is StageKind.LEVEL
    widest = max(gap, relative_gap(*solved.first())) if level else gap
    status = Status.WORK_LIMIT if solved.status is Status.OPTIMAL and widest > OPTIMAL_GAP else solved.status
    violation = colocated_violation(solved.request.problem, solved.request.utility.usable, solved.x, solved.packed)
    return Certificate(status, objective, bound, gap, violation, f"classes+{solved.path}", maximise)


def fair_share_answer(solved: StagedSolution, certificate: Certificate, *, weighted: bool = True) -> Shares:
    """Returns the decision of a policy that quotes in fair-share units. A pool that is scarce in no stage costs 0.

    Args:
        solved: shares and stages.
        certificate: proof of quality.
        weighted: whether a newcomer counts with its weight over the mean of the entitled jobs, or each job with 1.
    """
    problem, utility = solved.request.problem, solved.request.utility
    weight = problem.jobs.weight if weighted else np.ones(len(problem.jobs))
    entitled = (utility.best > 0) & (weight > 0)
    gives, holds = shares_per_column(problem, utility.usable, solved.x, solved.packed)
    gained, prices = utility.worth * gives, np.zeros(len(problem.pools))
    for stage in solved.stages:  # the first in which a pool is scarce prices it
        scarce = scarce_pools(stage.prices, problem.pools.capacity)
        new = scarce & (prices == 0)
        if not new.any():
            continue
        per_price = 1.0  # the utility that one unit of the stage's prices buys, on average over columns that pay
        if stage.kind is not StageKind.SUM:
            cost = column_costs(problem.columns, np.where(scarce, stage.prices, 0.0)) * holds
            paying = np.where(stage.active, problem.jobs.counts, 0.0)[problem.columns.job] * (cost > 0)
            paid = float((cost * paying).sum())
            per_price = float((gained * paying).sum()) / paid if paid > 0 else 1.0
        prices[new] = stage.prices[new] * per_price
    count = problem.jobs.counts[entitled]
    total = float(weight[entitled] @ count)
    exchange = float(count.sum()) / total if total > 0 else 1.0  # one over the mean weight of the entitled jobs
    quote = Quote(prices, FAIR_UNIT, exchange)
    return shares_answer(solved, certificate, quote, quote.exchange * weight[problem.columns.job] * utility.worth)


def shares_answer(
    solved: StagedSolution, certificate: Certificate, quote: Quote, gain: FloatArray, relaxed: IntArray = NO_JOBS
) -> Shares:
    """Returns the decision of a share policy.

    Args:
        solved: shares and stages.
        certificate: proof of quality.
        quote: the prices shown to users.
        gain: the worth of each column to its job in the quote's unit (c,), 0 where it cannot run.
        relaxed: the rows of the jobs whose deadline was relaxed.
    """
    problem, columns = solved.request.problem, solved.request.problem.columns
    net = np.where(gain > 0, gain - column_costs(columns, quote.prices), 0.0)
    return Shares(
        x=solved.x,
        rent=problem.pools.held,
        quote=quote,
        surplus=max_by(columns.job, net, len(problem.jobs)),  # of the best configuration, at the quoted prices
        certificate=certificate,
        stages=solved.stages,
        unplaceable=np.flatnonzero(solved.request.utility.best == 0),
        packed=solved.packed,
        relaxed=relaxed,
    )


def empty_answer(problem: Problem, unit: str = FAIR_UNIT, *, maximise: bool = True) -> Shares:
    """Returns the decision where no job has a configuration that fits the fleet."""
    return Shares(
        x=np.zeros(len(problem.columns)),
        rent=problem.pools.held,
        quote=Quote(np.zeros(len(problem.pools)), unit, 1.0),
        surplus=np.zeros(len(problem.jobs)),
        certificate=Certificate(Status.EMPTY, 0.0, 0.0, 0.0, 0.0, "nothing to solve", maximise),
        unplaceable=np.arange(len(problem.jobs)),
    )


def unpriced_shares(problem: Problem, x: FloatArray, proof: Certificate, unplaceable: IntArray) -> Shares:
    """Returns the decision of a policy that prices nothing; `unplaceable`: the rows of jobs that cannot run."""
    free, nothing = Quote.without_prices(len(problem.pools)), np.zeros(len(problem.jobs))
    return Shares(x, problem.pools.held, free, nothing, proof, unplaceable=unplaceable)


#: A floor missed by less than this part counts as held.
_HELD = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class SumObjective:
    """A sum over columns to maximise, with the floor that each job keeps."""

    #: Value of running each column all the time (c,).
    value: FloatArray
    #: Fair-share utility that each job keeps (n,); 0 for none.
    floor: FloatArray
    #: The unit of the price of one accelerator.
    unit: str
    #: Whether the sum is maximised as it is; if not, it is one of negative costs, and the certificate states the cost.
    maximise: bool = True
    #: Whether jobs may be co-located two by two.
    packed: bool = False


def maximise_sum(problem: Problem, utility: Utility, wanted: SumObjective) -> Shares:
    """Solves the program and returns the decision; `relaxed` lists the jobs whose floors could not be held together
    with the others.
    """
    keep = utility.usable & ((wanted.value > 0) | (wanted.floor > 0)[problem.columns.job])
    classes = aggregate_problem(
        problem,
        keep,
        [utility.worth, wanted.value],
        [wanted.floor, *(colocation_keys(problem) if wanted.packed else ())],
    )
    request = SolveInput(problem, utility, classes, wanted.packed)
    quote = Quote(np.zeros(len(problem.pools)), wanted.unit, 1.0)
    if not keep.any():
        solved = StagedSolution(request, Status.OPTIMAL, "nothing adds anything", np.zeros(len(problem.columns)), ())
    else:
        value, worth = classes.per_column(wanted.value), classes.per_column(utility.worth)
        solved, _ = solve(request, MaxSum(value, worth, classes.per_class(wanted.floor)), leftover=False)
        quote = Quote(solved.stages[0].prices, wanted.unit, 1.0)
    objective, bound = solved.first()
    if not wanted.maximise:
        objective, bound = 0.0 - objective, 0.0 - bound
    certificate = staged_certificate(solved, objective, bound, maximise=wanted.maximise)
    gain = np.where(utility.usable, wanted.value, 0.0)
    return shares_answer(solved, certificate, quote, gain, _missed_floors(solved, wanted.floor))


def _missed_floors(solved: StagedSolution, floor: FloatArray) -> IntArray:
    reached = solved.worth_of(solved.request.utility.worth)
    return np.flatnonzero(reached < floor * (1 - _HELD))
