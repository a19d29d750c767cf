"""Walras' own trace format: what its columns are, how they are written and read back without loss.

The same columns as CSV (a header, then one line for each job) and as JSON lines (one object for each job). `at`,
`name`, `kind` and `gang` are always there; what all jobs leave at its default is not written. Numbers are written so
that they read back as the same number. Opens no file: see `simulator.workloads.own_csv` and `own_jsonl`.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import fields
from typing import Any

from simulator.workloads.job import TraceFailure, TraceJob
from simulator.workloads.own_cells import OPTIONAL
from simulator.workloads.source import Row

REQUIRED = ("at", "name", "kind", "gang")
_DEFAULTS: dict[str, Any] = {
    field.name: field.default for field in fields(TraceJob) if field.name not in (*REQUIRED, "line")
}
COLUMNS = (*REQUIRED, *_DEFAULTS)
assert OPTIONAL.keys() == _DEFAULTS.keys(), "a column is not read"


def columns_needed(jobs: Iterable[TraceJob]) -> list[str]:
    """The columns that some job has something in, in their fixed order."""
    rest = dict(_DEFAULTS)
    for job in jobs:
        used = [column for column, default in rest.items() if getattr(job, column) != default]
        for column in used:
            del rest[column]
    return [column for column in COLUMNS if column not in rest]


def written(job: TraceJob, column: str) -> Any:
    """The job's value as JSON has it; None where it is the default."""
    value = getattr(job, column)
    if column in _DEFAULTS and value == _DEFAULTS[column]:
        return None
    match column:
        case "speeds":
            return dict(value)
        case "failures":
            return [_failure_text(failure) for failure in value]
        case "preemptible" | "mixed":
            return "yes" if value else "no"
    return list(value) if isinstance(value, tuple) else value


def _failure_text(failure: TraceFailure) -> str:
    times = "" if failure.times is None else f"*{failure.times}"
    return f"{failure.part!r}={failure.exit_code}{times}"


def as_cell(value: Any) -> str:
    """A JSON value as one cell of text: lists are joined by `|`, pairs by `=`. ValueError for what no column holds.

    A `|` inside of an item is written with a backslash before it, and so is a backslash.
    """
    match value:
        case None:
            return ""
        case bool():
            raise ValueError("true and false have no place in a trace")
        case str():
            return value
        case int() | float():
            return repr(value)
        case list():
            return "|".join(as_cell(item).replace("\\", "\\\\").replace("|", "\\|") for item in value)
        case dict():
            return "|".join(f"{name}={as_cell(item)}" for name, item in value.items())
    raise ValueError(f"a value of type {type(value).__name__}")


def own_parser(columns: Collection[str]) -> Callable[[Row], TraceJob]:
    """What reads a row of these columns, and no others, as a job. It raises ConfigError naming file, line, column."""
    present = [(column, read) for column, read in OPTIONAL.items() if column in columns]

    def job(row: Row) -> TraceJob:
        more = {column: read(row, column) for column, read in present if row.text(column)}
        return TraceJob(
            at=row.number("at", least=0.0),
            name=row.name("name"),
            kind=row.name("kind"),
            gang=row.gang("gang"),
            line=row.line,
            **more,
        )

    def checked(row: Row) -> TraceJob:
        found = job(row)
        _check(row, found)
        return found

    return checked


def _check(row: Row, job: TraceJob) -> None:
    """What has to hold between the columns of a row."""
    if job.sizes and job.gang not in job.sizes:
        raise row.error("sizes", f"has no {job.gang}, the job's gang", "name it too: it is what the job asks for")
    if job.nodes > 1 and any(size % job.nodes for size in (job.gang, *job.sizes)):
        raise row.error("nodes", f"is {job.nodes}, which cannot share the gang evenly", "give a divisor of every size")
    if (job.fork_max > 1) + job.mixed + bool(job.sizes) > 1:
        column = "fork_max" if job.fork_max > 1 else "mixed"
        raise row.error(column, "stands beside another of sizes, fork_max and mixed", "give one of them")
    if job.nodes > 1 and (job.fork_max > 1 or job.mixed):
        raise row.error("nodes", "stands beside fork_max or mixed", "leave it out: parts find their machines")
    if job.cancel_at < job.at:
        raise row.error("cancel_at", f"is {job.cancel_at:g}, before the job arrives", "give an instant, not a length")
    if job.estimate_s is not None and job.estimate_factor != 1.0:
        raise row.error("estimate_factor", "stands beside estimate_s", "give one of the two")
    if job.batch_max is not None and job.batch_max < (job.batch or 1):
        raise row.error("batch_max", f"is {job.batch_max}, below batch", "give the largest that it may choose")
