"""What a batch is worth and how long a target takes: noise scales, loss curves."""

from math import inf, isinf, sqrt
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.prediction.gradient_noise import GradientNoise, statistical_efficiency, update_gain
from optimizer.prediction.loss_curve import LossCurve, fit_loss_curve
from optimizer.prediction.predictor import CannotPredict


@given(st.floats(0.1, 1e3), st.floats(1.0, 1e5), st.integers(2, 64), st.integers(1, 512))
def test_the_noise_scale_is_found_from_expected_norms(signal: float, scale: float, workers: int, local: int) -> None:
    """|g_B|^2 = |G|^2 (1 + phi/B) for single workers and for their mean gives phi back."""
    noise = GradientNoise()
    for _ in range(3):
        noise = noise.seen(signal * (1 + scale / local), signal * (1 + scale / (local * workers)), local, workers)
    assert noise.known
    assert noise.scale == pytest.approx(scale, rel=1e-6)


def test_the_noise_scale_settles_under_noise() -> None:
    """Gradients drawn in 50 dimensions: after 400 steps phi is right within a quarter."""
    random, workers, local, size, sigma = Random(1), 4, 8, 50, 3.0
    noise = GradientNoise(keep=0.99)
    for _ in range(400):
        each = [[1.0 + random.gauss(0.0, sigma / sqrt(local)) for _ in range(size)] for _ in range(workers)]
        mean = [sum(column) / workers for column in zip(*each, strict=True)]
        squares = sum(value * value for gradient in each for value in gradient) / workers
        noise = noise.seen(squares, sum(value * value for value in mean), local, workers)
    assert noise.scale == pytest.approx(sigma**2, rel=0.25)


def test_nothing_seen_nothing_but_noise_and_no_noise() -> None:
    """Unknown; infinite: every batch is as good by the sample; zero."""
    assert not GradientNoise().known
    assert GradientNoise().seen(8.0, 1.0, 8, 8).scale == inf
    assert GradientNoise().seen(1.0, 1.0, 8, 8).scale == 0.0
    assert statistical_efficiency(inf, 1024, 32) == 1.0


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
