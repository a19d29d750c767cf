"""Which machines have the data of which jobs in their caches, as agents tell it.

A job that starts where its inputs are need not fetch them. This decides between machines that are equal otherwise and
nothing else: no job waits for a machine with its data, and none leaves one. Data is known by keys that the server and
the agents compute from what a job file says (`walras.machine_tools.data_key`), so that neither tells the other a URL.
"""

from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass, field


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

        A machine that lacks a part still fetches less than one that lacks all of it. How much there is to fetch is not
        known before it was fetched, so each key counts the same.
        """
        held = Counter(row for key in data for row in self._rows.get(key, ()) if row in among)
        return sorted(held, key=lambda row: (-held[row], row))

    def invariant_problem(self, told: Iterable[tuple[int, frozenset[str]]]) -> str:
        """What differs from the machines' own records (row, data); empty: nothing does."""
        expected: dict[str, set[int]] = {}
        for row, data in told:
            for key in data:
                expected.setdefault(key, set()).add(row)
        if expected == self._rows:
            return ""
        differing = sorted(
            key for key in expected.keys() | self._rows.keys() if expected.get(key) != self._rows.get(key)
        )
        return f"caches: the machines with {', '.join(differing[:3])} are not those that said so"
