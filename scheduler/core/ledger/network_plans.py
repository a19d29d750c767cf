"""What the network between machines of a pool is taken to be: what gangs got that met there."""

from collections import deque
from statistics import median

from walras.ids import PoolId

#: The median of so many newest measurements.
_KEPT = 15


class Networks:
    """What gangs over several machines got, by pool."""

    def __init__(self) -> None:
        self._got: dict[PoolId, deque[float]] = {}
        #: Another number whenever something was measured.
        self.version = 0

    def planned(self, pool_id: PoolId) -> float | None:
        """Bytes per second; None where nothing was measured yet."""
        got = self._got.get(pool_id)
        return median(got) if got else None

    def saw(self, pool_id: PoolId, bytes_per_s: float) -> None:
        self._got.setdefault(pool_id, deque(maxlen=_KEPT)).append(bytes_per_s)
        self.version += 1
