"""Commands of the core about attempts, as messages to the agents of their machines: prepare, start, save, stop."""

import re

from scheduler.core.commands import (
    CheckpointEvery,
    Prepare,
    Revoke,
    Start,
)
from scheduler.live.loop.live_state import LiveAttempt, accelerators_text
from scheduler.live.loop.transaction import Transaction
from scheduler.live.store.table_rows import CheckpointRow, PartRow
from walras.job_request import JobId
from walras.states import AttemptState
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
    told["env"]["WALRAS_ACCELERATORS"] = accelerators_text(transaction.state.pools, command.placement)
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
