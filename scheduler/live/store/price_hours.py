"""What one more accelerator of each pool was worth, hour by hour: rows of means, and how they are read back.

The prices of a plan are gone with the next. Of an hour the time-weighted mean is kept, for some months: when an
accelerator more would have paid is a question about weeks.
"""

from dataclasses import dataclass
from typing import Any

from scheduler.live.store.sql_dialect import SqlConnection
from walras.cluster import PoolId

#: Older hours are deleted, seconds.
PRICES_KEPT_S = 120 * 86_400.0


@dataclass(frozen=True, slots=True)
class PriceRow:
    """Of one pool, within one hour of the clock: an hour has several rows where a server began, or the unit changed."""

    pool_id: PoolId
    since_at: float
    until_at: float
    #: Seconds for which there was a price.
    seconds: float
    #: Mean shadow price of one accelerator, in the policy's `unit`.
    price: float
    unit: str
    #: What one more would gain the jobs, by what they say that they are worth, USD an hour; None: nobody said.
    usd_per_h: float | None
    #: Mean market price of an accelerator-hour, USD.
    rent_usd_per_h: float


@dataclass(frozen=True, slots=True)
class PriceQuery:
    """Which hours: those that end after an instant, of one pool or (`pool_id` empty) of all."""

    since_at: float
    pool_id: str = ""
    #: Rows, at most, the newest.
    limit: int = 10_000


def read_price_hours(connection: SqlConnection, query: PriceQuery) -> list[PriceRow]:
    """Rows in order of time."""
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
    """Forget hours that began before an instant."""
    connection.execute("DELETE FROM price_hours WHERE since_at < ?", [before_at])
