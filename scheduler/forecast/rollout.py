"""One future of a core's copy: virtual time, drawn lengths, arrivals, boots and revocations, until its jobs end.

The copy decides; this world only executes its commands. A started job runs at the speed that the core assumes. A job
that is asked to stop saves its work unless it has never been seen to save. A solve is answered at once near the
present, and later the further ahead the future is (`_SOLVE_SLOWER`), so that a future of days does not cost
thousands of solves; but before much has happened meanwhile (`_EVENTS_PER_JOB`), because under a plan a place
that became free stays idle until the answer.

A future may be given up while a job still runs. What it has left then tells its end there, unless others stop it: late,
but a promise needs an instant that is late enough, not an early one.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from random import Random
from signal import SIGTERM
from time import process_time
from typing import Any

from scheduler.core.commands import (
    JobTransitioned,
    Prepare,
    ReleaseNode,
    Rent,
    Revoke,
    Solve,
    Start,
    WakeAt,
)
from scheduler.core.cycle.solve_requests import run_solve
from scheduler.core.events import (
    AttemptEnded,
    AttemptStarted,
    CheckpointRecorded,
    EndCause,
    Event,
    JobSubmitted,
    NodeJoined,
    NodeLeaving,
    NodeLost,
    Prepared,
    Proposal,
    Solved,
    SolveFailed,
    Woke,
)
from scheduler.core.state.ledger import JobRecord, Ledger
from scheduler.core.state.unsaved_work import may_lose_work
from scheduler.forecast.core_copy import CoreCopy, CoreSnapshot
from scheduler.forecast.past_jobs import Arrival, DrawnLengths, PastJobs, as_newcomer, drawn_arrivals
from walras.cluster import Market
from walras.contract import EXIT_CHECKPOINTED
from walras.job_request import JobId, JobRequest
from walras.states import JobState

#: Maximum of seconds for saving; and spread of machines' boot times (standard deviation of the logarithm).
_SAVING_MOST_S, _BOOT_SPREAD = 10.0, 0.25
#: Job ids of future arrivals; above those of all existing jobs.
_NEWCOMERS_FROM = 1 << 40
#: If no job holds a place and no job changed its state for this long (seconds), and for as long as the future lasted
#: before, the remaining jobs cannot run.
_PATIENCE_S = 4 * 3600.0
#: The last fraction of a future's jobs are overtaken again and again, so they are awaited for at most this multiple of
#: the time that the first half of all jobs took.
_LAST_PART, _TAIL = 0.15, 12.0
#: A solve is answered at the latest after this many events for each of its jobs, which cost about as much as it did,
#: and for each accelerator in use, since a twentieth of these may be free then.
_EVENTS_PER_JOB, _EVENTS_PER_ACCELERATOR = 0.05, 0.1
#: At t seconds ahead of the beginning, a solve takes this fraction of t, and two wakes are at least this fraction of t
#: apart.
_SOLVE_SLOWER, _WAKE_SLOWER = 0.1, 0.02


@dataclass(slots=True)
class RolledJob:
    """What a job did in one future. Instants are inf if they were not reached before the future was given up."""

    starts_at: float = inf
    ends_at: float = inf
    #: The end, or a late guess at it if the future was given up before (`guess_late_ends`); inf: nothing tells it.
    late_end_at: float = inf
    #: If the future was given up before the end: when that was, or when it began of a job that was held; inf otherwise.
    open_until: float = inf
    #: Accelerator-hours by pool, from the present on.
    held_h: dict[str, float] = field(default_factory=dict)
    usd: float = 0.0


@dataclass(slots=True)
class JobTruth:
    """What a job still has to do, in steps, and its running attempt."""

    left: float
    attempt: int = 0
    rate: float = 0.0
    since_at: float = inf
    leased_at: float = inf
    usd_per_h: float = 0.0
    pool: str = ""
    count: float = 0.0
    #: Whether an attempt of it was stopped in this future.
    stopped: bool = False


def drawn_steps(
    lengths: DrawnLengths,
    request: JobRequest,
    done: tuple[float, float],
    best: float,
    chance: Random,
    *,
    joins: bool = False,
) -> float:
    """Returns the drawn steps left of a job that has done (steps, seconds of its whole gang at its best speed) `done`.

    `best` is that speed, steps per second. If it `joins`, later jobs of its group may have its length.
    """
    steps, had_s = done
    if request.steps is not None and request.steps > 0:
        part = steps / request.steps
        return max(lengths.ratio(request, part, chance) - part, 1e-6) * request.steps
    return max(lengths.length_s(request, had_s, chance, joins=joins) - had_s, 1.0) * best


def note_open_jobs(jobs: dict[JobId, RolledJob], ledger: Ledger, began_at: float, given_up_at: float) -> None:
    """Sets `open_until` of the jobs of a future that is over. Of a held job nothing is known: a person releases it."""
    for job_id, rolled in jobs.items():
        if rolled.ends_at == inf:
            job = ledger.jobs.get(job_id)
            rolled.open_until = began_at if job is None or job.state is JobState.HELD else given_up_at


def guess_late_ends(
    jobs: dict[JobId, RolledJob], truths: dict[JobId, JobTruth], ledger: Ledger, latest_at: float
) -> None:
    """Sets `late_end_at` of the jobs of a future that is over; ends after `latest_at` are not told.

    A running job that was never stopped is taken to run on. Nothing is told of a job that waits, or was stopped before:
    how long newcomers overtake it is what the future was given up for.
    """
    for job_id, rolled in jobs.items():
        rolled.late_end_at = rolled.ends_at
        job, truth = ledger.jobs.get(job_id), truths.get(job_id)
        if rolled.ends_at < inf or job is None or truth is None or truth.stopped:
            continue
        if job.state is JobState.RUNNING and job.revoked is None:
            late_at = truth.since_at + truth.left / truth.rate
            rolled.late_end_at = late_at if late_at <= latest_at else inf


@dataclass(frozen=True, slots=True)
class RolloutLimits:
    """When a future is given up; jobs that have not ended by then end later than that."""

    events: int = 30_000
    horizon_s: float = 14 * 86_400.0
    #: Processor time of this process, seconds.
    cpu_until_s: float = inf


class Rollout:
    """Rolls one copy forward. `jobs` has the results of jobs that were active at the beginning, or were added."""

    def __init__(
        self,
        snapshot: CoreSnapshot,
        copy: CoreCopy,
        past: PastJobs,
        lengths: DrawnLengths,
        luck: str,
        solve: Callable[[Solve], Proposal] = run_solve,
    ) -> None:
        """`luck` names the random streams.

        Each unknown has a stream of its own, so that futures of the same luck from slightly different states draw the
        same lengths, arrivals, boots and revocations.
        """
        self._snapshot, self._copy, self._core = snapshot, copy, copy.core
        self._past, self._lengths, self._luck, self._solve = past, lengths.of_future(luck), luck, solve
        self._chance = Random(f"{luck}/jobs")
        self._began_at = self.now = snapshot.at
        self._heap: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._count = 0
        self._wake_at, self._woken_at = inf, snapshot.at
        self._truths: dict[JobId, JobTruth] = {}
        self._newcomers = _NEWCOMERS_FROM
        self._nodes = 0
        #: When the state of a job of the beginning last changed, and how many of them hold places.
        self._moved_at, self._holding = snapshot.at, 0
        #: Number of jobs of the beginning that will end, when half had ended, and when the others are given up.
        self._all, self._half_s, self._tail_until_at = 0, inf, inf
        self.jobs: dict[JobId, RolledJob] = {}
        self._open = 0
        #: The answer to the solve under way, and the number of events after which it comes at the latest.
        self._answer: Solved | SolveFailed | None = None
        self._answered_by = inf
        self.events = 0

    # ------------------------------------------------------------------------------------------------ the run

    def run(
        self,
        limits: RolloutLimits = RolloutLimits(),
        *,
        arrivals: bool = True,
        then: Iterable[Event] = (),
        until_started: JobId | None = None,
        until_ended: JobId | None = None,
    ) -> bool:
        """Rolls forward until every job of the beginning has ended, or the given job has started or ended.

        Returns False if given up before all had ended. `then` are events sent as soon as the copy has settled; jobs
        that they submit have results too.
        """
        ledger = self._core.ledger
        for job in list(ledger):
            self._begin(job)
        if arrivals:
            chance = Random(f"{self._luck}/arrivals")
            self._arrivals: Iterator[Arrival] = drawn_arrivals(self._past, self._began_at, chance)
            self._next_arrival(None)
        for machine in list(ledger.fleet.machines):
            if machine is not None:
                self._draw_life(machine.node_id, ledger.fleet.pools[machine.pool].pool.pool_id)
        for state in ledger.fleet.pools:
            for token, machines in list(state.awaited.items()):
                self._boot(Rent(token, state.pool.pool_id, machines))
        self._all = self._open
        self._carry_out(self._copy.open(self._began_at))
        for event in then:
            if isinstance(event, JobSubmitted):
                self.jobs[event.job.job_id] = RolledJob()
                self._truths[event.job.job_id] = JobTruth(inf)
            self._send(event)
        heap, until_at = self._heap, self._began_at + limits.horizon_s
        while heap and self._open and self.events < limits.events:
            at, _, act, subject = heappop(heap)
            if at > until_at:
                self.now = until_at  # nothing happens until then
                break
            if self._count % 64 == 0 and process_time() > limits.cpu_until_s:
                break
            if until_started is not None and self.jobs[until_started].starts_at < inf:
                break
            if until_ended in self.jobs and self.jobs[until_ended].ends_at < inf:
                break
            self.now = max(self.now, at)
            if self.now > self._tail_until_at:
                break
            if not self._holding and self.now - self._moved_at > max(_PATIENCE_S, self._moved_at - self._began_at):
                break
            act(subject)
            while self._answer is not None and self.events >= self._answered_by:
                self._deliver(self._answer)
        note_open_jobs(self.jobs, ledger, self._began_at, self.now)
        guess_late_ends(self.jobs, self._truths, ledger, until_at)
        return not self._open

    def _schedule(self, at: float, act: Callable[[Any], None], subject: Any) -> None:
        self._count += 1
        heappush(self._heap, (at, self._count, act, subject))

    def _send(self, event: Any) -> None:
        self.events += 1
        event.at = self.now
        self._carry_out(self._core.handle(event))

    def _carry_out(self, commands: Iterable[Any]) -> None:
        for command in commands:
            act = _CARRY_OUT.get(type(command))
            if act is not None:
                act(self, command)

    # ------------------------------------------------------------------------------------------------ jobs

    def _begin(self, job: JobRecord) -> None:
        """Adds a job of the present; its remaining work is drawn once."""
        self.jobs[job.job_id] = RolledJob()
        self._open += job.state is not JobState.HELD
        best, had_s = self._core.ledger.class_of(job).best_rate, self._snapshot.had_s.get(job.job_id)
        # Not a job that is only tried: without it the others must have the same lengths.
        joins = had_s is not None
        self._truths[job.job_id] = truth = JobTruth(
            drawn_steps(
                self._lengths, job.request, (job.steps, had_s or 0.0), max(best, 1e-9), self._chance, joins=joins
            )
        )
        if not job.holds:
            return
        self._holding += 1
        truth.attempt, truth.leased_at = job.attempt, self.now
        self._know_place(job, truth)
        if job.state is JobState.RUNNING and job.revoked is None:
            self._run(job, truth)
        elif job.revoked is not None:
            takes_s = min(job.request.grace_s, _SAVING_MOST_S)
            self._schedule(self.now + takes_s, self._stopped, (job.job_id, job.attempt))
        else:
            ready_s = self._core.ledger.restart_s(job, self._core.cycle.policy.rules) - (self.now - job.leased_at)
            self._schedule(self.now + max(ready_s, 1.0), self._started, (job.job_id, job.attempt))
            self._prepare_again(job)

    def _prepare_again(self, job: JobRecord) -> None:
        if job.placement is not None and len(job.placement.parts) > 1 and len(job.prepared) < len(job.placement.parts):
            self._prepare(Prepare(job.job_id, job.attempt, job.placement))

    def _next_arrival(self, arrived: Arrival | None) -> None:
        if arrived is not None:
            self._newcomers += 1
            request = as_newcomer(arrived, JobId(self._newcomers))
            ledger = self._core.ledger
            best = max(ledger.classes.classes[ledger.classes.row(request)].best_rate, 1e-9)
            chance = Random(f"{self._luck}/{request.job_id}")
            self._truths[request.job_id] = JobTruth(drawn_steps(self._lengths, request, (0.0, 0.0), best, chance))
            self._send(JobSubmitted(self.now, request))
        following = next(self._arrivals, None)
        if following is not None:
            self._schedule(following.at, self._next_arrival, following)

    # ------------------------------------------------------------------------------------------------ attempts

    def _prepare(self, command: Prepare) -> None:
        for part in command.placement.parts:
            prepared = Prepared(self.now, command.job_id, command.attempt, part.node_id, "127.0.0.1", 1)
            self._schedule(self.now, self._send, prepared)

    def _start(self, command: Start) -> None:
        job = self._core.ledger.jobs[command.job_id]
        truth = self._truths[command.job_id]
        truth.attempt, truth.leased_at = command.attempt, self.now
        self._know_place(job, truth)
        takes_s = self._core.ledger.restart_s(job, self._core.cycle.policy.rules)
        self._schedule(self.now + takes_s, self._started, (command.job_id, command.attempt))

    def _know_place(self, job: JobRecord, truth: JobTruth) -> None:
        ledger = self._core.ledger
        row = int(ledger.columns.pool[job.slot])
        truth.rate, truth.count = max(ledger.rate_of(job), 1e-9), float(ledger.columns.count[job.slot])
        pool = ledger.fleet.pools[row].pool
        truth.pool, truth.usd_per_h = pool.pool_id, pool.usd_per_h * truth.count / max(pool.shape.accelerators, 1)
        truth.since_at = inf

    def _current(self, subject: tuple[JobId, int]) -> tuple[JobRecord, JobTruth] | None:
        """Returns the job and its truth while this attempt holds its place; else None."""
        job, truth = self._core.ledger.jobs.get(subject[0]), self._truths.get(subject[0])
        if job is None or truth is None or job.attempt != subject[1] or not job.place:
            return None
        return job, truth

    def _started(self, subject: tuple[JobId, int]) -> None:
        found = self._current(subject)
        if found is None or found[0].revoked is not None:
            return
        self._send(AttemptStarted(self.now, *subject))
        self._run(*found)

    def _run(self, job: JobRecord, truth: JobTruth) -> None:
        truth.since_at = self.now
        self._schedule(self.now + truth.left / truth.rate, self._succeeded, (job.job_id, job.attempt))

    def _succeeded(self, subject: tuple[JobId, int]) -> None:
        found = self._current(subject)
        if found is None or found[0].revoked is not None:
            return
        job, truth = found
        steps = job.steps + truth.left
        truth.left = 0.0
        self._send(AttemptEnded(self.now, *subject, EndCause.EXITED, exit_code=0, steps=steps))

    def _revoke(self, command: Revoke) -> None:
        subject = command.job_id, command.attempt
        if self._current(subject) is not None:
            self._schedule(self.now + min(command.grace_s, _SAVING_MOST_S), self._stopped, subject)

    def _stopped(self, subject: tuple[JobId, int]) -> None:
        found = self._current(subject)
        if found is None:
            return
        job, truth = found
        made = truth.rate * max(self.now - truth.since_at, 0.0) if truth.since_at < inf else 0.0
        if made >= truth.left and truth.since_at < inf:
            self._send(AttemptEnded(self.now, *subject, EndCause.EXITED, exit_code=0, steps=job.request.steps))
            return
        if may_lose_work(self._core.ledger, job):
            self._send(AttemptEnded(self.now, *subject, EndCause.EXITED, signal=SIGTERM))
            return
        truth.left -= made
        if made > 0:
            self._send(CheckpointRecorded(self.now, *subject, steps=max(job.start_steps, job.safe_steps) + made))
        self._send(AttemptEnded(self.now, *subject, EndCause.EXITED, exit_code=EXIT_CHECKPOINTED))

    def _transitioned(self, command: JobTransitioned) -> None:
        rolled, truth = self.jobs.get(command.job_id), self._truths.get(command.job_id)
        if rolled is None or truth is None:
            return
        self._moved_at = self.now
        if command.state is JobState.STARTING:
            self._holding += 1
            rolled.starts_at = min(rolled.starts_at, self.now)
        elif command.state.is_final:
            rolled.ends_at = self.now
            self._open -= 1
            if self._half_s == inf and self._open <= 0.5 * self._all:
                self._half_s = self.now - self._began_at
            if self._open <= _LAST_PART * self._all and self._tail_until_at == inf:
                self._tail_until_at = max(self._began_at + _TAIL * self._half_s, self.now + _PATIENCE_S)
        if truth.leased_at < inf and (command.state.is_final or command.state in (JobState.PENDING, JobState.HELD)):
            hours = (self.now - truth.leased_at) / 3600.0
            rolled.held_h[truth.pool] = rolled.held_h.get(truth.pool, 0.0) + hours * truth.count
            rolled.usd += hours * truth.usd_per_h
            self._holding -= 1
            truth.leased_at, truth.stopped = inf, True

    # ------------------------------------------------------------------------------------------------ machines, solves

    def _boot(self, command: Rent) -> None:
        row = self._core.ledger.fleet.pool_row(command.pool_id)
        if row is None:
            return
        chance = Random(f"{self._luck}/boot/{self._nodes}")
        boot_s = self._core.ledger.fleet.pools[row].pool.boot_s * chance.lognormvariate(0.0, _BOOT_SPREAD)
        for _ in range(command.machines):
            self._nodes += 1
            joined = NodeJoined(self.now, f"rolled-{self._nodes}", command.pool_id, command.token)  # type: ignore[arg-type]
            self._schedule(self.now + boot_s, self._joined, joined)

    def _joined(self, event: NodeJoined) -> None:
        self._send(event)
        self._draw_life(event.node_id, event.pool_id)

    def _release(self, command: ReleaseNode) -> None:
        self._schedule(self.now, self._lost, command.node_id)

    def _draw_life(self, node_id: str, pool_id: str) -> None:
        """Schedules the instant at which the market reclaims a machine, if it ever does."""
        per_h = self._snapshot.revocations_per_h.get(pool_id, 0.0)
        row = self._core.ledger.fleet.pool_row(pool_id)  # type: ignore[arg-type]
        if per_h > 0 and row is not None and self._core.ledger.fleet.pools[row].pool.market is Market.SPOT:
            lives_h = Random(f"{self._luck}/life/{node_id}").expovariate(per_h)
            self._schedule(self.now + 3600.0 * lives_h, self._reclaimed, node_id)

    def _reclaimed(self, node_id: Any) -> None:
        machine = self._core.ledger.fleet.machine(node_id)
        if machine is None:
            return
        notice_s = self._core.ledger.fleet.pools[machine.pool].pool.notice_s
        self._send(NodeLeaving(self.now, node_id, self.now + notice_s))
        self._schedule(self.now + notice_s, self._lost, node_id)

    def _lost(self, node_id: Any) -> None:
        if self._core.ledger.fleet.machine(node_id) is not None:
            self._send(NodeLost(self.now, node_id))

    def _wake(self, command: WakeAt) -> None:
        at = max(command.at, self.now, self._woken_at + _WAKE_SLOWER * (self.now - self._began_at))
        if at < self._wake_at:
            self._wake_at = at
            self._schedule(at, self._woke, at)

    def _woke(self, at: float) -> None:
        if at == self._wake_at:
            self._wake_at, self._woken_at = inf, self.now
            self._send(Woke(self.now))

    def _ask(self, command: Solve) -> None:
        # The solve is computed here at once; its answer is delivered when a solver's would be.
        answer: Solved | SolveFailed
        try:
            answer = Solved(self.now, command.request_id, self._solve(command))
        except Exception as error:  # a foreign policy may raise anything; that is its answer
            answer = SolveFailed(self.now, command.request_id, f"{type(error).__name__}: {error}"[:200])
        used = sum(state.capacity - state.free for state in self._core.ledger.fleet.pools)
        within = min(_EVENTS_PER_JOB * len(command.problem.jobs), _EVENTS_PER_ACCELERATOR * used)
        self._answer, self._answered_by = answer, self.events + within
        self._schedule(self.now + _SOLVE_SLOWER * (self.now - self._began_at), self._deliver, answer)

    def _deliver(self, answer: Solved | SolveFailed) -> None:
        if answer is self._answer:
            self._answer, self._answered_by = None, inf
            self._send(answer)


_CARRY_OUT: dict[type, Callable[[Rollout, Any], None]] = {
    Start: Rollout._start,
    Prepare: Rollout._prepare,
    Revoke: Rollout._revoke,
    JobTransitioned: Rollout._transitioned,
    Rent: Rollout._boot,
    ReleaseNode: Rollout._release,
    WakeAt: Rollout._wake,
    Solve: Rollout._ask,
}
