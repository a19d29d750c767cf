"""Applies each command of the core to the live state: rows change, agents get messages, effects follow the commit.

Commands about attempts become messages to the agents of their machines: prepare, start, save, stop. Nothing here
decides who runs where. It adds only what the core does not know: what ranks are started with, and that an attempt which
is over on one machine must be stopped on all others.
"""

import json
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
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
    RankJobs,
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
    PolicyChanged,
    PoolDeclared,
    PoolRemoved,
    RentFailed,
    Solved,
)
from scheduler.core.speed_events import FactsTold, SpeedsPredicted
from scheduler.core.state.throughput import shared_news
from scheduler.live.loop import billing
from scheduler.live.loop.claimed_speeds import data_sheets
from scheduler.live.loop.departures import leave_with_pool, note_leaving, note_loss, note_return
from scheduler.live.loop.live_state import LiveAttempt, LiveJob, accelerators_text, placement_json
from scheduler.live.loop.notification_events import note_command, note_event
from scheduler.live.loop.transaction import Transaction
from scheduler.live.store.event_journal import dump_json
from scheduler.live.store.table_rows import (
    AttemptRow,
    CheckpointRow,
    FactsRow,
    OutboxRow,
    PartRow,
    PoolRow,
    RentRow,
    SecretRow,
)
from walras.cluster import Placement, Pool
from walras.job_request import JobId, Kind, place_roles, roles_of
from walras.model_facts import ModelFacts
from walras.spec.roles import ROLES_VARIABLE
from walras.states import AttemptState, JobState, Reason
from walras.wire import CheckpointEveryCommand, Manifest, PrepareCommand, StartCommand, StopCommand


def apply_prepare(transaction: Transaction, command: Prepare) -> None:
    """Orders each machine of a gang to prepare its part."""
    attempt = current_attempt(transaction, command.job_id, command.attempt)
    for rank, share in enumerate(command.placement.parts):
        _mark_ordered(transaction, attempt.parts[share.node_id])
        transaction.post(
            share.node_id,
            PrepareCommand(
                command_id=transaction.next_command_id(),
                job_id=command.job_id,
                attempt=command.attempt,
                incarnation=attempt.row.incarnation,
                devices=list(share.devices),
                node_rank=rank,
            ),
        )


def apply_start(transaction: Transaction, command: Start) -> None:
    """Orders each machine of the attempt to start its ranks; none once a part has ended: the others end with it."""
    attempt = current_attempt(transaction, command.job_id, command.attempt)
    attempt.row.profiling = command.profiling
    transaction.attempt_changed(attempt)
    if any(part.ended for part in attempt.parts.values()):
        return
    first_rank = 0
    for rank, share in enumerate(command.placement.parts):
        _mark_ordered(transaction, attempt.parts[share.node_id])
        transaction.post(share.node_id, _start_command(transaction, command, rank, first_rank))
        first_rank += 1 if transaction.state.jobs[command.job_id].launch.is_launcher else len(share.devices)


def _start_command(transaction: Transaction, command: Start, node_rank: int, first_rank: int) -> StartCommand:
    job = transaction.state.jobs[command.job_id]
    launch, checkpoint, part = job.launch, job.checkpoint, command.placement.parts[node_rank]
    pool = transaction.state.pools[part.pool_id or command.placement.pool_id]
    meeting, told = command.rendezvous, launch.command_fields()
    if launch.needs.is_prepared_first:
        told["needs"] = launch.needs.model_copy(update={"owner": f"{job.row.project}/{job.row.user}"})
    told["env"]["WALRAS_ACCELERATORS"] = accelerators_text(transaction.state.pools, command.placement)
    if ROLES_VARIABLE in told["env"]:
        told["env"][ROLES_VARIABLE] = _roles_on(transaction, command, node_rank, told["env"][ROLES_VARIABLE])
    if meeting is not None:
        told["env"]["WALRAS_NODE_ADDRESSES"] = _addresses(transaction, command)
    return StartCommand(
        command_id=transaction.next_command_id(),
        job_id=command.job_id,
        attempt=command.attempt,
        incarnation=_incarnation_of(transaction, command.job_id, command.attempt),
        **told,
        user=job.row.user,
        devices=list(part.devices),
        accelerator=pool.shape.accelerator,
        node_rank=node_rank,
        num_nodes=len(command.placement.parts),
        world_size=command.placement.accelerators,
        first_rank=first_rank,
        master_address="127.0.0.1" if meeting is None else meeting.address,
        master_port=0 if meeting is None else meeting.port,
        checkpoint_dir=launch.checkpoint_dir,
        store=launch.store,
        resume=None if checkpoint is None else _manifest(checkpoint),
        steps=launch.steps,
        beside=command.beside or 0,
        lease_s=transaction.lease_s[pool.market],
        grace_s=launch.grace_s,
        checkpoint_every_s=command.checkpoint_every_s,
        memory_bytes=launch.memory_bytes * len(part.devices),
        job_token="",  # filled in when the command is sent: no secret is written down
    )


def _roles_on(transaction: Transaction, command: Start, node_rank: int, roles: str) -> str:
    """Returns the roles, each with its count, and the processes of one machine: role, index, first device, devices."""
    pools, placement = transaction.state.pools, command.placement
    types = [pools[part.pool_id or placement.pool_id].shape.accelerator for part in placement.parts]
    machines = list(zip(types, (len(part.devices) for part in placement.parts), strict=True))
    uses = roles_of(transaction.core.ledger.jobs[command.job_id].request, machines)
    here, taken = [], 0
    for use, index in place_roles(uses, machines)[node_rank]:
        here.append((use.name, index, taken, use.each))
        taken += use.each
    told = {use.name: json.loads(roles)[use.name] | {"count": use.count} for use in uses}
    return json.dumps({"roles": told, "here": here})


def _addresses(transaction: Transaction, command: Start) -> str:
    """Returns the addresses of the gang's machines in their order; empty unless all agents told one."""
    attempt = current_attempt(transaction, command.job_id, command.attempt)
    told = [attempt.parts[share.node_id].address for share in command.placement.parts]
    return ",".join(told) if all(re.fullmatch(r"[\w.:%-]+", each, re.ASCII) for each in told) else ""


def _manifest(row: CheckpointRow) -> Manifest:
    return Manifest(step=row.step, path=row.path, digest=row.digest, content=row.content, store=row.store)


def apply_checkpoint_every(transaction: Transaction, command: CheckpointEvery) -> None:
    """Tell the machine of the first rank, which decides when all ranks save."""
    attempt = transaction.state.attempt(command.job_id, command.attempt)
    for part in () if attempt is None else attempt.parts.values():
        if part.node_rank == 0 and not part.ended and transaction.state.nodes[part.node_id].row.state != "lost":
            post = CheckpointEveryCommand(
                command_id=transaction.next_command_id(),
                job_id=part.job_id,
                attempt=part.attempt,
                incarnation=_incarnation_of(transaction, part.job_id, part.attempt),
                every_s=command.every_s,
            )
            transaction.post(part.node_id, post)


def apply_revoke(transaction: Transaction, command: Revoke) -> None:
    """Orders each machine of the attempt to save and stop its ranks; nothing if the attempt has ended."""
    attempt = transaction.state.attempt(command.job_id, command.attempt)
    if attempt is None:
        return
    if attempt.row.state is AttemptState.STOPPING:  # perhaps for another reason before, which a restart must not revive
        attempt.row.reason = command.reason
    # The reason does not tell whether the job is held: a drain stops for an administrator and holds nothing.
    job = transaction.core.ledger.jobs.get(command.job_id)
    attempt.row.held_by = None if job is None else job.hold_reason
    transaction.attempt_changed(attempt)
    for part in attempt.parts.values():
        if not part.ended:
            post_stop(transaction, part, command.grace_s, command.reason.value)


def note_release(transaction: Transaction, job_id: JobId) -> None:
    """Record that the job is not to be held once its attempt has ended."""
    job = transaction.state.jobs.get(job_id)
    if job is not None and job.attempt is not None and job.attempt.row.held_by is not None:
        job.attempt.row.held_by = None
        transaction.attempt_changed(job.attempt)


def stop_other_parts(transaction: Transaction, attempt: LiveAttempt, grace_s: float, reason: str) -> None:
    """Stop the other parts of a gang after one has failed, since they cannot continue without it."""
    for part in attempt.parts.values():
        if not part.ended and not part.stopped:
            part.stopped = True
            transaction.part_changed(part)
            post_stop(transaction, part, grace_s, reason)


def post_stop(transaction: Transaction, part: PartRow, grace_s: float, reason: str) -> None:
    """Queue the command that stops the machine's part of the attempt; nothing for a lost machine."""
    if transaction.state.nodes[part.node_id].row.state == "lost":
        return
    transaction.post(
        part.node_id,
        StopCommand(
            command_id=transaction.next_command_id(),
            job_id=part.job_id,
            attempt=part.attempt,
            incarnation=_incarnation_of(transaction, part.job_id, part.attempt),
            grace_s=grace_s,
            reason=reason,
        ),
    )


def _mark_ordered(transaction: Transaction, part: PartRow) -> None:
    part.ordered = True
    transaction.part_changed(part)


def _incarnation_of(transaction: Transaction, job_id: JobId, number: int) -> str:
    """Returns the incarnation that granted the attempt, which is an earlier one after a restore."""
    return current_attempt(transaction, job_id, number).row.incarnation


def current_attempt(transaction: Transaction, job_id: JobId, number: int) -> LiveAttempt:
    """Returns the job's attempt, which has to be its current one."""
    attempt = transaction.state.attempt(job_id, number)
    assert attempt is not None, f"attempt {number} of job {job_id} is not in the live state"
    return attempt


log = logging.getLogger(__name__)


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
    elif isinstance(event, PolicyChanged):
        state.proposal = None  # its prices and its certificate are of the policy before
    elif isinstance(event, PoolDeclared):
        _apply_pool_declared(transaction, event.pool)
    elif isinstance(event, PoolRemoved):
        pool = replace(state.pools.pop(event.pool_id), removed=True)
        state.removed_pools[event.pool_id] = pool
        state.expected_machines.pop(event.pool_id, None)
        transaction.batch.put(PoolRow(pool.pool_id, dump_json(pool)))
    elif isinstance(event, NodeJoined):
        billing.machine_joined(transaction, state.nodes[event.node_id])
    elif isinstance(event, RentFailed) and event.token in state.rents:
        rent = state.rents[event.token]
        here = state.here_of(event.token)
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
    transaction.batch.put(PoolRow(pool.pool_id, dump_json(pool)))
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
    transaction.batch.delete(OutboxRow, *node.outbox)
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
            transaction.batch.delete(SecretRow, command.job_id)
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
    """Record the end of an attempt. Parts that may still be alive were told to stop when it was revoked."""
    attempt.row.ended_at = transaction.at
    for part in attempt.parts.values():
        if part.ended:
            continue
        node = transaction.state.nodes[part.node_id]
        node.expected.discard((part.job_id, part.attempt))
        transaction.effects.woken.add(part.node_id)
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


def _apply_solve(transaction: Transaction, command: Solve | RankJobs) -> None:
    transaction.effects.solves.append(command)


def _apply_wake_at(transaction: Transaction, command: WakeAt) -> None:
    transaction.effects.wakes.append(command.at)


_APPLY_COMMAND: dict[type[Command], Callable[[Transaction, Any], None]] = {
    WakeAt: _apply_wake_at,
    Solve: _apply_solve,
    RankJobs: _apply_solve,
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


def share_speeds(transaction: Transaction, program: str) -> None:
    """Tell the core what projects learn of each other's measurements of a program that they run."""
    speeds = shared_news(transaction.core.ledger.table, program, data_sheets()) if program else ()
    if speeds:
        emit(transaction, SpeedsPredicted(transaction.at, speeds))


def record_kind_facts(transaction: Transaction, kind: Kind, facts: ModelFacts, user: str) -> None:
    """Give facts of a kind to the core and record them, unless it has them; `user` is empty if a job counted them."""
    is_counted = not user
    if not transaction.core.ledger.facts.has(kind, facts, counted=is_counted):
        emit(transaction, FactsTold(transaction.at, kind, facts, is_counted))
        transaction.batch.put(FactsRow(kind, is_counted, dump_json(facts), transaction.at, user))
