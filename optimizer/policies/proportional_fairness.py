"""Proportional fairness over unlike accelerators: the largest product of utilities (Nash welfare).

    maximise  sum_m w[m] log u[m]        u[m] = s[m] thr[m](x) / thr[m](equal split)

No job's relative gain can be had without larger relative losses of others. Scale-free: the unit of a job's utility
does not matter. Projects divide their weight among their jobs; a job of weight 0 gets what nobody entitled can use.
Agnostic: the same with all speeds taken for equal.

The certificate speaks of the weighted geometric mean of the utilities, exp(sum w log u / sum w), so that a gap is a
part of what the mean job gets.

Source: Kelly, "Charging and rate control for elastic traffic", 1997; as the Nash bargaining solution, Nash 1950.
"""

from math import exp
from typing import Any

import numpy as np
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from optimizer.decision import Certificate, Memory, Quote, Shares, StageKind
from optimizer.fairness.utility import fair_share_utility, newcomer_worth
from optimizer.market.class_market import market_of
from optimizer.market.objective import Nash
from optimizer.parameters import Aware
from optimizer.policy import Newcomer
from optimizer.problem import FloatArray, Problem
from optimizer.staged.stages import certificate_of, fair_shares, in_stages, nothing_to_decide
from optimizer.staged.told import Asked, Staged
from optimizer.validate import validate


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class ProportionalFairness:
    """The largest weighted product of utilities."""

    aware: Aware = True

    @property
    def told_apart_by(self) -> tuple[str, ...]:
        """What makes two jobs of equal columns different jobs."""
        return ("weight", "gang", "entity")

    def definition(self, problem: Problem) -> Any:
        """The policy as one program over the problem's own columns (a cvxpy problem)."""
        import cvxpy as cp

        from optimizer.programs.formula import by_job, shares_in

        utility = fair_share_utility(problem, aware=self.aware)
        entitled = np.flatnonzero(utility.weight)
        x, rows = shares_in(problem, utility.usable)
        u = (by_job(problem, utility.worth) @ x)[entitled]
        return cp.Problem(cp.Maximize(utility.weight[entitled] @ cp.log(u)), rows)

    def decide(self, problem: Problem, memory: Memory) -> tuple[Shares, Memory]:
        """Shares of time with prices and certificate. The policy keeps no memory.

        Raises:
            ProblemError: the problem is malformed. Anything else is told by the certificate's status.
        """
        validate(problem)
        utility = fair_share_utility(problem, aware=self.aware)
        if not utility.usable.any():
            return nothing_to_decide(problem), None
        classes = market_of(problem, utility.usable, [utility.worth], [utility.weight])
        objective = Nash(classes.per_column(utility.worth), classes.per_class(utility.weight))
        staged = in_stages(Asked(problem, utility, classes), objective)
        return fair_shares(staged, _certificate(staged)), None

    def value(self, newcomer: Newcomer, quote: Quote) -> FloatArray:
        """Worth of each configuration in fair-share units, times the newcomer's weight against the mean (c,)."""
        worth: FloatArray = quote.exchange * newcomer.weight * newcomer_worth(newcomer, aware=self.aware)
        return worth


def _certificate(staged: Staged) -> Certificate:
    objective, bound = staged.first()
    if staged.stages[0].kind is not StageKind.LOG:  # nobody is entitled: what there is goes by the sum of utilities
        return certificate_of(staged, objective, bound)
    total = float(staged.asked.utility.weight @ staged.asked.problem.jobs.counts)
    return certificate_of(staged, exp(objective / total), exp(bound / total))
