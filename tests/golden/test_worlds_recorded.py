"""The recorded runs again, asked for as anybody asks for a run: a world by name, files, a shipped cluster."""

from pathlib import Path

import pytest
from gavel_runs import PRINTED_S, STATIC
from gavel_runs import recorded as gavel_recorded
from pollux_runs import recorded as pollux_recorded
from shockwave_runs import recorded as shockwave_recorded
from sia_runs import measured

from simulator.reports.baselines import BoundsChoice
from simulator.reports.run_spec import CompletedRun, RunSpec, WorkloadSource, execute_run


def _ran(source: WorkloadSource, cluster: str, policy: str, world: str) -> CompletedRun:
    ran = execute_run(RunSpec(source, cluster, policy, bounds=BoundsChoice.CHEAP, world=world))
    assert ran.summary.violations == ()
    return ran


@pytest.mark.slow
def test_gavels_world(reference_data: Path) -> None:
    """Every job at its recorded millisecond; no bound is above what came of it."""
    trace, _ = STATIC
    folder = reference_data / "gavel"
    ran = _ran(WorkloadSource(str(folder / "traces" / f"{trace}.tsv")), "gavel-12-12-12", "fifo_perf", "gavel")
    theirs = gavel_recorded(reference_data, STATIC, "fifo_perf")
    ours = {int(job.job_id): job.jct_s for job in ran.result.jobs}
    assert ours == pytest.approx(theirs.jct_s, rel=0, abs=PRINTED_S)
    bounds = ran.summary.bounds
    assert min(bounds.no_contention_gap, bounds.makespan_gap, bounds.jct_gap) >= 0


@pytest.mark.parametrize("policy", ["tiresias", "optimus"])
def test_polluxs_world(reference_data: Path, policy: str) -> None:
    """Every job at its recorded second, and no lower bound is claimed."""
    folder = reference_data / "golden" / "pollux"
    source = WorkloadSource(str(folder / "workloads" / "workload-6.csv"), speeds=str(folder / "profiles"))
    ran = _ran(source, "pollux-64", policy, "pollux")
    ours = {ran.baselines.name(job.job_id): job.jct_s for job in ran.result.jobs}
    assert ours == pollux_recorded(reference_data, policy, "1.0", 6)
    assert ran.summary.bounds.no_contention_s != ran.summary.bounds.no_contention_s  # nan


def test_shockwaves_world(reference_data: Path) -> None:
    """Gandiva's shares need no solver: the recorded end and mean."""
    folder = reference_data / "golden" / "shockwave"
    source = WorkloadSource(
        str(folder / "trace_tacc32_120jobs.tsv"), "shockwave", speeds=str(folder / "tacc_throughputs.json")
    )
    summary = _ran(source, "shockwave-32", "gandiva_fair", "shockwave").summary
    theirs = shockwave_recorded(reference_data, "gandiva_fair")
    assert summary.makespan_s == pytest.approx(theirs.makespan_s, rel=1e-12)
    assert summary.avg_jct_s == pytest.approx(theirs.avg_jct_s, rel=1e-12)


@pytest.mark.slow
def test_sias_world(reference_data: Path) -> None:
    """Its Gavel, on the shipped cluster whose types have our names."""
    theirs = measured(reference_data)
    restricted = reference_data / "restricted"
    source = WorkloadSource(
        str(restricted / "sia_workloads" / "philly" / "workload-1.csv"),
        speeds=str(restricted / "sia_profiles"),
        learning=str(reference_data / "golden" / "pollux" / "profiles"),
    )
    summary = _ran(source, "sia-64", "gavel", "sia").summary
    assert summary.avg_jct_s == pytest.approx(theirs.avg_jct_s, rel=1e-12)
