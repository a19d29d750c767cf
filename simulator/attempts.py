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
    """How the simulated world behaves apart from faults. `GroundTruth` has the speeds and costs of kinds."""

    #: Time between two progress reports of a running attempt; inf: it sends none (for policies that need no progress).
    report_s: float = inf
    #: The scheduler receives the first report, the first one with a speed, and later at most one per this time.
    forward_every_s: float = 0.0
    #: A job measures its speed over windows of this length, and leaves out this number of steps after a start.
    window_s: float = 1.0
    unmeasured_steps: float = 0.0
    #: Standard deviation of log(an attempt's start and exit times / its kind's costs).
    cost_noise: float = 0.0
    #: Standard deviation of log(an attempt's speed / the true speed of its kind).
    speed_noise: float = 0.0
    #: Relative standard deviation of a reported speed around the attempt's own.
    report_noise: float = 0.0
    #: Time between a prepare command and a machine's answer.
    prepare_s: float = 0.0
    #: Probability that a machine refuses a start or a preparation.
    refused: float = 0.0


class SimAttemptPhase(Enum):
    STARTING = "starting"
    #: All ranks are up; the first step has not begun.
    WARMING_UP = "warming up"
    RUNNING = "running"
    #: Writes a checkpoint; steps continue afterwards.
    SAVING = "saving"
    #: Was revoked, or its work is done; its processes are exiting.
    STOPPING = "stopping"
    #: Its machine died; the scheduler does not know yet.
    DEAD = "dead"


class JobProgress:
    """The progress of a job between submission and end."""

    __slots__ = ("failed", "last_nodes", "lost_steps", "plan", "run", "saved_steps", "steps", "worked_steps")

    def __init__(self, plan: SimulatedJob) -> None:
        self.plan = plan
        self.run: SimAttempt | None = None
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
        #: The attempt that shares the same accelerators, if any; both then run at co-located speeds.
        self.partner: SimAttempt | None = None
        #: Factor on its speed for reasons of its own (data, neighbours), in (0, 1].
        self.attempt_pace = 1.0
        #: Its speed by steps done: alone on its accelerators, on healthy machines.
        self.speed_curve = speed_curve
        self.alone_rate, self.segment_end_steps = speed_curve(job.steps)
        #: Speed on healthy machines, and the present speed.
        self.full_rate = self.alone_rate
        self.rate = self.full_rate * self.pace
        self.costs = costs
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

    def __init__(
        self, engine: Engine, machines: SimulatedMachines, model: WorldParameters, streams: RandomStreams
    ) -> None:
        self._engine = engine
        self._machines = machines
        self._model = model
        self._reports = streams.stream("reports")

    # -- called by the world

    def begin(self, now: float, run: SimAttempt) -> None:
        """Starts its processes; it holds its accelerators from now on."""
        self._hold_devices(run)
        run.timer = self._engine.schedule(now + run.costs.start_s, self._ranks_up, run)

    def _hold_devices(self, run: SimAttempt) -> None:
        run.job.run = run
        beside = None if run.partner is None else run.partner.job.plan.request.job_id
        self._machines.hold(run.job.plan.request.job_id, run.parts, beside)

    def set_rate(self, now: float, run: SimAttempt, full_rate: float) -> None:
        """Continues at another speed (`full_rate`: on healthy machines), or at a changed pace of its machines."""
        self._settle(now, run)
        run.full_rate = full_rate
        run.rate = full_rate * run.pace
        if run.phase is SimAttemptPhase.RUNNING:
            self._await_next(run)

    def stop(self, now: float, run: SimAttempt, grace_s: float) -> None:
        """Makes it save and stop, and kills it if that takes longer than the grace period."""
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
        """Ends its processes without a report; it holds its accelerators until the scheduler knows."""
        if run.phase is SimAttemptPhase.DEAD:
            return
        self._settle(at, run)
        run.phase = SimAttemptPhase.DEAD
        run.undelivered = []
        if run.timer is not None:
            self._engine.cancel(run.timer)

    def release(self, run: SimAttempt) -> None:
        """Frees its accelerators: the scheduler knows that it has ended."""
        if run.timer is not None:
            self._engine.cancel(run.timer)
        if run.partner is not None:
            run.partner.partner = None
            self.set_rate(self._engine.now, run.partner, run.partner.alone_rate)
            run.partner = None
        run.job.run = None
        self._machines.free(run.job.plan.request.job_id, run.parts)

    # -- arrivals

    def arrived(self, at: float) -> Iterable[Event]:
        """Called after all jobs of one instant were submitted. Only time models in rounds react."""
        return ()

    def no_more_arrivals(self) -> None:
        """Called once, when the workload has no more jobs."""

    # -- called by timers

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
        """Begins to make steps, or continues after a checkpoint."""
        run.phase = SimAttemptPhase.RUNNING
        if run.next_report_at == inf and self._model.report_s < inf:
            # Reports are sent at multiples of `report_s` after the ranks were up.
            beats = (at - run.up_at) // self._model.report_s + 1
            run.next_report_at = run.up_at + beats * self._model.report_s
        run.base_at = at
        if run.costs.checkpoint_every_s and run.costs.checkpoint_s is not None:
            run.next_save_at = at + run.costs.checkpoint_every_s
        self._await_next(run)

    def _await_next(self, run: SimAttempt) -> None:
        """Sets the timer for the next event: a report, a checkpoint, a failure, another speed, or the end."""
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
        """Adds the steps made until now to the job's counter."""
        if run.phase is SimAttemptPhase.RUNNING:
            made_s = at - run.base_at
            run.base_at = at
            run.productive_s += made_s
            run.job.worked_steps += made_s * run.rate
            run.job.steps += made_s * run.rate

    def _segment_ended(self, at: float, run: SimAttempt) -> Iterable[Event]:
        """The speed changes at this step."""
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
        """Number of windows of steps measured so far."""
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
        """Exits after the time that its processes take to end."""
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
        """The last process has ended: returns the last events, and frees the accelerators."""
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
        """Returns the events to deliver now; while a machine is cut off, keeps them for later and returns none."""
        if run.unreachable:
            run.undelivered.extend(events)
            return ()
        return events
