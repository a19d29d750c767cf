"""The objective as the dual method sees it: the input and output of one pass over all classes, and samples of them.

At given prices the exact best response jumps when two columns become equally good, so demand has no derivative and no
single response fits the capacities. A pass therefore computes two things for every class. The exact response proves the
bound. The softened one is what the shares are made of: the same choice with a small cost on concentration,

    + softness / 2 * sum x^2        softness of a class: the mean cost of its columns at the softness prices,

whose shares move continuously with the prices. It is feasible for its class and reaches the same worth; what it gives
away is at most the softness of the classes that are about to change their mind, and the certificate measures it.

Symbols of one class: a worth, n net cost (less the value), lam the multiplier of the worth, nu that of the time:

    x = max(0, lam a - n - nu) / softness       nu >= 0 keeps sum x <= 1       lam by kind:

    PLAIN   lam = 0                         TARGET  a.x = goal, or lam = 0 if more is earned anyway
    LOG     lam a.x = goal (the weight)

On the set of columns in use x is linear in the costs, with derivative (-P + kappa w w')/softness, P = I - 11'/|set| if
sum x = 1 (else I), w = P a. Summed over the classes this is the derivative of the demand by the prices, exactly.

`sample_classes` lets a few classes stand for all: systematic sampling by accelerators wanted, one class from each of
equal parts, at a place in it that a low-discrepancy sequence chooses. A sample is the same every time, and its demand
is within a few parts per square root of its size.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from optimizer.classes.class_problem import ClassProblem, MaxMin, MaxSum, NashWelfare, Objective, TargetFunction
from optimizer.lp.dual_newton.best_responses import largest_worth
from optimizer.problem import FloatArray, IntArray

PLAIN, TARGET, LOG = 0, 1, 2


class PassGoals(NamedTuple):
    """The classes' side of an objective. A named tuple because compiled code takes it as it is."""

    kind: int
    #: Of each column (C,); values may be empty: nothing is earned.
    worth: FloatArray
    value: FloatArray
    #: Of one member of each class: worth that it must have, or weight of its logarithm (k,); and by how much the
    #: goal rises with the level (k,).
    goal: FloatArray
    rise: FloatArray


class PassArrays(NamedTuple):
    """The problem's arrays, as compiled code takes them."""

    size: FloatArray
    first: IntArray
    use_first: IntArray
    use_row: NDArray[np.int32]
    use_count: FloatArray
    single: bool


def pass_arrays(problem: ClassProblem) -> PassArrays:
    """The arrays of a problem."""
    return PassArrays(
        problem.size, problem.first, problem.use_first, problem.use_row, problem.use_count, problem.single_use
    )


@dataclass(frozen=True, slots=True, eq=False)
class PassSums:
    """What one pass found, all members together."""

    #: Softened demand per row (r,), and how it falls with the prices: minus its derivative (r, r).
    demand: FloatArray
    stiffness: FloatArray
    #: Its derivative by the level (r,), and by the softness: change per relative change of it (r,).
    by_level: FloatArray
    by_softness: FloatArray
    #: Net cost of the exact responses (for LOG: less the logarithms), and how it rises with the level.
    exact_cost: float
    exact_slope: float
    #: What the softened shares earn: values, or weighted logarithms.
    value: float
    #: Net cost of the softened responses with their concentration (for LOG: less the logarithms).
    soft_cost: float
    #: Classes of which no column reaches the goal.
    unreached: float


#: Numbers beside the row vectors in a pass's answer.
SCALARS = 5


def pass_width(rows: int) -> int:
    """Numbers that one block of classes answers."""
    return 3 * rows + rows * rows + SCALARS


def unpack_sums(total: FloatArray, rows: int) -> PassSums:
    """A pass's answer, taken apart."""
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
    """Targets that can be computed for some classes alone, which is faster than computing all and taking some."""

    def part(self, classes: IntArray) -> TargetFunction:
        """The targets of these classes, in this order."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class _TargetsOfSome:
    """Targets of some classes, taken from those of all."""

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
    """A problem and what its classes want."""

    problem: ClassProblem
    kind: int
    worth: FloatArray
    #: Empty: nothing is earned.
    value: FloatArray
    #: Floor or weight of each class; for a Level: empty.
    goal: FloatArray
    targets: TargetFunction | None
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

    def goals(self, z: float) -> PassGoals:
        """What the classes want at a level; the level means nothing where there is none."""
        if self.targets is None:
            return PassGoals(self.kind, self.worth, self.value, self.goal, np.zeros(len(self.goal)))
        target, rise = self.targets.at(z)
        return PassGoals(self.kind, self.worth, self.value, target, np.asarray(rise, dtype=np.float64))


def make_task(problem: ClassProblem, objective: Objective) -> DualTask:
    """The task that an objective sets."""
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
    """About `count` classes whose members are multiplied so that they want about what all classes want."""
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
    """What all members could earn at most without regard to capacity; for logarithms: their total weight.

    Args:
        value: of each column instead of the task's own (C,).
    """
    if task.kind == LOG:
        return task.weight
    return float(task.problem.size @ largest_worth(task.problem, task.value if value is None else value))


def _sum_over_members(problem: ClassProblem, values: FloatArray) -> float:
    """Of all members. No product of the linear algebra library: it would wake threads for so little."""
    return float(np.einsum("i,i->", problem.size, values))


def _entries_of(first: IntArray, chosen: IntArray) -> tuple[IntArray, IntArray]:
    """Offsets of the chosen owners' entries laid end to end, and those entries."""
    width = first[chosen + 1] - first[chosen]
    offsets = np.concatenate(([0], np.cumsum(width)))
    entries = np.repeat(first[chosen] - offsets[:-1], width) + np.arange(offsets[-1])
    return offsets, entries
