"""Writes and reads the folder of `walras simulate run --out`: summary, jobs, events, timeline, report."""

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from math import isfinite, nan
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from simulator.file_access import bounded_bytes
from simulator.metrics import JobMetrics
from simulator.reports.report_page import (
    ReportedJob,
    RunReport,
    flatten_description,
    make_report,
    report_html,
    report_titles,
)
from simulator.reports.run_spec import CompletedRun, describe_run
from simulator.reports.run_summary import RunSummary, job_data, none_to_nan, nonfinite_to_none, summary_data
from simulator.reports.timeline import AttemptSpan, EventRow, PoolTrack, StepSeries, Timeline
from walras.cluster import Pool, PoolId
from walras.errors import ConfigError, system_refusals

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
    message = error.errors(include_url=False)[0]["msg"] if isinstance(error, ValidationError) else error
    return ConfigError(f"{path} is not what a run left: {message}", fix="run it again with --out")


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
