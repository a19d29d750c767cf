"""Compares the attempts that an agent reports on its machine with those that the tables expect there.

An expected attempt that is not there has ended unnoticed, unless its start is still on its way. An attempt that is
there and not expected is fenced. After a restore the tables are older than the world: no machine in them gets anything
new until all of them have reported what they run and ran, or their leases have run out. Attempts that still run and are
known continue, reports are sent again, and numbers that were given out after the backup are skipped.
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
    """End the expected attempts that the agent does not have: it has just started, and says all that runs there."""
    node.sent_id = 0  # commands on their way may be lost: send them again
    here = {(here.job_id, here.attempt) for here in message.here if is_expected(transaction.state, node, here)}
    # Commands of this transaction are in no outbox yet, such as the start of an attempt that this message's reports
    # cause.
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
    """Returns whether the tables expect this very attempt there; its number may have been given out twice."""
    job_id = JobId(here.job_id)
    attempt = state.attempt(job_id, here.attempt)
    return (job_id, here.attempt) in node.expected and (
        attempt is None or here.incarnation in ("", attempt.row.incarnation)
    )


def unexpected_here(state: LiveState, node: LiveNode, message: Heartbeat) -> list[AttemptHere]:
    """Returns the attempts that the agent must stop at once."""
    return [here for here in message.here if not is_expected(state, node, here)]


# ------------------------------------------------------------------------------------------ after a restore


def begin_after_restore(state: LiveState, former: tuple[str, ...]) -> None:
    """Mark machines that must still be compared with the tables, if the database was ever restored."""
    state.former = frozenset(former)
    for node in state.nodes.values():
        node.must_meet = bool(former) and node.is_member and node.row.incarnation != state.identity.incarnation
        if node.must_meet:
            node.row.state = "unreachable"


def is_settled(state: LiveState) -> bool:
    """Returns whether every machine of the tables was compared or is lost, so that nothing can be started twice.

    Looks at every machine, so no heartbeat of one that is up should ask.
    """
    return not any(node.must_meet and node.is_member for node in state.nodes.values())


def meet_machine(transaction: Transaction, node: LiveNode, message: Heartbeat, after_restore: str) -> None:
    """Take what an agent reports after a restore; its reports about attempts have been taken already.

    The machine stays marked until the attempts that the tables do not know have ended there: their jobs may be about to
    start elsewhere.
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
    """Let reachable machines take jobs again, once every machine was compared."""
    if not is_settled(transaction.state):
        return
    for node in list(transaction.state.nodes.values()):
        if node.row.state == "unreachable" and transaction.at - node.heard_at <= unreachable_s:
            welcome_back(transaction, node)


def welcome_back(transaction: Transaction, node: LiveNode) -> None:
    """Mark a machine as up that was heard again before its leases ran out."""
    node.row.state = "up"
    transaction.node_changed(node)
    log.info("%s is back", node.row.node_id)
    emit(transaction, NodeBack(transaction.at, node.row.node_id))
