"""Continuation in the softness: follows the prices at which demand fits from soft choices to sharp ones.

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
from optimizer.lp.dual_newton.dual_task import LOG, DualTask, largest_earnings
from optimizer.lp.dual_newton.newton import (
    DemandLimit,
    DualEvaluation,
    DualPoint,
    apply_step,
    demand_misfit,
    evaluate_dual,
    expected_decrease,
    merit_function,
    newton_direction,
    step_length,
)

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
