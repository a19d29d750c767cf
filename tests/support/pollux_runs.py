"""Recorded runs of the Pollux artifact's simulator, and ours of the same."""

import csv
import gzip
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from simulator.goodput import Application, read_pollux_applications
from simulator.simulation import SimulationResult, simulate
from simulator.workloads.formats import read_trace
from simulator.workloads.trace_source import TraceJob
from simulator.worlds.pollux.pollux_scenario import T4_POOL, pollux_scenario, pollux_workload

#: The workloads that were recorded, each at several loads (arrivals against the published rate).
WORKLOADS = (1, 2, 3, 4, 6)


@lru_cache(maxsize=1)
def applications(data: Path) -> dict[str, Application]:
    """The six applications, with their profiles."""
    return read_pollux_applications(data / "golden" / "pollux" / "profiles")


@lru_cache(maxsize=1)
def _recorded(data: Path) -> dict[tuple[str, str, int], dict[str, float]]:
    runs: dict[tuple[str, str, int], dict[str, float]] = {}
    with gzip.open(data / "golden" / "pollux" / "golden_jct.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            if row["experiment"] == "jobload":
                run = runs.setdefault((row["policy"], row["setting"], int(row["workload"])), {})
                run[row["job"]] = float(row["jct_s"])
    return runs


def recorded(data: Path, policy: str, load: str, workload: int) -> dict[str, float]:
    """Completion time by the job's name, seconds."""
    return _recorded(data)[policy, load, workload]


def rows(data: Path, load: str, workload: int) -> list[TraceJob]:
    """The workload as it was published."""
    folder = "workloads" if load == "1.0" else f"workloads-{load}"
    return list(read_trace(data / "golden" / "pollux" / folder / f"workload-{workload}.csv", "pollux").jobs)


@dataclass(frozen=True, slots=True)
class Ours:
    """The same run by our scheduler under the profile."""

    result: SimulationResult
    jct_s: dict[str, float]


def run_again(data: Path, policy: str, jobs: list[TraceJob]) -> Ours:
    """Our run of these jobs on 16 machines of 4 T4."""
    workload = pollux_workload(jobs, applications(data), T4_POOL.pool, T4_POOL.machines)
    result = simulate(workload.jobs, pollux_scenario(workload, policy))
    assert result.violations == []
    name = {job.request.job_id: job.name for job in workload.jobs}
    return Ours(result, {name[job.job_id]: job.jct_s for job in result.jobs})
