"""Incremental update of a solved class problem: one job arrives or leaves, and the answer stays certified.

The points of the last solve are kept, with the sums of all responses there. A job that arrives or leaves changes the
sums at each point by its own response, and the mixture of the points is optimised again (`incremental_points`): the
work does not grow with the number of jobs. Shares are computed only for the job that is asked for. The bound stays
nearly sharp; the mixture's loss grows as prices move away from the points, until `recertify` solves again with a warm
start.

The arrays stay as they were solved: a job that leaves is subtracted from the size of its class, one that arrives is
kept beside them, and both go into new arrays only when these are asked for.

Targets must be proportional to the level (`LinearTargets`): a mixture of others need not reach the mixture of their
levels.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.seeds import incremental_points
from benchmarks.seeds.incremental_points import MixtureProgram, PointCriteria, PointMixture, StoredPoints
from optimizer.classes.class_problem import ClassProblem, MaxMin, MaxSum, NashWelfare, Objective
from optimizer.lp.dual_newton.dual_bound import PassEngine, compiled_engine
from optimizer.lp.dual_newton.dual_task import (
    LOG,
    PLAIN,
    REACH,
    SCALARS,
    TARGET,
    DualTask,
    PassGoals,
    largest_worth,
    make_task,
)
from optimizer.lp.dual_newton.newton import DualPoint, evaluate_dual
from optimizer.lp.dual_newton.price_solver import PriceSolve, SolveLimits, solve_from
from optimizer.problem import FloatArray, IntArray

_NONE = np.zeros(0)


@dataclass(frozen=True, slots=True, eq=False)
class LinearTargets:
    """Targets proportional to the level."""

    #: The rate of one member of each class, in utility per level (k,).
    rate: FloatArray
    #: The level at which the first class has all that it can have; 0 where no class rises.
    highest: float

    def at(self, z: float) -> tuple[FloatArray, FloatArray]:
        """Returns the targets at level z, and their derivative."""
        return self.rate * z, self.rate

    def part(self, classes: IntArray) -> "LinearTargets":
        """Returns the targets of these classes."""
        return LinearTargets(self.rate[classes], self.highest)


def proportional_level(problem: ClassProblem, worth: FloatArray, rate: FloatArray) -> MaxMin:
    """Returns the objective to maximise the level z at which each class has a utility of its rate times z."""
    return MaxMin(worth, LinearTargets(rate, _lowest_finite(_full_levels(largest_worth(problem, worth), rate))))


@dataclass(frozen=True, slots=True, eq=False)
class ArrivingMember:
    """The part of a problem that belongs to one job: its columns, as in `ClassProblem`, and its goal."""

    use_first: IntArray
    use_row: NDArray[np.int32]
    use_count: FloatArray
    #: Worth and value of each column; values count only for a MaxSum.
    worth: FloatArray
    value: FloatArray
    #: Rate of its target (MaxMin), floor (MaxSum), or weight (NashWelfare), >= 0.
    goal: float

    @property
    def reach(self) -> float:
        """The level at which the job has all that it can have."""
        return max(float(self.worth.max(initial=0.0)), 0.0) / self.goal if self.goal > 0 else np.inf


class ClassMembers:
    """The members of a class problem while jobs arrive and leave: the solved arrays and the changes since."""

    def __init__(self, problem: ClassProblem, objective: Objective) -> None:
        self._next = problem.classes
        self._take(problem, objective, np.arange(problem.classes))

    def _take(self, problem: ClassProblem, objective: Objective, handles: IntArray) -> None:
        """Starts from arrays that hold all members."""
        self._problem, self._objective, self._handles = problem, objective, handles
        self._size = problem.size.copy()
        self._goal, self._value = _goals_and_values(objective)
        self._entered: dict[int, ArrivingMember] = {}
        self._changed = False
        self._reach = np.where(
            self._size > 0, _full_levels(largest_worth(problem, objective.worth), self._goal), np.inf
        )
        self._highest = float(self._reach.min(initial=np.inf))
        self._weight, self._rising = float(self._size @ self._goal), float(self._size @ (self._goal > 0))

    def enter(self, entrant: ArrivingMember) -> int:
        """Adds a job; returns its handle."""
        handle = self._next
        self._next += 1
        self._entered[handle] = entrant
        self._count(entrant, 1.0)
        self._highest = min(self._highest, entrant.reach)
        return handle

    def remove(self, handle: int) -> ArrivingMember:
        """Removes one member of a class and returns it. Raises KeyError if the class has none."""
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

    def entrant(self, handle: int) -> ArrivingMember:
        """Returns one member of a class as a job of its own. Raises KeyError if the class has none."""
        if handle in self._entered:
            return self._entered[handle]
        i, problem = self._index(handle), self._problem
        columns = slice(int(problem.first[i]), int(problem.first[i + 1]))
        use_first = problem.use_first[columns.start : columns.stop + 1]
        uses = slice(int(use_first[0]), int(use_first[-1]))
        return ArrivingMember(
            use_first - use_first[0],
            problem.use_row[uses],
            problem.use_count[uses],
            self._objective.worth[columns],
            self._value[columns],
            float(self._goal[i]),
        )

    def alone(self, entrant: ArrivingMember) -> tuple[ClassProblem, PassGoals]:
        """Returns the problem of this job alone, and its goal at level 1."""
        first = np.array([0, len(entrant.worth)])
        problem = ClassProblem(
            np.ones(1), first, entrant.use_first, entrant.use_row, entrant.use_count, self._problem.capacity
        )
        goal = np.array([entrant.goal])
        if isinstance(self._objective, MaxSum):
            kind = TARGET if entrant.goal > 0 else PLAIN
            return problem, PassGoals(kind, entrant.worth, entrant.value, goal, np.zeros(1))
        if isinstance(self._objective, NashWelfare):
            return problem, PassGoals(LOG, entrant.worth, _NONE, goal, np.zeros(1))
        return problem, PassGoals(TARGET, entrant.worth, _NONE, goal, goal)

    def criteria(self) -> PointCriteria:
        """Returns what a mixture of points has to fit, and what is maximised."""
        objective = self._objective
        level = isinstance(objective, MaxMin)
        return PointCriteria(
            capacity=self._problem.capacity,
            level=level,
            highest=(self._highest if np.isfinite(self._highest) else 0.0) * (1.0 + REACH) if level else np.inf,
            weight=self._weight if isinstance(objective, NashWelfare) else None,
            floors=isinstance(objective, MaxSum) and self._rising > 0.5,
        )

    def compacted(self) -> tuple[ClassProblem, Objective, IntArray]:
        """Returns all members in new arrays, those that stayed first, then those that arrived; and their handles."""
        if self._changed:
            self._compact()
        return self._problem, self._objective, self._handles

    def _compact(self) -> None:
        problem, objective, entered = self._problem, self._objective, list(self._entered.values())
        stays = self._size > 0
        columns = np.repeat(stays, np.diff(problem.first))
        uses = np.repeat(columns, np.diff(problem.use_first))
        width = np.concatenate([np.diff(problem.first)[stays], [len(one.worth) for one in entered]])
        per_column = np.concatenate([np.diff(problem.use_first)[columns], *(np.diff(one.use_first) for one in entered)])
        now = ClassProblem(
            size=np.concatenate([self._size[stays], np.ones(len(entered))]),
            first=_offsets(width),
            use_first=_offsets(per_column),
            use_row=np.concatenate([problem.use_row[uses], *(one.use_row for one in entered)]).astype(np.int32),
            use_count=np.concatenate([problem.use_count[uses], *(one.use_count for one in entered)]),
            capacity=problem.capacity,
        )
        worth = np.concatenate([objective.worth[columns], *(one.worth for one in entered)])
        goal = np.concatenate([self._goal[stays], [one.goal for one in entered]])
        handles = np.concatenate([self._handles[stays], np.array(list(self._entered), dtype=np.int64)])
        match objective:
            case MaxSum():
                value = np.concatenate([objective.value[columns], *(one.value for one in entered)])
                changed: Objective = MaxSum(value, worth, goal)
            case NashWelfare():
                changed = NashWelfare(worth, goal)
            case MaxMin():
                changed = proportional_level(now, worth, goal)
        self._take(now, changed, handles)

    def _index(self, handle: int) -> int:
        i = int(np.searchsorted(self._handles, handle))
        if i >= len(self._handles) or self._handles[i] != handle or self._size[i] <= 0:
            raise KeyError(handle)
        return i

    def _count(self, entrant: ArrivingMember, members: float) -> None:
        self._weight += members * entrant.goal
        self._rising += members * (entrant.goal > 0)
        self._changed = True


def _goals_and_values(objective: Objective) -> tuple[FloatArray, FloatArray]:
    """Returns the rate, floor or weight of each class (k,), and the values of columns (empty where there are none)."""
    match objective:
        case MaxSum():
            return objective.floor, objective.value
        case NashWelfare():
            return objective.weight, _NONE
        case MaxMin():
            return objective.targets.at(1.0)[0], _NONE


def _full_levels(best: FloatArray, rate: FloatArray) -> FloatArray:
    """Returns the level at which each class has all that it can have (k,)."""
    return np.where(rate > 0, best / np.where(rate > 0, rate, 1.0), np.inf)


def _lowest_finite(reach: FloatArray) -> float:
    lowest = float(reach.min(initial=np.inf))
    return lowest if np.isfinite(lowest) else 0.0


def _offsets(widths: IntArray) -> IntArray:
    return np.concatenate(([0], np.cumsum(widths))).astype(np.int64)


#: The part of itself by which a price, or the level, of a probe is changed; and how many probes are renewed at each
#: certification.
_PROBE = 0.04
_RENEWED = 3
#: A point becomes useless when an arriving job misses its goal there by more than this part.
_MISSED = 1e-10


@dataclass(frozen=True, slots=True)
class UpdateCertificate:
    """Objective of the shares, upper bound, and relative gap between the two."""

    reached: float
    bound: float
    gap: float


class IncrementalSolver:
    """A problem and its objective with their certificate, kept up to date while jobs come and go."""

    def __init__(
        self,
        problem: ClassProblem,
        objective: Objective,
        limits: SolveLimits | None = None,
        engine: PassEngine | None = None,
    ) -> None:
        """Solves the problem.

        Args:
            problem, objective: classes get the handles 0, 1, ... in their order; targets of a MaxMin: `LinearTargets`.
            limits: of every solve.
        """
        if isinstance(objective, MaxMin) and not isinstance(objective.targets, LinearTargets):
            raise ValueError("only targets proportional to the level can be kept up to date")
        self._limits, self._engine, self._mixer = limits or SolveLimits(), engine or compiled_engine(), MixtureProgram()
        self._members = ClassMembers(problem, objective)
        self._last: PriceSolve | None = None
        #: The points: first the probes, the oldest of them first.
        self._points, self._probes = incremental_points.no_points(problem.rows), 0
        #: Number of the probe to be made next.
        self._next_probe = 0
        self._mixture: PointMixture | None = None
        self.recertify()

    def arrive(self, entrant: ArrivingMember) -> int:
        """Adds a job; returns its handle."""
        handle = self._members.enter(entrant)
        self._change(entrant, 1.0)
        return handle

    def leave(self, handle: int) -> None:
        """Removes one member of a class. Raises KeyError if the class has none."""
        self._change(self._members.remove(handle), -1.0)

    @property
    def certificate(self) -> UpdateCertificate:
        """Objective, bound and gap of the present shares; the gap is infinite when no shares are known."""
        criteria = self._members.criteria()
        reached, bound = self._current_mixture().reached, incremental_points.points_bound(self._points, criteria)
        bound = max(bound, reached)
        if not np.isfinite(reached) or not np.isfinite(bound):
            return UpdateCertificate(reached, bound, np.inf)
        scale = max(abs(bound), abs(reached), 1e-12) if criteria.weight is None else criteria.weight
        return UpdateCertificate(reached, bound, (bound - reached) / max(scale, 1e-300))

    def shares_of(self, handle: int) -> FloatArray:
        """Returns the shares of time of one member in each of its columns. Raises KeyError if none is there."""
        problem, goals = self._members.alone(self._members.entrant(handle))
        shares: FloatArray = (
            self._current_mixture().weight @ _responses_at_points(self._engine, problem, goals, self._points)[1]
        )
        return shares

    def dense(self) -> FloatArray:
        """Returns the shares of one member of each class, in the order of `problem` (C,)."""
        problem, objective, _ = self._members.compacted()
        task, points, weight = make_task(problem, objective), self._points, self._current_mixture().weight
        shares, one = np.zeros(problem.columns), np.zeros(problem.columns)
        for k in np.flatnonzero(weight > 0):
            one[:] = 0.0
            self._engine.sums(problem, task.goals(points.z[k]), points.prices[k], points.softness[k], one)
            shares += weight[k] * one
        return shares

    @property
    def problem(self) -> ClassProblem:
        """The present problem: members that left are gone, members that arrived come last."""
        return self._members.compacted()[0]

    @property
    def objective(self) -> Objective:
        """The objective of the present problem."""
        return self._members.compacted()[1]

    @property
    def handles(self) -> IntArray:
        """The handles of the present problem's classes, in their order."""
        return self._members.compacted()[2]

    def recertify(self) -> UpdateCertificate:
        """Solves the present problem again, with a warm start. This work grows with the number of jobs."""
        start = self._start()
        problem, objective, _ = self._members.compacted()
        self._last = solve_from(start, problem, objective, self._limits, self._engine)
        self._points, self._mixture = self._renewed(make_task(problem, objective)), None
        return self.certificate

    def _start(self) -> DualPoint | None:
        """Returns the warm start: the last solve's end, moved to the prices and the level of the present mixture."""
        weight, at = self._current_mixture().weight, None if self._last is None else self._last.end
        if at is None or not weight.any():
            return at
        part = weight / weight.sum()
        z = min(float(part @ self._points.z), self._members.criteria().highest)
        return replace(at, prices=part @ self._points.prices, z=z)

    def _renewed(self, task: DualTask) -> StoredPoints:
        """Returns the points that led to the end of the last solve, and probes beside it: at first all probes, later a
        few new ones.
        """
        rows, every, had = task.problem.rows, 2 * (task.problem.rows + 1), self._probes
        if self._last is None or self._last.end is None:
            self._probes = 0
            return (
                incremental_points.no_points(rows)
                if task.problem.columns
                else incremental_points.idle_point(task.problem.capacity)
            )
        at, renew = self._last.end, every - had or _RENEWED
        beside = [
            evaluate_dual(self._engine, task, _probe(task, at, (self._next_probe + n) % every)) for n in range(renew)
        ]
        self._next_probe, self._probes = (self._next_probe + renew) % every, every
        evaluated = [*beside, *self._last.trail[-rows:]]
        kept = self._points.take(slice(had + renew - every, had))
        return incremental_points.join_points(
            kept, incremental_points.stored_points(evaluated, rows, level=task.is_level)
        )

    def _change(self, entrant: ArrivingMember, members: float) -> None:
        problem, goals = self._members.alone(entrant)
        sums, shares = _responses_at_points(self._engine, problem, goals, self._points)
        self._points.sums[:] += members * sums
        if goals.kind == TARGET and members > 0:
            # Where the softness is far below the prices that an arriving job compares, too few digits are left for its
            # goal.
            goal = np.minimum(entrant.goal * self._points.z, entrant.worth.max(initial=0.0))
            self._points.spoiled[:] |= shares @ entrant.worth < goal * (1.0 - _MISSED)
        self._mixture = None

    def _current_mixture(self) -> PointMixture:
        if self._mixture is None:
            self._mixture = self._mixer.mix(self._points, self._members.criteria())
        return self._mixture


def _probe(task: DualTask, at: DualPoint, probe: int) -> DualPoint:
    """Returns a point beside another, which raises or lowers one price in turn, and at last the level or all prices."""
    row, down = divmod(probe, 2)
    part = -_PROBE if down else _PROBE
    if row < len(at.prices):
        prices = at.prices.copy()
        prices[row] += part * max(prices[row], at.reference[row])
        return replace(at, prices=np.maximum(prices, 0.0))
    return replace(at, z=at.z * (1.0 - part)) if task.is_level else replace(at, prices=at.prices * (1.0 + part))


def _responses_at_points(
    engine: PassEngine, problem: ClassProblem, goals: PassGoals, points: StoredPoints
) -> tuple[FloatArray, FloatArray]:
    """Returns the responses of a small problem at every point: sums (K, r + SCALARS), and shares (K, C)."""
    rows, shares = problem.rows, np.zeros((len(points), problem.columns))
    found = np.zeros((len(points), rows + SCALARS))
    for k in range(len(points)):
        criteria = goals._replace(goal=goals.goal * points.z[k])
        sums = engine.sums(problem, criteria, points.prices[k], points.softness[k], shares[k])
        found[k, :rows] = sums.demand
        found[k, rows:] = sums.exact_cost, sums.exact_slope, sums.value, sums.soft_cost, sums.unreached
    return found, shares
