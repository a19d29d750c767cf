"""The measured rate, and the pace."""

import pytest

from walras.training.measurements import StepPacer, ThroughputMeter


def run(meter: ThroughputMeter, at: float, steps: int, step_s: float) -> float:
    for _ in range(steps):
        at += step_s
        meter.step(at)
    return at


def test_the_rate_is_that_of_undisturbed_windows() -> None:
    """A slow start, a suspension of a minute and a checkpoint do not change the measured rate."""
    meter = ThroughputMeter()
    at = run(meter, 0.0, 2, 5.0)
    at = run(meter, at, 50, 0.1)
    at = run(meter, at + 60.0, 50, 0.1)
    meter.disturb()
    run(meter, at + 3.0, 50, 0.1)
    assert meter.steps_per_s == pytest.approx(10.0)
    assert meter.samples >= 20


def test_nothing_is_known_before_a_window_has_passed() -> None:
    """No rate rather than a wrong one."""
    meter = ThroughputMeter()
    run(meter, 0.0, 3, 0.1)
    assert meter.steps_per_s is None


def test_steps_longer_than_a_window_are_measured_one_by_one() -> None:
    """A job of one step in ten seconds has a rate too."""
    meter = ThroughputMeter()
    run(meter, 0.0, 6, 10.0)
    assert meter.steps_per_s == pytest.approx(0.1)


def paced(pacer: StepPacer, at: float, steps: int, work_s: float) -> float:
    for _ in range(steps):
        at += work_s
        at += pacer.wait_s(at)
    return at


def test_steps_keep_the_pace_on_average_whatever_they_take() -> None:
    """100 steps at 50 steps/s take 2 s although each is short, and some are late."""
    pacer = StepPacer(50.0)
    at = paced(pacer, 0.0, 1, 0.005)
    begun_at = at
    for _ in range(10):
        at = paced(pacer, at, 9, 0.005)
        at = paced(pacer, at, 1, 0.060)
    at = paced(pacer, at, 5, 0.0)
    assert at - begun_at == pytest.approx(105 / 50)


def test_a_suspension_is_not_made_up_for() -> None:
    """After a pause of ten seconds the loop does not sprint for five hundred steps."""
    pacer = StepPacer(50.0)
    at = paced(pacer, 0.0, 10, 0.001)
    at = paced(pacer, at + 10.0, 1, 0.001)
    after = paced(pacer, at, 100, 0.001)
    assert after - at == pytest.approx(100 / 50, abs=0.3)


def test_a_part_of_the_work_takes_that_part_of_the_time() -> None:
    """A rank with a third of a usual share is through in a third of a step."""
    pacer = StepPacer(50.0)
    pacer.begin(10.0)
    assert pacer.wait_s(10.0, 1 / 3) == pytest.approx(0.02 / 3)
    assert pacer.wait_s(10.02) == pytest.approx(0.02 / 3)
