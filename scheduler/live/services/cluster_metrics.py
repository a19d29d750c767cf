"""What `/metrics` counts and times: delays, solves, commits, preemptions, lost work, the lag of the event loop.

Counters and histograms follow the events and commands of every transaction, once it is durable; gauges are computed
from the live state for each scrape (`metric_gauges.py`). Labels take their values from fixed lists, or from the
accelerator types and pools that an operator declares: never from jobs, users or what agents report.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from scheduler.core.commands import AttemptTransitioned, Command, JobTransitioned, Revoke, Start
from scheduler.core.events import (
    AttemptEnded,
    AttemptProgressed,
    CheckpointRecorded,
    Event,
    JobSubmitted,
    Solved,
    SolveFailed,
)
from scheduler.core.restore_events import JobRestored
from scheduler.live.loop.event_loop import ServerLoop
from scheduler.live.loop.transaction import TransactionEffects
from scheduler.live.services.metric_gauges import ClusterGauges, ServerHealth
from walras.cluster import Placement
from walras.job_request import JobId
from walras.states import AttemptState, JobState

#: Upper ends of the buckets, seconds: from a job that starts at once to one that waits for a week.
_QUEUE_BUCKETS = (1, 5, 15, 60, 300, 900, 3600, 14_400, 43_200, 86_400, 259_200, 604_800)
_START_BUCKETS = (0.5, 1, 2, 5, 10, 20, 40, 80, 160, 320, 640)
_SOLVE_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 120)
_SHORT_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1, 5)
_LOOK_AT_LAG_EVERY_S = 0.5


@dataclass(slots=True)
class _RunningWork:
    """The progress of a running attempt, in steps of the job: what it has done, and what of that is saved."""

    attempt: int
    accelerators: int
    accelerator: str
    steps: float
    saved: float
    steps_per_s: float | None = None

    @property
    def lost_s(self) -> float:
        """Accelerator-seconds of the steps that are not saved; 0 while its speed is unknown."""
        lost = max(0.0, self.steps - self.saved)
        return self.accelerators * lost / self.steps_per_s if self.steps_per_s else 0.0


class ClusterMetrics:
    """An effect handler of the loop that keeps the metrics, and what `/metrics` answers."""

    def __init__(self, loop: ServerLoop, health: ServerHealth) -> None:
        self._loop = loop
        self._running: dict[JobId, _RunningWork] = {}
        self.registry = registry = CollectorRegistry()
        self.gauges = ClusterGauges(loop, health, registry)
        self._submitted = Counter("walras_jobs_submitted", "Jobs that were accepted.", registry=registry)
        self._ended = Counter(
            "walras_jobs_ended", "Jobs that ended, by their final state.", ["state"], registry=registry
        )
        self._attempts = Counter(
            "walras_attempts_ended", "Attempts that ended, by state.", ["state"], registry=registry
        )
        self._queueing = Histogram(
            "walras_job_queueing_seconds",
            "From submission until all ranks first ran.",
            ["accelerator"],
            buckets=_QUEUE_BUCKETS,
            registry=registry,
        )
        self._starting = Histogram(
            "walras_attempt_start_seconds",
            "From the grant of accelerators until all ranks ran.",
            ["accelerator"],
            buckets=_START_BUCKETS,
            registry=registry,
        )
        self._preemptions = Counter(
            "walras_preemptions", "Attempts that were asked to stop, by reason.", ["reason"], registry=registry
        )
        self._lost = Counter(
            "walras_lost_work_accelerator_seconds",
            "Work done since the last checkpoint of attempts that ended without success.",
            ["accelerator"],
            registry=registry,
        )
        self._solves = Histogram(
            "walras_solve_seconds", "Time of solves that were answered.", buckets=_SOLVE_BUCKETS, registry=registry
        )
        self._failed_solves = Counter(
            "walras_solve_failures", "Solves that failed or took too long.", registry=registry
        )
        self._commits = Histogram(
            "walras_store_commit_seconds",
            "Time of transactions to the disk.",
            buckets=_SHORT_BUCKETS,
            registry=registry,
        )
        self._lag = Histogram("walras_event_loop_lag_seconds", "How much later than asked the event loop woke.",
                              buckets=_SHORT_BUCKETS, registry=registry)  # fmt: skip

    async def text(self) -> bytes:
        """Returns all metrics in the text format of Prometheus."""
        await self.gauges.refresh()
        return generate_latest(self.registry)

    async def watch_lag(self) -> None:
        """Measure the lag of the event loop, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            asked_at = loop.time() + _LOOK_AT_LAG_EVERY_S
            await asyncio.sleep(_LOOK_AT_LAG_EVERY_S)
            self._lag.observe(max(0.0, loop.time() - asked_at))

    # ---------------------------------------------------------------- what happens

    def deliver(self, effects: TransactionEffects) -> None:
        """Count the events and commands of a durable transaction."""
        if effects.commit_s is not None:
            self._commits.observe(effects.commit_s)
        for event, commands in effects.answered:
            self._count_event(event)
            self._count_commands(event.at, commands)

    def _count_event(self, event: Event) -> None:
        if isinstance(event, JobSubmitted):
            self._submitted.inc()
        elif isinstance(event, Solved):
            self._solves.observe(event.took_s)
        elif isinstance(event, SolveFailed):
            self._failed_solves.inc()
        elif isinstance(event, JobRestored) and event.placement is not None:
            self._work_begins(event.job.job_id, event.attempt, event.placement, event.safe_steps)
        elif isinstance(event, (AttemptProgressed, CheckpointRecorded, AttemptEnded)):
            self._work_goes_on(event)

    def _work_begins(self, job_id: JobId, attempt: int, placement: Placement, steps: float) -> None:
        pool = self._loop.state.pool_of(placement.pool_id)
        count = sum(placement.by_pool.values())
        self._running[job_id] = _RunningWork(attempt, count, pool.shape.accelerator, steps, steps)

    def _work_goes_on(self, event: AttemptProgressed | CheckpointRecorded | AttemptEnded) -> None:
        known = self._running.get(event.job_id)
        if known is None or known.attempt != event.attempt:
            return
        if event.steps is not None:
            known.steps = max(known.steps, event.steps)
        if isinstance(event, CheckpointRecorded):
            known.saved = max(known.saved, event.steps)
        elif isinstance(event, AttemptProgressed):
            known.steps_per_s = event.steps_per_s or known.steps_per_s

    def _count_commands(self, at: float, commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, Start):
                self._work_begins(command.job_id, command.attempt, command.placement, command.resume_steps)
            elif isinstance(command, Revoke):
                self._preemptions.labels(command.reason.value).inc()
            elif isinstance(command, AttemptTransitioned):
                self._count_attempt(command)
            elif isinstance(command, JobTransitioned):
                self._count_job(at, command)

    def _count_attempt(self, command: AttemptTransitioned) -> None:
        attempt = self._loop.state.attempt(command.job_id, command.attempt)
        if command.state is AttemptState.RUNNING and attempt is not None and attempt.row.started_at is not None:
            waited_s = attempt.row.started_at - attempt.row.leased_at
            self._starting.labels(attempt.row.accelerator).observe(max(0.0, waited_s))
        if not command.state.is_final:
            return
        self._attempts.labels(command.state.value).inc()
        work = self._running.pop(command.job_id, None)
        if work is not None and command.state is not AttemptState.SUCCEEDED:
            self._lost.labels(work.accelerator).inc(work.lost_s)

    def _count_job(self, at: float, command: JobTransitioned) -> None:
        if command.state.is_final:
            self._ended.labels(command.state.value).inc()
        job = self._loop.state.jobs.get(command.job_id)
        if command.state is JobState.RUNNING and job is not None and job.row.started_at == at:
            accelerator = "" if job.attempt is None else job.attempt.row.accelerator
            self._queueing.labels(accelerator).observe(max(0.0, at - job.row.submitted_at))
