"""Best response of every class at given prices, alone: the definition, in numpy.

One member of a class has columns with a worth a[c] and a cost q[c] (its uses at the given prices, less what the column
earns), and the choice to stay idle (worth 0, cost 0). A member chooses

    cheapest     min q.x                 s.t.  a.x >= target, sum x <= 1, x >= 0
    logarithmic  max weight log(a.x) - q.x   s.t.             sum x <= 1, x >= 0

Both are decided on the lower hull of the points (a[c], q[c]) and the origin: an optimum mixes at most two neighbours on
it, and the slope between them is the multiplier of the worth. So one pass costs O(columns) and nothing is stored.

Shapes: k classes, C class columns. Classes are worked on in blocks of padded tables (b, W), W the widest class.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from optimizer.classes.class_problem import ClassProblem, MaxMin
from optimizer.problem import BoolArray, FloatArray, IntArray

#: Classes worked on at a time: the tables of a block stay in the processor's cache.
BLOCK = 4096
#: Part of a worth that may be missing: targets are computed from worths, with rounding.
REACH = 1e-12
#: A point is below a line only if by more than this part of the costs involved.
_BELOW = 1e-13


@dataclass(frozen=True, slots=True, eq=False)
class ClassChoice:
    """The choice of one member of each class: at most two columns, their shares, cost and multiplier."""

    #: Columns (k, 2), -1: none; and the share of time of each (k, 2).
    column: IntArray
    share: FloatArray
    #: q.x of it (k,).
    cost: FloatArray
    #: Marginal cost of worth: the multiplier of the target (k,).
    slope: FloatArray
    #: False: no column is worth the target, and the choice is the column of most worth (k,).
    reached: BoolArray


@dataclass(frozen=True, slots=True, eq=False)
class ClassTable:
    """Some classes as padded tables. A place without a column has worth 0 and an infinite cost."""

    #: Classes start:stop.
    start: int
    stop: int
    #: Column of each place, -1: none (b, W).
    column: IntArray
    worth: FloatArray
    cost: FloatArray


def class_tables(problem: ClassProblem, worth: FloatArray, cost: FloatArray, size: int = BLOCK) -> Iterator[ClassTable]:
    """The classes in order, as padded tables of up to `size` classes.

    Args:
        worth: of each column (C,).
        cost: of each column, less what it earns (C,).
    """
    for start in range(0, problem.classes, size):
        stop = min(start + size, problem.classes)
        first = problem.first[start : stop + 1]
        width = np.diff(first)
        widest = max(int(width.max()), 1)
        place = np.arange(widest)
        there = place < width[:, None]
        column = np.where(there, first[:-1, None] + place, -1)
        if len(worth):
            table_worth, table_cost = np.where(there, worth[column], 0.0), np.where(there, cost[column], np.inf)
        else:
            table_worth, table_cost = np.zeros(column.shape), np.full(column.shape, np.inf)
        yield ClassTable(start, stop, column, table_worth, table_cost)


def largest_worth(problem: ClassProblem, worth: FloatArray) -> FloatArray:
    """The largest worth of each class, 0 for a class without columns (k,)."""
    best = np.zeros(problem.classes)
    filled = np.flatnonzero(np.diff(problem.first) > 0)
    if len(filled):
        best[filled] = np.maximum.reduceat(worth, problem.first[filled])
    return np.maximum(best, 0.0)


def unreachable_classes(problem: ClassProblem, worth: FloatArray, target: FloatArray) -> IntArray:
    """Classes whose target is above what any column of theirs is worth, ascending."""
    return np.flatnonzero(target > largest_worth(problem, worth) * (1 + REACH))


def cheapest_choice(problem: ClassProblem, worth: FloatArray, cost: FloatArray, target: FloatArray) -> ClassChoice:
    """The cheapest way of each class to its target; columns that earn (cost < 0) are run in any case.

    Args:
        worth: of each column, >= 0 (C,).
        cost: of each column at the prices, less what it earns (C,).
        target: worth that one member of each class must have (k,).
    """
    return _joined(
        [cheapest_in_table(table, target[table.start : table.stop]) for table in class_tables(problem, worth, cost)]
    )


def logarithmic_choice(problem: ClassProblem, worth: FloatArray, cost: FloatArray, weight: FloatArray) -> ClassChoice:
    """The best choice of each class that values the logarithm of its worth; no column for a class without weight.

    Args:
        worth: of each column, >= 0 (C,).
        cost: of each column at the prices, >= 0 (C,).
        weight: of one member of each class (k,).
    """
    return _joined(
        [logarithmic_in_table(table, weight[table.start : table.stop]) for table in class_tables(problem, worth, cost)]
    )


def prices_per_level(problem: ClassProblem, level: MaxMin, prices: FloatArray, z: float) -> FloatArray:
    """Scale prices to units of the level: lowering the level by d, just below z, lowers the targets' cost by d (r,)."""
    target, rise = level.targets.at(z)
    cost = float(problem.size @ (cheapest_choice(problem, level.worth, problem.cost(prices), target).slope * rise))
    return prices / cost if cost > 0 else prices


def class_worth(problem: ClassProblem, worth: FloatArray, x: FloatArray) -> FloatArray:
    """Worth of the shares to one member of each class (k,)."""
    gained = np.zeros(problem.classes)
    filled = np.flatnonzero(np.diff(problem.first) > 0)
    if len(filled):
        gained[filled] = np.add.reduceat(worth * x, problem.first[filled])
    return gained


def _joined(choices: list[ClassChoice]) -> ClassChoice:
    """The choices of all tables, one after the other."""
    if len(choices) == 1:
        return choices[0]
    if not choices:
        none = np.zeros(0)
        return ClassChoice(np.zeros((0, 2), dtype=np.int64), np.zeros((0, 2)), none, none, none.astype(bool))
    return ClassChoice(
        column=np.concatenate([each.column for each in choices]),
        share=np.concatenate([each.share for each in choices]),
        cost=np.concatenate([each.cost for each in choices]),
        slope=np.concatenate([each.slope for each in choices]),
        reached=np.concatenate([each.reached for each in choices]),
    )


@dataclass(slots=True, eq=False)
class _Hull:
    """The origin and the places of a block as points (b, W + 1); the origin comes last."""

    a: FloatArray
    q: FloatArray
    row: IntArray

    def at(self, place: IntArray) -> tuple[FloatArray, FloatArray]:
        """Worth and cost of one place of each class."""
        return self.a[self.row, place], self.q[self.row, place]

    def lowest(self) -> IntArray:
        """The place of least cost, among equals the one of most worth: the choice at target 0 (b,)."""
        least = self.q.min(axis=1)
        place: IntArray = np.where(self.q == least[:, None], self.a, -1.0).argmax(axis=1)
        return place

    def steepest_saving(self, place: IntArray, least: FloatArray) -> tuple[IntArray, FloatArray]:
        """The place of smallest slope from a given one among those of more worth and at least `least`; -1 if none.

        Among equal slopes the farthest, so that the two places are neighbours on the hull. Returns places and slopes.
        """
        a, q = self.at(place)
        further = (self.a > a[:, None]) & (self.a >= least[:, None])
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = np.where(further, (self.q - q[:, None]) / (self.a - a[:, None]), np.inf)
        smallest = slope.min(axis=1)
        found = np.isfinite(smallest)
        to = np.where(slope == smallest[:, None], self.a, -1.0).argmax(axis=1)
        return np.where(found, to, -1), np.where(found, smallest, 0.0)


def _hull(block: ClassTable) -> _Hull:
    rows = len(block.worth)
    origin = np.zeros((rows, 1))
    return _Hull(np.hstack([block.worth, origin]), np.hstack([block.cost, origin]), np.arange(rows))


def cheapest_in_table(block: ClassTable, target: FloatArray) -> ClassChoice:
    hull = _hull(block)
    most = hull.a.max(axis=1)
    reached = target <= most * (1 + REACH)
    target = np.minimum(target, most)
    low = hull.lowest()
    high, slope = np.full(len(low), -1), np.zeros(len(low))
    open_rows = np.flatnonzero(hull.at(low)[0] < target)
    while len(open_rows):
        part = _Hull(hull.a[open_rows], hull.q[open_rows], np.arange(len(open_rows)))
        need = target[open_rows]
        to, rise = part.steepest_saving(low[open_rows], need)
        high[open_rows], slope[open_rows] = to, rise
        # The place of less worth than needed that lies furthest below the line from low to high, or -1.
        a, q = part.at(low[open_rows])
        with np.errstate(invalid="ignore"):
            over = part.q - q[:, None] - rise[:, None] * (part.a - a[:, None])
        over = np.where((part.a < need[:, None]) & (part.a > a[:, None]), over, np.inf)
        worst, margin = over.argmin(axis=1), _BELOW * (np.abs(q) + np.abs(part.at(to)[1]))
        better = np.where(over[part.row, worst] < -margin, worst, -1)
        low[open_rows] = np.where(better >= 0, better, low[open_rows])
        open_rows = open_rows[better >= 0]
    return _mixed(block, hull, low, high, slope, target, reached)


def _mixed(
    block: ClassTable,
    hull: _Hull,
    low: IntArray,
    high: IntArray,
    slope: FloatArray,
    worth: FloatArray,
    reached: BoolArray,
) -> ClassChoice:
    """Mix two places so that their worth is `worth`, or take one place where `high` is -1."""
    (a_low, q_low), (a_high, q_high) = hull.at(low), hull.at(np.maximum(high, 0))
    two = high >= 0
    with np.errstate(divide="ignore", invalid="ignore"):
        theta = np.where(two, np.clip((worth - a_low) / (a_high - a_low), 0.0, 1.0), 0.0)
        # What costs nothing and earns nothing runs only as long as needed.
        alone = np.where((q_low == 0) & (a_low > 0), np.minimum(worth / a_low, 1.0), 1.0)
    share_low = np.where(two, 1.0 - theta, alone)
    idle = hull.a.shape[1] - 1
    places = np.stack([low, np.where(two, high, idle)], axis=1)
    padded = np.hstack([block.column, np.full((len(low), 1), -1)])
    column = padded[hull.row[:, None], places]
    share = np.where(column >= 0, np.stack([share_low, theta], axis=1), 0.0)
    cost = share_low * q_low + theta * np.where(two, q_high, 0.0)
    return ClassChoice(column, share, cost, slope, reached)


def logarithmic_in_table(block: ClassTable, weight: FloatArray) -> ClassChoice:
    hull = _hull(block)
    low = hull.lowest()
    high, slope = np.full(len(low), -1), np.zeros(len(low))
    worth = hull.at(low)[0].copy()
    wanted = (weight > 0) & (hull.a.max(axis=1) > 0)
    open_rows = np.flatnonzero(wanted)
    while len(open_rows):
        part = _Hull(hull.a[open_rows], hull.q[open_rows], np.arange(len(open_rows)))
        at, share = low[open_rows], weight[open_rows]
        a, _ = part.at(at)
        to, rise = part.steepest_saving(at, np.zeros(len(at)))
        # A step up the hull pays while the marginal logarithm, weight / worth, is above its slope.
        pays = (to >= 0) & (share > rise * a)
        end = part.at(np.maximum(to, 0))[0]
        inside = pays & (share < rise * end)
        stays = ~pays
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            worth[open_rows] = np.where(inside, share / rise, np.where(stays, a, end))
            slope[open_rows] = np.where(inside, rise, share / worth[open_rows])
        high[open_rows] = np.where(inside, to, -1)
        low[open_rows] = np.where(pays & ~inside, to, at)
        open_rows = open_rows[pays & ~inside]
    reached = (weight <= 0) | (hull.a.max(axis=1) > 0)
    choice = _mixed(block, hull, low, high, slope, worth, reached)
    none = weight <= 0
    choice.column[none], choice.share[none], choice.cost[none], choice.slope[none] = -1, 0.0, 0.0, 0.0
    return choice
