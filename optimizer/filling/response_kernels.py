"""`optimizer.filling.response`, compiled, and what proofs ask of it. Importing it imports numba."""

from typing import Any

import numba
import numpy as np

_FAST: dict[str, Any] = {"error_model": "numpy", "cache": True}


@numba.njit(**_FAST)
def hulls(first, worth, cost, collinear):  # type: ignore[no-untyped-def]
    """Vertices of the lower hull of the origin and the columns of each class, the last one repeated (k, v) twice."""
    classes, widest = len(first) - 1, 1
    for k in range(classes):
        widest = max(widest, first[k + 1] - first[k])
    corner_worth, corner_cost = np.zeros((classes, widest + 1)), np.zeros((classes, widest + 1))
    for k in range(classes):
        at_worth, at_cost = 0.0, 0.0
        for vertex in range(1, widest + 1):
            lowest = np.inf
            for c in range(first[k], first[k + 1]):
                if worth[c] > at_worth:
                    lowest = min(lowest, (cost[c] - at_cost) / (worth[c] - at_worth))
            furthest, most = at_worth, lowest + collinear * abs(lowest)
            for c in range(first[k], first[k + 1]):
                if worth[c] > furthest and (cost[c] - at_cost) / (worth[c] - at_worth) <= most:
                    furthest = worth[c]
            if furthest > at_worth:
                at_cost += lowest * (furthest - at_worth)
                at_worth = furthest
            corner_worth[k, vertex], corner_cost[k, vertex] = at_worth, at_cost
    return corner_worth, corner_cost


@numba.njit(**_FAST)
def spent_by_all(size, worth, cost, target):  # type: ignore[no-untyped-def]
    """What all members spend who reach their targets at the least cost, or the last vertex where none does."""
    total = 0.0
    for k in range(len(size)):
        total += size[k] * _spent(worth[k], cost[k], target[k])
    return total


@numba.njit(**_FAST)
def spent_at_level(size, worth, cost, capped, z):  # type: ignore[no-untyped-def]
    """The same for targets min(slope z, cap), or a floor where there is no slope."""
    slope, cap, floor = capped
    total = 0.0
    for k in range(len(size)):
        target = min(slope[k] * z, cap[k]) if slope[k] > 0 else floor[k]
        total += size[k] * _spent(worth[k], cost[k], target)
    return total


@numba.njit(**_FAST)
def _spent(worth, cost, target):  # type: ignore[no-untyped-def]
    edge, last = 0, len(worth) - 2
    while edge < last and worth[edge + 1] < target:
        edge += 1
    low, high = worth[edge], worth[edge + 1]
    part = (target - low) / (high - low) if high > low else 0.0
    return cost[edge] + min(max(part, 0.0), 1.0) * (cost[edge + 1] - cost[edge])


@numba.njit(**_FAST)
def cheapest_level(hull, income, capped, ends, limits):  # type: ignore[no-untyped-def]
    """`Proof.bound` for such targets: the smallest level whose targets cost more than the income."""
    size, worth, cost = hull
    low, high = ends
    close, most_steps = limits
    above = spent_at_level(size, worth, cost, capped, high) - income
    below = spent_at_level(size, worth, cost, capped, low) - income
    if above <= 0:
        return high
    if below > 0:
        return min(high, low * (1 + close))
    guess, moved = low * (1 + 10 * close), 0
    for _ in range(most_steps):
        least = 0.5 * close * high
        if high - low <= 2 * least:
            break
        guess = min(max(guess, low + least), high - least)
        excess = spent_at_level(size, worth, cost, capped, guess) - income
        if excess > 0:
            if moved > 0:
                below /= 2
            high, above, moved = guess, excess, 1
        else:
            if moved < 0:
                above /= 2
            low, below, moved = guess, excess, -1
        guess = high - above * (high - low) / (above - below)
    return high
