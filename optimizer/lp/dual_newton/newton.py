"""Prices at which demand fits the capacities: Newton steps, and continuation from soft choices to sharp ones.

With d the softened demand, the method finds prices p and (for MaxMin) a level z such that

    d(p, z) <= capacity,  p >= 0,  equal where p > 0          and for MaxMin  p.capacity = 1

(the unit of a level's prices is arbitrary). MaxSum and NashWelfare: p minimises the convex dual function, whose
derivative is capacity - d. MaxMin: d rises with z, so the two conditions determine both. The derivatives are exact,
including those by the softness, so a single step can follow the answer to a smaller softness.

With much softness demand is almost linear in the prices, and Newton's method converges from anywhere. With little, the
loss by softness is below the wanted gap, but the method converges only from nearby. So the softness falls by a factor
at a time; each time the derivative by the softness predicts the new answer, and a factor that was too small is tried
again closer to 1. Widespread ties, where exact responses would leave prices without any derivative, only make the path
steeper.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum, auto

import numpy as np

from optimizer.lp.dual_newton.dual_bound import PassEngine
from optimizer.lp.dual_newton.dual_task import LOG, DualTask, PassSums, largest_earnings
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


@dataclass(frozen=True, slots=True, eq=False)
class _Residual:
    """What a step is to bring to 0: the excess of demand (r,) on the rows that are free to move, and how far prices
    are from their unit.
    """

    over: FloatArray
    free: BoolArray
    miss: float


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
    over, miss = _excess_demand(limit, evaluated), _unit_miss(task, limit, evaluated)
    rest = _Residual(over + soften * evaluated.sums.by_softness, (evaluated.at.prices > 0) | (over > 0), miss)
    leveled = task.is_level and (evaluated.at.z < limit.highest or miss < 0)
    step = NewtonStep(np.zeros(len(over)), 0.0)
    for ridge in _RIDGES:
        if leveled:
            step = _lowered(limit, evaluated, _with_level(limit, evaluated, rest, ridge))
        else:
            step = _prices_alone(limit, evaluated, rest, ridge)
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


def _prices_alone(limit: DemandLimit, evaluated: DualEvaluation, rest: _Residual, ridge: float) -> NewtonStep:
    free = rest.free
    matrix, scale = _system(limit, evaluated, free, ridge)
    change = np.zeros(len(free))
    change[free] = scale * _solved(matrix, scale * rest.over[free])
    return NewtonStep(change, 0.0)


def _with_level(limit: DemandLimit, evaluated: DualEvaluation, rest: _Residual, ridge: float) -> NewtonStep:
    free = rest.free
    matrix, scale = _system(limit, evaluated, free, ridge)
    rows, z = len(scale), max(evaluated.at.z, 1e-300)
    bordered = np.zeros((rows + 1, rows + 1))
    bordered[:rows, :rows] = matrix
    bordered[:rows, rows] = -scale * evaluated.sums.by_level[free] * z
    bordered[rows, :rows] = scale * limit.capacity[free]
    found = _solved(bordered, np.append(scale * rest.over[free], rest.miss))
    change = np.zeros(len(free))
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


#: The steps without progress (the second number: the factor by which the misfit must fall) after which the last
#: reduction of softness counts as too large.
_STALLS = 3
_PROGRESS = 0.8
#: The most times that a step is shortened before the best point tried is taken; and the factors of shortening and
#: lengthening.
_SHORTER = 4
_SHORTEN, _LENGTHEN = 0.3, 3.0
_SHORTEST, _SHORTEN_LITTLE = 0.03, 0.7
#: How much the merit function may rise in a step, relatively: for a MaxMin much, because a price may have to move far
#: before any class reacts; a dual function may rise only by rounding.
_LENIENT = 0.1
_ROUNDING = 1e-12
#: The misfit below which the softness may be reduced further.
NEAR = 0.03
#: The misfit that is wanted before the next reduction, after one that was too large; and the first and the largest
#: factor of reduction.
_CLOSE = 1e-4
_FACTOR = 0.2
_TIMIDEST = 0.8
#: The largest softness with which a path starts.
_SOFTEST = 100.0
#: Above this softness the reference prices follow the prices.
_LOOSE = 0.05
#: Where hardly anything is scarce, the income counts as at least this part of what could be earned.
_LEAST_PART = 0.01
#: The factor to which a reference price may fall at a time.
_FOLLOWS = 0.3
#: The least reference price, as a part of the mean one.
_LEAST_SCALE = 1e-9


class _FitEnd(Enum):
    """How Newton's steps at one softness ended."""

    ENOUGH = auto()
    FITS = auto()
    STUCK = auto()


@dataclass(slots=True)
class WorkBudget:
    """The passes over all classes that are left; a pass over a sample counts for its part of them."""

    left: float
    done: float = 0.0

    def spend(self, part: float) -> None:
        self.done += part
        self.left -= part


@dataclass(frozen=True, slots=True)
class ContinuationPath:
    """The work of a continuation: the classes, the capacities that demand has to fit, and when to stop."""

    engine: PassEngine
    task: DualTask
    limit: DemandLimit
    work: WorkBudget
    #: The cost of a pass, in passes over all classes.
    part: float
    #: Called with every evaluation; returns True when it is good enough to stop.
    judge: Callable[[DualEvaluation], bool]
    #: The softness at which the path ends, and the loss by softness (part of the objective) that is small enough.
    least: float
    loss: float
    #: The misfit at which the softness is reduced, and the one at which the path may end.
    near: float = NEAR
    fits: float = NEAR
    trail: list[DualEvaluation] = field(default_factory=list)

    def evaluate(self, point: DualPoint) -> DualEvaluation:
        """Runs one pass at the point, and charges it to the budget."""
        self.work.spend(self.part)
        return evaluate_dual(self.engine, self.task, point)


def softness_loss(task: DualTask, evaluated: DualEvaluation) -> float:
    """Returns the loss by softness, as a part of the objective."""
    given = float(evaluated.at.prices @ evaluated.sums.demand) - evaluated.sums.value - evaluated.sums.exact_cost
    return given / max(objective_scale(task, evaluated), 1e-300)


def objective_scale(task: DualTask, evaluated: DualEvaluation) -> float:
    """Returns the scale to which a gap is relative, in the unit of the prices."""
    if task.is_level:
        return max(evaluated.sums.exact_slope * evaluated.at.z, _LEAST_PART)
    if task.kind == LOG:
        return largest_earnings(task)
    return abs(float(evaluated.at.prices @ task.problem.capacity) - evaluated.sums.exact_cost)


def follow_path(path: ContinuationPath, start: DualPoint) -> DualEvaluation:
    """Returns the last evaluation on the path from `start`, which ends when its judge or its limits stop it."""
    evaluated = path.evaluate(start)
    fitting: DualEvaluation | None = None
    factor = _FACTOR
    while True:
        evaluated, end = _fit(path, evaluated)
        if end is _FitEnd.ENOUGH or path.work.left <= 0:
            return evaluated
        if end is _FitEnd.FITS:
            if evaluated.at.softness <= path.least or (
                path.fits >= path.near and softness_loss(path.task, evaluated) <= path.loss
            ):
                return evaluated
            factor = factor if fitting is None else max(_FACTOR, factor**1.5)
            fitting = evaluated
        elif fitting is None:
            if evaluated.at.softness > _SOFTEST:
                return evaluated
            evaluated = path.evaluate(replace(evaluated.at, softness=5.0 * evaluated.at.softness))
            continue
        else:
            factor = float(np.sqrt(factor))
            if factor > _TIMIDEST:
                return fitting
            fitting, _ = _fit(path, fitting, _CLOSE)
        evaluated = path.evaluate(_at_smaller_softness(path, fitting, factor))


def _fit(
    path: ContinuationPath, evaluated: DualEvaluation, near: float | None = None
) -> tuple[DualEvaluation, _FitEnd]:
    """Takes Newton's steps at one softness, shortened where the merit function rises; returns the last evaluation, and
    why it is the last.
    """
    wanted = path.near if near is None else near
    best, trust, stalled = np.inf, 1.0, 0
    while True:
        path.trail.append(evaluated)
        if path.judge(evaluated):
            return evaluated, _FitEnd.ENOUGH
        off = demand_misfit(path.task, path.limit, evaluated)
        if off <= (wanted if softness_loss(path.task, evaluated) > path.loss else path.fits):
            return evaluated, _FitEnd.FITS
        stalled = 0 if off < _PROGRESS * best else stalled + 1
        best = min(best, off)
        if stalled > _STALLS or path.work.left <= 0:
            return evaluated, _FitEnd.STUCK
        evaluated, trust = _stepped(path, evaluated, trust)


def _stepped(path: ContinuationPath, evaluated: DualEvaluation, trust: float) -> tuple[DualEvaluation, float]:
    """Returns the next evaluation, with a lower merit where one is found, and the step length to trust after it."""
    before = merit_function(path.task, path.limit, evaluated)
    best: DualEvaluation | None = None
    for attempt in range(_SHORTER):
        step = newton_direction(path.task, path.limit, evaluated, 0.0, trust)
        point = apply_step(path.task, path.limit, evaluated, step, evaluated.at.softness)
        tried = path.evaluate(point)
        now = merit_function(path.task, path.limit, tried)
        wanted = before + 1e-4 * expected_decrease(path.task, path.limit, evaluated, point)
        reach = step_length(evaluated, step)
        if now <= wanted + (_LENIENT if path.task.is_level else _ROUNDING) * abs(before):
            return tried, (min(max(trust, _LENGTHEN * reach), 1.0) if attempt == 0 else trust)
        if best is None or now < merit_function(path.task, path.limit, best):
            best = tried
        trust = reach * _step_reduction(path, evaluated, tried)
    assert best is not None
    return best, trust


def _step_reduction(path: ContinuationPath, evaluated: DualEvaluation, tried: DualEvaluation) -> float:
    """Returns the factor by which to shorten a step: the minimum of the dual function by linear interpolation of its
    slopes at both ends.
    """
    if path.task.is_level:
        return _SHORTEN
    way = tried.at.prices - evaluated.at.prices
    before, after = (float((path.limit.capacity - end.sums.demand) @ way) for end in (evaluated, tried))
    return min(max(before / (before - after), _SHORTEST), _SHORTEN_LITTLE) if after > 0 > before else _SHORTEN


def _at_smaller_softness(path: ContinuationPath, evaluated: DualEvaluation, factor: float) -> DualPoint:
    """Returns the predicted answer at a smaller softness, by one Newton step."""
    softness = evaluated.at.softness * factor
    point = apply_step(
        path.task, path.limit, evaluated, newton_direction(path.task, path.limit, evaluated, factor - 1.0), softness
    )
    return with_new_reference(path.task, point) if softness > _LOOSE else point


def with_new_reference(task: DualTask, point: DualPoint) -> DualPoint:
    """Returns the point with its own prices as reference prices, and the softness scaled so that it is as large as
    before in all.

    Where prices fall, the reference follows slowly.
    """
    reference = np.maximum(point.prices, _FOLLOWS * point.reference)
    capacity = task.problem.capacity
    before, after = float(point.reference @ capacity), float(reference @ capacity)
    return replace(
        point, reference=reference, softness=point.softness * before / after if after > 0 else point.softness
    )


def with_least_reference(point: DualPoint) -> DualPoint:
    """Returns the point with a positive reference price for every row, so that rows without a price so far have a
    scale, too.
    """
    return replace(point, reference=np.maximum(point.reference, _LEAST_SCALE * float(point.reference.mean())))
