"""Starts that a machine never confirms, though it is heard: they are withdrawn, and the attempts are ended.

A start is handed out with its lease, and an agent refuses one whose lease has run out. So a lease after a start was
handed out for the last time, an attempt that its machine does not name cannot be alive. Commands that an agent of an
older release cannot take are never handed out.
"""

import logging

from scheduler.core.events import StartRefused
from scheduler.live.loop.apply_commands import emit, end_part, post_stop
from scheduler.live.loop.live_state import LiveNode, LiveState
from scheduler.live.loop.transaction import Transaction
from scheduler.live.store.table_rows import PartRow
from walras.job_needs import JobNeeds
from walras.job_request import JobId
from walras.states import AttemptState
from walras.wire import AgentCommand, StartCommand

log = logging.getLogger(__name__)
_WITHDRAWN = "start_timeout"
#: What agents of the first protocol take; for one of another type they lose the whole answer.
_FIRST_COMMAND_TYPES = frozenset({"prepare", "start", "stop"})


def is_known_to(command: AgentCommand, protocol: int) -> bool:
    """Whether an agent that speaks this protocol does what the command says, or skips it without harm to others."""
    if protocol > 1:
        return True
    if isinstance(command, StartCommand):
        return not (command.code or command.is_launcher or command.needs != JobNeeds())
    return getattr(command, "type", "") in _FIRST_COMMAND_TYPES


def has_unconfirmed(state: LiveState, node: LiveNode, now: float, limit_s: float) -> bool:
    """Whether a start on a machine that is heard has waited for too long. Notes since when those wait that do."""
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
    """Take back starts that were never confirmed; end those whose withdrawal was not confirmed either."""
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
        transaction.batch.outbox_done.extend(starts)
        part.cause = _WITHDRAWN
        transaction.part_changed(part)
        post_stop(transaction, part, 0.0, "its start was never confirmed")
        node.unconfirmed[key] = transaction.at


def drop_unknown(transaction: Transaction, node: LiveNode, protocol: int) -> None:
    """Take commands out of the outbox that an agent of this protocol does not know; a start of them is refused."""
    unknown = [command for command in node.outbox.values() if not is_known_to(command, protocol)]
    for command in unknown:
        del node.outbox[command.command_id]
        transaction.batch.outbox_done.append(command.command_id)
        attempt = transaction.state.attempt(JobId(command.job_id), command.attempt)
        part = None if attempt is None else attempt.parts.get(node.row.node_id)
        if isinstance(command, StartCommand) and part is not None and not part.ended:
            detail = "its agent is of an older release, which knows nothing of what this job brings; upgrade the agent"
            end_part(transaction, part, "refused")
            emit(transaction, StartRefused(transaction.at, part.job_id, part.attempt, part.node_id, detail))


def is_withdrawn(part: PartRow) -> bool:
    """The start was taken back, and nothing of the attempt has begun."""
    return part.cause == _WITHDRAWN and not part.started


def is_stopped_late(part: PartRow) -> bool:
    """The start was taken back as its ranks began: that they end is our doing, not theirs."""
    return part.cause == _WITHDRAWN and part.started


def refuse_withdrawn(transaction: Transaction, part: PartRow, limit_s: float | None = None) -> None:
    """Nothing of the attempt lives: end it as one that never started."""
    waited = "in time" if limit_s is None else f"within {limit_s:g} s"
    detail = f"the machine is heard, but did not confirm the start {waited}"
    log.warning("job %d attempt %d on %s: %s", part.job_id, part.attempt, part.node_id, detail)
    end_part(transaction, part, "refused")
    emit(transaction, StartRefused(transaction.at, part.job_id, part.attempt, part.node_id, detail))
