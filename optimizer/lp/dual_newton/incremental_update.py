"""Incremental update of a solved class problem: one job arrives or leaves, and the answer stays certified.

The points of the last solve are kept, and with them what every class does there. A job that arrives or leaves changes
the sums at each point by its own response, and the mixture of the points is chosen anew (`incremental_points`): work
that does not grow with the number of jobs. Shares are computed for the job that is asked about. The bound stays nearly
sharp; what the mixture loses grows as prices move away from the points, until `recertify` solves from where it stands.

The arrays stay as they were solved: a job that leaves is subtracted from the size of its class, one that arrives is
kept beside them, and both are worked into new arrays only when these are asked for.

Targets must be proportional to the level (`LinearTargets`): a mixture of others need not reach the mixture of
their levels.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from optimizer.classes.class_problem import ClassProblem, MaxMin, MaxSum, NashWelfare, Objective
from optimizer.lp.dual_newton import incremental_points
from optimizer.lp.dual_newton.best_responses import REACH, largest_worth
from optimizer.lp.dual_newton.dual_bound import PassEngine, compiled_engine
from optimizer.lp.dual_newton.dual_task import (
    LOG,
    PLAIN,
    SCALARS,
    TARGET,
    DualTask,
    PassGoals,
    make_task,
    pass_arrays,
    pass_width,
)
from optimizer.lp.dual_newton.incremental_points import MixtureProgram, PointCriteria, PointMixture, StoredPoints
from optimizer.lp.dual_newton.newton import DualPoint, WarmStart, evaluate_dual
from optimizer.lp.dual_newton.price_solver import SolveLimits, aggregate_response, solve_with_warm_start
from optimizer.problem import FloatArray, IntArray

_NONE = np.zeros(0)


@dataclass(frozen=True, slots=True, eq=False)
class LinearTargets:
    """Targets proportional to the level."""

    #: Of one member of each class (k,).
    rate: FloatArray
    #: The level at which the first class has all that it can have; 0 where nobody rises.
    highest: float

    def at(self, z: float) -> tuple[FloatArray, FloatArray]:
        """Targets, and how they rise."""
        return self.rate * z, self.rate

    def part(self, classes: IntArray) -> "LinearTargets":
        """Of these classes."""
        return LinearTargets(self.rate[classes], self.highest)


def proportional_level(market: ClassProblem, worth: FloatArray, rate: FloatArray) -> MaxMin:
    """The largest level at which every class has its rate times the level."""
    return MaxMin(worth, LinearTargets(rate, _lowest_finite(_full_levels(largest_worth(market, worth), rate))))


@dataclass(frozen=True, slots=True, eq=False)
class ArrivingMember:
    """One job's own part of a market: its columns, as in `ClassProblem`, and what it wants."""

    use_first: IntArray
    use_row: NDArray[np.int32]
    use_count: FloatArray
    #: Of each column; values count for a Total alone.
    worth: FloatArray
    value: FloatArray
    #: Rate of its target (Level), floor (Total), or weight (Nash), >= 0.
    goal: float

    @property
    def reach(self) -> float:
        """The level at which it has all that it can have."""
        return max(float(self.worth.max(initial=0.0)), 0.0) / self.goal if self.goal > 0 else np.inf


class ClassMembers:
    """The classes of the arrays, less those who left, and those who came since."""

    def __init__(self, market: ClassProblem, objective: Objective) -> None:
        self._next = market.classes
        self._take(market, objective, np.arange(market.classes))

    def _take(self, market: ClassProblem, objective: Objective, handles: IntArray) -> None:
        """These arrays hold everybody."""
        self._market, self._objective, self._handles = market, objective, handles
        self._size = market.size.copy()
        self._goal, self._value = _goals_and_values(objective)
        self._entered: dict[int, ArrivingMember] = {}
        self._changed = False
        self._reach = np.where(self._size > 0, _full_levels(largest_worth(market, objective.worth), self._goal), np.inf)
        self._highest = float(self._reach.min(initial=np.inf))
        self._weight, self._rising = float(self._size @ self._goal), float(self._size @ (self._goal > 0))

    def enter(self, entrant: ArrivingMember) -> int:
        """Add a job; returns its handle."""
        handle = self._next
        self._next += 1
        self._entered[handle] = entrant
        self._count(entrant, 1.0)
        self._highest = min(self._highest, entrant.reach)
        return handle

    def remove(self, handle: int) -> ArrivingMember:
        """Strike one member of a class off; returns what it was. Raises KeyError if none is there."""
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
        """One member of a class, as if it stood alone. Raises KeyError if none is there."""
        if handle in self._entered:
            return self._entered[handle]
        i, market = self._index(handle), self._market
        columns = slice(int(market.first[i]), int(market.first[i + 1]))
        use_first = market.use_first[columns.start : columns.stop + 1]
        uses = slice(int(use_first[0]), int(use_first[-1]))
        return ArrivingMember(
            use_first - use_first[0],
            market.use_row[uses],
            market.use_count[uses],
            self._objective.worth[columns],
            self._value[columns],
            float(self._goal[i]),
        )

    def alone(self, entrant: ArrivingMember) -> tuple[ClassProblem, PassGoals]:
        """A market of this member alone, and what it wants at level 1."""
        first = np.array([0, len(entrant.worth)])
        market = ClassProblem(
            np.ones(1), first, entrant.use_first, entrant.use_row, entrant.use_count, self._market.capacity
        )
        goal = np.array([entrant.goal])
        if isinstance(self._objective, MaxSum):
            kind = TARGET if entrant.goal > 0 else PLAIN
            return market, PassGoals(kind, entrant.worth, entrant.value, goal, np.zeros(1))
        if isinstance(self._objective, NashWelfare):
            return market, PassGoals(LOG, entrant.worth, _NONE, goal, np.zeros(1))
        return market, PassGoals(TARGET, entrant.worth, _NONE, goal, goal)

    def asked(self) -> PointCriteria:
        """What the points of this market are judged by."""
        objective = self._objective
        level = isinstance(objective, MaxMin)
        return PointCriteria(
            capacity=self._market.capacity,
            level=level,
            highest=(self._highest if np.isfinite(self._highest) else 0.0) * (1.0 + REACH) if level else np.inf,
            weight=self._weight if isinstance(objective, NashWelfare) else None,
            floors=isinstance(objective, MaxSum) and self._rising > 0.5,
        )

    def compacted(self) -> tuple[ClassProblem, Objective, IntArray]:
        """Everybody in new arrays: those who stayed in their order, then those who came; and their handles."""
        if self._changed:
            self._compact()
        return self._market, self._objective, self._handles

    def _compact(self) -> None:
        market, objective, entered = self._market, self._objective, list(self._entered.values())
        stays = self._size > 0
        columns = np.repeat(stays, np.diff(market.first))
        uses = np.repeat(columns, np.diff(market.use_first))
        width = np.concatenate([np.diff(market.first)[stays], [len(one.worth) for one in entered]])
        per_column = np.concatenate([np.diff(market.use_first)[columns], *(np.diff(one.use_first) for one in entered)])
        now = ClassProblem(
            size=np.concatenate([self._size[stays], np.ones(len(entered))]),
            first=_offsets(width),
            use_first=_offsets(per_column),
            use_row=np.concatenate([market.use_row[uses], *(one.use_row for one in entered)]).astype(np.int32),
            use_count=np.concatenate([market.use_count[uses], *(one.use_count for one in entered)]),
            capacity=market.capacity,
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
    """Rate, floor or weight of each class, and values if columns have any."""
    match objective:
        case MaxSum():
            return objective.floor, objective.value
        case NashWelfare():
            return objective.weight, _NONE
        case MaxMin():
            return objective.targets.at(1.0)[0], _NONE


def _full_levels(best: FloatArray, rate: FloatArray) -> FloatArray:
    """The level at which each class has all that it can have (k,)."""
    return np.where(rate > 0, best / np.where(rate > 0, rate, 1.0), np.inf)


def _lowest_finite(reach: FloatArray) -> float:
    lowest = float(reach.min(initial=np.inf))
    return lowest if np.isfinite(lowest) else 0.0


def _offsets(widths: IntArray) -> IntArray:
    return np.concatenate(([0], np.cumsum(widths))).astype(np.int64)


#: By which part of itself a price, or the level, of a probe is off; and probes made anew when a market is certified.
_PROBE = 0.04
_RENEWED = 3
#: A newcomer whose shares miss its goal by more than this part makes a point useless.
_MISSED = 1e-10


@dataclass(frozen=True, slots=True)
class UpdateCertificate:
    """What the shares reach, what nobody can exceed, and by which part that is more."""

    reached: float
    bound: float
    gap: float


class IncrementalSolver:
    """A market and its objective with everything that is certified about them, while jobs come and go."""

    def __init__(
        self,
        market: ClassProblem,
        objective: Objective,
        limits: SolveLimits | None = None,
        engine: PassEngine | None = None,
    ) -> None:
        """Solve the market.

        Args:
            market, objective: classes get the handles 0, 1, ... in their order; targets of a MaxMin: `LinearTargets`.
            limits: of every solve.
        """
        if isinstance(objective, MaxMin) and not isinstance(objective.targets, LinearTargets):
            raise ValueError("only targets proportional to the level can be kept up to date")
        self._limits, self._engine, self._mixer = limits or SolveLimits(), engine or compiled_engine(), MixtureProgram()
        self._roster = ClassMembers(market, objective)
        self._standing: WarmStart | None = None
        #: Probes first, of which the oldest first.
        self._points, self._probes = incremental_points.no_points(market.rows), 0
        #: The probe to be made next.
        self._turn = 0
        self._mixture: PointMixture | None = None
        self.recertify()

    def arrive(self, entrant: ArrivingMember) -> int:
        """Let a job in; returns its handle."""
        handle = self._roster.enter(entrant)
        self._change(entrant, 1.0)
        return handle

    def leave(self, handle: int) -> None:
        """Let one member of a class go. Raises KeyError if none is there."""
        self._change(self._roster.remove(handle), -1.0)

    @property
    def certificate(self) -> UpdateCertificate:
        """What the present shares reach and what is proved of them; the gap is infinite where no shares are known."""
        asked = self._roster.asked()
        reached, bound = self._mixed().reached, incremental_points.points_bound(self._points, asked)
        bound = max(bound, reached)
        if not np.isfinite(reached) or not np.isfinite(bound):
            return UpdateCertificate(reached, bound, np.inf)
        scale = max(abs(bound), abs(reached), 1e-12) if asked.weight is None else asked.weight
        return UpdateCertificate(reached, bound, (bound - reached) / max(scale, 1e-300))

    def shares_of(self, handle: int) -> FloatArray:
        """Shares of time of one member in each of its columns. Raises KeyError if none is there."""
        market, wants = self._roster.alone(self._roster.entrant(handle))
        shares: FloatArray = self._mixed().weight @ _responses_at_points(self._engine, market, wants, self._points)[1]
        return shares

    def dense(self) -> FloatArray:
        """Shares of one member of each class, in the order of `market` (C,)."""
        market, objective, _ = self._roster.compacted()
        task, points, weight = make_task(market, objective), self._points, self._mixed().weight
        shares, one = np.zeros(market.columns), np.zeros(market.columns)
        for k in np.flatnonzero(weight > 0):
            one[:] = 0.0
            self._engine.sums(market, task.wants(points.z[k]), points.prices[k], points.softness[k], one)
            shares += weight[k] * one
        return shares

    @property
    def market(self) -> ClassProblem:
        """As it is now: those who left are gone, those who came stand last."""
        return self._roster.compacted()[0]

    @property
    def objective(self) -> Objective:
        """Of that market."""
        return self._roster.compacted()[1]

    @property
    def handles(self) -> IntArray:
        """Of the classes of that market, in their order."""
        return self._roster.compacted()[2]

    def recertify(self) -> UpdateCertificate:
        """Solve again, from where things stand. Work that grows with the number of jobs."""
        start = self._start()
        market, objective, _ = self._roster.compacted()
        self._standing = solve_with_warm_start(market, objective, self._limits, start, self._engine).standing
        self._points, self._mixture = self._renewed(make_task(market, objective)), None
        return self.certificate

    def _start(self) -> WarmStart | None:
        """Where the mixture's prices are: close to what has become of those of the last solve."""
        weight = self._mixed().weight
        if self._standing is None or not weight.any():
            return self._standing
        part, at = weight / weight.sum(), self._standing.at
        z = min(float(part @ self._points.z), self._roster.asked().highest)
        return replace(self._standing, at=replace(at, prices=part @ self._points.prices, z=z))

    def _renewed(self, task: DualTask) -> StoredPoints:
        """Where the last solve went, and probes beside its end: the first time all, then a few of them anew."""
        rows, every, had = task.market.rows, 2 * (task.market.rows + 1), self._probes
        if self._standing is None:
            self._probes = 0
            return (
                incremental_points.no_points(rows)
                if task.market.columns
                else incremental_points.idle_point(task.market.capacity)
            )
        at, renew = self._standing.at, every - had or _RENEWED
        beside = [evaluate_dual(self._engine, task, _probe(task, at, (self._turn + n) % every)) for n in range(renew)]
        self._turn, self._probes = (self._turn + renew) % every, every
        seen = [aggregate_response(one) for one in beside] + list(self._standing.responses[-rows:])
        kept = self._points.take(slice(had + renew - every, had))
        return incremental_points.join_points(kept, incremental_points.stored_points(seen, rows, level=task.is_level))

    def _change(self, entrant: ArrivingMember, members: float) -> None:
        market, wants = self._roster.alone(entrant)
        sums, shares = _responses_at_points(self._engine, market, wants, self._points)
        self._points.sums[:] += members * sums
        if wants.kind == TARGET and members > 0:
            # Softness far below the prices that a newcomer compares leaves too few digits for its goal.
            goal = np.minimum(entrant.goal * self._points.z, entrant.worth.max(initial=0.0))
            self._points.spoiled[:] |= shares @ entrant.worth < goal * (1.0 - _MISSED)
        self._mixture = None

    def _mixed(self) -> PointMixture:
        if self._mixture is None:
            self._mixture = self._mixer.mix(self._points, self._roster.asked())
        return self._mixture


def _probe(task: DualTask, at: DualPoint, turn: int) -> DualPoint:
    """A point beside another: in turn less and more is wanted of each row, and at last of all."""
    row, down = divmod(turn, 2)
    part = -_PROBE if down else _PROBE
    if row < len(at.prices):
        prices = at.prices.copy()
        prices[row] += part * max(prices[row], at.reference[row])
        return replace(at, prices=np.maximum(prices, 0.0))
    return replace(at, z=at.z * (1.0 - part)) if task.is_level else replace(at, prices=at.prices * (1.0 + part))


def _responses_at_points(
    engine: PassEngine, market: ClassProblem, wants: PassGoals, points: StoredPoints
) -> tuple[FloatArray, FloatArray]:
    """What the classes of a small market do at every point: sums (K, r + SCALARS), and shares (K, C)."""
    rows, shares = market.rows, np.zeros((len(points), market.columns))
    if engine.name == "numba":
        from optimizer.lp.dual_newton import pass_kernels

        totals = np.zeros((len(points), pass_width(rows)))
        at = pass_kernels.PassPoints(points.prices, points.softness, points.z)
        pass_kernels.run_points(pass_arrays(market), wants, at, totals, shares)
        return np.hstack([totals[:, :rows], totals[:, -SCALARS:]]), shares
    found = np.zeros((len(points), rows + SCALARS))
    for k in range(len(points)):
        asked = wants._replace(goal=wants.goal * points.z[k])
        sums = engine.sums(market, asked, points.prices[k], points.softness[k], shares[k])
        found[k, :rows] = sums.demand
        found[k, rows:] = sums.exact_cost, sums.exact_slope, sums.value, sums.soft_cost, sums.unreached
    return found, shares
