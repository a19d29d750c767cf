"""Named random streams: a draw more in one of them never shifts another.

The simulator and the workload generators are the only places that draw. The same seed and name give the same stream
on every machine.
"""

from random import Random


class Streams:
    """The random streams of one simulated run, made when first asked for."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._streams: dict[str, Random] = {}

    def stream(self, name: str) -> Random:
        """The stream of that name (`arrivals`, `faults`, `speeds`, ...); the same object every time."""
        found = self._streams.get(name)
        if found is None:
            found = self._streams[name] = Random(f"{self.seed}/{name}")
        return found
