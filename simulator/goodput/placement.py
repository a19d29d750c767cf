"""On how many machines a gang runs, and how many accelerators each gives: all that its speed depends on."""

from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Placement:
    """Accelerators on each machine, in rank order; every part is at least 1. (Which machines: `walras.cluster`.)"""

    parts: tuple[int, ...]

    @property
    def machines(self) -> int:
        return len(self.parts)

    @property
    def accelerators(self) -> int:
        return sum(self.parts)

    def in_ring(self) -> "Placement":
        """The same ring of machines, begun where its parts read smallest: ranks in a ring have no first machine."""
        return Placement(_smallest_rotation(self.parts))


def packed(accelerators: int, machine_size: int) -> Placement:
    """A gang on as few machines as it can be on: full ones, and one with the rest."""
    full, rest = divmod(accelerators, machine_size)
    return Placement((machine_size,) * full + ((rest,) if rest else ()))


@lru_cache(maxsize=65536)
def _smallest_rotation(parts: tuple[int, ...]) -> tuple[int, ...]:
    return min((parts[first:] + parts[:first] for first in range(len(parts))), default=parts)
