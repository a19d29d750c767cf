"""Gavel's policies without an optimisation program: isolated, AlloX, Gandiva, and three kinds of FIFO.

Gavel's policies map matrices of jobs by types to time shares of jobs and of pairs; the core runs them as share
policies. Their shares are not rounded, because noise of 1e-9 decides which jobs get leftover accelerators. `fifo` has
the defect of Gavel's code (see `GavelFifo`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from random import Random
from typing import Protocol

import numpy as np

from optimizer.decision import Certificate, Memory, Quote, Shares, Status
from optimizer.policy import Newcomer
from optimizer.problem import FloatArray, IntArray, Problem
from scheduler.core.commands import Solve
from scheduler.core.cycle.problem_snapshot import build_problem
from scheduler.core.events import Proposal
from scheduler.core.state.ledger import Ledger
from walras.cluster import PoolId
from walras.job_request import JobId, Kind


@dataclass(frozen=True, slots=True, eq=False)
class GavelProblem(Problem):
    """A problem as Gavel's policies see it. Types are in alphabetical order, jobs in order of id."""

    kind: tuple[Kind, ...] = ()
    #: Instant by which each job should end, counted from its admission; inf without a deadline (n,).
    deadline_at: FloatArray = field(default_factory=lambda: np.zeros(0))
    #: Accelerators of each job's gang (n,).
    count: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    #: Rows of the problem's pools, in alphabetical order of their types (p,).
    pool_row: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    #: Steps per second, jobs by types (n, p), and accelerators by type (p,).
    speed: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    total: FloatArray = field(default_factory=lambda: np.zeros(0))

    @property
    def types(self) -> list[str]:
        """Returns the accelerator types, in alphabetical order."""
        return [self.pools.accelerator[row] for row in self.pool_row.tolist()]

    @property
    def row_of(self) -> dict[int, int]:
        """Returns each job's row, by the job's number."""
        return {job_id: row for row, job_id in enumerate(self.jobs.job_id.tolist())}


def gavel_problem(ledger: Ledger, admitted_at: Mapping[JobId, float]) -> GavelProblem:
    """Converts the ledger to a problem; a deadline is delayed by the time that the job waited for admission."""
    problem = build_problem(ledger)
    order = np.argsort(problem.pools.accelerator, kind="stable")
    records = [ledger.jobs[job_id] for job_id in problem.jobs.job_id.tolist()]
    speed = ledger.classes.rates[[job.class_row for job in records]].reshape(len(records), len(order))
    waited_s = np.array([admitted_at[job.job_id] for job in records]) - problem.jobs.submitted_at
    return GavelProblem(
        **{field.name: getattr(problem, field.name) for field in fields(Problem)},
        kind=tuple(job.request.kind for job in records),
        deadline_at=problem.jobs.deadline_at + waited_s,
        count=problem.jobs.gang.astype(np.int64),
        pool_row=order,
        speed=speed[:, order],
        total=problem.pools.capacity[order],
    )


_NO_PROOF = Certificate(Status.DEFINED, 0.0, 0.0, 0.0, 0.0, "gavel")


@dataclass(frozen=True, slots=True, eq=False)
class GavelAllocation:
    """Time shares of jobs on types (n, p), and of pairs of jobs (two rows) on a type."""

    x: FloatArray
    pairs: tuple[tuple[int, int, int, float], ...] = ()


class GavelPolicy(ABC):
    """Adapts `allocate` to the interface of a `SharePolicy`, without a certificate."""

    @abstractmethod
    def allocate(self, problem: GavelProblem, memory: Memory) -> tuple[GavelAllocation, Memory]:
        """Returns the shares, and the memory for the next solve."""

    def decide(self, problem: Problem, memory: Memory) -> tuple[Shares, Memory]:
        """Returns the shares of single jobs, by column."""
        assert isinstance(problem, GavelProblem), "Gavel's policies are asked by Gavel's mechanism"
        allocation, memory = self.allocate(problem, memory)
        type_of = np.argsort(problem.pool_row)
        x = allocation.x[problem.columns.job, type_of[problem.columns.use_pool]]
        free = Quote(np.zeros(len(problem.pools)), "nothing has a price", 1.0)
        return Shares(x, problem.pools.held, free, np.zeros(len(problem.jobs)), _NO_PROOF), memory

    def value(self, newcomer: Newcomer, quote: Quote) -> FloatArray:
        """Returns zero for every configuration: newcomers wait for the next solve."""
        return np.zeros(len(newcomer.steps_per_s))


def gavel_solver(policy: GavelPolicy) -> Callable[[Solve], Proposal]:
    """Returns a function that answers `Solve` with this policy."""

    def solve(command: Solve) -> Proposal:
        problem = command.problem
        assert isinstance(problem, GavelProblem), "Gavel's policies are asked by Gavel's mechanism"
        allocation, memory = policy.allocate(problem, command.memory)
        return _gavel_proposal(problem, allocation, memory)

    return solve


def _gavel_proposal(problem: GavelProblem, allocation: GavelAllocation, memory: Memory) -> Proposal:
    job, kind = np.nonzero(allocation.x)
    job_ids = problem.jobs.job_id.tolist()
    pools = problem.pool_row.tolist()
    return Proposal(
        pools=tuple(PoolId(pool_id) for pool_id in problem.pools.pool_id),
        job_ids=tuple(JobId(job_ids[row]) for row in job.tolist()),
        pool_rows=tuple(problem.pool_row[kind].tolist()),
        counts=tuple(problem.count[job].tolist()),
        shares=tuple(allocation.x[job, kind].tolist()),
        asked=tuple(JobId(job_id) for job_id in job_ids),
        prices=tuple(0.0 for _ in pools),
        price_unit="nothing has a price",
        exchange=1.0,
        rent_machines=tuple(0 for _ in pools),
        status=str(Status.DEFINED),
        objective=0.0,
        bound=0.0,
        gap=0.0,
        path="gavel",
        memory=memory,
        packed=tuple((JobId(job_ids[a]), JobId(job_ids[b]), pools[on], share) for a, b, on, share in allocation.pairs),
    )


class PairSpeeds(Protocol):
    """Speeds of two jobs on the same accelerators (`simulator.ground_truth.GroundTruth`)."""

    def colocated_speed(self, kind: Kind, other: Kind, accelerator: str, count: int) -> float:
        """Returns the speed of the first kind co-located with the second; 0 where they cannot share accelerators."""
        ...


#: Replaces a speed of 0 in AlloX.
_NO_SPEED = 1e-10


def equal_split_shares(problem: GavelProblem, count: FloatArray) -> FloatArray:
    """Splits every type equally among these units, and limits each unit to all of its time."""
    x = problem.total / len(count) / count[:, None]
    split: FloatArray = x / np.maximum(1.0, x.sum(axis=1))[:, None]
    return split


@dataclass(frozen=True, slots=True)
class GavelIsolated(GavelPolicy):
    """Gives every job 1/M of each type, whatever its gang."""

    def allocate(self, problem: GavelProblem, memory: Memory) -> tuple[GavelAllocation, Memory]:
        return GavelAllocation(equal_split_shares(problem, problem.count.astype(float))), None


def _whole_shares(problem: GavelProblem, placed: Mapping[int, int]) -> GavelAllocation:
    """Returns all of the time on the type of each placed job."""
    x, row_of = np.zeros_like(problem.speed), problem.row_of
    for job_id, type_ in placed.items():
        x[row_of[job_id], type_] = 1.0
    return GavelAllocation(x)


def _restore(random: Random, memory: Memory) -> None:
    version, state, gauss = memory["random"]
    random.setstate((version, tuple(state), gauss))


@dataclass(frozen=True, slots=True)
class GavelAlloX(GavelPolicy):
    """Matches waiting jobs to positions in the queues of free accelerators; the first job of each queue runs there to
    its end.
    """

    def allocate(self, problem: GavelProblem, memory: Memory) -> tuple[GavelAllocation, Memory]:
        from scipy.optimize import linear_sum_assignment

        assert (problem.count == 1).all(), "AlloX knows no gangs"
        row_of = problem.row_of
        placed = {job_id: type_ for job_id, type_ in (memory or ()) if job_id in row_of}
        left = [int(total) for total in problem.total]
        for type_ in placed.values():
            left[type_] -= 1
        free = [type_ for type_, count in enumerate(left) for _ in range(count)]
        waiting = [row for job_id, row in row_of.items() if job_id not in placed]
        waiting.sort(key=lambda row: problem.jobs.submitted_at[row])
        if waiting and free:
            speed = np.maximum(problem.speed, _NO_SPEED)[waiting][:, free]
            length_s = problem.jobs.remaining_steps[waiting][:, None] / speed
            waited_s = (problem.at - problem.jobs.submitted_at[waiting])[:, None]
            costs = np.hstack([k * length_s + waited_s for k in range(1, len(waiting) + 1)])
            chosen, position = linear_sum_assignment(costs)
            last: dict[int, tuple[int, int]] = {}
            for place, row in zip(position.tolist(), chosen.tolist(), strict=True):
                last[place % len(free)] = max(last.get(place % len(free), (-1, -1)), (place, row))
            for gpu, (_, row) in last.items():
                placed[int(problem.jobs.job_id[waiting[row]])] = free[gpu]
        return _whole_shares(problem, placed), list(placed.items())


@dataclass(frozen=True, slots=True)
class GavelGandiva(GavelPolicy):
    """Splits types equally among units: single jobs, and pairs drawn at random while not all jobs fit."""

    pairs: PairSpeeds
    seed: int = 0

    def allocate(self, problem: GavelProblem, memory: Memory) -> tuple[GavelAllocation, Memory]:
        random = Random(self.seed)
        units: list[tuple[int, int]] = []
        row_of = problem.row_of
        if memory is not None:
            _restore(random, memory)
            units = [(a, b) for a, b in memory["pairs"] if a in row_of and b in row_of]
            units = [(a, b) for a, b in units if self._is_worth_it(problem, row_of[a], row_of[b])]
        if problem.count.sum() <= problem.total.sum():
            x, remembered = equal_split_shares(problem, problem.count.astype(float)), units
            return GavelAllocation(x), {"pairs": remembered, "random": random.getstate()}
        paired = {job_id for unit in units for job_id in unit}
        todo = [job_id for job_id in row_of if job_id not in paired]
        singles = []
        for _ in range(len(todo)):
            if len(todo) < 2:
                break
            one, two = random.sample(todo, 2)
            if problem.count[row_of[one]] == problem.count[row_of[two]]:
                units.append((min(one, two), max(one, two)))
                todo.remove(one)
                todo.remove(two)
        singles = [row_of[job_id] for job_id in todo]
        rows = [*singles, *(row_of[a] for a, _ in units)]
        split = equal_split_shares(problem, problem.count[rows].astype(float))
        x = np.zeros_like(problem.speed)
        x[singles] = split[: len(singles)]
        packed = tuple(
            (row_of[a], row_of[b], type_, float(share))
            for (a, b), shares in zip(units, split[len(singles) :], strict=True)
            for type_, share in enumerate(shares)
        )
        return GavelAllocation(x, packed), {"pairs": units, "random": random.getstate()}

    def _is_worth_it(self, problem: GavelProblem, one: int, two: int) -> bool:
        """Returns whether both jobs run on every type and keep at least one speed in sum.

        Kept parts of speed are added over the types, not averaged, as in Gavel.
        """
        names = problem.types
        kept = 0.0
        for a, b in ((one, two), (two, one)):
            for type_, accelerator in enumerate(names):
                speed = self.pairs.colocated_speed(problem.kind[a], problem.kind[b], accelerator, int(problem.count[a]))
                if speed <= 0:
                    return False
                kept += speed / problem.speed[a, type_]
        return kept >= 1.0


#: Two jobs share accelerators if they keep together more than this multiple of their own speeds.
_WORTH_PACKING = 1.5


@dataclass(slots=True)
class _FreeAccelerators:
    """Free accelerators by type, and the types that are still offered."""

    count: list[int]
    offered: list[int]

    def with_room(self, count: int) -> list[int]:
        """Returns the offered types with room for a gang."""
        return [t for t in self.offered if self.count[t] >= count]

    def take(self, type_: int, count: int, listed: int) -> None:
        """Uses accelerators of a type; if none are left, removes the type `listed` from the offer."""
        self.count[type_] -= count
        if self.count[type_] == 0:
            self.offered.remove(listed)


@dataclass(frozen=True, slots=True)
class GavelFifo(GavelPolicy):
    """Each job keeps its type until it completes, and then leaves it to the head of the queue.

    As in Gavel's code (`fixed` False) a type is drawn and then not used: the job goes to the last offered type, whether
    it has room or not.
    """

    seed: int = 0
    fixed: bool = False

    def allocate(self, problem: GavelProblem, memory: Memory) -> tuple[GavelAllocation, Memory]:
        random = Random(self.seed)
        placed: dict[int, int] = {}
        if memory is not None:
            placed = dict(memory["placed"])
            _restore(random, memory)
        row_of = problem.row_of
        queue = [job_id for job_id in row_of if job_id not in placed]
        free = [int(total) for total in problem.total]
        self._hand_over(problem, row_of, placed, queue, free)
        offered = _FreeAccelerators(free, [t for t, n in enumerate(free) if n > 0])
        placed |= self._served(problem, queue, offered, random)
        return _whole_shares(problem, placed), {"placed": list(placed.items()), "random": random.getstate()}

    def _hand_over(
        self, problem: GavelProblem, row_of: dict[int, int], placed: dict[int, int], queue: list[int], free: list[int]
    ) -> None:
        """Passes on the types of completed jobs in order of id.

        Later jobs are not counted yet, so a type may be given out more than once.
        """
        for job_id, type_ in sorted(placed.items()):
            if job_id in row_of:
                free[type_] -= int(problem.count[row_of[job_id]])
                continue
            del placed[job_id]
            if queue:
                head = row_of[queue[0]]
                if problem.count[head] <= free[type_] and problem.speed[head, type_] > 0:
                    free[type_] -= int(problem.count[head])
                    placed[queue.pop(0)] = type_

    def _served(
        self, problem: GavelProblem, queue: list[int], free: _FreeAccelerators, random: Random
    ) -> dict[int, int]:
        """Returns the types of the queued jobs that are placed."""
        row_of, placed = problem.row_of, dict[int, int]()
        for job_id in queue:
            row = row_of[job_id]
            candidates = free.with_room(int(problem.count[row]))
            if not candidates:
                break
            drawn = candidates[random.randrange(len(candidates))]
            type_ = drawn if self.fixed else free.offered[-1]
            if problem.speed[row, type_] > 0:
                placed[job_id] = type_
                free.take(type_, int(problem.count[row]), listed=drawn)
        return placed


def _fastest_first(problem: GavelProblem) -> tuple[FloatArray, list[int]]:
    """Gives each job, in order of arrival, the fastest type that fits. Returns the shares and the rows left over."""
    count = [int(total) for total in problem.total]
    free = _FreeAccelerators(count, [t for t, n in enumerate(count) if n > 0])
    x = np.zeros_like(problem.speed)
    for row in range(len(problem.jobs)):
        candidates = free.with_room(int(problem.count[row]))
        if not candidates:
            return x, list(range(row, len(problem.jobs)))
        best = max(candidates, key=problem.speed[row].__getitem__)
        if problem.speed[row, best] > 0:
            x[row, best] = 1.0
            free.take(best, int(problem.count[row]), listed=best)
    return x, []


@dataclass(frozen=True, slots=True)
class GavelFifoPerf(GavelPolicy):
    """Gives each job the fastest type with free accelerators, anew at every solve, so running jobs may move."""

    def allocate(self, problem: GavelProblem, memory: Memory) -> tuple[GavelAllocation, Memory]:
        x, _ = _fastest_first(problem)
        return GavelAllocation(x), None


@dataclass(frozen=True, slots=True)
class GavelFifoPacked(GavelPolicy):
    """`GavelFifoPerf`; a job that does not fit is co-located with the placed job with which it loses least speed."""

    pairs: PairSpeeds

    def allocate(self, problem: GavelProblem, memory: Memory) -> tuple[GavelAllocation, Memory]:
        x, queue = _fastest_first(problem)
        names = problem.types
        on = {row: int(type_) for row, type_ in zip(*np.nonzero(x), strict=True)}
        packed: list[tuple[int, int, int, float]] = []
        for row in queue:
            together = {
                other: self._together(problem, row, other, type_, names[type_])
                for other, type_ in on.items()
                if problem.count[other] == problem.count[row]
            }
            best = max(together, key=together.__getitem__, default=None)
            if best is None or together[best] <= _WORTH_PACKING:
                break
            type_ = on.pop(best)
            x[best, type_] = 0.0
            packed.append((min(row, best), max(row, best), type_, 1.0))
        return GavelAllocation(x, tuple(packed)), None

    def _together(self, problem: GavelProblem, one: int, two: int, type_: int, accelerator: str) -> float:
        """Returns the sum of the parts of their own speed that both jobs keep there."""
        kept = (
            self.pairs.colocated_speed(problem.kind[a], problem.kind[b], accelerator, int(problem.count[a]))
            / problem.speed[a, type_]
            for a, b in ((one, two), (two, one))
            if problem.speed[a, type_] > 0
        )
        return float(sum(kept))
