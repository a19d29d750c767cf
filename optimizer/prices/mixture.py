"""Shares as a mixture of responses at several prices, where no single point fits: Dantzig and Wolfe's master program.

A mixture of what all classes would do at several prices is possible for each class, reaches at least the mixed goals
(worth is linear, its logarithm concave), and takes the mixed demand. The best mixture that fits is a linear program
with a row per price. Decides which looks are mixed; used where the path of softness ends short of the gap.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.prices.engine import Engine
from optimizer.prices.newton import Look
from optimizer.prices.record import overload
from optimizer.prices.responses import worth_of
from optimizer.prices.softened import LOG, PLAIN
from optimizer.prices.task import Task
from optimizer.problem import FloatArray

#: Looks that take part, the last ones, and the least part that counts.
_LOOKS = 200
_LEAST = 1e-9
#: Goals may be missed by this part, and capacities aimed at are lower by it: the program is solved with rounding.
_ROUNDING = 1e-9
#: Steps of the search for the level that shares reach.
_STEPS = 50


@dataclass(frozen=True, slots=True, eq=False)
class Mixture:
    """Shares of one member in each column (C,), and what they reach."""

    x: FloatArray
    reached: float


def mix(engine: Engine, task: Task, looks: list[Look]) -> Mixture | None:
    """The best mixture of the looks that fits, or None."""
    looks = [seen for seen in looks[-_LOOKS:] if not seen.sums.unreached]
    part = _parts(task, looks)
    if part is None:
        return None
    market, chosen = task.market, np.flatnonzero(part > _LEAST)
    x = np.zeros(market.columns)
    for index in chosen:
        at, one = looks[index].at, np.zeros(market.columns)
        engine.sums(market, task.wants(at.z), at.prices, at.softness * at.reference, one)
        x += part[index] * one
    over = overload(market, market.used(x))
    if task.is_strict and over > 1.0 + _ROUNDING:
        return None
    x /= max(over, 1.0)
    return Mixture(x, _reached(task, x, [looks[index].at.z for index in chosen]))


def _parts(task: Task, looks: list[Look]) -> FloatArray | None:
    """How much of each look, by linear programming; doing nothing takes part where nothing must be reached."""
    from scipy.optimize import linprog

    if not looks:
        return None
    gain = np.array([seen.at.z if task.is_level else seen.sums.value for seen in looks])
    used = task.market.capacity > 0
    load = np.array([seen.sums.demand[used] / task.market.capacity[used] for seen in looks]).T
    whole, limit = np.ones((1, len(looks))), np.full(len(load), 1.0 - _ROUNDING)
    idle = task.kind == PLAIN
    found = linprog(
        -gain / max(float(np.abs(gain).max()), 1e-300),
        A_ub=np.vstack([load, whole]) if idle else load,
        b_ub=np.append(limit, 1.0) if idle else limit,
        A_eq=None if idle else whole,
        b_eq=None if idle else [1.0],
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10},
    )
    return np.maximum(found.x, 0.0) if found.status == 0 else None


def _reached(task: Task, x: FloatArray, levels: list[float]) -> float:
    market = task.market
    if not task.is_level and task.kind != LOG:
        return float((task.value * np.repeat(market.size, np.diff(market.first))) @ x)
    worth = worth_of(market, task.worth, x)
    if task.kind == LOG:
        heavy = task.goal > 0
        return float((market.size * task.goal)[heavy] @ np.log(worth[heavy]))
    return _level_of(task, worth, levels)


def _level_of(task: Task, worth: FloatArray, levels: list[float]) -> float:
    """The highest level whose targets the worths reach: all levels in the mixture reach the lowest of them."""
    low, high = min(levels), max(levels)
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        if (task.wants(middle).goal <= worth * (1 + _ROUNDING)).all():
            low = middle
        else:
            high = middle
    return low
