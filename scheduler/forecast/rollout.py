"""One future of a core's copy: virtual time, drawn lengths, arrivals, boots and revocations, until its jobs end.

The copy decides; the simulated world (`scheduler.world`) carries out its commands, with the speeds and costs that the
core assumes (`BelievedPhysics`). A job that is asked to stop saves its work unless it has never been seen to save. A
solve that costs no more than an event is answered at once, another one later the further ahead the future is
(`_SOLVE_SLOWER`), so that a future of days does not cost thousands of solves; but before much has happened meanwhile
(`_EVENTS_PER_JOB`), because under a plan a place that became free stays idle until the answer.

A future may be given up while a job still runs. What it has left then tells its end there, unless others stop it: late,
but a promise needs an instant that is late enough, not an early one.
"""

import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from math import inf
from random import Random
from time import monotonic, process_time

from scheduler.core.commands import Command, JobTransitioned, Prepare, Rent, Solve, WakeAt
from scheduler.core.core import SchedulerCore
from scheduler.core.cycle.solve_requests import run_solve
from scheduler.core.events import (
    CheckpointRecorded,
    Event,
    JobSubmitted,
    NodeLeaving,
    Proposal,
    Solved,
    SolveFailed,
    Woke,
)
from scheduler.core.placement.attempt_lifecycle import is_prepared
from scheduler.core.state.bookings import runtime_limit_at
from scheduler.core.state.ledger import JobRecord, Ledger
from scheduler.core.state.stopping import may_lose_work
from scheduler.forecast.core_copy import CoreCopy
from scheduler.forecast.past_jobs import Arrival, DrawnLengths, PastJobs, as_newcomer, drawn_arrivals
from scheduler.providers.simulated_cloud import RentalTerms
from scheduler.world.attempts import (
    AttemptCosts,
    JobProgress,
    SimAttempt,
    SimulatedJob,
    SpeedCurve,
    SpeedSegment,
    WorldParameters,
)
from scheduler.world.engine import Engine, RandomStreams, RunLimits, Timer, rare_garbage_collection
from scheduler.world.machines import HeldDevices, PoolModel, SimNode, SimulatedMachines
from scheduler.world.world import SimulatedWorld
from walras.cluster import Market, Placement
from walras.contract import FORECAST_AHEAD_S
from walras.job_request import JobId
from walras.states import JobState

#: Maximum of seconds for saving where that was never measured; and spread of machines' boot times (standard deviation
#: of the logarithm).
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
#: Newcomers wait while more jobs are active than at the beginning by this multiple of the accelerators. A burst taken
#: for a rate costs no more then; but whom newcomers overtake must not start because they stay away.
_LONGER_MOST = 4


@dataclass(slots=True)
class RolledJob:
    """What a job did in one future. Instants are inf if they were not reached before the future was given up."""

    starts_at: float = inf
    ends_at: float = inf
    #: The end, or a late guess at it if the future was given up before (`guess_late_ends`); inf: nothing tells it.
    late_end_at: float = inf
    #: If the future was given up before the end: when that was, or when it began of a job that was held; inf otherwise.
    open_until: float = inf
    usd: float = 0.0
    #: Since when it holds its place, and the price per hour of that; None: it waits.
    lease: tuple[float, float] | None = None
    #: Whether an attempt of it was stopped in this future.
    stopped: bool = False
    #: Before this instant it may not start, and cannot end.
    least_at: float = -inf


def guess_late_ends(
    jobs: dict[JobId, RolledJob], progress: dict[JobId, JobProgress], ledger: Ledger, latest_at: float
) -> None:
    """Sets `late_end_at` of the jobs of a future that is over; ends after `latest_at` are not told.

    A running job that was never stopped is taken to run on, to its limit of run time at the latest. Nothing is told of
    a job that waits, or was stopped before: how long newcomers overtake it is what the future was given up for.
    """
    for job_id, rolled in jobs.items():
        rolled.late_end_at = rolled.ends_at
        job = ledger.jobs.get(job_id)
        attempt = progress[job_id].attempt if job_id in progress else None
        if rolled.ends_at < inf or job is None or attempt is None or rolled.stopped:
            continue
        if job.state is JobState.RUNNING and job.revoked is None:
            late_at = attempt.base_at + (attempt.job.plan.steps - attempt.job.steps) / attempt.rate
            late_at = min(late_at, max(runtime_limit_at(ledger, job), ledger.now))
            rolled.late_end_at = late_at if late_at <= latest_at else inf


class BelievedPhysics:
    """The speeds and costs that a core assumes."""

    def __init__(self, core: SchedulerCore) -> None:
        self._core = core
        self._ledger = core.ledger

    def speed_curve(self, job: JobProgress, placement: Placement) -> SpeedCurve:
        """Returns the constant speed of the job where it runs."""
        ledger, record = self._ledger, self._ledger.jobs[job.plan.request.job_id]
        rate = ledger.rate_of(record)
        if self._core.cycle.sharing.partner_of(record.job_id) is not None:
            alone = ledger.classes.classes[ledger.classes.row(record.request)]
            rate = alone.speeds[ledger.columns.pool.item(record.slot)]
        steady = SpeedSegment(max(rate, 1e-9))
        return lambda _: steady

    def shared_speed(self, attempt: SimAttempt) -> float:
        """Returns the speed that the core assumes beside the partner."""
        return max(self._ledger.rate_of(self._ledger.jobs[attempt.job_id]), 1e-9)

    def costs(self, job: JobProgress, parts: list[HeldDevices], number: int) -> AttemptCosts:
        """Returns the restart cost of the kind; saving at a stop is a part of it, unless it was never seen to save."""
        ledger, record = self._ledger, self._ledger.jobs[job.plan.request.job_id]
        restart_s, write_s = ledger.restart_s(record, ledger.policy.rules), ledger.costs.write_s(record.request.kind)
        if may_lose_work(ledger, record):
            return AttemptCosts(restart_s, None)
        saving_s = min(record.request.grace_s, restart_s, _SAVING_MOST_S if write_s is None else write_s)
        return AttemptCosts(restart_s - saving_s, saving_s)


@dataclass(frozen=True, slots=True)
class RolloutLimits:
    """When a future is given up; jobs that have not ended by then end later than that."""

    events: int = 30_000
    horizon_s: float = FORECAST_AHEAD_S
    #: Processor time of this process, seconds.
    cpu_until_s: float = inf
    #: The monotonic clock: somebody waits until then, seconds.
    until_s: float = inf
    #: Whether it ends as soon as somebody waits for another answer of this process.
    yields: bool = False

    @property
    def are_reached(self) -> bool:
        """Whether no time is left."""
        return (self.yields and _Process.is_awaited) or process_time() > self.cpu_until_s or monotonic() > self.until_s


class _Process:
    """The process that answers: whether somebody waits for another answer of it."""

    is_awaited = False


#: The signal by which the process is told that somebody waits.
AWAITED_SIGNAL = signal.SIGUSR1


def yield_when_awaited() -> None:
    """Let `AWAITED_SIGNAL` end this process's present question, if that may yield, and not the process."""

    def note(*_: object) -> None:
        _Process.is_awaited = True

    signal.signal(AWAITED_SIGNAL, note)


#: Minimum of futures for p10 and p90; they are begun whatever time there is.
DRAWS_LEAST = 5


class DrawTime:
    """The time for a question's draws. The first ones have equal parts; what one leaves is for those after it."""

    def __init__(self, cpu_s: float, within_s: float, *, yields: bool = False) -> None:
        self._cpu_s, self._yields = cpu_s, yields
        if not yields:  # the answer that was awaited, or another one since
            _Process.is_awaited = False
        self._began_s, self._until_s = process_time(), monotonic() + within_s

    @property
    def spent_s(self) -> float:
        """Processor time so far, seconds."""
        return process_time() - self._began_s

    @property
    def has_yielded(self) -> bool:
        """Whether somebody waits for another answer, so that this one ends without the future that was under way."""
        return self._yields and _Process.is_awaited

    def is_over(self, draw: int) -> bool:
        """Whether there is no time for another draw after so many."""
        if draw < DRAWS_LEAST:
            return False
        return self.spent_s * (1 + 1 / draw) > self._cpu_s or monotonic() > self._until_s

    def limits(self, draw: int, future: int = 0, futures: int = 1) -> RolloutLimits:
        """Returns the limits of one of the futures of a draw."""
        part = 1.0 / max(DRAWS_LEAST - draw, 1) / (futures - future)
        cpu_s = max(self._cpu_s - self.spent_s, self._cpu_s / DRAWS_LEAST if draw >= DRAWS_LEAST else 0.0)
        left_s = self._until_s - monotonic()
        until_cpu_s, until_s = process_time() + part * cpu_s, monotonic() + part * left_s
        return RolloutLimits(cpu_until_s=until_cpu_s, until_s=until_s, yields=self._yields)


class Rollout:
    """Rolls one copy forward. `jobs` has the results of jobs that were active at the beginning, or were added."""

    def __init__(
        self,
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
        snapshot = copy.snapshot
        self._copy, self._core = copy, copy.core
        self._past, self._lengths, self._luck, self._solve = past, lengths.of_future(luck), luck, solve
        self._chance = Random(f"{luck}/jobs")
        self._began_at = self._woken_at = snapshot.at
        self._physics, streams = BelievedPhysics(self._core), RandomStreams(luck)
        self._engine = engine = Engine(self._core, solve)
        engine.now = snapshot.at
        pools = [
            PoolModel(state.pool, terms=RentalTerms(state.pool.boot_s), boot_noise=_BOOT_SPREAD)
            for state in self._core.ledger.fleet.pools
            if state.slow_of is None
        ]
        self._machines = SimulatedMachines(engine, pools, streams.stream("boots"))
        self.world = SimulatedWorld(self._machines, self._physics, WorldParameters(), streams)
        self._machines.on_join.append(self._draw_life)
        engine.on_command[JobTransitioned] = self._transitioned
        engine.on_event[CheckpointRecorded] = self._recorded
        engine.on_command[WakeAt] = self._wake
        engine.on_command[Solve] = self._ask
        engine.recorder = self._watch
        #: When the state of a job of the beginning last changed, and how many of them hold places.
        self._moved_at, self._holding = snapshot.at, 0
        #: Number of jobs of the beginning that will end, when half had ended, and when the others are given up.
        self._all, self._half_s, self._tail_until_at = 0, inf, inf
        #: Active jobs, and the most with which newcomers come (`_LONGER_MOST`).
        self._active, self._active_most = 0, 0
        self.jobs: dict[JobId, RolledJob] = {}
        self._open = 0
        #: Newcomers to come, one that waits until there are fewer, and by how much all come later for such waits.
        self._arrivals: Iterator[tuple[int, Arrival]] = iter(())
        self._held_back: tuple[int, Arrival] | None = None
        self._later_s = 0.0
        #: The answer to the solve under way, and the number of events after which it comes at the latest.
        self._answer: Timer | None = None
        self._answered_by = inf
        self._until_started: JobId | None = None
        self._until_ended: JobId | None = None
        self._limits = RolloutLimits()

    @property
    def now(self) -> float:
        """How far the future is rolled."""
        return self._engine.now

    @property
    def events(self) -> int:
        """Number of events so far."""
        return self._engine.events

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
        engine, ledger, began_at = self._engine, self._core.ledger, self._began_at
        self._limits, self._until_started, self._until_ended = limits, until_started, until_ended
        for machine in ledger.fleet.machines:
            if machine is not None:
                pool_id = ledger.fleet.pools[machine.pool].pool.pool_id
                self._machines.join(began_at, SimNode(machine.node_id, pool_id, machine.size))
        for state in ledger.fleet.pools:
            for token, machines in state.awaited.items():
                engine.carry_out(began_at, (Rent(token, state.pool.pool_id, machines),))
        for job in list(ledger):
            self._begin(job)
        self._all = self._open
        engine.carry_out(began_at, self._copy.open(began_at))
        if arrivals:
            capacity = sum(state.capacity for state in ledger.fleet.pools)
            self._active, self._active_most = self._open, self._open + _LONGER_MOST * capacity
            drawn = drawn_arrivals(self._past, began_at, Random(f"{self._luck}/arrivals"))
            self._arrivals = enumerate(drawn, _NEWCOMERS_FROM + 1)
            self._await_newcomer()
        for event in then:
            if isinstance(event, JobSubmitted):
                self.jobs[event.job.job_id] = RolledJob()
                self.world.jobs[event.job.job_id] = JobProgress(SimulatedJob(began_at, event.job, inf))
            event.at = began_at
            engine.send(event)
        if not self._open:
            engine.stop()
        with rare_garbage_collection():
            engine.run(RunLimits(began_at + limits.horizon_s, limits.events))
        for job_id, rolled in self.jobs.items():
            if rolled.ends_at == inf:  # of a held job nothing is known: a person releases it
                is_open = job_id in ledger.jobs and ledger.jobs[job_id].state is not JobState.HELD
                rolled.open_until = self.now if is_open else began_at
        guess_late_ends(self.jobs, self.world.jobs, ledger, began_at + limits.horizon_s)
        return not self._open

    def _watch(self, event: Event, _: list[Command]) -> None:
        """Gives the future up when it is time to, and has an overdue solve answered."""
        now, events = event.at, self._engine.events
        if isinstance(event, Woke):
            self._woken_at = now
        is_still = not self._holding and now - self._moved_at > max(_PATIENCE_S, self._moved_at - self._began_at)
        if is_still or now > self._tail_until_at or self._limits.are_reached:
            self._engine.stop()
        if self._answer is not None and events >= self._answered_by:
            self._answered_by, early = inf, self._answer
            if early.act is not None:
                self._answer = self._engine.schedule(now, early.act, early.subject)
                self._engine.cancel(early)

    # ------------------------------------------------------------------------------------------------ jobs

    def _begin(self, job: JobRecord) -> None:
        """Adds a job of the present, with its attempt; its remaining work is drawn once."""
        now, ledger = self._began_at, self._core.ledger
        rolled = self.jobs[job.job_id] = RolledJob(least_at=max(self._began_at, job.request.not_before_at))
        self._open += job.state is not JobState.HELD
        best, had_s = ledger.class_of(job).best_rate, self._copy.snapshot.had_s.get(job.job_id)
        done = job.steps, had_s or 0.0
        # Not a job that is only tried: without it the others must have the same lengths.
        joins = had_s is not None
        left = self._lengths.steps_left(job.request, done, max(best, 1e-9), self._chance, joins=joins)
        progress = JobProgress(SimulatedJob(now, job.request, job.steps + left))
        progress.steps = progress.worked_steps = job.steps
        progress.saved_steps = job.safe_steps
        self.world.jobs[job.job_id] = progress
        if job.placement is None or not job.holds:
            return
        self._take_lease(rolled, job)
        if not is_prepared(job):
            self._engine.carry_out(now, (Prepare(job.job_id, job.attempt, job.placement),))
            return
        parts = self._machines.parts(job.placement)
        costs = self._physics.costs(progress, parts, job.attempt)
        speed_curve = self._physics.speed_curve(progress, job.placement)
        attempt = SimAttempt(progress, job.attempt, parts, speed_curve, costs)
        partner = self._core.cycle.sharing.partner_of(job.job_id)
        if partner is not None and (beside := self.world.jobs.get(partner.job_id)) is not None:
            self.world.pair(now, attempt, beside.attempt)
        if job.running_at < inf:
            self.world.attempts.resume(now, attempt)
        else:
            attempt.costs = replace(costs, start_s=max(costs.start_s - (now - job.leased_at), 1.0))
            self.world.attempts.begin(now, attempt)
        if job.revoked is not None:
            self.world.attempts.stop(now, attempt, job.request.grace_s)

    def _await_newcomer(self) -> None:
        found, self._held_back = self._held_back, None
        if found is not None:
            self._later_s = max(self.now - found[1].at, self._later_s)
        else:
            found = next(self._arrivals, None)
        if found is not None:
            self._engine.schedule(max(found[1].at + self._later_s, self.now), self._arrive, found)

    def _arrive(self, at: float, found: tuple[int, Arrival]) -> Iterable[Event]:
        if self._active >= self._active_most:
            self._held_back = found
            return ()
        number, arrival = found
        self._await_newcomer()
        classes, request = self._core.ledger.classes, as_newcomer(arrival, JobId(number))
        best = max(classes.classes[classes.row(request)].best_rate, 1e-9)
        steps = self._lengths.steps_left(request, (0.0, 0.0), best, Random(f"{self._luck}/{number}"))
        self.world.jobs[request.job_id] = JobProgress(SimulatedJob(at, request, steps))
        self._active += 1
        return (JobSubmitted(at, request),)

    def _take_lease(self, rolled: RolledJob, job: JobRecord) -> None:
        columns = self._core.ledger.columns
        pool = self._core.ledger.fleet.pools[columns.pool.item(job.slot)].pool
        count = columns.count.item(job.slot)
        rolled.lease = self.now, pool.usd_per_h * count / max(pool.shape.accelerators, 1)
        self._holding += 1

    def _transitioned(self, now: float, command: JobTransitioned) -> None:
        self.world.transitioned(now, command)
        rolled = self.jobs.get(command.job_id)
        if command.state.is_final:
            self._active -= 1
            if self._held_back is not None:
                self._await_newcomer()
        if rolled is None:
            return
        self._moved_at, job = now, self._core.ledger.jobs.get(command.job_id)
        if command.state is JobState.STARTING:
            rolled.starts_at = min(rolled.starts_at, now)
            if rolled.lease is None and job is not None and job.holds:
                self._take_lease(rolled, job)
        elif command.state.is_final:
            rolled.ends_at = now
            self._open -= 1
            if self._half_s == inf and self._open <= 0.5 * self._all:
                self._half_s = now - self._began_at
            if self._open <= _LAST_PART * self._all and self._tail_until_at == inf:
                self._tail_until_at = max(self._began_at + _TAIL * self._half_s, now + _PATIENCE_S)
        if rolled.lease is not None and (command.state.is_final or command.state in (JobState.PENDING, JobState.HELD)):
            (since_at, usd_per_h), rolled.lease = rolled.lease, None
            rolled.usd += (now - since_at) / 3600.0 * usd_per_h
            rolled.stopped = True
            self._holding -= 1
        has_started = command.job_id == self._until_started and rolled.starts_at < inf
        if not self._open or has_started or (command.job_id == self._until_ended and rolled.ends_at < inf):
            self._engine.stop()

    def _recorded(self, event: CheckpointRecorded) -> None:
        event.took_s = 0.0  # what is assumed of a save must not be learned as measured
        self.world.recorded(event)

    # ------------------------------------------------------------------------------------------------ machines, solves

    def _draw_life(self, at: float, node: SimNode) -> None:
        """Schedules the instant at which the market reclaims a machine, if it ever does."""
        per_h = self._copy.snapshot.revocations_per_h.get(node.pool_id, 0.0)
        if per_h > 0 and self._machines.pools[node.pool_id].pool.market is Market.SPOT:
            lives_h = Random(f"{self._luck}/life/{node.node_id}").expovariate(per_h)
            self._engine.schedule(at + 3600.0 * lives_h, self._reclaimed, node)

    def _reclaimed(self, at: float, node: SimNode) -> Iterable[Event]:
        if self._machines.nodes.get(node.node_id) is not node:
            return ()
        gone_at = at + self._machines.pools[node.pool_id].pool.notice_s
        node.leaving = self._engine.schedule(gone_at, self._machines.gone, node)
        return (NodeLeaving(at, node.node_id, gone_at),)

    def _wake(self, now: float, command: WakeAt) -> None:
        later_at = self._woken_at + _WAKE_SLOWER * (now - self._began_at)
        self._engine.wake_at(now, command if command.at >= later_at else WakeAt(later_at))

    def _ask(self, now: float, command: Solve) -> None:
        # The solve is computed here at once; its answer is delivered when a solver's would be.
        answer: Solved | SolveFailed
        used = sum(state.capacity - state.free for state in self._core.ledger.fleet.pools)
        within = min(_EVENTS_PER_JOB * len(command.problem.jobs), _EVENTS_PER_ACCELERATOR * used)
        at = now + (_SOLVE_SLOWER * (now - self._began_at) if within > 1 else 0.0)
        try:
            answer = Solved(at, command.request_id, self._solve(command))
        except Exception as error:  # a foreign policy may raise anything; that is its answer
            answer = SolveFailed(at, command.request_id, f"{type(error).__name__}: {error}"[:200])
        self._answered_by = self._engine.events + within
        self._answer = self._engine.schedule(at, self._deliver, answer)

    def _deliver(self, at: float, answer: Solved | SolveFailed) -> Iterable[Event]:
        self._answer, self._answered_by = None, inf
        answer.at = at
        return (answer,)
