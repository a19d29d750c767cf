"""Attempts that run in lockstep: each makes whole steps in a round, and then all wait for the next round.

This is the time model of round-based simulators. In a round an attempt makes as many whole steps as fit into the
round's length, or as are left. The round ends with its last attempt, so its length differs from the configured one. A
job that completes ends at its own instant. Starts and stops cost nothing. While nothing runs, the clock jumps to the
next arrival.
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
        #: Running attempts, in order of start.
        self._live: dict[JobId, SimAttempt] = {}
        #: Steps of each job in this round, and when they are done; completions are reported one by one.
        self._steps: dict[JobId, float] = {}
        self._stops_at: dict[JobId, float] = {}
        self._round_s = 0.0
        #: Nothing runs and the scheduler has nothing to run: the next arrivals end the idle round.
        self._idle = True
        #: Whether jobs have arrived since the last round ended.
        self._has_arrivals = False
        #: Whether the workload has ended, and whether an idle round has reported that.
        self._arrivals_over = False
        self._idle_reported = False
        self._starting: list[SimAttempt] = []
        self._stopping: list[SimAttempt] = []

    # -- called by the world

    def begin(self, now: float, attempt: SimAttempt) -> None:
        self._hold_devices(attempt)
        attempt.phase = SimAttemptPhase.RUNNING
        self._live[attempt.job_id] = attempt
        if not self._starting:
            self._engine.schedule(now, self._started)
        self._starting.append(attempt)

    def set_rate(self, now: float, attempt: SimAttempt, full_rate: float) -> None:
        attempt.full_rate = full_rate  # called only between rounds
        attempt.rate = full_rate * attempt.pace

    def stop(self, now: float, attempt: SimAttempt, grace_s: float) -> None:
        if attempt.phase is not SimAttemptPhase.RUNNING:
            return
        attempt.phase = SimAttemptPhase.STOPPING
        del self._live[attempt.job_id]
        if not self._stopping:
            self._engine.schedule(now, self._stopped)
        self._stopping.append(attempt)

    def kill(self, at: float, attempt: SimAttempt) -> None:
        self._live.pop(attempt.job_id, None)
        attempt.phase = SimAttemptPhase.DEAD

    # -- arrivals

    def arrived(self, at: float) -> Iterable[Event]:
        self._has_arrivals = True
        return self._end_round(at) if self._idle else ()

    def no_more_arrivals(self) -> None:
        self._arrivals_over = True

    # -- called by timers and the scheduler

    def _started(self, at: float, _: object) -> Iterable[Event]:
        attempts, self._starting = self._starting, []
        return [AttemptStarted(at, attempt.job_id, attempt.number) for attempt in attempts]

    def _stopped(self, at: float, _: object) -> Iterable[Event]:
        attempts, self._stopping = self._stopping, []
        for attempt in attempts:
            self.release(attempt)
        return [
            AttemptEnded(
                at,
                attempt.job_id,
                attempt.number,
                EndCause.EXITED,
                EXIT_CHECKPOINTED,
                steps=attempt.job.steps,
            )
            for attempt in attempts
        ]

    def _begin_round(self, now: float, command: BeginRound) -> None:
        if not self._live:
            self._wait_for_arrivals(now)
            return
        self._idle_reported, self._round_s = False, command.round_s
        steps, stops_at = {}, {}
        last_at = now
        for job_id, attempt in self._live.items():
            made, stop_at = self._round_of(now, attempt)
            steps[job_id], stops_at[job_id] = made, stop_at
            if stop_at > last_at:
                last_at = stop_at
            if self._completes(attempt, made):
                self._engine.schedule(stop_at, self._completed, attempt)
        self._steps, self._stops_at = steps, stops_at
        self._engine.schedule(last_at, self._round_over)

    def _round_of(self, now: float, attempt: SimAttempt) -> tuple[float, float]:
        """Returns the steps that the attempt makes in the round that begins now, and the instant at which it stops."""
        job = attempt.job
        steps: float = self._whole_steps(attempt)
        left = job.plan.steps - job.steps
        if left < steps:
            steps = left
        stops_at = now + steps / attempt.rate
        if attempt.partner is not None:  # a pair makes the steps for which its slower member has time
            other = attempt.partner
            others = min(self._whole_steps(other), other.job.plan.steps - other.job.steps)
            stops_at = max(stops_at, now + others / other.rate)
        return steps, stops_at

    def _completes(self, attempt: SimAttempt, steps: float) -> bool:
        return steps == attempt.job.plan.steps - attempt.job.steps

    def _whole_steps(self, attempt: SimAttempt) -> int:
        """Returns the steps that fit into a round. Raises ConfigError if none does."""
        steps = int(attempt.rate * self._round_s)
        if steps < 1:
            job = attempt.job_id
            raise ConfigError(f"job {job} makes no step in a round of {self._round_s:g} s", field="rules.round_s")
        return steps

    def _completed(self, at: float, attempt: SimAttempt) -> Iterable[Event]:
        job, job_id = attempt.job, attempt.job_id
        if attempt.phase is not SimAttemptPhase.RUNNING:
            return ()
        job.worked_steps += self._steps[job_id]
        job.steps = job.plan.steps
        attempt.phase = SimAttemptPhase.STOPPING
        del self._live[job_id]
        self.release(attempt)
        return (AttemptEnded(at, job_id, attempt.number, EndCause.EXITED, 0, steps=job.steps),)

    def _round_over(self, at: float, _: object) -> Iterable[Event]:
        events: list[Event] = []
        for job_id, attempt in list(self._live.items()):
            events.extend(self._count_round(at, attempt, self._steps[job_id]))
        return (*events, *self._end_round(at))

    def _count_round(self, at: float, attempt: SimAttempt, steps: float) -> Iterable[Event]:
        """Counts and saves the round's steps; returns further events."""
        job = attempt.job
        job.steps += steps
        job.worked_steps += steps
        job.saved_steps = job.steps
        return ()

    def _end_round(self, at: float) -> Iterable[Event]:
        """Ends the round: all attempts wait for the scheduler to begin the next one."""
        self._idle = self._has_arrivals = False
        attempts = self._live
        steps, stopped_at = (
            [attempt.job.steps for attempt in attempts.values()],
            [self._stops_at[job_id] for job_id in attempts],
        )
        return (RoundEnded(at, list(attempts), steps, stopped_at),)

    def _wait_for_arrivals(self, now: float) -> None:
        """Waits for arrivals: the next one ends the idle round. The end of the workload is reported once."""
        if self._has_arrivals or (self._arrivals_over and not self._idle_reported):
            self._idle_reported = self._arrivals_over
            self._engine.schedule(now, self._end_idle_round)
        else:
            self._idle = True

    def _end_idle_round(self, at: float, _: object) -> Iterable[Event]:
        return self._end_round(at)
