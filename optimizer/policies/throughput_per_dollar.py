"""Throughput per dollar: as much progress for the money as the fleet allows.

    maximise  sum_m w[m] sum_c (u[c] / usd_per_h[c]) x[c]        u[c] = s[m] T[c] / thr[m](equal split)

usd_per_h of a column: its accelerators at the market prices of their pools. With `normalised: false`, u is plain steps
per second, as Narayanan et al. (OSDI 2020) state it. An accelerator without a price (an owned one) is counted at
`free_usd_per_h`, by default the lowest price in the fleet (1 where nothing has a price), so that it is as good as the
cheapest one for sale, and never infinitely good. Projects do not matter; a job of weight 0 gets nothing; nobody is
promised anything. Agnostic: a job has its average speed on every accelerator.

Source: Narayanan et al., OSDI 2020, section 4.2.
"""

from typing import Any

import numpy as np
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from optimizer.decision import Memory, Quote, Shares
from optimizer.fairness.utility import Utility, cost_of, fair_share_utility, newcomer_rate, newcomer_worth
from optimizer.parameters import Aware, FreePrice, Normalised
from optimizer.policy import Newcomer
from optimizer.problem import FloatArray, Problem
from optimizer.staged.stages import nothing_to_decide
from optimizer.staged.sums import Sum, largest_sum
from optimizer.validate import validate


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class ThroughputPerDollar:
    """The largest weighted sum of throughputs, each over what it costs."""

    aware: Aware = True
    normalised: Normalised = True
    free_usd_per_h: FreePrice = None

    @property
    def unit(self) -> str:
        """What one accelerator costs is said in this unit."""
        return f"{'fair-share units' if self.normalised else 'steps/s'} per USD/h, per accelerator"

    @property
    def told_apart_by(self) -> tuple[str, ...]:
        """What makes two jobs of equal columns different jobs."""
        return ("weight", "gang")

    def definition(self, problem: Problem) -> Any:
        """The policy as one program over the problem's own columns (a cvxpy problem)."""
        import cvxpy as cp

        from optimizer.programs.formula import shares_in

        utility = fair_share_utility(problem, aware=self.aware)
        x, rows = shares_in(problem, utility.usable)
        return cp.Problem(cp.Maximize(self.worth_per_usd(problem, utility) @ x), rows)

    def decide(self, problem: Problem, memory: Memory) -> tuple[Shares, Memory]:
        """Shares of time with prices and certificate. The policy keeps no memory.

        Raises:
            ProblemError: the problem is malformed. Anything else is told by the certificate's status.
        """
        validate(problem)
        utility = fair_share_utility(problem, aware=self.aware)
        if not utility.usable.any():
            return nothing_to_decide(problem, self.unit), None
        value = self.worth_per_usd(problem, utility)
        return largest_sum(problem, utility, Sum(value, np.zeros(len(problem.jobs)), self.unit)), None

    def value(self, newcomer: Newcomer, quote: Quote) -> FloatArray:
        """What each configuration of a newcomer adds to the sum (c,)."""
        of = newcomer_worth if self.normalised else newcomer_rate
        usd_per_h = counted_prices(newcomer.usd_per_h, self.free_usd_per_h)[newcomer.pool]
        return newcomer.weight * of(newcomer, aware=self.aware) / (newcomer.count * usd_per_h)

    def worth_per_usd(self, problem: Problem, utility: Utility) -> FloatArray:
        """Weighted progress of each column over its price (c,)."""
        usd_per_h = cost_of(problem.columns, counted_prices(problem.pools.usd_per_h, self.free_usd_per_h))
        progress = utility.worth if self.normalised else utility.rate
        return problem.jobs.weight[problem.columns.job] * progress / usd_per_h


def counted_prices(usd_per_h: FloatArray, free_usd_per_h: float | None) -> FloatArray:
    """Prices with those of 0 replaced: by what was said, else by the lowest there is, else by 1 (p,)."""
    priced = usd_per_h > 0
    lowest = float(usd_per_h[priced].min()) if priced.any() else 1.0
    return np.where(priced, usd_per_h, lowest if free_usd_per_h is None else free_usd_per_h)
