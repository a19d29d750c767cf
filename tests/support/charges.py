"""Charges of a ledger of money."""

from scheduler.live.store.table_rows import ChargeKind, ChargeRow
from walras.cluster import NodeId, PoolId
from walras.job_request import JobId


def charge(number: int, usd: float, *, job: int = 0, node: str = "", market: str = "owned") -> ChargeRow:
    """An hour of a job, or of a rented machine."""
    kind = ChargeKind.MACHINE if node else ChargeKind.USE
    whose = ("", "") if node else ("p", "ada")
    return ChargeRow(number, kind, 0.0, 3600.0, usd, usd, 2 * usd, "2026-11", PoolId(f"x/{market}"), market, "a100",
                     1.0, NodeId(node), JobId(job), 0 if node else 1, *whose)  # fmt: skip
