"""Who is in a market while jobs come and go. Decides nothing.

The arrays stay as they were solved. Who leaves is struck off by its size, who comes is kept beside them, and both are
worked into new arrays only when these are asked for: an event costs what one job's columns cost.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optimizer.market.market import Market
from optimizer.market.objective import Level, Nash, Objective, Total
from optimizer.prices.responses import REACH, best_worth
from optimizer.prices.softened import LOG, PLAIN, TARGET, Wants
from optimizer.prices.stored import Asked
from optimizer.problem import FloatArray, IntArray

_NONE = np.zeros(0)


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """Targets proportional to the level."""

    #: Of one member of each class (k,).
    rate: FloatArray
    #: The level at which the first class has all that it can have; 0 where nobody rises.
    highest: float

    def at(self, z: float) -> tuple[FloatArray, FloatArray]:
        """Targets, and how they rise."""
        return self.rate * z, self.rate

    def part(self, classes: IntArray) -> "Linear":
        """Of these classes."""
        return Linear(self.rate[classes], self.highest)


def proportional(market: Market, worth: FloatArray, rate: FloatArray) -> Level:
    """The largest level at which every class has its rate times the level."""
    return Level(worth, Linear(rate, _lowest(_reach(best_worth(market, worth), rate))))


@dataclass(frozen=True, slots=True, eq=False)
class Entrant:
    """One job's own part of a market: its columns, as in `Market`, and what it wants."""

    use_first: IntArray
    use_row: NDArray[np.int32]
    use_count: FloatArray
    #: Of each column; values count for a Total alone.
    worth: FloatArray
    value: FloatArray
    #: Rate of its target (Level), floor (Total), or weight (Nash), >= 0.
    goal: float

    @property
    def reach(self) -> float:
        """The level at which it has all that it can have."""
        return max(float(self.worth.max(initial=0.0)), 0.0) / self.goal if self.goal > 0 else np.inf


class Roster:
    """The classes of the arrays, less those who left, and those who came since."""

    def __init__(self, market: Market, objective: Objective) -> None:
        self._next = market.classes
        self._take(market, objective, np.arange(market.classes))

    def _take(self, market: Market, objective: Objective, handles: IntArray) -> None:
        """These arrays hold everybody."""
        self._market, self._objective, self._handles = market, objective, handles
        self._size = market.size.copy()
        self._goal, self._value = _wanted(objective)
        self._entered: dict[int, Entrant] = {}
        self._changed = False
        self._reach = np.where(self._size > 0, _reach(best_worth(market, objective.worth), self._goal), np.inf)
        self._highest = float(self._reach.min(initial=np.inf))
        self._weight, self._rising = float(self._size @ self._goal), float(self._size @ (self._goal > 0))

    def enter(self, entrant: Entrant) -> int:
        """Add a job; returns its handle."""
        handle = self._next
        self._next += 1
        self._entered[handle] = entrant
        self._count(entrant, 1.0)
        self._highest = min(self._highest, entrant.reach)
        return handle

    def remove(self, handle: int) -> Entrant:
        """Strike one member of a class off; returns what it was. Raises KeyError if none is there."""
        entrant = self.entrant(handle)
        if self._entered.pop(handle, None) is None:
            i = self._index(handle)
            self._size[i] -= 1.0
            if self._size[i] <= 0:
                self._reach[i] = np.inf
        self._count(entrant, -1.0)
        if entrant.reach <= self._highest:
            entered = min((other.reach for other in self._entered.values()), default=np.inf)
            self._highest = min(float(self._reach.min(initial=np.inf)), entered)
        return entrant

    def entrant(self, handle: int) -> Entrant:
        """One member of a class, as if it stood alone. Raises KeyError if none is there."""
        if handle in self._entered:
            return self._entered[handle]
        i, market = self._index(handle), self._market
        columns = slice(int(market.first[i]), int(market.first[i + 1]))
        use_first = market.use_first[columns.start : columns.stop + 1]
        uses = slice(int(use_first[0]), int(use_first[-1]))
        return Entrant(
            use_first - use_first[0],
            market.use_row[uses],
            market.use_count[uses],
            self._objective.worth[columns],
            self._value[columns],
            float(self._goal[i]),
        )

    def alone(self, entrant: Entrant) -> tuple[Market, Wants]:
        """A market of this member alone, and what it wants at level 1."""
        first = np.array([0, len(entrant.worth)])
        market = Market(np.ones(1), first, entrant.use_first, entrant.use_row, entrant.use_count, self._market.capacity)
        goal = np.array([entrant.goal])
        if isinstance(self._objective, Total):
            kind = TARGET if entrant.goal > 0 else PLAIN
            return market, Wants(kind, entrant.worth, entrant.value, goal, np.zeros(1))
        if isinstance(self._objective, Nash):
            return market, Wants(LOG, entrant.worth, _NONE, goal, np.zeros(1))
        return market, Wants(TARGET, entrant.worth, _NONE, goal, goal)

    def asked(self) -> Asked:
        """What the points of this market are judged by."""
        objective = self._objective
        level = isinstance(objective, Level)
        return Asked(
            capacity=self._market.capacity,
            level=level,
            highest=(self._highest if np.isfinite(self._highest) else 0.0) * (1.0 + REACH) if level else np.inf,
            weight=self._weight if isinstance(objective, Nash) else None,
            floors=isinstance(objective, Total) and self._rising > 0.5,
        )

    def compacted(self) -> tuple[Market, Objective, IntArray]:
        """Everybody in new arrays: those who stayed in their order, then those who came; and their handles."""
        if self._changed:
            self._compact()
        return self._market, self._objective, self._handles

    def _compact(self) -> None:
        market, objective, entered = self._market, self._objective, list(self._entered.values())
        stays = self._size > 0
        columns = np.repeat(stays, np.diff(market.first))
        uses = np.repeat(columns, np.diff(market.use_first))
        width = np.concatenate([np.diff(market.first)[stays], [len(one.worth) for one in entered]])
        per_column = np.concatenate([np.diff(market.use_first)[columns], *(np.diff(one.use_first) for one in entered)])
        now = Market(
            size=np.concatenate([self._size[stays], np.ones(len(entered))]),
            first=_offsets(width),
            use_first=_offsets(per_column),
            use_row=np.concatenate([market.use_row[uses], *(one.use_row for one in entered)]).astype(np.int32),
            use_count=np.concatenate([market.use_count[uses], *(one.use_count for one in entered)]),
            capacity=market.capacity,
        )
        worth = np.concatenate([objective.worth[columns], *(one.worth for one in entered)])
        goal = np.concatenate([self._goal[stays], [one.goal for one in entered]])
        handles = np.concatenate([self._handles[stays], np.array(list(self._entered), dtype=np.int64)])
        match objective:
            case Total():
                value = np.concatenate([objective.value[columns], *(one.value for one in entered)])
                changed: Objective = Total(value, worth, goal)
            case Nash():
                changed = Nash(worth, goal)
            case Level():
                changed = proportional(now, worth, goal)
        self._take(now, changed, handles)

    def _index(self, handle: int) -> int:
        i = int(np.searchsorted(self._handles, handle))
        if i >= len(self._handles) or self._handles[i] != handle or self._size[i] <= 0:
            raise KeyError(handle)
        return i

    def _count(self, entrant: Entrant, members: float) -> None:
        self._weight += members * entrant.goal
        self._rising += members * (entrant.goal > 0)
        self._changed = True


def _wanted(objective: Objective) -> tuple[FloatArray, FloatArray]:
    """Rate, floor or weight of each class, and values if columns have any."""
    match objective:
        case Total():
            return objective.floor, objective.value
        case Nash():
            return objective.weight, _NONE
        case Level():
            return objective.targets.at(1.0)[0], _NONE


def _reach(best: FloatArray, rate: FloatArray) -> FloatArray:
    """The level at which each class has all that it can have (k,)."""
    return np.where(rate > 0, best / np.where(rate > 0, rate, 1.0), np.inf)


def _lowest(reach: FloatArray) -> float:
    lowest = float(reach.min(initial=np.inf))
    return lowest if np.isfinite(lowest) else 0.0


def _offsets(widths: IntArray) -> IntArray:
    return np.concatenate(([0], np.cumsum(widths))).astype(np.int64)
