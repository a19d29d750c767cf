"""Step times from facts: rings, rooflines, accumulation."""

from dataclasses import replace
from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.prediction.predictor import AcceleratorSpecs, CannotPredict, KindFacts, Layout, Observation, SpeedCell
from optimizer.prediction.step_time import (
    RooflinePredictor,
    exposed_s,
    hierarchical_all_reduce_s,
    ring_all_reduce_s,
    roofline_pass_s,
)

T4 = AcceleratorSpecs("t4", 8e12, 300e9, link_bytes_per_s=12e9, host_bytes_per_s=12e9, network_bytes_per_s=3e9)
CNN = KindFacts("cnn", flops_per_sample=8e9, memory_bytes_per_sample=1e8, gradient_bytes=1e8, input_bytes=6e5)


def test_a_ring_sends_every_byte_twice_but_its_own() -> None:
    """Two ranks exchange S bytes each; many ranks nearly 2 S; one none."""
    assert ring_all_reduce_s(100.0, 1, 10.0) == 0.0
    assert ring_all_reduce_s(100.0, 2, 10.0) == pytest.approx(10.0)
    assert ring_all_reduce_s(100.0, 1000, 10.0) == pytest.approx(20.0, rel=0.01)
    assert ring_all_reduce_s(0.0, 3, 10.0, latency_s=0.5) == pytest.approx(2.0)


@given(st.integers(1, 16), st.integers(1, 8), st.floats(1, 1e9))
def test_a_hierarchy_of_one_level_is_a_ring(machines: int, inside: int, size: float) -> None:
    """One machine rings inside, single accelerators ring outside, and both levels add up."""
    speeds = (12e9, 3e9)
    assert hierarchical_all_reduce_s(size, (1, inside), speeds) == ring_all_reduce_s(size, inside, speeds[0])
    assert hierarchical_all_reduce_s(size, (machines, 1), speeds) == ring_all_reduce_s(size, machines, speeds[1])


def test_overlap_hides_at_most_the_backward_pass() -> None:
    """Two thirds of the pass times the share; never less than nothing is left."""
    assert exposed_s(1.0, 0.9, 0.5) == pytest.approx(0.7)
    assert exposed_s(0.1, 0.9, 0.5) == 0.0


def test_a_roofline_is_the_slower_of_arithmetic_and_memory() -> None:
    """8 GFLOP on 8 TFLOP/s are 1 ms; a kind that moves much is bound by memory."""
    cell = SpeedCell(CNN, T4, Layout(4))
    assert roofline_pass_s(cell) == pytest.approx(0.004)
    moving = replace(cell, kind=replace(CNN, memory_bytes_per_sample=3e9))
    assert roofline_pass_s(moving) == pytest.approx(0.04)


def test_bytes_that_nobody_counted_are_those_of_usual_training() -> None:
    """An accelerator four times as fast in arithmetic with the same memory is not four times as fast; counted bytes
    have the last word; half the width of the numbers is half the bytes."""
    kind = replace(CNN, memory_bytes_per_sample=None, family="convolution")
    peaks = (("fp32", 8e12), ("bf16", 320e12))
    slow, fast = (replace(T4, flops_per_s=peak, peaks=peaks) for peak in (8e12, 320e12))
    assert roofline_pass_s(SpeedCell(kind, slow, Layout(1))) == pytest.approx(0.001)
    moved = kind.flops_per_sample / 90.0 / fast.memory_bytes_per_s  # type: ignore[operator]
    assert roofline_pass_s(SpeedCell(kind, fast, Layout(1))) == pytest.approx(moved)
    wide = replace(fast, peaks=())
    assert roofline_pass_s(SpeedCell(kind, wide, Layout(1))) == pytest.approx(2.0 * moved)
    counted = replace(CNN, memory_bytes_per_sample=0.0)
    assert roofline_pass_s(SpeedCell(counted, fast, Layout(4))) == pytest.approx(0.004 / 40.0)


@pytest.mark.parametrize(("layers", "least_s"), [(None, 30e-6), (3, 90e-6), (200, 0.006)])
def test_a_model_of_few_operations_waits_for_its_launches(layers: int | None, least_s: float) -> None:
    """No accelerator, however fast, makes millions of steps a second; one that computes for longer hides them."""
    tiny = SpeedCell(replace(CNN, flops_per_sample=1e3, memory_bytes_per_sample=None, layers=layers), T4, Layout(4))
    assert roofline_pass_s(tiny) == pytest.approx(least_s)
    assert RooflinePredictor().fit([]).predict(tiny).steps_per_s <= 1.0 / least_s


@pytest.mark.parametrize(
    ("peaks", "precision", "least", "most"),
    [
        ({"fp32": 15.7e12, "fp16": 125e12}, "fp16", 0.25, 0.40),
        ({"fp32": 19.5e12, "tf32": 156e12, "bf16": 312e12}, "bf16", 0.35, 0.60),
        ({"fp32": 67e12, "tf32": 494e12, "bf16": 989e12, "fp8": 1979e12}, "bf16", 0.35, 0.60),
        ({"fp32": 67e12, "tf32": 494e12, "bf16": 989e12, "fp8": 1979e12}, "tf32", 0.30, 0.45),
    ],
)  # fmt: skip
def test_transformers_reach_the_part_of_the_peak_that_others_published(
    peaks: dict[str, float], precision: str, least: float, most: float
) -> None:
    """By generation and precision; a kind of unknown family lies between them and convolutions."""
    chip = AcceleratorSpecs("chip", peaks[precision], 1e12, peaks=tuple(peaks.items()))
    kind = KindFacts("lm", flops_per_sample=1e12, family="transformer")
    kinds = [kind, replace(kind, family=None), replace(kind, family="convolution")]
    model = RooflinePredictor().fit(())
    parts = [model.predict(SpeedCell(each, chip, Layout(1))).steps_per_s * 1e12 / peaks[precision] for each in kinds]
    assert least <= parts[0] <= most
    assert sorted(parts)[1] == parts[1]
    told = model.predict(SpeedCell(kind, chip, Layout(1)))
    assert told.low < told.steps_per_s < told.high < 2.0 * told.steps_per_s


def test_accumulation_spreads_one_synchronisation_over_passes() -> None:
    """k passes and one exposed all-reduce: samples per second rise with k where the network is slow."""
    law = RooflinePredictor()
    speeds = [
        law.parts(SpeedCell(CNN, T4, Layout(32 * (k + 1), accelerators=4, machines=4, accumulated=k))) for k in range(4)
    ]
    assert [parts.passes for parts in speeds] == [1, 2, 3, 4]
    per_sample = [parts.step_s / (k + 1) for k, parts in enumerate(speeds)]
    assert per_sample == sorted(per_sample, reverse=True)
    assert all(parts.sync_s == speeds[0].sync_s and parts.exposed_s == speeds[0].exposed_s for parts in speeds)


def test_a_slow_host_stalls_the_input() -> None:
    """The step is as long as the input."""
    slow = SpeedCell(CNN, replace(T4, host_bytes_per_s=6e7), Layout(4))
    parts = RooflinePredictor().parts(slow)
    assert parts.step_s == pytest.approx(0.04)


def test_fitting_finds_how_far_a_kind_stays_behind() -> None:
    """From single accelerators alone; it then holds for gangs, whose links are not scaled by it."""
    law = RooflinePredictor()
    measured = [Observation(SpeedCell(CNN, T4, Layout(b)), 1.0 / (2.5 * 0.001 * b)) for b in (4, 8, 16)]
    model = law.fit(measured)
    assert model.of_kind["cnn"] == pytest.approx(log(2.5))
    gang = SpeedCell(CNN, T4, Layout(64, accelerators=4, machines=2))
    assert model.parts(gang).sync_s == law.parts(gang).sync_s
    assert model.parts(gang).pass_s == pytest.approx(2.5 * 0.016)
    assert model.predict(SpeedCell(CNN, T4, Layout(32))).holds(1.0 / 0.08)


def test_a_bandwidth_measured_after_launch_changes_the_plan() -> None:
    """Facts replaced by what was measured are all that a re-plan needs."""
    gang = SpeedCell(CNN, T4, Layout(64, accelerators=4, machines=4))
    slower = replace(gang, accelerator=replace(T4, network_bytes_per_s=1e9))
    model = RooflinePredictor().fit(())
    assert model.predict(slower).steps_per_s < model.predict(gang).steps_per_s


def test_missing_facts_are_named() -> None:
    """Without FLOPs, links or the gradient's size there is an error and no guess."""
    model = RooflinePredictor().fit(())
    with pytest.raises(CannotPredict, match="FLOPs of mystery"):
        model.predict(SpeedCell(KindFacts("mystery"), T4, Layout(1)))
    with pytest.raises(CannotPredict, match="link of bare"):
        model.predict(SpeedCell(CNN, AcceleratorSpecs("bare", 1e12, 1e11), Layout(2, accelerators=2)))
