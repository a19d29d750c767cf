"""Starts that a machine refuses, or never confirms though it is reachable: those are withdrawn.

A start is sent with its lease, and an agent refuses one whose lease has run out. So, one lease after a start was last
sent, an attempt that its machine does not report cannot be alive. Commands that an agent of an older release does not
know are never sent.
"""

import logging

from scheduler.core.events import JobHeld, StartRefused
from scheduler.live.loop.apply_commands import emit, end_part, post_stop, stop_other_parts
from scheduler.live.loop.live_state import LiveAttempt, LiveJob, LiveNode, LiveState
from scheduler.live.loop.transaction import Transaction
from scheduler.live.store.table_rows import OutboxRow, PartRow
from walras.job_needs import JobNeeds
from walras.job_request import JobId
from walras.states import AttemptState, Reason
from walras.wire import AgentCommand, StartCommand

log = logging.getLogger(__name__)
_WITHDRAWN = "start_timeout"
#: How a part ended of which nothing ever ran.
_REFUSED = "refused"
#: Command types of the first protocol; an agent of that protocol loses the whole answer over any other.
_FIRST_COMMAND_TYPES = frozenset({"prepare", "start", "stop"})


def is_known_to(command: AgentCommand, protocol: int) -> bool:
    """Returns whether an agent of this protocol carries the command out, or skips it without harm."""
    if protocol > 1:
        return True
    if isinstance(command, StartCommand):
        return not (command.code or command.is_launcher or command.needs != JobNeeds())
    return getattr(command, "type", "") in _FIRST_COMMAND_TYPES


def has_unconfirmed(state: LiveState, node: LiveNode, now: float, limit_s: float) -> bool:
    """Returns whether a start on a reachable machine has waited for over `limit_s`; notes since when each waits."""
    waiting = {key for key in node.expected if _is_unconfirmed(state, node, key)} if node.row.state == "up" else set()
    node.unconfirmed = {key: node.unconfirmed.get(key, now) for key in waiting}
    return any(now - since > limit_s for since in node.unconfirmed.values())


def _is_unconfirmed(state: LiveState, node: LiveNode, key: tuple[JobId, int]) -> bool:
    attempt = state.attempt(*key)
    if attempt is None or key in node.alive or attempt.row.state is AttemptState.STOPPING:
        return False
    is_ordered = len(attempt.parts) == 1 or all(part.prepared for part in attempt.parts.values())
    part = attempt.parts[node.row.node_id]
    return is_ordered and part.ordered and not part.started and not part.ended


def withdraw_unconfirmed(transaction: Transaction, node: LiveNode, limit_s: float) -> None:
    """Withdraw starts that were never confirmed, and end attempts whose withdrawal was not confirmed either."""
    for key, since in list(node.unconfirmed.items()):
        attempt = transaction.state.attempt(*key)
        if attempt is None or transaction.at - since <= limit_s:
            continue
        part = attempt.parts[node.row.node_id]
        if part.cause == _WITHDRAWN:
            refuse_withdrawn(transaction, part, limit_s)
            continue
        starts = [
            command_id
            for command_id, command in node.outbox.items()
            if isinstance(command, StartCommand) and (command.job_id, command.attempt) == key
        ]
        for command_id in starts:
            del node.outbox[command_id]
        transaction.batch.delete(OutboxRow, *starts)
        part.cause = _WITHDRAWN
        transaction.part_changed(part)
        post_stop(transaction, part, 0.0, "its start was never confirmed")
        node.unconfirmed[key] = transaction.at


def drop_unknown(transaction: Transaction, node: LiveNode, protocol: int) -> None:
    """Drop commands that an agent of this protocol does not know; a start among them counts as refused."""
    detail = "its agent is of an older release, which knows nothing of what this job brings; upgrade the agent"
    for command in list(node.outbox.values()):
        if not is_known_to(command, protocol):
            drop_command(transaction, node, command, detail)


def drop_command(transaction: Transaction, node: LiveNode, command: AgentCommand, detail: str) -> None:
    """Drop a command that cannot be sent; a start counts as refused. `detail`: why."""
    del node.outbox[command.command_id]
    transaction.batch.delete(OutboxRow, command.command_id)
    attempt = transaction.state.attempt(JobId(command.job_id), command.attempt)
    part = None if attempt is None else attempt.parts.get(node.row.node_id)
    if isinstance(command, StartCommand) and part is not None and not part.ended:
        refuse_start(transaction, part, detail)


def refuse_start(transaction: Transaction, part: PartRow, detail: str, *, lost_code: str = "") -> None:
    """End a part of which nothing ever ran. `detail`: why; `lost_code`: the name of the job's code if nobody has it.

    The other machines of a gang may have begun theirs. The core gives their places away when it hears of the refusal,
    so it hears of it once those parts have ended too.
    """
    attempt = transaction.state.attempt(part.job_id, part.attempt)
    assert attempt is not None, f"attempt {part.attempt} of job {part.job_id} is not in the live state"
    end_part(transaction, part, _REFUSED)
    attempt.refusal, attempt.lost_code = attempt.refusal or detail, attempt.lost_code or lost_code
    if any(each.ordered and not each.ended for each in attempt.parts.values()):
        stop_other_parts(transaction, attempt, 0.0, "a part of the gang was refused")
    else:
        tell_refused(transaction, attempt)


def tell_refused(transaction: Transaction, attempt: LiveAttempt) -> bool:
    """Tell the core of an attempt of which a part was refused. Returns False if none was.

    A job whose code is lost is held: no machine is at fault, and none can mend it.
    """
    refused = [part for part in attempt.parts.values() if part.cause == _REFUSED]
    if not refused:
        return False
    first = min(refused, key=lambda part: part.ended_at or 0.0)
    detail = attempt.refusal or "its part was refused"  # before the server's last start
    blamed = None if attempt.lost_code else first.node_id
    job = transaction.state.jobs[first.job_id]
    emit(transaction, StartRefused(transaction.at, first.job_id, first.attempt, blamed, detail))
    if attempt.lost_code:
        lacking = f"its code {attempt.lost_code[:12]} is not with the server"
        hold_for_people(
            transaction, job, f"{lacking}: submit from its folder again, then cancel this job or release it"
        )
    return True


def hold_for_people(transaction: Transaction, job: LiveJob, detail: str) -> None:
    """Hold a job until somebody looks at it. `detail`: why, and what they can do."""
    log.warning("job %d: %s", job.row.job_id, detail)
    emit(transaction, JobHeld(transaction.at, job.row.job_id, Reason.HOLD_ADMIN))
    if not job.row.state.is_final:  # it was cancelled meanwhile
        job.row.detail = detail
        transaction.job_changed(job)


def is_withdrawn(part: PartRow) -> bool:
    """Returns whether the start was withdrawn and nothing of the attempt has begun."""
    return part.cause == _WITHDRAWN and not part.started


def is_stopped_late(part: PartRow) -> bool:
    """Returns whether the start was withdrawn as its ranks began, so that the server caused their end."""
    return part.cause == _WITHDRAWN and part.started


def refuse_withdrawn(transaction: Transaction, part: PartRow, limit_s: float | None = None) -> None:
    """End an attempt of which nothing is alive as one that never started."""
    waited = "in time" if limit_s is None else f"within {limit_s:g} s"
    detail = f"the machine is heard, but did not confirm the start {waited}"
    log.warning("job %d attempt %d on %s: %s", part.job_id, part.attempt, part.node_id, detail)
    refuse_start(transaction, part, detail)
