"""One run of a job's script under observation: what is asked of it, and what its ranks tell.

Whoever starts processes implements `Runner`; nothing here does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import fmean, median
from typing import Any, Protocol

from walras.profiling.errors import LossNotFinite, NoSpeed

#: A step's time is the median of the means of so many blocks: one disturbed block does not move it, and a loader that
#: prefetches (several quick steps, then a slow one) is told as it is.
BLOCKS = 5


@dataclass(frozen=True, slots=True)
class Run:
    """What one run leaves in and what it leaves out."""

    name: str
    ranks: int = 1
    #: Every rank a machine of its own, as far as that can be had on one: over the loopback.
    apart: bool = False
    #: False: made-up data, held in memory.
    real_data: bool = False
    #: Count the model's facts; write down which files are read.
    facts: bool = False
    files: bool = False
    #: Make the host forget these files first.
    evict: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Extent:
    """How long each run is."""

    warm_up: int = 5
    updates: int = 40
    timeout_s: float = 300.0


@dataclass(frozen=True, slots=True)
class UpdateFacts:
    """Of one rank and one update. `flops`: of forward and backward pass, as far as torch can count them."""

    parameters: int
    parameter_bytes: int
    gradient_bytes: int
    #: What the optimizer keeps.
    state_bytes: int
    layers: int
    flops: int
    #: Kept from the forward for the backward pass, parameters left out.
    activation_bytes: int
    #: Of the arithmetic of most layers; 0: it has none.
    bits: int
    exponent_bits: int


@dataclass(frozen=True, slots=True)
class RankTold:
    """What one rank wrote."""

    rank: int
    update_s: tuple[float, ...]
    wait_s: tuple[float, ...]
    batches_per_update: float
    samples_per_batch: int | None
    finite: bool
    device: str
    threads: int
    peak_memory_bytes: int
    facts: UpdateFacts | None

    @classmethod
    def parse(cls, told: dict[str, Any]) -> "RankTold":
        """From the rank's JSON. Raises KeyError, TypeError or ValueError for what is none."""
        facts = told["facts"]
        samples = told["samples_per_batch"]
        return cls(
            rank=int(told["rank"]),
            update_s=tuple(float(seconds) for seconds in told["update_s"]),
            wait_s=tuple(float(seconds) for seconds in told["wait_s"]),
            batches_per_update=float(told["batches_per_update"]),
            samples_per_batch=None if samples is None else int(samples),
            finite=bool(told["finite"]),
            device=str(told["device"]),
            threads=int(told["threads"]),
            peak_memory_bytes=int(told["peak_memory_bytes"]),
            facts=None if facts is None else UpdateFacts(**{name: int(value) for name, value in facts.items()}),
        )


@dataclass(frozen=True, slots=True)
class RunTold:
    """What came of a run."""

    run: Run
    ranks: tuple[RankTold, ...]
    #: Files that were read, where they were asked for.
    files: tuple[str, ...] = ()
    #: Of the files that were to be forgotten: those looked at, and those of them that stayed in memory all the same.
    looked_at: int = 0
    stayed: int = 0

    @property
    def step_s(self) -> float:
        """Of one update: of the slowest rank."""
        return max(typical_s(rank.update_s) for rank in self.ranks)

    @property
    def wait_s(self) -> float:
        """Of one update: what a rank waited for its data loader, on average over ranks."""
        return fmean(fmean(rank.wait_s) for rank in self.ranks)

    def check(self) -> None:
        """Raises LossNotFinite or NoSpeed."""
        if not all(rank.finite for rank in self.ranks):
            raise LossNotFinite(
                f"run {self.run.name!r}: the parameters are no numbers any more after {len(self.ranks[0].update_s)} "
                "updates: the loss became NaN or infinite",
                fix="lower the learning rate, or look at the data",
            )
        if not (isfinite(self.step_s) and self.step_s > 0):
            raise NoSpeed(f"run {self.run.name!r}: an update took {self.step_s} s", fix="time more updates: --steps")


def typical_s(seconds: Sequence[float]) -> float:
    """Median of the means of blocks of consecutive updates."""
    return median(blocks(seconds))


def blocks(seconds: Sequence[float]) -> list[float]:
    """Mean of each block."""
    size = max(1, len(seconds) // BLOCKS)
    return [fmean(seconds[at : at + size]) for at in range(0, len(seconds) - size + 1, size)]


class Runner(Protocol):
    """Starts the ranks of a run as processes and waits for them."""

    def run(self, run: Run, extent: Extent, folder: Path) -> RunTold:
        """Leaves no process behind. Raises ProfileError where the script does not do what was asked."""
        ...
