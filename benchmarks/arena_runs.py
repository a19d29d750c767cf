"""Runs in Arena's world (EuroSys 2026) over its Philly jobs, under plan policies of ours.

Arena's mean is over the jobs that had finished in a number of rounds. Who finishes only short jobs looks good there, so
a run is judged by how many had finished too, and by the mean of the same number of those that finished first; and by
all jobs to the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from optimizer.policy import PolicySpec
from scheduler.world.engine import RunLimits
from scheduler.world.machines import PoolModel
from simulator.experiment import pool_models
from simulator.metrics import JobMetrics
from simulator.shipped_configs import find_cluster
from simulator.simulation import simulate
from simulator.workloads.formats import read_trace
from simulator.worlds.arena.arena_scenario import (
    ROUND_S,
    ArenaWorkload,
    TuningCost,
    arena_plan_scenario,
    arena_workload,
    read_places,
)
from walras.spec.cluster_file import ClusterConfig
from walras.spec.file_model import load_yaml


@dataclass(frozen=True, slots=True)
class ArenaGround:
    """Arena's jobs, their places and its cluster; `folder` has what was recorded."""

    folder: Path
    workload: ArenaWorkload
    pools: tuple[PoolModel, ...]


def arena_ground(data: Path) -> ArenaGround:
    """Reads the files below the reference data."""
    folder = data / "arena"
    pools = tuple(pool_models(load_yaml(find_cluster("arena-1280"), ClusterConfig)))
    sizes = {model.pool.shape.accelerator: model.pool.shape.accelerators for model in pools}
    places = read_places(folder / "places.csv.gz", sizes)
    return ArenaGround(folder, arena_workload(read_trace(folder / "jobs_philly.csv.gz").jobs, places), pools)


def rounds_of_plan(ground: ArenaGround, policy: str, rounds: int | None, tuning: TuningCost) -> Sequence[JobMetrics]:
    """The jobs that end in the first `rounds` rounds under a policy of ours; None: all to the end."""
    scenario = arena_plan_scenario(ground.workload, PolicySpec(policy), pools=ground.pools, tuning=tuning)
    if rounds is not None:
        scenario = replace(scenario, limits=RunLimits(until_at=rounds * ROUND_S))
    return simulate(ground.workload.jobs, scenario).jobs


def finished_before(ground: ArenaGround, jobs: Sequence[JobMetrics], rounds: int) -> list[JobMetrics]:
    """Those that had ended before a round began, in order of their ends."""
    arrived = {job.request.job_id: job.at for job in ground.workload.jobs}
    ends = sorted((arrived[job.job_id] + job.jct_s, job.job_id, job) for job in jobs)
    return [job for ended_at, _, job in ends if round(ended_at / ROUND_S) < rounds]


def first_finished_mean_s(jobs: Sequence[JobMetrics], count: int) -> float:
    """Mean completion time of the first `count` jobs of those, in their order."""
    return sum(job.jct_s for job in jobs[:count]) / min(count, len(jobs))
