"""What every predictor shares: values that refuse nonsense, and scores, of predictions that were used too."""

from math import log

import pytest

from benchmarks.performance_scores import score_model
from optimizer.prediction.ensemble import ScoredPrediction, accuracy_rows, source_weights
from optimizer.prediction.predictor import (
    AcceleratorSpecs,
    CannotPredict,
    KindFacts,
    Layout,
    Observation,
    Prediction,
    SpeedCell,
    log_normal_prediction,
)

ACCELERATOR = AcceleratorSpecs("t4", 8e12, 300e9)


def cell(batch: float) -> SpeedCell:
    return SpeedCell(KindFacts("cnn"), ACCELERATOR, Layout(batch))


class Always:
    """Says 10 steps/s, 8 to 12, and refuses batches above 100."""

    def predict(self, cell: SpeedCell) -> Prediction:
        if cell.layout.batch > 100:
            raise CannotPredict("too large")
        return Prediction(10.0, 8.0, 12.0)


def test_a_score_counts_errors_of_step_time_coverage_and_refusals() -> None:
    """Errors are relative to the true step time; a refused cell is counted, not judged."""
    truths = [Observation(cell(batch), speed) for batch, speed in ((1, 10.0), (2, 11.0), (3, 15.0), (101, 10.0))]
    found = score_model(Always(), truths)
    assert (found.predicted, found.refused) == (3, 1)
    assert found.median_error == pytest.approx(0.1)
    assert found.mean_error == pytest.approx(0.2)
    assert found.coverage == pytest.approx(2 / 3)


def test_a_score_of_nothing_predicted_says_so() -> None:
    """A model that refuses everything has predicted none, and no figure is made up for it."""
    found = score_model(Always(), [Observation(cell(200), 1.0)])
    assert (found.predicted, found.refused, found.coverage) == (0, 1, 0.0)


def test_an_interval_tells_its_spread_back() -> None:
    """`log_normal_prediction` and `log_sd` are inverse."""
    prediction = log_normal_prediction(log(5.0), 0.25)
    assert prediction.steps_per_s == pytest.approx(5.0)
    assert prediction.log_sd == pytest.approx(0.25)


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan"), float("inf")])
def test_a_speed_that_is_none_is_refused(speed: float) -> None:
    """A job that never stepped is no observation."""
    with pytest.raises(ValueError, match="speed"):
        Observation(cell(1), speed)


def test_layouts_that_cannot_be_are_refused() -> None:
    """No accelerator-less machine, no empty batch, no negative accumulation."""
    for wrong in ({"batch": 0}, {"batch": 8, "machines": 2}, {"batch": 8, "accumulated": -1}):
        with pytest.raises(ValueError, match="layout"):
            Layout(**wrong)


def test_samples_of_a_pass_are_the_batch_cut_by_accelerators_and_passes() -> None:
    """64 samples on 4 accelerators in 2 passes are 8 at a time."""
    assert Layout(64, accelerators=4, accumulated=1).local == 8


def judged(source: str, error: float, width: float | None = None) -> ScoredPrediction:
    """A prediction of 100 that was so far off, with an interval of this relative half-width."""
    low, high = (None, None) if width is None else (100 / (1 + width), 100 * (1 + width))
    return ScoredPrediction(source, "net", "v100", 100.0, 100.0 * (1 + error), low, high)


def test_lines_are_ordered_by_error_and_tell_coverage() -> None:
    """The worst group comes first; coverage is told only where intervals are stated."""
    found = accuracy_rows(
        [judged("sure", 0.3, 0.1), judged("sure", 0.05, 0.1), judged("plain", 0.5)], lambda j: j.source
    )
    assert [line.name for line in found] == ["plain", "sure"]
    assert found[0].coverage is None
    assert (found[1].coverage, found[1].median_error) == (0.5, pytest.approx(0.175))


def test_bad_predictors_lose_weight() -> None:
    """Of two that claim the same, the one that erred more counts less; likewise of two that claim nothing."""
    claimed = source_weights([judged("good", 0.02, 0.1), judged("bad", 0.6, 0.1)] * 5)
    assert claimed["bad"] < 0.2 < 0.8 < claimed["good"]
    plain = source_weights([judged("good", 0.02), judged("bad", 0.9)] * 5)
    assert plain["bad"] < 0.3 < 0.7 < plain["good"]
    assert sum(plain.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan"), float("inf")])
def test_rates_of_nothing_are_no_predictions(speed: float) -> None:
    """A rate of zero, or none at all, is an error that shows the row."""
    with pytest.raises(ValueError, match="above 0"):
        ScoredPrediction("source", "net", "v100", 1.0, speed)
