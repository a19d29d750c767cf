"""Attempts in steps of a fixed length: the scheduler decides at the end of each step, and never in between.

This is the time model of the Pollux artifact. Steps are counted from time 0, so the scheduler first sees a job at the
end of the step in which it was submitted. An attempt first waits for its restart, then trains; a job ends at its own
instant. While there is no job, the clock jumps to the end of the step of the next arrival.
"""

from collections.abc import Iterable, Mapping
from math import ceil

from scheduler.core.commands import BeginRound
from scheduler.core.events import AttemptEnded, AttemptStarted, CheckpointRecorded, EndCause, Event, RoundEnded
from simulator.attempts import AttemptSimulator, SimAttempt, SimAttemptPhase, WorldParameters
from simulator.engine import Engine, RandomStreams
from simulator.goodput.application import GangLayout
from simulator.machines import SimulatedMachines
from simulator.worlds.pollux.pollux_training import PolluxTraining
from walras.contract import EXIT_CHECKPOINTED
from walras.job_request import JobId, Kind


class SteppedAttempts(AttemptSimulator):
    """Simulates attempts in steps. Reports, noise, periodic checkpoints and planned failures are not modelled."""

    def __init__(
        self,
        engine: Engine,
        machines: SimulatedMachines,
        model: WorldParameters,
        streams: RandomStreams,
        *,
        trainings: Mapping[Kind, PolluxTraining],
        step_s: float,
    ) -> None:
        super().__init__(engine, machines, model, streams)
        engine.on_command[BeginRound] = self._begin_step
        self._trainings = trainings
        self._step_s = step_s
        #: Running attempts in order of start, and the steps that each job will have done by the end of this step.
        self._live: dict[JobId, SimAttempt] = {}
        self._reached: dict[JobId, float] = {}
        #: Nothing runs: the next arrival starts the clock.
        self._idle = True

    # -- called by the world

    def begin(self, now: float, attempt: SimAttempt) -> None:
        self._hold_devices(attempt)
        attempt.base_at, attempt.up_at = now, now + attempt.costs.start_s
        self._live[attempt.job_id] = attempt
        attempt.timer = self._engine.schedule(attempt.up_at, self._ranks_up, attempt)

    def stop(self, now: float, attempt: SimAttempt, grace_s: float) -> None:
        if attempt.phase in (SimAttemptPhase.STOPPING, SimAttemptPhase.DEAD):
            return
        if now > attempt.base_at:
            self._credit(attempt, self._train(attempt, now)[0])
        attempt.phase = SimAttemptPhase.STOPPING
        del self._live[attempt.job_id]
        self._set_timer(attempt, now, self._stopped)

    def kill(self, at: float, attempt: SimAttempt) -> None:
        self._live.pop(attempt.job_id, None)
        super().kill(at, attempt)

    def _settle(self, at: float, attempt: SimAttempt) -> None:
        """Does nothing: steps are counted at the ends of steps, so a killed attempt loses those since the last one."""

    # -- arrivals

    def arrived(self, at: float) -> Iterable[Event]:
        if self._idle:
            self._idle = False
            self._engine.schedule(max(1, ceil(at / self._step_s)) * self._step_s, self._due)
        return ()

    # -- called by timers and the scheduler

    def _ranks_up(self, at: float, attempt: SimAttempt) -> Iterable[Event]:
        attempt.phase = SimAttemptPhase.RUNNING
        return (AttemptStarted(at, attempt.job_id, attempt.number),)

    def _begin_step(self, now: float, command: BeginRound) -> None:
        if not self._live:
            self._idle = True
            return
        self._reached = {}
        ends_at = now + command.round_s
        for job_id, attempt in self._live.items():
            attempt.base_at = now
            self._reached[job_id], left_s = self._train(attempt, ends_at)
            if self._reached[job_id] >= attempt.job.plan.steps:
                self._engine.schedule(ends_at - left_s, self._completed, attempt)
        self._engine.schedule(ends_at, self._due)

    def _train(self, attempt: SimAttempt, until_at: float) -> tuple[float, float]:
        """Returns the job's steps at `until_at` if it runs until then, and the seconds left after it was done."""
        training_s = until_at - max(attempt.base_at, attempt.up_at)
        if training_s <= 0.0:
            return attempt.job.steps, 0.0
        placement = GangLayout(tuple(len(devices) for _, devices in attempt.parts))
        return self._training(attempt).advance(placement, attempt.job.steps, training_s)

    def _training(self, attempt: SimAttempt) -> PolluxTraining:
        return self._trainings[attempt.job.plan.request.kind]

    def _credit(self, attempt: SimAttempt, steps: float) -> None:
        attempt.job.worked_steps += steps - attempt.job.steps
        attempt.job.steps = steps

    def _stopped(self, at: float, attempt: SimAttempt) -> Iterable[Event]:
        job, job_id = attempt.job, attempt.job_id
        self.release(attempt)
        ended = AttemptEnded(at, job_id, attempt.number, EndCause.EXITED, EXIT_CHECKPOINTED, steps=job.steps)
        if job.steps == job.saved_steps:
            return (ended,)
        return (CheckpointRecorded(at, job_id, attempt.number, job.steps), ended)

    def _completed(self, at: float, attempt: SimAttempt) -> Iterable[Event]:
        job, job_id = attempt.job, attempt.job_id
        if self._live.get(job_id) is not attempt:
            return ()
        self._credit(attempt, job.plan.steps)
        attempt.phase = SimAttemptPhase.STOPPING
        del self._live[job_id]
        self.release(attempt)
        return (AttemptEnded(at, job_id, attempt.number, EndCause.EXITED, 0, steps=job.steps),)

    def _due(self, at: float, _: object) -> Iterable[Event]:
        """Schedules the end of the step after all other events of this instant."""
        self._engine.schedule(at, self._step_over)
        return ()

    def _step_over(self, at: float, _: object) -> Iterable[Event]:
        for job_id, attempt in self._live.items():
            self._credit(attempt, self._reached[job_id])
            attempt.job.saved_steps = attempt.job.steps
            attempt.base_at = at
        steps = [attempt.job.steps for attempt in self._live.values()]
        return (RoundEnded(at, list(self._live), steps, [at] * len(steps)),)
