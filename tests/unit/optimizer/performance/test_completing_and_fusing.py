"""Tables completed from what is like, and predictors believed by their record."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sin
from random import Random

import pytest

from benchmarks.performance_scores import score_model
from optimizer.prediction.ensemble import Ensemble, PredictionOutcome, fuse_predictions, prediction_records
from optimizer.prediction.predictor import (
    AcceleratorSpecs,
    CannotPredict,
    KindFacts,
    Layout,
    Observation,
    Prediction,
    SpeedCell,
    SpeedModel,
    log_normal_prediction,
)
from optimizer.prediction.table_predictors import MatrixCompletion

TYPES = tuple(AcceleratorSpecs(f"type-{n}", 1e12, 1e11) for n in range(6))


def truth(kind: int, column: int) -> Observation:
    """Of rank one beside row and column: half of the kinds gain twice as much from later types."""
    gain = (1.0 + kind % 2) * 0.3 * column + 0.02 * sin(37.0 * kind + 11.0 * column)
    return Observation(SpeedCell(KindFacts(f"kind-{kind}"), TYPES[column], Layout(8)), exp(kind / 5.0 + gain))


WORLD = [truth(kind, column) for kind in range(16) for column in range(6)]


def halves() -> tuple[list[Observation], list[Observation]]:
    out = [(7 * n) % 10 < 3 for n in range(len(WORLD))]
    return (
        [o for o, held in zip(WORLD, out, strict=True) if not held],
        [o for o, held in zip(WORLD, out, strict=True) if held],
    )


def test_a_table_of_low_rank_is_completed() -> None:
    """30 % missing are told within a few percent, better than rows and columns alone can."""
    known, held = halves()
    found = score_model(MatrixCompletion().fit(known), held)
    assert found.median_error < 0.05
    assert found.coverage >= 0.7
    assert found.median_error < score_model(MatrixCompletion(rank=0).fit(known), held).median_error


def test_empty_rows_and_columns_are_not_made_up() -> None:
    """A kind or an accelerator without a measurement is refused, and so is an empty table."""
    model = MatrixCompletion().fit(WORLD)
    with pytest.raises(CannotPredict):
        model.predict(truth(99, 0).cell)
    with pytest.raises(CannotPredict):
        model.predict(SpeedCell(KindFacts("kind-0"), AcceleratorSpecs("new", 1e12, 1e11), Layout(8)))
    with pytest.raises(CannotPredict, match="empty"):
        MatrixCompletion().fit([])


@dataclass(frozen=True, slots=True)
class Biased:
    """Tells every truth of the world times a factor, and claims 10 %."""

    name: str
    factor: float

    def fit(self, observations: Sequence[Observation]) -> SpeedModel:
        return self

    def predict(self, cell: SpeedCell) -> Prediction:
        speeds = {o.cell: o.steps_per_s for o in WORLD}
        return log_normal_prediction(log(self.factor * speeds[cell]), 0.1)


def test_a_predictor_that_was_wrong_loses_its_weight() -> None:
    """One is off by 2, one by 1 %: after a fit the first counts for nearly nothing, though both claim the same."""
    model = Ensemble((Biased("bad", 2.0), Biased("good", 1.01))).fit(WORLD)
    weights = model.weights(WORLD[3].cell)
    assert weights["bad"] < 0.05
    assert sum(weights.values()) == pytest.approx(1.0)
    assert model.predict(WORLD[3].cell).steps_per_s == pytest.approx(WORLD[3].steps_per_s, rel=0.06)


def test_used_predictions_that_went_wrong_count_too() -> None:
    """Outcomes of an earlier life move the weights of the next fit."""
    pair = (Biased("a", 1.0), Biased("b", 1.0))
    wrong = [
        PredictionOutcome(
            "a", o.cell.kind.name, "type-0", log_normal_prediction(log(3.0 * o.steps_per_s), 0.1), o.steps_per_s
        )
        for o in WORLD
    ]
    before, after = Ensemble(pair).fit(WORLD), Ensemble(pair, tuple(wrong)).fit(WORLD)
    assert before.weights(WORLD[0].cell)["a"] == pytest.approx(0.5)
    assert after.weights(WORLD[0].cell)["a"] < 0.1


def test_disagreement_widens_and_agreement_does_not_narrow() -> None:
    """Two that say the same are as sure as one; two that differ by e are less sure than either."""
    assert fuse_predictions([(1.0, 0.1), (1.0, 0.1)]).log_sd == pytest.approx(0.1)
    assert fuse_predictions([(1.0, 0.1), (2.0, 0.1)]).log_sd > 0.4


def test_what_one_member_cannot_tell_the_others_do() -> None:
    """Completion knows nothing of a new batch; fused with one that does, it leaves the answer to that one."""
    new = Observation(SpeedCell(KindFacts("kind-0"), TYPES[0], Layout(8)), 1.0)
    fused = Ensemble((MatrixCompletion(), Biased("other", 1.0))).fit(WORLD[6:])
    assert set(fused.weights(new.cell)) == {"other"}
    with pytest.raises(CannotPredict):
        Ensemble((MatrixCompletion(),)).fit(WORLD[6:]).predict(new.cell)
    with pytest.raises(CannotPredict):
        Ensemble(()).fit(WORLD)


def test_a_record_stretches_what_was_claimed() -> None:
    """Errors that scatter three times as widely as was claimed: intervals three times as wide."""
    random = Random(5)
    found = prediction_records(
        PredictionOutcome("x", "k", "type-0", log_normal_prediction(random.gauss(0.0, 0.3), 0.1), 1.0)
        for _ in range(4000)
    )
    assert found["x"].stretch("type-0") == pytest.approx(3.0, rel=0.05)
    assert found["x"].stretch("another") == pytest.approx(3.0, rel=0.05)
