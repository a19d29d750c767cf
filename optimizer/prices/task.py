"""An objective over a market as the price path sees it: what classes want at a level, and a sample of them.

Decides how a few classes stand for all: systematic sampling by accelerators wanted, one class from each of equal parts,
at a place in it that a low-discrepancy sequence chooses. So a sample is the same every time, and its demand is within
a few parts per square root of its size.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from optimizer.market.market import Market
from optimizer.market.objective import Level, Nash, Objective, Targets, Total
from optimizer.prices.responses import best_worth
from optimizer.prices.softened import LOG, PLAIN, TARGET, Wants
from optimizer.problem import FloatArray, IntArray

_GOLDEN = 0.6180339887498949
_NONE = np.zeros(0)


@runtime_checkable
class Divisible(Protocol):
    """Targets that can be told for some classes alone, which is faster than telling all and taking some."""

    def part(self, classes: IntArray) -> Targets:
        """The targets of these classes, in this order."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Targets of some classes, taken from those of all."""

    whole: Targets
    classes: IntArray

    @property
    def highest(self) -> float:
        return self.whole.highest

    def at(self, z: float) -> tuple[FloatArray, FloatArray]:
        target, rise = self.whole.at(z)
        return target[self.classes], rise[self.classes]


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A market and what its classes want."""

    market: Market
    kind: int
    worth: FloatArray
    #: Empty: nothing is earned.
    value: FloatArray
    #: Floor or weight of each class; for a Level: empty.
    goal: FloatArray
    targets: Targets | None
    #: Weight of all members together, for logarithms: it is asked for at every look, and never changes.
    weight: float = 0.0

    @property
    def is_level(self) -> bool:
        """True: the level is an unknown beside the prices."""
        return self.targets is not None

    @property
    def is_strict(self) -> bool:
        """True: shares cannot simply be scaled down, because classes have something that they must get."""
        return self.kind == TARGET

    def wants(self, z: float) -> Wants:
        """What the classes want at a level; the level means nothing where there is none."""
        if self.targets is None:
            return Wants(self.kind, self.worth, self.value, self.goal, np.zeros(len(self.goal)))
        target, rise = self.targets.at(z)
        return Wants(self.kind, self.worth, self.value, target, np.asarray(rise, dtype=np.float64))


def task_of(market: Market, objective: Objective) -> Task:
    """The task that an objective sets."""
    match objective:
        case Level():
            return Task(market, TARGET, objective.worth, _NONE, _NONE, objective.targets)
        case Nash():
            return Task(market, LOG, objective.worth, _NONE, objective.weight, None, _total(market, objective.weight))
        case Total():
            kind = TARGET if objective.floor.any() else PLAIN
            return Task(market, kind, objective.worth, objective.value, objective.floor, None)


def sample(task: Task, count: int) -> Task:
    """About `count` classes whose members are multiplied so that they want about what all classes want."""
    market = task.market
    filled, size, column = np.flatnonzero(np.diff(market.first) > 0), market.size, market.first[:-1]
    if len(filled) < market.classes:
        size, column = size[filled], column[filled]
    wanted = size * market.use_count[column if market.single_use else market.use_first[column]]
    until = np.cumsum(wanted)
    step = until[-1] / count
    place = (np.arange(count) + (np.arange(count) * _GOLDEN) % 1.0) * step
    chosen, times = np.unique(np.minimum(np.searchsorted(until, place), len(filled) - 1), return_counts=True)
    classes = filled[chosen]
    members = times * step / wanted[chosen] * market.size[classes]

    first, columns = _taken(market.first, classes)
    use_first, uses = (np.arange(len(columns) + 1), columns) if market.single_use else _taken(market.use_first, columns)
    part = Market(members, first, use_first, market.use_row[uses], market.use_count[uses], market.capacity)
    targets = task.targets
    if targets is not None:
        targets = targets.part(classes) if isinstance(targets, Divisible) else _Part(targets, classes)
    value = task.value[columns] if len(task.value) else _NONE
    goal = task.goal[classes] if len(task.goal) else _NONE
    weight = _total(part, goal) if task.kind == LOG else 0.0
    return Task(part, task.kind, task.worth[columns], value, goal, targets, weight)


def earnings(task: Task, value: FloatArray | None = None) -> float:
    """What all members could earn at most without regard to capacity; for logarithms: their total weight.

    Args:
        value: of each column instead of the task's own (C,).
    """
    if task.kind == LOG:
        return task.weight
    return float(task.market.size @ best_worth(task.market, task.value if value is None else value))


def _total(market: Market, values: FloatArray) -> float:
    """Of all members. No product of the linear algebra library: it would wake threads for so little."""
    return float(np.einsum("i,i->", market.size, values))


def _taken(first: IntArray, chosen: IntArray) -> tuple[IntArray, IntArray]:
    """Offsets of the chosen owners' entries laid end to end, and those entries."""
    width = first[chosen + 1] - first[chosen]
    offsets = np.concatenate(([0], np.cumsum(width)))
    entries = np.repeat(first[chosen] - offsets[:-1], width) + np.arange(offsets[-1])
    return offsets, entries
