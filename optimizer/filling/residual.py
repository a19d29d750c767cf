"""What is left of a market while levels rise: which classes still have a choice, of what, and of which rows.

Decides who leaves the program: a settled class whose cheapest way to what it keeps is unique. Such a way is the same in
every later optimum.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.filling.response import responses
from optimizer.market.market import Market
from optimizer.market.objective import Targets
from optimizer.market.targets import Capped
from optimizer.problem import BoolArray, FloatArray, IntArray

#: A column within this part of the class's costs of the cheapest way may be part of one.
_AS_CHEAP = 1e-9
#: Utilities that agree to this part are the same corner.
_CORNER = 1e-9
#: Of a row, the part below which nothing is left.
_EMPTY = 1e-9
#: Room in a row, so that rounding of what others take cannot make the next level infeasible; taken back at the end.
_ROOM = 1e-10


@dataclass(frozen=True, slots=True, eq=False)
class Restricted:
    """Targets of some classes, up to some level."""

    whole: Targets
    classes: IntArray
    highest: float

    def at(self, z: float) -> tuple[FloatArray, FloatArray]:
        """Targets and slopes of those classes."""
        target, slope = self.whole.at(z)
        return target[self.classes], slope[self.classes]


def capped(targets: Targets) -> Capped | None:
    """The straight lines up to a cap that these targets are; None for any others."""
    if isinstance(targets, Restricted):
        whole, own = capped(targets.whole), targets.classes
        return None if whole is None else Capped(whole.slope[own], whole.cap[own], whole.floor[own])
    return targets if isinstance(targets, Capped) else None


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A market of some classes, columns and rows of another: their numbers there."""

    market: Market
    worth: FloatArray
    classes: IntArray
    columns: IntArray
    rows: IntArray

    def best(self) -> FloatArray:
        """Utility of the best column of each class of the part."""
        return np.maximum.reduceat(self.worth, self.market.first[:-1]) if len(self.classes) else np.zeros(0)

    def all_rows(self, prices: FloatArray, rows: int) -> FloatArray:
        """Prices of the part's rows among all, 0 for the others."""
        everywhere = np.zeros(rows)
        everywhere[self.rows] = prices
        return everywhere


def part_of(market: Market, worth: FloatArray, classes: IntArray, capacity: FloatArray) -> Part:
    """The market of some classes (ascending) with other capacities (r,)."""
    wanted = np.zeros(market.classes, dtype=bool)
    wanted[classes] = True
    return _part(market, worth, wanted[market.owner()], capacity)


def _part(market: Market, worth: FloatArray, chosen: BoolArray, capacity: FloatArray) -> Part:
    columns = np.flatnonzero(chosen)
    classes, width = np.unique(market.owner()[columns], return_counts=True)
    uses = np.diff(market.use_first)
    used = np.flatnonzero(np.repeat(chosen, uses))
    rows, use_row = np.unique(market.use_row[used], return_inverse=True)
    part = Market(
        size=market.size[classes],
        first=np.concatenate(([0], np.cumsum(width))),
        use_first=np.concatenate(([0], np.cumsum(uses[columns]))),
        use_row=use_row.astype(np.int32),
        use_count=market.use_count[used],
        capacity=capacity[rows],
    )
    return Part(part, worth[columns], classes, columns, rows.astype(np.int64))


class Residual:
    """Shares so far, and what may still change."""

    def __init__(self, market: Market, worth: FloatArray, *, compiled: bool = False) -> None:
        self._market, self._worth, self._owner, self._compiled = market, worth, market.owner(), compiled
        self._use_column = np.repeat(np.arange(market.columns), np.diff(market.use_first))
        self._open = np.ones(market.columns, dtype=bool)
        self._fixed = np.zeros(market.classes, dtype=bool)
        self.x = np.zeros(market.columns)

    def free_of(self, rows: BoolArray) -> BoolArray:
        """Columns that use none of these rows (C,)."""
        taken = np.bincount(self._use_column, weights=rows[self._market.use_row], minlength=self._market.columns)
        free: BoolArray = taken == 0
        return free

    def part(self, wanted: BoolArray) -> Part:
        """The market of the wanted classes that have a choice, on what the fixed ones leave."""
        left, market = self._left(), self._market
        chosen = self._open & (wanted & ~self._fixed)[self._owner] & self.free_of(self.empty())
        return _part(market, self._worth, chosen, left)

    def empty(self) -> BoolArray:
        """Rows that the fixed classes use up, priced or not (r,)."""
        empty: BoolArray = self._left() <= _EMPTY * self._market.capacity
        return empty

    def _left(self) -> FloatArray:
        market = self._market
        return market.capacity * (1 + _ROOM) - market.used(np.where(self._fixed[self._owner], self.x, 0.0))

    def take(self, part: Part, x: FloatArray) -> None:
        """These are the shares of the part's classes now."""
        self.x[np.isin(self._owner, part.classes)] = 0.0
        self.x[part.columns] = x

    def settle(
        self, settling: BoolArray, kept: FloatArray, prices: FloatArray, free: BoolArray, settled: BoolArray
    ) -> None:
        """Keep of each settling class the columns of its cheapest ways at these prices, of the rising ones the free."""
        market, owner = self._market, self._owner
        cost = market.cost(prices)
        hulls = responses(market, np.where(self._open, self._worth, 0.0), prices, compiled=self._compiled)
        low_worth, low_cost, high_worth, high_cost = hulls.edge_of(kept)
        rise = np.divide(
            high_cost - low_cost, high_worth - low_worth, out=np.zeros(len(kept)), where=high_worth > low_worth
        )
        dearest = np.maximum.reduceat(cost, market.first[:-1])
        line = (low_cost + _AS_CHEAP * dearest)[owner] + rise[owner] * (self._worth - low_worth[owner])
        at_corner = kept >= high_worth * (1 - _CORNER)
        same = ~at_corner[owner] | (self._worth >= (high_worth * (1 - _CORNER))[owner])
        cheapest = (cost <= line) & same
        self._open = np.where(settling[owner], self._open & cheapest, self._open & (free | settled[owner]))
        ways = np.add.reduceat((self._open & cheapest).astype(np.int64), market.first[:-1])
        mixed = ~at_corner & (low_worth > 0)
        self._fixed |= settling & ((kept <= 0) | (ways <= 1) | (mixed & (ways == 2)))
