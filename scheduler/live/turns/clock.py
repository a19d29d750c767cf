"""The cluster's clock: seconds since the epoch that the store remembers, never decreasing, across restarts too.

Wall time is read once, at the start, to know how long the server was away; from then on the monotonic clock counts, so
a step of the wall clock moves nothing. Wall time serves display only.
"""

import time
from datetime import UTC, datetime


class Clock:
    """Where the live server's instants come from."""

    def __init__(self, epoch_unix_s: float, last_at: float) -> None:
        self._epoch_unix_s = epoch_unix_s
        # A wall clock that was set back while the server was down must not take time back with it.
        start_at = max(last_at, time.time() - epoch_unix_s)
        self._offset = start_at - time.monotonic()

    def now(self) -> float:
        """Seconds since the cluster's epoch."""
        return self._offset + time.monotonic()

    def unix(self, at: float) -> float:
        """An instant as Unix seconds."""
        return self._epoch_unix_s + at

    def shown(self, at: float) -> str:
        """An instant as RFC 3339 text in UTC, for people."""
        return datetime.fromtimestamp(self._epoch_unix_s + at, UTC).isoformat(timespec="milliseconds")

    def shown_or_none(self, at: float | None) -> str | None:
        return None if at is None else self.shown(at)
