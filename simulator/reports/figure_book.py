"""The data of a comparison's or a sweep's figures: written beside the page, and read by `walras simulate plot`.

A book has settings (one for a comparison; every workload, cluster and rate for a sweep), a setting has policies, and a
policy has its metrics with intervals, the distributions of its jobs over all seeds, and the levels of its first seed if
they were kept.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import nan
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from optimizer.policy_files import is_policy_file, name_in_file
from simulator.reports.policy_comparison import PolicyComparison
from simulator.reports.repeated_runs import MeanEstimate, RunMetrics, estimate_mean
from simulator.reports.run_detail import SPREADS, RunLevels, spread_of
from simulator.reports.run_spec import RunSpec
from simulator.reports.run_summary import RUN_METRICS, nonfinite_to_none
from simulator.reports.sweep import SweepResult, runs_by_setting
from simulator.worlds.world_registry import WALRAS
from walras.errors import ConfigError

FIGURES_FILE = "figures.json"
#: Schema number of the file; files of another number are rejected.
FIGURES_SCHEMA = 1
_BYTES_MAX = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PolicyFigures:
    """One policy in one setting."""

    policy: str
    metrics: dict[str, MeanEstimate]
    #: Distributions by name (`simulator.reports.run_detail.SPREADS`): sorted values that stand for equally many jobs
    #: each.
    spreads: dict[str, tuple[float, ...]]
    levels: RunLevels | None = None


@dataclass(frozen=True, slots=True)
class FigureSetting:
    """The same jobs on the same cluster for every policy. `rate_per_h` is nan unless the workload is generated."""

    name: str
    workload: str
    cluster: str
    policies: tuple[PolicyFigures, ...]
    rate_per_h: float = nan


@dataclass(frozen=True, slots=True)
class FigureBook:
    """The contents of all figures of one page."""

    title: str
    #: Notes for the reader: seeds, intervals, conditions.
    notes: tuple[str, ...]
    settings: tuple[FigureSetting, ...]
    #: Everything that determines the figures, by name and policy.
    decided_by: tuple[tuple[str, str], ...] = field(default=())


_BOOK = TypeAdapter(FigureBook)


def comparison_book(
    comparison: PolicyComparison, run: RunSpec, decided_by: Sequence[tuple[str, str]] = ()
) -> FigureBook:
    """Returns the book of a comparison whose runs were kept with their levels."""
    workload, cluster = Path(run.source.name).name, Path(run.cluster).name
    labels = policy_labels(comparison.policies)
    compared = {measure.name: comparison.compared(measure) for measure in RUN_METRICS}
    policies = []
    for row, policy in enumerate(comparison.policies):
        runs = comparison.rows[policy]
        metrics = {name: each[row].value for name, each in compared.items()}
        levels = runs[0].detail.levels if runs[0].detail is not None else None
        policies.append(PolicyFigures(labels[policy], metrics, _pooled(runs), levels))
    setting = FigureSetting(f"{workload} on {cluster}", workload, cluster, tuple(policies))
    return FigureBook(f"{workload} on {cluster}", tuple(_notes(comparison, run)), (setting,), tuple(decided_by))


def _notes(comparison: PolicyComparison, run: RunSpec) -> list[str]:
    notes = []
    if run.world != WALRAS:
        notes.append(f"In the world of {run.world}.")
    if run.conditions is not None:
        notes.append(f"Conditions: {Path(run.conditions).name}.")
    jobs = comparison.resampling
    if len(comparison.seeds) > 1:
        notes.append(
            f"Means over {len(comparison.seeds)} seeds with 95 % intervals; every policy meets the same jobs and the"
            " same random draws."
        )
    elif jobs is not None:
        notes.append(
            f"Nothing is random: one run of each policy. 95 % intervals by drawing its {jobs.jobs:,} jobs again, in"
            f" blocks of {jobs.block}."
        )
    else:
        notes.append(f"One run of each policy, seed {comparison.seeds[0]}.")
    return [*notes, *(f"Conservation violated: {each}" for each in comparison.violations)]


def sweep_book(swept: SweepResult, title: str) -> FigureBook:
    """Returns the book of a sweep: a setting for each workload, cluster and rate."""
    grouped: dict[tuple[str, str, float | None], dict[str, list[RunMetrics]]] = {}
    for (workload, cluster, rate, policy), rows in runs_by_setting(swept).items():
        grouped.setdefault((workload, cluster, rate), {})[policy] = rows
    settings = []
    for (workload, cluster, rate), by_policy in grouped.items():
        labels = policy_labels(tuple(by_policy))
        policies = tuple(
            PolicyFigures(
                labels[policy],
                {name: _estimate(rows, name) for name in _METRIC_NAMES},
                _pooled(rows),
                swept.levels.get((workload, cluster, rate, policy)),
            )
            for policy, rows in by_policy.items()
        )
        names = (Path(workload).name, Path(cluster).name)
        name = f"{names[0]} on {names[1]}" + (f", {rate:g} jobs/h" if rate is not None else "")
        settings.append(FigureSetting(name, *names, policies, nan if rate is None else rate))
    seeds = len({place.seed for place in swept.places})
    notes = (f"{len(swept.rows):,} runs, {seeds} {'seed' if seeds == 1 else 'seeds'} of each; 95 % intervals.",)
    return FigureBook(title, notes, tuple(settings))


_METRIC_NAMES = tuple(measure.name for measure in RUN_METRICS)


def _estimate(rows: Sequence[RunMetrics], name: str) -> MeanEstimate:
    return estimate_mean([row.values[name] for row in rows])


def _pooled(rows: Sequence[RunMetrics]) -> dict[str, tuple[float, ...]]:
    return {name: spread_of([value for row in rows for value in row.spreads.get(name, ())]) for name in SPREADS}


def policy_labels(policies: Sequence[str]) -> dict[str, str]:
    """Returns a short name for each policy: for a file its base name, or the whole path if two files share it."""
    short = {
        policy: name_in_file(policy).rpartition(":")[2]
        if is_policy_file(policy)
        else Path(policy).name.removesuffix(".yaml").removesuffix(".yml") or policy
        for policy in policies
    }
    taken = list(short.values())
    return {policy: name if taken.count(name) == 1 else policy for policy, name in short.items()}


def write_figures(folder: Path, book: FigureBook) -> None:
    """Writes the data of the figures. Raises ConfigError where the folder cannot be written."""
    body = {"schema": FIGURES_SCHEMA, **nonfinite_to_none(asdict(book))}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FIGURES_FILE).write_text(json.dumps(body) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror or error}", field="out", fix="choose another folder") from None


def read_figures(folder: Path) -> FigureBook:
    """Reads what `write_figures` wrote. Raises ConfigError that names a missing or damaged file."""
    path = folder / FIGURES_FILE
    try:
        if path.stat().st_size > _BYTES_MAX:
            raise ConfigError(
                f"{path}: more than {_BYTES_MAX:,} bytes", fix="give the folder of a comparison or a sweep"
            )
        body = json.loads(path.read_bytes())
        if not isinstance(body, dict) or body.pop("schema", None) != FIGURES_SCHEMA:
            raise ValueError(f"it is not of schema {FIGURES_SCHEMA}")
        return _BOOK.validate_python(_with_nan(body))
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror or error}",
            field="from",
            fix="give a folder that `simulate run`, `compare` or `sweep` wrote with --out",
        ) from None
    except (ValueError, RecursionError) as error:
        why = error.errors(include_url=False)[0]["msg"] if isinstance(error, ValidationError) else error
        raise ConfigError(f"{path} is not what a comparison left: {why}", fix="compare again with --out") from None


def _with_nan(value: Any) -> Any:
    """Returns the same data with nan in place of null, except where a run has no levels."""
    if isinstance(value, Mapping):
        return {
            key: None if item is None and key == "levels" else nan if item is None else _with_nan(item)
            for key, item in value.items()
        }
    return [_with_nan(item) for item in value] if isinstance(value, list) else value
