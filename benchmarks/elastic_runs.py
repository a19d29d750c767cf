"""Elastic policies of ours in the worlds of other simulators, on the published workloads (needs `WALRAS_DATA`).

Worlds as in `simulator.compat`: their clocks, restarts, placements and training, with which their recorded runs are
reproduced job by job; the policy is ours, with its defaults. Jobs of Pollux's and Sia's worlds train with the best
batch for the gang that they have, and nobody knows how long they will take; in Shockwave's world the steps left are
known, and not the batches to come.
"""

import csv
import gzip
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from time import process_time

import numpy as np

from optimizer.policy import PolicySpec
from scheduler.world.attempts import SimulatedJob
from scheduler.world.machines import PoolModel
from simulator.goodput.application import Application
from simulator.ground_truth import GroundTruth
from simulator.simulation import Scenario, SimulationResult, simulate
from simulator.workloads.application_profiles import read_pollux_applications
from simulator.workloads.formats import read_trace
from simulator.workloads.trace_binding import TraceBinding, read_throughput_table
from simulator.worlds.pollux import pollux_scenario as pollux
from simulator.worlds.pollux import pollux_training as pollux_applications
from simulator.worlds.pollux.pollux_scenario import T4_POOL
from simulator.worlds.shockwave.shockwave_scenario import (
    batch_schedules,
    shockwave_alone_s,
    shockwave_fairness,
    shockwave_plan_scenario,
)
from simulator.worlds.sia import sia_scenario as sia
from walras.cluster import Pool, PoolId, Shape

#: Accelerators of Shockwave's recorded runs.
V100_POOL = PoolModel(Pool(PoolId("v100"), Shape("v100", "v100", 1, 8.0, 2**36)), machines=32)


@dataclass(frozen=True, slots=True)
class Run:
    """What came of one run: jobs in the order of the trace."""

    names: tuple[str, ...]
    jct_s: tuple[float, ...]
    makespan_s: float
    #: Seconds of processor time, solves included, and rounds in which the policy was asked.
    cpu_s: float
    solves: int
    #: Accelerator-hours that all jobs held.
    accelerator_h: float
    #: Completion time over that on a fair part of the cluster; empty where nobody defines it.
    fairness: tuple[float, ...] = ()

    @property
    def avg_jct_s(self) -> float:
        return sum(self.jct_s) / len(self.jct_s)

    @property
    def p99_jct_s(self) -> float:
        return float(np.percentile(self.jct_s, 99))

    @property
    def unfair(self) -> float:
        """Part of the jobs that end later than on a fair part."""
        return sum(each > 1.0 for each in self.fairness) / max(len(self.fairness), 1)


def pollux_run(data: Path, policy: str, workload: int, load: str = "1.0") -> Run:
    """Jobs of the Pollux artifact on 16 machines of 4 T4."""
    folder = data / "golden" / "pollux" / ("workloads" if load == "1.0" else f"workloads-{load}")
    rows = read_trace(folder / f"workload-{workload}.csv", "pollux").jobs
    made = pollux_applications.pollux_workload(rows, _pollux_applications(data), T4_POOL.pool, T4_POOL.machines)
    return _timed(made.jobs, lambda: pollux.pollux_plan_scenario(made, PolicySpec(policy)))


def pollux_recorded_p99_s(data: Path, workload: int) -> float:
    """The 99th percentile of the completion times that Pollux's authors recorded for its own policy."""
    with gzip.open(data / "golden" / "pollux" / "golden_jct.csv.gz", "rt") as file:
        jct_s = [
            float(row["jct_s"])
            for row in csv.DictReader(file)
            if (row["experiment"], row["policy"], row["setting"], row["workload"])
            == ("jobload", "pollux", "1.0", str(workload))
        ]
    return float(np.percentile(jct_s, 99))


@lru_cache(maxsize=1)
def _pollux_applications(data: Path) -> dict[str, Application]:
    return read_pollux_applications(data / "golden" / "pollux" / "profiles")


def sia_run(data: Path, policy: str) -> Run:
    """The first Philly workload of Sia on 64 accelerators of three types."""
    rows = read_trace(data / "restricted" / "sia_workloads" / "philly" / "workload-1.csv").jobs
    applications = sia.read_sia_applications(
        data / "golden" / "pollux" / "profiles", data / "restricted" / "sia_profiles"
    )
    made = sia.sia_workload(rows, applications)
    return _timed(made.jobs, lambda: sia.sia_plan_scenario(made, PolicySpec(policy)))


def shockwave_run(data: Path, policy: str) -> Run:
    """Shockwave's 120 jobs on 32 V100."""
    folder = data / "golden" / "shockwave"
    rows = read_trace(folder / "trace_tacc32_120jobs.tsv", "shockwave").jobs
    truth = GroundTruth(read_throughput_table(folder / "tacc_throughputs.json"))
    batchings = batch_schedules(rows)
    jobs = tuple(TraceBinding({"v100": 1.0}, table=truth.speeds).jobs(rows))
    run = _timed(jobs, lambda: shockwave_plan_scenario(V100_POOL, truth, PolicySpec(policy), batchings))
    steps = [int(row.steps or 0) for row in rows]
    alone = [shockwave_alone_s(one, total, truth, "v100") for one, total in zip(batchings.values(), steps, strict=True)]
    fairness = shockwave_fairness(run.jct_s, alone, V100_POOL.machines)
    return replace(run, fairness=tuple(fairness))


def _timed(jobs: tuple[SimulatedJob, ...], scenario: Callable[[], Scenario]) -> Run:
    began = process_time()
    result: SimulationResult = simulate(jobs, scenario())
    cpu_s = process_time() - began
    if result.violations:
        raise AssertionError("; ".join(result.violations))
    jct_s = {job.job_id: job.jct_s for job in result.jobs}
    done = [job for job in jobs if job.request.job_id in jct_s]
    return Run(
        tuple(job.name for job in done),
        tuple(jct_s[job.request.job_id] for job in done),
        result.ended_at,
        cpu_s,
        result.solves.solves,
        sum(sum(job.accelerator_s.values()) for job in result.jobs) / 3600.0,
    )
