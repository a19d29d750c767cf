"""Limits of projects and users as rows of an assignment: what an entity may hold is capacity like a pool's.

    maximise  sum_c v_c y_c
    s.t.      sum_{c of j} y_c <= 1                               each job j           (u_j)
              sum_c use[c, r] y_c <= N[r]                         each pool r          (l_r)
              sum_{c of jobs below e} size[c] y_c <= m[e]         each limited e       (mu_e)

m[e] is the part of the fleet that entity e may hold, less what its jobs hold already that do not compete. So every
method of assignment serves limits without knowing of them, and the bound that prices prove holds with mu among them: a
job pays the prices of its pool and of every limit above it. Without limits the problem is the same to the bit.

Shapes: n jobs, c columns, p pools, m entities with a limit.
"""

from dataclasses import dataclass, replace

import numpy as np

from optimizer.assignment.assignment_problem import AssignmentProblem
from optimizer.problem import BoolArray, Entities, FloatArray, IntArray, Problem
from optimizer.utility.fair_share import column_accelerators


@dataclass(frozen=True, slots=True, eq=False)
class LimitedEntities:
    """The entities that may not hold the whole fleet."""

    #: Rows of `Entities` (m,), and the accelerators that each may hold (m,).
    entity: IntArray
    most: FloatArray
    #: Whether each job is below each of them (m, n).
    inside: BoolArray

    def __len__(self) -> int:
        return len(self.entity)

    def left(self, problem: Problem, column: IntArray) -> FloatArray:
        """What each may still hold when jobs have these columns, -1: none (n,); (m,)."""
        size, held = column_accelerators(problem.columns), np.zeros(len(column))
        held[column >= 0] = size[column[column >= 0]]
        return np.maximum(self.most - self.inside @ held, 0.0)

    def prices_of_jobs(self, prices: FloatArray) -> FloatArray:
        """What a job pays for an accelerator because of the limits above it, at their prices (m,); (n,)."""
        return np.asarray(prices @ self.inside, dtype=np.float64)

    def rows_beside(self, question: AssignmentProblem, left: FloatArray, job: IntArray) -> AssignmentProblem:
        """The assignment with a row more for each limit, after those of the pools.

        Args:
            question: over pools alone.
            left: accelerators that each entity may still hold (m,).
            job: row of the problem's jobs of each column of the question (c,).
        """
        row, column = np.nonzero(self.inside[:, job])
        use_column = np.concatenate((question.use_column, column))
        order = np.argsort(use_column, kind="stable")  # a column's uses of pools stay before those of limits
        return replace(
            question,
            use_column=use_column[order],
            use_pool=np.concatenate((question.use_pool, len(question.capacity) + row))[order],
            use_count=np.concatenate((question.use_count, question.size[column]))[order],
            capacity=np.concatenate((question.capacity, left)),
            limits=len(self),
        )


def limited_entities(problem: Problem) -> LimitedEntities | None:
    """The entities with a limit below the whole fleet; None where there is none."""
    entities = problem.entities
    if not len(entities.limit) or not np.any(entities.limit < 1):
        return None
    entity = np.flatnonzero(entities.limit < 1)
    inside = np.array([entities_below(entities, row)[problem.jobs.entity] for row in entity.tolist()], dtype=np.bool_)
    return LimitedEntities(entity, entities.limit[entity] * float(problem.pools.capacity.sum()), inside)


def entities_below(entities: Entities, row: int) -> BoolArray:
    """Which entities are this one, or below it (k,)."""
    below = np.zeros(len(entities), dtype=np.bool_)
    below[row] = True
    if len(entities.parent):
        for child in range(row + 1, len(entities)):  # parents come first
            parent = int(entities.parent[child])
            below[child] = parent >= 0 and below[parent]
    return below


def limits_of_rest(problem: Problem, column: IntArray, capacity: FloatArray) -> Entities:
    """The entities of a problem about what is left of this one, with limits that hold over both together.

    Args:
        problem: the whole one.
        column: what jobs have that are not asked about again, -1: nothing (n,).
        capacity: of the pools, as the rest is asked about it (p,).
    """
    limits, there = limited_entities(problem), float(capacity.sum())
    if limits is None:
        return problem.entities
    part = problem.entities.limit.copy()
    part[limits.entity] = np.minimum(limits.left(problem, column) / max(there, 1.0), 1.0)
    guaranteed = problem.entities.guaranteed
    return replace(
        problem.entities, limit=part, guaranteed=np.minimum(guaranteed, part) if len(guaranteed) else guaranteed
    )
