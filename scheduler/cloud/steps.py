"""Step functions of time: prices and capacities as markets publish them, each value holding until the next change."""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Steps:
    """Values that hold from an instant until the next one; before the first the first holds.

    Used for a price (USD per hour of one machine) and for a capacity (machines that the market has).
    """

    #: Ascending, without repeats.
    starts_at: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.starts_at or len(self.starts_at) != len(self.values):
            raise ValueError("a step function needs as many values as instants, and at least one")
        if any(later <= earlier for earlier, later in pairwise(self.starts_at)):
            raise ValueError("the instants of a step function must ascend")

    @classmethod
    def of(cls, changes: Iterable[tuple[float, float]]) -> "Steps":
        """From (instant, value) in any order; of several values at one instant the last one counts."""
        last = dict(sorted(changes, key=lambda change: change[0]))
        return cls(tuple(last), tuple(last.values()))

    def at(self, at: float) -> float:
        """The value that holds at an instant."""
        return self.values[max(bisect_right(self.starts_at, at) - 1, 0)]

    def next_change_at(self, at: float) -> float | None:
        """The next instant after `at` at which another value begins; None: never."""
        position = bisect_right(self.starts_at, at)
        held = self.values[max(position - 1, 0)]
        for later in range(position, len(self.values)):
            if self.values[later] != held:
                return self.starts_at[later]
        return None

    def integral(self, since_at: float, until_at: float) -> float:
        """Value times seconds over a span; what an hour costs, times 3600, over what was used."""
        edges = [since_at, *(at for at in self.starts_at if since_at < at < until_at), until_at]
        return sum((end - start) * self.at(start) for start, end in pairwise(edges))
