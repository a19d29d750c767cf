"""Applies each command of the core to the live state: rows change, agents get messages, effects follow the commit.

Nothing here decides who runs where. It adds only what the core does not know: what ranks are started with, and that an
attempt which is over on one machine must be stopped on all others.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any

from scheduler.core.commands import (
    AttemptTransitioned,
    BudgetWarned,
    CheckpointEvery,
    Command,
    JobTransitioned,
    NodeCordoned,
    NodeReadmitted,
    Prepare,
    ReleaseNode,
    Rent,
    Revoke,
    Solve,
    Start,
    WakeAt,
)
from scheduler.core.events import (
    Event,
    JobReleased,
    NodeJoined,
    NodeLeaving,
    NodeLost,
    NodeUncordoned,
    PoolDeclared,
    PoolRemoved,
    RentFailed,
    Solved,
)
from scheduler.core.speed_events import FactsTold
from scheduler.live.loop import billing
from scheduler.live.loop.agent_commands import (
    apply_checkpoint_every,
    apply_prepare,
    apply_revoke,
    apply_start,
    current_attempt,
    note_release,
    post_stop,
)
from scheduler.live.loop.departures import leave_with_pool, note_leaving, note_loss, note_return
from scheduler.live.loop.live_state import LiveAttempt, LiveJob, placement_json
from scheduler.live.loop.notification_events import note_command, note_event
from scheduler.live.loop.transaction import Transaction
from scheduler.live.store.event_journal import dump_facts, dump_pool
from scheduler.live.store.table_rows import AttemptRow, FactsRow, PartRow, PoolRow, RentRow
from walras.cluster import Placement, Pool
from walras.job_request import Kind
from walras.model_facts import ModelFacts
from walras.states import AttemptState, JobState, Reason

log = logging.getLogger(__name__)

#: A part that outlives its attempt has nothing left to save, so it is stopped without grace, seconds.
_NO_GRACE_S = 0.0


def emit(transaction: Transaction, event: Event) -> None:
    """Give an event to the core, record both it and the commands, and apply the commands to the live state."""
    for _ in emit_in_pieces(transaction, event):
        pass


def emit_in_pieces(transaction: Transaction, event: Event) -> Iterator[None]:
    """Does what `emit` does, and yields after the core's answer and after each command.

    A plan may have hundreds of commands, between which the event loop serves others.
    """
    note_event(transaction, event)
    _apply_event(transaction, event)
    commands = transaction.core.handle(event)
    transaction.state.solved_at = max(transaction.state.solved_at, transaction.core.ledger.policy.solved_at)
    transaction.record(event, commands)
    yield
    for command in commands:
        note_command(transaction, command)
        _APPLY_COMMAND[type(command)](transaction, command)
        yield


def _apply_event(transaction: Transaction, event: Event) -> None:
    """Apply what the live state changes by the event itself, before the core sees it."""
    state = transaction.state
    if isinstance(event, Solved):
        state.proposal, state.solved_at = event.proposal, event.at
    elif isinstance(event, PoolDeclared):
        _apply_pool_declared(transaction, event.pool)
    elif isinstance(event, PoolRemoved):
        state.removed_pools[event.pool_id] = state.pools.pop(event.pool_id)
        state.expected_machines.pop(event.pool_id, None)
        transaction.batch.pools_done.append(event.pool_id)
    elif isinstance(event, NodeJoined):
        billing.machine_joined(transaction, state.nodes[event.node_id])
    elif isinstance(event, RentFailed) and event.token in state.rents:
        rent = state.rents[event.token]
        here = sum(node.row.rent_token == event.token and node.is_member for node in state.nodes.values())
        rent.machines = here if event.machines is None else max(here, rent.machines - event.machines)
        if not rent.machines:
            rent.state = "failed"
            state.end_rent(rent)
        transaction.rent_changed(rent)
    elif isinstance(event, NodeLost):
        _apply_node_lost(transaction, event)
    elif isinstance(event, NodeLeaving):
        note_leaving(state.nodes[event.node_id], event)
        transaction.node_changed(state.nodes[event.node_id])
    elif isinstance(event, NodeUncordoned):
        note_return(state.nodes[event.node_id])
        transaction.node_changed(state.nodes[event.node_id])
    elif isinstance(event, JobReleased):
        note_release(transaction, event.job_id)


def _apply_pool_declared(transaction: Transaction, pool: Pool) -> None:
    """Keep the pool. If it is newly drained, drain its machines too, except those that are taken out already."""
    before = transaction.state.pools.get(pool.pool_id)
    billing.pool_repriced(transaction, pool)
    transaction.batch.pools.append(PoolRow(pool.pool_id, dump_pool(pool)))
    transaction.batch.pools_done = [each for each in transaction.batch.pools_done if each != pool.pool_id]
    if before is None or before.drained or not pool.drained:
        return
    for node in transaction.state.nodes.values():
        if node.row.pool_id == pool.pool_id and node.is_member and not node.row.cordon:
            leave_with_pool(node)
            transaction.node_changed(node)


def _apply_node_lost(transaction: Transaction, event: NodeLost) -> None:
    """Mark the machine as lost: drop its commands, and end the parts of attempts that it was expected to run."""
    node = transaction.state.nodes[event.node_id]
    billing.machine_gone(transaction, node)
    node.row.state = "lost"
    note_loss(node, event.reason)
    transaction.batch.outbox_done.extend(node.outbox)
    node.outbox.clear()
    for job_id, number in sorted(node.expected):
        attempt = transaction.state.attempt(job_id, number)
        if attempt is not None:
            end_part(transaction, attempt.parts[event.node_id], cause="node_lost")
    node.expected.clear()
    transaction.node_changed(node)


def end_part(transaction: Transaction, part: PartRow, cause: str) -> None:
    """Record that nothing of the attempt is left on this machine."""
    part.ended, part.cause, part.ended_at = True, cause, transaction.at
    transaction.part_changed(part)
    transaction.state.nodes[part.node_id].expected.discard((part.job_id, part.attempt))


# ------------------------------------------------------------------------------------------ jobs and attempts


def _apply_job_transition(transaction: Transaction, command: JobTransitioned) -> None:
    job = transaction.state.jobs[command.job_id]
    row = job.row
    # A transition for the same reason keeps the detail of before, such as "by ada".
    is_same = command.reason is not None and row.reason is command.reason
    detail = command.detail or (row.detail if is_same else "")
    row.state, row.reason, row.detail = command.state, command.reason, detail
    if command.state is JobState.RUNNING and row.started_at is None:
        row.started_at = transaction.at
    if command.state is JobState.PENDING and command.reason is Reason.WAIT_BACKOFF:
        row.restarts += 1
    transaction.job_changed(job)
    if command.state.is_final:
        assert job.attempt is None, f"job {command.job_id} ended before its attempt {row.attempts}"
        row.ended_at = transaction.at
        if transaction.state.secrets.pop(command.job_id, None) is not None:
            transaction.batch.secrets_done.append(command.job_id)
        transaction.state.end(command.job_id, command.state)


def _apply_attempt_transition(transaction: Transaction, command: AttemptTransitioned) -> None:
    job = transaction.state.jobs.get(command.job_id)
    if command.state is AttemptState.LEASED:
        assert job is not None, f"job {command.job_id} is leased but not in the live state"
        assert command.placement is not None, f"job {command.job_id} is leased nowhere"
        _lease_attempt(transaction, job, command.attempt, command.placement)
        return
    attempt = current_attempt(transaction, command.job_id, command.attempt)
    assert job is not None
    row = attempt.row
    row.state, row.reason = command.state, command.reason
    if command.state is AttemptState.RUNNING and row.started_at is None:
        row.started_at = transaction.at
    transaction.attempt_changed(attempt)
    if command.state.is_final:
        billing.end_charging(transaction, job)
        _close_attempt(transaction, attempt)
        update_job_progress(job)
        job.attempt = None
        transaction.job_changed(job)


def _lease_attempt(transaction: Transaction, job: LiveJob, number: int, placement: Placement) -> None:
    state = transaction.state
    pool = state.pools[placement.pool_id]
    row = AttemptRow(
        job_id=job.row.job_id,
        attempt=number,
        state=AttemptState.LEASED,
        pool_id=placement.pool_id,
        accelerator=pool.shape.accelerator,
        emulated=pool.shape.emulated,
        accelerators=placement.accelerators,
        leased_at=transaction.at,
        placement=placement_json(placement),
        usd_since_at=transaction.at,
        incarnation=state.identity.incarnation,
    )
    parts: dict[Any, PartRow] = {}
    for rank, share in enumerate(placement.parts):
        part = PartRow(job.row.job_id, number, share.node_id, rank)
        parts[share.node_id] = part
        state.nodes[share.node_id].expected.add((job.row.job_id, number))
        transaction.part_changed(part)
    job.attempt = LiveAttempt(row, placement, parts)
    job.row.attempts = number
    job.row.accelerators = placement.accelerators
    job.progress, job.progress_forwarded, job.speed_forwarded = None, True, False
    job.row.steps_per_s = None
    billing.begin_charging(transaction, job)
    transaction.job_changed(job)


def _close_attempt(transaction: Transaction, attempt: LiveAttempt) -> None:
    """Record the end of an attempt, and stop its parts that may still be alive."""
    attempt.row.ended_at = transaction.at
    for part in attempt.parts.values():
        if part.ended:
            continue
        node = transaction.state.nodes[part.node_id]
        node.expected.discard((part.job_id, part.attempt))
        transaction.effects.woken.add(part.node_id)
        if part.ordered:
            post_stop(transaction, part, _NO_GRACE_S, "the attempt is over")
    transaction.attempt_changed(attempt)


def update_job_progress(job: LiveJob) -> None:
    """Copy steps and speed of the newest report into the job's row."""
    if job.progress is not None:
        job.row.steps = max(job.row.steps, job.progress.steps)
        job.row.steps_per_s = job.progress.steps_per_s


# ------------------------------------------------------------------------------------------ machines, solves, timers


def _apply_rent(transaction: Transaction, command: Rent) -> None:
    rent = RentRow(command.token, command.pool_id, command.machines, transaction.at)
    transaction.state.rents[command.token] = rent
    transaction.rent_changed(rent)
    transaction.effects.rents.append(command)


def _apply_release_node(transaction: Transaction, command: ReleaseNode) -> None:
    node = transaction.state.nodes.get(command.node_id)
    if node is not None:
        node.row.detail = command.detail
        transaction.node_changed(node)
    transaction.effects.releases.append(command)


def _apply_node_cordoned(transaction: Transaction, command: NodeCordoned) -> None:
    node = transaction.state.nodes.get(command.node_id)
    if node is None:
        return
    if node.row.cordon == "leaving":
        return  # that it leaves is recorded with the event, and why
    if node.row.cordon != "quarantined" or node.row.detail != command.detail:
        log.warning("%s takes no new jobs: %s", command.node_id, command.detail)
    node.row.detail = command.detail if node.row.cordon else node.row.detail or command.detail
    node.row.cordon = "quarantined"
    transaction.node_changed(node)


def _apply_node_readmitted(transaction: Transaction, command: NodeReadmitted) -> None:
    node = transaction.state.nodes.get(command.node_id)
    if node is not None and node.row.cordon == "quarantined":
        node.row.cordon, node.row.detail = "", command.detail
        transaction.node_changed(node)
        log.warning("%s takes jobs again: %s", command.node_id, command.detail or "its devices have passed the check")


def _apply_budget_warned(_: Transaction, command: BudgetWarned) -> None:
    whose = command.account or "the cluster"
    used, limit, unit = command.spent_usd, command.limit_usd, command.unit.words
    log.warning("budget of %s: %s, %.2f of %.2f %s", whose, command.detail, used, limit, unit)


def _apply_solve(transaction: Transaction, command: Solve) -> None:
    transaction.effects.solves.append(command)


def _apply_wake_at(transaction: Transaction, command: WakeAt) -> None:
    transaction.effects.wakes.append(command.at)


_APPLY_COMMAND: dict[type[Command], Callable[[Transaction, Any], None]] = {
    WakeAt: _apply_wake_at,
    Solve: _apply_solve,
    Prepare: apply_prepare,
    Start: apply_start,
    Revoke: apply_revoke,
    CheckpointEvery: apply_checkpoint_every,
    Rent: _apply_rent,
    ReleaseNode: _apply_release_node,
    JobTransitioned: _apply_job_transition,
    AttemptTransitioned: _apply_attempt_transition,
    NodeCordoned: _apply_node_cordoned,
    NodeReadmitted: _apply_node_readmitted,
    BudgetWarned: _apply_budget_warned,
}


def record_kind_facts(transaction: Transaction, kind: Kind, facts: ModelFacts, user: str) -> None:
    """Give facts of a kind to the core and record them, unless it has them; `user` is empty if a job counted them."""
    is_counted = not user
    if not transaction.core.ledger.facts.has(kind, facts, counted=is_counted):
        emit(transaction, FactsTold(transaction.at, kind, facts, is_counted))
        transaction.batch.facts.append(FactsRow(kind, is_counted, dump_facts(facts), transaction.at, user))
