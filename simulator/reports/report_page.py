"""The report of one run: tables for the terminal, an HTML page, and the folder of `walras simulate run --out`.

The page needs no network, no script and no other file. Any name may come from an untrusted trace: on the page all text
goes through `html_text`, no text becomes an attribute, and no table cell is interpreted as markup.
"""

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from math import inf, isfinite, nan
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from simulator.file_access import bounded_bytes, damaged_file
from simulator.metrics import JobMetrics
from simulator.reports import charts
from simulator.reports.baselines import LowerBounds
from simulator.reports.charts import Chart, svg_element
from simulator.reports.run_spec import CompletedRun, describe_run
from simulator.reports.run_summary import (
    ProjectSummary,
    RunSummary,
    job_data,
    none_to_nan,
    nonfinite_to_none,
    summary_data,
)
from simulator.reports.timeline import AttemptSpan, EventRow, PoolTrack, StepSeries, Timeline
from simulator.worlds.world_registry import WALRAS
from walras.cluster import Pool, PoolId
from walras.errors import ConfigError, system_refusals
from walras.output.html_page import html_document, html_section, html_table, html_text
from walras.states import JobState

#: Number of projects that are listed, the largest first; JSON has all of them.
_PROJECTS_SHOWN = 30


def print_run_summary(summary: RunSummary, console: Console, world: str = "") -> None:
    """Prints the summary of one run. `world`: the other simulator's world of the run; "" for Walras's own."""
    where = f" in the world of {world}" if world else ""
    figures = Table(title=f"{summary.jobs} jobs{where}, run {summary.outcome}", show_header=False)
    for name, text in summary_lines(summary):
        figures.add_row(name, Text(text))
    console.print(figures)
    pools = Table("pool", "accelerator", "market", "there h", "held h", "utilisation", "USD", title="pools")
    for pool in summary.pools:
        numbers = (f"{pool.there_h:.1f}", f"{pool.held_h:.1f}", format_share(pool.utilisation), f"{pool.usd:.2f}")
        pools.add_row(Text(pool.pool_id), pool.accelerator, pool.market, *numbers)
    console.print(pools)
    if len(summary.projects) > 1:
        console.print(_projects_table(summary))
    for violation in summary.violations:
        console.print(f"conservation violated: {violation}", style="red", markup=False)


_PROJECT_TITLES = ("project", "jobs", "succeeded", "JCT avg", "accelerator h", "USD", "rho")


def _project_cells(each: ProjectSummary) -> tuple[str, ...]:
    numbers = (f"{each.accelerator_h:,.1f}", f"{each.usd:,.2f}", format_ratio(each.rho_mean))
    return each.project, f"{each.jobs:,}", f"{each.succeeded:,}", format_seconds(each.avg_jct_s), *numbers


def _projects_table(summary: RunSummary) -> Table:
    hidden = len(summary.projects) - _PROJECTS_SHOWN
    title = "projects" if hidden <= 0 else f"the {_PROJECTS_SHOWN} largest projects of {len(summary.projects)}"
    table = Table(*_PROJECT_TITLES, title=title)
    largest = sorted(summary.projects, key=lambda each: -each.accelerator_h)
    shown = {each.project for each in largest[:_PROJECTS_SHOWN]}
    for each in summary.projects:
        if each.project in shown:
            table.add_row(*(Text(cell) for cell in _project_cells(each)))
    return table


def summary_lines(summary: RunSummary) -> list[tuple[str, str]]:
    """Returns the main metrics as lines: (name, value)."""
    jcts = (summary.avg_jct_s, summary.median_jct_s, summary.p95_jct_s, summary.p99_jct_s)
    fair = summary.fairness
    lines = [
        ("states", ", ".join(f"{count} {state}" for state, count in summary.by_state.items())),
        ("JCT avg / median / p95 / p99", " / ".join(format_seconds(value) for value in jcts)),
        ("JCT geometric mean", format_seconds(summary.geometric_jct_s)),
        ("slowdown mean / max", f"{format_ratio(summary.slowdown_mean)} / {format_ratio(summary.slowdown_max)}"),
        ("makespan", format_seconds(summary.makespan_s)),
        ("queueing avg / p99", f"{format_seconds(summary.avg_queueing_s)} / {format_seconds(summary.p99_queueing_s)}"),
        (
            "finish-time fairness mean / max",
            f"{format_ratio(fair.rho_mean)} / {format_ratio(fair.rho_max)} (equal share)",
        ),
    ]
    if isfinite(fair.isolated_mean):
        lines.append(("", f"{format_ratio(fair.isolated_mean)} / {format_ratio(fair.isolated_max)} (policy isolated)"))
    lines += [
        ("unfair jobs / Jain's index", f"{format_share(fair.unfair)} / {format_ratio(fair.jain)}"),
        ("utilisation", format_share(summary.utilisation)),
        ("accelerator-hours", ", ".join(f"{name} {hours:.1f}" for name, hours in summary.accelerator_h.items())),
        ("money", f"{summary.usd:.2f} USD, of which {summary.usd_of_jobs:.2f} USD under jobs"),
        ("preemptions / losses", f"{summary.preemptions} / {summary.losses} in {summary.attempts} attempts"),
        ("restart overhead", format_share(summary.overhead)),
        ("steps lost", f"{summary.lost_steps:.6g} of {summary.worked_steps:.6g}"),
    ]
    if summary.measured_jobs not in (0, summary.jobs):
        caption = f"{summary.measured_jobs:,} of {summary.jobs:,} jobs, in the window"
        lines.insert(1, ("JCT, slowdown, queueing, fairness of", caption))
    if summary.skipped_rows:
        lines.insert(0, ("rows skipped", f"{summary.skipped_rows:,} rows of the workload could not be read"))
    if summary.deadlines:
        lines.append(("deadlines missed", f"{summary.deadline_misses} of {summary.deadlines}"))
    return [
        *lines,
        *_bound_lines(summary.bounds),
        ("events / solves", f"{summary.events} / {summary.solves}"),
        ("took", f"{summary.wall_s:.2f} s, of which the policy {summary.solve_total_s:.2f} s"),
    ]


def _bound_lines(bounds: LowerBounds) -> list[tuple[str, str]]:
    rows = (
        ("JCT no less than, by prices", bounds.jct_s, bounds.jct_gap),
        ("JCT no less than, without contention", bounds.no_contention_s, bounds.no_contention_gap),
        ("makespan no less than, fluid", bounds.makespan_s, bounds.makespan_gap),
    )
    return [
        (name, f"{format_seconds(value)}, the run is {max(gap, 0.0):.1%} above")
        for name, value, gap in rows
        if isfinite(value)
    ]


def format_seconds(value: float) -> str:
    """Formats seconds; `-` for nan and inf."""
    return f"{value:,.1f} s" if isfinite(value) else "-"


def format_share(value: float) -> str:
    """Formats a percentage; `-` for nan and inf."""
    return f"{value:.1%}" if isfinite(value) else "-"


def format_ratio(value: float) -> str:
    """Formats a ratio with three decimals; `-` for nan and inf."""
    return f"{value:,.3f}" if isfinite(value) else "-"


@dataclass(frozen=True, slots=True)
class ReportedJob:
    """One job of the report; nan for values that do not exist."""

    job_id: int
    name: str
    project: str
    state: str
    submitted_at: float
    jct_s: float
    alone_s: float
    queueing_s: float
    attempts: int
    usd: float


@dataclass(frozen=True, slots=True)
class RunReport:
    """The contents of a run's report."""

    workload: str
    cluster: str
    policy: str
    seed: int
    summary: RunSummary
    jobs: tuple[ReportedJob, ...]
    timeline: Timeline
    #: The file of conditions; "" without one.
    conditions: str = ""
    #: The other simulator's world; "" for Walras's own.
    world: str = ""
    #: Everything that determines the figures, by name (`simulator.reports.run_spec.describe_run`).
    decided_by: tuple[tuple[str, str], ...] = ()


def report_titles(ran: CompletedRun) -> dict[str, Any]:
    """Returns the names that the user gave to workload, cluster and policy, without folders."""
    cell = ran.spec
    policy = Path(cell.policy)
    return {
        "workload": Path(cell.source.name).name,
        "cluster": Path(cell.cluster).name,
        "policy": policy.stem if policy.suffix else cell.policy,
        "seed": cell.seed,
        **({} if cell.world == WALRAS else {"world": cell.world}),
        **({} if cell.conditions is None else {"conditions": Path(cell.conditions).name}),
    }


def make_report(ran: CompletedRun, timeline: Timeline) -> RunReport:
    """Returns the report of a run that has just ended."""
    titles = [each.name for each in fields(ReportedJob)]
    data = [job_data(job, ran.baselines) for job in (*ran.result.jobs, *ran.result.unfinished)]
    lines = tuple(ReportedJob(**{name: row[name] for name in titles}) for row in data)
    decided_by = flatten_description(json.loads(json.dumps(nonfinite_to_none(describe_run(ran.spec)))))
    return RunReport(**report_titles(ran), summary=ran.summary, jobs=lines, timeline=timeline, decided_by=decided_by)


def flatten_description(run: Mapping[str, Any], before: str = "") -> tuple[tuple[str, str], ...]:
    """Flattens a description into dotted names; leaves out empty values."""
    lines: list[tuple[str, str]] = []
    for name, value in run.items():
        if isinstance(value, Mapping):
            lines += flatten_description(value, f"{before}{name}.")
        elif value not in (None, "", []):
            lines.append((before + name, value if isinstance(value, str) else json.dumps(value)))
    return tuple(lines)


@dataclass(frozen=True, slots=True)
class RunFigure:
    """A figure of one run: its texts, and the function that draws it; None where the run has nothing to show."""

    title: str
    caption: str
    draw: Callable[[RunReport], Chart | None]


def _draw_completion(report: RunReport) -> Chart | None:
    done = [job.jct_s for job in report.jobs if job.state == JobState.SUCCEEDED.value]
    return charts.jct_cdf_chart(done) if done else None


def _draw_prices(report: RunReport) -> Chart | None:
    pools = _pools(report)
    return charts.price_chart(pools, report.timeline) if any(each.price.at for each in pools.values()) else None


def _draw_market_prices(report: RunReport) -> Chart | None:
    pools, until_at = _pools(report), report.timeline.ended_at
    has_changed = any(len(track.usd_per_h.at) > 1 for track in pools.values())
    return charts.market_price_chart(pools, until_at) if has_changed else None


def _draw_fairness(report: RunReport) -> Chart | None:
    projects = report.summary.projects
    return charts.fairness_chart(projects) if any(isfinite(each.rho_mean) for each in projects) else None


def _draw_timeline(report: RunReport) -> Chart | None:
    timeline = report.timeline
    if not timeline.spans or not charts.fits_gantt_chart(timeline, report.summary.jobs):
        return None
    return charts.gantt_chart(timeline, {job.job_id: _job_name(job) for job in report.jobs}, timeline.ended_at)


def _pools(report: RunReport) -> dict[str, PoolTrack]:
    return {str(pool_id): track for pool_id, track in report.timeline.pools.items()}


#: By the name that `walras simulate plot` takes, in the order of the page.
RUN_FIGURES: Mapping[str, RunFigure] = {
    "jct": RunFigure(
        "Completion times", "Completion times of the jobs that succeeded: from submission to end.", _draw_completion
    ),
    "waiting": RunFigure(
        "Queueing",
        "Jobs in the system that hold no accelerator.",
        lambda report: charts.queueing_chart(report.timeline.waiting, report.timeline.ended_at),
    ),
    "utilisation": RunFigure(
        "Utilisation by pool",
        "Accelerators held by attempts, as a part of those that are there.",
        lambda report: charts.utilisation_chart(_pools(report), report.timeline.ended_at),
    ),
    "prices": RunFigure(
        "Prices",
        "What the optimizer asks for one accelerator, from solve to solve: high where jobs compete.",
        _draw_prices,
    ),
    "market-prices": RunFigure("Market prices", "What the market asks for a machine.", _draw_market_prices),
    "money": RunFigure(
        "Money by market",
        "The cost of all machines.",
        lambda report: charts.money_chart(report.summary.usd_by_market) if report.summary.usd > 0 else None,
    ),
    "fairness": RunFigure(
        "Fairness by project", "Completion time against the time in an equal share of the fleet.", _draw_fairness
    ),
    "timeline": RunFigure("Timeline", "Pale: accelerators are held and not all ranks run.", _draw_timeline),
}


#: Number of jobs that are listed: those with the longest completion times.
_JOBS_SHOWN = 50
_DECIDED = "The same again gives the same. Files by the SHA-256 of their content; lengths in seconds."


def report_html(report: RunReport) -> str:
    summary, title = report.summary, f"{report.policy} on {report.workload}"
    world = f", world {report.world}" if report.world else ""
    world += f", conditions {report.conditions}" if report.conditions else ""
    body = [
        f"<h1>{html_text(title)}</h1>",
        f"<p>Cluster {html_text(report.cluster)}{html_text(world)}, seed {report.seed}; {summary.jobs:,} jobs,"
        f" run {html_text(summary.outcome)} after {html_text(format_seconds(report.timeline.ended_at))} of virtual"
        " time.</p>",
        *(f'<p class="bad">Conservation violated: {html_text(each)}</p>' for each in summary.violations),
        html_section("Figures", "", html_table(("", ""), summary_lines(summary))),
        *(
            html_section(figure.title, figure.caption, svg_element(chart, name))
            for name, figure in RUN_FIGURES.items()
            if (chart := figure.draw(report)) is not None
        ),
        html_section("Pools", "", _pools_html(summary)),
        html_section("Projects", "Sorted by name.", html_table(_PROJECT_TITLES, map(_project_cells, summary.projects)))
        if summary.projects
        else "",
        html_section("Jobs", f"The {_JOBS_SHOWN} that took longest; all are in jobs.csv.", _jobs_html(report)),
        html_section("What decides these figures", _DECIDED, html_table(("", ""), report.decided_by)),
    ]
    return html_document(title, body)


def _job_name(job: ReportedJob) -> str:
    return job.name or f"job {job.job_id}"


def _pools_html(summary: RunSummary) -> str:
    titles = ("pool", "accelerator", "market", "there (h)", "held (h)", "running (h)", "utilisation", "USD")
    rows = [
        (
            pool.pool_id,
            pool.accelerator,
            pool.market,
            *(f"{hours:,.1f}" for hours in (pool.there_h, pool.held_h, pool.running_h)),
            format_share(pool.utilisation),
            f"{pool.usd:,.2f}",
        )
        for pool in summary.pools
    ]
    return html_table(titles, rows)


def _jobs_html(report: RunReport) -> str:
    longest = sorted(report.jobs, key=lambda job: job.jct_s if isfinite(job.jct_s) else inf, reverse=True)
    titles = ("job", "project", "state", "submitted", "JCT", "alone", "slowdown", "queueing", "attempts", "USD")
    rows = [
        (
            _job_name(job),
            job.project,
            job.state,
            *(format_seconds(length_s) for length_s in (job.submitted_at, job.jct_s, job.alone_s)),
            format_ratio(job.jct_s / job.alone_s),
            format_seconds(job.queueing_s),
            str(job.attempts),
            f"{job.usd:,.2f}",
        )
        for job in longest[:_JOBS_SHOWN]
    ]
    return html_table(titles, rows)


SUMMARY_FILE, JOBS_FILE, EVENTS_FILE, TIMELINE_FILE, REPORT_FILE = (
    "summary.json",
    "jobs.csv",
    "events.csv.gz",
    "timeline.json",
    "report.html",
)
#: The predicted speeds before they were measured, for `walras cloud profile report`.
SCORED_FILE = "scored.json"
_BYTES_MAX = 1024 * 1024 * 1024
_MISSING_FIX = "give a folder that `simulate run --out` made"
#: Columns of a job that are not numbers.
_TEXT_COLUMNS = frozenset({"name", "project", "state"})


# ------------------------------------------------------------------------------------------------- from a folder

_SUMMARY, _POOL = TypeAdapter(RunSummary), TypeAdapter(Pool)
_SPANS, _REPORTED_JOBS = TypeAdapter(list[AttemptSpan]), TypeAdapter(tuple[ReportedJob, ...])
_SERIES = TypeAdapter(StepSeries)


def read_report(folder: Path) -> RunReport:
    """Reads the folder of `walras simulate run --out`. Raises ConfigError that names a damaged file."""
    summary = _read_json(folder / SUMMARY_FILE)
    try:
        words = {name: str(summary["words"][name]) for name in ("workload", "cluster", "policy")}
        figures = none_to_nan(summary["summary"])
        figures.pop("usd_by_market")
        known = _SUMMARY.validate_python(figures)
        seed = int(summary["words"]["seed"])
        for name in ("conditions", "world"):
            words[name] = str(summary["words"].get(name, ""))
        decided_by = flatten_description(summary["run"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _malformed(folder / SUMMARY_FILE, error) from None
    jobs, timeline = _read_jobs(folder / JOBS_FILE), _read_timeline(folder / TIMELINE_FILE)
    return RunReport(**words, seed=seed, summary=known, jobs=jobs, timeline=timeline, decided_by=decided_by)


def _read_jobs(path: Path) -> tuple[ReportedJob, ...]:
    titles = [each.name for each in fields(ReportedJob)]
    try:
        with system_refusals(path, _MISSING_FIX), path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            if not set(titles) <= set(rows.fieldnames or ()):
                raise _malformed(path, "columns are missing")
            # Text may be empty; an empty number is one that does not exist.
            cells = [{name: row[name] or ("" if name in _TEXT_COLUMNS else nan) for name in titles} for row in rows]
        return _REPORTED_JOBS.validate_python(cells)
    except (ValueError, csv.Error) as error:
        raise _malformed(path, error) from None


def _read_timeline(path: Path) -> Timeline:
    data = _read_json(path)
    timeline = Timeline()
    try:
        for name, track in data["pools"].items():
            levels = {key: _SERIES.validate_python(track[key]) for key in POOL_SERIES}
            timeline.pools[PoolId(name)] = PoolTrack(_POOL.validate_python(track["pool"]), **levels)
        timeline.spans = _SPANS.validate_python(none_to_nan({"attempts": data["attempts"]})["attempts"])
        timeline.spans_left_out = int(data["attempts_left_out"])
        timeline.waiting = _SERIES.validate_python(data["waiting"])
        timeline.price_unit, timeline.ended_at = str(data["price_unit"]), float(data["ended_at"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _malformed(path, error) from None
    return timeline


#: The time series that are kept of a pool.
POOL_SERIES = ("there", "held", "running", "price", "usd_per_h")


def pool_track_data(track: PoolTrack) -> dict[str, Any]:
    """Returns one pool's time series as plain data."""
    levels = {name: _SERIES.dump_python(getattr(track, name)) for name in POOL_SERIES}
    return {"pool": _POOL.dump_python(track.pool, mode="json"), **levels}


def _read_json(path: Path) -> dict[str, Any]:
    content = bounded_bytes(path, _BYTES_MAX, refused=_MISSING_FIX, too_large="give the folder of a run")
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _malformed(path, error) from None
    if not isinstance(data, dict):
        raise _malformed(path, "fields are expected")
    return data


def _malformed(path: Path, error: object) -> ConfigError:
    return damaged_file(path, error, " is not what a run left", "run it again with --out")


_EVENT_TITLES = ("at", "what", "job", "attempt", "where", "detail")
_JOB_TITLES = (
    "job_id", "name", "kind", "project", "user", "gang", "state", "reason", "submitted_at", "first_run_at", "ended_at",
    "jct_s", "queueing_s", "alone_s", "slowdown", "deadline_at", "missed", "attempts", "preemptions", "losses",
    "running_s", "overhead_s", "accelerator_s", "usd",
)  # fmt: skip


def make_run_folder(path: Path) -> Path:
    """Creates the folder if it does not exist. Raises ConfigError."""
    with system_refusals(path, "choose another folder", "out"):
        path.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def open_events_table(folder: Path) -> Iterator[Callable[[EventRow], object]]:
    """Returns a function that writes the rows of the events' table one by one. Equal runs give equal bytes.

    The table gets its name once it is complete, so a run that ends early leaves none.
    """
    unfinished = folder / f"{EVENTS_FILE}.unfinished"
    with system_refusals(folder / EVENTS_FILE, "choose another folder", "out"):
        try:
            with (
                unfinished.open("wb") as raw,
                gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
                io.TextIOWrapper(packed, encoding="utf-8", newline="") as text,
            ):
                writer = csv.writer(text, lineterminator="\n")
                writer.writerow(_EVENT_TITLES)
                yield lambda row: writer.writerow((repr(row[0]), *row[1:]))
            unfinished.replace(folder / EVENTS_FILE)
        finally:
            unfinished.unlink(missing_ok=True)


def write_run_folder(folder: Path, ran: CompletedRun, timeline: Timeline) -> None:
    """Writes everything but the events, which were written during the run."""
    with system_refusals(folder, "choose another folder", "out"):
        body = {"words": report_titles(ran), "run": describe_run(ran.spec), "summary": summary_data(ran.summary)}
        (folder / SUMMARY_FILE).write_text(json.dumps(nonfinite_to_none(body), indent=2) + "\n", encoding="utf-8")
        (folder / TIMELINE_FILE).write_text(json.dumps(_timeline_data(timeline)) + "\n", encoding="utf-8")
        with (folder / JOBS_FILE).open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(_JOB_TITLES)
            for job in sorted((*ran.result.jobs, *ran.result.unfinished), key=lambda job: job.job_id):
                writer.writerow(_job_cells(ran, job))
        scored = json.dumps([asdict(each) for each in ran.result.scored], indent=0)
        (folder / SCORED_FILE).write_text(scored + "\n", encoding="utf-8")
        write_report_page(folder / REPORT_FILE, make_report(ran, timeline))


def write_report_page(path: Path, report: RunReport) -> None:
    """Writes only the page. Raises ConfigError where it cannot be written."""
    with system_refusals(path, "choose another folder", "out"):
        path.write_text(report_html(report), encoding="utf-8")


def _job_cells(ran: CompletedRun, job: JobMetrics) -> Sequence[str]:
    data = job_data(job, ran.baselines)
    data["accelerator_s"] = "|".join(f"{name}={value!r}" for name, value in sorted(job.accelerator_s.items()))
    return [_cell_text(data[title]) for title in _JOB_TITLES]


def _cell_text(value: Any) -> str:
    """Formats numbers so that they read back as equal numbers; empty for values that do not exist."""
    if value is None or (isinstance(value, float) and not isfinite(value)):
        return ""
    return repr(value) if isinstance(value, float) else str(value)


def _timeline_data(timeline: Timeline) -> dict[str, Any]:
    """Returns levels as pairs of lists: instants, and the value from each of them on."""

    return nonfinite_to_none(
        {
            "ended_at": timeline.ended_at,
            "price_unit": timeline.price_unit,
            "waiting": asdict(timeline.waiting),
            "pools": {str(pool_id): pool_track_data(track) for pool_id, track in timeline.pools.items()},
            "attempts": [asdict(span) for span in timeline.spans],
            "attempts_left_out": timeline.spans_left_out,
        }
    )
