"""The best response of every class to given prices, each class by itself: the definition, in numpy.

One member of a class has columns with a worth a[c] and a cost q[c] (its uses at the given prices, less what the column
earns), and the choice to stay idle (worth 0, cost 0). A member chooses

    cheapest     min q.x                 s.t.  a.x >= target, sum x <= 1, x >= 0
    logarithmic  max weight log(a.x) - q.x   s.t.             sum x <= 1, x >= 0

Both are decided on the lower hull of the points (a[c], q[c]) and the origin: an optimum mixes at most two neighbours
on it, and the slope between them is the multiplier of the worth. So one pass costs O(columns) and nothing is stored.

Shapes: k classes, C class columns. Classes are worked on in blocks of padded tables (b, W), W the widest class.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from optimizer.classes.class_problem import ClassProblem, MaxMin
from optimizer.problem import BoolArray, FloatArray, IntArray

#: Classes per block: the tables of a block stay in the processor's cache.
BLOCK = 4096
#: The part by which a worth may fall short of a target: targets are computed from worths, with rounding.
REACH = 1e-12
#: A point counts as below a line only if it is below by more than this part of the costs involved.
_BELOW = 1e-13


@dataclass(frozen=True, slots=True, eq=False)
class ClassChoice:
    """The choice of one member of each class: at most two columns, their shares, cost and multiplier."""

    #: Columns (k, 2), -1: none; and the share of time of each (k, 2).
    column: IntArray
    share: FloatArray
    #: The cost q.x of the choice (k,).
    cost: FloatArray
    #: Marginal cost of worth: the multiplier of the target (k,).
    slope: FloatArray
    #: Whether some column is worth the target (k,); where not, the choice is the column of most worth.
    reached: BoolArray


@dataclass(frozen=True, slots=True, eq=False)
class ClassTable:
    """Some classes as padded tables: one place per column, and a last place for staying idle, of worth 0 and cost 0.

    A place without a column has worth 0 and an infinite cost.
    """

    #: The classes are start:stop.
    start: int
    stop: int
    #: Column of each place, -1: none (b, W + 1).
    column: IntArray
    worth: FloatArray
    cost: FloatArray
    #: The place of least cost, among equals the one of most worth: the choice at target 0 (b,).
    cheapest: IntArray


def class_tables(problem: ClassProblem, worth: FloatArray, cost: FloatArray, size: int = BLOCK) -> Iterator[ClassTable]:
    """Yields the classes in order, as padded tables of up to `size` classes.

    Args:
        worth: of each column (C,).
        cost: of each column, less what it earns (C,).
    """
    for start in range(0, problem.classes, size):
        stop = min(start + size, problem.classes)
        first = problem.first[start : stop + 1]
        width = np.diff(first)
        place = np.arange(int(width.max()) + 1)
        there = place < width[:, None]
        column = np.where(there, first[:-1, None] + place, -1)
        table_worth, table_cost = np.zeros(column.shape), np.full(column.shape, np.inf)
        table_worth[there], table_cost[there] = worth[column[there]], cost[column[there]]
        table_cost[:, -1] = 0.0
        least = table_cost.min(axis=1)
        cheapest = np.where(table_cost == least[:, None], table_worth, -1.0).argmax(axis=1)
        yield ClassTable(start, stop, column, table_worth, table_cost, cheapest)


def largest_worth(problem: ClassProblem, worth: FloatArray) -> FloatArray:
    """Returns the largest worth of each class, 0 for a class without columns (k,)."""
    best = np.zeros(problem.classes)
    filled = np.flatnonzero(np.diff(problem.first) > 0)
    if len(filled):
        best[filled] = np.maximum.reduceat(worth, problem.first[filled])
    return np.maximum(best, 0.0)


def unreachable_classes(problem: ClassProblem, worth: FloatArray, target: FloatArray) -> IntArray:
    """Returns the classes whose target exceeds the worth of all their columns, ascending."""
    return np.flatnonzero(target > largest_worth(problem, worth) * (1 + REACH))


def cheapest_choice(problem: ClassProblem, worth: FloatArray, cost: FloatArray, target: FloatArray) -> ClassChoice:
    """Returns the cheapest choice of each class that reaches its target; columns that earn (cost < 0) run in any case.

    Args:
        worth: of each column, >= 0 (C,).
        cost: of each column at the prices, less what it earns (C,).
        target: worth that one member of each class must have (k,).
    """
    return _joined(
        [cheapest_in_table(table, target[table.start : table.stop]) for table in class_tables(problem, worth, cost)]
    )


def logarithmic_choice(problem: ClassProblem, worth: FloatArray, cost: FloatArray, weight: FloatArray) -> ClassChoice:
    """Returns the best choice of each class that values the logarithm of its worth; no column for a class without
    weight.

    Args:
        worth: of each column, >= 0 (C,).
        cost: of each column at the prices, >= 0 (C,).
        weight: of one member of each class (k,).
    """
    return _joined(
        [logarithmic_in_table(table, weight[table.start : table.stop]) for table in class_tables(problem, worth, cost)]
    )


def prices_per_level(problem: ClassProblem, level: MaxMin, prices: FloatArray, z: float) -> FloatArray:
    """Returns the prices in units of the level (r,): lowering the level by d, just below z, lowers the cost of the
    targets by d.
    """
    target, rise = level.targets.at(z)
    slope = np.zeros(problem.classes)
    for table in class_tables(problem, level.worth, problem.cost(prices)):
        slope[table.start : table.stop] = cheapest_edges(table, target[table.start : table.stop]).slope
    cost = float(problem.size @ (slope * rise))
    return prices / cost if cost > 0 else prices


def class_worth(problem: ClassProblem, worth: FloatArray, x: FloatArray) -> FloatArray:
    """Returns the worth of the shares to one member of each class (k,)."""
    gained = np.zeros(problem.classes)
    filled = np.flatnonzero(np.diff(problem.first) > 0)
    if len(filled):
        gained[filled] = np.add.reduceat(worth * x, problem.first[filled])
    return gained


def _joined(choices: list[ClassChoice]) -> ClassChoice:
    """Returns the choices of several tables as one, in their order."""
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


@dataclass(frozen=True, slots=True, eq=False)
class HullEdges:
    """The edge of the lower hull on which the choice of each class of a table lies (b,)."""

    #: Places of the lower and the upper end of the edge; -1 where the choice is the lower end alone.
    low: IntArray
    high: IntArray
    #: Marginal cost of worth.
    slope: FloatArray
    #: Worth of the choice, where it lies between the two ends.
    worth: FloatArray
    reached: BoolArray


def cheapest_edges(table: ClassTable, target: FloatArray) -> HullEdges:
    """Returns the edge on which each class reaches its target, or the most that it can have, at the least cost."""
    most = table.worth.max(axis=1)
    reached = target <= most * (1 + REACH)
    target = np.minimum(target, most)
    low = table.cheapest.copy()
    high, slope = np.full(len(low), -1), np.zeros(len(low))
    open_rows = np.flatnonzero(table.worth[np.arange(len(low)), low] < target)
    while len(open_rows):
        worth, cost, row = table.worth[open_rows], table.cost[open_rows], np.arange(len(open_rows))
        at, need = low[open_rows], target[open_rows]
        to, rise = _steepest_saving(worth, cost, at, need)
        high[open_rows], slope[open_rows] = to, rise
        # The place with too little worth that lies furthest below the line from low to high; -1 where there is none.
        a, q = worth[row, at], cost[row, at]
        with np.errstate(invalid="ignore"):
            over = cost - q[:, None] - rise[:, None] * (worth - a[:, None])
        over = np.where((worth < need[:, None]) & (worth > a[:, None]), over, np.inf)
        worst, margin = over.argmin(axis=1), _BELOW * (np.abs(q) + np.abs(cost[row, to]))
        better = np.where(over[row, worst] < -margin, worst, -1)
        low[open_rows] = np.where(better >= 0, better, at)
        open_rows = open_rows[better >= 0]
    return HullEdges(low, high, slope, target, reached)


def cheapest_in_table(table: ClassTable, target: FloatArray) -> ClassChoice:
    return _mixed(table, cheapest_edges(table, target))


def _steepest_saving(
    worth: FloatArray, cost: FloatArray, place: IntArray, least: FloatArray
) -> tuple[IntArray, FloatArray]:
    """Returns the place of smallest slope from a given one among those of more worth and at least `least`; -1 if none.

    Among equal slopes the farthest, so that the two places are neighbours on the hull. Returns places and slopes.
    """
    row = np.arange(len(place))
    a, q = worth[row, place], cost[row, place]
    further = (worth > a[:, None]) & (worth >= least[:, None])
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.where(further, (cost - q[:, None]) / (worth - a[:, None]), np.inf)
    smallest = slope.min(axis=1)
    found = np.isfinite(smallest)
    to = np.where(slope == smallest[:, None], worth, -1.0).argmax(axis=1)
    return np.where(found, to, -1), np.where(found, smallest, 0.0)


def _mixed(table: ClassTable, edges: HullEdges) -> ClassChoice:
    """Mixes the ends of each edge so that their worth is that of the choice, or takes the lower end alone."""
    row, low, high, worth = np.arange(len(edges.low)), edges.low, edges.high, edges.worth
    two, up = high >= 0, np.maximum(high, 0)
    a_low, q_low = table.worth[row, low], table.cost[row, low]
    a_high, q_high = table.worth[row, up], table.cost[row, up]
    with np.errstate(divide="ignore", invalid="ignore"):
        theta = np.where(two, np.clip((worth - a_low) / (a_high - a_low), 0.0, 1.0), 0.0)
        # A column of cost 0 runs only as long as the target needs it.
        alone = np.where((q_low == 0) & (a_low > 0), np.minimum(worth / a_low, 1.0), 1.0)
    share_low = np.where(two, 1.0 - theta, alone)
    places = np.stack([low, np.where(two, high, table.column.shape[1] - 1)], axis=1)  # the last one is to stay idle
    column = table.column[row[:, None], places]
    share = np.where(column >= 0, np.stack([share_low, theta], axis=1), 0.0)
    cost = share_low * q_low + theta * np.where(two, q_high, 0.0)
    return ClassChoice(column, share, cost, edges.slope, edges.reached)


def logarithmic_in_table(table: ClassTable, weight: FloatArray) -> ClassChoice:
    low, most = table.cheapest.copy(), table.worth.max(axis=1)
    high, slope = np.full(len(low), -1), np.zeros(len(low))
    chosen = table.worth[np.arange(len(low)), low]
    open_rows = np.flatnonzero((weight > 0) & (most > 0))
    while len(open_rows):
        worth, cost, row = table.worth[open_rows], table.cost[open_rows], np.arange(len(open_rows))
        at, share = low[open_rows], weight[open_rows]
        a = worth[row, at]
        to, rise = _steepest_saving(worth, cost, at, np.zeros(len(at)))
        # A step up the hull pays while the marginal logarithm, weight / worth, exceeds its slope.
        pays = (to >= 0) & (share > rise * a)
        end = worth[row, np.maximum(to, 0)]
        inside = pays & (share < rise * end)
        stays = ~pays
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            chosen[open_rows] = np.where(inside, share / rise, np.where(stays, a, end))
            slope[open_rows] = np.where(inside, rise, share / chosen[open_rows])
        high[open_rows] = np.where(inside, to, -1)
        low[open_rows] = np.where(pays & ~inside, to, at)
        open_rows = open_rows[pays & ~inside]
    choice = _mixed(table, HullEdges(low, high, slope, chosen, (weight <= 0) | (most > 0)))
    none = weight <= 0
    choice.column[none], choice.share[none], choice.cost[none], choice.slope[none] = -1, 0.0, 0.0, 0.0
    return choice
