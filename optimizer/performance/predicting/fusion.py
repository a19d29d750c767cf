"""Several predictors as one: each is believed by how far its past predictions were from what happened.

The width of a member's interval is corrected by its record: where its errors were larger than it claimed, its claim is
stretched. Members are then averaged in the logarithm of speed by the inverse of their corrected variances. Their errors
are taken to be of one piece (two predictors fed by the same measurements err together), so that agreement makes no
interval narrower than its members' average; disagreement widens it. Last, all widths are scaled to what parts of the
observations, told from the others, ask for.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log, pi, sqrt

from optimizer.performance.predicting.observation import Cell, Observation
from optimizer.performance.predicting.predictor import (
    INTERVAL,
    Z80,
    CannotPredict,
    Model,
    Prediction,
    Predictor,
    around,
    predicted,
)

#: How many outcomes of one accelerator count as much as the record over all of them.
_SHRINK = 5.0
_PARTS = 4
#: Outcomes that tell how wide fused intervals should be.
_ENOUGH = 20
#: Standard deviation of a normal distribution over the mean size of its values.
_TO_SD = sqrt(pi / 2.0)
_LEAST_SD = 1e-3


@dataclass(frozen=True, slots=True)
class Outcome:
    """A prediction that was used, and what happened."""

    source: str
    kind: str
    accelerator: str
    prediction: Prediction
    steps_per_s: float

    @property
    def log_error(self) -> float:
        """Logarithm of predicted over true speed."""
        return log(self.prediction.steps_per_s / self.steps_per_s)


@dataclass(frozen=True, slots=True)
class Record:
    """Of one source: mean size of errors over what was claimed, over all accelerators and by accelerator.

    Sizes and no squares: one prediction that was far off says little of the others.
    """

    general: float
    by_accelerator: Mapping[str, tuple[float, int]]

    def stretch(self, accelerator: str) -> float:
        """What claimed standard deviations are multiplied by."""
        own, many = self.by_accelerator.get(accelerator, (0.0, 0))
        return (own * many + self.general * _SHRINK) / (many + _SHRINK)


def records(outcomes: Iterable[Outcome]) -> dict[str, Record]:
    """By source. One outcome at the claimed width stands beside each, so that luck is not taken for skill."""
    ratios: dict[str, dict[str, list[float]]] = {}
    for outcome in outcomes:
        claimed = max(outcome.prediction.log_sd, _LEAST_SD)
        by_accelerator = ratios.setdefault(outcome.source, {})
        by_accelerator.setdefault(outcome.accelerator, []).append(_TO_SD * abs(outcome.log_error) / claimed)
    found = {}
    for source, by_accelerator in ratios.items():
        every = [ratio for values in by_accelerator.values() for ratio in values]
        means = {name: (sum(values) / len(values), len(values)) for name, values in by_accelerator.items()}
        found[source] = Record((sum(every) + 1.0) / (len(every) + 1), means)
    return found


@dataclass(frozen=True, slots=True)
class Fusion:
    """The predictor. `past`: outcomes of predictions that were used; they count like those that a fit tries."""

    members: tuple[Predictor, ...]
    past: tuple[Outcome, ...] = ()

    @property
    def name(self) -> str:
        return "fused"

    def fit(self, observations: Sequence[Observation]) -> "FusedModel":
        """Members that cannot fit are left out. Raises CannotPredict where none can."""
        parts = [(self._models(known), held) for known, held in _parts(observations)]
        told = [(told_by(models, [truth.cell for truth in held]), held) for models, held in parts]
        models = self._models(observations)
        if not models:
            raise CannotPredict("no predictor can learn from these observations")
        tried = [
            outcome
            for by_name, held in told
            for name, predictions in by_name.items()
            for outcome in _outcomes(name, predictions, held)
        ]
        found = records([*self.past, *tried])
        apart = FusedModel({}, found)
        together = [
            outcome
            for by_name, held in told
            for outcome in _outcomes(self.name, apart.fused(by_name, [truth.cell for truth in held]), held)
        ]
        return FusedModel(models, found, _scale(together))

    def _models(self, observations: Sequence[Observation]) -> dict[str, Model]:
        models: dict[str, Model] = {}
        for member in self.members:
            try:
                models[member.name] = member.fit(observations)
            except CannotPredict:
                continue
        return models


def _parts(observations: Sequence[Observation]) -> Iterator[tuple[list[Observation], list[Observation]]]:
    """Interleaved: what to learn from, and what to tell."""
    for part in range(_PARTS):
        yield (
            [o for n, o in enumerate(observations) if n % _PARTS != part],
            [o for n, o in enumerate(observations) if n % _PARTS == part],
        )


def _scale(outcomes: Sequence[Outcome]) -> float:
    """What widths must be multiplied by for 80 % of these outcomes to lie inside; 1 where there are few."""
    if len(outcomes) < _ENOUGH:
        return 1.0
    surprises = sorted(abs(outcome.log_error) / outcome.prediction.log_sd for outcome in outcomes)
    return min(2.0, max(0.5, surprises[int(INTERVAL * len(surprises))] / Z80))


def outcomes_of(source: str, model: Model, truths: Sequence[Observation]) -> list[Outcome]:
    """What a model would have said of cells whose truth is known; what it cannot tell is left out."""
    return _outcomes(source, predicted(model, [truth.cell for truth in truths]), truths)


def _outcomes(source: str, told: Sequence[Prediction | None], truths: Sequence[Observation]) -> list[Outcome]:
    return [
        Outcome(source, truth.cell.kind.name, truth.cell.accelerator.name, prediction, truth.steps_per_s)
        for prediction, truth in zip(told, truths, strict=True)
        if prediction is not None
    ]


def told_by(models: Mapping[str, Model], cells: Sequence[Cell]) -> dict[str, list[Prediction | None]]:
    """What each model says of each cell."""
    return {name: predicted(model, cells) for name, model in models.items()}


@dataclass(frozen=True, slots=True, eq=False)
class FusedModel:
    """Fitted members and their records."""

    models: Mapping[str, Model]
    records: Mapping[str, Record]
    #: Factor of the width that fusing gives.
    scale: float = 1.0

    def predict(self, cell: Cell) -> Prediction:
        found = self.predict_many([cell])[0]
        if found is None:
            reasons = "; ".join(dict.fromkeys(self._reasons(cell)))
            raise CannotPredict(f"no predictor knows {cell.kind.name} on {cell.accelerator.name}: {reasons}")
        return found

    def predict_many(self, cells: Sequence[Cell]) -> list[Prediction | None]:
        """In order; None for a cell that no member can tell."""
        return self.fused(told_by(self.models, cells), cells)

    def fused(self, told: Mapping[str, Sequence[Prediction | None]], cells: Sequence[Cell]) -> list[Prediction | None]:
        """Of what members said of these cells."""
        found: list[Prediction | None] = []
        for place, cell in enumerate(cells):
            said = {name: prediction for name, each in told.items() if (prediction := each[place]) is not None}
            found.append(self._fused(list(self._corrected(said, cell).values())) if said else None)
        return found

    def weights(self, cell: Cell) -> dict[str, float]:
        """How much each member that can tell counts for this cell; they sum to 1."""
        told = {name: each[0] for name, each in told_by(self.models, [cell]).items()}
        said = {name: prediction for name, prediction in told.items() if prediction is not None}
        precise = {name: sd**-2 for name, (_, sd) in self._corrected(said, cell).items()}
        total = sum(precise.values())
        return {name: weight / total for name, weight in precise.items()}

    def _fused(self, told: Sequence[tuple[float, float]]) -> Prediction:
        fused = fuse(told)
        return around(log(fused.steps_per_s), self.scale * fused.log_sd)

    def _reasons(self, cell: Cell) -> Iterator[str]:
        for model in self.models.values():
            try:
                model.predict(cell)
            except CannotPredict as reason:
                yield str(reason)

    def _corrected(self, said: Mapping[str, Prediction], cell: Cell) -> dict[str, tuple[float, float]]:
        """Log speed and standard deviation, stretched by the member's record."""
        found = {}
        for name, prediction in said.items():
            record = self.records.get(name)
            stretch = record.stretch(cell.accelerator.name) if record else 1.0
            found[name] = (log(prediction.steps_per_s), max(_LEAST_SD, prediction.log_sd * stretch))
        return found


def fuse(told: Sequence[tuple[float, float]]) -> Prediction:
    """Of (log speed, standard deviation)."""
    weights = [sd**-2 for _, sd in told]
    total = sum(weights)
    mean = sum(weight * value for weight, (value, _) in zip(weights, told, strict=True)) / total
    apart = sum(weight * (value - mean) ** 2 for weight, (value, _) in zip(weights, told, strict=True)) / total
    common = sum(weight * sd for weight, (_, sd) in zip(weights, told, strict=True)) / total
    return around(mean, sqrt(common**2 + apart))
