"""What machines have besides accelerators, as agents report it: tools, by pool, and data in their caches.

*Tools* limit where jobs start. A pool counts as able to prepare a job as long as one of its machines may be.

*Data* decides between machines that are otherwise equal; and under a policy of shares a running job leaves a machine
with its inputs for one without them only if the move also pays for downloading them (`remaining_work.fetching_s`). No
job waits for a machine with its inputs. If a machine has reported the size of an input, a download is estimated from it
and the rate measured on the machine, else in its pool. Data is known by keys that the server and the agents compute
from the job file (`walras.machines.machine_facts.data_key`), so that neither sends the other a URL.
"""

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

from scheduler.core.state.job_classes import ToolSets


@dataclass(slots=True)
class PoolTools:
    """Tools reported by the machines of a pool: how many machines have exactly each set."""

    counts: Counter[frozenset[str]] = field(default_factory=Counter)

    def recount(self, before: frozenset[str] | None, now: frozenset[str] | None) -> None:
        """Changes one machine's tools from `before` to `now`. None: it has not reported, or is absent."""
        if before is not None:
            self.counts -= Counter([before])
        if now is not None:
            self.counts[now] += 1

    def sets(self, machines: int) -> ToolSets:
        """Returns the tool sets if all `machines` of the pool have reported; else empty: one may have all tools."""
        return frozenset(self.counts) if self.counts.total() == machines else frozenset()


#: Bytes per second of downloads until measured, and seconds below which a download is not measured.
FETCH_BYTES_PER_S, _MEASURED_S = 100e6, 1.0


@dataclass(frozen=True, slots=True)
class FetchTime:
    """Size and duration of what a machine has to download for a job."""

    size_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Fetched:
    """Size and duration of the downloads that a machine of a pool has reported."""

    pool: int
    size_bytes: int
    seconds: float


@dataclass(slots=True)
class DataCaches:
    """Rows of the machines that have data, by its key, each with the reported bytes (0: not reported)."""

    _rows: dict[str, dict[int, int]] = field(default_factory=dict)
    #: Downloads by row; and cached bytes per second by pool.
    _fetched: dict[int, _Fetched] = field(default_factory=dict)
    _pool_rates: dict[int, float] = field(default_factory=dict)

    def tell(
        self, row: int, before: frozenset[str], now: Mapping[str, tuple[int, float]], pool: int = 0
    ) -> frozenset[str]:
        """Replaces the inputs that a machine is known to have in its cache.

        `now`: by key, the size in bytes and the seconds of its download, 0 where not reported. Returns its keys.
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
        """Returns what the machine of this row and pool must download of the data; None if a size is unknown."""
        sizes = [max(rows.values(), default=0) for rows in self._lacked(row, data)]
        if not all(sizes):
            return None
        return FetchTime(sum(sizes), sum(sizes) / self.bytes_per_s(row, pool))

    def _lacked(self, row: int, data: Iterable[str]) -> list[dict[int, int]]:
        found = (self._rows.get(key, {}) for key in data)
        return [rows for rows in found if row not in rows]

    def bytes_per_s(self, row: int, pool: int) -> float:
        """Returns the rate measured on this machine, else on those of its pool, else the default."""
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
        """Returns the machines among these that have some of the data: those with most of it first, then by row.

        Most is counted in bytes; if these were not reported, each key counts the same.
        """
        held, sizes = Counter[int](), Counter[int]()
        for key in data:
            for row, size_bytes in self._rows.get(key, {}).items():
                if row in among:
                    held[row] += 1
                    sizes[row] += size_bytes
        return sorted(held, key=lambda row: (-sizes[row], -held[row], row))

    def has_all(self, row: int, data: Iterable[str]) -> bool:
        """Returns whether the machine of this row has all of the data."""
        return all(row in self._rows.get(key, ()) for key in data)

    def problem(self, told: Iterable[tuple[int, frozenset[str]]]) -> str:
        """Returns how the index differs from the machines' own records (row, data); empty if it does not."""
        expected: dict[str, set[int]] = {}
        for row, data in told:
            for key in data:
                expected.setdefault(key, set()).add(row)
        keys = expected.keys() | self._rows.keys()
        differing = sorted(key for key in keys if expected.get(key) != set(self._rows.get(key, ())))
        return f"machines with {', '.join(differing[:3])} are not those that said so" if differing else ""
