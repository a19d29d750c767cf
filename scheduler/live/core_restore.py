"""Restores a fresh core from the tables: machines, requests for machines, attempts that may be alive, waiting jobs.

Every start begins a new *generation* of the journal: a fresh core receives, as events, the policy, the pools, all
measurements, the machines as they are, the open requests for machines, the attempts that may be alive, and the waiting
jobs. The order matters: jobs that hold machines come first, so that no occupied machine is given away. The fresh core
gives no command about attempts that continue; whatever else it starts is an ordinary decision. So a restart costs what
is active (about 0.3 ms a job) and not what has happened, and a new version can take over from an old one. Arrears, the
waits between tries (of failed jobs, refused starts, machines that could not be rented), the last prices, the failures
seen on machines and which of these are slow are stored every few seconds and at an orderly stop, and given to the fresh
core; the policy's memory begins anew, and so do the core's reservations for gangs. A solve follows at once. Commands
that agents have not confirmed are in the outbox and are sent again under their old ids.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf

from scheduler.core.booking_events import BookingsDeclared
from scheduler.core.budget_limits import users_with_budgets
from scheduler.core.core import SchedulerCore
from scheduler.core.events import NodeLeaving, NodeQuarantined, NodeUnreachable, PolicyChanged, PoolDeclared
from scheduler.core.restore_events import JobRestored, RentRestored
from scheduler.core.share_events import EntityShare, SharesDeclared
from scheduler.core.speed_events import FactsTold, NetworkKnown, RestartMeasured, ThroughputMeasured
from scheduler.live.loop import billing
from scheduler.live.loop.apply_commands import emit
from scheduler.live.loop.departures import departure_as_written
from scheduler.live.loop.live_state import LiveAttempt, LiveJob, LiveNode, LiveState
from scheduler.live.loop.transaction import Transaction
from scheduler.live.services.machine_facts import tell_joined
from scheduler.live.services.policy_service import PolicyInForce
from scheduler.live.store.event_journal import parse_facts, parse_state
from scheduler.live.store.store_interface import LoadedState, Store
from walras.cluster import Market, Rendezvous
from walras.job_request import JobId, JobRequest
from walras.states import AttemptState, Reason


@dataclass(frozen=True, slots=True)
class PriorUsage:
    """The accelerator-seconds and USD that a job has used, and the seconds that its ended attempts held places."""

    accelerator_s: float = 0.0
    usd: float = 0.0
    held_s: float = 0.0


def restore_core(
    transaction: Transaction,
    in_force: PolicyInForce,
    loaded: LoadedState,
    requests: dict[JobId, JobRequest],
    used: dict[JobId, PriorUsage],
    shares: tuple[EntityShare, ...] = (),
) -> None:
    """Begin a generation with a fresh core, and give it what the tables have."""
    # Charges are written first, so that the fresh core's books contain all use until now.
    transaction.state.users_with_budgets = users_with_budgets(in_force.rules.budgets)
    transaction.state.budgets.put_in_force(in_force.rules)
    spent = billing.restate_spending(transaction)
    transaction.begin_generation(SchedulerCore())
    transaction.state.scores_stored = 0
    emit(transaction, PolicyChanged(transaction.at, in_force.spec, in_force.rules, in_force.put_back))
    emit(transaction, spent)
    if shares:
        emit(transaction, SharesDeclared(transaction.at, shares))
    for pool in list(transaction.state.pools.values()):
        emit(transaction, PoolDeclared(transaction.at, pool))
    for network in loaded.networks:
        emit(transaction, NetworkKnown(transaction.at, network.pool_id, network.bytes_per_s))
    for known in loaded.facts:
        emit(transaction, FactsTold(transaction.at, known.kind, parse_facts(known.body), known.counted))
    for speed in loaded.speeds:
        emit(
            transaction,
            ThroughputMeasured(transaction.at, speed.kind, speed.accelerator, speed.count, speed.steps_per_s),
        )
    for cost in loaded.restart_costs:
        emit(transaction, RestartMeasured(transaction.at, cost.kind, cost.restart_s))
    for node in list(transaction.state.nodes.values()):
        if node.is_member:
            _restore_node(transaction, node)
    booked = tuple(row.booking for row in transaction.state.bookings.values() if not row.cancelled)
    if any(booking.until_at > transaction.at for booking in booked):
        emit(transaction, BookingsDeclared(transaction.at, booked))
    if loaded.core_state is not None:
        emit(transaction, replace(parse_state(loaded.core_state.body), at=transaction.at))
    for rent in list(transaction.state.rents.values()):
        here = sum(node.row.rent_token == rent.token and node.is_member for node in transaction.state.nodes.values())
        if rent.machines > here:
            emit(transaction, RentRestored(transaction.at, rent.token, rent.pool_id, rent.machines - here))
    # Jobs that hold machines come first, because a waiting job may start as soon as the core gets it.
    for job in sorted(transaction.state.jobs.values(), key=lambda job: (job.attempt is None, job.row.job_id)):
        emit(
            transaction,
            _restored_job(transaction.at, job, requests[job.row.job_id], used.get(job.row.job_id, PriorUsage())),
        )
    billing.recall_units(transaction)


def _restore_node(transaction: Transaction, node: LiveNode) -> None:
    """Give the core a machine in its present state."""
    row = node.row
    state, cordon, detail = row.state, row.cordon, row.detail
    paid_since = billing.paid_since(transaction.state, node) if row.rent_token else None
    tell_joined(transaction, node, paid_since)
    if cordon == "leaving":
        gentle, until = row.drain_until_at is not None, inf if row.drain_until_at is None else row.drain_until_at
        with departure_as_written(node):  # a notice counts as a drain: how much of its time is left is not known
            emit(transaction, NodeLeaving(transaction.at, row.node_id, until, Reason.HOLD_ADMIN, gentle))
    elif cordon == "quarantined":
        emit(transaction, NodeQuarantined(transaction.at, row.node_id, detail))
    if state == "unreachable":
        emit(transaction, NodeUnreachable(transaction.at, row.node_id))
    # The core that wanted to release the machine is gone, so its detail is dropped.
    row.detail = detail if cordon or state != "up" else ""


def _restored_job(at: float, job: LiveJob, request: JobRequest, used: PriorUsage) -> JobRestored:
    row, attempt = job.row, job.attempt
    revoked = None
    if attempt is not None and attempt.row.state is AttemptState.STOPPING:
        revoked = attempt.row.reason
    return JobRestored(
        at=at,
        job=replace(request, priority=row.priority, budget_usd=row.budget_usd or request.budget_usd),
        submitted_at=row.submitted_at,
        state=row.state,
        attempt=row.attempts,
        restarts=row.restarts,
        steps=row.steps,
        safe_steps=0.0 if job.checkpoint is None else job.checkpoint.step,
        attained_s=used.accelerator_s,
        spent_usd=used.usd,
        held_s=used.held_s,
        hold_reason=job.held_by,
        placement=None if attempt is None else attempt.placement,
        leased_at=0.0 if attempt is None else attempt.row.leased_at,
        running_at=inf if attempt is None or attempt.row.started_at is None else attempt.row.started_at,
        prepared=() if attempt is None else tuple(part.node_id for part in attempt.parts.values() if part.prepared),
        rendezvous=None if attempt is None else _rendezvous_of(attempt),
        revoked=revoked,
        saves=job.checkpoint is not None,
        lost=()
        if attempt is None
        else tuple(each.node_id for each in attempt.parts.values() if each.cause == "node_lost"),
    )


def _rendezvous_of(attempt: LiveAttempt) -> Rendezvous | None:
    first = attempt.parts[attempt.placement.parts[0].node_id]
    return Rendezvous(first.address, first.port) if first.port else None


def discount_unproved_time(state: LiveState, unproved_s: float, lease_s: Mapping[str, float]) -> None:
    """Count at most a lease, for each live attempt, of the time that only the wall clock shows.

    Without contact to the server the attempt ended then, so it did not run (and is not charged) for longer.
    """
    for job in state.jobs.values():
        if job.attempt is None:
            continue
        row = job.attempt.row
        market = state.pools[row.pool_id].market if row.pool_id in state.pools else Market.OWNED
        excess_s = unproved_s - lease_s[market]
        if excess_s > 0:
            row.leased_at += excess_s
            row.usd_since_at += excess_s
            row.started_at = None if row.started_at is None else row.started_at + excess_s


def prior_usage(store: Store, job_ids: Iterable[JobId], at: float) -> dict[JobId, PriorUsage]:
    """Returns what each of the jobs has used until then; jobs that never ran are left out."""
    used: dict[JobId, PriorUsage] = {}
    for each in store.usage(job_ids, at):
        before = used.get(each.job_id, PriorUsage())
        used[each.job_id] = PriorUsage(
            before.accelerator_s + each.accelerator_s, before.usd + each.usd, before.held_s + each.held_s
        )
    return used
