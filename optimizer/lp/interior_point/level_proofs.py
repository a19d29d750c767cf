"""Bounds of a level by weak duality, and parts of a problem.

At prices p a class reaches utility t at the least cost by mixing two points of the lower hull of the origin and its
columns (worth, price). The cost is convex and piecewise linear in t. A level is out of reach as soon as its targets,
each reached in the cheapest way, cost more than all rows are worth together (`CostHulls.bound`).
"""

from dataclasses import dataclass

import numpy as np

from optimizer.classes.class_problem import CappedTargets, ClassProblem, TargetFunction
from optimizer.problem import BoolArray, FloatArray, IntArray

#: Slopes that agree to this part belong to one edge of the hull.
_COLLINEAR = 1e-12
#: Relative tolerance between the cost of targets and the worth of all rows. It exceeds `ROOM`, so that the capacity
#: added there does not decide whether the utilities kept are affordable.
ROUNDING = 3e-10
#: Relative accuracy of a level, and the most evaluations of the search.
_CLOSE = 1e-13
_MOST_STEPS = 80


@dataclass(frozen=True, slots=True, eq=False)
class CostHulls:
    """The least cost of any utility of each class at given prices, and the levels that such prices prove impossible."""

    #: Hull vertices, the origin first, the last one repeated as padding (k, v).
    worth: FloatArray
    cost: FloatArray
    #: Members of each class (k,), and what all rows are worth together at the prices.
    size: FloatArray
    income: float
    compiled: bool = False

    def spent(self, target: FloatArray) -> FloatArray:
        """Returns the least cost at which one member of each class reaches its target; the last vertex where none does
        (k,).
        """
        low, low_cost, high, high_cost = self.edge_of(target)
        part = np.divide(target - low, high - low, out=np.zeros(len(target)), where=high > low)
        return np.asarray(low_cost + np.clip(part, 0.0, 1.0) * (high_cost - low_cost))

    def edge_of(self, target: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Returns the worth and cost of the vertices below and above each target: four arrays (k,)."""
        row = np.arange(len(target))
        edge = np.minimum((self.worth[:, 1:] < target[:, None]).sum(axis=1), self.worth.shape[1] - 2)
        return self.worth[row, edge], self.cost[row, edge], self.worth[row, edge + 1], self.cost[row, edge + 1]

    def excess(self, target: FloatArray) -> float:
        """Returns the least cost of the targets less the worth of all rows; the targets are out of reach where it is
        positive.
        """
        if self.compiled:
            from optimizer.lp.interior_point import interior_kernels

            spent = interior_kernels.cost_of_targets(self.size, self.worth, self.cost, target)
        else:
            spent = self.size @ self.spent(target)
        return float(spent) - self.income * (1 + ROUNDING)

    def bound(self, targets: TargetFunction, reached: float, close: float = _CLOSE) -> float:
        """Returns the smallest level that the prices prove to be out of reach, or `highest` if they prove none.

        Args:
            targets: of the classes.
            reached: a level known to be possible, from which the search starts.
            close: relative accuracy; the level returned lies above the exact one by at most this part.
        """
        low, high = min(reached, targets.highest), targets.highest
        lines = as_capped(targets) if self.compiled else None
        if lines is not None:
            from optimizer.lp.interior_point import interior_kernels

            hull, income = (self.size, self.worth, self.cost), self.income * (1 + ROUNDING)
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


def cost_hulls(problem: ClassProblem, worth: FloatArray, prices: FloatArray, *, compiled: bool = False) -> CostHulls:
    """Returns the lower hull of the origin and the columns (worth, cost at these prices) of every class."""
    cost, income = problem.cost(prices), float(problem.capacity @ prices)
    if compiled:
        from optimizer.lp.interior_point import interior_kernels

        hull_worth, hull_cost = interior_kernels.hull_vertices(problem.first, worth, cost, _COLLINEAR)
        return CostHulls(hull_worth, hull_cost, problem.size, income, compiled=True)
    owner = problem.owner
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
    hull_worth, hull_cost = (np.stack(vertex, axis=1) for vertex in zip(*vertices, strict=True))
    return CostHulls(hull_worth, hull_cost, problem.size, income)


@dataclass(frozen=True, slots=True, eq=False)
class RestrictedTargets:
    """The targets of some classes (a `TargetFunction`), up to the level `highest`."""

    whole: TargetFunction
    classes: IntArray
    highest: float

    def at(self, z: float) -> tuple[FloatArray, FloatArray]:
        """Returns the targets and slopes of those classes."""
        target, slope = self.whole.at(z)
        return target[self.classes], slope[self.classes]


def as_capped(targets: TargetFunction) -> CappedTargets | None:
    """Returns these targets as `CappedTargets`; None where they are of another form."""
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


def sub_problem(problem: ClassProblem, worth: FloatArray, chosen: BoolArray, capacity: FloatArray) -> SubProblem:
    """Returns the problem of the chosen columns (C,), with other capacities (r,)."""
    columns = np.flatnonzero(chosen)
    classes, width = np.unique(problem.owner[columns], return_counts=True)
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
