"""The one interface behind which every predictor of speed stands, and how each is scored.

A predictor is a frozen value that holds what may be chosen about it; fitting it to observations gives a frozen model,
so that a model can be kept, compared and thrown away. Predictors draw no chance: the same observations in the same
order give the same model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, isfinite, log
from statistics import median
from typing import Protocol, runtime_checkable

from optimizer.performance.predicting.observation import Cell, Observation

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


def around(log_steps_per_s: float, log_sd: float) -> Prediction:
    """A prediction whose error is normal in the logarithm of speed."""
    mean, half = exp(log_steps_per_s), exp(Z80 * log_sd)
    return Prediction(mean, mean / half, mean * half)


class Model(Protocol):
    """What a fit gives."""

    def predict(self, cell: Cell) -> Prediction:
        """Raises CannotPredict for a cell of which too little is known."""
        ...


@runtime_checkable
class ManyModel(Protocol):
    """A model that tells many cells in much less time than one by one."""

    def predict_many(self, cells: Sequence[Cell]) -> "list[Prediction | None]":
        """In order; None for a cell that `predict` refuses."""
        ...


def predicted(model: Model, cells: Sequence[Cell]) -> "list[Prediction | None]":
    """In order; None for a cell of which too little is known."""
    if isinstance(model, ManyModel):
        return model.predict_many(cells) if cells else []
    return [_or_none(model, cell) for cell in cells]


def _or_none(model: Model, cell: Cell) -> "Prediction | None":
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

    def fit(self, observations: Sequence[Observation]) -> Model:
        """Learn from what was measured. Raises CannotPredict where that is too little."""
        ...


@dataclass(frozen=True, slots=True)
class Score:
    """How well predictions met truths. Errors are relative to the true step time."""

    #: Cells that were predicted, and cells that could not be.
    predicted: int
    refused: int
    median_error: float
    mean_error: float
    #: Share of truths inside their interval.
    coverage: float


def error_of(prediction: Prediction, steps_per_s: float) -> float:
    """Relative error of the step time: of 1/prediction against 1/truth."""
    return abs(steps_per_s / prediction.steps_per_s - 1.0)


def score(model: Model, truths: Sequence[Observation]) -> Score:
    """Of a model on cells that it was not fitted to. Figures are 0 where nothing could be predicted."""
    errors: list[float] = []
    held = 0
    for truth, prediction in zip(truths, predicted(model, [truth.cell for truth in truths]), strict=True):
        if prediction is None:
            continue
        errors.append(error_of(prediction, truth.steps_per_s))
        held += prediction.holds(truth.steps_per_s)
    many = len(errors)
    if many == 0:
        return Score(0, len(truths), 0.0, 0.0, 0.0)
    return Score(many, len(truths) - many, median(errors), sum(errors) / many, held / many)
