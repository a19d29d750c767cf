"""Notices that a machine will be taken away: what they change, and what becomes of one that the machine outlives."""

import logging

from scheduler.core.events import NodeLeaving, NodeUncordoned
from scheduler.live.loop.apply_commands import emit
from scheduler.live.loop.departures import end_notice, leave_with_pool
from scheduler.live.loop.live_state import LiveNode
from scheduler.live.loop.transaction import Transaction

log = logging.getLogger(__name__)

#: Seconds after the end that a notice told for which the machine is still expected to go.
OUTLIVED_S = 600.0


def begin_node_departure(transaction: Transaction, node: LiveNode, gone_in_s: float) -> None:
    """Drain a machine that will be taken away in `gone_in_s`; another notice before it is gone changes nothing."""
    if node.is_member and node.row.notice_s is None:
        emit(transaction, NodeLeaving(transaction.at, node.row.node_id, transaction.at + gone_in_s))
        node.outlives_at = transaction.at + gone_in_s + OUTLIVED_S


def outlives_notice(node: LiveNode) -> bool:
    """Returns whether a machine was heard `OUTLIVED_S` after the end that a notice told, or nobody knows when that is.

    It was not taken away, or it was stopped and came back, or the notice was late.
    """
    has_notice = node.is_member and node.row.notice_s is not None
    return has_notice and (node.outlives_at is None or node.heard_at > node.outlives_at)


def end_outlived_notice(transaction: Transaction, node: LiveNode) -> None:
    """Let a machine that `outlives_notice` take jobs again, unless it or its pool is drained.

    A notice that was told to a server before this one counts as if it were told now.
    """
    if node.outlives_at is None:
        node.outlives_at = transaction.at + OUTLIVED_S
    elif node.row.drained_by or transaction.state.pools[node.row.pool_id].drained:
        end_notice(node)
        if not node.row.drained_by:
            leave_with_pool(node)
        transaction.node_changed(node)
    else:
        log.warning("%s has outlived the notice of its end and takes jobs again", node.row.node_id)
        emit(transaction, NodeUncordoned(transaction.at, node.row.node_id))
