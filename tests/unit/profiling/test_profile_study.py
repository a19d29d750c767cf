"""Which runs a study makes, and what it concludes from them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from optimizer.prediction.step_time import StallRuns, attribute_stalls
from walras.profiling.profiles import (
    JobProfile,
    LossNotFinite,
    NoSpeed,
    ProfileFile,
    ProfilingExtent,
    ProfilingRequest,
    ProfilingRun,
    RankMeasurement,
    RunMeasurement,
    UpdateFacts,
    draw_profile,
    profile_as_json,
    profile_file_fields,
    profile_report,
    profile_script,
    typical_step_s,
)
from walras.spec.file_model import check_model

FACTS = UpdateFacts(
    parameters=10, parameter_bytes=40, gradient_bytes=40, state_bytes=80, layers=2, flops=1000, activation_bytes=64,
    bits=16, exponent_bits=8,
)  # fmt: skip
RANK = RankMeasurement(
    rank=0, update_s=(0.01,) * 10, wait_s=(0.0,) * 10, batches_per_update=1.0, samples_per_batch=8, finite=True,
    device="cpu", threads=1, peak_memory_bytes=1000, facts=FACTS,
)  # fmt: skip


class Planned:
    """Runs whose steps take what this table says."""

    def __init__(
        self, step_s: dict[str, float], files: tuple[str, ...] = ("a", "b"), rank: RankMeasurement = RANK
    ) -> None:
        self.step_s = step_s
        self.files = files
        self.rank = rank
        self.made: list[ProfilingRun] = []

    def run(self, run: ProfilingRun, extent: ProfilingExtent, folder: Path) -> RunMeasurement:
        self.made.append(run)
        rank = replace(self.rank, update_s=(self.step_s[run.name],) * extent.updates)
        files = self.files if run.files else ()
        return RunMeasurement(run, (rank,) * run.ranks, files, sampled_files=len(run.evict))


STEP_S = {"alone": 0.010, "together": 0.013, "apart": 0.020, "reading": 0.05, "warm": 0.018, "cold": 0.030}


def studied(ranks: int, runner: Planned) -> JobProfile:
    question = ProfilingRequest("net", "net", ranks, ProfilingExtent(1, 10))
    return profile_script(question, runner, lambda *seconds: attribute_stalls(StallRuns(*seconds)), Path("unused"))


def test_a_gang_is_taken_apart_by_six_runs() -> None:
    """Each stall is what the run that leaves it in takes longer than the one that leaves it out."""
    runner = Planned(STEP_S)
    profile = studied(2, runner)
    assert {stall.name: stall.seconds and round(stall.seconds, 6) for stall in profile.stalls} == {
        "compute": 0.010, "inside": 0.003, "prepare": 0.005, "fetch": 0.012, "network": 0.007,
    }  # fmt: skip
    assert [run.name for run in runner.made] == ["alone", "together", "apart", "reading", "warm", "cold"]
    assert runner.made[-1].evict == ("a", "b"), "what was read is forgotten before it is read again"
    assert any("loopback" in note for note in profile.notes), "what stands in for a network is said to"


def test_one_rank_exchanges_nothing() -> None:
    """With a single rank no exchange is claimed, neither 0 nor more, and no run is spent on it."""
    runner = Planned(STEP_S)
    profile = studied(1, runner)
    assert {stall.name for stall in profile.stalls if stall.seconds is None} == {"inside", "network"}
    assert [run.name for run in runner.made] == ["alone", "reading", "warm", "cold"]


def test_what_was_not_seen_is_not_told() -> None:
    """Without files seen nothing is said of fetching; without a loader nothing of preparing either."""
    without_files = studied(1, Planned(STEP_S, files=()))
    assert {stall.name: stall.seconds for stall in without_files.stalls}["fetch"] is None
    without_loader = studied(1, Planned(STEP_S, rank=replace(RANK, batches_per_update=0.0, samples_per_batch=None)))
    assert {stall.name: stall.seconds for stall in without_loader.stalls}["prepare"] is None
    assert without_loader.samples_per_step is None


def test_a_loss_that_is_no_number_is_named() -> None:
    """A profile of a diverged run would be one of another computation: it is refused."""
    with pytest.raises(LossNotFinite, match="'alone'"):
        studied(1, Planned(STEP_S, rank=replace(RANK, finite=False)))


def test_a_rate_of_zero_is_named() -> None:
    """Steps that take no time have no rate."""
    with pytest.raises(NoSpeed, match="'warm'"):
        studied(1, Planned(STEP_S | {"warm": 0.0}))


def test_one_disturbed_block_does_not_move_a_step_time() -> None:
    """A pause in one fifth of the updates is left out; a rhythm of slow and quick ones is averaged."""
    assert typical_step_s([0.01] * 19 + [5.0]) == pytest.approx(0.01)
    assert typical_step_s([0.0, 0.0, 0.0, 0.04] * 10) == pytest.approx(0.01)


def test_the_profile_file_is_one_that_recommending_reads() -> None:
    """What is written for `walras cloud recommend` is a checked profile: the facts of one sample, one measured row."""
    written = check_model(ProfileFile, profile_file_fields(studied(2, Planned(STEP_S))), source="profile")
    assert (written.kind, written.resident_bytes, written.flops_per_sample) == ("net", 160, 125.0)
    assert written.precision == "bf16"
    (row,) = written.measured
    assert (row.accelerator, row.batch, row.accelerators) == ("cpu", 16, 2)
    assert row.steps_per_s == pytest.approx(1 / 0.018)


def test_documents_hold_what_was_found(tmp_path: Path) -> None:
    """The JSON is plain data with the stalls by name; the picture is written in the form its ending names."""
    profile = studied(2, Planned(STEP_S))
    data = json.loads(json.dumps(profile_as_json(profile)))
    assert data["stalls_s"]["network"] == pytest.approx(0.007)
    assert data["steps_per_s"] == pytest.approx(1 / 0.018)
    assert data["samples_per_step"] == 16
    draw_profile(profile_report(profile), tmp_path / "stalls.svg")
    assert "fetch" in (tmp_path / "stalls.svg").read_text()
