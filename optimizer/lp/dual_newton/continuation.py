"""Continuation in the softness: prices are led from soft choices to sharp ones, to where demand fits.

With much softness demand is almost linear in the prices, and Newton's steps arrive from anywhere. With little, what is
given away is below the wanted gap, but steps arrive only from nearby. So the softness falls by a factor at a time, each
time starting from where the derivative by the softness says the answer has gone; a factor that was too bold is taken
back. Widespread ties, where exact responses would leave prices without any derivative, only make the path steeper.
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

#: Steps without progress after which the last reduction counts as too bold.
_STALLS = 3
_PROGRESS = 0.8
#: Times a step is shortened before it is taken as it is.
_SHORTER = 4
_SHORTEN, _LENGTHEN = 0.3, 3.0
_SHORTEST, _SHORTEN_LITTLE = 0.03, 0.7
#: A misfit may rise by so much: a price may have to move far before any class minds. A dual function may only round.
_LENIENT = 0.1
_ROUNDING = 1e-12
#: A fit that is good enough to go on from.
NEAR = 0.03
#: A fit that a reduction starts from where one was too bold.
_CLOSE = 1e-4
_FACTOR = 0.2
_TIMIDEST = 0.8
#: The largest softness that a path starts from.
_SOFTEST = 100.0
#: Above this softness the reference prices still follow the prices.
_LOOSE = 0.05
#: Where hardly anything is scarce, incomes count as at least this part of what could be earned.
_LEAST_PART = 0.01
#: The most by which reference prices fall at a time.
_FOLLOWS = 0.3
#: The least reference price, as a part of the mean one.
_LEAST_SCALE = 1e-9


class _FitEnd(Enum):
    """How steps at one softness ended."""

    ENOUGH = auto()
    FITS = auto()
    STUCK = auto()


@dataclass(slots=True)
class WorkBudget:
    """Passes over all classes that are left; passes over a sample count for their part."""

    left: float
    done: float = 0.0

    def spend(self, part: float) -> None:
        self.done += part
        self.left -= part


@dataclass(frozen=True, slots=True)
class ContinuationPath:
    """Where prices are led: over which classes, into which room, and when it is enough."""

    engine: PassEngine
    task: DualTask
    limit: DemandLimit
    work: WorkBudget
    #: What a pass costs, in passes over all classes.
    part: float
    #: Called with every evaluation; returns True when it is good enough to stop.
    judge: Callable[[DualEvaluation], bool]
    #: Softness that needs no further reduction, and loss (part of the objective) that is small enough.
    least: float
    loss: float
    #: A fit that is good enough to reduce the softness, or to end with.
    near: float = NEAR
    fits: float = NEAR
    trail: list[DualEvaluation] = field(default_factory=list)

    def look(self, point: DualPoint) -> DualEvaluation:
        """One pass."""
        self.work.spend(self.part)
        return evaluate_dual(self.engine, self.task, point)


def softness_loss(task: DualTask, evaluated: DualEvaluation) -> float:
    """What the softness gives away, as a part of the objective."""
    given = float(evaluated.at.prices @ evaluated.sums.demand) - evaluated.sums.value - evaluated.sums.exact_cost
    return given / max(objective_scale(task, evaluated), 1e-300)


def objective_scale(task: DualTask, evaluated: DualEvaluation) -> float:
    """What a gap is a part of, in the unit of the prices."""
    if task.is_level:
        return max(evaluated.sums.exact_slope * evaluated.at.z, _LEAST_PART)
    if task.kind == LOG:
        return largest_earnings(task)
    return abs(float(evaluated.at.prices @ task.problem.capacity) - evaluated.sums.exact_cost)


def follow_path(path: ContinuationPath, start: DualPoint) -> DualEvaluation:
    """Lead the prices from a point to where the path's judge, or its limits, say enough."""
    evaluated = path.look(start)
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
            evaluated = path.look(replace(evaluated.at, softness=5.0 * evaluated.at.softness))
            continue
        else:
            factor = float(np.sqrt(factor))
            if factor > _TIMIDEST:
                return fitting
            fitting, _ = _fit(path, fitting, _CLOSE)
        evaluated = path.look(_at_smaller_softness(path, fitting, factor))


def _fit(
    path: ContinuationPath, evaluated: DualEvaluation, near: float | None = None
) -> tuple[DualEvaluation, _FitEnd]:
    """Newton's steps at one softness, shortened where they lead uphill."""
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
    """The next look, downhill if it can be found, and how far to trust the step after it."""
    before = merit_function(path.task, path.limit, evaluated)
    best: DualEvaluation | None = None
    for attempt in range(_SHORTER):
        step = newton_direction(path.task, path.limit, evaluated, 0.0, trust)
        point = apply_step(path.task, path.limit, evaluated, step, evaluated.at.softness)
        tried = path.look(point)
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
    """Where between the two the dual function should be lowest: its slopes at both ends are known."""
    if path.task.is_level:
        return _SHORTEN
    way = tried.at.prices - evaluated.at.prices
    before, after = (float((path.limit.capacity - end.sums.demand) @ way) for end in (evaluated, tried))
    return min(max(before / (before - after), _SHORTEST), _SHORTEN_LITTLE) if after > 0 > before else _SHORTEN


def _at_smaller_softness(path: ContinuationPath, evaluated: DualEvaluation, factor: float) -> DualPoint:
    """Where the answer is expected at a smaller softness."""
    softness = evaluated.at.softness * factor
    point = apply_step(
        path.task, path.limit, evaluated, newton_direction(path.task, path.limit, evaluated, factor - 1.0), softness
    )
    return with_new_reference(path.task, point) if softness > _LOOSE else point


def with_new_reference(task: DualTask, point: DualPoint) -> DualPoint:
    """The point with its own prices as the reference, and as soft as before on the whole.

    Where prices fall away, the reference follows slowly.
    """
    reference = np.maximum(point.prices, _FOLLOWS * point.reference)
    capacity = task.problem.capacity
    before, after = float(point.reference @ capacity), float(reference @ capacity)
    return replace(
        point, reference=reference, softness=point.softness * before / after if after > 0 else point.softness
    )


def with_least_reference(point: DualPoint) -> DualPoint:
    """The point with a reference for every row: those that nothing has referred to yet have a scale, too."""
    return replace(point, reference=np.maximum(point.reference, _LEAST_SCALE * float(point.reference.mean())))
