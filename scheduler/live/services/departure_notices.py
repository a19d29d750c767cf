"""Notices that a machine will be taken away: what they change, and what becomes of one that the machine outlives."""

import logging

from scheduler.core.events import NodeLeaving, NodeUncordoned
from scheduler.live.loop.apply_commands import emit, leave_with_pool
from scheduler.live.loop.live_state import LiveNode
from scheduler.live.loop.transaction import Transaction

log = logging.getLogger(__name__)

#: Seconds after the end that a notice told for which the machine is still expected to go.
OUTLIVED_S = 600.0
#: How a machine's detail begins while a notice drains it.
_NOTICE = "notice: "


def begin_node_departure(transaction: Transaction, node: LiveNode, gone_in_s: float) -> None:
    """Drain a machine that will be taken away in `gone_in_s`."""
    if node.is_member and (node.row.cordon != "leaving" or node.row.drain_until_at is not None):
        emit(transaction, NodeLeaving(transaction.at, node.row.node_id, transaction.at + gone_in_s))
        node.row.detail = f"{_NOTICE}gone in {gone_in_s:g} s"
        node.outlives_at = transaction.at + gone_in_s + OUTLIVED_S


def outlives_notice(node: LiveNode) -> bool:
    """Returns whether a machine was heard `OUTLIVED_S` after the end that a notice told, or nobody knows when that is.

    It was not taken away, or it was stopped and came back, or the notice was late.
    """
    has_notice = node.is_member and node.row.cordon == "leaving" and node.row.detail.startswith(_NOTICE)
    return has_notice and (node.outlives_at is None or node.heard_at > node.outlives_at)


def end_outlived_notice(transaction: Transaction, node: LiveNode) -> None:
    """Let a machine that `outlives_notice` take jobs again, unless its pool is drained.

    A notice that was told to a server before this one counts as if it were told now.
    """
    if node.outlives_at is None:
        node.outlives_at = transaction.at + OUTLIVED_S
    elif transaction.state.pools[node.row.pool_id].drained:
        leave_with_pool(node)
        transaction.node_changed(node)
    else:
        log.warning("%s has outlived the notice of its end and takes jobs again", node.row.node_id)
        emit(transaction, NodeUncordoned(transaction.at, node.row.node_id))
