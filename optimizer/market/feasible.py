"""How far shares are from what they may be."""

import numpy as np

from optimizer.arrays.owners import sum_by
from optimizer.market.market import Market
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


def make_feasible(market: Market, x: FloatArray) -> FloatArray:
    """Clip what a solver left outside and scale down every column that touches an overfull row.

    After it no constraint is violated beyond rounding, at the price of at most the violation found (1e-9, typically).
    """
    x = np.clip(np.nan_to_num(x), 0.0, 1.0)
    if not len(x):
        return x
    owner = market.owner()
    x = x / np.maximum(sum_by(owner, x, market.classes), 1.0)[owner]
    overfull = np.maximum(market.used(x) / np.where(market.capacity > 0, market.capacity, 1.0), 1.0)[market.use_row]
    return x / (overfull if market.single_use else np.maximum.reduceat(overfull, market.use_first[:-1]))
