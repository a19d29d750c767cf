"""Every way to run one job on machines that can be had."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.planning.machine_choice import (
    CandidateMachine,
    MachineOffer,
    RemainingWork,
    RunGoal,
    Setup,
    SetupForecasts,
    recommend_setup,
)
from optimizer.prediction.predictor import AcceleratorSpecs, KindFacts
from optimizer.prediction.step_time import RooflinePredictor

_NETWORK = 3e9
_FAST = AcceleratorSpecs("fast", 1e14, 1e12, 40e9, 2e11, 3e10, _NETWORK)
_SLOW = AcceleratorSpecs("slow", 2.5e13, 5e11, 16e9, 2e10, 1.5e10, _NETWORK)
#: Bound by arithmetic: it moves little.
_KIND = KindFacts(
    "net", flops_per_sample=2e10, memory_bytes_per_sample=1e6, gradient_bytes=1e8, resident_bytes=1e9,
    activation_bytes=1e8,
)  # fmt: skip
_WORK = RemainingWork(_KIND, samples=1e6, batch=256)


def _machines(most: int = 4) -> list[CandidateMachine]:
    return [
        CandidateMachine(MachineOffer("one slow", 0.5, most), _SLOW, 1),
        CandidateMachine(MachineOffer("four slow", 2.2, most), _SLOW, 4),
        CandidateMachine(MachineOffer("one fast", 3.0, most), _FAST, 1),
    ]


def _forecasts(work: RemainingWork = _WORK, machines: list[CandidateMachine] | None = None) -> SetupForecasts:
    return SetupForecasts(work, machines or _machines(), RooflinePredictor().fit([]))


def test_one_machine_takes_as_long_as_the_law_says() -> None:
    """Nothing is added to what the model tells."""
    setup = _forecasts().setup((0, 0, 1), 256)
    step_s = 256 * 2e10 / 1e14 * 2.0
    assert setup.steps_per_s == pytest.approx(1 / step_s)
    assert setup.time_s == pytest.approx(1e6 / 256 * step_s)
    assert setup.usd == pytest.approx(setup.time_s / 3600 * 3.0)
    assert setup.early_s < setup.time_s < setup.late_s


def test_a_part_of_the_batch_that_memory_does_not_hold_takes_more_passes() -> None:
    """16 GB hold 1 GB of model and 150 samples of .1 GB; 256 samples need two passes, on two machines one."""
    forecasts = _forecasts()
    alone, two = forecasts.setup((1, 0, 0), 256), forecasts.setup((2, 0, 0), 256)
    assert (alone.passes, two.passes) == (2, 1)


def test_a_machine_that_does_not_hold_the_model_is_refused_by_name() -> None:
    """The reason tells what does not fit."""
    large = replace(_KIND, resident_bytes=20e9)
    forecasts = _forecasts(replace(_WORK, kind=large))
    assert forecasts.setup((1, 0, 0), 256) is None
    assert "does not hold" in forecasts.refused["one slow"]
    assert forecasts.setup((0, 0, 1), 256) is not None


def test_unlike_machines_share_the_batch_by_speed() -> None:
    """The fast one takes four times as many samples, and the gang is faster than either part of it."""
    forecasts = _forecasts(replace(_WORK, kind=replace(_KIND, gradient_bytes=1e3)))
    mixed = forecasts.setup((1, 0, 1), 256)
    slow, _, fast = mixed.shares
    assert slow + fast == 256
    assert fast / slow == pytest.approx(4.0, rel=0.05)
    parts = [forecasts.setup(counts, 256) for counts in ((1, 0, 0), (0, 0, 1))]
    assert all(part is not None and part.time_s > mixed.time_s for part in parts)


def test_without_a_network_machines_work_alone() -> None:
    """Nobody guesses how fast gradients travel between machines."""
    lone = [
        replace(machine, accelerator=replace(machine.accelerator, network_bytes_per_s=None)) for machine in _machines()
    ]
    setups = list(_forecasts(machines=lone).setups(4, mixed=True))
    assert setups
    assert all(sum(setup.counts) == 1 for setup in setups)


def test_a_larger_batch_needs_more_samples_by_the_noise() -> None:
    """At a noise scale of one batch, twice the batch needs 1.5 times the samples; unknown noise tries one batch."""
    noisy = replace(_WORK, batches=(256, 512), noise_scale=256.0)
    assert noisy.steps(512) == pytest.approx(1e6 * 1.5 / 512)
    assert noisy.tried == (256, 512)
    assert replace(noisy, noise_scale=None).tried == (256,)


def test_machines_that_may_go_take_longer() -> None:
    """The whole gang stops when one of its machines goes: twice the machines, twice the rate."""
    asked: list[float] = []

    def lasting(rate: float) -> float:
        asked.append(rate)
        return 1.0 / (1.0 + rate)

    spot = [replace(machine, revocations_per_h=0.1) for machine in _machines()]
    sure, risky = _forecasts(), SetupForecasts(_WORK, spot, RooflinePredictor().fit([]), lasting=lasting)
    before, after = sure.setup((2, 0, 0), 256), risky.setup((2, 0, 0), 256)
    assert asked == [pytest.approx(0.2)]
    assert after.time_s == pytest.approx(before.time_s * 1.2)


@given(
    deadline_h=st.floats(0.5, 100.0) | st.none(), budget=st.floats(1.0, 500.0) | st.none(), mixed=st.booleans(),
)  # fmt: skip
def test_what_is_recommended_is_not_beaten(deadline_h: float | None, budget: float | None, mixed: bool) -> None:
    """On the front nobody wins in time and money at once; what is said to be kept is kept even when late."""
    setups = list(_forecasts().setups(4, mixed))
    goal = RunGoal(None if deadline_h is None else deadline_h * 3600, budget)
    found = recommend_setup(setups, goal)
    for member in found.front:
        assert not any(_beats(other, member) for other in setups)
    if found.kept:
        assert goal.met(found.setup.option(late=True))
        sure = [setup for setup in setups if goal.met(setup.option(late=True))]
        assert not any(_beats(other, found.setup) for other in sure)
    else:
        assert not any(goal.met(setup.option(late=True)) for setup in setups)


def _beats(one: Setup, other: Setup) -> bool:
    return one.time_s < other.time_s and one.usd < other.usd


def test_nothing_that_runs_is_no_recommendation() -> None:
    """Rather than one that nobody can keep."""
    assert recommend_setup([], RunGoal()) is None
