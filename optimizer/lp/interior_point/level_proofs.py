"""Bounds of a level by weak duality, and the residual problem while levels rise.

At prices p a class reaches utility t at the least cost by mixing two points of the lower hull of the origin and its
columns (worth, price). The cost is convex and piecewise linear in t (`CostHulls`). A level is out of reach as soon as
its targets, each reached in the cheapest way, cost more than all rows are worth together (`LevelProof`).

`ResidualProblem` holds the classes whose shares may still change, their columns, and the capacity left to them. A
settled class leaves the program once its cheapest way to its utility is unique: it is the same in every later optimum.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.classes.class_problem import CappedTargets, ClassProblem, TargetFunction
from optimizer.problem import BoolArray, FloatArray, IntArray

#: Slopes that agree to this part belong to one edge of the hull.
_COLLINEAR = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class CostHulls:
    """Hull vertices of k classes, the origin first, the last one repeated as padding (k, v)."""

    worth: FloatArray
    cost: FloatArray

    def spent(self, target: FloatArray) -> FloatArray:
        """Least cost at which one member of each class reaches its target; the last vertex where none does (k,)."""
        low, low_cost, high, high_cost = self.edge_of(target)
        part = np.divide(target - low, high - low, out=np.zeros(len(target)), where=high > low)
        return np.asarray(low_cost + np.clip(part, 0.0, 1.0) * (high_cost - low_cost))

    def edge_of(self, target: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Worth and cost of the vertices below and above each target: four arrays (k,)."""
        row = np.arange(len(target))
        edge = np.minimum((self.worth[:, 1:] < target[:, None]).sum(axis=1), self.worth.shape[1] - 2)
        return self.worth[row, edge], self.cost[row, edge], self.worth[row, edge + 1], self.cost[row, edge + 1]


def cost_hulls(problem: ClassProblem, worth: FloatArray, prices: FloatArray, *, compiled: bool = False) -> CostHulls:
    """The lower hull of the origin and the columns (worth, cost at these prices) of every class."""
    cost = problem.cost(prices)
    if compiled:
        from optimizer.lp.interior_point import interior_kernels

        return CostHulls(*interior_kernels.hull_vertices(problem.first, worth, cost, _COLLINEAR))
    owner = problem.owner()
    corner_worth, corner_cost = np.zeros(problem.classes), np.zeros(problem.classes)
    vertices = [(corner_worth, corner_cost)]
    ahead = np.flatnonzero(worth > 0)
    while len(ahead):
        mine = owner[ahead]
        start = np.flatnonzero(np.diff(mine, prepend=-1))
        slope = (cost[ahead] - corner_cost[mine]) / (worth[ahead] - corner_worth[mine])
        lowest = np.minimum.reduceat(slope, start)
        per_column = np.repeat(lowest, np.diff(start, append=len(mine)))
        on_edge = slope <= per_column + _COLLINEAR * np.abs(per_column)
        furthest = np.maximum.reduceat(np.where(on_edge, worth[ahead], 0.0), start)
        corner_worth, corner_cost, rising = corner_worth.copy(), corner_cost.copy(), mine[start]
        corner_cost[rising] += lowest * (furthest - corner_worth[rising])
        corner_worth[rising] = furthest
        vertices.append((corner_worth, corner_cost))
        ahead = ahead[worth[ahead] > corner_worth[mine]]
    if len(vertices) == 1:
        vertices *= 2
    return CostHulls(np.stack([w for w, _ in vertices], axis=1), np.stack([c for _, c in vertices], axis=1))


#: A column belongs to a cheapest way if it costs more by at most this part of the class's dearest column.
_AS_CHEAP = 1e-9
#: Utilities that agree to this part are the same corner.
_CORNER = 1e-9
#: A row is exhausted when less than this part of its capacity is left.
_EMPTY = 1e-9
#: Capacity added to each row, as a part of it, so that rounding cannot make the next level infeasible. `make_feasible`
#: scales the final shares back.
_ROOM = 1e-10


@dataclass(frozen=True, slots=True, eq=False)
class RestrictedTargets:
    """The targets of some classes (a `TargetFunction`), up to the level `highest`."""

    whole: TargetFunction
    classes: IntArray
    highest: float

    def at(self, z: float) -> tuple[FloatArray, FloatArray]:
        """Targets and slopes of those classes."""
        target, slope = self.whole.at(z)
        return target[self.classes], slope[self.classes]


def as_capped(targets: TargetFunction) -> CappedTargets | None:
    """These targets as `CappedTargets`; None where they are of another form."""
    if isinstance(targets, RestrictedTargets):
        whole, own = as_capped(targets.whole), targets.classes
        return None if whole is None else CappedTargets(whole.slope[own], whole.cap[own], whole.floor[own])
    return targets if isinstance(targets, CappedTargets) else None


@dataclass(frozen=True, slots=True, eq=False)
class SubProblem:
    """A problem of some classes, columns and rows of another one, with their indices there."""

    problem: ClassProblem
    worth: FloatArray
    classes: IntArray
    columns: IntArray
    rows: IntArray

    def all_rows(self, prices: FloatArray, rows: int) -> FloatArray:
        """Prices of all rows of the larger problem (rows,): 0 where the part has no row."""
        everywhere = np.zeros(rows)
        everywhere[self.rows] = prices
        return everywhere


def sub_problem(problem: ClassProblem, worth: FloatArray, chosen: BoolArray, capacity: FloatArray) -> SubProblem:
    """The problem of the chosen columns (C,), with other capacities (r,)."""
    columns = np.flatnonzero(chosen)
    classes, width = np.unique(problem.owner()[columns], return_counts=True)
    uses = np.diff(problem.use_first)
    used = np.flatnonzero(np.repeat(chosen, uses))
    rows, use_row = np.unique(problem.use_row[used], return_inverse=True)
    part = ClassProblem(
        size=problem.size[classes],
        first=np.concatenate(([0], np.cumsum(width))),
        use_first=np.concatenate(([0], np.cumsum(uses[columns]))),
        use_row=use_row.astype(np.int32),
        use_count=problem.use_count[used],
        capacity=capacity[rows],
    )
    return SubProblem(part, worth[columns], classes, columns, rows.astype(np.int64))


class ResidualProblem:
    """The shares so far, and the part of the problem in which they may still change."""

    def __init__(self, problem: ClassProblem, worth: FloatArray, *, compiled: bool = False) -> None:
        self._problem, self._worth, self._owner, self._compiled = problem, worth, problem.owner(), compiled
        self._use_column = np.repeat(np.arange(problem.columns), np.diff(problem.use_first))
        self._open = np.ones(problem.columns, dtype=bool)
        self._fixed = np.zeros(problem.classes, dtype=bool)
        self.x = np.zeros(problem.columns)
        self._find_left()

    def free_of(self, rows: BoolArray) -> BoolArray:
        """Columns that use none of these rows (C,)."""
        taken = np.bincount(self._use_column, weights=rows[self._problem.use_row], minlength=self._problem.columns)
        free: BoolArray = taken == 0
        return free

    def part(self, wanted: BoolArray) -> SubProblem:
        """The problem of the wanted classes that are not fixed, on the capacity that the fixed ones leave."""
        chosen = self._open & (wanted & ~self._fixed)[self._owner] & self.free_of(self.empty)
        return sub_problem(self._problem, self._worth, chosen, self._left)

    def _find_left(self) -> None:
        """Recompute the capacity that the fixed classes leave, and the rows that they exhaust."""
        problem = self._problem
        used = problem.used(np.where(self._fixed[self._owner], self.x, 0.0))
        self._left: FloatArray = problem.capacity * (1 + _ROOM) - used
        self.empty: BoolArray = self._left <= _EMPTY * problem.capacity

    def take(self, part: SubProblem, x: FloatArray) -> None:
        """Replace the shares of the part's classes by x (the part's columns)."""
        self.x[np.isin(self._owner, part.classes)] = 0.0
        self.x[part.columns] = x

    def settle(
        self, settling: BoolArray, kept: FloatArray, prices: FloatArray, free: BoolArray, settled: BoolArray
    ) -> None:
        """Restrict settling classes to their cheapest columns at these prices, rising ones to columns on free rows.

        Args:
            settling: classes that settle at this level (k,).
            kept: utility of each class from now on (k,).
            prices: of all rows, at this level (r,).
            free: columns that use no scarce row (C,).
            settled: classes that have settled, these included (k,).
        """
        problem, owner = self._problem, self._owner
        cost = problem.cost(prices)
        hulls = cost_hulls(problem, np.where(self._open, self._worth, 0.0), prices, compiled=self._compiled)
        low_worth, low_cost, high_worth, high_cost = hulls.edge_of(kept)
        rise = np.divide(
            high_cost - low_cost, high_worth - low_worth, out=np.zeros(len(kept)), where=high_worth > low_worth
        )
        dearest = np.maximum.reduceat(cost, problem.first[:-1])
        line = (low_cost + _AS_CHEAP * dearest)[owner] + rise[owner] * (self._worth - low_worth[owner])
        at_corner = kept >= high_worth * (1 - _CORNER)
        same = ~at_corner[owner] | (self._worth >= (high_worth * (1 - _CORNER))[owner])
        cheapest = (cost <= line) & same
        self._open = np.where(settling[owner], self._open & cheapest, self._open & (free | settled[owner]))
        ways = np.add.reduceat((self._open & cheapest).astype(np.int64), problem.first[:-1])
        mixed = ~at_corner & (low_worth > 0)
        self._fixed |= settling & ((kept <= 0) | (ways <= 1) | (mixed & (ways == 2)))
        self._find_left()


#: Relative tolerance between the cost of targets and the worth of all rows. It exceeds `_ROOM`, so that the capacity
#: added there does not decide whether the utilities kept are affordable.
ROUNDING = 3e-10
#: Relative accuracy of a level, and the most evaluations of the search.
_CLOSE = 1e-13
_MOST_STEPS = 80


@dataclass(frozen=True, slots=True, eq=False)
class LevelProof:
    """The least cost of targets at given prices, against the worth of all rows at them."""

    problem: ClassProblem
    hulls: CostHulls
    income: float
    compiled: bool

    @staticmethod
    def of(problem: ClassProblem, worth: FloatArray, prices: FloatArray, *, compiled: bool = False) -> "LevelProof":
        """The proof by these prices (r,)."""
        hulls = cost_hulls(problem, worth, prices, compiled=compiled)
        return LevelProof(problem, hulls, float(problem.capacity @ prices), compiled)

    def excess(self, target: FloatArray) -> float:
        """Least cost of the targets less the worth of all rows; the targets are out of reach where it is positive."""
        if self.compiled:
            from optimizer.lp.interior_point import interior_kernels

            spent = interior_kernels.cost_of_targets(self.problem.size, self.hulls.worth, self.hulls.cost, target)
        else:
            spent = self.problem.size @ self.hulls.spent(target)
        return float(spent) - self.income * (1 + ROUNDING)

    def bound(self, targets: TargetFunction, reached: float, close: float = _CLOSE) -> float:
        """The smallest level that the prices prove to be out of reach, or `highest` if they prove none.

        Args:
            targets: of the classes.
            reached: a level known to be possible, from which the search starts.
            close: relative accuracy; the level returned lies above the exact one by at most this part.
        """
        low, high = min(reached, targets.highest), targets.highest
        lines = as_capped(targets) if self.compiled else None
        if lines is not None:
            from optimizer.lp.interior_point import interior_kernels

            hull, income = (self.problem.size, self.hulls.worth, self.hulls.cost), self.income * (1 + ROUNDING)
            capped_lines = (lines.slope, lines.cap, lines.floor)
            return float(interior_kernels.cheapest_level(hull, income, capped_lines, (low, high), (close, _MOST_STEPS)))
        above, below = self.excess(targets.at(high)[0]), self.excess(targets.at(low)[0])
        if above <= 0:
            return high
        if below > 0:
            return min(high, low * (1 + close))
        guess = low * (1 + 10 * close)  # the answer is mostly just above the level reached
        moved = 0
        for _ in range(_MOST_STEPS):
            least = 0.5 * close * high
            if high - low <= 2 * least:
                break
            guess = min(max(guess, low + least), high - least)
            excess = self.excess(targets.at(guess)[0])
            if excess > 0:  # Illinois method: halve the value of an end that stayed, or convergence is linear
                high, above, below = guess, excess, below / 2 if moved > 0 else below
                moved = 1
            else:
                low, below, above = guess, excess, above / 2 if moved < 0 else above
                moved = -1
            guess = high - above * (high - low) / (above - below)
        return high
