"""What predictors reach on the reference data, as numbers that benchmark and tests share."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from random import Random
from statistics import fmean, median
from zlib import crc32

from benchmarks.profiles import achieving, over_sheets, pair, without
from benchmarks.published_speeds import achieved, publications, published
from optimizer.prediction.gaussian_process import GaussianProcess
from optimizer.prediction.predictor import Observation, Prediction, SpeedModel, predict_cells


@dataclass(frozen=True, slots=True)
class PredictionScore:
    """How well predictions met truths. Errors are relative to the true step time."""

    #: Cells that were predicted, and cells that could not be.
    predicted: int
    refused: int
    median_error: float
    mean_error: float
    #: Share of truths inside their interval.
    coverage: float


def step_time_error(prediction: Prediction, steps_per_s: float) -> float:
    """Relative error of the step time: of 1/prediction against 1/truth."""
    return abs(steps_per_s / prediction.steps_per_s - 1.0)


def score_model(model: SpeedModel, truths: Sequence[Observation]) -> PredictionScore:
    """Of a model on cells that it was not fitted to. Figures are 0 where nothing could be predicted."""
    errors: list[float] = []
    held = 0
    for truth, prediction in zip(truths, predict_cells(model, [truth.cell for truth in truths]), strict=True):
        if prediction is None:
            continue
        errors.append(step_time_error(prediction, truth.steps_per_s))
        held += prediction.holds(truth.steps_per_s)
    many = len(errors)
    if many == 0:
        return PredictionScore(0, len(truths), 0.0, 0.0, 0.0)
    return PredictionScore(many, len(truths) - many, median(errors), sum(errors) / many, held / many)


@dataclass(frozen=True, slots=True)
class Told:
    """Errors of step time, and share of truths inside 80 % intervals."""

    errors: tuple[float, ...]
    held: tuple[bool, ...]

    @property
    def mean(self) -> float:
        return fmean(self.errors)

    @property
    def median(self) -> float:
        return median(self.errors)

    @property
    def coverage(self) -> float:
        return sum(self.held) / len(self.held)


def told(known: Sequence[Observation], asked: Sequence[Observation]) -> Told:
    """Learn from some, tell the others."""
    predictions = GaussianProcess().fit(known).predict_all([o.cell for o in asked])
    pairs = list(zip(predictions, asked, strict=True))
    return Told(
        tuple(step_time_error(prediction, truth.steps_per_s) for prediction, truth in pairs),
        tuple(prediction.holds(truth.steps_per_s) for prediction, truth in pairs),
    )


def each_type_left_out(observations: Sequence[Observation], probes: int) -> dict[str, Told]:
    """By accelerator; `probes` cells of it, chosen by checksum, are known all the same."""
    answers = {}
    for accelerator in sorted({o.cell.accelerator.name for o in observations}):
        known, held = without(observations, accelerator)
        held.sort(key=lambda o: crc32(repr(pair(o.cell)).encode()))
        if len(held) > probes:
            answers[accelerator] = told([*known, *held[:probes]], held[probes:])
    return answers


def drawn_probes(observations: Sequence[Observation], probes: int, draws: int) -> dict[str, list[Told]]:
    """By accelerator, one answer a draw: each type left out but for so many of its cells, drawn at random."""
    answers: dict[str, list[Told]] = {}
    for accelerator in sorted({o.cell.accelerator.name for o in observations}):
        known, held = without(observations, accelerator)
        for draw in range(draws if len(held) > probes + 3 else 0):
            mixed = Random(f"{accelerator} {probes} {draw}").sample(held, len(held))
            answers.setdefault(accelerator, []).append(told([*known, *mixed[:probes]], mixed[probes:]))
    return answers


def chosen_probes(observations: Sequence[Observation], probes: int) -> dict[str, Told]:
    """By accelerator, each left out but for the cells that the process itself would measure first."""
    answers = {}
    for accelerator in sorted({o.cell.accelerator.name for o in observations}):
        known, held = without(observations, accelerator)
        if len(held) > probes + 3:
            chosen = GaussianProcess().fit(known).most_telling([o.cell for o in held], probes)
            measured = [held[place] for place in chosen]
            answers[accelerator] = told([*known, *measured], [o for n, o in enumerate(held) if n not in chosen])
    return answers


def best_factors(observations: Sequence[Observation]) -> Told:
    """What no knowledge of an accelerator as a whole can beat: each type left out, and then all that was told of it
    multiplied by the one number that is best when its truths are known."""
    errors: list[float] = []
    for accelerator in sorted({o.cell.accelerator.name for o in observations}):
        known, held = without(observations, accelerator)
        if held:
            model = GaussianProcess().fit(known)
            predictions = model.predict_all([o.cell for o in held])
            ratios = [o.steps_per_s / each.steps_per_s for o, each in zip(held, predictions, strict=True)]
            logs = sorted(log(ratio) for ratio in ratios)
            told = ([abs(ratio / exp(factor) - 1.0) for ratio in ratios] for factor in logs)
            errors += min(told, key=median)
    return Told(tuple(errors), ())


def with_publications(observations: Sequence[Observation]) -> list[Observation]:
    """With what publications say that accelerators achieve, as the catalog ships it."""
    return achieving(observations, published())


def with_tables(observations: Sequence[Observation], others: Sequence[Sequence[Observation]]) -> list[Observation]:
    """With what publications and other tables say that accelerators achieve."""
    return achieving(observations, achieved([*publications(), *(over_sheets(each) for each in others)]))


def pooled(answers: dict[str, Told]) -> Told:
    """All errors of all accelerators as one."""
    return Told(
        tuple(error for answer in answers.values() for error in answer.errors),
        tuple(held for answer in answers.values() for held in answer.held),
    )
