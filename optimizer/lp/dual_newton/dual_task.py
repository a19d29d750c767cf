"""The objective as the dual method sees it: the input and output of one pass over all classes, and samples of them.

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
    """Returns an objective as a task for the dual method."""
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
