"""The figures by which runs are compared: each a name, a unit, and which way is better. See docs/metrics.md."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import nan
from typing import Any

from simulator.report import Summary, as_data


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of a run. `path` leads to it in the summary's data."""

    name: str
    title: str
    unit: str
    #: None: neither way is better by itself.
    lower_is_better: bool | None = True
    path: str = ""


MEASURES: tuple[Measure, ...] = (
    Measure("avg_jct_s", "JCT avg", "s"),
    Measure("median_jct_s", "JCT median", "s"),
    Measure("p95_jct_s", "JCT p95", "s"),
    Measure("p99_jct_s", "JCT p99", "s"),
    Measure("geometric_jct_s", "JCT geometric", "s"),
    Measure("slowdown_mean", "slowdown mean", ""),
    Measure("slowdown_max", "slowdown max", ""),
    Measure("makespan_s", "makespan", "s"),
    Measure("avg_queueing_s", "queueing avg", "s"),
    Measure("p99_queueing_s", "queueing p99", "s"),
    Measure("rho_mean", "fairness rho mean", "", path="fairness.rho_mean"),
    Measure("rho_max", "fairness rho max", "", path="fairness.rho_max"),
    Measure("unfair", "unfair jobs", "part", path="fairness.unfair"),
    Measure("isolated_mean", "fairness vs isolated, mean", "", path="fairness.isolated_mean"),
    Measure("isolated_max", "fairness vs isolated, max", "", path="fairness.isolated_max"),
    Measure("jain", "Jain's index", "", lower_is_better=False, path="fairness.jain"),
    Measure("utilisation", "utilisation", "part", lower_is_better=None),
    Measure("usd", "money", "USD"),
    Measure("usd_of_jobs", "money under jobs", "USD"),
    Measure("preemptions", "preemptions", ""),
    Measure("losses", "losses", ""),
    Measure("overhead", "restart overhead", "part"),
    Measure("lost_steps", "steps lost", "steps"),
    Measure("deadline_misses", "deadlines missed", "jobs"),
    Measure("unfinished", "unfinished", "jobs"),
    Measure("skipped_rows", "rows skipped", "rows", lower_is_better=None),
    Measure("solves", "solves", "", lower_is_better=None),
    Measure("jct_bound_s", "JCT bound by prices", "s", None, "bounds.jct_s"),
    Measure("jct_gap", "JCT above that bound", "part", path="bounds.jct_gap"),
    Measure("no_contention_s", "JCT without contention", "s", None, "bounds.no_contention_s"),
    Measure("no_contention_gap", "JCT above that", "part", path="bounds.no_contention_gap"),
    Measure("makespan_bound_s", "makespan bound", "s", None, "bounds.makespan_s"),
    Measure("makespan_gap", "makespan above that", "part", path="bounds.makespan_gap"),
)
#: Of this machine's clock: never compared, never part of what a cell's key promises.
COST_MEASURES: tuple[Measure, ...] = (
    Measure("solve_total_s", "policy time", "s", None),
    Measure("solve_mean_s", "policy time per solve", "s", None),
    Measure("solve_max_s", "policy time, longest", "s", None),
    Measure("wall_s", "took", "s", None),
)


def values_of(summary: Summary, measures: Iterable[Measure] = MEASURES) -> dict[str, float]:
    """The figures by name; nan for one that does not exist."""
    data = as_data(summary)
    return {measure.name: _at(data, measure.path or measure.name) for measure in measures}


def _at(data: dict[str, Any], path: str) -> float:
    value: Any = data
    for part in path.split("."):
        value = value[part]
    return nan if value is None else float(value)
