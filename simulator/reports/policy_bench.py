"""The bench of policies: every figure beside the lower bound for every scheduler, and beside published results.

The grounds are in `simulator.reports.bench_grounds`. The result is plain data: the hash of each run's inputs, its
figures, and means with intervals over the seeds. It contains no measured times, so the same inputs give the same bytes.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import nan
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from simulator.reports.bench_ground import AnyGround, BenchCell, sort_key
from simulator.reports.policy_comparison import format_number, metric_title
from simulator.reports.repeated_runs import (
    MeanEstimate,
    ParallelWorkers,
    RunMetrics,
    estimate_mean,
    execute_cells,
)
from simulator.reports.run_spec import RunWatcher, run_key
from simulator.reports.run_summary import MetricDefinition, nonfinite_to_none
from walras.errors import ConfigError, UserError

#: Schema number of the result file.
_SCHEMA = 3
#: How the outcome of a run begins that ended with an error; the error follows.
FAILED = "failed"
_REASON_MAX = 300


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Every ground with the runs of each policy, in the order of its seeds."""

    grounds: tuple[AnyGround, ...]
    rows: dict[str, dict[str, list[RunMetrics]]]

    def estimate(self, ground: str, policy: str, metric: str) -> MeanEstimate:
        """Returns the mean of one metric over the seeds, with its interval."""
        return estimate_mean([row.values[metric] for row in self.rows[ground][policy]])

    @property
    def unexpected_outcomes(self) -> list[str]:
        """Returns the outcomes of runs that did not end as their ground says."""
        return [
            row.outcome
            for ground in self.grounds
            for rows in self.rows[ground.name].values()
            for row in rows
            if row.outcome != ground.outcome
        ]

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
    grounds: Sequence[AnyGround],
    workers: ParallelWorkers,
    on_progress: Callable[[int, int], None] = lambda done, runs: None,
) -> BenchResult:
    """Runs every ground. Calls `on_progress(done, all)` first and after each run.

    A run that fails has no figures, and its outcome says why; the others keep theirs.
    """
    cells = [(ground, cell) for ground in grounds for cell in ground.cells()]
    found: dict[int, RunMetrics] = {}
    on_progress(0, len(cells))
    for position, row in execute_cells([partial(_execute, cell, ground.metrics) for ground, cell in cells], workers):
        found[position] = row
        on_progress(len(found), len(cells))
    rows: dict[str, dict[str, list[RunMetrics]]] = {}
    for position, (ground, cell) in enumerate(cells):
        rows.setdefault(ground.name, {}).setdefault(cell.policy, []).append(found[position])
    return BenchResult(tuple(grounds), rows)


def _execute(cell: BenchCell, metrics: Sequence[MetricDefinition], watch: RunWatcher | None) -> RunMetrics:
    try:
        return cell.execute(watch)
    except Exception as error:  # whatever it is: the other runs of the bench are worth hours
        why = f"{type(error).__name__}: {error}".splitlines()[0][:_REASON_MAX]
        return RunMetrics({metric.name: nan for metric in metrics}, {}, f"{FAILED}: {why}", ())


def bench_json(result: BenchResult) -> dict[str, Any]:
    """Returns the result as plain data: the hash of each run's inputs, its figures, means and intervals."""
    return {
        "schema": _SCHEMA,
        "grounds": [
            {
                "name": ground.name,
                "about": ground.about,
                "seeds": list(ground.seeds),
                "published": [asdict(row) for row in ground.published],
                "sorted_by": ground.shown[0],
                "ends": ground.outcome,
                "no_bound": ground.no_bound,
                "policies": {policy: _policy_json(result, ground, policy) for policy in ground.policies},
            }
            for ground in result.grounds
        ],
    }


def _policy_json(result: BenchResult, ground: AnyGround, policy: str) -> dict[str, Any]:
    rows = result.rows[ground.name][policy]
    return {
        "inputs": [run_key(_description(cell)) for cell in ground.cells() if cell.policy == policy],
        "runs": [nonfinite_to_none(row.values) for row in rows],
        "outcomes": [row.outcome for row in rows],
        "metrics": nonfinite_to_none(
            {measure.name: asdict(result.estimate(ground.name, policy, measure.name)) for measure in ground.metrics}
        ),
    }


def _description(cell: BenchCell) -> dict[str, Any]:
    """Returns everything that determines the cell's metrics; for a cell that cannot run, why it cannot."""
    try:
        return cell.describe()
    except UserError as error:
        return {"policy": cell.policy, "refused": str(error)}


def write_bench(path: Path, result: BenchResult) -> None:
    """Writes the result file. Raises ConfigError for a path that cannot be written."""
    text = json.dumps(bench_json(result), indent=1, sort_keys=True) + "\n"
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", field="out", fix="choose another path") from None


def bench_tables(result: BenchResult) -> list[Table]:
    """Returns one table for each ground, best first by its first metric."""
    return [_ground_table(result, ground) for ground in result.grounds]


def _ground_table(result: BenchResult, ground: AnyGround) -> Table:
    titles = {measure.name: measure for measure in ground.metrics}
    table = Table(
        title=f"{ground.name}: {ground.about}; {_seeds_text(len(ground.seeds))}", caption=_remarks(result, ground)
    )
    table.add_column("policy")
    for name in ground.shown:
        table.add_column(metric_title(titles[name]), justify="right")
    rows = []
    for policy in ground.policies:
        estimates = {name: result.estimate(ground.name, policy, name) for name in ground.shown}
        means = {name: each.mean for name, each in estimates.items()}
        rows.append((sort_key(ground, means), policy, [_shown(each) for each in estimates.values()]))
    for row in ground.published:
        cells = [format_number(row.metrics[name]) if name in row.metrics else "" for name in ground.shown]
        rows.append((sort_key(ground, row.metrics), f"{row.policy} ({row.source})", cells))
    for _, name, cells in sorted(rows, key=lambda row: row[0]):
        table.add_row(Text(name), *cells)
    return table


def _remarks(result: BenchResult, ground: AnyGround) -> Text | None:
    """Returns why a ground has no bound, and why runs failed."""
    lines = [f"no bound: {ground.no_bound}"] if ground.no_bound else []
    for policy, rows in result.rows[ground.name].items():
        failed = sorted({row.outcome for row in rows if row.outcome.startswith(FAILED)})
        lines += [f"{policy} {outcome}" for outcome in failed]
    return Text("\n".join(lines)) if lines else None


def _seeds_text(seeds: int) -> str:
    return "one run" if seeds == 1 else f"{seeds} seeds, ± 95 %"


def _shown(value: MeanEstimate) -> str:
    return format_number(value.mean) + (f" ± {format_number(value.half)}" if value.low == value.low else "")
