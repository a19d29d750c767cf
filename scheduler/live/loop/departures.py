"""Why a machine leaves: a notice that it will be taken away, a drain by an administrator, or the drain of its pool.

A notice (`NodeRow.notice_s`) and a drain (`NodeRow.drained_by`) are two facts, of which either may begin and end while
the other holds. Only this module writes them, the cordon that follows from them, and the words that people read.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

from scheduler.core.events import NodeLeaving
from scheduler.live.loop.live_state import LiveNode
from scheduler.live.store.table_rows import DrainedBy
from walras.states import Reason

#: The detail of machines that are drained because their pool is.
POOL_IS_DRAINED = "its pool is drained; what cannot be saved runs on"
_LEAVING = "leaving"
#: The columns of a machine's row that tell whether and why it leaves.
_FACTS = ("cordon", "detail", "drain_until_at", "drained_by", "notice_s")


def note_leaving(node: LiveNode, event: NodeLeaving) -> None:
    """Note that the machine will be taken away, or that an administrator drains it, by the reason of the event."""
    row = node.row
    row.cordon = _LEAVING
    row.drain_until_at = event.gone_at if event.gentle else None
    if event.reason is Reason.INFRA_SPOT_RECLAIM:
        row.notice_s = max(0.0, event.gone_at - event.at)
        row.detail = row.detail if row.drained_by else ""
    else:
        row.drained_by, row.detail = DrainedBy.ADMIN, ""


def leave_with_pool(node: LiveNode) -> None:
    """Mark the machine as drained with its pool: its jobs may run to their ends, and it returns when its pool does."""
    row = node.row
    row.cordon, row.drain_until_at, row.drained_by, row.detail = _LEAVING, inf, DrainedBy.POOL, POOL_IS_DRAINED


def end_notice(node: LiveNode) -> None:
    """Drop the notice of a machine that stays drained."""
    node.row.notice_s = node.outlives_at = None


def end_pool_drain(node: LiveNode) -> None:
    """Drop the drain by the pool of a machine that stays out by a notice."""
    node.row.drained_by, node.row.detail, node.row.drain_until_at = DrainedBy.NOBODY, "", None


def note_return(node: LiveNode) -> None:
    """Note that the machine takes jobs again, whatever it left for."""
    node.row.cordon, node.row.detail, node.row.drain_until_at = "", "", None
    node.row.drained_by, node.row.notice_s, node.outlives_at = DrainedBy.NOBODY, None, None


@contextmanager
def departure_as_written(node: LiveNode) -> Iterator[None]:
    """Keep what the tables have of the machine's departure while it is told to a fresh core."""
    written = {name: getattr(node.row, name) for name in _FACTS}
    yield
    for name, value in written.items():
        setattr(node.row, name, value)


def departure_text(node: LiveNode) -> str:
    """Returns in words why the machine takes no jobs, or what else is recorded of it; empty for nothing."""
    told = "" if node.row.notice_s is None or not node.is_member else f"notice: gone in {node.row.notice_s:g} s"
    return "; ".join(filter(None, (told, node.row.detail)))
