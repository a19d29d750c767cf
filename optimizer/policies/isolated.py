"""Isolated: every job has its 1/M of each pool to itself, whatever it makes of it. What sharing has to beat.

The shares are a formula (`optimizer.fairness.equal_shares`), no optimum is sought and nothing has a price. The
certificate sets the level that they reach against what max-min fairness proves to be possible.
"""

import numpy as np
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from optimizer.arrays.owners import sum_by
from optimizer.decision import Certificate, Memory, Quote, Shares, Status
from optimizer.fairness.equal_shares import equal_shares
from optimizer.fairness.utility import fair_share_utility, level_of
from optimizer.market.feasible import relative_gap, violation_of
from optimizer.policies.max_min_fairness import MaxMinFairness
from optimizer.policy import Newcomer
from optimizer.problem import FloatArray, Problem


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Isolated:
    """An equal part of every pool for every job, without regard to weights, projects or speeds.

    Source: Narayanan et al., OSDI 2020, section 4.2: the part of a fleet that finish-time fairness compares with.
    """

    @property
    def told_apart_by(self) -> tuple[str, ...]:
        """What makes two jobs of equal columns different jobs."""
        return ("weight", "gang", "entity")

    def decide(self, problem: Problem, memory: Memory) -> tuple[Shares, Memory]:
        """Shares by the formula; status `defined`, or what the yardstick says where there is nothing to decide.

        Raises:
            ProblemError: the problem is malformed.
        """
        best, _ = MaxMinFairness(then="sum").decide(problem, None)
        if best.certificate.status is Status.EMPTY:
            return best, None
        utility = fair_share_utility(problem, aware=True)
        x = equal_shares(problem, utility.usable)
        gained = sum_by(problem.columns.job, utility.worth * x, len(problem.jobs))
        level, bound = level_of(gained, utility.weight, utility.best), best.certificate.bound
        path = "formula; bound: max_min_fairness"
        proof = Certificate(Status.DEFINED, level, bound, relative_gap(level, bound), violation_of(problem, x), path)
        free = Quote(np.zeros(len(problem.pools)), "nothing has a price", 1.0)
        nothing = np.zeros(len(problem.jobs))
        return Shares(x, problem.pools.held, free, nothing, proof, unplaceable=best.unplaceable), None

    def value(self, newcomer: Newcomer, quote: Quote) -> FloatArray:
        """Speed of each configuration, relative to the fastest: a newcomer takes the best free one (c,)."""
        fastest = float(newcomer.steps_per_s.max(initial=0.0))
        return newcomer.steps_per_s / fastest if fastest > 0 else np.zeros(len(newcomer.steps_per_s))
