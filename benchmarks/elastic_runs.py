"""Elastic policies of ours in the worlds of other simulators, on the published workloads (needs `WALRAS_DATA`).

Worlds as in `simulator.compat`: their clocks, restarts, placements and training, with which their recorded runs are
reproduced job by job; the policy is ours, with its defaults. Jobs of Pollux's and Sia's worlds train with the best
batch for the gang that they have, and nobody knows how long they will take; in Shockwave's world the steps left are
known, and not the batches to come.
"""

import csv
import gzip
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from random import Random
from time import process_time

import numpy as np

from optimizer.policy import PolicySpec
from scheduler.world.attempts import SimulatedJob
from scheduler.world.machines import PoolModel
from simulator.goodput import Application, read_pollux_applications
from simulator.ground_truth import GroundTruth
from simulator.simulation import Scenario, SimulationResult, simulate
from simulator.workloads.formats import read_trace
from simulator.workloads.trace_binding import TraceBinding, read_throughput_table
from simulator.workloads.trace_source import TraceJob
from simulator.worlds.pollux import pollux_scenario as pollux
from simulator.worlds.pollux import pollux_scenario as pollux_applications
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


def sia_run(
    data: Path, policy: str, rows: Sequence[TraceJob] = (), parameters: Mapping[str, float] | None = None
) -> Run:
    """These jobs, without any the first Philly workload of Sia, on 64 accelerators of three types."""
    rows = rows or read_trace(data / "restricted" / "sia_workloads" / "philly" / "workload-1.csv").jobs
    applications = sia.read_sia_applications(
        data / "golden" / "pollux" / "profiles", data / "restricted" / "sia_profiles"
    )
    made = sia.sia_workload(rows, applications)
    return _timed(made.jobs, lambda: sia.sia_plan_scenario(made, PolicySpec(policy, dict(parameters or {}))))


#: Loads of our own for Sia's ground, by the trace whose jobs they resemble ("nt": newtrace). Of Helios' Saturn the
#: parts of the applications, as we take them.
SIA_LOADS = ("philly", "saturn", "nt")
_SATURN = {"cifar10": 0.68, "deepspeech2": 0.14, "bert": 0.11, "yolov3": 0.04, "imagenet": 0.03}


def sia_load(data: Path, like: str, seed: int) -> list[TraceJob]:
    """160 jobs drawn from published ones, at random instants of eight hours of unlike load."""
    draw, rows = Random(f"{like}-{seed}"), _sia_rows(data)
    load = [draw.gammavariate(4.0, 1.0) for _ in range(8)]
    instants = sorted(3600.0 * (draw.choices(range(8), load)[0] + draw.random()) for _ in range(160))
    drawn = []
    for number, at in enumerate(instants):
        group = draw.choices(list(_SATURN), list(_SATURN.values()))[0] if like == "saturn" else like
        row = draw.choice(rows[group])
        drawn.append(replace(row, at=at, name=f"{row.kind}-{number}"))
    return drawn


@lru_cache(maxsize=1)
def _sia_rows(data: Path) -> dict[str, list[TraceJob]]:
    """Sia's jobs, and those of Pollux's workloads in shapes of Sia's, by trace and by application."""
    folder, draw = data / "restricted" / "sia_workloads", Random(1)
    philly, newer = (list(read_trace(folder / name / "workload-1.csv").jobs) for name in ("philly", "newtrace"))
    # Sia has no ncf, and no imagenet on as many accelerators as Pollux.
    shapes = {
        "ncf": [row for row in philly if row.kind == "cifar10"],
        "imagenet": [row for row in philly + newer if row.kind == "imagenet"],
    }
    for workload in (2, 3, 4, 6):
        trace = read_trace(data / "golden" / "pollux" / "workloads" / f"workload-{workload}.csv", "pollux")
        philly += [draw.choice(shapes[row.kind]) if row.kind in shapes else row for row in trace.jobs]
    rows = {"philly": philly, "nt": newer}
    for application in _SATURN:
        rows[application] = [row for row in philly + newer if row.kind == application]
    return rows


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
