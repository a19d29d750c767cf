"""Totals and maxima of values by their owner: columns by job, uses by pool."""

import numpy as np

from optimizer.problem import FloatArray, IntArray


def sum_by(owner: IntArray, values: FloatArray, owners: int) -> FloatArray:
    """Sum of the values of each owner, 0 for an owner without any (owners,)."""
    return np.bincount(owner, weights=values, minlength=owners).astype(np.float64)


def best_by(owner: IntArray, values: FloatArray, owners: int) -> FloatArray:
    """Largest value of each owner, at least 0 (owners,)."""
    best = np.zeros(owners)
    np.maximum.at(best, owner, values)
    return best
