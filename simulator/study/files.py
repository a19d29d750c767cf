"""What `--out` leaves in a folder: summary, tables of jobs and events, the timeline as data, and the report."""

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

from simulator.metrics import JobMeasure
from simulator.report import as_data, finite, per_job
from simulator.study.cell import Ran, description
from simulator.study.page import page
from simulator.study.story import EVENTS, JOBS, REPORT, SCORED, SUMMARY, TIMELINE, Story, pool_data, story_of, words_of
from simulator.study.timeline import EventRow, Timeline
from walras.errors import ConfigError

_EVENT_TITLES = ("at", "what", "job", "attempt", "where", "detail")
_JOB_TITLES = (
    "job_id", "name", "kind", "project", "user", "gang", "state", "reason", "submitted_at", "first_run_at", "ended_at",
    "jct_s", "queueing_s", "alone_s", "slowdown", "deadline_at", "missed", "attempts", "preemptions", "losses",
    "running_s", "overhead_s", "accelerator_s", "usd",
)  # fmt: skip


def made_folder(path: Path) -> Path:
    """The folder, made if it is not there. Raises ConfigError."""
    with _mended(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def _mended(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", field="out", fix="choose another folder") from None


@contextmanager
def events_table(folder: Path) -> Iterator[Callable[[EventRow], object]]:
    """Takes the rows of the events' table one by one, as they happen. Equal runs leave equal bytes.

    The table bears its name once it is whole: a run that ends before its time leaves nothing.
    """
    unfinished = folder / f"{EVENTS}.unfinished"
    with _mended(folder / EVENTS):
        try:
            with (
                unfinished.open("wb") as raw,
                gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
                io.TextIOWrapper(packed, encoding="utf-8", newline="") as text,
            ):
                writer = csv.writer(text, lineterminator="\n")
                writer.writerow(_EVENT_TITLES)
                yield lambda row: writer.writerow((repr(row[0]), *row[1:]))
            unfinished.replace(folder / EVENTS)
        finally:
            unfinished.unlink(missing_ok=True)


def write_run(folder: Path, ran: Ran, timeline: Timeline) -> None:
    """Everything but the events, which were written as they happened."""
    with _mended(folder):
        body = {"words": words_of(ran), "run": description(ran.cell), "summary": as_data(ran.summary)}
        (folder / SUMMARY).write_text(json.dumps(finite(body), indent=2) + "\n", encoding="utf-8")
        (folder / TIMELINE).write_text(json.dumps(_timeline(timeline)) + "\n", encoding="utf-8")
        with (folder / JOBS).open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(_JOB_TITLES)
            for job in sorted((*ran.result.jobs, *ran.result.unfinished), key=lambda job: job.job_id):
                writer.writerow(_job(ran, job))
        scored = json.dumps([asdict(each) for each in ran.result.scored], indent=0)
        (folder / SCORED).write_text(scored + "\n", encoding="utf-8")
        write_report(folder / REPORT, story_of(ran, timeline))


def write_report(path: Path, story: Story) -> None:
    """The page alone. Raises ConfigError where it cannot be written."""
    with _mended(path):
        path.write_text(page(story), encoding="utf-8")


def _job(ran: Ran, job: JobMeasure) -> Sequence[str]:
    data = per_job(job, ran.roster)
    data["accelerator_s"] = "|".join(f"{name}={value!r}" for name, value in sorted(job.accelerator_s.items()))
    return [_cell(data[title]) for title in _JOB_TITLES]


def _cell(value: Any) -> str:
    """Numbers that read back as the same numbers; empty for what does not exist."""
    if value is None or (isinstance(value, float) and not isfinite(value)):
        return ""
    return repr(value) if isinstance(value, float) else str(value)


def _timeline(timeline: Timeline) -> dict[str, Any]:
    """Levels as pairs of lists: from each instant on, the value."""

    body = {
        "ended_at": timeline.ended_at,
        "price_unit": timeline.price_unit,
        "waiting": asdict(timeline.waiting),
        "pools": {str(pool_id): pool_data(track) for pool_id, track in timeline.pools.items()},
        "attempts": [asdict(span) for span in timeline.spans],
        "attempts_left_out": timeline.spans_left_out,
    }
    data: dict[str, Any] = finite(body)
    return data
