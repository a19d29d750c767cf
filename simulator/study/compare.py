"""Several policies on the same jobs and the same chance, seed by seed, and what can be said about the difference."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from typing import Any

from rich.table import Table
from rich.text import Text

from simulator.report import finite
from simulator.study.cell import Cell
from simulator.study.measures import COST_MEASURES, MEASURES, Measure
from simulator.study.parallel import Row, Workers, run_rows
from simulator.study.statistics import Estimate, estimate, paired
from walras.errors import ConfigError

#: Means closer than this part of each other count as equally good.
_TIE = 1e-9


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure of one policy, over the seeds."""

    policy: str
    value: Estimate
    #: Its difference to the first policy, pair by pair; None for the first one.
    difference: Estimate | None
    #: No other policy has a better mean.
    best: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """Policies by figures. `rows[policy]` are that policy's runs, in the order of the seeds."""

    policies: tuple[str, ...]
    seeds: tuple[int, ...]
    rows: dict[str, list[Row]]

    def compared(self, measure: Measure) -> list[Compared]:
        """One figure, policy by policy."""
        values = {policy: [_value(row, measure) for row in self.rows[policy]] for policy in self.policies}
        means = {policy: estimate(of) for policy, of in values.items()}
        best = _best([each.mean for each in means.values()], measure.lower_is_better)
        first = self.policies[0]
        return [
            Compared(
                policy,
                means[policy],
                None if policy == first else paired(values[policy], values[first]),
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


def compare(
    template: Cell,
    policies: Sequence[str],
    seeds: Sequence[int],
    workers: Workers,
    told: Callable[[], None] = lambda: None,
) -> Comparison:
    """Run every policy with every seed. `told` is called after each run. Raises ConfigError, and what a run raises."""
    if len(set(policies)) != len(policies):
        raise ConfigError("a policy is named twice", field="policy", fix="name each once")
    cells = [replace(template, policy=policy, seed=seed) for policy in policies for seed in seeds]
    found: dict[int, Row] = {}
    for position, row in run_rows(cells, workers):
        found[position] = row
        told()
    ordered = [found[position] for position in range(len(cells))]
    n = len(seeds)
    rows = {policy: ordered[i * n : (i + 1) * n] for i, policy in enumerate(policies)}
    return Comparison(tuple(policies), tuple(seeds), rows)


def _value(row: Row, measure: Measure) -> float:
    return row.values[measure.name] if measure.name in row.values else row.costs[measure.name]


def _best(means: Sequence[float], lower_is_better: bool | None) -> float | None:
    known = [mean for mean in means if isfinite(mean)]
    if lower_is_better is None or not known:
        return None
    best = min(known) if lower_is_better else max(known)
    # Where all are alike there is no best.
    return None if len(known) > 1 and max(known) - min(known) <= _TIE * max(1.0, abs(best)) else best


# ------------------------------------------------------------------------------------------------------ for people


def tables(comparison: Comparison) -> list[Table]:
    """The figures with their intervals, and the differences to the first policy where there are intervals."""
    shown = [measure for measure in (*MEASURES, *COST_MEASURES) if _worth_showing(comparison, measure)]
    seeds = len(comparison.seeds)
    figures = Table(title=f"mean over {seeds} seeds, 95 % interval; * best" if seeds > 1 else "one seed; * best")
    figures.add_column("figure")
    for policy in comparison.policies:
        figures.add_column(Text(policy), justify="right")
    for measure in shown:
        cells = [_figure(each) for each in comparison.compared(measure)]
        figures.add_row(titled(measure), *cells)
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
            differences.add_row(titled(measure), *(_difference(each) for each in rest))
    return [figures, differences]


def _worth_showing(comparison: Comparison, measure: Measure) -> bool:
    """Whether the figure exists for any run, and is not nothing everywhere."""
    values = [_value(row, measure) for rows in comparison.rows.values() for row in rows]
    return any(isfinite(value) and value != 0.0 for value in values)


def titled(measure: Measure) -> str:
    """A figure's title with its unit."""
    return f"{measure.title} ({measure.unit})" if measure.unit not in ("", "part") else measure.title


def _figure(each: Compared) -> Text:
    mark = " *" if each.best else ""
    return Text(f"{number(each.value.mean)}{_interval(each.value)}{mark}", style="bold" if each.best else "")


def _difference(value: Estimate) -> str:
    if not isfinite(value.mean):
        return "-"
    return f"{'+' if value.mean > 0 else ''}{number(value.mean)}{_interval(value)}{' !' if value.excludes_zero else ''}"


def _interval(value: Estimate) -> str:
    return f" ± {number(value.half)}" if isfinite(value.low) else ""


def number(value: float) -> str:
    """Four significant digits, more where the number itself has more before the point; `-` for what does not exist."""
    if not isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


# ---------------------------------------------------------------------------------------------------- for programs


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Every figure with its interval, its difference to the first policy, and the value of each seed."""
    measures: dict[str, Any] = {}
    for measure in (*MEASURES, *COST_MEASURES):
        measures[measure.name] = {
            "unit": measure.unit,
            "policies": {
                each.policy: {
                    **_estimate(each.value),
                    "difference": None if each.difference is None else _estimate(each.difference),
                    "best": each.best,
                    "values": [_value(row, measure) for row in comparison.rows[each.policy]],
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
    data: dict[str, Any] = finite(body)
    return data


def _estimate(value: Estimate) -> dict[str, Any]:
    return asdict(value)
