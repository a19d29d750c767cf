"""The life of a simulated attempt: start, warm-up, steps, reports, checkpoints, exit.

Progress is exact: between two events an attempt makes steps at one rate, so nothing is computed in between. Who starts
and stops attempts is `simulator.world`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from math import inf

from scheduler.core.events import AttemptEnded, AttemptProgressed, AttemptStarted, CheckpointRecorded, EndCause, Event
from simulator.engine import Action, Engine, RandomStreams, Timer
from simulator.ground_truth import AttemptCosts, SpeedSegment
from simulator.machines import HeldDevices, SimulatedMachines
from simulator.simulated_jobs import PlannedFailure, SimulatedJob
from walras.cluster import NodeId
from walras.contract import EXIT_CHECKPOINTED, SIGKILL

SIGTERM = 15


@dataclass(frozen=True, slots=True)
class WorldParameters:
    """How the world behaves where nothing goes wrong. Everything that is not here comes from the truth."""

    #: A running attempt reports its steps this often; inf: never (policies that need no progress).
    report_s: float = inf
    #: Of these reports the scheduler hears the first, the first that knows a speed, and then one in this long.
    forward_every_s: float = 0.0
    #: Length of one window of steps that a job measures its speed over, and steps after a start that are not measured.
    window_s: float = 1.0
    unmeasured_steps: float = 0.0
    #: Standard deviation of the logarithm of what an attempt's start and exit take against the kind's costs.
    cost_noise: float = 0.0
    #: Standard deviation of the logarithm of an attempt's speed against the table.
    speed_noise: float = 0.0
    #: Relative standard deviation of a reported speed against the attempt's own.
    report_noise: float = 0.0
    #: Command to answer, per machine of a gang.
    prepare_s: float = 0.0
    #: Part of starts and preparations that a machine refuses.
    refused: float = 0.0


class SimAttemptPhase(Enum):
    STARTING = "starting"
    #: All ranks are up; the first step has not begun.
    WARMING_UP = "warming up"
    RUNNING = "running"
    #: Writes a checkpoint and goes on.
    SAVING = "saving"
    #: Was told to stop, or has nothing left to do.
    STOPPING = "stopping"
    #: Its machine died; nobody knows yet.
    DEAD = "dead"


class JobProgress:
    """A job that has been submitted and has not ended."""

    __slots__ = ("failed", "last_nodes", "lost_steps", "plan", "run", "saved_steps", "steps", "worked_steps")

    def __init__(self, plan: SimulatedJob) -> None:
        self.plan = plan
        self.run: SimAttempt | None = None
        #: Machines of its newest attempt, where it costs something to change them.
        self.last_nodes: frozenset[NodeId] = frozenset()
        #: Steps behind it now, and by its last recorded checkpoint.
        self.steps = 0.0
        self.saved_steps = 0.0
        #: Steps ever made (speed x time), and those of them that were lost with an attempt.
        self.worked_steps = 0.0
        self.lost_steps = 0.0
        #: How often each planned failure happened.
        self.failed = [0] * len(plan.failures)


#: Steps behind a job -> its speed from there on, and how far that lasts.
SpeedCurve = Callable[[float], SpeedSegment]


class SimAttempt:
    """One attempt, from its start to its last process."""

    __slots__ = (
        "alone_rate",
        "attempt",
        "attempt_pace",
        "base_at",
        "base_steps",
        "costs",
        "full_rate",
        "job",
        "next_report_at",
        "next_save_at",
        "partner",
        "parts",
        "phase",
        "productive_s",
        "rate",
        "reported",
        "reported_at",
        "segment_end_steps",
        "speed_curve",
        "speed_reported",
        "timer",
        "undelivered",
        "unreachable",
        "up_at",
    )

    def __init__(
        self, job: JobProgress, attempt: int, parts: list[HeldDevices], speed_curve: SpeedCurve, costs: AttemptCosts
    ) -> None:
        self.job = job
        self.attempt = attempt
        self.parts = parts
        #: The attempt on the same accelerators, if two share them: speeds are others then than alone.
        self.partner: SimAttempt | None = None
        #: Part of its speed that it works at whatever its machines do.
        self.attempt_pace = 1.0
        #: Its speed by the steps behind the job: alone on its accelerators, on machines that are well.
        self.speed_curve = speed_curve
        self.alone_rate, self.segment_end_steps = speed_curve(job.steps)
        #: Speed as it is, and as it would be on machines that are well.
        self.full_rate = self.alone_rate
        self.rate = self.full_rate * self.pace
        self.costs = costs
        self.phase = SimAttemptPhase.STARTING
        #: Since when steps are made that `job.steps` does not hold yet (RUNNING only).
        self.base_at = 0.0
        #: Steps behind the job when this attempt began, and when its ranks were up.
        self.base_steps = job.steps
        self.up_at = inf
        #: Seconds in which steps were made.
        self.productive_s = 0.0
        self.next_report_at = inf
        self.next_save_at = inf
        #: What the scheduler has heard: anything, a speed, and when it heard last.
        self.reported = False
        self.speed_reported = False
        self.reported_at = -inf
        self.timer: Timer | None = None
        #: Machines of it that nobody reaches, and what it would have told meanwhile.
        self.unreachable = 0
        self.undelivered: list[Event] = []

    @property
    def pace(self) -> float:
        """A gang goes at the pace of its slowest machine, and at its own."""
        return min([node.pace for node, _ in self.parts]) * self.attempt_pace


class AttemptSimulator:
    """Lets attempts live. Its methods named in the past tense are what happens to them; they answer what is told."""

    def __init__(
        self, engine: Engine, machines: SimulatedMachines, model: WorldParameters, streams: RandomStreams
    ) -> None:
        self._engine = engine
        self._machines = machines
        self._model = model
        self._reports = streams.stream("reports")

    # -- what is done to an attempt

    def begin(self, now: float, run: SimAttempt) -> None:
        """Its processes start; it holds its accelerators from now on."""
        self._hold_devices(run)
        run.timer = self._engine.schedule(now + run.costs.start_s, self._ranks_up, run)

    def _hold_devices(self, run: SimAttempt) -> None:
        run.job.run = run
        beside = None if run.partner is None else run.partner.job.plan.request.job_id
        self._machines.hold(run.job.plan.request.job_id, run.parts, beside)

    def set_rate(self, now: float, run: SimAttempt, full_rate: float) -> None:
        """It goes on at another speed (`full_rate`: on machines that are well), or its machines at another pace."""
        self._settle(now, run)
        run.full_rate = full_rate
        run.rate = full_rate * run.pace
        if run.phase is SimAttemptPhase.RUNNING:
            self._await_next(run)

    def stop(self, now: float, run: SimAttempt, grace_s: float) -> None:
        """It is asked to save and stop, and killed if that takes longer than the grace."""
        if run.phase in (SimAttemptPhase.STOPPING, SimAttemptPhase.DEAD):
            return
        phase, checkpoint_s = run.phase, run.costs.checkpoint_s
        saved_at = now + (checkpoint_s or 0.0)
        if phase is SimAttemptPhase.SAVING and run.timer is not None:
            saved_at = run.timer.at  # the checkpoint that it is writing will do
        self._settle(now, run)
        run.phase = SimAttemptPhase.STOPPING
        if phase in (SimAttemptPhase.STARTING, SimAttemptPhase.WARMING_UP) or checkpoint_s is None:
            self._set_timer(run, now, self._killed(SIGTERM))
        elif saved_at - now <= grace_s:
            self._set_timer(run, saved_at, self._saved_to_stop)
        else:
            self._set_timer(run, now + grace_s, self._killed(SIGKILL))

    def kill(self, at: float, run: SimAttempt) -> None:
        """Its processes are gone and can tell nobody; it holds its accelerators until that is known."""
        if run.phase is SimAttemptPhase.DEAD:
            return
        self._settle(at, run)
        run.phase = SimAttemptPhase.DEAD
        run.undelivered = []
        if run.timer is not None:
            self._engine.cancel(run.timer)

    def release(self, run: SimAttempt) -> None:
        """It is known to be over: its accelerators are free."""
        if run.timer is not None:
            self._engine.cancel(run.timer)
        if run.partner is not None:
            run.partner.partner = None
            self.set_rate(self._engine.now, run.partner, run.partner.alone_rate)
            run.partner = None
        run.job.run = None
        self._machines.free(run.job.plan.request.job_id, run.parts)

    # -- what comes from outside

    def arrived(self, at: float) -> Iterable[Event]:
        """Jobs have been submitted, all that are at this instant. Attempts of their own pace do not care."""
        return ()

    def no_more_arrivals(self) -> None:
        """The workload is at its end."""

    # -- what happens to it

    def _ranks_up(self, at: float, run: SimAttempt) -> Iterable[Event]:
        run.phase = SimAttemptPhase.WARMING_UP
        run.up_at = at
        if run.costs.warm_up_s > 0:
            self._set_timer(run, at + run.costs.warm_up_s, self._warmed_up)
        else:
            self._make_steps(at, run)
        return self._deliver(run, AttemptStarted(at, run.job.plan.request.job_id, run.attempt))

    def _warmed_up(self, at: float, run: SimAttempt) -> Iterable[Event]:
        self._make_steps(at, run)
        return ()

    def _make_steps(self, at: float, run: SimAttempt) -> None:
        """(Again) makes steps, from now."""
        run.phase = SimAttemptPhase.RUNNING
        if run.next_report_at == inf and self._model.report_s < inf:
            # Reports keep the beat that began with the ranks.
            beats = (at - run.up_at) // self._model.report_s + 1
            run.next_report_at = run.up_at + beats * self._model.report_s
        run.base_at = at
        if run.costs.checkpoint_every_s and run.costs.checkpoint_s is not None:
            run.next_save_at = at + run.costs.checkpoint_every_s
        self._await_next(run)

    def _await_next(self, run: SimAttempt) -> None:
        """Set the timer for whatever comes first: a report, a checkpoint, a failure, the end."""
        act: Action = self._finished
        target = run.job.plan.steps
        for index, failure in enumerate(run.job.plan.failures):
            due = failure.times is None or run.job.failed[index] < failure.times
            if due and run.job.steps <= failure.at_steps < target:
                target, act = failure.at_steps, self._failing(index, failure)
        if run.job.steps < run.segment_end_steps < target:
            target, act = run.segment_end_steps, self._segment_ended
        at = run.base_at + (target - run.job.steps) / run.rate if run.rate > 0 else inf
        if run.next_save_at < at:
            at, act = run.next_save_at, self._save
        if run.next_report_at < at:
            at, act = run.next_report_at, self._report
        if at < inf:
            self._set_timer(run, max(at, self._engine.now), act)

    def _set_timer(self, run: SimAttempt, at: float, act: Action) -> None:
        if run.timer is not None:
            self._engine.cancel(run.timer)
        run.timer = self._engine.schedule(at, act, run)

    def _settle(self, at: float, run: SimAttempt) -> None:
        """Put the steps made until now into the job's counter."""
        if run.phase is SimAttemptPhase.RUNNING:
            made_s = at - run.base_at
            run.base_at = at
            run.productive_s += made_s
            run.job.worked_steps += made_s * run.rate
            run.job.steps += made_s * run.rate

    def _segment_ended(self, at: float, run: SimAttempt) -> Iterable[Event]:
        """It has come so far that its speed is another from here on."""
        self._settle(at, run)
        run.job.steps = run.segment_end_steps  # not a rounding error more or less
        run.alone_rate, run.segment_end_steps = run.speed_curve(run.job.steps)
        if run.partner is None:
            self.set_rate(at, run, run.alone_rate)
        else:
            self._await_next(run)
        return ()

    def _report(self, at: float, run: SimAttempt) -> Iterable[Event]:
        self._settle(at, run)
        run.next_report_at = at + self._model.report_s
        self._await_next(run)
        return self._deliver(run, self._progress(at, run)) if self._is_forwarded(at, run) else ()

    def _is_forwarded(self, at: float, run: SimAttempt) -> bool:
        if not run.reported or (not run.speed_reported and self._windows(run)):
            return run.job.steps - run.base_steps >= 1.0
        return at + 1e-9 >= run.reported_at + self._model.forward_every_s

    def _windows(self, run: SimAttempt) -> int:
        """Windows of steps measured so far."""
        measured_s = run.productive_s - self._model.unmeasured_steps / run.rate if run.rate > 0 else 0.0
        return max(0, int(measured_s / self._model.window_s + 1e-9))

    def _progress(self, at: float, run: SimAttempt) -> AttemptProgressed:
        samples = self._windows(run)
        rate = run.rate * (1.0 + self._reports.gauss(0.0, self._model.report_noise)) if samples else None
        start_s = None if run.reported else run.costs.start_s + run.costs.warm_up_s
        run.reported, run.reported_at = True, at
        run.speed_reported = run.speed_reported or samples > 0
        return AttemptProgressed(at, run.job.plan.request.job_id, run.attempt, run.job.steps, rate, samples, start_s)

    def _save(self, at: float, run: SimAttempt) -> Iterable[Event]:
        self._settle(at, run)
        run.phase = SimAttemptPhase.SAVING
        run.next_save_at = inf
        self._set_timer(run, at + (run.costs.checkpoint_s or 0.0), self._saved)
        return ()

    def _saved(self, at: float, run: SimAttempt) -> Iterable[Event]:
        self._make_steps(at, run)
        return self._deliver(run, self._checkpoint(at, run))

    def _checkpoint(self, at: float, run: SimAttempt) -> CheckpointRecorded:
        took_s = run.costs.checkpoint_s or 0.0
        return CheckpointRecorded(at, run.job.plan.request.job_id, run.attempt, run.job.steps, took_s)

    def _finished(self, at: float, run: SimAttempt) -> Iterable[Event]:
        self._settle(at, run)
        run.job.steps = run.job.plan.steps  # not a rounding error more or less
        return self._exit(at, run, exit_code=0)

    def _failing(self, index: int, failure: PlannedFailure) -> Action:
        def fail(at: float, run: SimAttempt) -> Iterable[Event]:
            self._settle(at, run)
            run.job.steps = failure.at_steps
            run.job.failed[index] += 1
            return self._exit(at, run, exit_code=failure.exit_code)

        return fail

    def _saved_to_stop(self, at: float, run: SimAttempt) -> Iterable[Event]:
        return (*self._deliver(run, self._checkpoint(at, run)), *self._exit(at, run, exit_code=EXIT_CHECKPOINTED))

    def _exit(self, at: float, run: SimAttempt, exit_code: int) -> Iterable[Event]:
        """Nothing is left to do; its processes take their time to go."""
        if run.costs.exit_s <= 0:
            return self._ended(at, run, exit_code=exit_code)
        run.phase = SimAttemptPhase.STOPPING

        def gone(at: float, run: SimAttempt) -> Iterable[Event]:
            return self._ended(at, run, exit_code=exit_code)

        self._set_timer(run, at + run.costs.exit_s, gone)
        return ()

    def _killed(self, signal: int) -> Action:
        def killed(at: float, run: SimAttempt) -> Iterable[Event]:
            return self._ended(at, run, signal=signal)

        return killed

    def _ended(
        self, at: float, run: SimAttempt, exit_code: int | None = None, signal: int | None = None
    ) -> Iterable[Event]:
        """The last process is gone: what is told last, and the accelerators are free."""
        job_id = run.job.plan.request.job_id
        node_id = run.parts[0][0].node_id if exit_code not in (0, EXIT_CHECKPOINTED) else None
        last: list[Event] = []
        if run.productive_s > 0 and self._model.report_s < inf:
            last.append(self._progress(at, run))
        last.append(AttemptEnded(at, job_id, run.attempt, EndCause.EXITED, exit_code, signal, node_id, run.job.steps))
        if not run.unreachable:
            self.release(run)
        return self._deliver(run, *last)

    def _deliver(self, run: SimAttempt, *events: Event) -> Iterable[Event]:
        """What the scheduler hears now; while a machine is cut off it hears nothing, and everything later."""
        if run.unreachable:
            run.undelivered.extend(events)
            return ()
        return events
