"""What every predictor shares: values that refuse nonsense, and a score that counts what it says."""

from math import log

import pytest

from benchmarks.performance_scores import score_model
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
