"""Shockwave's time model: lockstep rounds in which starts cost steps and jobs change their batch size.

A job that has no step left after a change of batch stays active until it has been without work for five rounds in a
row.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import floor

from scheduler.core.commands import BeginRound
from scheduler.core.events import Event
from scheduler.core.speed_events import ThroughputMeasured, WorkRestated
from simulator.attempts import SimAttempt, WorldParameters
from simulator.engine import Engine, RandomStreams
from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.machines import SimulatedMachines
from simulator.worlds.gavel.lockstep_attempts import LockstepAttempts
from simulator.worlds.shockwave.shockwave_batches import BatchSchedule, StepCount, count_round
from walras.job_request import JobId, Kind

#: Seconds of a round that a job loses if it did not run in the round before...
OVERHEAD_S = 20.0
#: ...and runs for longer than this.
SPARED_S = 115.0


def charged_time_s(ran_s: float, started: bool) -> float:
    """Returns the part of a job's run time in a round (seconds) that counts."""
    return ran_s - OVERHEAD_S if started and ran_s > SPARED_S else ran_s


def charged_steps(steps: float, ran_s: float, started: bool) -> float:
    """Returns the whole steps that count of those made in `ran_s` seconds."""
    if not (started and ran_s > SPARED_S):
        return steps
    return float(floor(steps * (ran_s - OVERHEAD_S) / ran_s))


#: A job is removed after this many rounds in a row without work.
EMPTY_MAX = 5


class ShockwaveAttempts(LockstepAttempts):
    """Simulates attempts in rounds; the steps of a new attempt count only in part."""

    def __init__(
        self,
        engine: Engine,
        machines: SimulatedMachines,
        model: WorldParameters,
        streams: RandomStreams,
        *,
        truth: GroundTruth,
        batchings: Mapping[JobId, BatchSchedule],
    ) -> None:
        super().__init__(engine, machines, model, streams)
        self._truth = truth
        self._batchings = batchings
        self._counts: dict[JobId, StepCount] = {}
        #: Number of consecutive rounds in which a job had no work.
        self._empty: dict[JobId, int] = {}
        #: Jobs that ran in the round before this one; None in the first round.
        self._ran: set[JobId] | None = None

    def _begin_round(self, now: float, command: BeginRound) -> None:
        self._ran = set(self._steps) if self._steps else None
        super()._begin_round(now, command)

    def _round_of(self, now: float, attempt: SimAttempt) -> tuple[float, float]:
        left = attempt.job.plan.steps - attempt.job.steps
        if left <= 0:
            return 0.0, now
        steps, stops_at = super()._round_of(now, attempt)
        started = self._ran is not None and attempt.job_id not in self._ran
        return charged_steps(steps, stops_at - now, started), stops_at

    def _completes(self, attempt: SimAttempt, steps: float) -> bool:
        job_id = attempt.job_id
        if attempt.job.steps < attempt.job.plan.steps:
            return super()._completes(attempt, steps)
        self._empty[job_id] = self._empty.get(job_id, 0) + 1
        return self._empty[job_id] == EMPTY_MAX

    def _completed(self, at: float, attempt: SimAttempt) -> Iterable[Event]:
        self._forget(attempt)
        return super()._completed(at, attempt)

    def _count_round(self, at: float, attempt: SimAttempt, steps: float) -> Iterable[Event]:
        super()._count_round(at, attempt, steps)
        job_id = attempt.job_id
        batching = self._batchings.get(job_id)
        if batching is None or job_id in self._empty:
            return ()
        count = self._counts.get(job_id) or StepCount(batching.original, 0, int(attempt.job.plan.steps))
        accelerator = self._machines.pools[attempt.parts[0][0].pool_id].pool.shape.accelerator

        def key(kind: Kind) -> SpeedKey:
            return SpeedKey(kind, accelerator, batching.gang)

        now = count_round(batching, count, int(steps), lambda kind: key(kind) in self._truth.speeds)
        self._counts[job_id] = now
        if now.batch == count.batch:
            return ()
        kind = batching.kind(now.batch)
        speed = self._truth.speeds[key(kind)]
        self._restate(attempt, kind, speed, now)
        return (
            ThroughputMeasured(at, kind, accelerator, batching.gang, speed),
            WorkRestated(at, job_id, kind, now.total, attempt.job.steps),
        )

    def _restate(self, attempt: SimAttempt, kind: Kind, speed: float, count: StepCount) -> None:
        """Converts the job's counters to the steps of its new batch size."""
        job = attempt.job
        attempt.rate = attempt.alone_rate = speed
        request = replace(job.plan.request, kind=kind, steps=float(count.total))
        job.plan = replace(job.plan, request=request, steps=float(count.total))
        steps = float(min(count.steps, count.total))
        job.worked_steps += steps - job.steps
        job.steps = job.saved_steps = steps

    def _forget(self, attempt: SimAttempt) -> None:
        job_id = attempt.job_id
        self._counts.pop(job_id, None)
        self._empty.pop(job_id, None)
