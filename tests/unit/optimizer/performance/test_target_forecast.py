"""Values that jobs report, thinned; and when they will be at their targets."""

from collections.abc import Callable
from math import exp, inf, nan
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.prediction.loss_curve import (
    MOST_POINTS,
    LossCurve,
    TargetForecast,
    ValueSeries,
    fit_curve_that_reaches,
    forecast_target,
    loss_misfit,
)

LEVELLED = LossCurve(1e-2, 0.4, 0.3)


def reported(*reports: tuple[float, float], at_most: float = 0.1) -> ValueSeries:
    series = ValueSeries()
    for step, value in reports:
        series = series.with_report(step, value, at_most)
    return series


def foreseen(truth: LossCurve, steps: int, target: float, declared: float | None, noise: float = 0.0) -> TargetForecast:
    random = Random(5)
    points = [(k * steps / 40, truth.loss(k * steps / 40) * random.gauss(1.0, noise)) for k in range(1, 41)]
    return forecast_target(points, float(steps), target, declared)


# ------------------------------------------------------------------------------------------------- the series


def test_a_long_run_keeps_few_points_that_cover_it() -> None:
    """However many reports: at most 64 points from first to last, each the mean of what it stands for."""
    series = reported(*((float(step), 2.0 - step / 10_000) for step in range(1, 10_001)))
    points = series.points
    assert MOST_POINTS / 2 <= len(points) <= MOST_POINTS
    assert sum(point.reports for point in points) == 10_000
    assert points[0].step < 10_000 / len(points)
    assert points[-1].last_step == 10_000
    assert all(point.value == pytest.approx(2.0 - point.step / 10_000) for point in points)
    assert len({point.reports for point in points[:-1]}) == 1


@given(st.lists(st.tuples(st.floats(), st.floats()), max_size=300))
def test_nothing_that_is_reported_breaks_the_series(reports: list[tuple[float, float]]) -> None:
    """NaN, infinities, negative and absurd numbers in any order: bounded, ascending, finite, and a forecast all the
    same."""
    series = reported(*reports)
    assert len(series.points) <= MOST_POINTS
    steps = [point.step for point in series.points]
    assert steps == sorted(steps)
    assert all(0.0 < point.value < inf and 0.0 <= point.step <= 1e15 for point in series.points)


@pytest.mark.parametrize("wrong", [(2.0, nan), (2.0, inf), (nan, 1.0), (-1.0, 1.0), (1e300, 1.0), (1.0, 3.0)])
def test_what_tells_nothing_changes_nothing(wrong: tuple[float, float]) -> None:
    """Numbers that are none, steps that are none, and a step that was told of already."""
    series = reported((0.0, 2.0), (1.0, 1.5))
    assert series.with_report(*wrong, at_most=0.1) is series


def test_a_value_that_is_looked_at_now_and_then_is_one_point_each_time() -> None:
    """Between two looks of the script its reports repeat the old value: a staircase would be no curve."""
    series = reported((10.0, 2.0), (20.0, 2.0), (30.0, 1.5), (40.0, 1.5))
    assert [(point.step, point.value) for point in series.points] == [(10.0, 2.0), (30.0, 1.5)]


def test_a_job_that_goes_on_from_an_earlier_step_loses_what_came_after() -> None:
    """Its new losses are those that count; that it had reached its target then, too."""
    series = reported((10.0, 2.0), (20.0, 1.0), (30.0, 0.05), (20.0, 0.9), (25.0, 0.8))
    assert [(point.step, point.value) for point in series.points] == [(10.0, 2.0), (20.0, 1.0), (25.0, 0.8)]
    assert (series.newest, series.newest_step, series.reached_step) == (0.8, 25.0, None)
    assert reported((10.0, 2.0), (5.0, 3.0)).points[0].step == 5.0


def test_the_first_step_at_the_target_is_kept() -> None:
    """A loss that rises again later was there all the same; one of 0 is there, and on no curve."""
    series = reported((10.0, 2.0), (20.0, 0.1), (30.0, 0.2))
    assert series.reached_step == 20.0
    nothing_left = reported((10.0, 2.0), (20.0, 0.0))
    assert (nothing_left.reached_step, len(nothing_left.points)) == (20.0, 1)


# ------------------------------------------------------------------------------------------------- the forecast


def test_a_target_ahead_has_a_step() -> None:
    """From a third of the way with 1 % of noise, within 20 %; nothing is amiss if the job declared enough steps."""
    found = foreseen(LEVELLED, 1000, LEVELLED.loss(3000), declared=5000, noise=0.01)
    assert found.steps == pytest.approx(3000, rel=0.2)
    assert found.floor == pytest.approx(0.3, abs=0.02)
    assert (found.is_late, found.is_out_of_reach) == (False, False)


def test_a_target_beyond_the_declared_steps_is_late() -> None:
    """Known long before the last step."""
    found = foreseen(LEVELLED, 1000, LEVELLED.loss(3000), declared=1500, noise=0.002)
    assert found.steps == pytest.approx(3000, rel=0.2)
    assert (found.is_late, found.is_out_of_reach) == (True, False)


def test_a_target_below_the_floor_is_out_of_reach() -> None:
    """And so it is late as well, if steps are declared."""
    found = foreseen(LEVELLED, 2000, 0.27, declared=None, noise=0.002)
    assert (found.steps, found.is_out_of_reach, found.is_late) == (None, True, False)
    assert foreseen(LEVELLED, 2000, 0.27, declared=9000, noise=0.002).is_late


LAWS: dict[str, Callable[[float], float]] = {
    "exponential": lambda k: exp(-k / 1500) + 0.1, "root": lambda k: 2.0 * (k + 50.0) ** -0.5 + 0.1,
    "inverse": LossCurve(2e-3, 0.4, 0.3).loss, "slow at first": lambda k: 1.3 / (1.0 + (k / 800.0) ** 1.6) + 0.05,
}  # fmt: skip


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_curves_of_other_laws_are_met_too(law: str, noise: float) -> None:
    """From three fifths of the way within 20 %; and at no time is a job that will be in time said to be late."""
    random, target = Random(11), LAWS[law](3000.0)
    points = [(float(k), LAWS[law](k) * random.gauss(1.0, noise)) for k in range(25, 3000, 25)]
    for part in (0.2, 0.4, 0.6, 0.8):
        seen = [point for point in points if point[0] <= part * 3000]
        found = forecast_target(seen, seen[-1][0], target, 3300)
        assert (found.is_late, found.is_out_of_reach) == (False, False)
        if part >= 0.6:
            assert found.steps == pytest.approx(3000, rel=0.2)


@pytest.mark.parametrize("seed", range(5))
def test_a_short_noisy_run_accuses_nobody(seed: int) -> None:
    """Whatever the best curve says: another one that reaches the target fits nearly as well."""
    random, truth = Random(seed), LossCurve(2e-3, 0.4, 0.3)
    points = [(k * 5.0, truth.loss(k * 5.0) * random.gauss(1.0, 0.05)) for k in range(1, 41)]
    found = forecast_target(points, 200.0, truth.loss(3000), 5000)
    assert (found.is_late, found.is_out_of_reach) == (False, False)


def test_steps_that_are_over_are_late() -> None:
    """A job that has done what it declared, and is not there."""
    assert foreseen(LEVELLED, 1000, LEVELLED.loss(3000), declared=900, noise=0.01).is_late


@pytest.mark.parametrize(
    ("points", "why"),
    [
        ([(1.0, 2.0)] * 3, "3 losses are too few"),
        ([(float(k), 10.0**-k) for k in range(12)], "too far apart"),
        ([(float(k), 1.0 + k) for k in range(9)], "does not fall"),
    ],
)
def test_values_that_fit_no_curve_say_why(points: list[tuple[float, float]], why: str) -> None:
    """No error: a forecast without steps."""
    found = forecast_target(points, 9.0, 0.1, 100.0)
    assert why in found.why_not
    assert (found.steps, found.floor, found.is_late, found.is_out_of_reach) == (None, None, False, False)


@given(
    st.lists(st.tuples(st.floats(0.0, 1e15), st.floats(1e-7, 1e15)), min_size=5, max_size=12),
    st.floats(1e-300, 1e15),
)
def test_absurd_values_have_a_forecast_too(points: list[tuple[float, float]], target: float) -> None:
    """No numbers, however far apart, raise anything."""
    found = forecast_target(sorted(points), max(step for step, _ in points), target, 100.0)
    assert found.steps is None or 0.0 <= found.steps < inf


def test_the_other_curve_is_the_best_one_where_that_is_in_time() -> None:
    """It passes through the target, and through noiseless points that do too."""
    points = [(float(k), LEVELLED.loss(k)) for k in range(0, 1000, 50)]
    other = fit_curve_that_reaches(points, LEVELLED.loss(3000), 3000.0)
    assert other.loss(3000.0) == pytest.approx(LEVELLED.loss(3000))
    assert loss_misfit(other, points) == pytest.approx(0.0, abs=1e-6)
    early = fit_curve_that_reaches(points, LEVELLED.loss(3000), 1500.0)
    assert early.loss(1500.0) == pytest.approx(LEVELLED.loss(3000))
    assert loss_misfit(early, points) > loss_misfit(other, points)
