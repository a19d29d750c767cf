"""Cost with deadlines: the most for the money, or the least money, while every deadline that can be held is held.

    maximise  sum_m w[m] sum_c (u[c] / usd_per_h[c]) x[c]    goal "throughput_per_dollar", as the policy of that name
    minimise  sum_c usd_per_h[c] x[c]                        goal "cost": nothing runs but what a deadline needs
    s.t.      thr[m](x) >= R[m] / (deadline[m] - now)        jobs with a deadline

After Narayanan et al. (OSDI 2020), who drop all deadlines together when they cannot all be held. Here a deadline is
relaxed for its job alone, and the job is listed (`Shares.relaxed`): one that has passed, one that the job could not
meet with its best configuration all the time, and one of a job of unknown length ask for nothing. If the others are too
much together, the largest total part of them is kept, and jobs that get less than they need are listed, too.

Agnostic: a job has its average speed on every accelerator. Weights count as in throughput per dollar; projects do not.

Source: Narayanan et al., OSDI 2020, section 4.2.
"""

from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from optimizer.arrays.owners import best_by
from optimizer.decision import Memory, Quote, Shares
from optimizer.fairness.utility import Utility, cost_of, fair_share_utility
from optimizer.parameters import Aware, FreePrice, Normalised
from optimizer.policies.throughput_per_dollar import ThroughputPerDollar
from optimizer.policy import Newcomer
from optimizer.problem import BoolArray, FloatArray, Problem
from optimizer.staged.stages import nothing_to_decide
from optimizer.staged.sums import Sum, largest_sum
from optimizer.validate import validate

#: A deadline that needs more than all the time by less than this part can be met.
_ROUNDING = 1e-9


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class CostWithSlos:
    """The most for the money with deadlines held."""

    aware: Aware = True
    goal: Annotated[
        Literal["throughput_per_dollar", "cost"],
        Field(
            description="What is sought beside the deadlines. throughput_per_dollar: the most for the money; "
            "cost: the least money, so nothing runs but what a deadline needs."
        ),
    ] = "throughput_per_dollar"
    normalised: Normalised = True
    free_usd_per_h: FreePrice = None

    @property
    def told_apart_by(self) -> tuple[str, ...]:
        """What makes two jobs of equal columns different jobs."""
        return ("weight", "gang", "remaining_steps", "deadline_at")

    def definition(self, problem: Problem) -> Any:
        """The policy as one program over the problem's own columns (a cvxpy problem), if all deadlines can be held."""
        import cvxpy as cp

        from optimizer.programs.formula import by_job, shares_in

        utility = fair_share_utility(problem, aware=self.aware)
        needed, _ = needed_rate(problem, utility)
        held = np.flatnonzero(needed)
        x, rows = shares_in(problem, utility.usable)
        thr = (by_job(problem, utility.rate) @ x)[held]
        rows.append(cp.multiply(1 / needed[held], thr) >= 1)
        return cp.Problem(cp.Maximize(self._sum(problem, utility, needed).value @ x), rows)

    def decide(self, problem: Problem, memory: Memory) -> tuple[Shares, Memory]:
        """Shares of time with prices and certificate. The policy keeps no memory.

        Raises:
            ProblemError: the problem is malformed. Anything else is told by the certificate's status.
        """
        validate(problem)
        utility = fair_share_utility(problem, aware=self.aware)
        if not utility.usable.any():
            return nothing_to_decide(problem, self._per_dollar.unit, maximise=self.goal != "cost"), None
        needed, hopeless = needed_rate(problem, utility)
        shares = largest_sum(problem, utility, self._sum(problem, utility, needed))
        return replace(shares, relaxed=np.union1d(shares.relaxed, np.flatnonzero(hopeless))), None

    def value(self, newcomer: Newcomer, quote: Quote) -> FloatArray:
        """What each configuration of a newcomer adds to the sum, its deadline aside; 0 where cost is sought (c,)."""
        if self.goal == "cost":
            return np.zeros(len(newcomer.count))
        return self._per_dollar.value(newcomer, quote)

    @property
    def _per_dollar(self) -> ThroughputPerDollar:
        return ThroughputPerDollar(self.aware, self.normalised, self.free_usd_per_h)

    def _sum(self, problem: Problem, utility: Utility, needed: FloatArray) -> Sum:
        equal = np.where(utility.equal > 0, utility.equal, 1.0)
        floor = problem.jobs.gang * needed / equal  # as a fair-share utility
        if self.goal == "cost":
            cost = cost_of(problem.columns, problem.pools.usd_per_h)
            return Sum(np.where(utility.usable, -cost, 0.0), floor, "USD/h per accelerator", maximise=False)
        return Sum(self._per_dollar.worth_per_usd(problem, utility), floor, self._per_dollar.unit)


def needed_rate(problem: Problem, utility: Utility) -> tuple[FloatArray, BoolArray]:
    """Steps/s that each job needs to end in time, 0 where nothing is asked; and whose deadline cannot be met (n,)."""
    jobs, fastest = problem.jobs, best_by(problem.columns.job, utility.rate, len(problem.jobs))
    bound = np.isfinite(jobs.deadline_at) & (jobs.remaining_steps > 0) & (utility.best > 0)
    left_s = jobs.deadline_at - problem.at
    possible = bound & np.isfinite(jobs.remaining_steps) & (left_s > 0)
    needed = np.divide(jobs.remaining_steps, left_s, out=np.zeros(len(jobs)), where=possible)
    possible &= needed <= fastest * (1 + _ROUNDING)
    return np.where(possible, np.minimum(needed, fastest), 0.0), bound & ~possible
