"""The gauges of `/metrics`: jobs, machines, prices, money, leases and the store as they are when they are asked for.

The reason of each waiting job is computed anew; with thousands of them that takes tens of milliseconds, so it yields to
the rest of the server between jobs, and requests within a few seconds get the same figures.
"""

import asyncio
from collections import Counter
from math import inf
from typing import Protocol

from prometheus_client import CollectorRegistry, Gauge

from scheduler.core.explain.pending_reasons import first_pending_reason
from scheduler.core.explain.share_standing import realised_fraction
from scheduler.live.loop.event_loop import CooperativeYield, ServerLoop
from walras.states import JobState

#: Seconds for which gathered figures are used again.
_FRESH_S = 2.0


class ServerHealth(Protocol):
    """The state of the solver's pool, as text."""

    state: str


class ClusterGauges:
    """The gauges of one server."""

    def __init__(self, loop: ServerLoop, solver: ServerHealth, registry: CollectorRegistry) -> None:
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
            notifications = self._loop.state.notifications
            self._notifications.set(len(notifications.waiting))
            self._failing.set(sum(bool(each.problem) for each in notifications.channels.values()))
            counters = self._loop.state.counters
            for kind in ("stale_reports", "stale_commits", "fenced", "unknown_reports"):
                self._ignored.labels(kind).set(getattr(counters, kind))

    async def _count_jobs(self) -> None:
        state, found, cooperative = self._loop.state, Counter[tuple[str, str]](), CooperativeYield()
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
        state, shown = self._loop.state, Counter[str]()
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
        capacity, held = Counter[str](), Counter[str]()
        for node in state.nodes.values():
            if node.row.state == "up" and not node.row.cordon:
                capacity[node.row.pool_id] += node.facts.accelerators
        for job in state.jobs.values():
            if job.attempt is not None:
                held.update({str(pool_id): count for pool_id, count in job.attempt.placement.by_pool.items()})
        proposal = state.proposal
        prices = {} if proposal is None else dict(zip(proposal.pools, proposal.prices, strict=False))
        for pool_id, pool in state.pools.items():
            labels = (pool_id, pool.shape.accelerator, pool.market)
            self._capacity.labels(*labels).set(capacity[pool_id])
            self._held.labels(*labels).set(held[pool_id])
            self._price.labels(*labels).set(prices.get(pool_id, 0.0))
            self._market_price.labels(*labels).set(pool.usd_per_h)
        if proposal is not None:
            self._gap.set(proposal.gap)
            self._realised.set(realised_fraction(self._loop.core.ledger) or 0.0)
            self._solved_at.set(self._loop.clock.unix(state.solved_at))
