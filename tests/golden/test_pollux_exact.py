"""The Pollux artifact's recorded runs of Tiresias and Optimus: every job completes at its recorded second.

They verify steps, restarts, placement, profiles and both policies of the profile, through the same `SchedulerCore`.
"""

from pathlib import Path

import pytest
from pollux_runs import WORKLOADS, recorded, rows, run_again

from simulator.workloads.formats import read_trace
from simulator.workloads.trace_source import ReadOptions

AT_ONE, AT_OTHERS = (
    [(policy, load, workload) for policy in ("tiresias", "optimus") for load in loads for workload in WORKLOADS]
    for loads in (("1.0",), ("0.5", "1.5", "2.0"))
)


def _check(data: Path, run: tuple[str, str, int]) -> None:
    policy, load, workload = run
    ours = run_again(data, policy, rows(data, load, workload))
    assert ours.jct_s == recorded(data, *run)


@pytest.mark.parametrize("run", AT_ONE, ids=lambda run: "-".join(map(str, run)))
def test_every_job_completes_when_the_artifact_says(reference_data: Path, run: tuple[str, str, int]) -> None:
    """160 jobs at the published load, on 64 accelerators."""
    _check(reference_data, run)


@pytest.mark.slow
@pytest.mark.parametrize("run", AT_OTHERS, ids=lambda run: "-".join(map(str, run)))
def test_every_job_completes_when_the_artifact_says_at_every_load(
    reference_data: Path, run: tuple[str, str, int]
) -> None:
    """80, 240 and 320 jobs: half, one and a half times, and twice the published load."""
    _check(reference_data, run)


def test_the_workload_in_the_common_columns_is_the_same(reference_data: Path) -> None:
    """Job, application and batch are told apart there by other columns."""
    file = reference_data / "jobs" / "sia_pollux_workloads.csv.gz"
    only = ReadOptions(only="pollux:workloads/workload-1")
    ours = run_again(reference_data, "tiresias", list(read_trace(file, "philly", only).jobs))
    assert ours.jct_s == recorded(reference_data, "tiresias", "1.0", 1)
