"""What `/metrics` tells: counts and times of jobs, solves and commits; jobs, machines, prices and money as they are.

Counters and histograms follow the events and commands of every transaction, once it is durable; gauges are computed
from the live state for each scrape. The reason of each waiting job is computed anew; with thousands of them that takes
tens of milliseconds, so it yields to the rest of the server between jobs, and requests within a few seconds get the
same figures. Labels take their values from fixed lists, or from the accelerator types and pools that an operator
declares: never from jobs, users or what agents report.
"""

import asyncio
import collections
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from scheduler.core.commands import AttemptTransitioned, Command, JobTransitioned, Revoke, Start
from scheduler.core.events import (
    AttemptEnded,
    AttemptProgressed,
    CheckpointRecorded,
    Event,
    JobRestored,
    JobSubmitted,
    Solved,
    SolveFailed,
)
from scheduler.core.explain.pending_reasons import first_pending_reason
from scheduler.core.explain.share_standing import realised_fraction
from scheduler.live.loop.event_loop import CooperativeYield, ServerLoop
from scheduler.live.loop.solver_pool import SolverPool
from scheduler.live.loop.transaction import TransactionEffects
from scheduler.live.store.store_interface import StoreUnavailable
from walras.cluster import Placement
from walras.job_request import JobId
from walras.states import AttemptState, JobState

#: Upper ends of the buckets, seconds: from a job that starts at once to one that waits for a week.
_QUEUE_BUCKETS = (1, 5, 15, 60, 300, 900, 3600, 14_400, 43_200, 86_400, 259_200, 604_800)
_START_BUCKETS = (0.5, 1, 2, 5, 10, 20, 40, 80, 160, 320, 640)
_SOLVE_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 120)
_SHORT_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1, 5)
_LOOK_AT_LAG_EVERY_S = 0.5


#: Seconds for which gathered figures are used again.
_FRESH_S = 2.0


class ClusterGauges:
    """The gauges of one server."""

    def __init__(self, loop: ServerLoop, solver: SolverPool, registry: CollectorRegistry) -> None:
        self._loop = loop
        self._solver = solver
        self._gathered_at = -inf
        self._turn = asyncio.Lock()
        pool = ["pool", "accelerator", "market"]

        def gauge(name: str, meaning: str, labels: tuple[str, ...] | list[str] = ()) -> Gauge:
            return Gauge(name, meaning, labels, registry=registry)

        self._jobs = gauge("walras_jobs", "Active jobs, by state and the reason they are in it.", ("state", "reason"))
        self._machines = gauge("walras_machines", "Machines, by state.", ("state",))
        self._capacity = gauge("walras_pool_accelerators", "Accelerators of a pool that take jobs.", pool)
        self._held = gauge("walras_pool_accelerators_held", "Those that a job holds.", pool)
        self._price = gauge("walras_pool_price", "Dual price of one accelerator, in the policy's unit.", pool)
        self._market_price = gauge("walras_pool_machine_usd_per_hour", "What a machine of the pool costs.", pool)
        self._gap = gauge("walras_certificate_gap", "Certified distance of the last answer from its bound.")
        self._realised = gauge(
            "walras_certificate_realised_ratio", "Utility realised over the last rounds, of the bound."
        )
        self._solved_at = gauge(
            "walras_last_solve_timestamp_seconds", "When prices were found or found to hold, Unix s."
        )
        self._store_bytes = gauge("walras_store_bytes", "What the database takes of the disk.")
        self._solver_up = gauge("walras_solver_up", "1 while the solver's process answers.")
        self._store_up = gauge("walras_store_up", "1 while the database takes writes.")
        self._jobs_usd = gauge("walras_jobs_usd_per_hour", "What the running attempts cost an hour.")
        self._rented_usd = gauge("walras_rented_machines_usd_per_hour", "What the rented machines cost an hour.")
        self._spent = gauge("walras_spent_usd", "What was charged so far, by the ledger of money.")
        self._lease = gauge("walras_lease_left_seconds", "The shortest lease that an attempt's machine has left.")
        self._heard = gauge("walras_machine_silence_seconds", "The longest silence of a machine that is a member.")
        self._notifications = gauge("walras_notifications_waiting", "Notifications to users that are still to be sent.")
        self._failing = gauge(
            "walras_notification_channels_failing", "Addresses of users whose last notification did not arrive."
        )
        self._ignored = gauge("walras_ignored_reports", "Reports ignored by design since the start.", ("kind",))

    async def refresh(self) -> None:
        """Gather all figures, unless that was done within `_FRESH_S`."""
        async with self._turn:
            now = self._loop.clock.now()
            if 0.0 <= now - self._gathered_at < _FRESH_S:
                return
            self._gathered_at = now
            await self._count_jobs()
            self._look_at_machines(now)
            self._look_at_prices()
            self._solver_up.set(self._solver.state == "ok")
            self._store_up.set(self._loop.is_store_writable)
            with suppress(StoreUnavailable):
                self._store_bytes.set(await self._loop.store_bytes())
            notifications = self._loop.state.notifications
            self._notifications.set(len(notifications.waiting))
            self._failing.set(sum(bool(each.problem) for each in notifications.channels.values()))
            counters = self._loop.state.counters
            for kind in ("stale_reports", "stale_commits", "fenced", "unknown_reports"):
                self._ignored.labels(kind).set(getattr(counters, kind))

    async def _count_jobs(self) -> None:
        state, found, cooperative = self._loop.state, collections.Counter[tuple[str, str]](), CooperativeYield()
        usd_per_h = 0.0
        for job in list(state.jobs.values()):
            reason = job.row.reason
            if job.row.state is JobState.PENDING:
                line = first_pending_reason(self._loop.core, job.row.job_id, state.expected_machines)
                reason = reason if line is None else line.reason
            found[job.row.state.value, "" if reason is None else reason.value] += 1
            usd_per_h += 0.0 if job.attempt is None else job.attempt.row.usd_per_h
            await cooperative.yield_if_due()
        self._jobs.clear()
        for labels, count in found.items():
            self._jobs.labels(*labels).set(count)
        self._jobs_usd.set(usd_per_h)
        self._spent.set(state.spent_usd.get("", 0.0))

    def _look_at_machines(self, now: float) -> None:
        state, shown = self._loop.state, collections.Counter[str]()
        rented, leases, silences = 0.0, [inf], [0.0]
        for node in state.nodes.values():
            shown[node.shown_state] += 1
            if not node.is_member:
                continue
            silences.append(now - node.heard_at)
            if node.expected:
                leases.append(node.leased_until - now)
            if node.row.rent_token:
                rented += state.pool_of(node.row.pool_id).usd_per_h
        self._machines.clear()
        for name, count in shown.items():
            self._machines.labels(name).set(count)
        self._rented_usd.set(rented)
        self._lease.set(min(leases))
        self._heard.set(max(silences))

    def _look_at_prices(self) -> None:
        state = self._loop.state
        for gauge in (self._capacity, self._held, self._price, self._market_price):
            gauge.clear()
        capacity, held = collections.Counter[str](), collections.Counter[str]()
        for node in state.nodes.values():
            if node.takes_jobs:
                capacity[node.row.pool_id] += node.facts.accelerators
            held[node.row.pool_id] += len(state.devices_held(node))
        proposal = state.proposal
        prices = {} if proposal is None else dict(zip(proposal.pools, proposal.prices, strict=False))
        for pool_id, pool in state.pools.items():
            labels = (pool_id, pool.shape.accelerator, pool.market)
            self._capacity.labels(*labels).set(capacity[pool_id])
            self._held.labels(*labels).set(held[pool_id])
            self._price.labels(*labels).set(prices.get(pool_id, 0.0))
            self._market_price.labels(*labels).set(pool.usd_per_h)
        self._gap.set(0.0 if proposal is None else proposal.gap)
        self._realised.set(realised_fraction(self._loop.core.ledger) or 0.0)
        if proposal is not None:
            self._solved_at.set(self._loop.clock.unix(state.solved_at))


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

    def __init__(self, loop: ServerLoop, solver: SolverPool) -> None:
        self._loop = loop
        self._running: dict[JobId, _RunningWork] = {}
        self.registry = registry = CollectorRegistry()
        self.gauges = ClusterGauges(loop, solver, registry)

        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(name, meaning, labels, registry=registry)

        def seconds(name: str, meaning: str, buckets: Sequence[float], *labels: str) -> Histogram:
            return Histogram(name, meaning, labels, buckets=buckets, registry=registry)

        self._submitted = counter("walras_jobs_submitted", "Jobs that were accepted.")
        self._ended = counter("walras_jobs_ended", "Jobs that ended, by their final state.", "state")
        self._attempts = counter("walras_attempts_ended", "Attempts that ended, by state.", "state")
        queued = "From submission until all ranks first ran."
        self._queueing = seconds("walras_job_queueing_seconds", queued, _QUEUE_BUCKETS, "accelerator")
        started = "From the grant of accelerators until all ranks ran."
        self._starting = seconds("walras_attempt_start_seconds", started, _START_BUCKETS, "accelerator")
        self._preemptions = counter("walras_preemptions", "Attempts that were asked to stop, by reason.", "reason")
        self._lost = counter(
            "walras_lost_work_accelerator_seconds",
            "Work done since the last checkpoint of attempts that ended without success.",
            "accelerator",
        )
        self._solves = seconds("walras_solve_seconds", "Time of solves that were answered.", _SOLVE_BUCKETS)
        self._failed_solves = counter("walras_solve_failures", "Solves that failed or took too long.")
        self._commits = seconds("walras_store_commit_seconds", "Time of transactions to the disk.", _SHORT_BUCKETS)
        late = "How much later than asked the event loop woke."
        self._lag = seconds("walras_event_loop_lag_seconds", late, _SHORT_BUCKETS)

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
