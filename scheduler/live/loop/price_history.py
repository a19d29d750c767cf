"""The prices of the plans in force as hourly means: sampled every half minute, written every ten minutes.

An hour is one of the clock (UTC). The hour under way is kept in memory; rows that are written replace the earlier rows
of the same part of an hour. After a crash up to ten minutes of an hour are missing, which its seconds show.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from scheduler.live.store.table_rows import PriceRow
from walras.cluster import PoolId
from walras.contract import SECONDS_PER_HOUR

#: Seconds between two samples; a longer time without one (a server that slept) is not counted.
LOOK_EVERY_S = 30.0
_LONGEST_LOOK_S = 4 * LOOK_EVERY_S
_WRITE_EVERY_S = 600.0


@dataclass(frozen=True, slots=True)
class PoolQuote:
    """What one accelerator of a pool is worth now, in the policy's `unit` and in USD per hour, and its market price."""

    pool_id: PoolId
    price: float
    unit: str
    usd_per_h: float | None
    rent_usd_per_h: float


@dataclass(slots=True)
class _Piece:
    """A part of an hour, as sums over its seconds."""

    since_at: float
    until_at: float
    unit: str
    seconds: float = 0.0
    price_s: float = 0.0
    usd_s: float = 0.0
    usd_known_s: float = 0.0
    rent_s: float = 0.0

    def add(self, quote: PoolQuote, held_s: float) -> None:
        self.seconds += held_s
        self.price_s += quote.price * held_s
        self.rent_s += quote.rent_usd_per_h * held_s
        if quote.usd_per_h is not None:
            self.usd_s += quote.usd_per_h * held_s
            self.usd_known_s += held_s

    def row(self, pool_id: PoolId) -> PriceRow:
        usd = self.usd_s / self.usd_known_s if self.usd_known_s > 0 else None
        means = self.price_s / self.seconds, self.unit, usd, self.rent_s / self.seconds
        return PriceRow(pool_id, self.since_at, self.until_at, self.seconds, *means)


@dataclass(slots=True)
class PriceHistory:
    """Means over the hour that is under way."""

    _pieces: dict[PoolId, _Piece] = field(default_factory=dict)
    _looked_at: float | None = None
    _written_at: float = 0.0

    def open_rows(self) -> list[PriceRow]:
        """Returns the rows of the hour under way, whether or not they are written."""
        return [piece.row(pool_id) for pool_id, piece in sorted(self._pieces.items()) if piece.seconds > 0]

    def look(self, at: float, epoch_unix_s: float, quotes: Iterable[PoolQuote]) -> list[PriceRow]:
        """Count these prices for the time since the last look; returns rows to write, in the place of earlier ones."""
        before, self._looked_at = self._looked_at, at
        if before is None or not 0 < at - before <= _LONGEST_LOOK_S:
            return []
        hour_at = (at + epoch_unix_s) // SECONDS_PER_HOUR * SECONDS_PER_HOUR - epoch_unix_s
        told, done = list(quotes), list[PriceRow]()
        is_new_hour = before < hour_at
        if is_new_hour:
            self._count(told, before, hour_at, done)
            done += self.open_rows()
            self._pieces = {}
        self._count(told, max(before, hour_at), at, done)
        if is_new_hour or at - self._written_at >= _WRITE_EVERY_S:
            self._written_at = at
            return [*done, *self.open_rows()]
        return done

    def _count(self, quotes: Iterable[PoolQuote], since_at: float, until_at: float, done: list[PriceRow]) -> None:
        """Count prices for a time inside one hour; where the unit changes, the part so far goes to `done`."""
        if until_at <= since_at:
            return
        for quote in quotes:
            piece = self._pieces.get(quote.pool_id)
            if piece is None or piece.unit != quote.unit:
                if piece is not None:
                    done.append(piece.row(quote.pool_id))
                piece = self._pieces[quote.pool_id] = _Piece(since_at, until_at, quote.unit)
            piece.until_at = until_at
            piece.add(quote, until_at - since_at)
