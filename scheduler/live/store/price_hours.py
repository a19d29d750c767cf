"""What one more accelerator of each pool was worth, hour by hour: rows of hourly means, and how they are read.

The next plan replaces the prices of a plan. The time-weighted mean of each hour is kept for some months, because
whether one more accelerator would have paid is a question about weeks.
"""

from dataclasses import dataclass
from typing import Any

from scheduler.live.store.sql_dialect import SqlConnection
from walras.cluster import PoolId

#: Hours older than this, seconds, are deleted.
PRICES_KEPT_S = 120 * 86_400.0


@dataclass(frozen=True, slots=True)
class PriceRow:
    """The mean of one pool over an hour of the clock or a part of it: a start or a new unit begins another row."""

    pool_id: PoolId
    since_at: float
    until_at: float
    #: Seconds of the hour for which a price was known.
    seconds: float
    #: Mean shadow price of one accelerator, in the policy's `unit`.
    price: float
    unit: str
    #: Mean gain of the jobs from one more accelerator, USD per hour, by their stated values; None: none stated one.
    usd_per_h: float | None
    #: Mean market price, USD per accelerator-hour.
    rent_usd_per_h: float


@dataclass(frozen=True, slots=True)
class PriceQuery:
    """Which hours: those that end after an instant, of one pool or (`pool_id` empty) of all."""

    since_at: float
    pool_id: str = ""
    #: The most rows, of which the newest are kept.
    limit: int = 10_000


def read_price_hours(connection: SqlConnection, query: PriceQuery) -> list[PriceRow]:
    """Returns the newest rows that match, in order of time."""
    clauses, values = ["since_at > ?", "until_at > ?"], [query.since_at - 3600.0, query.since_at]
    if query.pool_id:
        clauses.append("pool_id = ?")
        values.append(query.pool_id)  # type: ignore[arg-type]
    columns = "pool_id, since_at, until_at, seconds, price, unit, usd_per_h, rent_usd_per_h"
    found: list[tuple[Any, ...]] = connection.execute(
        f"SELECT {columns} FROM price_hours WHERE {' AND '.join(clauses)} ORDER BY since_at DESC, pool_id LIMIT ?",
        [*values, query.limit],
    ).fetchall()
    return [PriceRow(*row) for row in reversed(found)]


def delete_price_hours(connection: SqlConnection, before_at: float) -> None:
    """Delete hours that began before an instant."""
    connection.execute("DELETE FROM price_hours WHERE since_at < ?", [before_at])
