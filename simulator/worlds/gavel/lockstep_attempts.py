"""Attempts that move in lockstep: a round of whole steps, then all wait for the next round.

The time model of round-based simulators. In a round an attempt makes the whole steps that fit into the round's length,
or those it has left; the round ends with its last attempt, so it is never exactly as long as configured. A job that
completes ends at its own instant. Starts and stops cost nothing. While nothing runs, the clock jumps to the next
arrival.
"""

from collections.abc import Iterable

from scheduler.core.commands import BeginRound
from scheduler.core.events import AttemptEnded, AttemptStarted, EndCause, Event, RoundEnded
from simulator.attempts import AttemptSimulator, SimAttempt, SimAttemptPhase, WorldParameters
from simulator.engine import Engine, RandomStreams
from simulator.machines import SimulatedMachines
from walras.contract import EXIT_CHECKPOINTED
from walras.errors import ConfigError
from walras.job_request import JobId


class LockstepAttempts(AttemptSimulator):
    """Simulates attempts in rounds. Speeds may be noisy; costs, reports and planned failures are not modelled."""

    def __init__(
        self, engine: Engine, machines: SimulatedMachines, model: WorldParameters, streams: RandomStreams
    ) -> None:
        super().__init__(engine, machines, model, streams)
        engine.on_command[BeginRound] = self._begin_round
        #: Attempts under way, in order of start.
        self._runs: dict[JobId, SimAttempt] = {}
        #: Steps of this round by job, and when they are done; completions are reported one by one.
        self._steps: dict[JobId, float] = {}
        self._stops_at: dict[JobId, float] = {}
        self._round_s = 0.0
        #: Nothing runs and the scheduler has nothing to run: jobs that arrive are the next beat.
        self._idle = True
        #: Jobs have arrived since the last beat.
        self._has_arrivals = False
        #: Whether the workload has ended, and whether an idle round has reported that.
        self._arrivals_over = False
        self._idle_reported = False
        self._starting: list[SimAttempt] = []
        self._stopping: list[SimAttempt] = []

    # -- called by the world

    def begin(self, now: float, run: SimAttempt) -> None:
        self._hold_devices(run)
        run.phase = SimAttemptPhase.RUNNING
        self._runs[run.job.plan.request.job_id] = run
        if not self._starting:
            self._engine.schedule(now, self._started)
        self._starting.append(run)

    def set_rate(self, now: float, run: SimAttempt, full_rate: float) -> None:
        run.full_rate = full_rate  # between rounds
        run.rate = full_rate * run.pace

    def stop(self, now: float, run: SimAttempt, grace_s: float) -> None:
        if run.phase is not SimAttemptPhase.RUNNING:
            return
        run.phase = SimAttemptPhase.STOPPING
        del self._runs[run.job.plan.request.job_id]
        if not self._stopping:
            self._engine.schedule(now, self._stopped)
        self._stopping.append(run)

    def kill(self, at: float, run: SimAttempt) -> None:
        self._runs.pop(run.job.plan.request.job_id, None)
        run.phase = SimAttemptPhase.DEAD

    # -- arrivals

    def arrived(self, at: float) -> Iterable[Event]:
        self._has_arrivals = True
        return self._end_round(at) if self._idle else ()

    def no_more_arrivals(self) -> None:
        self._arrivals_over = True

    # -- called by timers and the scheduler

    def _started(self, at: float, _: object) -> Iterable[Event]:
        runs, self._starting = self._starting, []
        return [AttemptStarted(at, run.job.plan.request.job_id, run.attempt) for run in runs]

    def _stopped(self, at: float, _: object) -> Iterable[Event]:
        runs, self._stopping = self._stopping, []
        for run in runs:
            self.release(run)
        return [
            AttemptEnded(
                at, run.job.plan.request.job_id, run.attempt, EndCause.EXITED, EXIT_CHECKPOINTED, steps=run.job.steps
            )
            for run in runs
        ]

    def _begin_round(self, now: float, command: BeginRound) -> None:
        if not self._runs:
            self._wait_for_arrivals(now)
            return
        self._idle_reported, self._round_s = False, command.round_s
        steps, stops_at = {}, {}
        last_at = now
        for job_id, run in self._runs.items():
            made, stop_at = self._round_of(now, run)
            steps[job_id], stops_at[job_id] = made, stop_at
            if stop_at > last_at:
                last_at = stop_at
            if self._completes(run, made):
                self._engine.schedule(stop_at, self._completed, run)
        self._steps, self._stops_at = steps, stops_at
        self._engine.schedule(last_at, self._round_over)

    def _round_of(self, now: float, run: SimAttempt) -> tuple[float, float]:
        """Steps that the attempt makes in the round that begins now, and when it stops."""
        job = run.job
        steps: float = self._whole_steps(run)
        left = job.plan.steps - job.steps
        if left < steps:
            steps = left
        stops_at = now + steps / run.rate
        if run.partner is not None:  # a pair is through with its slower member
            other = run.partner
            others = min(self._whole_steps(other), other.job.plan.steps - other.job.steps)
            stops_at = max(stops_at, now + others / other.rate)
        return steps, stops_at

    def _completes(self, run: SimAttempt, steps: float) -> bool:
        """Whether the job completes with these steps."""
        return steps == run.job.plan.steps - run.job.steps

    def _whole_steps(self, run: SimAttempt) -> int:
        """Steps that fit into a round."""
        steps = int(run.rate * self._round_s)
        if steps < 1:
            job = run.job.plan.request.job_id
            raise ConfigError(f"job {job} makes no step in a round of {self._round_s:g} s", field="rules.round_s")
        return steps

    def _completed(self, at: float, run: SimAttempt) -> Iterable[Event]:
        job, job_id = run.job, run.job.plan.request.job_id
        if run.phase is not SimAttemptPhase.RUNNING:
            return ()
        job.worked_steps += self._steps[job_id]
        job.steps = job.plan.steps
        run.phase = SimAttemptPhase.STOPPING
        del self._runs[job_id]
        self.release(run)
        return (AttemptEnded(at, job_id, run.attempt, EndCause.EXITED, 0, steps=job.steps),)

    def _round_over(self, at: float, _: object) -> Iterable[Event]:
        events: list[Event] = []
        for job_id, run in list(self._runs.items()):
            events.extend(self._count_round(at, run, self._steps[job_id]))
        return (*events, *self._end_round(at))

    def _count_round(self, at: float, run: SimAttempt, steps: float) -> Iterable[Event]:
        """Counts and saves the round's steps; returns further events."""
        job = run.job
        job.steps += steps
        job.worked_steps += steps
        job.saved_steps = job.steps
        return ()

    def _end_round(self, at: float) -> Iterable[Event]:
        """Ends the round: all attempts wait for the scheduler to begin the next one."""
        self._idle = self._has_arrivals = False
        runs = self._runs
        steps, stopped_at = [run.job.steps for run in runs.values()], [self._stops_at[job_id] for job_id in runs]
        return (RoundEnded(at, list(runs), steps, stopped_at),)

    def _wait_for_arrivals(self, now: float) -> None:
        """Nothing runs: the next arrival ends the idle round; the end of the workload is reported once."""
        if self._has_arrivals or (self._arrivals_over and not self._idle_reported):
            self._idle_reported = self._arrivals_over
            self._engine.schedule(now, self._end_idle_round)
        else:
            self._idle = True

    def _end_idle_round(self, at: float, _: object) -> Iterable[Event]:
        return self._end_round(at)
