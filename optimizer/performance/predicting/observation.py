"""What predictors are told and asked: facts of a kind of job, of an accelerator, how a job is laid out, and the speed
that somebody measured there.

Values only. Where the facts come from (a profiler, a catalog, a file) is decided elsewhere; a fact that nobody knows
is None, and each predictor says what it cannot do without.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from math import isfinite

from walras.sample_facts import SampleFacts


@dataclass(frozen=True, slots=True)
class KindFacts(SampleFacts):
    """A kind of job. `name` tells kinds apart; the rest describes a model that may never have run here."""

    name: str

    @classmethod
    def of(cls, name: str, facts: SampleFacts) -> "KindFacts":
        """The kind with these facts."""
        return cls(name, **{field.name: getattr(facts, field.name) for field in fields(SampleFacts)})


@dataclass(frozen=True, slots=True)
class AcceleratorFacts:
    """One accelerator, and how it reaches its neighbours. Nominal figures of a data sheet will do."""

    #: Canonical name, as in `walras.cluster` (`a100-40gb`).
    name: str
    #: Peak of the arithmetic that the job uses.
    flops_per_s: float
    memory_bytes_per_s: float
    memory_bytes: float | None = None
    #: To the next accelerator of the same machine, to the host, and from machine to machine (one direction).
    link_bytes_per_s: float | None = None
    host_bytes_per_s: float | None = None
    network_bytes_per_s: float | None = None
    #: What middling training gets of what the data sheet promises, against other accelerators.
    achieves: float = 1.0
    #: Peaks by arithmetic, where they are known; empty: `flops_per_s` stands for any.
    peaks: tuple[tuple[str, float], ...] = ()

    def doing(self, precision: str | None) -> "AcceleratorFacts | None":
        """The same for a job of this arithmetic (None: as it stands); None where nobody knows the peak."""
        if precision is None or not self.peaks:
            return self
        peak = peak_of(self.peaks, precision)
        return None if peak is None else replace(self, flops_per_s=peak)


def peak_of(peaks: Iterable[tuple[str, float]], precision: str) -> float | None:
    """Of arithmetic, None where it is unknown. Where there is no tf32, torch does fp32 in its place."""
    known = dict(peaks)
    return known.get(precision, known.get("fp32") if precision == "tf32" else None)


@dataclass(frozen=True, slots=True)
class Layout:
    """How a job is laid out on accelerators of one type."""

    #: Samples of one update, over all accelerators and passes.
    batch: float
    accelerators: int = 1
    machines: int = 1
    #: Passes whose gradients are only summed up locally, before the one that synchronises.
    accumulated: int = 0

    def __post_init__(self) -> None:
        if not (isfinite(self.batch) and self.batch > 0 and self.accumulated >= 0):
            raise ValueError(f"a layout has a batch above 0 and no negative number of passes: {self}")
        if not 1 <= self.machines <= self.accelerators:
            raise ValueError(f"a layout has at least one accelerator on each of its machines: {self}")

    @property
    def local(self) -> float:
        """Samples per accelerator and pass."""
        return self.batch / (self.accelerators * (self.accumulated + 1))


@dataclass(frozen=True, slots=True)
class Cell:
    """One question: this kind, on this accelerator, laid out like this."""

    kind: KindFacts
    accelerator: AcceleratorFacts
    layout: Layout


@dataclass(frozen=True, slots=True)
class Observation:
    """A measured answer."""

    cell: Cell
    #: Updates of the whole gang per second: the median of what was measured.
    steps_per_s: float
    #: Relative standard deviation of one such measurement, for example .02; 0 where it was measured once.
    spread: float = 0.0
    samples: int = 1

    def __post_init__(self) -> None:
        if not (isfinite(self.steps_per_s) and self.steps_per_s > 0):
            raise ValueError(f"a speed is finite and above 0, not {self.steps_per_s}: leave out what did not run")
        if not (isfinite(self.spread) and self.spread >= 0 and self.samples >= 1):
            raise ValueError(f"a spread is finite and not negative, of at least one sample: {self}")
