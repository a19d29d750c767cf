"""Max-min fairness over unlike accelerators (least attained service, heterogeneity-aware).

    maximise  min_m u[m] / w[m]        u[m] = s[m] thr[m](x) / thr[m](equal split)

as published, with three declared additions: a job that is already as fast as it can be does not hold back the others;
what the level leaves is not the solver's whim (`then`); and projects divide their weight among their jobs
(`optimizer.fairness.utility`). Agnostic: the same with all speeds taken for equal.

Source: Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020,
section 4.1.

The certificate speaks of the first level: the utility, per unit of weight, of the jobs that are not already full.
"""

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from optimizer.decision import Memory, Quote, Shares
from optimizer.fairness.utility import fair_share_utility, newcomer_worth
from optimizer.filling.flat import ByWeight
from optimizer.market.class_market import market_of
from optimizer.market.objective import Level
from optimizer.market.targets import Capped
from optimizer.packing.blocks import sharing_keys
from optimizer.parameters import Aware, Packing
from optimizer.policy import Newcomer
from optimizer.problem import FloatArray, Problem
from optimizer.staged.stages import certificate_of, fair_shares, in_stages, nothing_to_decide, one_stage
from optimizer.staged.told import Asked, Staged
from optimizer.validate import validate


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class MaxMinFairness:
    """Equal utility for equal weight, as high as the fleet allows."""

    aware: Aware = True
    then: Annotated[
        Literal["levels", "sum", "nothing"],
        Field(
            description="What the level leaves. levels: again to those who can still rise, and so on (water filling); "
            "sum: so that the sum of utilities is largest; nothing: the published program alone, in which full jobs "
            "hold back the others, by an interior point method. With space sharing levels is as sum."
        ),
    ] = "levels"
    packed: Packing = False

    @property
    def told_apart_by(self) -> tuple[str, ...]:
        """What makes two jobs of equal columns different jobs."""
        return () if self.packed else ("weight", "gang", "entity")

    def definition(self, problem: Problem) -> Any:
        """The published program over the problem's own columns (a cvxpy problem): full jobs hold back the others."""
        import cvxpy as cp

        from optimizer.packing.formula import packed_shares_in

        utility = fair_share_utility(problem, aware=self.aware)
        entitled = np.flatnonzero(utility.weight)
        shares = packed_shares_in(problem, utility.usable, packed=self.packed)
        u = shares.by_job(utility.worth)[entitled]
        return cp.Problem(cp.Maximize(cp.min(cp.multiply(1 / utility.weight[entitled], u))), shares.rows)

    def decide(self, problem: Problem, memory: Memory) -> tuple[Shares, Memory]:
        """Shares of time with prices and certificate. It remembers where the last solve ended.

        Raises:
            ProblemError: the problem is malformed. Anything else is told by the certificate's status.
        """
        validate(problem)
        utility = fair_share_utility(problem, aware=self.aware)
        if not utility.usable.any():
            return nothing_to_decide(problem), memory
        keys = [utility.weight, *sharing_keys(problem, packed=self.packed)]
        classes = market_of(problem, utility.usable, [utility.worth], keys)
        staged, memory = self._stages(Asked(problem, utility, classes, self.packed), memory)
        return fair_shares(staged, certificate_of(staged, *staged.first())), memory

    def value(self, newcomer: Newcomer, quote: Quote) -> FloatArray:
        """Worth of each configuration: what its utility would fetch if the newcomer competed like the mean job.

        value[c] = exchange * w * worth[c], in the quote's unit: what the configuration gives in fair-share units, times
        the newcomer's weight against the mean of the others. 0 for what it cannot run.
        """
        worth: FloatArray = quote.exchange * newcomer.weight * newcomer_worth(newcomer, aware=self.aware)
        return worth

    def _stages(self, asked: Asked, memory: Memory) -> tuple[Staged, Memory]:
        weight, best = asked.classes.per_class(asked.utility.weight), asked.classes.per_class(asked.utility.best)
        worth, no_floor = asked.classes.per_column(asked.utility.worth), np.zeros(len(best))
        if self.then == "nothing" and weight.any():
            from optimizer.programs.definition import (
                solve_centrally,  # imports cvxpy: only where something is to be solved
            )

            first_full = (best[weight > 0] / weight[weight > 0]).min()
            published = Level(worth, Capped(weight, weight * first_full, no_floor))
            if self.packed:
                return in_stages(asked, published, leftover=False), memory
            return one_stage(asked, published, solve_centrally(asked.classes.market, published)), memory
        if self.then == "levels" and not self.packed:
            from optimizer.staged.filled import filled  # imports scipy

            staged, memory = filled(asked, ByWeight(weight), memory)
            if staged.stages:
                return staged, memory
        return in_stages(asked, Level(worth, Capped(weight, best, no_floor))), memory
