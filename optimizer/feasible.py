"""How far shares are from what they may be."""

import numpy as np

from optimizer.owners import sum_by
from optimizer.problem import FloatArray, Problem


def violation_of(problem: Problem, x: FloatArray) -> float:
    """Largest violation of any constraint, relative to its right-hand side (1 where that is 0)."""
    if not len(x):
        return 0.0
    columns, capacity = problem.columns, problem.pools.capacity
    time = sum_by(columns.job, x, len(problem.jobs))
    used = sum_by(columns.use_pool, columns.use_count * x[columns.use_column], len(capacity))
    over = (used - capacity) / np.where(capacity > 0, capacity, 1.0)
    return max(0.0, float(-x.min()), float(time.max() - 1.0), float(over.max()))


def relative_gap(objective: float, bound: float) -> float:
    """|bound - objective| / |bound|; 0 where both are 0."""
    return abs(bound - objective) / max(1e-12, abs(bound))
