"""Instances of others' solvers: Soroush's generator (NSDI 2024) and DeDe's cluster example (OSDI 2025).

Soroush draws jobs as Gavel's generator does, with priorities of 1, 2, 4 and 8 in turn, for a quarter as many
accelerators of each of three types as there are jobs. DeDe draws a kind, a gang that the table has for it, and a
priority from 1 to 10 for its ten types of accelerators. Speeds are from the tables of the reference data. Both are
max-min fairness over speeds in units of an equal share of all accelerators.
"""

import csv
import gzip
import json
from pathlib import Path

import numpy as np

from optimizer.problem import Columns, Entities, FloatArray, Jobs, Pools, Problem
from simulator.ground_truth import SpeedKey
from simulator.workloads.generators import generate_jobs, generator_request
from simulator.workloads.trace_binding import read_throughput_table
from walras.job_request import Kind

_GAVEL_TYPES = ("v100", "p100", "k80")
_PRIORITIES = (1.0, 2.0, 4.0, 8.0)


def soroush_problem(data: Path, jobs: int, seed: int) -> Problem:
    """Soroush's problem of so many jobs, its priorities skewed."""
    table = data / "gavel" / "throughputs" / "simulation_throughputs.json"
    speeds = read_throughput_table(table)
    rows = list(generate_jobs("gavel", generator_request("gavel", seed=seed, jobs=jobs, gangs=True), str(table)))
    each = np.array([[speeds[SpeedKey(Kind(row.kind), name, row.gang)] for name in _GAVEL_TYPES] for row in rows])
    gang = np.array([float(row.gang) for row in rows])
    weight = np.resize(_PRIORITIES, jobs)
    return endless_jobs(each, gang, weight, np.full(len(_GAVEL_TYPES), float(max(jobs // 4, 1))))


def dede_problem(data: Path, jobs: int, seed: int) -> Problem:
    """DeDe's problem of so many jobs on its 352 accelerators of ten types."""
    folder = data / "golden" / "dede"
    spec = json.loads((folder / "cluster_spec.json").read_text(encoding="utf-8"))
    names = sorted(spec, key=lambda name: int(name.removeprefix("worker_")))
    with gzip.open(folder / "simulation_throughputs.csv.gz", "rt", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    sizes = sum(name.startswith("v") for name in rows[0])
    table = np.zeros((len(names), max(int(row["job"]) for row in rows) + 1, sizes))
    for row in rows:
        table[int(row["worker"]), int(row["job"])] = [float(row[f"v{size}"]) for size in range(sizes)]
    rng = np.random.default_rng(seed)
    known = np.argwhere((table > 0).any(axis=0))
    kinds = rng.choice(np.unique(known[:, 0]), jobs)
    size = np.array([rng.choice(known[known[:, 0] == kind, 1]) for kind in kinds])
    capacity = np.array([float(spec[name]) for name in names])
    return endless_jobs(table[:, kinds, size].T, 2.0**size, rng.uniform(1.0, 10.0, jobs), capacity)


def endless_jobs(speeds: FloatArray, gang: FloatArray, weight: FloatArray, capacity: FloatArray) -> Problem:
    """The problem of jobs with these speeds on each pool (n, p), which have no end."""
    n, p = speeds.shape
    nothing = np.zeros(n)
    return Problem(
        at=0.0,
        jobs=Jobs(
            job_id=np.arange(n),
            weight=weight,
            gang=gang,
            remaining_steps=np.full(n, np.inf),
            submitted_at=nothing,
            attained_s=nothing,
            deadline_at=np.full(n, np.inf),
            value_usd_per_h=np.full(n, np.nan),
            priority_class=np.ones(n, dtype=np.int64),
            entity=np.zeros(n, dtype=np.int64),
        ),
        columns=Columns(
            job=np.repeat(np.arange(n), p),
            steps_per_s=speeds.ravel(),
            use_column=np.arange(n * p),
            use_pool=np.tile(np.arange(p), n),
            use_count=np.repeat(gang, p),
            running=np.zeros(n * p, dtype=bool),
        ),
        pools=Pools(
            pool_id=tuple(f"pool-{row}" for row in range(p)),
            accelerator=tuple(f"type-{row}" for row in range(p)),
            capacity=capacity,
            rentable=np.zeros(p),
            machine_size=np.ones(p),
            usd_per_h=np.zeros(p),
        ),
        entities=Entities(),
    )
