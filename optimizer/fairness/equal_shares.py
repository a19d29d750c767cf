"""The share of everything that a job could claim alone: 1/M of each pool for each of M jobs."""

import numpy as np

from optimizer.arrays.owners import sum_by
from optimizer.fairness.utility import pool_columns
from optimizer.problem import BoolArray, FloatArray, Problem


def equal_shares(problem: Problem, usable: BoolArray) -> FloatArray:
    """x[m,p] = N[p] / (M s[m]), each job's sum brought down to 1 where it is above (c,).

    A mixed gang has no pool of its own: a job that has nothing else gets nothing.
    """
    columns, x = problem.columns, np.zeros(len(problem.columns))
    chosen = pool_columns(columns, usable)
    job = columns.job[chosen.column]
    sharers = float(problem.jobs.counts[np.unique(job)].sum())
    if not sharers:
        return x
    x[chosen.column] = problem.pools.capacity[chosen.pool] / (sharers * chosen.count)
    time = sum_by(columns.job, x, len(problem.jobs))
    return x / np.maximum(time, 1.0)[columns.job]
