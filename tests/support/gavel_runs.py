"""Recorded runs of Gavel's simulator, and ours of the same."""

import csv
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from pathlib import Path
from random import Random

from scheduler.core.rules import RoundRules
from scheduler.world.engine import RunLimits
from scheduler.world.machines import PoolModel
from simulator.ground_truth import GroundTruth
from simulator.simulation import SimulationResult, simulate
from simulator.workloads.formats import read_trace
from simulator.workloads.trace_binding import TraceBinding, read_pair_speeds, read_throughput_table
from simulator.workloads.trace_source import TraceJob
from simulator.worlds.gavel.gavel_scenario import GAVEL_RULES, gavel_scenario
from simulator.worlds.gavel.program_policies import ConeSolver, solve_cone_program
from walras.cluster import Pool, PoolId, Shape

TYPES = ("v100", "p100", "k80")
#: Runs by short names: the trace and the cluster.
STATIC = ("static_single_seed0_n60", "12-12-12")
MAKESPAN = ("minimize_makespan", "8-16-24")
SMALL = ("single_small_seed0_rate1.67", "12-12-12")
WEIGHTED = ("single_small_prio_seed0_rate1.67", "12-12-12")
GANGS = ("multi_small_seed0_rate0.5", "12-12-12")
BIG = ("single_big_seed0_rate3.0", "36-36-36")
#: Recorded times are printed to the millisecond.
PRINTED_S = 0.000_51


@dataclass(frozen=True, slots=True)
class Recorded:
    """When each job of a recorded run ended, and the totals."""

    #: Completion time by job (our numbers, from 1), seconds after arrival.
    jct_s: dict[int, float]
    #: Jobs that the averages are over.
    measured: list[int]
    sim_end_s: float
    solves: int
    wall_s: float

    @property
    def avg_jct_s(self) -> float:
        return sum(self.jct_s[job] for job in self.measured) / len(self.measured)


def recorded(data: Path, run: tuple[str, str], policy: str, option: str = "") -> Recorded:
    """The run of that name."""
    name = "__".join(part for part in (*run, policy, option) if part)
    runs = json.loads((data / "gavel" / "runs.json").read_text())["runs"]
    entry = next(entry for entry in runs if entry["per_job_file"] == f"gavel/per_job/{name}.tsv")
    with (data / "gavel" / "per_job" / f"{name}.tsv").open() as file:
        jct_s = {int(row["job_id"]) + 1: float(row["jct_s"]) for row in csv.DictReader(file, delimiter="\t")}
    first, end = entry["window"] or (0, len(jct_s))
    measured = list(range(first + 1, end + 1))
    return Recorded(jct_s, measured, entry["sim_end_s"], entry["solves"], entry["sim_wall_s"])


@dataclass(frozen=True, slots=True)
class Ours:
    """The same run by our scheduler under the profile."""

    result: SimulationResult
    jct_s: dict[int, float]
    ended_at: dict[int, float]

    def worst_s(self, theirs: Recorded) -> float:
        """The largest difference between completion times; inf if a job has not completed."""
        return max(abs(self.jct_s.get(job, inf) - jct_s) for job, jct_s in theirs.jct_s.items())

    def avg_off(self, theirs: Recorded) -> float:
        """Relative difference of the average completion time of the measured jobs."""
        return sum(self.jct_s[job] for job in theirs.measured) / len(theirs.measured) / theirs.avg_jct_s - 1.0

    def end_off(self, theirs: Recorded) -> float:
        """Relative difference of the end of the last measured job."""
        return max(self.ended_at[job] for job in theirs.measured) / theirs.sim_end_s - 1.0


def assert_exact(ours: Ours, theirs: Recorded) -> None:
    """Every job ends at its recorded millisecond, after as many solves."""
    assert ours.worst_s(theirs) < PRINTED_S
    assert len(ours.jct_s) == len(theirs.jct_s)
    # Gavel may solve once more after the last job of a whole trace.
    assert theirs.solves - ours.result.solves.solves in (0, 1)


@lru_cache(maxsize=1)
def truth(data: Path) -> GroundTruth:
    """Gavel's speeds, alone and in pairs."""
    table = data / "gavel" / "throughputs" / "simulation_throughputs.json"
    return GroundTruth(read_throughput_table(table), pairs=read_pair_speeds(table, TYPES))


def pools(cluster: str) -> tuple[PoolModel, ...]:
    """`12-12-12`: so many V100, P100 and K80, one to a machine."""
    return tuple(
        PoolModel(Pool(PoolId(name), Shape(name, name, 1, 8.0, 2**36)), machines=int(count))
        for name, count in zip(TYPES, cluster.split("-"), strict=True)
    )


def run_again(
    data: Path,
    run: tuple[str, str],
    policy: str,
    until_at: float = inf,
    *,
    rules: RoundRules = GAVEL_RULES,
    solver: ConeSolver = solve_cone_program,
    with_slos: bool = False,
) -> Ours:
    """Our run of the trace, up to an instant."""
    (trace, cluster), known = run, truth(data)
    scenario = replace(gavel_scenario(pools(cluster), known, policy, solver=solver), rules=rules)
    rows = read_trace(data / "gavel" / "traces" / f"{trace}.tsv", "gavel").jobs
    placing = TraceBinding(dict.fromkeys(TYPES, 1.0), table=known.speeds)
    jobs = placing.jobs(draw_slos(rows) if with_slos else rows)
    result = simulate(jobs, replace(scenario, limits=RunLimits(until_at=until_at)))
    assert result.violations == []
    return Ours(
        result,
        {int(job.job_id): job.jct_s for job in result.jobs},
        {int(job.job_id): job.ended_at for job in result.jobs},
    )


def draw_slos(rows: Iterable[TraceJob]) -> Iterator[TraceJob]:
    """The deadlines of the recorded run that has some: multiples of the time on a V100, drawn in order."""
    random = Random(0 + 6)
    for row in rows:
        drawn = random.uniform(0.0, 1.0)
        yield replace(row, slo=1.2 if drawn < 0.33 else 2.0 if drawn < 0.67 else 10.0)
