"""The bench of policies: every figure beside the lower bound for every scheduler, and beside published results.

The grounds are in `simulator.reports.bench_grounds`. The result is plain data: the hash of each run's inputs, its
figures, and means with intervals over the seeds. It contains no measured times, so the same inputs give the same bytes.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from math import nan
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from simulator.reports.bench_grounds import BenchGround, PublishedRow
from simulator.reports.policy_comparison import format_number, metric_title
from simulator.reports.repeated_runs import (
    MeanEstimate,
    ParallelWorkers,
    RunMetrics,
    estimate_mean,
    execute_runs,
)
from simulator.reports.run_spec import describe_run, run_key
from simulator.reports.run_summary import RUN_METRICS, nonfinite_to_none
from walras.errors import ConfigError

#: Schema number of the result file.
BENCH_SCHEMA = 2
#: Metrics in the tables; the file has all of them.
_METRICS = (
    "avg_jct_s",
    "p95_jct_s",
    "p99_jct_s",
    "makespan_s",
    "jct_bound_s",
    "jct_gap",
    "unfair",
    "preemptions",
    "usd",
)


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Every ground with the runs of each policy, in the order of its seeds."""

    grounds: tuple[BenchGround, ...]
    rows: dict[str, dict[str, list[RunMetrics]]]

    def estimate(self, ground: str, policy: str, metric: str) -> MeanEstimate:
        """Returns the mean of one metric over the seeds, with its interval."""
        return estimate_mean([row.values[metric] for row in self.rows[ground][policy]])

    @property
    def violations(self) -> list[str]:
        """Returns the violated conservation laws, each with its ground and policy."""
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
    """Returns the result as plain data: the hash of each run's inputs, its figures, means and intervals."""
    return {
        "schema": BENCH_SCHEMA,
        "grounds": [
            {
                "name": ground.name,
                "about": ground.about,
                "seeds": list(ground.seeds),
                "published": [asdict(row) for row in ground.published],
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
    """Returns one table for each ground, the lowest mean completion time first."""
    titles = {measure.name: measure for measure in RUN_METRICS}
    tables = []
    for ground in result.grounds:
        table = Table(title=f"{ground.name}: {ground.about}; {_seeds_text(len(ground.seeds))}")
        table.add_column("policy")
        for name in _METRICS:
            table.add_column(metric_title(titles[name]), justify="right")
        means = {policy: result.estimate(ground.name, policy, "avg_jct_s").mean for policy in ground.policies}
        rows = [(means[policy], policy, _own_cells(result, ground.name, policy)) for policy in ground.policies]
        rows += [
            (row.metrics.get("avg_jct_s", nan), f"{row.policy} ({row.source})", _published_cells(row))
            for row in ground.published
        ]
        for _, name, cells in sorted(rows, key=lambda row: (row[0] != row[0], row[0])):
            table.add_row(Text(name), *cells)
        tables.append(table)
    return tables


def _seeds_text(seeds: int) -> str:
    return "one run" if seeds == 1 else f"{seeds} seeds, ± 95 %"


def _own_cells(result: BenchResult, ground: str, policy: str) -> list[str]:
    return [_shown(result.estimate(ground, policy, name)) for name in _METRICS]


def _published_cells(row: PublishedRow) -> list[str]:
    """Cells of a published result; empty where a metric was not published."""
    return [format_number(row.metrics[name]) if name in row.metrics else "" for name in _METRICS]


def _shown(value: MeanEstimate) -> str:
    return format_number(value.mean) + (f" ± {format_number(value.half)}" if value.low == value.low else "")
