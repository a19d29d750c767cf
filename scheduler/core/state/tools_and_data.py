"""What machines have beside their accelerators, as agents tell it: tools, pool by pool, and data in their caches.

*Tools* limit where jobs start. A pool counts as able to prepare a job as long as one of its machines may.

*Data* decides between machines that are equal otherwise; and a job that runs leaves a machine with its inputs for one
without them only if that pays for fetching them, too (`remaining_work.fetching_s`). No job waits for a machine with its
inputs. Where a machine that has an input has told its bytes, a fetch takes as long as these do at the rate that was
measured on the machine, else in its pool. Data is known by keys that the server and the agents compute from what a job
file says (`walras.machine_tools.data_key`), so that neither tells the other a URL.
"""

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

from scheduler.core.state.job_classes import ToolSets


@dataclass(slots=True)
class PoolTools:
    """What the machines of a pool have said to have: how many of them have just these tools."""

    counts: Counter[frozenset[str]] = field(default_factory=Counter)

    def recount(self, before: frozenset[str] | None, now: frozenset[str] | None) -> None:
        """One machine has these tools where it had those before. None: it has not said, or is not there."""
        if before is not None:
            self.counts -= Counter([before])
        if now is not None:
            self.counts[now] += 1

    def sets(self, machines: int) -> ToolSets:
        """What its machines have, if so many are there and all of them have said it; else empty: one may have all."""
        return frozenset(self.counts) if self.counts.total() == machines else frozenset()


#: Bytes a second of fetching, until it was measured, and the seconds of fetches below which nothing is measured.
FETCH_BYTES_PER_S, _MEASURED_S = 100e6, 1.0


@dataclass(frozen=True, slots=True)
class FetchTime:
    """What a machine has to fetch for a job."""

    size_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Fetched:
    """What a machine of a pool has fetched of what it has, and how long that took."""

    pool: int
    size_bytes: int
    seconds: float


@dataclass(slots=True)
class DataCaches:
    """Rows of the machines that have data, by its key, each with the bytes that it told (0: none)."""

    _rows: dict[str, dict[int, int]] = field(default_factory=dict)
    #: By row; and bytes a second by pool, as far as somebody has asked since the last news.
    _fetched: dict[int, _Fetched] = field(default_factory=dict)
    _pool_rates: dict[int, float] = field(default_factory=dict)

    def tell(
        self, row: int, before: frozenset[str], now: Mapping[str, tuple[int, float]], pool: int = 0
    ) -> frozenset[str]:
        """The machine of this row and pool has the data `now` (bytes, and seconds that their fetch took; 0: not told)
        where it had `before`. Returns the keys.
        """
        for key in before:
            rows = self._rows[key]
            del rows[row]
            if not rows:
                del self._rows[key]
        for key, (size_bytes, _) in now.items():
            self._rows.setdefault(key, {})[row] = size_bytes
        self._fetched.pop(row, None)
        self._pool_rates.clear()
        measured = [each for each in now.values() if each[0] > 0 and each[1] > 0]
        if measured:
            self._fetched[row] = _Fetched(pool, sum(size for size, _ in measured), sum(took for _, took in measured))
        return frozenset(now)

    def fetch_time(self, row: int, pool: int, data: Iterable[str]) -> FetchTime | None:
        """What the machine of this row and pool lacks of the data; None where nobody has told how much that is."""
        sizes = [max(rows.values(), default=0) for rows in self._lacked(row, data)]
        if not all(sizes):
            return None
        return FetchTime(sum(sizes), sum(sizes) / self.bytes_per_s(row, pool))

    def _lacked(self, row: int, data: Iterable[str]) -> list[dict[int, int]]:
        found = (self._rows.get(key, {}) for key in data)
        return [rows for rows in found if row not in rows]

    def bytes_per_s(self, row: int, pool: int) -> float:
        """As measured on this machine, else on those of its pool, else the default."""
        own = self._fetched.get(row)
        if own is not None and own.seconds >= _MEASURED_S:
            return own.size_bytes / own.seconds
        if pool not in self._pool_rates:
            of_pool = [each for each in self._fetched.values() if each.pool == pool]
            seconds = sum(each.seconds for each in of_pool)
            rate = sum(each.size_bytes for each in of_pool) / seconds if seconds >= _MEASURED_S else FETCH_BYTES_PER_S
            self._pool_rates[pool] = rate
        return self._pool_rates[pool]

    def rows_with(self, data: Iterable[str], among: Container[int]) -> list[int]:
        """Return the machines among these that have some of the data: those with most of it first, then by row.

        Most of its bytes; where those were not told each key counts the same.
        """
        held, sizes = Counter[int](), Counter[int]()
        for key in data:
            for row, size_bytes in self._rows.get(key, {}).items():
                if row in among:
                    held[row] += 1
                    sizes[row] += size_bytes
        return sorted(held, key=lambda row: (-sizes[row], -held[row], row))

    def has_all(self, row: int, data: Iterable[str]) -> bool:
        """Return whether the machine of this row has all of the data."""
        return all(row in self._rows.get(key, ()) for key in data)

    def problem(self, told: Iterable[tuple[int, frozenset[str]]]) -> str:
        """What differs from the machines' own records (row, data); empty: nothing does."""
        expected: dict[str, set[int]] = {}
        for row, data in told:
            for key in data:
                expected.setdefault(key, set()).add(row)
        keys = expected.keys() | self._rows.keys()
        differing = sorted(key for key in keys if expected.get(key) != set(self._rows.get(key, ())))
        return f"machines with {', '.join(differing[:3])} are not those that said so" if differing else ""
