"""One step of the prices towards those at which demand fits the capacities. Decides where to look next.

With d the softened demand, the prices p and (for a Level) the level z are sought where

    d(p, z) <= capacity,  p >= 0,  equal where p > 0          and for a Level  p.capacity = 1

(a Level's prices mean the same whatever their unit). Total and Nash: p minimises the convex dual function, whose
derivative is capacity - d. Level: d rises with z, so the two conditions fix both. The derivatives are exact, those by
the softness included: a step may at once follow the answer to a smaller softness.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.prices.engine import Engine
from optimizer.prices.softened import Sums
from optimizer.prices.task import Task
from optimizer.problem import BoolArray, FloatArray

#: What counts as one unit of change: of the prices, and of the level, in parts of themselves.
_PRICE_STEP = 1.0
_LEVEL_STEP = 0.5
#: Prices below this part of their reference move as if they were that.
_LEAST_PRICE = 0.5
#: Ridges, as parts of the usual derivative, that are tried until so much of a step can be trusted.
_RIDGES = (1e-9, 1e-6, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
_LONG = 0.3


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """Where a pass looks: prices (r,), level, and softness as a multiple of reference prices (r,)."""

    prices: FloatArray
    z: float
    softness: float
    reference: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """A point and what a pass found there."""

    at: Point
    sums: Sums


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """What demand has to fit into: capacities (r,), and the highest level. Strict fits aim at a little less."""

    capacity: FloatArray
    highest: float


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A direction: change of prices (r,) and of the level."""

    prices: FloatArray
    z: float


def look(engine: Engine, task: Task, point: Point) -> Look:
    """One pass."""
    softness = point.softness * point.reference
    return Look(point, engine.sums(task.market, task.wants(point.z), point.prices, softness, np.zeros(0)))


def misfit(task: Task, room: Room, seen: Look) -> float:
    """How far demand is from fitting: the largest part by which a row is over, or under in spite of its price."""
    over = _over(room, seen) / np.where(room.capacity > 0, room.capacity, 1.0)
    paid = seen.at.prices / seen.at.reference
    worst = float(np.where(over > 0, over, np.minimum(-over, paid)).max(initial=0.0))
    return max(worst, abs(_unit_miss(task, room, seen)))


def merit(task: Task, room: Room, seen: Look) -> float:
    """What falls along a good step: the softened dual function, or for a Level the weighted misfit."""
    if not task.is_level:
        return float(seen.at.prices @ room.capacity) - seen.sums.soft_cost
    over = _over(room, seen)
    money = np.where((seen.at.prices > 0) | (over > 0), over, 0.0) * seen.at.reference
    unit = _unit_miss(task, room, seen)
    return float(np.sqrt(money @ money + unit * unit))


def direction(task: Task, room: Room, seen: Look, soften: float, trust: float = 1.0) -> Step:
    """The Newton step, to the answer for a softness changed by the part `soften` (0: the same).

    Where it would go further than it is trusted (see `reach_of`), a ridge turns it downhill. At the highest level
    prices may be less than one unit: then the level stays, and they alone move.
    """
    over = _over(room, seen)
    rest, free = over + soften * seen.sums.by_softness, (seen.at.prices > 0) | (over > 0)
    leveled = task.is_level and (seen.at.z < room.highest or _unit_miss(task, room, seen) < 0)
    step = Step(np.zeros(len(rest)), 0.0)
    for ridge in _RIDGES:
        if leveled:
            step = _lowered(room, seen, _with_level(room, seen, rest, free, ridge, _unit_miss(task, room, seen)))
        else:
            step = _prices_alone(room, seen, rest, free, ridge)
        if _LONG * reach_of(seen, step) <= trust:
            break
    reach = reach_of(seen, step)
    return step if reach <= trust else Step(step.prices * trust / reach, step.z * trust / reach)


def moved(task: Task, room: Room, seen: Look, step: Step, softness: float) -> Point:
    """The point at the end of the step."""
    prices = np.maximum(seen.at.prices + step.prices, 0.0)
    z = seen.at.z
    if task.is_level:
        z = min(max(z + step.z, 0.1 * z), room.highest)
    return Point(prices, z, softness, seen.at.reference)


def reach_of(seen: Look, step: Step) -> float:
    """How far a step goes: 1 where a price doubles, or the level changes by half."""
    reach = float((np.abs(step.prices) / _scale(seen)).max(initial=0.0)) / _PRICE_STEP
    return max(reach, abs(step.z) / seen.at.z / _LEVEL_STEP) if seen.at.z > 0 else reach


def downhill(task: Task, room: Room, seen: Look, to: Point) -> float:
    """How much the merit should fall on the way, to first order."""
    if task.is_level:
        return 0.0
    return float((room.capacity - seen.sums.demand) @ (to.prices - seen.at.prices))


def _over(room: Room, seen: Look) -> FloatArray:
    return seen.sums.demand - room.capacity


def _unit_miss(task: Task, room: Room, seen: Look) -> float:
    """How far the prices of a Level are from their unit; at the highest level they may stay below it."""
    if not task.is_level:
        return 0.0
    miss = 1.0 - float(room.capacity @ seen.at.prices)
    return miss if seen.at.z < room.highest else min(miss, 0.0)


def _scale(seen: Look) -> FloatArray:
    return np.maximum(seen.at.prices, _LEAST_PRICE * seen.at.reference)


def _system(room: Room, seen: Look, free: BoolArray, ridge: float) -> tuple[FloatArray, FloatArray]:
    """The scaled derivative of the demand on the free rows, made safely invertible; and the scale."""
    scale = _scale(seen)[free]
    matrix = seen.sums.stiffness[np.ix_(free, free)] * scale[:, None] * scale
    rows = max(len(scale), 1)
    usual = max(float(np.trace(matrix)) / rows, float(scale @ room.capacity[free]) / rows)
    return matrix + ridge * usual * np.eye(len(scale)), scale


def _prices_alone(room: Room, seen: Look, rest: FloatArray, free: BoolArray, ridge: float) -> Step:
    matrix, scale = _system(room, seen, free, ridge)
    change = np.zeros(len(rest))
    change[free] = scale * _solved(matrix, scale * rest[free])
    return Step(change, 0.0)


def _with_level(room: Room, seen: Look, rest: FloatArray, free: BoolArray, ridge: float, miss: float) -> Step:
    matrix, scale = _system(room, seen, free, ridge)
    rows, z = len(scale), max(seen.at.z, 1e-300)
    bordered = np.zeros((rows + 1, rows + 1))
    bordered[:rows, :rows] = matrix
    bordered[:rows, rows] = -scale * seen.sums.by_level[free] * z
    bordered[rows, :rows] = scale * room.capacity[free]
    found = _solved(bordered, np.append(scale * rest[free], miss))
    change = np.zeros(len(rest))
    change[free] = scale * found[:rows]
    return Step(change, z * float(found[rows]))


def _lowered(room: Room, seen: Look, step: Step) -> Step:
    """Down at least to where a line says that the level can be paid for, if it cannot: demand need not say so."""
    short = seen.sums.exact_cost - float(seen.at.prices @ room.capacity)
    if short <= 0:
        return step
    slope = seen.sums.exact_slope
    return Step(step.prices, min(step.z, -short / slope if slope > 0 else -0.5 * seen.at.z))


def _solved(matrix: FloatArray, right: FloatArray) -> FloatArray:
    try:
        found = np.asarray(np.linalg.solve(matrix, right), dtype=np.float64)
    except np.linalg.LinAlgError:
        found = np.asarray(np.linalg.lstsq(matrix, right, rcond=1e-12)[0], dtype=np.float64)
    return np.where(np.isfinite(found), found, 0.0)
