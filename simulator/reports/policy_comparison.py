"""Several policies on the same jobs and the same random draws, seed by seed, with confidence intervals."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from typing import Any

from rich.table import Table
from rich.text import Text

from simulator.reports.repeated_runs import (
    MeanEstimate,
    ParallelWorkers,
    RunMetrics,
    estimate_mean,
    execute_runs,
    paired_difference,
)
from simulator.reports.run_spec import RunSpec
from simulator.reports.run_summary import RUN_METRICS, TIME_METRICS, MetricDefinition, nonfinite_to_none
from walras.errors import ConfigError

#: Means closer than this part of each other count as equally good.
_TIE = 1e-9


@dataclass(frozen=True, slots=True)
class ComparedMetric:
    """One figure of one policy, over the seeds."""

    policy: str
    value: MeanEstimate
    #: Its difference to the first policy, pair by pair; None for the first one.
    difference: MeanEstimate | None
    #: No other policy has a better mean.
    best: bool


@dataclass(frozen=True, slots=True)
class PolicyComparison:
    """Policies by figures. `rows[policy]` are that policy's runs, in the order of the seeds."""

    policies: tuple[str, ...]
    seeds: tuple[int, ...]
    rows: dict[str, list[RunMetrics]]

    def compared(self, measure: MetricDefinition) -> list[ComparedMetric]:
        """One figure, policy by policy."""
        values = {policy: [_metric_value(row, measure) for row in self.rows[policy]] for policy in self.policies}
        means = {policy: estimate_mean(of) for policy, of in values.items()}
        best = _best([each.mean for each in means.values()], measure.lower_is_better)
        first = self.policies[0]
        return [
            ComparedMetric(
                policy,
                means[policy],
                None if policy == first else paired_difference(values[policy], values[first]),
                best is not None and abs(means[policy].mean - best) <= _TIE * max(1.0, abs(best)),
            )
            for policy in self.policies
        ]

    @property
    def violations(self) -> list[str]:
        """Conservation laws that did not hold, with the run in which they did not."""
        return [
            f"{policy}, seed {seed}: {violation}"
            for policy in self.policies
            for seed, row in zip(self.seeds, self.rows[policy], strict=True)
            for violation in row.violations
        ]

    @property
    def nothing_random(self) -> bool:
        """Several seeds, and every one gave the same figures: its intervals say nothing."""
        return len(self.seeds) > 1 and all(
            str(row.values) == str(rows[0].values) for rows in self.rows.values() for row in rows[1:]
        )


def compare_policies(
    template: RunSpec,
    policies: Sequence[str],
    seeds: Sequence[int],
    workers: ParallelWorkers,
    on_run: Callable[[], None] = lambda: None,
) -> PolicyComparison:
    """Runs every policy with every seed; calls `on_run` after each. Raises ConfigError, and what a run raises."""
    if len(set(policies)) != len(policies):
        raise ConfigError("a policy is named twice", field="policy", fix="name each once")
    cells = [replace(template, policy=policy, seed=seed) for policy in policies for seed in seeds]
    found: dict[int, RunMetrics] = {}
    for position, row in execute_runs(cells, workers):
        found[position] = row
        on_run()
    ordered = [found[position] for position in range(len(cells))]
    n = len(seeds)
    rows = {policy: ordered[i * n : (i + 1) * n] for i, policy in enumerate(policies)}
    return PolicyComparison(tuple(policies), tuple(seeds), rows)


def _metric_value(row: RunMetrics, measure: MetricDefinition) -> float:
    return row.values[measure.name] if measure.name in row.values else row.costs[measure.name]


def _best(means: Sequence[float], lower_is_better: bool | None) -> float | None:
    known = [mean for mean in means if isfinite(mean)]
    if lower_is_better is None or not known:
        return None
    best = min(known) if lower_is_better else max(known)
    # If all are alike, none is marked as best.
    return None if len(known) > 1 and max(known) - min(known) <= _TIE * max(1.0, abs(best)) else best


# ------------------------------------------------------------------------------------------------------ for people


def comparison_tables(comparison: PolicyComparison) -> list[Table]:
    """The figures with their intervals, and the differences to the first policy where there are intervals."""
    shown = [measure for measure in (*RUN_METRICS, *TIME_METRICS) if _worth_showing(comparison, measure)]
    seeds = len(comparison.seeds)
    figures = Table(title=f"mean over {seeds} seeds, 95 % interval; * best" if seeds > 1 else "one seed; * best")
    figures.add_column("figure")
    for policy in comparison.policies:
        figures.add_column(Text(policy), justify="right")
    for measure in shown:
        cells = [_mean_cell(each) for each in comparison.compared(measure)]
        figures.add_row(metric_title(measure), *cells)
    if seeds < 2 or len(comparison.policies) < 2:
        return [figures]
    differences = Table(
        title=f"difference to {comparison.policies[0]} on the same jobs and chance, 95 % interval; ! its sign is sure"
    )
    differences.add_column("figure")
    for policy in comparison.policies[1:]:
        differences.add_column(Text(policy), justify="right")
    for measure in shown:
        if measure.lower_is_better is not None:
            rest = [each.difference for each in comparison.compared(measure) if each.difference is not None]
            differences.add_row(metric_title(measure), *(_difference_cell(each) for each in rest))
    return [figures, differences]


def _worth_showing(comparison: PolicyComparison, measure: MetricDefinition) -> bool:
    """Whether the figure exists for any run, and is not nothing everywhere."""
    values = [_metric_value(row, measure) for rows in comparison.rows.values() for row in rows]
    return any(isfinite(value) and value != 0.0 for value in values)


def metric_title(measure: MetricDefinition) -> str:
    """A figure's title with its unit."""
    return f"{measure.title} ({measure.unit})" if measure.unit not in ("", "part") else measure.title


def _mean_cell(each: ComparedMetric) -> Text:
    mark = " *" if each.best else ""
    return Text(f"{format_number(each.value.mean)}{_interval(each.value)}{mark}", style="bold" if each.best else "")


def _difference_cell(value: MeanEstimate) -> str:
    if not isfinite(value.mean):
        return "-"
    sign, mark = "+" if value.mean > 0 else "", " !" if value.excludes_zero else ""
    return f"{sign}{format_number(value.mean)}{_interval(value)}{mark}"


def _interval(value: MeanEstimate) -> str:
    return f" ± {format_number(value.half)}" if isfinite(value.low) else ""


def format_number(value: float) -> str:
    """Four significant digits, more where the number itself has more before the point; `-` for what does not exist."""
    if not isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


# ---------------------------------------------------------------------------------------------------- for programs


def comparison_json(comparison: PolicyComparison) -> dict[str, Any]:
    """Every figure with its interval, its difference to the first policy, and the value of each seed."""
    measures: dict[str, Any] = {}
    for measure in (*RUN_METRICS, *TIME_METRICS):
        measures[measure.name] = {
            "unit": measure.unit,
            "policies": {
                each.policy: {
                    **_estimate_data(each.value),
                    "difference": None if each.difference is None else _estimate_data(each.difference),
                    "best": each.best,
                    "values": [_metric_value(row, measure) for row in comparison.rows[each.policy]],
                }
                for each in comparison.compared(measure)
            },
        }
    body = {
        "policies": list(comparison.policies),
        "seeds": list(comparison.seeds),
        "nothing_random": comparison.nothing_random,
        "outcomes": {policy: [row.outcome for row in rows] for policy, rows in comparison.rows.items()},
        "violations": comparison.violations,
        "measures": measures,
    }
    data: dict[str, Any] = nonfinite_to_none(body)
    return data


def _estimate_data(value: MeanEstimate) -> dict[str, Any]:
    return asdict(value)
