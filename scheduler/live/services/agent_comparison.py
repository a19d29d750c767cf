"""Compares what an agent says is on its machine with what the tables expect there, both ways.

What is expected and not there has died unseen, unless its start is still on its way. What is there and not expected is
fenced. After a restore the tables are older than the world: no machine of theirs gets anything new until all of them
have said what they run and ran, or their leases have run out; what ran on and is known goes on, reports are told again,
and numbers that were given out after the backup are skipped.
"""

import logging

from scheduler.core.events import JobHeld, NodeBack
from scheduler.live.loop.apply_commands import emit
from scheduler.live.loop.live_state import LiveNode, LiveState
from scheduler.live.loop.transaction import Transaction
from scheduler.live.services.agent_identity import highest_number_told
from scheduler.live.services.agent_reports import end_vanished_part
from scheduler.live.services.unconfirmed_starts import is_withdrawn, refuse_withdrawn
from walras.job_request import JobId
from walras.states import Reason
from walras.wire import AttemptHere, Heartbeat, PrepareCommand, StartCommand

log = logging.getLogger(__name__)


def compare_machine(transaction: Transaction, node: LiveNode, message: Heartbeat) -> None:
    """The agent has (re)started and `here` is all there is: what should be there and is not has died unseen."""
    node.sent_id = 0  # whatever was on its way may be lost: say it again
    here = {(here.job_id, here.attempt) for here in message.here if is_expected(transaction.state, node, here)}
    # Posts of this transaction are in no outbox yet: an attempt granted by a report of this very message is coming.
    posted = [command for node_id, command in transaction.effects.posts if node_id == node.row.node_id]
    coming = {
        (command.job_id, command.attempt)
        for command in (*node.outbox.values(), *posted)
        if isinstance(command, (StartCommand, PrepareCommand))
    }
    for job_id, number in sorted(node.expected):
        attempt = transaction.state.attempt(job_id, number)
        if attempt is None or (job_id, number) in here or (job_id, number) in coming:
            continue
        part = attempt.parts[node.row.node_id]
        if is_withdrawn(part):
            refuse_withdrawn(transaction, part)
        elif part.ordered:
            end_vanished_part(transaction, part)


def is_expected(state: LiveState, node: LiveNode, here: AttemptHere) -> bool:
    """Whether the tables expect this very attempt on the machine: the number alone may have been given out twice."""
    job_id = JobId(here.job_id)
    attempt = state.attempt(job_id, here.attempt)
    return (job_id, here.attempt) in node.expected and (
        attempt is None or here.incarnation in ("", attempt.row.incarnation)
    )


def unexpected_here(state: LiveState, node: LiveNode, message: Heartbeat) -> list[AttemptHere]:
    """The attempts that the agent must stop at once."""
    return [here for here in message.here if not is_expected(state, node, here)]


# ------------------------------------------------------------------------------------------ after a restore


def begin_after_restore(state: LiveState, former: tuple[str, ...]) -> None:
    """Mark the machines that have not met this incarnation yet, if there were others before it."""
    state.former = frozenset(former)
    for node in state.nodes.values():
        node.must_meet = bool(former) and node.is_member and node.row.incarnation != state.identity.incarnation
        if node.must_meet:
            node.row.state = "unreachable"


def is_settled(state: LiveState) -> bool:
    """Every machine of the tables has said what it runs and ran, or is lost: nothing can be started twice."""
    return not any(node.must_meet and node.is_member for node in state.nodes.values())


def meet_machine(transaction: Transaction, node: LiveNode, message: Heartbeat, after_restore: str) -> None:
    """The agent says after a restore what it has; its reports have been taken.

    The machine is awaited until what the tables do not know has ended there: its job may be about to start elsewhere.
    """
    state, row = transaction.state, node.row
    unknown = unexpected_here(state, node, message)
    if not node.has_told:
        node.has_told = True
        state.next_job_id = max(state.next_job_id, highest_number_told(state, message) + 1)
        for each in unknown:
            log.warning(
                "%s runs attempt %d of job %d (incarnation %s), which the restored tables do not know: it is stopped",
                row.node_id, each.attempt, each.job_id, each.incarnation or "unknown",
            )  # fmt: skip
        if after_restore == "stop":
            _hold_jobs_on(transaction, node)
    if not unknown:
        node.must_meet, row.incarnation = False, state.identity.incarnation
        transaction.node_changed(node)
        log.info("%s has said what it has after the restore", row.node_id)


def _hold_jobs_on(transaction: Transaction, node: LiveNode) -> None:
    for job_id, _ in sorted(node.expected):
        log.warning("job %d is held after the restore: release it to let it go on", job_id)
        emit(transaction, JobHeld(transaction.at, job_id, Reason.HOLD_ADMIN))


def settle_machines(transaction: Transaction, unreachable_s: float) -> None:
    """Once nothing is awaited any more, let the machines that are heard take jobs again."""
    if not is_settled(transaction.state):
        return
    for node in list(transaction.state.nodes.values()):
        if node.row.state == "unreachable" and transaction.at - node.heard_at <= unreachable_s:
            welcome_back(transaction, node)


def welcome_back(transaction: Transaction, node: LiveNode) -> None:
    """The machine is heard again before its leases ran out."""
    node.row.state = "up"
    transaction.node_changed(node)
    log.info("%s is back", node.row.node_id)
    emit(transaction, NodeBack(transaction.at, node.row.node_id))
