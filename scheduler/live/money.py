"""What attempts cost: the price at the time of use times the part of the machine that is held.

An attempt carries what it has cost until an instant and what an hour costs from then on. A change of price settles the
attempts of that pool at the old price first, so the sum is exact however often prices move.
"""

from scheduler.live.rows import AttemptRow
from walras.cluster import Placement, Pool


def usd_per_h(pool: Pool | None, placement: Placement) -> float:
    """An hour of this placement, USD: a machine's price, shared by accelerators."""
    if pool is None:
        return 0.0
    return pool.usd_per_h * placement.accelerators / pool.shape.accelerators


def settle(row: AttemptRow, at: float) -> None:
    """Add what was used since the last settlement."""
    row.usd += row.usd_per_h * max(0.0, at - row.usd_since_at) / 3600.0
    row.usd_since_at = at


def usd_until(row: AttemptRow, at: float) -> float:
    """The cost of an attempt so far (all of it, once it has ended)."""
    if row.ended_at is not None:
        return row.usd
    return row.usd + row.usd_per_h * max(0.0, at - row.usd_since_at) / 3600.0


def accelerator_s(row: AttemptRow, at: float) -> float:
    """Accelerator-seconds held so far."""
    return row.accelerators * max(0.0, (at if row.ended_at is None else row.ended_at) - row.leased_at)
