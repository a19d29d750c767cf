"""A bench of policies: fixed grounds, several seeds, every figure beside the bound that no scheduler beats.

`small` needs no data that is not shipped. Its generated grounds have the jobs of Gavel's generator on twelve machines
of each of three types, at a load that is told as a part of what the fleet could just bear. The result is plain data:
what decides each run by its hash, every run's figures, and means with intervals over the seeds. The same inputs give
the same bytes; nothing in it is measured by a clock.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import log
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from simulator.reports.baselines import BoundsChoice
from simulator.reports.policy_comparison import format_number, metric_title
from simulator.reports.repeated_runs import (
    MeanEstimate,
    ParallelWorkers,
    RunMetrics,
    estimate_mean,
    execute_runs,
)
from simulator.reports.run_spec import GeneratorOptions, RunSpec, WorkloadSource, describe_run, run_key
from simulator.reports.run_summary import RUN_METRICS, nonfinite_to_none
from walras.errors import ConfigError

#: Of the result file.
BENCH_SCHEMA = 1
#: Of the tables; the file has all.
_METRICS = ("avg_jct_s", "p95_jct_s", "p99_jct_s", "jct_bound_s", "jct_gap", "unfair", "preemptions", "usd")


@dataclass(frozen=True, slots=True)
class BenchGround:
    """Jobs, a cluster and conditions on which policies are compared."""

    name: str
    about: str
    #: Its policy and its seed stand for none.
    run: RunSpec
    policies: tuple[str, ...]
    seeds: tuple[int, ...]

    def runs(self) -> list[RunSpec]:
        """Every policy with every seed."""
        return [replace(self.run, policy=policy, seed=seed) for policy in self.policies for seed in self.seeds]


def _mean_of_power(low: float, high: float) -> float:
    """The mean of 10^U(low, high)."""
    return float((10**high - 10**low) / ((high - low) * log(10)))


#: Mean hours of a job of Gavel's generator on a V100, its mean gang, and how many V100 the fleet is worth.
_JOB_H = (0.8 * _mean_of_power(1.5, 3) + 0.2 * _mean_of_power(3, 4)) / 60
_MEAN_GANG = 0.7 * 1 + 0.1 * 2 + 0.15 * 4 + 0.05 * 8
_WORTH_V100 = 12 * (3 + 2 + 1) / 3

_MAIN = ("walras", "max_min_fairness", "finish_time_fairness", "allox", "hadar", "tiresias", "las", "srtf", "fifo")
_ELASTIC = ("walras", "sia", "pollux", "max_min_fairness", "las", "fifo")
_PAID = ("walras", "throughput_per_dollar", "max_min_fairness", "edf", "las", "fifo")


def generated_ground(
    load: float, jobs: int, policies: Sequence[str], seeds: Sequence[int], *, gangs: bool = False
) -> BenchGround:
    """Jobs of Gavel's generator at this part of what the fleet bears; 0: all at once."""
    rate = load * _WORTH_V100 / (_JOB_H * (_MEAN_GANG if gangs else 1.0))
    source = WorkloadSource("generate:gavel", made=GeneratorOptions(jobs, round(rate, 4), gangs))
    what = f"load {load:g}" if load else "all at once"
    name = f"{'gangs' if gangs else 'singles'}-{f'{load:g}' if load else 'static'}"
    about = f"{jobs} jobs of Gavel's generator, {'gangs of 1 to 8' if gangs else 'one accelerator each'}, {what}"
    run = RunSpec(source, "gavel-12-12-12", policies[0], bounds=BoundsChoice.ALL)
    return BenchGround(name, about, run, tuple(policies), tuple(seeds))


def small_bench() -> tuple[BenchGround, ...]:
    """At most five minutes on two cores."""
    seeds = tuple(range(5))
    elastic = RunSpec(WorkloadSource("adaptive"), "sia-64", "walras", bounds=BoundsChoice.ALL)
    paid = RunSpec(WorkloadSource("deadlines"), "mixed-cloud", "walras", bounds=BoundsChoice.ALL)
    return (
        *(generated_ground(load, 60, _MAIN, seeds) for load in (0.6, 0.8, 1.0)),
        generated_ground(0.8, 60, _MAIN, seeds, gangs=True),
        generated_ground(0.0, 60, _MAIN, seeds),
        BenchGround("elastic", "adaptive jobs that choose batch and gang, 64 accelerators", elastic, _ELASTIC, (0,)),
        BenchGround(
            "spot",
            "deadlines and budgets over owned, rented and spot machines; prices move, machines are taken back",
            replace(paid, conditions="spot-market"),
            _PAID,
            seeds,
        ),
    )


#: By the name that the command takes.
BENCHES: Mapping[str, Callable[[], tuple[BenchGround, ...]]] = {"small": small_bench}


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Every ground with the runs of each policy, in the order of its seeds."""

    grounds: tuple[BenchGround, ...]
    rows: dict[str, dict[str, list[RunMetrics]]]

    def estimate(self, ground: str, policy: str, metric: str) -> MeanEstimate:
        """The mean of one metric over the seeds, with its interval."""
        return estimate_mean([row.values[metric] for row in self.rows[ground][policy]])

    @property
    def violations(self) -> list[str]:
        """Violated conservation laws, each with its ground and policy."""
        return [
            f"{ground}, {policy}: {violation}"
            for ground, policies in self.rows.items()
            for policy, rows in policies.items()
            for row in rows
            for violation in row.violations
        ]


def run_bench(
    grounds: Sequence[BenchGround],
    workers: ParallelWorkers,
    on_progress: Callable[[int, int], None] = lambda done, runs: None,
) -> BenchResult:
    """Runs every ground. Calls `on_progress(done, all)` first and after each run. Raises what a run raises."""
    cells = [(ground, run) for ground in grounds for run in ground.runs()]
    found: dict[int, RunMetrics] = {}
    on_progress(0, len(cells))
    for position, row in execute_runs([run for _, run in cells], workers):
        found[position] = row
        on_progress(len(found), len(cells))
    rows: dict[str, dict[str, list[RunMetrics]]] = {}
    for position, (ground, run) in enumerate(cells):
        rows.setdefault(ground.name, {}).setdefault(run.policy, []).append(found[position])
    return BenchResult(tuple(grounds), rows)


def bench_json(result: BenchResult) -> dict[str, Any]:
    """The result as plain data: what decides each run by its hash, its figures, means and intervals."""
    return {
        "schema": BENCH_SCHEMA,
        "grounds": [
            {
                "name": ground.name,
                "about": ground.about,
                "seeds": list(ground.seeds),
                "policies": {policy: _policy_json(result, ground, policy) for policy in ground.policies},
            }
            for ground in result.grounds
        ],
    }


def _policy_json(result: BenchResult, ground: BenchGround, policy: str) -> dict[str, Any]:
    rows = result.rows[ground.name][policy]
    described = [describe_run(replace(ground.run, policy=policy, seed=seed)) for seed in ground.seeds]
    return {
        "inputs": [run_key(each) for each in described],
        "runs": [nonfinite_to_none(row.values) for row in rows],
        "outcomes": [row.outcome for row in rows],
        "metrics": nonfinite_to_none(
            {measure.name: asdict(result.estimate(ground.name, policy, measure.name)) for measure in RUN_METRICS}
        ),
    }


def write_bench(path: Path, result: BenchResult) -> None:
    """Writes the result file. Raises ConfigError for a path that cannot be written."""
    text = json.dumps(bench_json(result), indent=1, sort_keys=True) + "\n"
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", field="out", fix="choose another path") from None


def bench_tables(result: BenchResult) -> list[Table]:
    """One table for each ground, the lowest mean completion time first."""
    titles = {measure.name: measure for measure in RUN_METRICS}
    tables = []
    for ground in result.grounds:
        table = Table(title=f"{ground.name}: {ground.about}; {len(ground.seeds)} seeds, ± 95 %")
        table.add_column("policy")
        for name in _METRICS:
            table.add_column(metric_title(titles[name]), justify="right")
        means = {policy: result.estimate(ground.name, policy, "avg_jct_s").mean for policy in ground.policies}
        for policy in sorted(ground.policies, key=lambda each: (means[each] != means[each], means[each])):
            shown = (result.estimate(ground.name, policy, name) for name in _METRICS)
            table.add_row(Text(policy), *(_shown(each) for each in shown))
        tables.append(table)
    return tables


def _shown(value: MeanEstimate) -> str:
    return format_number(value.mean) + (f" ± {format_number(value.half)}" if value.low == value.low else "")
