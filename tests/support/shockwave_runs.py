"""Recorded runs of Shockwave's simulator, and ours of the same."""

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from simulator.compat.gavel.cones import ConeSolver, clarabel
from simulator.compat.shockwave.profile import batchings_of, shockwave_scenario
from simulator.gavel import read_throughputs
from simulator.machines import PoolModel
from simulator.simulate import Result, simulate
from simulator.truth import Truth
from simulator.workloads.formats import read_workload
from simulator.workloads.placing import Placing
from walras.cluster import Pool, Shape
from walras.ids import PoolId

ACCELERATORS = 32


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recorded run: makespan, mean completion time, and each job's, in order of the trace."""

    makespan_s: float
    avg_jct_s: float
    utilisation: float
    jct_s: tuple[float, ...]
    fairness: tuple[float, ...]


@lru_cache(maxsize=1)
def _runs(data: Path) -> dict[str, Recorded]:
    runs = json.loads((data / "golden" / "shockwave" / "golden_tacc32_results.json").read_text())
    return {
        run["variant"]: Recorded(
            run["makespan_s"], run["avg_jct_s"], run["cluster_util"], tuple(run["jct_list_s"]), tuple(run["ftf_list"])
        )
        for run in runs
        if run["set"] == "tacc_32gpus" and run["kind"] == "simulation"
    }


def recorded(data: Path, policy: str) -> Recorded:
    """The simulated run on 32 accelerators under that policy."""
    return _runs(data)[policy]


@lru_cache(maxsize=1)
def truth(data: Path) -> Truth:
    """Shockwave's speeds."""
    return Truth(read_throughputs(data / "golden" / "shockwave" / "tacc_throughputs.json"))


@dataclass(frozen=True, slots=True)
class Ours:
    """The same run by our scheduler under the profile."""

    result: Result
    jct_s: tuple[float, ...]

    @property
    def makespan_s(self) -> float:
        return self.result.ended_at

    @property
    def avg_jct_s(self) -> float:
        return sum(self.jct_s) / len(self.jct_s)

    def worst_s(self, theirs: Recorded) -> float:
        """The largest difference between completion times."""
        return max(abs(ours - other) for ours, other in zip(self.jct_s, theirs.jct_s, strict=True))


def run_again(data: Path, policy: str, solver: ConeSolver = clarabel) -> Ours:
    """Our run of the trace."""
    known = truth(data)
    rows = read_workload(data / "golden" / "shockwave" / "trace_tacc32_120jobs.tsv", "shockwave").jobs
    pool = PoolModel(Pool(PoolId("v100"), Shape("v100", "v100", 1, 8.0, 2**36)), machines=ACCELERATORS)
    jobs = Placing({"v100": 1.0}, table=known.speeds).jobs(rows)
    result = simulate(jobs, shockwave_scenario(pool, known, policy, batchings_of(rows), solver=solver))
    assert result.violations == []
    by_id = {int(job.job_id): job.jct_s for job in result.jobs}
    return Ours(result, tuple(by_id[number] for number in sorted(by_id)))
