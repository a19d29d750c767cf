"""What packed shares give and take, job by job. Decides nothing and solves nothing."""

import numpy as np

from optimizer.decision import Packed
from optimizer.owners import sum_by
from optimizer.problem import BoolArray, FloatArray, IntArray, Problem
from optimizer.utility import pool_columns


def columns_of(problem: Problem, usable: BoolArray, packed: Packed) -> tuple[IntArray, IntArray]:
    """The column whose speed and accelerators stand for each pair's first and second job in the pair's pool (q,), (q,).

    Args:
        problem: n jobs, c columns, with pairs if any are packed.
        usable: columns that can run (c,).
        packed: q pairs.
    """
    if problem.pairs is None or not len(packed):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    own = pool_columns(problem.columns, usable)
    pools = len(problem.pools)
    key = problem.columns.job[own.column] * pools + own.pool
    order = np.argsort(key)
    pool = problem.pairs.pool[packed.pair]
    first, second = (
        own.column[order][np.searchsorted(key[order], job * pools + pool)] for job in (packed.first, packed.second)
    )
    return first, second


def gained(problem: Problem, usable: BoolArray, worth: FloatArray, x: FloatArray, packed: Packed) -> FloatArray:
    """What shares are worth to each job, alone and packed (n,).

    Args:
        worth: of running each column alone all the time (c,).
        x: shares of time of each column (c,).
    """
    n = len(problem.jobs)
    alone = sum_by(problem.columns.job, worth * x, n)
    if problem.pairs is None or not len(packed):
        return alone
    first, second = columns_of(problem, usable, packed)
    kept = problem.pairs.first_factor[packed.pair], problem.pairs.second_factor[packed.pair]
    alone += sum_by(packed.first, kept[0] * worth[first] * packed.share, n)
    alone += sum_by(packed.second, kept[1] * worth[second] * packed.share, n)
    return alone


def violation_of_packed(problem: Problem, usable: BoolArray, x: FloatArray, packed: Packed) -> float:
    """Largest violation of any constraint, relative to its right-hand side (1 where that is 0)."""
    columns, capacity = problem.columns, problem.pools.capacity
    first, _ = columns_of(problem, usable, packed)
    place = np.searchsorted(columns.use_column, first)
    time = sum_by(columns.job, x, len(problem.jobs))
    used = sum_by(columns.use_pool, columns.use_count * x[columns.use_column], len(capacity))
    if len(packed):
        for jobs in (packed.first, packed.second):
            time += sum_by(jobs, packed.share, len(problem.jobs))
        used += sum_by(columns.use_pool[place], columns.use_count[place] * packed.share, len(capacity))
    over = (used - capacity) / np.where(capacity > 0, capacity, 1.0)
    least = min(float(x.min(initial=0.0)), float(packed.share.min(initial=0.0)))
    return max(0.0, -least, float(time.max(initial=0.0) - 1.0), float(over.max(initial=0.0)))
