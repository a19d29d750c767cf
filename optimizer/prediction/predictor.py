"""What predictors of speed are told and asked, the one interface behind which each stands.

Facts of a kind of job, of an accelerator, how a job is laid out, and the speed that somebody measured there are plain
values. Where they come from (a profiler, a catalog, a file) is decided elsewhere; a fact that nobody knows is None, and
each predictor says what it cannot do without.

A predictor is a frozen value that holds what may be chosen about it; fitting it to observations gives a frozen model,
so that a model can be kept, compared and thrown away. Predictors draw no chance: the same observations in the same
order give the same model.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from math import exp, isfinite, log
from typing import Protocol, runtime_checkable

from walras.model_facts import SampleFacts


@dataclass(frozen=True, slots=True)
class KindFacts(SampleFacts):
    """A kind of job. `name` tells kinds apart; the rest describes a model that may never have run here."""

    name: str

    @classmethod
    def of(cls, name: str, facts: SampleFacts) -> "KindFacts":
        """The kind with these facts."""
        return cls(name, **{field.name: getattr(facts, field.name) for field in fields(SampleFacts)})


@dataclass(frozen=True, slots=True)
class AcceleratorSpecs:
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

    def doing(self, precision: str | None) -> "AcceleratorSpecs | None":
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
class SpeedCell:
    """One question: this kind, on this accelerator, laid out like this."""

    kind: KindFacts
    accelerator: AcceleratorSpecs
    layout: Layout


@dataclass(frozen=True, slots=True)
class Observation:
    """A measured answer."""

    cell: SpeedCell
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


#: Share of truths that should lie inside an interval.
INTERVAL = 0.8
#: Half-width of the central 80 % of a normal distribution, in standard deviations.
Z80 = 1.2815515655446004


class CannotPredict(ValueError):
    """Too little is known of a cell, or for a fit. The message names the fact that is missing."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Speed in steps per second; the truth is expected between `low` and `high` four times out of five."""

    steps_per_s: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not (isfinite(self.high) and 0 < self.low <= self.steps_per_s <= self.high):
            raise ValueError(f"a prediction is finite, above 0 and inside its interval: {self}")

    def holds(self, steps_per_s: float) -> bool:
        """Whether the interval holds that speed."""
        return self.low <= steps_per_s <= self.high

    @property
    def log_sd(self) -> float:
        """Standard deviation of the logarithm of speed that the interval stands for."""
        return log(self.high / self.low) / (2.0 * Z80)


def log_normal_prediction(log_steps_per_s: float, log_sd: float) -> Prediction:
    """A prediction whose error is normal in the logarithm of speed."""
    mean, half = exp(log_steps_per_s), exp(Z80 * log_sd)
    return Prediction(mean, mean / half, mean * half)


class SpeedModel(Protocol):
    """What a fit gives."""

    def predict(self, cell: SpeedCell) -> Prediction:
        """Raises CannotPredict for a cell of which too little is known."""
        ...


@runtime_checkable
class BatchSpeedModel(Protocol):
    """A model that tells many cells in much less time than one by one."""

    def predict_many(self, cells: Sequence[SpeedCell]) -> "list[Prediction | None]":
        """In order; None for a cell that `predict` refuses."""
        ...


def predict_cells(model: SpeedModel, cells: Sequence[SpeedCell]) -> "list[Prediction | None]":
    """In order; None for a cell of which too little is known."""
    if isinstance(model, BatchSpeedModel):
        return model.predict_many(cells) if cells else []
    return [_or_none(model, cell) for cell in cells]


def _or_none(model: SpeedModel, cell: SpeedCell) -> "Prediction | None":
    try:
        return model.predict(cell)
    except CannotPredict:
        return None


class Predictor(Protocol):
    """A way to tell speeds. What implements it is a frozen dataclass."""

    @property
    def name(self) -> str:
        """As shown to people, and as kept beside its errors."""
        ...

    def fit(self, observations: Sequence[Observation]) -> SpeedModel:
        """Learn from what was measured. Raises CannotPredict where that is too little."""
        ...
