"""The measured run of Gavel in Sia's simulator, and ours of the same. The data may not be passed on: local only."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from simulator.simulation import SimulationResult, simulate
from simulator.workloads.formats import read_trace
from simulator.worlds.gavel.program_policies import ConeSolver
from simulator.worlds.sia.sia_scenario import read_sia_applications, sia_scenario, sia_workload


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured: totals only."""

    avg_jct_s: float
    longest_jct_s: float
    makespan_s: float
    restarts_per_job: float


@dataclass(frozen=True, slots=True)
class Ours:
    """The same run by our scheduler under the profile."""

    result: SimulationResult
    restarts_per_job: float

    @property
    def jct_s(self) -> list[float]:
        return [job.jct_s for job in self.result.jobs]

    @property
    def avg_jct_s(self) -> float:
        return sum(self.jct_s) / len(self.jct_s)


def measured(data: Path) -> Measured:
    """Gavel on the first Philly workload. Skips where the restricted data is not there."""
    path = data / "restricted" / "sia_measured_philly1.json"
    if not path.is_file():
        pytest.skip("the restricted reference data is not there")
    run = next(run for run in json.loads(path.read_text())["runs"] if run["run"] == "gavel_philly1")
    return Measured(run["avg_jct_h"] * 3600, run["max_jct_h"] * 3600, run["makespan_h"] * 3600, run["restarts_per_job"])


def run_again(data: Path, solver: ConeSolver) -> Ours:
    """Our run of the workload."""
    rows = read_trace(data / "restricted" / "sia_workloads" / "philly" / "workload-1.csv").jobs
    applications = read_sia_applications(data / "golden" / "pollux" / "profiles", data / "restricted" / "sia_profiles")
    workload = sia_workload(rows, applications)
    result = simulate(workload.jobs, sia_scenario(workload, solver=solver))
    assert result.violations == []
    restarts = sum(round(job.overhead_s / workload.restart_s[job.kind]) - 1 for job in result.jobs)
    return Ours(result, restarts / len(result.jobs))
