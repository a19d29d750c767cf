"""Shares as a mixture of responses at several prices, where no single point fits: Dantzig and Wolfe's master program.

A mixture of what all classes would do at several prices is possible for each class, reaches at least the mixed goals
(worth is linear, its logarithm concave), and takes the mixed demand. The best mixture that fits is a linear program
with a row per price, and its prices say where to look next. Used where the path of softness ends short of the gap: with
few classes the looks soon are all that there are, so that the mixture becomes exact.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.prices.engine import Engine
from optimizer.prices.newton import Look, Point
from optimizer.prices.record import overload
from optimizer.prices.responses import worth_of
from optimizer.prices.softened import LOG, PLAIN
from optimizer.prices.task import Task
from optimizer.problem import FloatArray

#: Looks that take part, the last ones, and the least part that counts.
_LOOKS = 200
_LEAST = 1e-9
#: Softness of a look at the prices of a mixture: almost exact, so that the mixtures of looks are all that there is.
_SHARP = 1e-6
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
    looks = _usable(looks)
    master = _solved(task, looks)
    if master is None:
        return None
    market, chosen = task.market, np.flatnonzero(master.part[: len(looks)] > _LEAST)
    x = np.zeros(market.columns)
    for index in chosen:
        at, one = looks[index].at, np.zeros(market.columns)
        engine.sums(market, task.wants(at.z), at.prices, at.softness * at.reference, one)
        x += master.part[index] * one
    over = overload(market, market.used(x))
    if task.is_strict and over > 1.0 + _ROUNDING:
        return None
    x /= max(over, 1.0)
    return Mixture(x, _reached(task, x))


def suggest(task: Task, looks: list[Look], bound: float) -> Point | None:
    """Where to look next: at the prices of the best mixture, and for a Level between what it reaches and the bound."""
    looks = _usable(looks)
    master = _solved(task, looks)
    if master is None or not master.prices.any():
        return None
    last, prices = looks[-1].at, master.prices
    if task.is_level:
        prices = prices / float(prices @ task.market.capacity)
    return Point(prices, 0.5 * (master.value + bound), _SHARP, np.maximum(prices, _LEAST * last.reference))


@dataclass(frozen=True, slots=True, eq=False)
class _Master:
    """How much of each look (and, last, of doing nothing), the prices of the rows (r,), and what it is worth."""

    part: FloatArray
    prices: FloatArray
    value: float


def _usable(looks: list[Look]) -> list[Look]:
    return [seen for seen in looks[-_LOOKS:] if not seen.sums.unreached]


def _solved(task: Task, looks: list[Look]) -> _Master | None:
    """The best mixture, by linear programming. Doing nothing takes part where nothing must be reached."""
    from scipy.optimize import linprog

    if not looks:
        return None
    used = task.market.capacity > 0
    gain = np.array([seen.at.z if task.is_level else seen.sums.value for seen in looks])
    load = np.array([seen.sums.demand[used] / task.market.capacity[used] for seen in looks]).T
    if task.kind == PLAIN or (task.is_level and not task.wants(0.0).goal.any()):
        gain, load = np.append(gain, 0.0), np.hstack([load, np.zeros((len(load), 1))])
    unit = max(float(np.abs(gain).max()), 1e-300)
    found = linprog(
        -gain / unit,
        A_ub=load,
        b_ub=np.full(len(load), 1.0 - _ROUNDING),
        A_eq=np.ones((1, len(gain))),
        b_eq=[1.0],
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10},
    )
    if found.status != 0:
        return None
    prices = np.zeros(task.market.rows)
    prices[used] = np.maximum(-found.ineqlin.marginals, 0.0) * unit / task.market.capacity[used]
    return _Master(np.maximum(found.x, 0.0), prices, -float(found.fun) * unit)


def _reached(task: Task, x: FloatArray) -> float:
    market = task.market
    if not task.is_level and task.kind != LOG:
        return float((task.value * np.repeat(market.size, np.diff(market.first))) @ x)
    worth = worth_of(market, task.worth, x)
    if task.kind == LOG:
        heavy = task.goal > 0
        return float((market.size * task.goal)[heavy] @ np.log(worth[heavy]))
    low, high = 0.0, task.targets.highest if task.targets is not None else 0.0
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        if (task.wants(middle).goal <= worth * (1 + _ROUNDING)).all():
            low = middle
        else:
            high = middle
    return low
