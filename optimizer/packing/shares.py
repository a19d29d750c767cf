"""What packed shares give and take, job by job. Decides nothing and solves nothing."""

import numpy as np

from optimizer.arrays.owners import sum_by
from optimizer.decision import Packed
from optimizer.fairness.utility import pool_columns
from optimizer.problem import BoolArray, FloatArray, IntArray, Problem


def columns_of(problem: Problem, usable: BoolArray, packed: Packed) -> IntArray:
    """The column whose speed and accelerators stand for each pair's first and second job in the pair's pool (2, q).

    Args:
        problem: n jobs, c columns, with pairs if any are packed.
        usable: columns that can run (c,).
        packed: q pairs.
    """
    if problem.pairs is None or not len(packed):
        return np.zeros((2, 0), dtype=np.int64)
    own, pools = pool_columns(problem.columns, usable), len(problem.pools)
    key = problem.columns.job[own.column] * pools + own.pool
    order = np.argsort(key)
    wanted = np.stack((packed.first, packed.second)) * pools + problem.pairs.pool[packed.pair]
    columns: IntArray = own.column[order][np.searchsorted(key[order], wanted)]
    return columns


def over_columns(problem: Problem, usable: BoolArray, x: FloatArray, packed: Packed) -> tuple[FloatArray, FloatArray]:
    """All shares told of columns (c,), (c,): as much as they give a job alone, and as much as they hold of a pool.

    A pair gives each of its jobs the part of its share that the job keeps of its speed, and holds half for each.
    """
    if problem.pairs is None or not len(packed):
        return x, x
    column, c = columns_of(problem, usable, packed), len(problem.columns)
    keeps = np.stack((problem.pairs.first_factor[packed.pair], problem.pairs.second_factor[packed.pair]))
    gives = x + sum_by(column.ravel(), (keeps * packed.share).ravel(), c)
    return gives, x + sum_by(column.ravel(), np.tile(packed.share / 2, 2), c)


def violation_of_packed(problem: Problem, usable: BoolArray, x: FloatArray, packed: Packed) -> float:
    """Largest violation of any constraint, relative to its right-hand side (1 where that is 0)."""
    columns, capacity = problem.columns, problem.pools.capacity
    _, holds = over_columns(problem, usable, x, packed)
    time = sum_by(columns.job, x, len(problem.jobs))
    for job in (packed.first, packed.second):
        time += sum_by(job, packed.share, len(problem.jobs))
    holds = holds * problem.jobs.counts[columns.job]
    used = sum_by(columns.use_pool, columns.use_count * holds[columns.use_column], len(capacity))
    over = (used - capacity) / np.where(capacity > 0, capacity, 1.0)
    least = min(float(x.min(initial=0.0)), float(packed.share.min(initial=0.0)))
    return max(0.0, -least, float(time.max(initial=0.0) - 1.0), float(over.max(initial=0.0)))
