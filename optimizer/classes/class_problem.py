"""The problem over classes of jobs: constraints, objectives, targets of a level, and what given shares reach.

A *row* is something scarce with a price: a pool, or a limit that some jobs share (of a project, of a budget). Shapes:
k classes, C class columns, U uses, r rows; the first p rows are the pools. What a class has holds for each member.

    x[C] >= 0                                       share of time of one member
    sum_C x[C] <= 1                                 each class
    sum_C size[class] use[C, r] x[C] <= capacity[r] each row

Three objectives cover every linear and logarithmic policy (all for one member of class i):

    MaxMin        maximise z   s.t.  worth.x >= target_i(z)          max-min, finish-time fairness, makespan, trees
    MaxSum        maximise sum size value.x   s.t.  worth.x >= floor_i   throughput, per dollar, cost with deadlines
    NashWelfare   maximise sum size weight log(worth.x)              proportional fairness

A price on every row is enough to bound each of them: at given prices the classes decide alone, each by a linear program
with two rows. So a solution is shares (what is reached) and prices (what cannot be exceeded), however they were found.

Targets of a level:

    CappedTargets       t(z) = min(w z, cap)              equal utility for equal weight, until a job is full
    ThemisTargets       t(z) = min(b z / (1 - a z), cap)  finish-time fairness: z = 1 / rho, b = u of R / D steps/s,
                                                          a = t / D

A class that does not rise keeps its floor at every level.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from optimizer.classes.segments import Uses, merged_uses, sum_by
from optimizer.decision import Status
from optimizer.problem import BoolArray, FloatArray, IntArray, Problem


@dataclass(frozen=True, slots=True, eq=False)
class ClassProblem:
    """Classes, columns and rows as arrays. Uses are grouped by column, columns by class, both as offsets."""

    #: Members of each class (k,).
    size: FloatArray
    #: Columns of class i are first[i]:first[i + 1] (k + 1,).
    first: IntArray
    #: Uses of column c are use_first[c]:use_first[c + 1], at least one (C + 1,).
    use_first: IntArray
    #: Row of each use, and how much of it one member takes when it runs the column all the time (U,).
    use_row: NDArray[np.int32]
    use_count: FloatArray
    #: The capacity of each row, > 0 for every row that is used (r,).
    capacity: FloatArray

    #: k, C and r.
    classes: int = field(init=False)
    columns: int = field(init=False)
    rows: int = field(init=False)
    #: Class of each column (C,).
    owner: IntArray = field(init=False)
    #: Whether every column uses exactly one row, so that use c belongs to column c.
    single_use: bool = field(init=False)

    def __post_init__(self) -> None:
        columns = len(self.use_first) - 1
        derived = {
            "classes": len(self.size),
            "columns": columns,
            "rows": len(self.capacity),
            "owner": np.repeat(np.arange(len(self.size)), np.diff(self.first)),
            "single_use": bool(len(self.use_row) == columns and self.use_first[-1] == columns),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def cost(self, prices: FloatArray) -> FloatArray:
        """Returns what one member pays for running each column all the time, at prices of the rows (r,): (C,)."""
        paid = self.use_count * prices[self.use_row]
        if self.single_use:
            return paid
        return np.add.reduceat(paid, self.use_first[:-1]) if len(paid) else np.zeros(0)

    def used(self, x: FloatArray) -> FloatArray:
        """Returns how much of each row all members together take at these shares (C,): (r,)."""
        taken = self.size[self.owner] * x
        per_use = self.use_count * (taken if self.single_use else np.repeat(taken, np.diff(self.use_first)))
        return np.bincount(self.use_row, weights=per_use, minlength=self.rows).astype(np.float64)


def with_class_rows(problem: ClassProblem, uses: Uses, capacity: FloatArray) -> ClassProblem:
    """Returns the problem with these rows appended; `uses` count rows from 0, `capacity` is theirs (m,)."""
    column, row, count = uses
    known = np.repeat(np.arange(problem.columns, dtype=np.int64), np.diff(problem.use_first))
    owner, use_row, use_count = merged_uses(
        (known, problem.use_row.astype(np.int64), problem.use_count), (column, problem.rows + row, count)
    )
    return replace(
        problem,
        use_first=np.searchsorted(owner, np.arange(problem.columns + 1)),
        use_row=use_row.astype(np.int32),
        use_count=use_count,
        capacity=np.concatenate((problem.capacity, capacity)),
    )


class TargetFunction(Protocol):
    """The amount that each class must have at level z: continuous, never falling, 0 or a floor at z = 0."""

    @property
    def highest(self) -> float:
        """The largest level of interest: there every class that rises with z has at most what it can use."""
        ...

    def at(self, z: float) -> tuple[FloatArray, FloatArray]:
        """Returns the target of each class at level z (k,), and its derivative just below z (k,)."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class MaxMin:
    """The largest z at which every class reaches its target."""

    #: Utility of each column, run all the time by one member (C,).
    worth: FloatArray
    targets: TargetFunction


@dataclass(frozen=True, slots=True, eq=False)
class MaxSum:
    """The largest sum of values while every class keeps its floor."""

    #: What one member gains by running each column all the time; may be negative (C,).
    value: FloatArray
    #: Utility of each column (C,), and the utility that each class keeps (k,); a floor of 0 asks for nothing.
    worth: FloatArray
    floor: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class NashWelfare:
    """The largest weighted sum of logarithms of utilities. Every class has a column of positive worth."""

    worth: FloatArray
    #: Weight of one member of each class (k,), >= 0; a class with weight 0 gets nothing.
    weight: FloatArray


Objective = MaxMin | MaxSum | NashWelfare


@dataclass(frozen=True, slots=True, eq=False)
class ClassSolution:
    """Shares and prices that solve one objective over a class problem."""

    status: Status
    #: Share of time of one member in each class column, feasible to 1e-12 (C,).
    x: FloatArray
    #: Price of each row in units of the objective, >= 0 (r,).
    prices: FloatArray
    #: The objective that the shares reach, and the upper bound that the prices prove.
    objective: float
    bound: float
    #: The method: "highs", "cvxpy/clarabel", "price/numba", ...
    path: str
    #: Passes over all classes, or solver iterations.
    work: int = 0


#: Relative tolerance below which a class counts as full at a level computed in floating point.
_ROUNDING = 1e-15


@dataclass(frozen=True, slots=True, eq=False)
class CappedTargets:
    """min(slope z, cap) for classes with a slope, the floor for the others (all arrays (k,))."""

    slope: FloatArray
    cap: FloatArray
    floor: FloatArray

    @property
    def highest(self) -> float:
        """The level at which the last class is full."""
        rising = self.slope > 0
        return float((self.cap[rising] / self.slope[rising]).max(initial=0.0))

    def at(self, z: float) -> tuple[FloatArray, FloatArray]:
        """Returns the targets, and their slopes just below z."""
        rising = (self.slope > 0) & (self.slope * z <= self.cap)
        target = np.where(self.slope > 0, np.minimum(self.slope * z, self.cap), self.floor)
        return target, np.where(rising, self.slope, 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class ThemisTargets:
    """min(pace z / (1 - past z), cap): convex until the cap. A class with cap 0 does not rise (all arrays (k,))."""

    #: Utility that a class needs to end when it would have ended alone, if it began now: that of R / D steps per
    #: second.
    pace: FloatArray
    #: t / D: time since submission over time due alone.
    past: FloatArray
    cap: FloatArray

    @property
    def highest(self) -> float:
        """The level at which the last class is full."""
        rising = self.cap > 0
        return float((self.cap / np.where(rising, self.pace + self.cap * self.past, 1.0)).max(initial=0.0))

    def at(self, z: float) -> tuple[FloatArray, FloatArray]:
        """Returns the targets, and their slopes just below z."""
        left = 1 - self.past * z
        rising = (left > 0) & (self.pace * z <= self.cap * left * (1 + _ROUNDING)) & (self.cap > 0)
        share = np.where(rising, left, 1.0)
        target = np.where(rising, np.minimum(self.pace * z / share, self.cap), self.cap)
        return target, np.where(rising, self.pace / share**2, 0.0)


class TierRule(Protocol):
    """The targets of classes, tier after tier."""

    #: The number of tiers, whose targets rise one after the other.
    tiers: ClassVar[int]

    def targets(self, tier: int, kept: FloatArray, cap: FloatArray, settled: BoolArray) -> TargetFunction:
        """Returns the targets of a tier: at z = 0 at most `kept`, for settled classes always `kept`, never above
        `cap`.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Lexicographic:
    """Level by level: the largest level, then the capacity that it leaves to classes that can still rise, tier by
    tier.
    """

    rule: TierRule


@dataclass(frozen=True, slots=True, eq=False)
class WeightTierRule:
    """Targets min(w z, cap); in a second tier, min(z, cap) for the classes of weight 0."""

    tiers: ClassVar[int] = 2

    weight: FloatArray

    def targets(self, tier: int, kept: FloatArray, cap: FloatArray, settled: BoolArray) -> CappedTargets:
        """Returns targets that rise for the classes of the tier; all other classes keep what they have."""
        weight = self.weight if tier == 0 else (self.weight == 0).astype(np.float64)
        return CappedTargets(np.where(settled, 0.0, weight), cap, kept)


#: A utility within this part of its target counts as reaching it, so that rounding cannot make a full job look starved.
FULL = 1e-8
#: Halvings in the search for a level: enough for the last bit of a float.
_HALVINGS = 100
#: The value that stands for the logarithm of 0.
_LOG_OF_ZERO = 1e-300


def objective_value(class_problem: ClassProblem, objective: Objective, x: FloatArray) -> float:
    """Returns the objective's value at shares of the classes' members (C,). It does not check the floors of a
    `MaxSum`.
    """
    owner = class_problem.owner
    if isinstance(objective, MaxSum):
        return float((class_problem.size[owner] * objective.value) @ x)
    utility = sum_by(owner, objective.worth * x, class_problem.classes)
    if isinstance(objective, MaxMin):
        return level_reached(objective.targets, utility)
    rising = objective.weight > 0
    return float((class_problem.size * objective.weight)[rising] @ np.log(np.maximum(utility[rising], _LOG_OF_ZERO)))


def level_reached(targets: TargetFunction, utility: FloatArray, near: float = 0.0) -> float:
    """Returns the largest level whose targets these utilities reach (k,). The search is shorter the closer `near` is
    to it.
    """
    utility = utility * (1 + FULL)
    if isinstance(targets, CappedTargets):  # The level has a closed form.
        rising = targets.slope > 0
        if np.any(utility[~rising] < targets.floor[~rising]):
            return 0.0
        short = rising & (utility < targets.cap)
        return min(float((utility[short] / targets.slope[short]).min(initial=np.inf)), targets.highest)
    low, high = 0.0, targets.highest
    if np.all(utility >= targets.at(high)[0]):
        return high
    for guess in (near * (1 - 2 * FULL), near * (1 + 2 * FULL)):
        if low < guess < high:
            low, high = (guess, high) if np.all(utility >= targets.at(guess)[0]) else (low, guess)
    return bisected(lambda z: bool(np.all(utility >= targets.at(z)[0])), low, high)[0]


def bisected(holds: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Returns neighbouring levels, of which the first holds and the second does not, as those of `low` and `high`."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high


def constraint_violation(problem: Problem, x: FloatArray) -> float:
    """Returns the largest violation of any constraint, relative to its right-hand side (1 where that is 0)."""
    if not len(x):
        return 0.0
    columns, capacity = problem.columns, problem.pools.capacity
    time = sum_by(columns.job, x, len(problem.jobs))
    held = x * problem.jobs.counts[columns.job]
    used = sum_by(columns.use_pool, columns.use_count * held[columns.use_column], len(capacity))
    over = (used - capacity) / np.where(capacity > 0, capacity, 1.0)
    return max(0.0, float(-x.min()), float(time.max() - 1.0), float(over.max()))


def relative_gap(objective: float, bound: float) -> float:
    """Returns |bound - objective| / |bound|; 0 where both are 0."""
    return abs(bound - objective) / max(1e-12, abs(bound))


def make_feasible(class_problem: ClassProblem, x: FloatArray) -> FloatArray:
    """Returns feasible shares: clips negative ones, and scales down every column that uses an overloaded row.

    Afterwards no constraint is violated beyond rounding. The objective loses at most the violation found (1e-9,
    typically).
    """
    x = np.clip(np.nan_to_num(x), 0.0, 1.0)
    if not len(x):
        return x
    owner = class_problem.owner
    x = x / np.maximum(sum_by(owner, x, class_problem.classes), 1.0)[owner]
    overfull = np.maximum(
        class_problem.used(x) / np.where(class_problem.capacity > 0, class_problem.capacity, 1.0), 1.0
    )[class_problem.use_row]
    return x / (overfull if class_problem.single_use else np.maximum.reduceat(overfull, class_problem.use_first[:-1]))
