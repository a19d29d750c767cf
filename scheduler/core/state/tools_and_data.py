"""What machines have beside their accelerators, as agents tell it: tools, pool by pool, and data in their caches.

*Tools* limit where jobs start. A pool counts as able to prepare a job as long as one of its machines may.

*Data* decides between machines that are equal otherwise; and a job that runs leaves a machine with its inputs for one
without them only if that pays for fetching them, too (`remaining_work.fetching_s`). No job waits for a machine with its
inputs. Data is known by keys that the server and the agents compute from what a job file says
(`walras.machine_tools.data_key`), so that neither tells the other a URL.
"""

from collections import Counter
from collections.abc import Container, Iterable
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


@dataclass(slots=True)
class DataCaches:
    """Rows of the machines that have data, by its key."""

    _rows: dict[str, set[int]] = field(default_factory=dict)

    def tell(self, row: int, before: frozenset[str], now: frozenset[str]) -> frozenset[str]:
        """The machine of this row has the data `now` where it had `before`. Returns `now`."""
        for key in before - now:
            rows = self._rows[key]
            rows.discard(row)
            if not rows:
                del self._rows[key]
        for key in now - before:
            self._rows.setdefault(key, set()).add(row)
        return now

    def rows_with(self, data: Iterable[str], among: Container[int]) -> list[int]:
        """Return the machines among these that have some of the data: those with most of it first, then by row.

        How much there is to fetch is not known before it was fetched, so each key counts the same.
        """
        held = Counter(row for key in data for row in self._rows.get(key, ()) if row in among)
        return sorted(held, key=lambda row: (-held[row], row))

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
        differing = sorted(key for key in keys if expected.get(key) != self._rows.get(key))
        return f"machines with {', '.join(differing[:3])} are not those that said so" if differing else ""
