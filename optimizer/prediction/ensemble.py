"""An ensemble of predictors, weighted by the errors of their past predictions.

A member's interval is recalibrated by its record: where its errors exceeded the stated width, the width is stretched.
Members are then averaged in the logarithm of speed, weighted by the inverse of the recalibrated variances. Their errors
are assumed to be fully correlated (predictors fitted to the same measurements err together), so agreement makes no
interval narrower than the members' average, and disagreement widens it. Last, all widths are scaled by
cross-validation.

Records are kept apart by what was measured on the accelerator: nothing, a few cells, or many. A member that completes
well-known accelerators may mislead on a new one, which folds without an accelerator, or with three of its cells, show.

The report of accuracy uses the same records: errors by source, accelerator and kind, and the weight of each source. A
source that states no intervals is weighted by the size of its errors. Weights are inverse variances and sum to 1 over
the sources.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import log, pi, sqrt
from statistics import fmean, median

from optimizer.prediction.predictor import (
    INTERVAL,
    Z80,
    CannotPredict,
    Observation,
    Prediction,
    Predictor,
    SpeedCell,
    SpeedModel,
    log_normal_prediction,
    predict_cells,
)

#: Outcomes of one accelerator that weigh as much as the record over all accelerators.
_SHRINK = 5.0
_PARTS = 4
#: What was measured on an accelerator: nothing, at most so many cells, or more.
NOTHING, FEW, MANY = 0, 1, 2
_FEW_CELLS = 5
#: Accelerators left out in turn, cells of each that are kept for the second of its folds, and most that are predicted.
_LEFT_OUT, _KEPT, _HELD_MOST = 4, 3, 60
#: Outcomes used to scale the width of the ensemble's intervals.
_ENOUGH = 20
#: Standard deviations by which their number may fall short by chance.
_SURE = 1.64
#: Standard deviation of a normal distribution over the mean size of its values.
_TO_SD = sqrt(pi / 2.0)
_LEAST_SD = 1e-3


@dataclass(frozen=True, slots=True)
class PredictionOutcome:
    """A prediction and the speed measured afterwards."""

    source: str
    kind: str
    accelerator: str
    prediction: Prediction
    steps_per_s: float
    #: NOTHING, FEW or MANY.
    evidence: int = MANY

    @property
    def log_error(self) -> float:
        """Logarithm of predicted over true speed."""
        return log(self.prediction.steps_per_s / self.steps_per_s)


@dataclass(frozen=True, slots=True)
class PredictionRecord:
    """Record of one source: mean absolute error over the stated deviation, by evidence and by accelerator.

    Absolute errors, not squares, so that one large error does not dominate.
    """

    by_evidence: tuple[float, ...]
    by_accelerator: Mapping[str, tuple[float, int]]

    def stretch(self, accelerator: str, evidence: int = MANY) -> float:
        """The factor by which stated standard deviations are multiplied."""
        own, many = self.by_accelerator.get(accelerator, (0.0, 0))
        return (own * many + self.by_evidence[evidence] * _SHRINK) / (many + _SHRINK)


def prediction_records(outcomes: Iterable[PredictionOutcome]) -> dict[str, PredictionRecord]:
    """Records by source, each with one prior outcome at the stated width, so that few lucky outcomes weigh little."""
    ratios: dict[str, list[tuple[PredictionOutcome, float]]] = {}
    for outcome in outcomes:
        claimed = max(outcome.prediction.log_sd, _LEAST_SD)
        ratios.setdefault(outcome.source, []).append((outcome, _TO_SD * abs(outcome.log_error) / claimed))
    found = {}
    for source, judged in ratios.items():
        by_accelerator: dict[str, list[float]] = {}
        by_evidence: tuple[list[float], ...] = ([1.0], [1.0], [1.0])
        for outcome, ratio in judged:
            by_evidence[outcome.evidence].append(ratio)
            if outcome.evidence == MANY:
                by_accelerator.setdefault(outcome.accelerator, []).append(ratio)
        means = {name: (fmean(values), len(values)) for name, values in by_accelerator.items()}
        found[source] = PredictionRecord(tuple(fmean(values) for values in by_evidence), means)
    return found


@dataclass(frozen=True, slots=True)
class Ensemble:
    """The ensemble. `past`: outcomes of earlier predictions, which count like those of the cross-validation."""

    members: tuple[Predictor, ...]
    past: tuple[PredictionOutcome, ...] = ()

    @property
    def name(self) -> str:
        return "fused"

    def fit(self, observations: Sequence[Observation]) -> "EnsembleModel":
        """Fit the members, without those that raise CannotPredict. Raises CannotPredict if all do."""
        folds = [(self._models(known), held, evidence) for known, held, evidence in _folds(observations)]
        predicted = [
            (predictions_by_model(models, [truth.cell for truth in held]), held, evidence)
            for models, held, evidence in folds
        ]
        models = self._models(observations)
        if not models:
            raise CannotPredict("no predictor can learn from these observations")
        tried = [
            outcome
            for by_name, held, evidence in predicted
            for name, predictions in by_name.items()
            for outcome in _outcomes(name, predictions, held, evidence)
        ]
        found = prediction_records([*self.past, *tried])
        apart = EnsembleModel({}, found)
        scales = []
        for wanted in (NOTHING, FEW, MANY):
            together: list[PredictionOutcome] = []
            for by_name, held, evidence in predicted:
                if evidence == wanted:
                    fused = apart.fused(by_name, [truth.cell for truth in held], evidence)
                    together += _outcomes(self.name, fused, held, evidence)
            scales.append(_scale(together))
        measured = Counter(observation.cell.accelerator.name for observation in observations)
        return EnsembleModel(models, found, measured, tuple(scales))

    def _models(self, observations: Sequence[Observation]) -> dict[str, SpeedModel]:
        models: dict[str, SpeedModel] = {}
        for member in self.members:
            try:
                models[member.name] = member.fit(observations)
            except CannotPredict:
                continue
        return models


def _folds(observations: Sequence[Observation]) -> Iterator[tuple[list[Observation], list[Observation], int]]:
    """Observations to fit, others to predict, and what is known of the latter's accelerators: interleaved folds, then
    accelerators left out, each wholly and but for a few cells.
    """
    for part in range(_PARTS):
        yield (
            [o for n, o in enumerate(observations) if n % _PARTS != part],
            [o for n, o in enumerate(observations) if n % _PARTS == part],
            MANY,
        )
    many = Counter(observation.cell.accelerator.name for observation in observations)
    for accelerator, cells in many.most_common(_LEFT_OUT) if len(many) > 1 else ():
        if cells <= 2 * _KEPT:
            break
        others = [o for o in observations if o.cell.accelerator.name != accelerator]
        kinds = {o.cell.kind.name for o in others}
        own = [o for o in observations if o.cell.accelerator.name == accelerator and o.cell.kind.name in kinds]
        if len(own) > 2 * _KEPT:
            kept = own[len(own) // (2 * _KEPT) :: len(own) // _KEPT][:_KEPT]
            held = [o for o in own if o not in kept]
            held = held[:: -(-len(held) // _HELD_MOST)]
            yield others, held, NOTHING
            yield [*others, *kept], held, FEW


def _scale(outcomes: Sequence[PredictionOutcome]) -> float:
    """The factor of widths at which 80 % lie inside, as far as so many outcomes make sure; 1 where there are few."""
    if len(outcomes) < _ENOUGH:
        return 1.0
    surprises = sorted(abs(outcome.log_error) / outcome.prediction.log_sd for outcome in outcomes)
    many = len(surprises)
    inside = INTERVAL * many + _SURE * sqrt(INTERVAL * (1.0 - INTERVAL) * many)
    return min(2.0, max(0.5, surprises[min(many - 1, int(inside))] / Z80))


def _outcomes(
    source: str, by_member: Sequence[Prediction | None], truths: Sequence[Observation], evidence: int
) -> list[PredictionOutcome]:
    return [
        PredictionOutcome(
            source, truth.cell.kind.name, truth.cell.accelerator.name, prediction, truth.steps_per_s, evidence
        )
        for prediction, truth in zip(by_member, truths, strict=True)
        if prediction is not None
    ]


def predictions_by_model(
    models: Mapping[str, SpeedModel], cells: Sequence[SpeedCell]
) -> dict[str, list[Prediction | None]]:
    return {name: predict_cells(model, cells) for name, model in models.items()}


@dataclass(frozen=True, slots=True, eq=False)
class EnsembleModel:
    """Fitted members and their records."""

    models: Mapping[str, SpeedModel]
    records: Mapping[str, PredictionRecord]
    #: Number of observations by accelerator.
    measured: Mapping[str, int] = field(default_factory=dict)
    #: Factors applied to the width of the averaged interval, by evidence.
    scales: tuple[float, ...] = (1.0, 1.0, 1.0)

    def predict(self, cell: SpeedCell) -> Prediction:
        found = self.predict_many([cell])[0]
        if found is None:
            reasons = "; ".join(dict.fromkeys(self._reasons(cell)))
            raise CannotPredict(f"no predictor knows {cell.kind.name} on {cell.accelerator.name}: {reasons}")
        return found

    def predict_many(self, cells: Sequence[SpeedCell]) -> list[Prediction | None]:
        """Predictions in the order of the cells; None for a cell that no member predicts."""
        return self.fused(predictions_by_model(self.models, cells), cells)

    def fused(
        self,
        by_member: Mapping[str, Sequence[Prediction | None]],
        cells: Sequence[SpeedCell],
        evidence: int | None = None,
    ) -> list[Prediction | None]:
        """The ensemble's predictions from those of its members. `evidence`: None for that of its observations."""
        found: list[Prediction | None] = []
        for place, cell in enumerate(cells):
            said = {name: prediction for name, each in by_member.items() if (prediction := each[place]) is not None}
            known = self._evidence(cell) if evidence is None else evidence
            found.append(self._fused(list(self._corrected(said, cell, known).values()), known) if said else None)
        return found

    def _evidence(self, cell: SpeedCell) -> int:
        many = self.measured.get(cell.accelerator.name, 0)
        return NOTHING if not many else FEW if many <= _FEW_CELLS else MANY

    def weights(self, cell: SpeedCell) -> dict[str, float]:
        """Weights of the members that predict this cell; they sum to 1."""
        by_member = {name: each[0] for name, each in predictions_by_model(self.models, [cell]).items()}
        said = {name: prediction for name, prediction in by_member.items() if prediction is not None}
        precise = {name: sd**-2 for name, (_, sd) in self._corrected(said, cell, self._evidence(cell)).items()}
        total = sum(precise.values())
        return {name: weight / total for name, weight in precise.items()}

    def _fused(self, by_member: Sequence[tuple[float, float]], evidence: int) -> Prediction:
        fused = fuse_predictions(by_member)
        return log_normal_prediction(log(fused.steps_per_s), self.scales[evidence] * fused.log_sd)

    def _reasons(self, cell: SpeedCell) -> Iterator[str]:
        for model in self.models.values():
            try:
                model.predict(cell)
            except CannotPredict as reason:
                yield str(reason)

    def _corrected(
        self, said: Mapping[str, Prediction], cell: SpeedCell, evidence: int
    ) -> dict[str, tuple[float, float]]:
        """Log speed and standard deviation, stretched by the member's record."""
        found = {}
        for name, prediction in said.items():
            record = self.records.get(name)
            stretch = record.stretch(cell.accelerator.name, evidence) if record else 1.0
            found[name] = (log(prediction.steps_per_s), max(_LEAST_SD, prediction.log_sd * stretch))
        return found


def fuse_predictions(by_member: Sequence[tuple[float, float]]) -> Prediction:
    """The average of (log speed, standard deviation) pairs, weighted by inverse variances."""
    weights = [sd**-2 for _, sd in by_member]
    total = sum(weights)
    mean = sum(weight * value for weight, (value, _) in zip(weights, by_member, strict=True)) / total
    apart = sum(weight * (value - mean) ** 2 for weight, (value, _) in zip(weights, by_member, strict=True)) / total
    common = sum(weight * sd for weight, (_, sd) in zip(weights, by_member, strict=True)) / total
    return log_normal_prediction(mean, sqrt(common**2 + apart))


#: Error (log) of one prior outcome of each source, so that one lucky prediction does not decide its weight.
_DOUBT = log(1.5)


@dataclass(frozen=True, slots=True)
class ScoredPrediction:
    """A prediction and the measured speed, in steps per second; without an interval, `low` and `high` are None."""

    source: str
    kind: str
    accelerator: str
    predicted: float
    measured: float
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if not (0 < self.predicted < float("inf") and 0 < self.measured < float("inf")):
            raise ValueError(f"speeds are finite and above 0: {self}")
        if self.low is not None and self.high is not None and not 0 < self.low <= self.predicted <= self.high:
            raise ValueError(f"a prediction lies inside its interval: {self}")

    @property
    def error(self) -> float:
        """Relative error of step time."""
        return abs(self.measured / self.predicted - 1.0)

    @property
    def outcome(self) -> PredictionOutcome | None:
        """This outcome as the ensemble records it; None without an interval."""
        if self.low is None or self.high is None:
            return None
        prediction = Prediction(self.predicted, self.low, self.high)
        return PredictionOutcome(self.source, self.kind, self.accelerator, prediction, self.measured)


@dataclass(frozen=True, slots=True)
class AccuracyRow:
    name: str
    predictions: int
    median_error: float
    mean_error: float
    #: Share of measured speeds inside the stated intervals; None without stated intervals.
    coverage: float | None


def accuracy_rows(judged: Sequence[ScoredPrediction], key: Callable[[ScoredPrediction], str]) -> list[AccuracyRow]:
    """One row for each value of the key, largest median error first."""
    groups: dict[str, list[ScoredPrediction]] = {}
    for each in judged:
        groups.setdefault(key(each), []).append(each)
    return sorted((_accuracy_row(name, group) for name, group in groups.items()), key=lambda row: -row.median_error)


def _accuracy_row(name: str, group: Sequence[ScoredPrediction]) -> AccuracyRow:
    errors = [each.error for each in group]
    held = [o.prediction.holds(o.steps_per_s) for each in group if (o := each.outcome) is not None]
    return AccuracyRow(name, len(group), median(errors), fmean(errors), fmean(held) if held else None)


def source_weights(judged: Sequence[ScoredPrediction]) -> dict[str, float]:
    """Weights by source."""
    stretched = prediction_records(outcome for each in judged if (outcome := each.outcome) is not None)
    variances: dict[str, list[float]] = {}
    for each in judged:
        outcome = each.outcome
        if outcome is None:
            squared = log(each.predicted / each.measured) ** 2
        else:
            squared = (outcome.prediction.log_sd * stretched[each.source].stretch(each.accelerator)) ** 2
        variances.setdefault(each.source, []).append(squared)
    typical = {source: sqrt(fmean([*squares, _DOUBT**2])) for source, squares in variances.items()}
    total = sum(sd**-2 for sd in typical.values())
    return {source: sd**-2 / total for source, sd in typical.items()}
