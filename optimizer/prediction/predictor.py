"""The interface of all speed predictors: their input (facts, layouts, measured speeds) and their output.

Facts of a kind of job and of an accelerator, the layout of a job, and measured speeds are plain values. Other modules
read them from a profiler, a catalog or a file. An unknown fact is None, and each predictor states the facts it needs.

A predictor is a frozen value that holds its parameters. Fitting it to observations gives a frozen model, which can be
kept, compared and discarded. Predictors are deterministic: the same observations in the same order give the same model.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from math import exp, isfinite, log
from typing import Protocol, runtime_checkable

from walras.model_facts import SampleFacts


@dataclass(frozen=True, slots=True)
class KindFacts(SampleFacts):
    """A kind of job, identified by `name`; the other fields describe its model, which may never have run here."""

    name: str

    @classmethod
    def of(cls, name: str, facts: SampleFacts) -> "KindFacts":
        return cls(name, **{field.name: getattr(facts, field.name) for field in fields(SampleFacts)})


@dataclass(frozen=True, slots=True)
class AcceleratorSpecs:
    """One accelerator and its links. Nominal figures of a data sheet suffice."""

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
    #: Part of the nominal figures that a typical training job achieves, relative to other accelerators.
    achieves: float = 1.0
    #: Peaks by arithmetic, where they are known; empty: `flops_per_s` stands for any.
    peaks: tuple[tuple[str, float], ...] = ()

    def doing(self, precision: str | None) -> "AcceleratorSpecs | None":
        """These facts with the peak of the given arithmetic (None: unchanged); None where that peak is unknown."""
        if precision is None or not self.peaks:
            return self
        peak = peak_of(self.peaks, precision)
        return None if peak is None else replace(self, flops_per_s=peak)


def peak_of(peaks: Iterable[tuple[str, float]], precision: str) -> float | None:
    """The peak of the given arithmetic, None where it is unknown; that of fp32 for tf32 on chips without tf32."""
    known = dict(peaks)
    return known.get(precision, known.get("fp32") if precision == "tf32" else None)


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a job on accelerators of one type."""

    #: Samples of one update, over all accelerators and passes.
    batch: float
    accelerators: int = 1
    machines: int = 1
    #: Passes of gradient accumulation before the pass that synchronises.
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
    """One cell to predict: a kind on an accelerator in a layout."""

    kind: KindFacts
    accelerator: AcceleratorSpecs
    layout: Layout


@dataclass(frozen=True, slots=True)
class Observation:
    """A measured speed of a cell."""

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


#: Share of true speeds that an interval should contain.
INTERVAL = 0.8
#: Half-width of the central 80 % of a normal distribution, in standard deviations.
Z80 = 1.2815515655446004


class CannotPredict(ValueError):
    """A cell or a fit lacks facts or observations. The message names what is missing."""


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
        """Standard deviation of the logarithm of speed that corresponds to the interval."""
        return log(self.high / self.low) / (2.0 * Z80)


def log_normal_prediction(log_steps_per_s: float, log_sd: float) -> Prediction:
    """A prediction whose error is normal in the logarithm of speed."""
    mean, half = exp(log_steps_per_s), exp(Z80 * log_sd)
    return Prediction(mean, mean / half, mean * half)


class SpeedModel(Protocol):
    """A fitted model."""

    def predict(self, cell: SpeedCell) -> Prediction:
        """Raises CannotPredict for a cell of which too little is known."""
        ...


@runtime_checkable
class BatchSpeedModel(Protocol):
    """A model that predicts many cells together much faster than one by one."""

    def predict_many(self, cells: Sequence[SpeedCell]) -> "list[Prediction | None]":
        """Predictions in the order of the cells; None for a cell that `predict` refuses."""
        ...


@runtime_checkable
class CellChooser(Protocol):
    """A model that knows which cells would tell it most."""

    def most_telling(self, cells: Sequence[SpeedCell], many: int) -> list[int]:
        """Returns the positions of so many of these cells, in the order in which to measure them."""
        ...


def predict_cells(model: SpeedModel, cells: Sequence[SpeedCell]) -> "list[Prediction | None]":
    """Predictions in the order of the cells; None for a cell that lacks facts or observations."""
    if isinstance(model, BatchSpeedModel):
        return model.predict_many(cells) if cells else []
    return [_or_none(model, cell) for cell in cells]


def _or_none(model: SpeedModel, cell: SpeedCell) -> "Prediction | None":
    try:
        return model.predict(cell)
    except CannotPredict:
        return None


class Predictor(Protocol):
    """A speed predictor, implemented as a frozen dataclass."""

    @property
    def name(self) -> str:
        """The name shown to users and stored with its errors."""
        ...

    def fit(self, observations: Sequence[Observation]) -> SpeedModel:
        """Fit to observations. Raises CannotPredict if there are too few."""
        ...
