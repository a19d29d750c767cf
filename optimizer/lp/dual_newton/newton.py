"""One Newton step of the prices towards those at which demand fits the capacities, and the end point of a solve.

With d the softened demand, the method finds prices p and (for MaxMin) a level z such that

    d(p, z) <= capacity,  p >= 0,  equal where p > 0          and for MaxMin  p.capacity = 1

(the unit of a level's prices is arbitrary). MaxSum and NashWelfare: p minimises the convex dual function, whose
derivative is capacity - d. MaxMin: d rises with z, so the two conditions determine both. The derivatives are exact,
including those by the softness, so a single step can follow the answer to a smaller softness.

A `WarmStart` is the end point of a solve: the next solve starts from it, or corrects it for one changed class.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.lp.dual_newton.dual_bound import PassEngine
from optimizer.lp.dual_newton.dual_task import DualTask, PassSums
from optimizer.problem import BoolArray, FloatArray

#: One unit of change: of the prices, and of the level, relative to themselves.
_PRICE_STEP = 1.0
_LEVEL_STEP = 0.5
#: Prices below this part of their reference price change as if they were that part of it.
_LEAST_PRICE = 0.5
#: Ridges, as parts of the usual derivative, tried in turn until this part of a step can be trusted.
_RIDGES = (1e-9, 1e-6, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
_LONG = 0.3


@dataclass(frozen=True, slots=True, eq=False)
class DualPoint:
    """The point at which a pass is run: prices (r,), level, and softness as a multiple of reference prices (r,)."""

    prices: FloatArray
    z: float
    softness: float
    reference: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class DualEvaluation:
    """A point with the sums of the pass run there."""

    at: DualPoint
    sums: PassSums


@dataclass(frozen=True, slots=True, eq=False)
class DemandLimit:
    """The limits that demand has to fit: capacities (r,), and the highest level. Strict fits aim a little lower."""

    capacity: FloatArray
    highest: float


@dataclass(frozen=True, slots=True, eq=False)
class NewtonStep:
    """A direction: change of prices (r,) and of the level."""

    prices: FloatArray
    z: float


def evaluate_dual(engine: PassEngine, task: DualTask, point: DualPoint) -> DualEvaluation:
    """Runs one pass at a point."""
    softness = point.softness * point.reference
    return DualEvaluation(point, engine.sums(task.problem, task.goals(point.z), point.prices, softness, np.zeros(0)))


def demand_misfit(task: DualTask, limit: DemandLimit, evaluated: DualEvaluation) -> float:
    """Returns the misfit of demand: the largest part by which a row is overloaded, or underused although it has a
    price.
    """
    over = _excess_demand(limit, evaluated) / np.where(limit.capacity > 0, limit.capacity, 1.0)
    paid = evaluated.at.prices / evaluated.at.reference
    worst = float(np.where(over > 0, over, np.minimum(-over, paid)).max(initial=0.0))
    return max(worst, abs(_unit_miss(task, limit, evaluated)))


def merit_function(task: DualTask, limit: DemandLimit, evaluated: DualEvaluation) -> float:
    """Returns the merit function, which falls along a good step: the softened dual function, or for a MaxMin the
    weighted misfit.
    """
    if not task.is_level:
        return float(evaluated.at.prices @ limit.capacity) - evaluated.sums.soft_cost
    over = _excess_demand(limit, evaluated)
    money = np.where((evaluated.at.prices > 0) | (over > 0), over, 0.0) * evaluated.at.reference
    unit = _unit_miss(task, limit, evaluated)
    return float(np.sqrt(money @ money + unit * unit))


def newton_direction(
    task: DualTask, limit: DemandLimit, evaluated: DualEvaluation, soften: float, trust: float = 1.0
) -> NewtonStep:
    """Returns the Newton step towards the answer at a softness changed by the part `soften` (0: unchanged).

    Where it would be longer than `trust` (see `step_length`), a ridge turns it towards descent. At the highest level
    prices may be less than one unit: then the level stays, and only prices move.
    """
    over = _excess_demand(limit, evaluated)
    rest, free = over + soften * evaluated.sums.by_softness, (evaluated.at.prices > 0) | (over > 0)
    leveled = task.is_level and (evaluated.at.z < limit.highest or _unit_miss(task, limit, evaluated) < 0)
    step = NewtonStep(np.zeros(len(rest)), 0.0)
    for ridge in _RIDGES:
        if leveled:
            step = _lowered(
                limit, evaluated, _with_level(limit, evaluated, rest, free, ridge, _unit_miss(task, limit, evaluated))
            )
        else:
            step = _prices_alone(limit, evaluated, rest, free, ridge)
        if _LONG * step_length(evaluated, step) <= trust:
            break
    reach = step_length(evaluated, step)
    return step if reach <= trust else NewtonStep(step.prices * trust / reach, step.z * trust / reach)


def apply_step(
    task: DualTask, limit: DemandLimit, evaluated: DualEvaluation, step: NewtonStep, softness: float
) -> DualPoint:
    """Returns the point to which the step leads, at this softness."""
    prices = np.maximum(evaluated.at.prices + step.prices, 0.0)
    z = evaluated.at.z
    if task.is_level:
        z = min(max(z + step.z, 0.1 * z), limit.highest)
    return DualPoint(prices, z, softness, evaluated.at.reference)


def step_length(evaluated: DualEvaluation, step: NewtonStep) -> float:
    """Returns the length of a step: 1 where a price doubles, or the level changes by half."""
    reach = float((np.abs(step.prices) / _scale(evaluated)).max(initial=0.0)) / _PRICE_STEP
    return max(reach, abs(step.z) / evaluated.at.z / _LEVEL_STEP) if evaluated.at.z > 0 else reach


def expected_decrease(task: DualTask, limit: DemandLimit, evaluated: DualEvaluation, to: DualPoint) -> float:
    """Returns by how much the merit function should fall on the way to a point, to first order."""
    if task.is_level:
        return 0.0
    return float((limit.capacity - evaluated.sums.demand) @ (to.prices - evaluated.at.prices))


def _excess_demand(limit: DemandLimit, evaluated: DualEvaluation) -> FloatArray:
    return evaluated.sums.demand - limit.capacity


def _unit_miss(task: DualTask, limit: DemandLimit, evaluated: DualEvaluation) -> float:
    """Returns how far the prices of a MaxMin are from their unit; at the highest level they may stay below it."""
    if not task.is_level:
        return 0.0
    miss = 1.0 - float(limit.capacity @ evaluated.at.prices)
    return miss if evaluated.at.z < limit.highest else min(miss, 0.0)


def _scale(evaluated: DualEvaluation) -> FloatArray:
    return np.maximum(evaluated.at.prices, _LEAST_PRICE * evaluated.at.reference)


def _system(
    limit: DemandLimit, evaluated: DualEvaluation, free: BoolArray, ridge: float
) -> tuple[FloatArray, FloatArray]:
    """Returns the scaled derivative of the demand on the free rows, made safely invertible, and the scale."""
    scale = _scale(evaluated)[free]
    matrix = evaluated.sums.stiffness[np.ix_(free, free)] * scale[:, None] * scale
    rows = max(len(scale), 1)
    usual = max(float(np.trace(matrix)) / rows, float(scale @ limit.capacity[free]) / rows)
    return matrix + ridge * usual * np.eye(len(scale)), scale


def _prices_alone(
    limit: DemandLimit, evaluated: DualEvaluation, rest: FloatArray, free: BoolArray, ridge: float
) -> NewtonStep:
    matrix, scale = _system(limit, evaluated, free, ridge)
    change = np.zeros(len(rest))
    change[free] = scale * _solved(matrix, scale * rest[free])
    return NewtonStep(change, 0.0)


def _with_level(
    limit: DemandLimit, evaluated: DualEvaluation, rest: FloatArray, free: BoolArray, ridge: float, miss: float
) -> NewtonStep:
    matrix, scale = _system(limit, evaluated, free, ridge)
    rows, z = len(scale), max(evaluated.at.z, 1e-300)
    bordered = np.zeros((rows + 1, rows + 1))
    bordered[:rows, :rows] = matrix
    bordered[:rows, rows] = -scale * evaluated.sums.by_level[free] * z
    bordered[rows, :rows] = scale * limit.capacity[free]
    found = _solved(bordered, np.append(scale * rest[free], miss))
    change = np.zeros(len(rest))
    change[free] = scale * found[:rows]
    return NewtonStep(change, z * float(found[rows]))


def _lowered(limit: DemandLimit, evaluated: DualEvaluation, step: NewtonStep) -> NewtonStep:
    """Returns the step, with a level low enough that by linear extrapolation the income pays for it: demand alone need
    not ensure that.
    """
    short = evaluated.sums.exact_cost - float(evaluated.at.prices @ limit.capacity)
    if short <= 0:
        return step
    slope = evaluated.sums.exact_slope
    return NewtonStep(step.prices, min(step.z, -short / slope if slope > 0 else -0.5 * evaluated.at.z))


def _solved(matrix: FloatArray, right: FloatArray) -> FloatArray:
    try:
        found = np.asarray(np.linalg.solve(matrix, right), dtype=np.float64)
    except np.linalg.LinAlgError:
        found = np.asarray(np.linalg.lstsq(matrix, right, rcond=1e-12)[0], dtype=np.float64)
    return np.where(np.isfinite(found), found, 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class AggregateResponse:
    """The sums of all classes' responses at some prices. A change of one class changes them by that class's own
    response.
    """

    prices: FloatArray
    #: The level asked for; used for a MaxMin only.
    z: float
    #: Prices whose mean cost over a class's columns is its softness (r,).
    softness: FloatArray
    #: Demand of all members (r,).
    demand: FloatArray
    #: What the members earned: values, or weighted logarithms.
    value: float
    #: Net cost of the exact responses and its derivative by the level, which prove the bound (see
    #: `dual_task.PassSums`).
    exact_cost: float
    exact_slope: float
    #: The number of classes whose goal exceeds the worth of all their columns.
    unreached: float


@dataclass(frozen=True, slots=True, eq=False)
class WarmStart:
    """The point whose softened responses are the shares, and the responses on the way there, in order."""

    at: DualPoint
    responses: tuple[AggregateResponse, ...]
