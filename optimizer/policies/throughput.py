"""Total throughput: as much normalised progress in all as the fleet allows, whoever makes it.

    maximise  sum_m w[m] u[m]        u[m] = s[m] thr[m](x) / thr[m](equal split)

The utility is that of max-min fairness, so that the unit in which a job counts its steps does not matter. With
`normalised: false` the sum is of plain steps per second, as Narayanan et al. (OSDI 2020) state it and solve it: jobs
with short steps then take all. Projects do not matter; a job of weight 0 adds nothing and gets nothing. Nobody is
promised anything. Agnostic: every accelerator is as good as another, so the sum is one of accelerators in use.

Source: Narayanan et al., OSDI 2020, section 4.2.
"""

from typing import Any

import numpy as np
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from optimizer.decision import Memory, Quote, Shares
from optimizer.fairness.utility import fair_share_utility, newcomer_rate, newcomer_worth
from optimizer.parameters import Aware, Normalised, Packing
from optimizer.policy import Newcomer
from optimizer.problem import FloatArray, Problem
from optimizer.staged.stages import nothing_to_decide
from optimizer.staged.sums import Sum, largest_sum
from optimizer.validate import validate


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Throughput:
    """The largest weighted sum of throughputs."""

    aware: Aware = True
    normalised: Normalised = True
    packed: Packing = False

    @property
    def unit(self) -> str:
        """What one accelerator costs is said in this unit."""
        return "weighted fair-share units per accelerator" if self.normalised else "weighted steps/s per accelerator"

    @property
    def told_apart_by(self) -> tuple[str, ...]:
        """What makes two jobs of equal columns different jobs."""
        return () if self.packed else ("weight", "gang")

    def definition(self, problem: Problem) -> Any:
        """The policy as one program over the problem's own columns (a cvxpy problem)."""
        import cvxpy as cp

        from optimizer.packing.formula import packed_shares_in

        utility = fair_share_utility(problem, aware=self.aware)
        shares = packed_shares_in(problem, utility.usable, packed=self.packed)
        u = shares.by_job(utility.worth if self.normalised else utility.rate)
        return cp.Problem(cp.Maximize(problem.jobs.weight @ u), shares.rows)

    def decide(self, problem: Problem, memory: Memory) -> tuple[Shares, Memory]:
        """Shares of time with prices and certificate. The policy keeps no memory.

        Raises:
            ProblemError: the problem is malformed. Anything else is told by the certificate's status.
        """
        validate(problem)
        utility = fair_share_utility(problem, aware=self.aware)
        if not utility.usable.any():
            return nothing_to_decide(problem, self.unit), None
        value = problem.jobs.weight[problem.columns.job] * (utility.worth if self.normalised else utility.rate)
        return largest_sum(
            problem, utility, Sum(value, np.zeros(len(problem.jobs)), self.unit, packed=self.packed)
        ), None

    def value(self, newcomer: Newcomer, quote: Quote) -> FloatArray:
        """What each configuration of a newcomer adds to the sum (c,)."""
        of = newcomer_worth if self.normalised else newcomer_rate
        return newcomer.weight * of(newcomer, aware=self.aware)
