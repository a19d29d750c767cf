"""Configurations that a policy made besides the problem's: gangs over several pools, and forks.

A policy states them in its answer (`Shares.added`, `Plan.added`) and counts them after the problem's own. Whoever goes
on with an answer (documents, the checker, the scheduler) puts them into the problem first, with `with_added`: then they
are configurations like all others. Which ones are worth making is decided elsewhere.
"""

from dataclasses import dataclass, replace

import numpy as np

from optimizer.decision import Decision, Order, Plan
from optimizer.problem import Columns, FloatArray, IntArray, Problem


@dataclass(frozen=True, slots=True, eq=False)
class Mixtures:
    """m configurations over several pools."""

    #: Row of the job (m,).
    job: IntArray
    steps_per_s: FloatArray
    #: Accelerators of each pool, whole (m, p).
    use: FloatArray

    def __len__(self) -> int:
        return len(self.job)

    @property
    def columns(self) -> Columns:
        """The same as columns, in which nobody runs yet."""
        column, pool = np.nonzero(self.use > 0)
        running = np.zeros(len(self), dtype=np.bool_)
        return Columns(self.job, self.steps_per_s, column, pool, self.use[column, pool], running)


def with_added(problem: Problem, decision: Decision) -> tuple[Problem, Decision]:
    """The problem with the configurations that the answer added, and the answer in its terms."""
    if isinstance(decision, Order) or decision.added is None:
        return problem, decision
    whole, place = with_columns(problem, decision.added)
    if isinstance(decision, Plan):
        column = np.where(decision.column >= 0, place[decision.column], -1)
        return whole, replace(decision, column=column, added=None)
    x = np.empty(len(place))
    x[place] = decision.x
    return whole, replace(decision, x=x, added=None)


def with_columns(problem: Problem, added: Columns) -> tuple[Problem, IntArray]:
    """The problem with these configurations besides, each behind its job's own.

    And the row there of every configuration, the problem's first, then the added ones.
    """
    known, c = problem.columns, len(problem.columns)
    order = np.argsort(np.concatenate((known.job, added.job)), kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    use_column = place[np.concatenate((known.use_column, c + added.use_column))]
    by_column = np.argsort(use_column, kind="stable")
    columns = Columns(
        job=np.concatenate((known.job, added.job))[order],
        steps_per_s=np.concatenate((known.steps_per_s, added.steps_per_s))[order],
        use_column=use_column[by_column],
        use_pool=np.concatenate((known.use_pool, added.use_pool))[by_column],
        use_count=np.concatenate((known.use_count, added.use_count))[by_column],
        running=np.concatenate((known.running, added.running))[order],
    )
    return replace(problem, columns=columns), place
