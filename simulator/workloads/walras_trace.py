"""Walras' own trace format, as CSV and as JSON lines: columns, cells, and a lossless way to write and read them.

Both forms have the same columns: CSV has a header and one line for each job, JSON lines one object for each job. `at`,
`name`, `kind` and `gang` are required; a column that every job leaves at its default is not written. Numbers are
written so that they read back as the same number.
"""

import csv
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import fields
from sys import intern
from typing import Any, TextIO

from simulator.workloads.published_traces import BATCH_RULES
from simulator.workloads.trace import Trace, TraceFailure, TraceJob
from simulator.workloads.trace_source import MAX_GANG, TraceRow, TraceSource, header_row_format, named_row_format
from walras.errors import ConfigError
from walras.spec.file_model import nearest_word

_FAILURE = re.compile(r"([0-9]{1,3}(?:\.[0-9]{0,30})?(?:e-[0-9]{1,3})?)=([0-9]{1,3})(?:\*([1-9][0-9]{0,5}))?")


def _split_items(text: str) -> list[str]:
    """Splits a cell that `format_cell` joined."""
    return [re.sub(r"\\(.)", r"\1", item).strip() for item in re.findall(r"(?:[^|\\]|\\.)+", text)]


def _read_above_zero(row: TraceRow, column: str) -> float:
    return row.number(column, above=0.0)


def _read_not_negative(row: TraceRow, column: str) -> float:
    return row.number(column, least=0.0)


def _read_instant(row: TraceRow, column: str) -> float:
    return row.instant(column, least=0.0)


def _read_batch_rule(row: TraceRow, column: str) -> str:
    rule = row.text(column)
    if rule not in BATCH_RULES:
        raise row.error(column, f"is {rule[:40]!r}", f"write one of {', '.join(BATCH_RULES)}")
    return intern(rule)


def _read_one_of(*words: str) -> Callable[[TraceRow, str], str]:
    def read(row: TraceRow, column: str) -> str:
        word = row.text(column)
        if word not in words:
            raise row.error(column, f"is {word[:40]!r}", f"write one of {', '.join(words)}")
        return word

    return read


def _read_wholes(most: int) -> Callable[[TraceRow, str], tuple[int, ...]]:
    """Returns a reader of distinct whole numbers, ascending."""

    def read(row: TraceRow, column: str) -> tuple[int, ...]:
        texts = row.text(column).split("|")
        if not all(text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= most for text in texts):
            raise row.error(column, f"is {row.text(column)[:60]!r}", f"write whole numbers up to {most}: `1|2|4`")
        return tuple(sorted({int(text) for text in texts}))

    return read


def _read_names(row: TraceRow, column: str) -> tuple[str, ...]:
    names = tuple(_split_items(row.text(column)))
    if not names or len(set(names)) < len(names):
        raise row.error(column, f"is {row.text(column)[:60]!r}", "name jobs above it, each once: `first|second`")
    return names


def _read_failures(row: TraceRow, column: str) -> tuple[TraceFailure, ...]:
    found = []
    for item in _split_items(row.text(column)):
        match = _FAILURE.fullmatch(item)
        if match is None or not float(match[1]) < 1 or not 1 <= int(match[2]) <= 255:
            raise row.error(
                column,
                f"is {item[:60]!r}",
                "write part of its work, `=`, exit code, maybe `*` and how often: `0.5=3*2`",
            )
        found.append(TraceFailure(float(match[1]), int(match[2]), int(match[3]) if match[3] else None))
    return tuple(found)


def _read_speeds(row: TraceRow, column: str) -> tuple[tuple[str, float], ...]:
    text = row.text(column)
    speeds: dict[str, float] = {}
    for part in text.split("|"):
        name, _, number = part.partition("=")
        accelerator = row.accelerator(name, column)
        try:
            speed = float(number)
        except ValueError:
            speed = -1.0
        if not 0 <= speed <= 1e9 or accelerator in speeds:
            raise row.error(column, f"is {text[:60]!r}", "write such as `a100=12.5|v100=6`, each type once")
        speeds[accelerator] = speed
    return tuple(sorted(speeds.items()))


#: Readers of non-empty cells, by column.
_OPTIONAL_COLUMNS: dict[str, Callable[[TraceRow, str], Any]] = {
    "types": TraceRow.types,
    "steps": _read_above_zero,
    "duration_s": _read_above_zero,
    "duration_on": lambda row, column: row.accelerator(row.text(column), column),
    "estimate_s": _read_above_zero,
    "estimate_factor": _read_not_negative,
    "speeds": _read_speeds,
    "sizes": _read_wholes(MAX_GANG),
    "fork_max": lambda row, column: row.whole(column, most=1024),
    "mixed": lambda row, column: _read_one_of("yes", "no")(row, column) == "yes",
    "scaling": lambda row, column: row.number(column, above=0.0, most=1.0),
    "nodes": lambda row, column: row.whole(column, most=MAX_GANG),
    "weight": _read_above_zero,
    "priority": lambda row, column: row.whole(column, least=0, most=100),
    "user": TraceRow.name,
    "project": TraceRow.name,
    "deadline_at": lambda row, column: row.instant(column),
    "slo": _read_above_zero,
    "value_usd_per_h": _read_not_negative,
    "budget_usd": _read_above_zero,
    "cpus": _read_not_negative,
    "memory_bytes": lambda row, column: row.whole(column, least=0),
    "depends_on": _read_names,
    "condition": lambda row, column: _read_one_of("finished", "succeeded")(row, column).removeprefix("succeeded"),
    "not_before_at": _read_instant,
    "cancel_at": _read_instant,
    "preemptible": lambda row, column: _read_one_of("yes", "no")(row, column) == "yes",
    "max_restarts": lambda row, column: row.whole(column, least=0, most=1000),
    "restart_codes": _read_wholes(255),
    "max_runtime_s": _read_above_zero,
    "max_queue_s": _read_above_zero,
    "grace_s": _read_above_zero,
    "failures": _read_failures,
    "batch": lambda row, column: row.whole(column),
    "batch_rule": _read_batch_rule,
    "batch_max": lambda row, column: row.whole(column),
}

WALRAS_REQUIRED = ("at", "name", "kind", "gang")
_FIELD_DEFAULTS = {field.name: field.default for field in fields(TraceJob)}
_DEFAULTS: dict[str, Any] = {column: _FIELD_DEFAULTS[column] for column in _OPTIONAL_COLUMNS}
WALRAS_COLUMNS = (*WALRAS_REQUIRED, *_DEFAULTS)
assert {*WALRAS_COLUMNS, "line"} == _FIELD_DEFAULTS.keys(), "a column is not read"


def columns_needed(jobs: Iterable[TraceJob]) -> list[str]:
    """Returns the columns in which some job has a value other than the default, in their fixed order."""
    rest = dict(_DEFAULTS)
    for job in jobs:
        used = [column for column, default in rest.items() if getattr(job, column) != default]
        for column in used:
            del rest[column]
    return [column for column in WALRAS_COLUMNS if column not in rest]


def trace_value(job: TraceJob, column: str) -> Any:
    """Returns the job's value for JSON; None for the default."""
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


def format_cell(value: Any) -> str:
    """Formats a JSON value as one cell: lists are joined by `|`, pairs by `=`. Raises ValueError for other values.

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
            return "|".join(format_cell(item).replace("\\", "\\\\").replace("|", "\\|") for item in value)
        case dict():
            return "|".join(f"{name}={format_cell(item)}" for name, item in value.items())
    raise ValueError(f"a value of type {type(value).__name__}")


def walras_row_parser(columns: Collection[str]) -> Callable[[TraceRow], TraceJob]:
    """Returns a parser of rows with these columns only. It raises ConfigError that names file, line and column."""
    present = [(column, read) for column, read in _OPTIONAL_COLUMNS.items() if column in columns]

    def job(row: TraceRow) -> TraceJob:
        more = {column: read(row, column) for column, read in present if row.text(column)}
        return TraceJob(
            at=row.instant("at", least=0.0),
            name=row.name("name", None if "name" in columns else str(row.line)),
            kind=row.name("kind", None if "kind" in columns else "any"),
            gang=row.gang("gang"),
            line=row.line,
            **more,
        )

    def checked(row: TraceRow) -> TraceJob:
        found = job(row)
        _check_row(row, found)
        return found

    return checked


def _check_row(row: TraceRow, job: TraceJob) -> None:
    """Checks the conditions between the columns of a row."""
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


def read_walras_csv(source: TraceSource) -> Iterator[TraceJob]:
    """Yields the jobs in order of arrival. An unknown column is an error, because its values would be lost.

    In a foreign file with mapped columns unknown columns are ignored, and names and kinds may be missing.
    """
    lines = source.lines()
    is_mapped = bool(source.reading.columns)
    required = [column for column in WALRAS_REQUIRED if not is_mapped or column in ("at", "gang")]
    table = header_row_format(source, lines, required)
    for title in table.columns:
        if title not in WALRAS_COLUMNS and not is_mapped:
            meant = nearest_word(title, WALRAS_COLUMNS)
            raise ConfigError(
                f"{source.path}:1: no trace has a column {title[:60]!r}",
                field=title[:60],
                fix=f"did you mean {meant!r}?" if meant else f"known: {', '.join(WALRAS_COLUMNS)}",
            )
    return source.jobs(lines, table, walras_row_parser(table.columns))


def write_walras_csv(trace: Trace, file: TextIO) -> None:
    """Writes header and rows."""
    columns = columns_needed(trace.jobs)
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    for job in trace.jobs:
        writer.writerow([format_cell(trace_value(job, column)) for column in columns])


def read_walras_jsonl(source: TraceSource) -> Iterator[TraceJob]:
    """Yields the jobs in order of arrival."""
    return source.jobs(
        source.lines(), named_row_format(WALRAS_COLUMNS, _jsonl_cells), walras_row_parser(WALRAS_COLUMNS)
    )


def _jsonl_cells(line: str) -> Sequence[str]:
    try:
        data = json.loads(line, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(data, dict):
        raise ValueError("no JSON object")
    unknown = next((name for name in data if name not in WALRAS_COLUMNS), None)
    if unknown is not None:
        meant = nearest_word(unknown, WALRAS_COLUMNS)
        raise ValueError(f"no field {unknown[:60]!r}" + (f"; did you mean {meant!r}?" if meant else ""))
    missing = next((name for name in WALRAS_REQUIRED if name not in data), None)
    if missing is not None:
        raise ValueError(f"no field {missing!r}")
    return [format_cell(data.get(column)) for column in WALRAS_COLUMNS]


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no number")


def write_walras_jsonl(trace: Trace, file: TextIO) -> None:
    """Writes one line for each job."""
    for job in trace.jobs:
        fields = {column: trace_value(job, column) for column in WALRAS_COLUMNS}
        file.write(json.dumps({name: value for name, value in fields.items() if value is not None}) + "\n")
