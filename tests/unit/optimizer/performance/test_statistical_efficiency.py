"""What a batch is worth and how long a target takes: noise scales, loss curves."""

from math import isinf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.prediction.loss_curve import LossCurve, fit_loss_curve, statistical_efficiency, update_gain
from optimizer.prediction.predictor import CannotPredict


@given(st.floats(0.0, 1e5), st.integers(1, 1000), st.floats(1.0, 100.0))
def test_efficiency_is_between_the_ratio_of_batches_and_one(scale: float, initial: int, times: float) -> None:
    """A larger batch is never worth less per update than the initial one, and never more per sample."""
    worth = statistical_efficiency(scale, initial * times, initial)
    assert 1.0 / times - 1e-9 <= worth <= 1.0


@given(st.floats(1e-3, 1e3), st.floats(0.0, 1e3), st.integers(1, 1000), st.floats(1.0, 100.0))
def test_one_law_by_the_scale_and_by_its_two_parts(signal: float, spread: float, initial: int, times: float) -> None:
    """What an update gains is what its samples are worth, times as many as they are."""
    scale = spread * initial / signal
    assert update_gain(signal, spread, times) == pytest.approx(
        times * statistical_efficiency(scale, initial * times, initial)
    )


def test_a_loss_curve_tells_when_a_target_is_reached() -> None:
    """From the first third of a noisy curve, steps to a loss at its end within 20 %."""
    truth, random = LossCurve(2e-3, 0.4, 0.3), Random(3)
    points = [(float(k), truth.loss(k) * random.gauss(1.0, 0.02)) for k in range(0, 1000, 10)]
    found = fit_loss_curve(points)
    target = truth.loss(3000)
    assert found.steps_to(target) == pytest.approx(3000, rel=0.2)
    assert found.steps_to(truth.loss(0) + 1.0) == 0.0


def test_a_target_below_the_floor_is_never_reached() -> None:
    """Infinite, not an error: the job may be told so."""
    assert isinf(LossCurve(1e-3, 1.0, 0.3).steps_to(0.3))
    assert isinf(LossCurve(1e-3, 1.0, 0.0, power=0.34).steps_to(1e-300))


@pytest.mark.parametrize(
    ("points", "why"),
    [
        ([(0.0, 1.0)] * 4, "too few"),
        ([(float(k), float("nan")) for k in range(9)], "not a number"),
        ([(float(k), 1.0 + k) for k in range(9)], "does not fall"),
    ],
)
def test_losses_that_fit_no_curve_are_refused(points: list[tuple[float, float]], why: str) -> None:
    """NaN, rising and too few losses are named."""
    with pytest.raises(CannotPredict, match=why):
        fit_loss_curve(points)
