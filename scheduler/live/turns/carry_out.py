"""What each command of the core means to the board: rows that change, messages to agents, effects after the commit.

Nothing here decides who runs where. The one thing added is what only the live world has: what ranks are started with,
and that an attempt which is over somewhere must be told so everywhere else.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any

from scheduler.core.commands import (
    AttemptTransitioned,
    BudgetWarned,
    Command,
    JobTransitioned,
    NodeCordoned,
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
    NodeJoined,
    NodeLeaving,
    NodeLost,
    NodeUncordoned,
    PoolDeclared,
    RentFailed,
    Solved,
)
from scheduler.live.records.journal import dump_pool
from scheduler.live.records.rows import AttemptRow, PartRow, PoolRow, RentRow
from scheduler.live.turns import money
from scheduler.live.turns.board import LiveAttempt, LiveJob, placement_json
from scheduler.live.turns.turn import Turn
from walras.cluster import Placement
from walras.ids import JobId
from walras.reasons import Reason
from walras.states import AttemptState, JobState
from walras.wire import Manifest, PrepareCommand, StartCommand, StopCommand

log = logging.getLogger(__name__)

#: A part that outlives its attempt has nothing left to save: it is stopped without grace.
_NO_GRACE_S = 0.0


def emit(turn: Turn, event: Event) -> None:
    """Give an event to the core, note both, and carry its commands over to the board."""
    for _ in emit_in_pieces(turn, event):
        pass


def emit_in_pieces(turn: Turn, event: Event) -> Iterator[None]:
    """As `emit`, with a pause after the core's answer and after each of its commands: a plan may have hundreds."""
    _before(turn, event)
    commands = turn.core.handle(event)
    turn.record(event, commands)
    yield
    for command in commands:
        _CARRY[type(command)](turn, command)
        yield


def _before(turn: Turn, event: Event) -> None:
    """What the board itself learns from an event."""
    board = turn.board
    if isinstance(event, Solved):
        board.proposal, board.solved_at = event.proposal, event.at
    elif isinstance(event, PoolDeclared):
        money.pool_repriced(turn, event.pool)
        turn.batch.pools.append(PoolRow(event.pool.pool_id, dump_pool(event.pool)))
    elif isinstance(event, NodeJoined):
        money.machine_joined(turn, board.nodes[event.node_id])
    elif isinstance(event, RentFailed) and event.token in board.rents:
        rent = board.rents[event.token]
        here = sum(node.row.rent_token == event.token and node.is_member for node in board.nodes.values())
        rent.machines = here if event.machines is None else max(here, rent.machines - event.machines)
        if not rent.machines:
            rent.state = "failed"
            board.end_rent(rent)
        turn.rent_changed(rent)
    elif isinstance(event, NodeLost):
        _lose(turn, event)
    elif isinstance(event, (NodeLeaving, NodeUncordoned)):
        node = board.nodes[event.node_id]
        node.row.cordon = "leaving" if isinstance(event, NodeLeaving) else ""
        node.row.detail = ""
        turn.node_changed(node)


def _lose(turn: Turn, event: NodeLost) -> None:
    """Commands for a lost machine are void, and nothing is alive there."""
    node = turn.board.nodes[event.node_id]
    money.machine_gone(turn, node)
    node.row.state = "lost"
    if event.reason is not Reason.POLICY_RELEASED:  # then the detail says already why it was given back
        node.row.detail = event.reason.value
    turn.batch.outbox_done.extend(node.outbox)
    node.outbox.clear()
    for job_id, number in sorted(node.expected):
        attempt = turn.board.attempt(job_id, number)
        if attempt is not None:
            end_part(turn, attempt.parts[event.node_id], cause="node_lost")
    node.expected.clear()
    turn.node_changed(node)


def end_part(turn: Turn, part: PartRow, cause: str) -> None:
    """Nothing of the attempt is left on this machine."""
    part.ended, part.cause, part.ended_at = True, cause, turn.at
    turn.part_changed(part)
    turn.board.nodes[part.node_id].expected.discard((part.job_id, part.attempt))


# ------------------------------------------------------------------------------------------ jobs and attempts


def _job(turn: Turn, command: JobTransitioned) -> None:
    job = turn.board.jobs[command.job_id]
    row = job.row
    # The end of what was said before keeps its words ("by ada").
    is_same = command.reason is not None and row.reason is command.reason
    detail = command.detail or (row.detail if is_same else "")
    row.state, row.reason, row.detail = command.state, command.reason, detail
    if command.state is JobState.RUNNING and row.started_at is None:
        row.started_at = turn.at
    if command.state is JobState.PENDING and command.reason is Reason.WAIT_BACKOFF:
        row.restarts += 1
    turn.job_changed(job)
    if command.state.is_final:
        assert job.attempt is None, f"job {command.job_id} ended before its attempt {row.attempts}"
        row.ended_at = turn.at
        turn.board.end(command.job_id, command.state)


def _attempt(turn: Turn, command: AttemptTransitioned) -> None:
    job = turn.board.jobs.get(command.job_id)
    if command.state is AttemptState.LEASED:
        assert job is not None, f"job {command.job_id} is leased but not on the board"
        assert command.placement is not None, f"job {command.job_id} is leased nowhere"
        _lease(turn, job, command.attempt, command.placement)
        return
    attempt = _current(turn, command.job_id, command.attempt)
    assert job is not None
    row = attempt.row
    row.state, row.reason = command.state, command.reason
    if command.state is AttemptState.RUNNING and row.started_at is None:
        row.started_at = turn.at
    turn.attempt_changed(attempt)
    if command.state.is_final:
        money.end(turn, job)
        _close_attempt(turn, attempt)
        show_progress(job)
        job.attempt = None
        turn.job_changed(job)


def _lease(turn: Turn, job: LiveJob, number: int, placement: Placement) -> None:
    board = turn.board
    pool = board.pools[placement.pool_id]
    row = AttemptRow(
        job_id=job.row.job_id,
        attempt=number,
        state=AttemptState.LEASED,
        pool_id=placement.pool_id,
        accelerator=pool.shape.accelerator,
        emulated=pool.shape.emulated,
        accelerators=placement.accelerators,
        leased_at=turn.at,
        placement=placement_json(placement),
        usd_since_at=turn.at,
    )
    parts: dict[Any, PartRow] = {}
    for rank, share in enumerate(placement.parts):
        part = PartRow(job.row.job_id, number, share.node_id, rank)
        parts[share.node_id] = part
        board.nodes[share.node_id].expected.add((job.row.job_id, number))
        turn.part_changed(part)
    job.attempt = LiveAttempt(row, placement, parts)
    job.row.attempts = number
    job.row.accelerators = placement.accelerators
    job.progress, job.progress_told, job.speed_told = None, True, False
    job.row.steps_per_s = None
    money.begin(turn, job)
    turn.job_changed(job)


def _close_attempt(turn: Turn, attempt: LiveAttempt) -> None:
    """The attempt is over: stop what may be left of it."""
    attempt.row.ended_at = turn.at
    for part in attempt.parts.values():
        if part.ended:
            continue
        node = turn.board.nodes[part.node_id]
        node.expected.discard((part.job_id, part.attempt))
        turn.effects.woken.add(part.node_id)
        if part.ordered:
            _post_stop(turn, part, _NO_GRACE_S, "the attempt is over")
    turn.attempt_changed(attempt)


def show_progress(job: LiveJob) -> None:
    """Bring the job's row up to the newest report."""
    if job.progress is not None:
        job.row.steps = max(job.row.steps, job.progress.steps)
        job.row.steps_per_s = job.progress.steps_per_s


# ------------------------------------------------------------------------------------------ messages to agents


def _prepare(turn: Turn, command: Prepare) -> None:
    attempt = _current(turn, command.job_id, command.attempt)
    for rank, share in enumerate(command.placement.parts):
        _mark_ordered(turn, attempt.parts[share.node_id])
        turn.post(
            share.node_id,
            PrepareCommand(
                command_id=turn.next_command_id(),
                job_id=command.job_id,
                attempt=command.attempt,
                devices=list(share.devices),
                node_rank=rank,
            ),
        )


def _start(turn: Turn, command: Start) -> None:
    attempt = _current(turn, command.job_id, command.attempt)
    attempt.row.profiling = command.profiling
    turn.attempt_changed(attempt)
    first_rank = 0
    for rank, share in enumerate(command.placement.parts):
        _mark_ordered(turn, attempt.parts[share.node_id])
        turn.post(share.node_id, _start_command(turn, command, rank, first_rank))
        first_rank += len(share.devices)


def _start_command(turn: Turn, command: Start, node_rank: int, first_rank: int) -> StartCommand:
    job = turn.board.jobs[command.job_id]
    launch, checkpoint, part = job.launch, job.checkpoint, command.placement.parts[node_rank]
    pool = turn.board.pools[part.pool_id or command.placement.pool_id]
    meeting = command.rendezvous
    return StartCommand(
        command_id=turn.next_command_id(),
        job_id=command.job_id,
        attempt=command.attempt,
        name=launch.name,
        kind=launch.kind,
        argv=list(launch.argv),
        env=launch.env,
        workdir=launch.workdir,
        devices=list(part.devices),
        accelerator=pool.shape.accelerator,
        node_rank=node_rank,
        num_nodes=len(command.placement.parts),
        world_size=command.placement.accelerators,
        first_rank=first_rank,
        master_address="127.0.0.1" if meeting is None else meeting.address,
        master_port=0 if meeting is None else meeting.port,
        checkpoint_dir=launch.checkpoint_dir,
        resume=None
        if checkpoint is None
        else Manifest(step=checkpoint.step, path=checkpoint.path, digest=checkpoint.digest),
        steps=launch.steps,
        lease_s=turn.lease_s[pool.market],
        grace_s=launch.grace_s,
        job_token="",  # filled in when the command is sent: no secret is written down
    )


def _revoke(turn: Turn, command: Revoke) -> None:
    attempt = turn.board.attempt(command.job_id, command.attempt)
    if attempt is None:
        return
    for part in attempt.parts.values():
        if not part.ended:
            _post_stop(turn, part, command.grace_s, command.reason.value)


def stop_others(turn: Turn, attempt: LiveAttempt, grace_s: float, reason: str) -> None:
    """A part of a gang has failed: the rest has nobody to talk to."""
    for part in attempt.parts.values():
        if not part.ended and not part.stopped:
            part.stopped = True
            turn.part_changed(part)
            _post_stop(turn, part, grace_s, reason)


def _post_stop(turn: Turn, part: PartRow, grace_s: float, reason: str) -> None:
    if turn.board.nodes[part.node_id].row.state == "lost":
        return
    turn.post(
        part.node_id,
        StopCommand(
            command_id=turn.next_command_id(), job_id=part.job_id, attempt=part.attempt, grace_s=grace_s, reason=reason
        ),
    )


def _mark_ordered(turn: Turn, part: PartRow) -> None:
    part.ordered = True
    turn.part_changed(part)


def _current(turn: Turn, job_id: JobId, number: int) -> LiveAttempt:
    attempt = turn.board.attempt(job_id, number)
    assert attempt is not None, f"attempt {number} of job {job_id} is not on the board"
    return attempt


# ------------------------------------------------------------------------------------------ machines, solves, timers


def _rent(turn: Turn, command: Rent) -> None:
    rent = RentRow(command.token, command.pool_id, command.machines, turn.at)
    turn.board.rents[command.token] = rent
    turn.rent_changed(rent)
    turn.effects.rents.append(command)


def _release_node(turn: Turn, command: ReleaseNode) -> None:
    node = turn.board.nodes.get(command.node_id)
    if node is not None:
        node.row.detail = command.detail
        turn.node_changed(node)
    turn.effects.releases.append(command)


def _cordoned(turn: Turn, command: NodeCordoned) -> None:
    node = turn.board.nodes.get(command.node_id)
    if node is None:
        return
    node.row.cordon = node.row.cordon or "quarantined"
    node.row.detail = node.row.detail or command.detail
    turn.node_changed(node)


def _budget_warned(_: Turn, command: BudgetWarned) -> None:
    whose = command.account or "the cluster"
    log.warning("budget of %s: %s, %.2f of %.2f USD", whose, command.detail, command.spent_usd, command.limit_usd)


def _solve(turn: Turn, command: Solve) -> None:
    turn.effects.solves.append(command)


def _wake_at(turn: Turn, command: WakeAt) -> None:
    turn.effects.wakes.append(command.at)


_CARRY: dict[type[Command], Callable[[Turn, Any], None]] = {
    WakeAt: _wake_at,
    Solve: _solve,
    Prepare: _prepare,
    Start: _start,
    Revoke: _revoke,
    Rent: _rent,
    ReleaseNode: _release_node,
    JobTransitioned: _job,
    AttemptTransitioned: _attempt,
    NodeCordoned: _cordoned,
    BudgetWarned: _budget_warned,
}
