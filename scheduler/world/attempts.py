"""The life of a simulated attempt: start, warm-up, steps, reports, checkpoints, exit.

Progress is exact: between two events an attempt makes steps at a constant rate, so nothing is computed in between.
`SimulatedWorld` starts and stops attempts.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import NamedTuple

from scheduler.core.events import AttemptEnded, AttemptProgressed, AttemptStarted, CheckpointRecorded, EndCause, Event
from scheduler.world.engine import Action, RandomStreams, Timer
from scheduler.world.machines import HeldDevices, SimulatedMachines
from walras.cluster import NodeId
from walras.contract import EXIT_CHECKPOINTED, SIGKILL
from walras.job_request import JobId, JobRequest

SIGTERM = 15


@dataclass(frozen=True, slots=True)
class PlannedFailure:
    """A failure of a rank after this many steps of the job."""

    at_steps: float
    exit_code: int = 1
    #: Number of failures there; None: every attempt fails.
    times: int | None = None


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """One row of a workload."""

    #: Instant of its submission, seconds.
    at: float
    request: JobRequest
    #: The true work in steps (`request.steps` is what the scheduler knows).
    steps: float
    failures: tuple[PlannedFailure, ...] = ()
    #: Instant at which its user cancels it.
    cancel_at: float = inf
    name: str = ""


@dataclass(frozen=True, slots=True)
class AttemptCosts:
    """Times in the life of an attempt besides its steps, seconds."""

    #: Start command until all ranks are up; the attempt counts as running from then on.
    start_s: float = 0.0
    #: Writing a checkpoint, without steps meanwhile. None: the kind cannot checkpoint, and loses its work when stopped.
    checkpoint_s: float | None = 0.0
    #: Run time between two periodic checkpoints; 0: the job takes none; None: as the scheduler plans.
    checkpoint_every_s: float | None = 0.0
    #: From all ranks up to the first step (imports, data, restore).
    warm_up_s: float = 0.0
    #: From the last step or checkpoint to the exit of the last process.
    exit_s: float = 0.0
    #: Added to the start of an attempt on other machines than the one before, which has to fetch its state.
    migrate_s: float = 0.0
    #: From the ranks being up to the machine's next report, at most `WorldParameters.report_s`; None: just that.
    first_report_s: float | None = None

    @property
    def restart_s(self) -> float:
        """Returns the seconds that a move costs a job: save, fetch, start, warm up."""
        return self.start_s + self.warm_up_s + (self.checkpoint_s or 0.0) + self.migrate_s


@dataclass(frozen=True, slots=True)
class AttemptTimes:
    """Times of one attempt as they were measured, seconds. None: unknown, as `AttemptCosts` of its kind says."""

    start_s: float | None
    warm_up_s: float | None
    exit_s: float | None
    first_report_s: float | None = None


class SpeedSegment(NamedTuple):
    """A constant speed, and the number of steps done at which it ends; inf: never."""

    steps_per_s: float
    until_steps: float = inf


@dataclass(frozen=True, slots=True)
class WorldParameters:
    """How the simulated world behaves apart from faults. `GroundTruth` has the speeds and costs of kinds."""

    #: Time between two progress reports of a running attempt; inf: it sends none (for policies that need no progress).
    report_s: float = inf
    #: Least seconds between two reports that reach the scheduler; the first, and the first with a speed, come at once.
    forward_every_s: float = 0.0
    #: A job measures its speed over windows of this length, and leaves out this number of steps after a start.
    window_s: float = 1.0
    unmeasured_steps: float = 0.0
    #: Standard deviation of log(an attempt's start and exit times / its kind's costs).
    cost_noise: float = 0.0
    #: Attempts whose times are known: they take these and no others.
    attempt_times: Mapping[tuple[JobId, int], AttemptTimes] = field(default_factory=dict)
    #: Standard deviation of log(an attempt's speed / the true speed of its kind).
    speed_noise: float = 0.0
    #: Relative standard deviation of a reported speed around the attempt's own.
    report_noise: float = 0.0
    #: Seconds between a prepare command and a machine's answer.
    prepare_s: float = 0.0
    #: Probability that a machine refuses a start or a preparation.
    refused: float = 0.0


class SimAttemptPhase(Enum):
    STARTING = "starting"
    #: All ranks are up; the first step has not begun.
    WARMING_UP = "warming up"
    RUNNING = "running"
    #: Writes a checkpoint, and continues with steps afterwards.
    SAVING = "saving"
    #: Was revoked, or has done its work; its processes are exiting.
    STOPPING = "stopping"
    #: No process of it is left; the scheduler may not know yet.
    DEAD = "dead"


class JobProgress:
    """The progress of a job between submission and end."""

    __slots__ = ("attempt", "failed", "last_nodes", "lost_steps", "plan", "saved_steps", "steps", "worked_steps")

    def __init__(self, plan: SimulatedJob) -> None:
        self.plan = plan
        self.attempt: SimAttempt | None = None
        #: Machines of the newest attempt; recorded only where a migration costs time.
        self.last_nodes: frozenset[NodeId] = frozenset()
        #: Steps done now, and steps in the last recorded checkpoint.
        self.steps = 0.0
        self.saved_steps = 0.0
        #: All steps ever made (speed x time), and the part of them that was lost with an attempt.
        self.worked_steps = 0.0
        self.lost_steps = 0.0
        #: How often each planned failure has happened.
        self.failed = [0] * len(plan.failures)


#: Maps the steps that a job has done to its speed from there on, and to the step at which that speed ends.
SpeedCurve = Callable[[float], SpeedSegment]


class SimAttempt:
    """One attempt, from its start to its last process."""

    def __init__(
        self, job: JobProgress, number: int, parts: list[HeldDevices], speed_curve: SpeedCurve, costs: AttemptCosts
    ) -> None:
        self.job = job
        self.job_id = job.plan.request.job_id
        self.number = number
        self.parts = parts
        #: The attempt that shares the same accelerators, if any; both then run at co-located speeds.
        self.partner: SimAttempt | None = None
        #: Factor on its speed due to its own data or neighbours, in (0, 1].
        self.attempt_pace = 1.0
        #: Its speed by steps done, alone on its accelerators and on healthy machines.
        self.speed_curve = speed_curve
        self.alone_rate, self.segment_end_steps = speed_curve(job.steps)
        #: Speed on healthy machines, and the present speed.
        self.full_rate = self.alone_rate
        self.rate = self.full_rate * self.pace
        self.costs = costs
        #: Seconds of work before each checkpoint; 0 or None: it takes none.
        self.checkpoint_every_s = costs.checkpoint_every_s
        self.phase = SimAttemptPhase.STARTING
        #: RUNNING only: steps made since this instant are not in `job.steps` yet.
        self.base_at = 0.0
        #: Steps of the job when this attempt began, and the instant at which its ranks were up.
        self.base_steps = job.steps
        self.up_at = inf
        #: Seconds spent making steps.
        self.productive_s = 0.0
        self.next_report_at = inf
        self.next_save_at = inf
        #: RUNNING only: instant since which it has worked without a checkpoint.
        self.working_since = 0.0
        #: Whether the scheduler received a report, and one with a speed; the instant of the last report.
        self.reported = False
        self.speed_reported = False
        self.reported_at = -inf
        self.timer: Timer | None = None
        #: Number of its machines that are cut off, and the events that could not be delivered meanwhile.
        self.unreachable = 0
        self.undelivered: list[Event] = []

    @property
    def pace(self) -> float:
        """The factor on its speed: that of its slowest machine times its own."""
        return min([node.pace for node, _ in self.parts]) * self.attempt_pace


class AttemptSimulator:
    """Simulates the lives of attempts. Methods that timers call return the events that the scheduler receives."""

    def __init__(self, machines: SimulatedMachines, model: WorldParameters, streams: RandomStreams) -> None:
        self._engine = machines.engine
        self._machines = machines
        self._model = model
        self._reports = streams.stream("reports")

    # -- called by the world

    def begin(self, now: float, attempt: SimAttempt) -> None:
        """Starts the attempt's processes; it holds its accelerators from now on."""
        self._hold_devices(attempt)
        attempt.timer = self._engine.schedule(now + attempt.costs.start_s, self._ranks_up, attempt)

    def resume(self, now: float, attempt: SimAttempt) -> None:
        """Continues with an attempt that makes steps already."""
        self._hold_devices(attempt)
        attempt.up_at = now
        self._make_steps(now, attempt)

    def _hold_devices(self, attempt: SimAttempt) -> None:
        attempt.job.attempt = attempt
        beside = None if attempt.partner is None else attempt.partner.job_id
        self._machines.hold(attempt.job_id, attempt.parts, beside)

    def set_rate(self, now: float, attempt: SimAttempt, full_rate: float) -> None:
        """Continues at another speed (`full_rate`: on healthy machines), or at a changed pace of its machines."""
        self._settle(now, attempt)
        attempt.full_rate = full_rate
        attempt.rate = full_rate * attempt.pace
        if attempt.phase is SimAttemptPhase.RUNNING:
            self._await_next(attempt)

    def checkpoint_every(self, now: float, attempt: SimAttempt, every_s: float | None) -> None:
        """Sets the seconds of work before each checkpoint, if its kind leaves that to the scheduler."""
        if attempt.costs.checkpoint_every_s is not None or attempt.costs.checkpoint_s is None:
            return
        attempt.checkpoint_every_s = every_s
        if attempt.phase is SimAttemptPhase.RUNNING:
            self._settle(now, attempt)
            attempt.next_save_at = max(attempt.working_since + every_s, now) if every_s else inf
            self._await_next(attempt)

    def stop(self, now: float, attempt: SimAttempt, grace_s: float) -> None:
        """Makes the attempt save and stop, and kills it if that takes longer than the grace period."""
        if attempt.phase in (SimAttemptPhase.STOPPING, SimAttemptPhase.DEAD):
            return
        phase, checkpoint_s = attempt.phase, attempt.costs.checkpoint_s
        saved_at = now + (checkpoint_s or 0.0)
        if phase is SimAttemptPhase.SAVING and attempt.timer is not None:
            saved_at = attempt.timer.at  # the checkpoint that it is writing counts
        self._settle(now, attempt)
        attempt.phase = SimAttemptPhase.STOPPING
        if phase in (SimAttemptPhase.STARTING, SimAttemptPhase.WARMING_UP) or checkpoint_s is None:
            self._set_timer(attempt, now, self._killed(SIGTERM))
        elif saved_at - now <= grace_s:
            self._set_timer(attempt, saved_at, self._saved_to_stop)
        else:
            self._set_timer(attempt, now + grace_s, self._killed(SIGKILL))

    def kill(self, at: float, attempt: SimAttempt) -> None:
        """Ends the attempt's processes without a report; it holds its accelerators until the scheduler knows."""
        attempt.undelivered = []
        if attempt.phase is SimAttemptPhase.DEAD:
            return
        self._settle(at, attempt)
        attempt.phase = SimAttemptPhase.DEAD
        if attempt.timer is not None:
            self._engine.cancel(attempt.timer)

    def release(self, attempt: SimAttempt) -> None:
        """Frees the attempt's accelerators once the scheduler knows that it has ended."""
        if attempt.timer is not None:
            self._engine.cancel(attempt.timer)
        if attempt.partner is not None:
            attempt.partner.partner = None
            self.set_rate(self._engine.now, attempt.partner, attempt.partner.alone_rate)
            attempt.partner = None
        attempt.job.attempt = None
        self._machines.free(attempt.job_id, attempt.parts)

    # -- arrivals

    def arrived(self, at: float) -> Iterable[Event]:
        """Called after all jobs of one instant were submitted. Only time models in rounds react."""
        return ()

    def no_more_arrivals(self) -> None:
        """Called once, when the workload has no more jobs."""

    # -- called by timers

    def _ranks_up(self, at: float, attempt: SimAttempt) -> Iterable[Event]:
        attempt.phase = SimAttemptPhase.WARMING_UP
        attempt.up_at = at
        if attempt.costs.warm_up_s > 0:
            self._set_timer(attempt, at + attempt.costs.warm_up_s, self._warmed_up)
        else:
            self._make_steps(at, attempt)
        return self._deliver(attempt, AttemptStarted(at, attempt.job_id, attempt.number))

    def _warmed_up(self, at: float, attempt: SimAttempt) -> Iterable[Event]:
        self._make_steps(at, attempt)
        return ()

    def _make_steps(self, at: float, attempt: SimAttempt) -> None:
        """Starts to make steps, or continues after a checkpoint."""
        attempt.phase = SimAttemptPhase.RUNNING
        if attempt.next_report_at == inf and self._model.report_s < inf:
            # Every `report_s`, since an instant that is the machine's.
            every_s = self._model.report_s
            first_at = attempt.up_at + (attempt.costs.first_report_s or 0.0) % every_s
            attempt.next_report_at = first_at + ((at - first_at) // every_s + 1) * every_s
        attempt.base_at = at
        attempt.working_since = at
        if attempt.checkpoint_every_s and attempt.costs.checkpoint_s is not None:
            attempt.next_save_at = at + attempt.checkpoint_every_s
        self._await_next(attempt)

    def _await_next(self, attempt: SimAttempt) -> None:
        """Sets the timer for the next event: a report, a checkpoint, a failure, another speed, or the end."""
        act: Action = self._finished
        target = attempt.job.plan.steps
        for index, failure in enumerate(attempt.job.plan.failures):
            due = failure.times is None or attempt.job.failed[index] < failure.times
            if due and attempt.job.steps <= failure.at_steps < target:
                target, act = failure.at_steps, self._failing(index, failure)
        if attempt.job.steps < attempt.segment_end_steps < target:
            target, act = attempt.segment_end_steps, self._segment_ended
        at = attempt.base_at + (target - attempt.job.steps) / attempt.rate if attempt.rate > 0 else inf
        if attempt.next_save_at < at:
            at, act = attempt.next_save_at, self._save
        if attempt.next_report_at < at:
            at, act = attempt.next_report_at, self._report
        if at < inf:
            self._set_timer(attempt, max(at, self._engine.now), act)

    def _set_timer(self, attempt: SimAttempt, at: float, act: Action) -> None:
        if attempt.timer is not None:
            self._engine.cancel(attempt.timer)
        attempt.timer = self._engine.schedule(at, act, attempt)

    def _settle(self, at: float, attempt: SimAttempt) -> None:
        """Adds the steps made until now to the job's counter."""
        if attempt.phase is SimAttemptPhase.RUNNING:
            made_s = at - attempt.base_at
            attempt.base_at = at
            attempt.productive_s += made_s
            attempt.job.worked_steps += made_s * attempt.rate
            attempt.job.steps += made_s * attempt.rate

    def _segment_ended(self, at: float, attempt: SimAttempt) -> Iterable[Event]:
        """Changes the speed at this step."""
        self._settle(at, attempt)
        attempt.job.steps = attempt.segment_end_steps  # exact, without a rounding error
        attempt.alone_rate, attempt.segment_end_steps = attempt.speed_curve(attempt.job.steps)
        if attempt.partner is None:
            self.set_rate(at, attempt, attempt.alone_rate)
        else:
            self._await_next(attempt)
        return ()

    def _report(self, at: float, attempt: SimAttempt) -> Iterable[Event]:
        self._settle(at, attempt)
        attempt.next_report_at = at + self._model.report_s
        self._await_next(attempt)
        return self._deliver(attempt, self._progress(at, attempt)) if self._is_forwarded(at, attempt) else ()

    def _is_forwarded(self, at: float, attempt: SimAttempt) -> bool:
        if not attempt.reported or (not attempt.speed_reported and self._windows(attempt)):
            return attempt.job.steps - attempt.base_steps >= 1.0
        return at + 1e-9 >= attempt.reported_at + self._model.forward_every_s

    def _windows(self, attempt: SimAttempt) -> int:
        """Number of windows of steps measured so far."""
        measured_s = attempt.productive_s - self._model.unmeasured_steps / attempt.rate if attempt.rate > 0 else 0.0
        return max(0, int(measured_s / self._model.window_s + 1e-9))

    def _progress(self, at: float, attempt: SimAttempt) -> AttemptProgressed:
        samples = self._windows(attempt)
        rate = attempt.rate * (1.0 + self._reports.gauss(0.0, self._model.report_noise)) if samples else None
        start_s = None if attempt.reported else attempt.costs.start_s + attempt.costs.warm_up_s
        attempt.reported, attempt.reported_at = True, at
        attempt.speed_reported = attempt.speed_reported or samples > 0
        saves = attempt.job.plan.request.unproven and attempt.costs.checkpoint_s is not None
        return AttemptProgressed(at, attempt.job_id, attempt.number, attempt.job.steps, rate, samples, start_s, saves)

    def _save(self, at: float, attempt: SimAttempt) -> Iterable[Event]:
        self._settle(at, attempt)
        attempt.phase = SimAttemptPhase.SAVING
        attempt.next_save_at = inf
        self._set_timer(attempt, at + (attempt.costs.checkpoint_s or 0.0), self._saved)
        return ()

    def _saved(self, at: float, attempt: SimAttempt) -> Iterable[Event]:
        self._make_steps(at, attempt)
        return self._deliver(attempt, self._checkpoint(at, attempt))

    def _checkpoint(self, at: float, attempt: SimAttempt) -> CheckpointRecorded:
        took_s = attempt.costs.checkpoint_s or 0.0
        return CheckpointRecorded(at, attempt.job_id, attempt.number, attempt.job.steps, took_s)

    def _finished(self, at: float, attempt: SimAttempt) -> Iterable[Event]:
        self._settle(at, attempt)
        attempt.job.steps = attempt.job.plan.steps  # exact, without a rounding error
        return self._exit(at, attempt, exit_code=0)

    def _failing(self, index: int, failure: PlannedFailure) -> Action:
        def fail(at: float, attempt: SimAttempt) -> Iterable[Event]:
            self._settle(at, attempt)
            attempt.job.steps = failure.at_steps
            attempt.job.failed[index] += 1
            return self._exit(at, attempt, exit_code=failure.exit_code)

        return fail

    def _saved_to_stop(self, at: float, attempt: SimAttempt) -> Iterable[Event]:
        return (
            *self._deliver(attempt, self._checkpoint(at, attempt)),
            *self._exit(at, attempt, exit_code=EXIT_CHECKPOINTED),
        )

    def _stopped_at_once(self, at: float, attempt: SimAttempt) -> Iterable[Event]:
        """Ends an attempt that saves in no time, and has done so where it made steps."""
        job, job_id = attempt.job, attempt.job_id
        self.release(attempt)
        ended = AttemptEnded(at, job_id, attempt.number, EndCause.EXITED, EXIT_CHECKPOINTED, steps=job.steps)
        if job.steps == job.saved_steps:
            return (ended,)
        return (CheckpointRecorded(at, job_id, attempt.number, job.steps), ended)

    def _exit(self, at: float, attempt: SimAttempt, exit_code: int) -> Iterable[Event]:
        """Exits after the seconds that its processes take to end."""
        if attempt.costs.exit_s <= 0:
            return self._ended(at, attempt, exit_code=exit_code)
        attempt.phase = SimAttemptPhase.STOPPING

        def gone(at: float, attempt: SimAttempt) -> Iterable[Event]:
            return self._ended(at, attempt, exit_code=exit_code)

        self._set_timer(attempt, at + attempt.costs.exit_s, gone)
        return ()

    def _killed(self, signal: int) -> Action:
        def killed(at: float, attempt: SimAttempt) -> Iterable[Event]:
            return self._ended(at, attempt, signal=signal)

        return killed

    def _ended(
        self, at: float, attempt: SimAttempt, exit_code: int | None = None, signal: int | None = None
    ) -> Iterable[Event]:
        """Ends the attempt with its last process: returns the last events, and frees the accelerators."""
        attempt.phase = SimAttemptPhase.DEAD  # also where nobody hears of it yet
        job_id = attempt.job_id
        node_id = attempt.parts[0][0].node_id if exit_code not in (0, EXIT_CHECKPOINTED) else None
        last: list[Event] = []
        if attempt.productive_s > 0 and self._model.report_s < inf:
            last.append(self._progress(at, attempt))
        last.append(
            AttemptEnded(at, job_id, attempt.number, EndCause.EXITED, exit_code, signal, node_id, attempt.job.steps)
        )
        if not attempt.unreachable:
            self.release(attempt)
        return self._deliver(attempt, *last)

    def _deliver(self, attempt: SimAttempt, *events: Event) -> Iterable[Event]:
        """Returns the events to deliver now; while a machine is cut off, keeps them for later and returns none."""
        if attempt.unreachable:
            attempt.undelivered.extend(events)
            return ()
        return events
