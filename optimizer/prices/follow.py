"""From soft choices to sharp ones: how prices are led to where demand fits. Decides how softness falls.

With much softness demand is almost linear in the prices, and Newton's steps arrive from anywhere. With little, what is
given away is below the wanted gap, but steps arrive only from nearby. So the softness falls by a factor at a time, each
time starting from where the derivative by the softness says the answer has gone; a factor that was too bold is taken
back. Widespread ties, where exact responses would leave prices without any derivative, only make the path steeper.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum, auto

import numpy as np

from optimizer.prices.engine import Engine
from optimizer.prices.newton import Look, Point, Room, direction, downhill, look, merit, misfit, moved, reach_of
from optimizer.prices.softened import LOG
from optimizer.prices.task import Task, earnings

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
#: Nobody needs to begin softer than so.
_SOFTEST = 100.0
#: Above this softness the reference prices still follow the prices.
_LOOSE = 0.05
#: Where hardly anything is scarce, incomes count as at least this part of what could be earned.
_LEAST_PART = 0.01
#: The most by which reference prices fall at a time.
_FOLLOWS = 0.3
#: The least reference price, as a part of the mean one.
_LEAST_SCALE = 1e-9


class _End(Enum):
    """How steps at one softness ended."""

    ENOUGH = auto()
    FITS = auto()
    STUCK = auto()


@dataclass(slots=True)
class Work:
    """Passes over all classes that are left; passes over a sample count for their part."""

    left: float
    done: float = 0.0

    def spend(self, part: float) -> None:
        self.done += part
        self.left -= part


@dataclass(frozen=True, slots=True)
class Path:
    """Where prices are led: over which classes, into which room, and when it is enough."""

    engine: Engine
    task: Task
    room: Room
    work: Work
    #: What a pass costs, in passes over all classes.
    part: float
    #: Told of every look; True: it is good enough, stop.
    judge: Callable[[Look], bool]
    #: Softness that needs no further reduction, and loss (part of the objective) that is small enough.
    least: float
    loss: float
    #: A fit that is good enough to reduce the softness, or to end with.
    near: float = NEAR
    fits: float = NEAR
    trail: list[Look] = field(default_factory=list)

    def look(self, point: Point) -> Look:
        """One pass."""
        self.work.spend(self.part)
        return look(self.engine, self.task, point)


def loss_of(task: Task, seen: Look) -> float:
    """What the softness gives away, as a part of the objective."""
    given = float(seen.at.prices @ seen.sums.demand) - seen.sums.value - seen.sums.exact_cost
    return given / max(scale_of(task, seen), 1e-300)


def scale_of(task: Task, seen: Look) -> float:
    """What a gap is a part of, in the unit of the prices."""
    if task.is_level:
        return max(seen.sums.exact_slope * seen.at.z, _LEAST_PART)
    if task.kind == LOG:
        return earnings(task)
    return abs(float(seen.at.prices @ task.market.capacity) - seen.sums.exact_cost)


def follow(path: Path, start: Point) -> Look:
    """Lead the prices from a point to where the path's judge, or its limits, say enough."""
    seen = path.look(start)
    fitting: Look | None = None
    factor = _FACTOR
    while True:
        seen, end = _fit(path, seen)
        if end is _End.ENOUGH or path.work.left <= 0:
            return seen
        if end is _End.FITS:
            if seen.at.softness <= path.least or (path.fits >= path.near and loss_of(path.task, seen) <= path.loss):
                return seen
            factor = factor if fitting is None else max(_FACTOR, factor**1.5)
            fitting = seen
        elif fitting is None:
            if seen.at.softness > _SOFTEST:
                return seen
            seen = path.look(replace(seen.at, softness=5.0 * seen.at.softness))
            continue
        else:
            factor = float(np.sqrt(factor))
            if factor > _TIMIDEST:
                return fitting
            fitting, _ = _fit(path, fitting, _CLOSE)
        seen = path.look(_harder(path, fitting, factor))


def _fit(path: Path, seen: Look, near: float | None = None) -> tuple[Look, _End]:
    """Newton's steps at one softness, shortened where they lead uphill."""
    wanted = path.near if near is None else near
    best, trust, stalled = np.inf, 1.0, 0
    while True:
        path.trail.append(seen)
        if path.judge(seen):
            return seen, _End.ENOUGH
        off = misfit(path.task, path.room, seen)
        if off <= (wanted if loss_of(path.task, seen) > path.loss else path.fits):
            return seen, _End.FITS
        stalled = 0 if off < _PROGRESS * best else stalled + 1
        best = min(best, off)
        if stalled > _STALLS or path.work.left <= 0:
            return seen, _End.STUCK
        seen, trust = _stepped(path, seen, trust)


def _stepped(path: Path, seen: Look, trust: float) -> tuple[Look, float]:
    """The next look, downhill if it can be found, and how far to trust the step after it."""
    before = merit(path.task, path.room, seen)
    best: Look | None = None
    for attempt in range(_SHORTER):
        step = direction(path.task, path.room, seen, 0.0, trust)
        point = moved(path.task, path.room, seen, step, seen.at.softness)
        tried = path.look(point)
        now = merit(path.task, path.room, tried)
        wanted = before + 1e-4 * downhill(path.task, path.room, seen, point)
        reach = reach_of(seen, step)
        if now <= wanted + (_LENIENT if path.task.is_level else _ROUNDING) * abs(before):
            return tried, (min(max(trust, _LENGTHEN * reach), 1.0) if attempt == 0 else trust)
        if best is None or now < merit(path.task, path.room, best):
            best = tried
        trust = reach * _shortened(path, seen, tried)
    assert best is not None
    return best, trust


def _shortened(path: Path, seen: Look, tried: Look) -> float:
    """Where between the two the dual function should be lowest: its slopes at both ends are known."""
    if path.task.is_level:
        return _SHORTEN
    way = tried.at.prices - seen.at.prices
    before, after = (float((path.room.capacity - end.sums.demand) @ way) for end in (seen, tried))
    return min(max(before / (before - after), _SHORTEST), _SHORTEN_LITTLE) if after > 0 > before else _SHORTEN


def _harder(path: Path, seen: Look, factor: float) -> Point:
    """Where the answer is expected at a smaller softness."""
    softness = seen.at.softness * factor
    point = moved(path.task, path.room, seen, direction(path.task, path.room, seen, factor - 1.0), softness)
    return with_reference(path.task, point) if softness > _LOOSE else point


def with_reference(task: Task, point: Point) -> Point:
    """The point with its own prices as the reference, and as soft as before on the whole.

    Where prices fall away, the reference follows slowly.
    """
    reference = np.maximum(point.prices, _FOLLOWS * point.reference)
    capacity = task.market.capacity
    before, after = float(point.reference @ capacity), float(reference @ capacity)
    return replace(
        point, reference=reference, softness=point.softness * before / after if after > 0 else point.softness
    )


def scaled(point: Point) -> Point:
    """The point with a reference for every row: those that nothing has referred to yet have a scale, too."""
    return replace(point, reference=np.maximum(point.reference, _LEAST_SCALE * float(point.reference.mean())))
