"""One pass of the dual method over all classes: its input and output, samples of classes, and exact best responses.

At given prices the exact best response jumps when two columns become equally good, so demand has no derivative and no
single response fits the capacities. A pass therefore computes two things for every class. The exact response proves
the bound. The softened one yields the shares: the same choice with a small cost on concentration,

    + softness / 2 * sum x^2        softness of a class: the mean cost of its columns at the softness prices,

whose shares move continuously with the prices. It is feasible for its class and reaches the same worth; what it loses
is at most the softness of the classes that are about to change columns, and the certificate measures it.

Symbols of one class: a worth, n net cost (less the value), lam the multiplier of the worth, nu that of the time:

    x = max(0, lam a - n - nu) / softness       nu >= 0 keeps sum x <= 1       lam by kind:

    PLAIN   lam = 0                         TARGET  a.x = goal, or lam = 0 if more is earned anyway
    LOG     lam a.x = goal (the weight)

On the set of columns in use x is linear in the costs, with derivative (-P + kappa w w')/softness, P = I - 11'/|set| if
sum x = 1 (else I), w = P a. Summed over the classes this is the derivative of the demand by the prices, exactly.

`sample_classes` lets a few classes stand for all: systematic sampling by accelerators wanted, one class from each of
equal parts, at a place in it that a low-discrepancy sequence chooses. A sample is the same every time, and its demand
is within a few parts per square root of its size.

The exact best response of each class by itself, in numpy (the definition). One member of a class has columns with a
worth a[c] and a cost q[c] (its uses at the given prices, less what the column earns), and the choice to stay idle
(worth 0, cost 0). A member chooses

    cheapest     min q.x                 s.t.  a.x >= target, sum x <= 1, x >= 0
    logarithmic  max weight log(a.x) - q.x   s.t.             sum x <= 1, x >= 0

Both are decided on the lower hull of the points (a[c], q[c]) and the origin: an optimum mixes at most two neighbours
on it, and the slope between them is the multiplier of the worth. So one pass costs O(columns) and nothing is stored.

Shapes: k classes, C class columns. Classes are worked on in blocks of padded tables (b, W), W the widest class.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from optimizer.classes.class_problem import ClassProblem, MaxMin, MaxSum, NashWelfare, Objective, TargetFunction
from optimizer.problem import BoolArray, FloatArray, IntArray

#: Classes per block: the tables of a block stay in the processor's cache.
BLOCK = 4096
#: The part by which a worth may fall short of a target: targets are computed from worths, with rounding.
REACH = 1e-12
#: A point counts as below a line only if it is below by more than this part of the costs involved.
_BELOW = 1e-13


@dataclass(frozen=True, slots=True, eq=False)
class ClassChoice:
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
    #: Of each place (b, W + 1).
    worth: FloatArray
    cost: FloatArray
    #: The place of least cost, among equals the one of most worth: the choice at target 0 (b,).
    cheapest: IntArray


def class_tables(problem: ClassProblem, worth: FloatArray, cost: FloatArray) -> Iterator[ClassTable]:
    """Yields the classes in order, as padded tables of up to `BLOCK` classes.

    Args:
        worth: of each column (C,).
        cost: of each column, less what it earns (C,).
    """
    for start in range(0, problem.classes, BLOCK):
        stop = min(start + BLOCK, problem.classes)
        first = problem.first[start : stop + 1]
        width = np.diff(first)
        place = np.arange(int(width.max()) + 1)
        there = place < width[:, None]
        column = (first[:-1, None] + place)[there]
        table_worth, table_cost = np.zeros(there.shape), np.full(there.shape, np.inf)
        table_worth[there], table_cost[there] = worth[column], cost[column]
        table_cost[:, -1] = 0.0
        least = table_cost.min(axis=1)
        cheapest = np.where(table_cost == least[:, None], table_worth, -1.0).argmax(axis=1)
        yield ClassTable(start, stop, table_worth, table_cost, cheapest)


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
        return ClassChoice(none, none, none.astype(bool))
    return ClassChoice(
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
    cost = share_low * q_low + theta * np.where(two, q_high, 0.0)
    return ClassChoice(cost, edges.slope, edges.reached)


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
    choice.cost[none], choice.slope[none] = 0.0, 0.0
    return choice


PLAIN, TARGET, LOG = 0, 1, 2


class PassGoals(NamedTuple):
    """The classes' part of an objective. It is a named tuple because compiled code accepts one."""

    kind: int
    #: Worth and value of each column (C,); an empty array of values means that nothing is earned.
    worth: FloatArray
    value: FloatArray
    #: For one member of each class: the worth that it must have, or the weight of its logarithm (k,); and the
    #: derivative of that goal by the level (k,).
    goal: FloatArray
    rise: FloatArray


class PassArrays(NamedTuple):
    """The arrays of a problem, in the form that compiled code accepts."""

    size: FloatArray
    first: IntArray
    use_first: IntArray
    use_row: NDArray[np.int32]
    use_count: FloatArray
    single: bool


def pass_arrays(problem: ClassProblem) -> PassArrays:
    """Returns the arrays of a problem for compiled code."""
    return PassArrays(
        problem.size, problem.first, problem.use_first, problem.use_row, problem.use_count, problem.single_use
    )


@dataclass(frozen=True, slots=True, eq=False)
class PassSums:
    """The sums of one pass over all members."""

    #: Softened demand per row (r,), and minus its derivative by the prices (r, r).
    demand: FloatArray
    stiffness: FloatArray
    #: Derivative of the demand by the level (r,), and by the softness: its change per relative change of that (r,).
    by_level: FloatArray
    by_softness: FloatArray
    #: Net cost of the exact responses (for LOG: less the logarithms), and its derivative by the level.
    exact_cost: float
    exact_slope: float
    #: What the softened shares earn: values, or weighted logarithms.
    value: float
    #: Net cost of the softened responses with their concentration (for LOG: less the logarithms).
    soft_cost: float
    #: The number of classes whose goal exceeds the worth of all their columns.
    unreached: float


#: The number of scalars in a pass's answer, besides its vectors over the rows.
SCALARS = 5


def pass_width(rows: int) -> int:
    """Returns how many numbers the sums of one block of classes comprise."""
    return 3 * rows + rows * rows + SCALARS


def unpack_sums(total: FloatArray, rows: int) -> PassSums:
    """Returns the answer of a pass as named sums."""
    square, scalars = 3 * rows, 3 * rows + rows * rows
    exact_cost, exact_slope, value, soft_cost, unreached = (float(number) for number in total[scalars:])
    return PassSums(
        demand=total[:rows],
        by_level=total[rows : 2 * rows],
        by_softness=total[2 * rows : square],
        stiffness=-total[square:scalars].reshape(rows, rows),
        exact_cost=exact_cost,
        exact_slope=exact_slope,
        value=value,
        soft_cost=soft_cost,
        unreached=unreached,
    )


_GOLDEN = 0.6180339887498949
_NONE = np.zeros(0)


@runtime_checkable
class SubsetTargets(Protocol):
    """Targets that can be computed for some classes alone, faster than for all classes."""

    def part(self, classes: IntArray) -> TargetFunction:
        """Returns the targets of these classes, in this order."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class _TargetsOfSome:
    """The targets of some classes, selected from those of all."""

    whole: TargetFunction
    classes: IntArray

    @property
    def highest(self) -> float:
        return self.whole.highest

    def at(self, z: float) -> tuple[FloatArray, FloatArray]:
        target, rise = self.whole.at(z)
        return target[self.classes], rise[self.classes]


@dataclass(frozen=True, slots=True, eq=False)
class DualTask:
    """A problem with the goals of its classes."""

    problem: ClassProblem
    kind: int
    worth: FloatArray
    #: Value of each column; empty where nothing is earned.
    value: FloatArray
    #: Floor or weight of each class; empty for a MaxMin.
    goal: FloatArray
    targets: TargetFunction | None
    #: The sum of the weights of all members, for logarithms: every evaluation needs it, and it never changes.
    weight: float = 0.0

    @property
    def is_level(self) -> bool:
        """Whether the level is an unknown beside the prices."""
        return self.targets is not None

    @property
    def is_strict(self) -> bool:
        """Whether classes have floors that must hold, so that shares cannot simply be scaled down."""
        return self.kind == TARGET

    def goals(self, z: float) -> PassGoals:
        """Returns the target of each class at level z; the other objectives ignore z."""
        if self.targets is None:
            return PassGoals(self.kind, self.worth, self.value, self.goal, np.zeros(len(self.goal)))
        target, rise = self.targets.at(z)
        return PassGoals(self.kind, self.worth, self.value, target, np.asarray(rise, dtype=np.float64))


def make_task(problem: ClassProblem, objective: Objective) -> DualTask:
    match objective:
        case MaxMin():
            return DualTask(problem, TARGET, objective.worth, _NONE, _NONE, objective.targets)
        case NashWelfare():
            return DualTask(
                problem,
                LOG,
                objective.worth,
                _NONE,
                objective.weight,
                None,
                _sum_over_members(problem, objective.weight),
            )
        case MaxSum():
            kind = TARGET if objective.floor.any() else PLAIN
            return DualTask(problem, kind, objective.worth, objective.value, objective.floor, None)


def sample_classes(task: DualTask, count: int) -> DualTask:
    """Returns a task of about `count` classes, with members multiplied so that their demand is about that of all
    classes.
    """
    problem = task.problem
    filled, size, column = np.flatnonzero(np.diff(problem.first) > 0), problem.size, problem.first[:-1]
    if len(filled) < problem.classes:
        size, column = size[filled], column[filled]
    wanted = size * problem.use_count[column if problem.single_use else problem.use_first[column]]
    until = np.cumsum(wanted)
    step = until[-1] / count
    place = (np.arange(count) + (np.arange(count) * _GOLDEN) % 1.0) * step
    chosen, times = np.unique(np.minimum(np.searchsorted(until, place), len(filled) - 1), return_counts=True)
    classes = filled[chosen]
    members = times * step / wanted[chosen] * problem.size[classes]

    first, columns = _entries_of(problem.first, classes)
    use_first, uses = (
        (np.arange(len(columns) + 1), columns) if problem.single_use else _entries_of(problem.use_first, columns)
    )
    part = ClassProblem(members, first, use_first, problem.use_row[uses], problem.use_count[uses], problem.capacity)
    targets = task.targets
    if targets is not None:
        targets = targets.part(classes) if isinstance(targets, SubsetTargets) else _TargetsOfSome(targets, classes)
    value = task.value[columns] if len(task.value) else _NONE
    goal = task.goal[classes] if len(task.goal) else _NONE
    weight = _sum_over_members(part, goal) if task.kind == LOG else 0.0
    return DualTask(part, task.kind, task.worth[columns], value, goal, targets, weight)


def largest_earnings(task: DualTask, value: FloatArray | None = None) -> float:
    """Returns the most that all members could earn without regard to capacity; for logarithms, their total weight.

    Args:
        value: of each column instead of the task's own (C,).
    """
    if task.kind == LOG:
        return task.weight
    return float(task.problem.size @ largest_worth(task.problem, task.value if value is None else value))


def _sum_over_members(problem: ClassProblem, values: FloatArray) -> float:
    """Returns a sum over all members. It avoids the linear algebra library, whose threads take longer to wake than the
    sum.
    """
    return float(np.einsum("i,i->", problem.size, values))


def _entries_of(first: IntArray, chosen: IntArray) -> tuple[IntArray, IntArray]:
    """Returns the offsets of the chosen owners' entries laid end to end, and those entries."""
    width = first[chosen + 1] - first[chosen]
    offsets = np.concatenate(([0], np.cumsum(width)))
    entries = np.repeat(first[chosen] - offsets[:-1], width) + np.arange(offsets[-1])
    return offsets, entries
