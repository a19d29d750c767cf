"""Why a machine leaves: a notice that it will be taken away, a drain by an administrator, or the drain of its pool.

A notice (`NodeRow.notice_s`) and a drain (`NodeRow.drained_by`) are two facts, of which either may begin and end while
the other holds. Only this module writes them, the cordon that follows from them, and the words that people read.

Both end with a machine that is lost, except the drain by an administrator: whoever drains a machine to repair it wants
no jobs on it once its agent is back. Such a drain ends when the machine is resumed or forgotten. A rented machine never
comes back.
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
_STAYS_DRAINED = "it stays drained when it is back, until it is resumed"
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


def is_drained_by_admin(node: LiveNode) -> bool:
    """Returns whether an administrator drained it, before it was lost or since."""
    return node.row.drained_by is DrainedBy.ADMIN


def drain_lost(node: LiveNode, words: str) -> None:
    """Note that an administrator drains a machine that is lost, for when it is back. `words`: who does."""
    node.row.cordon, node.row.drained_by, node.row.drain_until_at = _LEAVING, DrainedBy.ADMIN, None
    node.row.detail = f"{words.partition(';')[0]}; {_STAYS_DRAINED}"


def note_loss(node: LiveNode, reason: Reason) -> None:
    """Note why the machine is lost, or that it stays drained."""
    if is_drained_by_admin(node) and not node.row.rent_token:
        drain_lost(node, node.row.detail)
    elif reason is not Reason.POLICY_RELEASED:  # otherwise the detail says already why it was given back
        node.row.detail = reason.value


def inherit_drain(node: LiveNode, lost: LiveNode) -> None:
    """Keep a machine drained that takes the place of a lost one of its name."""
    if is_drained_by_admin(lost) and not lost.row.rent_token and not node.row.rent_token:
        drain_lost(node, lost.row.detail)


def note_joining(node: LiveNode, *, is_pool_drained: bool) -> None:
    """Note that the machine is a member of the fleet, for the first time or again."""
    drained_by, words = node.row.drained_by, node.row.detail
    note_return(node)
    if drained_by is DrainedBy.ADMIN:
        drain_lost(node, words)
    elif is_pool_drained:
        leave_with_pool(node)


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
