"""Water filling: the lexicographic max-min of fair-share utilities over weights.

The smallest u/w is as large as it can be; given that, the next smallest; and so on: nobody can have more without taking
it from somebody who has no more. Narayanan et al. (OSDI 2020, 4.3) find it by a program of integers per level;
here it follows from prices, in at most one level per pool and one more (`optimizer.filling`).
"""

from typing import Any

import numpy as np
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from optimizer.decision import Memory, Quote, Shares
from optimizer.fairness.utility import fair_share_utility, newcomer_worth
from optimizer.filling.flat import ByWeight
from optimizer.market.class_market import market_of
from optimizer.parameters import Aware
from optimizer.policy import Newcomer
from optimizer.problem import FloatArray, Problem
from optimizer.staged.stages import certificate_of, fair_shares, nothing_to_decide
from optimizer.staged.told import Asked
from optimizer.validate import validate


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class WaterFilling:
    """Equal utility for equal weight; who cannot use its part leaves it to the others, level by level.

    Source: Narayanan et al., OSDI 2020, section 4.3.
    """

    aware: Aware = True

    @property
    def told_apart_by(self) -> tuple[str, ...]:
        """What makes two jobs of equal columns different jobs."""
        return ("weight", "gang", "entity")

    def definition(self, problem: Problem, kept: FloatArray) -> Any:
        """One level over the problem's own columns (a cvxpy problem): jobs with a `kept` utility >= 0 keep it, the
        others (nan) rise together. Water filling is this, again and again, keeping what can rise no further.
        """
        import cvxpy as cp

        from optimizer.programs.formula import by_job, shares_in

        utility = fair_share_utility(problem, aware=self.aware)
        x, rows = shares_in(problem, utility.usable)
        u, z = by_job(problem, utility.worth) @ x, cp.Variable(nonneg=True)
        rising = np.isnan(kept)
        floor, slope = np.where(rising, 0.0, kept), np.where(rising, utility.weight, 0.0)
        return cp.Problem(cp.Maximize(z), [*rows, u >= floor + z * slope])

    def decide(self, problem: Problem, memory: Memory) -> tuple[Shares, Memory]:
        """Shares of time with prices and certificate. It remembers where the last solve ended.

        Raises:
            ProblemError: the problem is malformed. Anything else is told by the certificate's status.
        """
        validate(problem)
        utility = fair_share_utility(problem, aware=self.aware)
        if not utility.usable.any():
            return nothing_to_decide(problem), memory
        from optimizer.staged.filled import filled  # imports scipy

        classes = market_of(problem, utility.usable, [utility.worth], [utility.weight])
        asked = Asked(problem, utility, classes)
        staged, memory = filled(asked, ByWeight(classes.per_class(utility.weight)), memory)
        return fair_shares(staged, certificate_of(staged, *staged.first())), memory

    def value(self, newcomer: Newcomer, quote: Quote) -> FloatArray:
        """Worth of each configuration: its fair-share units times the newcomer's weight against the others' mean."""
        worth: FloatArray = quote.exchange * newcomer.weight * newcomer_worth(newcomer, aware=self.aware)
        return worth
