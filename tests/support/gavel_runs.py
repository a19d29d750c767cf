"""Recorded runs of Gavel's simulator, and ours of the same."""

import csv
import json
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from scheduler.core.rules import RoundRules
from simulator.compat.gavel.profile import GAVEL_RULES, gavel_scenario
from simulator.engine import Limits
from simulator.gavel import gavel_jobs, read_pairs, read_throughputs, read_trace
from simulator.machines import PoolModel
from simulator.simulate import Result, simulate
from simulator.truth import Truth
from walras.cluster import Pool, Shape
from walras.ids import PoolId

TYPES = ("v100", "p100", "k80")


@dataclass(frozen=True, slots=True)
class Recorded:
    """One recorded run: when each job ended, and the totals."""

    run: dict[str, Any]
    #: Completion time by job (our number), seconds after arrival.
    jct_s: dict[int, float]


def recorded(data: Path, trace: str, cluster: str, policy: str, option: str = "") -> Recorded:
    """The run of that name."""
    name = "__".join(part for part in (trace, cluster, policy, option) if part)
    runs = json.loads((data / "gavel" / "runs.json").read_text())["runs"]
    run = next(run for run in runs if run["per_job_file"] == f"gavel/per_job/{name}.tsv")
    with (data / "gavel" / "per_job" / f"{name}.tsv").open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    return Recorded(run, {int(row["job_id"]) + 1: float(row["jct_s"]) for row in rows})


@lru_cache(maxsize=1)
def truth(data: Path) -> Truth:
    """Gavel's speeds, alone and in pairs."""
    table = data / "gavel" / "throughputs" / "simulation_throughputs.json"
    return Truth(read_throughputs(table), pairs=read_pairs(table, TYPES))


def pools(cluster: str) -> tuple[PoolModel, ...]:
    """`12-12-12`: so many V100, P100 and K80."""
    return tuple(
        PoolModel(Pool(PoolId(name), Shape(name, name, count, 0.0, 0)), machines=1)
        for name, count in zip(TYPES, map(int, cluster.split("-")), strict=True)
    )


def run_again(data: Path, trace: str, cluster: str, policy: str, **changes: Any) -> tuple[Result, dict[int, float]]:
    """Our run up to where the recorded one stopped, and the completion time of every job in it."""
    rules: RoundRules = changes.pop("rules", GAVEL_RULES)
    until_at = changes.pop("until_at")
    known = truth(data)
    scenario = gavel_scenario(pools(cluster), known, policy, rules=rules, **changes)
    scenario = replace(scenario, limits=Limits(until_at=until_at))
    jobs = gavel_jobs(read_trace(data / "gavel" / "traces" / f"{trace}.tsv"), known, TYPES)
    result = simulate(jobs, scenario)
    assert result.violations == []
    return result, {int(job.job_id): job.jct_s for job in result.jobs}
