"""Sweeps: grids of runs, from a file (YAML) or options, that can be interrupted and resumed.

The metrics of every run are one file in a folder, named by the hash of its description, with the levels of some runs
beside it. A file that is truncated, changed, or of another run is rejected, and its run is repeated. The table shows
means over the seeds of every setting; the CSV has the single runs.
"""

import csv
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from math import isfinite, nan
from pathlib import Path
from typing import Annotated, Any, ClassVar, TextIO, TypeVar

from pydantic import Field, TypeAdapter, field_validator
from rich.table import Table
from rich.text import Text

from simulator.file_access import written_whole
from simulator.reports.policy_comparison import format_estimate, metric_title
from simulator.reports.repeated_runs import (
    RUNS_MAX,
    ParallelWorkers,
    RunMetrics,
    estimate_mean,
    execute_runs,
    parse_seeds,
)
from simulator.reports.run_spec import GeneratorOptions, RunSpec, StudySettings, WorkloadSource, describe_run, run_key
from simulator.reports.run_summary import RUN_METRICS, TIME_METRICS, nonfinite_to_none
from simulator.reports.timeline import SPREADS, RunDepth, RunLevels
from simulator.workloads.trace_source import GeneratedSettings, ReadOptions, ReadSettings
from walras.errors import ConfigError, system_refusals

T = TypeVar("T")
_GridName = Annotated[str, Field(min_length=1, max_length=4096)]
_GridNames = Annotated[tuple[_GridName, ...], Field(min_length=1, max_length=1000)]


class SweepGrid(StudySettings):
    """A grid of runs: every workload x cluster x policy x rate x seed is one run."""

    workloads: _GridNames
    clusters: _GridNames
    policies: _GridNames
    #: Seeds as `0-4`, `1,3,5`, or a list.
    seeds: tuple[int, ...] = (0,)
    #: Arrivals per hour of generated workloads; empty: the generator's default.
    rates: Annotated[tuple[float, ...], Field(max_length=1000)] = ()

    other_words: ClassVar[dict[str, str]] = {
        **ReadSettings.other_words, "workload": "workloads", "cluster": "clusters", "policy": "policies",
        "seed": "seeds", "rate": "rates", "jobs": "trace_jobs",
    }  # fmt: skip

    @field_validator("workloads", "clusters", "policies", "rates", "seeds")
    @classmethod
    def _each_once(cls, value: tuple[object, ...]) -> tuple[object, ...]:
        """Rejects duplicates: a run that counts twice would narrow the intervals of means."""
        seen: set[object] = set()
        for item in value:
            if item in seen:
                raise ValueError(f"{item!r} is there twice; name each once")
            seen.add(item)
        return value

    @field_validator("seeds", mode="before")
    @classmethod
    def _seeds_in_words(cls, value: object) -> object:
        if isinstance(value, str):
            return parse_seeds(value)
        return (value,) if isinstance(value, int) else value


@dataclass(frozen=True, slots=True)
class GridPoint:
    """The coordinates of a run in the grid, in the user's words."""

    workload: str
    cluster: str
    policy: str
    rate_per_h: float | None
    seed: int

    @property
    def setting(self) -> tuple[str, str, float | None, str]:
        """The coordinates without the seed."""
        return self.workload, self.cluster, self.rate_per_h, self.policy


def grid_runs(grid: SweepGrid) -> list[tuple[GridPoint, RunSpec]]:
    """Returns the runs in a fixed order. Raises ConfigError for too large a grid, or for rates without a generator."""
    rates: tuple[float | None, ...] = grid.rates or (None,)
    sizes = (len(grid.workloads), len(grid.clusters), len(grid.policies), len(rates), len(grid.seeds))
    runs = 1
    for size in sizes:
        runs *= size
    if not 1 <= runs <= RUNS_MAX:
        raise ConfigError(f"the grid has {runs:,} runs", field="seeds", fix=f"at most {RUNS_MAX:,}, at least one")
    _reject_idle_options(grid)
    cells = []
    for workload, cluster, rate, policy, seed in product(
        grid.workloads, grid.clusters, rates, grid.policies, grid.seeds
    ):
        run = grid.run(workload, cluster, policy, seed, rate)
        source = run.source
        if source.generator is None and rate is not None:
            raise ConfigError(
                f"{workload} arrives as it is written", field="rates", fix="give rates to generated workloads alone"
            )
        # A grid may have workloads of both kinds: each has the options of its own.
        others = {"format": None, "reading": ReadOptions()} if source.generator else {"made": GeneratorOptions()}
        source = replace(source, **others)
        cells.append((GridPoint(workload, cluster, policy, rate, seed), replace(run, source=source)))
    return cells


def _reject_idle_options(grid: SweepGrid) -> None:
    """Raises ConfigError for options of generated workloads without one, and for options of files without one."""
    generated = [WorkloadSource(workload).generator is not None for workload in grid.workloads]
    for there, names, what in (
        (any(generated), ("trace_jobs", *GeneratedSettings.model_fields), "no workload is generated"),
        (not all(generated), tuple(ReadSettings.model_fields), "every workload is generated"),
    ):
        for name in names:
            if not there and getattr(grid, name) != SweepGrid.model_fields[name].get_default(call_default_factory=True):
                raise ConfigError(f"{what}: `{name}` would do nothing", field=name, fix="leave it out")


SWEEP_TABLE = "sweep.csv"
#: Number of settings (workload, cluster, rate) whose runs with the first seed are kept with their levels.
SETTINGS_WITH_LEVELS = 4


@dataclass(slots=True)
class SweepResult:
    places: list[GridPoint]
    rows: list[RunMetrics]
    #: Number of runs that were executed now, and of files that were rejected.
    ran: int = 0
    rejected: list[str] = field(default_factory=list)
    #: Levels of the first seed, for the first settings of the grid.
    levels: dict[tuple[str, str, float | None, str], RunLevels] = field(default_factory=dict)


def run_sweep(
    grid: SweepGrid,
    folder: Path,
    workers: ParallelWorkers,
    on_progress: Callable[[int, int], None] = lambda done, runs: None,
) -> SweepResult:
    """Runs what is missing, and writes `sweep.csv`. Calls `on_progress(done, all)` first and after each run.

    Raises ConfigError before any run if a file or a name is wrong, and whatever a run raises; runs that had ended by
    then are kept.
    """
    cells = grid_runs(grid)
    store, outcome = SweepStore(folder), SweepResult([place for place, _ in cells], [])
    in_levels = _places_with_levels(outcome.places)
    # Cells with equal keys (two names of one file) are one run.
    described = [describe_run(cell) for _, cell in cells]
    keys = [run_key(each) for each in described]
    wanted = {key for key, place in zip(keys, outcome.places, strict=True) if place in in_levels}
    found: dict[str, RunMetrics | None] = {}
    levels: dict[str, RunLevels | None] = {}
    missing = []
    for position, key in enumerate(keys):
        if key not in found:
            row = store.read(key, described[position], outcome.rejected)
            if key in wanted and row is not None:
                levels[key] = store.read_levels(key, outcome.rejected)
                row = row if levels[key] is not None else None
            found[key] = row
            if row is None:
                missing.append(position)
    on_progress(len(found) - len(missing), len(found))
    depths = [RunDepth.LEVELS if keys[position] in wanted else RunDepth.JOBS for position in missing]
    for number, row in execute_runs([cells[position][1] for position in missing], workers, depths):
        key = keys[missing[number]]
        store.write(key, described[missing[number]], row)
        levels[key] = row.detail.levels if row.detail is not None else None
        # Only distributions of the jobs are kept, because a grid may have many runs.
        found[key] = replace(row, detail=None)
        outcome.ran += 1
        on_progress(len(found) - len(missing) + outcome.ran, len(found))
    outcome.rows = [each for key in keys if (each := found[key]) is not None]
    for key, place in zip(keys, outcome.places, strict=True):
        if place in in_levels and (kept := levels.get(key)) is not None:
            outcome.levels[place.setting] = kept
    store.write_table(SWEEP_TABLE, lambda file: _write_table(file, outcome))
    return outcome


def _places_with_levels(places: Sequence[GridPoint]) -> set[GridPoint]:
    """Returns the runs of the first settings with the first seed."""
    settings = list(dict.fromkeys((place.workload, place.cluster, place.rate_per_h) for place in places))
    first = set(settings[:SETTINGS_WITH_LEVELS])
    seed = places[0].seed
    return {
        place for place in places if place.seed == seed and (place.workload, place.cluster, place.rate_per_h) in first
    }


def _write_table(file: TextIO, swept: SweepResult) -> None:
    writer = csv.writer(file, lineterminator="\n")
    measures = [measure.name for measure in (*RUN_METRICS, *TIME_METRICS)]
    writer.writerow(["workload", "cluster", "policy", "rate_per_h", "seed", "outcome", *measures])
    for place, row in zip(swept.places, swept.rows, strict=True):
        values = {**row.values, **row.costs}
        rate = "" if place.rate_per_h is None else repr(place.rate_per_h)
        figures = [repr(values[name]) if isfinite(values[name]) else "" for name in measures]
        writer.writerow([place.workload, place.cluster, place.policy, rate, place.seed, row.outcome, *figures])


def runs_by_setting(swept: SweepResult) -> dict[tuple[str, str, float | None, str], list[RunMetrics]]:
    """Groups the runs by all coordinates but their seed, in the order of the grid."""
    by_setting: dict[tuple[str, str, float | None, str], list[RunMetrics]] = {}
    for place, row in zip(swept.places, swept.rows, strict=True):
        by_setting.setdefault(place.setting, []).append(row)
    return by_setting


def violations_in(swept: Sequence[RunMetrics]) -> list[str]:
    """Returns every violated conservation law of the runs."""
    return [violation for row in swept for violation in row.violations]


#: Metrics of the table; the CSV and JSON have all of them.
_TABLE_METRICS = (
    "avg_jct_s",
    "p99_jct_s",
    "makespan_s",
    "rho_mean",
    "utilisation",
    "usd",
    "preemptions",
    "deadline_misses",
)


def sweep_table(swept: SweepResult) -> Table:
    """Returns a table with a line per workload, cluster, rate and policy."""
    by_setting = runs_by_setting(swept)
    with_rates = any(rate is not None for _, _, rate, _ in by_setting)
    table = Table(title=f"{len(swept.rows)} runs, {swept.ran} of them now; means over seeds, ± 95 % interval")
    for title in ("workload", "cluster", *(("jobs/h",) if with_rates else ()), "policy"):
        table.add_column(title)
    shown = [measure for measure in RUN_METRICS if measure.name in _TABLE_METRICS]
    for measure in ("seeds", *(metric_title(measure) for measure in shown)):
        table.add_column(measure, justify="right")
    for (workload, cluster, rate, policy), rows in by_setting.items():
        words = [Path(workload).name, Path(cluster).name, *([f"{rate:g}" if rate is not None else "-"] * with_rates)]
        figures = [format_estimate(estimate_mean([row.values[measure.name] for row in rows])) for measure in shown]
        table.add_row(*(Text(word) for word in (*words, Path(policy).name)), str(len(rows)), *figures)
    return table


def sweep_json(swept: SweepResult) -> dict[str, Any]:
    """Returns every setting with every metric's mean and interval."""
    return nonfinite_to_none(
        {
            "runs": len(swept.rows),
            "ran": swept.ran,
            "rejected": swept.rejected,
            "settings": [
                {
                    "workload": workload,
                    "cluster": cluster,
                    "rate_per_h": rate,
                    "policy": policy,
                    "measures": {
                        measure.name: asdict(estimate_mean([row.values[measure.name] for row in rows]))
                        for measure in RUN_METRICS
                    },
                }
                for (workload, cluster, rate, policy), rows in runs_by_setting(swept).items()
            ],
        }
    )


_CELLS = "cells"
_CELL_BYTES_MAX = 1024 * 1024
_LEVELS_BYTES_MAX = 64 * 1024 * 1024
_LEVELS = TypeAdapter(RunLevels)


class SweepStore:
    """The stored results of one sweep."""

    def __init__(self, folder: Path) -> None:
        """Creates the folder. Raises ConfigError if that fails."""
        self._folder = folder
        self._cells = folder / _CELLS
        with system_refusals(folder, fix="choose another folder", field="out"):
            self._cells.mkdir(parents=True, exist_ok=True)

    def read(self, key: str, described: Mapping[str, Any], rejected: list[str]) -> RunMetrics | None:
        """Returns the stored metrics of a run; None if the file is missing or unsound."""
        path = self._cells / f"{key}.json"
        return _read_sound(path, _CELL_BYTES_MAX, lambda data: _parse_result(data, described), rejected)

    def read_levels(self, key: str, rejected: list[str]) -> RunLevels | None:
        """Returns the stored levels of a run; None if the file is missing or unsound."""
        return _read_sound(self._levels_path(key), _LEVELS_BYTES_MAX, lambda data: _parse_levels(data, key), rejected)

    def write(self, key: str, described: Mapping[str, Any], row: RunMetrics) -> None:
        """Writes the metrics of a run, and first its levels if they were kept."""
        if row.detail is not None and row.detail.levels is not None:
            kept = nonfinite_to_none(asdict(row.detail.levels))
            levels = json.dumps({"levels": kept, "sha256": _result_digest({"run": key}, kept)})
            self._put(self._levels_path(key), lambda file: file.write(levels))
        metrics = {name: getattr(row, name) for name in ("values", "costs", "outcome", "violations", "spreads")}
        body = nonfinite_to_none(metrics)
        text = json.dumps({"description": described, "row": body, "sha256": _result_digest(described, body)}, indent=1)
        self._put(self._cells / f"{key}.json", lambda file: file.write(text))

    def write_table(self, name: str, write: Callable[[TextIO], object]) -> None:
        """Writes a file of the whole sweep into the folder."""
        self._put(self._folder / name, write)

    def _levels_path(self, key: str) -> Path:
        return self._cells / f"{key}.levels.json"

    def _put(self, path: Path, write: Callable[[TextIO], object]) -> None:
        whole = written_whole(path, fix="check the folder", field="out")
        with whole as half, half.open("w", encoding="utf-8", newline="") as file:
            write(file)


def _read_sound(path: Path, most: int, parse: Callable[[Any], T | None], rejected: list[str]) -> T | None:
    """Returns the parsed file; None if it is missing, or unsound and then listed in `rejected`."""
    try:
        with path.open("rb") as file:
            content = file.read(most)
    except FileNotFoundError:
        return None
    try:
        found = parse(json.loads(content))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        found = None
    if found is None:
        rejected.append(str(path))
    return found


def _parse_levels(data: Any, key: str) -> RunLevels | None:
    is_whole = data["sha256"] == _result_digest({"run": key}, data["levels"])
    return _LEVELS.validate_python(data["levels"]) if is_whole else None


def _result_digest(described: Mapping[str, Any], body: Mapping[str, Any]) -> str:
    text = json.dumps([described, body], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _parse_result(data: Any, described: Mapping[str, Any]) -> RunMetrics | None:
    body = data["row"]
    # Compared as JSON, because tuples have become lists.
    same = data["description"] == json.loads(json.dumps(described))
    if not same or data["sha256"] != _result_digest(described, body):
        return None
    values, costs = (_numbers(body[name]) for name in ("values", "costs"))
    spreads = {name: tuple(float(value) for value in body["spreads"][name]) for name in SPREADS}
    broken = tuple(str(each) for each in body["violations"])
    values_known = values.keys() == {measure.name for measure in RUN_METRICS}
    if not values_known or costs.keys() != {measure.name for measure in TIME_METRICS}:
        return None
    return RunMetrics(values, costs, str(body["outcome"]), broken, spreads=spreads)


def _numbers(data: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): nan if value is None else float(value) for name, value in data.items()}
