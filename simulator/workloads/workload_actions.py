"""`walras workload generate|convert|describe`: from names and paths to files and tables, which the CLI prints."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.goodput.laws import is_law_file, read_goodput_laws
from simulator.shipped_configs import find_cluster, find_workload
from simulator.workloads.formats import FORMATS, WORKLOAD_FILE, WRITERS, read_trace, write_trace
from simulator.workloads.generators import GENERATORS, generate_jobs, generator_request
from simulator.workloads.speed_tables import read_throughput_table, with_seeded_speeds
from simulator.workloads.trace import SkippedRows, Trace
from simulator.workloads.trace_binding import nominal_speeds
from simulator.workloads.trace_source import ReadOptions
from simulator.workloads.trace_statistics import (
    QUANTILES,
    Distribution,
    TraceDescription,
    count_shares,
    describe_trace,
    plot_trace,
    trace_description_json,
)
from simulator.workloads.workload_as_trace import check_convertible
from walras.spec.cluster_file import ClusterConfig
from walras.spec.file_model import load_yaml
from walras.units import format_length


@dataclass(frozen=True, slots=True)
class WrittenTrace:
    """A trace that was written, and the rows that were left out."""

    jobs: int
    format: str
    skipped: SkippedRows


@dataclass(frozen=True, slots=True)
class DescriptionTable:
    """One table of a description: a title, the titles of its columns, and rows."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


def generate_trace(name: str, out: Path, *, speeds: Path | None, force: bool, **options: Any) -> WrittenTrace:
    """Generates and writes a trace. `options` are those of `generator_request`."""
    jobs = list(generate_jobs(name, generator_request(name, **options), speeds))
    write_trace(Trace(name, "generated", jobs), out, force=force)
    return WrittenTrace(len(jobs), "generated", SkippedRows())


def convert_trace(
    path: str | Path, out: Path, *, format: str | None, reading: ReadOptions, seeded: "SeededSpeeds | None", force: bool
) -> WrittenTrace:
    """Reads a trace in any format, and writes it in one of ours."""
    found = find_workload(str(path))
    trace = read_trace(found, format, reading)
    if trace.format == WORKLOAD_FILE:
        check_convertible(str(found))
    jobs = trace.jobs
    if seeded is not None:
        nominal = nominal_speeds(load_yaml(find_cluster(str(seeded.cluster)), ClusterConfig))
        jobs = list(with_seeded_speeds(jobs, nominal, kinds=seeded.kinds, seed=seeded.seed))
    write_trace(Trace(trace.source, trace.format, jobs), out, force=force)
    return WrittenTrace(len(jobs), trace.format, trace.skipped)


@dataclass(frozen=True, slots=True)
class SeededSpeeds:
    """Speeds to be drawn for a trace: see `simulator.workloads.speed_tables`."""

    cluster: str | Path
    kinds: int
    seed: int


def describe_trace_file(
    path: str | Path,
    *,
    format: str | None,
    reading: ReadOptions,
    cluster: str | Path | None = None,
    speeds: Path | None = None,
    plot: Path | None = None,
) -> tuple[TraceDescription, SkippedRows]:
    """Describes a trace, and plots it if a file for that is given."""
    found = find_workload(str(path))
    trace = read_trace(found, format, reading)
    config = load_yaml(find_cluster(str(cluster)), ClusterConfig) if cluster is not None else None
    law_file = found if trace.format == WORKLOAD_FILE else speeds
    laws = read_goodput_laws(law_file) if law_file is not None and is_law_file(law_file) else None
    table = read_throughput_table(speeds) if speeds is not None and not is_law_file(speeds) else None
    description = describe_trace(trace, config, table, laws)
    if plot is not None:
        plot_trace(trace, plot)
    return description, trace.skipped


def trace_description_data(description: TraceDescription) -> dict[str, Any]:
    """Returns the description as JSON data."""
    return trace_description_json(description)


def trace_description_tables(description: TraceDescription) -> list[DescriptionTable]:
    """Returns the description as tables."""
    summary = [("jobs", f"{description.jobs:,}")]
    if description.skipped:
        summary.append(("rows skipped", f"{description.skipped:,}"))
    summary += [
        ("format", description.format),
        ("span", format_length(description.last_at - description.first_at)),
        ("arrivals", "all at once" if description.jobs_per_h is None else f"{description.jobs_per_h:.4g} per hour"),
        ("kinds", f"{len(description.kinds):,}"),
        ("projects", f"{len(description.projects):,}"),
    ]
    if description.users:
        summary.append(("users", f"{len(description.users):,}"))
    if len(description.weights) > 1:
        summary.append(("weights", ", ".join(f"{w:g}: {count:,}" for w, count in description.weights.items())))
    special = {
        "with a deadline": description.with_deadline, "elastic": description.elastic,
        "wait for others": description.dependent, "cancelled": description.cancelled, "fail": description.failing,
    }  # fmt: skip
    summary += [(what, f"{count:,}") for what, count in special.items() if count]
    if description.duration_s is not None and description.load is None:
        summary.append(("work", f"{description.accelerator_h:,.0f} accelerator hours, as stated"))
    parts = [DescriptionTable("", ("", ""), [*summary, *_load_rows(description)])]
    spreads = [
        ("duration (stated)", description.duration_s, format_length),
        ("steps", description.steps, "{:.4g}".format),
    ]
    if description.load is not None:
        spreads.append(("run time (fastest type)", description.load.duration_s, format_length))
    rows = [_distribution_row(name, spread, form) for name, spread, form in spreads if spread is not None]
    if rows:
        titles = (
            "",
            "jobs",
            "mean",
            *("least" if q == 0 else "most" if q == 1 else f"p{100 * q:g}" for q in QUANTILES),
        )
        parts.append(DescriptionTable("Length", titles, rows))
    for title, counts in (
        ("Gangs", description.gangs), ("Kinds", description.kinds), ("Types", description.types),
        ("Projects", description.projects),
    ):  # fmt: skip
        if len(counts) > 1 or title == "Gangs":
            parts.append(_count_table(title, count_shares(counts, description.jobs)))
    return parts


def _load_rows(description: TraceDescription) -> list[tuple[str, str]]:
    load = description.load
    if load is None:
        return []
    offered = "all jobs arrive at once" if load.offered_load is None else f"{load.offered_load:.3f}"
    rows = [
        ("accelerators", f"{load.accelerators:,}"),
        ("work", f"{load.accelerator_h:,.0f} accelerator hours, each job on its fastest type"),
        ("offered load", offered),
        ("done no sooner than", f"{load.drained_after_h:,.1f} h with all accelerators busy"),
    ]
    return [*rows, ("too large for it", f"{load.too_large:,} jobs")] if load.too_large else rows


def _distribution_row(name: str, spread: Distribution, form: Callable[[float], str]) -> tuple[str, ...]:
    return (name, f"{spread.count:,}", form(spread.mean), *(form(value) for value in spread.quantiles))


def _count_table(title: str, rows: Iterable[tuple[str, int, float]]) -> DescriptionTable:
    cells: list[tuple[str, ...]] = [(value, f"{count:,}", f"{100 * part:.1f} %") for value, count, part in rows]
    return DescriptionTable(title, (title.lower(), "jobs", "part"), cells)


def format_catalogue() -> list[tuple[str, str, str]]:
    """Returns (what, name, about) of every format and generator."""
    formats = [
        ("format, read and written" if each.name in WRITERS else "format, read", each.name, each.about)
        for each in FORMATS.values()
    ]
    return [*formats, *(("generator", name, each.about) for name, each in GENERATORS.items())]
