"""The trace formats: the table `FORMATS`, detection of a file's format, reading, and writing our own two formats.

To add a format, write a function from `TraceSource` to jobs (`published_traces.py` has nine) and add one line to
`FORMATS`; docs/how-to/add-a-trace-format.md shows each step.

A part of a trace is a range of arrivals, then a random sample of its jobs, then the first of them, in this order. Its
clock begins where the range does. Dependencies on jobs outside of it count as fulfilled.

Workload files (`walras.spec.workload_file`) are read as traces to count, plot and convert their jobs. A trace has only
the jobs: commands, environments, incidents and laws are left out. Simulations read a workload file directly, and no
command writes one.

Our own format has the same columns as CSV (a header and one line for each job) and as JSON lines (one object for each
job). `at`, `name`, `kind` and `gang` are required; a column that every job leaves at its default is not written.
Numbers are written so that they read back as the same number.
"""

import csv
import gzip
import io
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from math import inf
from pathlib import Path
from random import Random
from typing import Any, Literal, TextIO

from simulator.file_access import written_whole
from simulator.workloads.published_traces import (
    ARENA_REQUIRED,
    BATCH_RULES,
    ELASTICFLOW_REQUIRED,
    GFS_REQUIRED,
    OPENB_REQUIRED,
    PHILLY_REQUIRED,
    POLLUX_REQUIRED,
    read_arena,
    read_elasticflow,
    read_gavel,
    read_gfs,
    read_openb,
    read_philly,
    read_pollux,
    read_shockwave,
    read_swf,
)
from simulator.workloads.trace_source import (
    MAX_GANG,
    ReadOptions,
    Trace,
    TraceFailure,
    TraceJob,
    TraceRow,
    TraceSource,
    complete_file,
    epoch_seconds,
    header_row_format,
    named_row_format,
    open_text,
    split_csv,
)
from walras.errors import ConfigError
from walras.job_request import ANY_ACCELERATOR, JobId, JobIdentity, JobLimits, group_fields
from walras.spec.file_model import load_yaml, nearest_or_all, nearest_word
from walras.spec.job_groups import global_batch_of
from walras.spec.spec_request import to_request
from walras.spec.workload_file import ArrivalEntry, WorkloadFile
from walras.units import parse_length

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


_MIXED: dict[str, bool | Literal["shares"]] = {"yes": True, "no": False, "shares": "shares"}

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
    "mixed": lambda row, column: _MIXED[row.one_of(column, _MIXED)],
    "scaling": lambda row, column: row.number(column, above=0.0, most=1.0),
    "nodes": lambda row, column: row.whole(column, most=MAX_GANG),
    "weight": _read_above_zero,
    "priority": lambda row, column: row.whole(column, least=0, most=100),
    "user": TraceRow.name,
    "project": TraceRow.name,
    "deadline_at": TraceRow.instant,
    "slo": _read_above_zero,
    "value_usd_per_h": _read_not_negative,
    "budget_usd": _read_above_zero,
    "cpus": _read_not_negative,
    "memory_bytes": lambda row, column: row.whole(column, least=0),
    "depends_on": _read_names,
    "condition": lambda row, column: row.one_of(column, ("finished", "succeeded")).removeprefix("succeeded"),
    "not_before_at": _read_instant,
    "cancel_at": _read_instant,
    "preemptible": lambda row, column: row.one_of(column, ("yes", "no")) == "yes",
    "max_restarts": lambda row, column: row.whole(column, least=0, most=1000),
    "restart_codes": _read_wholes(255),
    "max_runtime_s": _read_above_zero,
    "max_queue_s": _read_above_zero,
    "grace_s": _read_above_zero,
    "failures": _read_failures,
    "batch": TraceRow.whole,
    "batch_rule": lambda row, column: row.one_of(column, BATCH_RULES),
    "batch_max": TraceRow.whole,
}

REQUIRED_COLUMNS = ("at", "name", "kind", "gang")
_FIELD_DEFAULTS = {field.name: field.default for field in fields(TraceJob)}
_DEFAULTS: dict[str, Any] = {column: _FIELD_DEFAULTS[column] for column in _OPTIONAL_COLUMNS}
OWN_COLUMNS = (*REQUIRED_COLUMNS, *_DEFAULTS)
assert {*OWN_COLUMNS, "line"} == _FIELD_DEFAULTS.keys(), "a column is not read"


def columns_needed(jobs: Iterable[TraceJob]) -> list[str]:
    """Returns the columns in which some job has a value other than the default, in their fixed order."""
    rest = dict(_DEFAULTS)
    for job in jobs:
        used = [column for column, default in rest.items() if getattr(job, column) != default]
        for column in used:
            del rest[column]
    return [column for column in OWN_COLUMNS if column not in rest]


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
        case "mixed":
            return next(word for word, stands_for in _MIXED.items() if stands_for == value)
        case "preemptible":
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

    def parse(row: TraceRow) -> TraceJob:
        more = {column: read(row, column) for column, read in present if row.text(column)}
        job = TraceJob(
            at=row.instant("at", least=0.0),
            name=row.name("name", None if "name" in columns else str(row.line)),
            kind=row.name("kind", None if "kind" in columns else "any"),
            gang=row.gang("gang"),
            line=row.line,
            **more,
        )
        _check_row(row, job)
        return job

    return parse


def _check_row(row: TraceRow, job: TraceJob) -> None:
    """Checks the conditions between the columns of a row."""
    if job.sizes and job.gang not in job.sizes:
        raise row.error("sizes", f"has no {job.gang}, the job's gang", "name it too: it is what the job asks for")
    if job.nodes > 1 and any(size % job.nodes for size in (job.gang, *job.sizes)):
        raise row.error("nodes", f"is {job.nodes}, which cannot share the gang evenly", "give a divisor of every size")
    if (job.fork_max > 1) + (job.mixed is not False) + bool(job.sizes) > 1:
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
    required = [column for column in REQUIRED_COLUMNS if not is_mapped or column in ("at", "gang")]
    table = header_row_format(source, lines, required)
    for title in table.columns:
        if title not in OWN_COLUMNS and not is_mapped:
            fix = nearest_or_all(title, OWN_COLUMNS)
            raise ConfigError(f"{source.path}:1: no trace has a column {title[:60]!r}", field=title[:60], fix=fix)
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
    return source.jobs(source.lines(), named_row_format(OWN_COLUMNS, _jsonl_cells), walras_row_parser(OWN_COLUMNS))


def _jsonl_cells(line: str) -> Sequence[str]:
    try:
        data = json.loads(line, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(data, dict):
        raise ValueError("no JSON object")
    unknown = next((name for name in data if name not in OWN_COLUMNS), None)
    if unknown is not None:
        meant = nearest_word(unknown, OWN_COLUMNS)
        raise ValueError(f"no field {unknown[:60]!r}" + (f"; did you mean {meant!r}?" if meant else ""))
    missing = next((name for name in REQUIRED_COLUMNS if name not in data), None)
    if missing is not None:
        raise ValueError(f"no field {missing!r}")
    return [format_cell(data.get(column)) for column in OWN_COLUMNS]


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no number")


def write_walras_jsonl(trace: Trace, file: TextIO) -> None:
    """Writes one line for each job."""
    for job in trace.jobs:
        fields = {column: trace_value(job, column) for column in OWN_COLUMNS}
        file.write(json.dumps({name: value for name, value in fields.items() if value is not None}) + "\n")


TraceReader = Callable[[TraceSource], Iterator[TraceJob]]


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """A trace format: how it is detected, and how it is read."""

    name: str
    about: str
    read: TraceReader
    #: File name endings (`.gz` may follow).
    endings: tuple[str, ...]
    #: CSV with a header: the columns that must be in it.
    header: tuple[str, ...] = ()
    #: Without a header: the number of tab-separated cells.
    tabs: int = 0
    #: Whether its jobs may request parts of a GPU.
    has_parts: bool = False


def read_workload_file(source: TraceSource) -> Iterator[TraceJob]:
    """Yields the jobs in order of arrival."""
    workload = load_yaml(source.path, WorkloadFile)
    named: dict[str, str] = {}
    for number, arrival in enumerate(sorted(workload.jobs, key=lambda arrival: arrival.at), start=1):
        job = _trace_job(source.path, number, arrival, named)
        law = workload.laws.get(job.kind)
        is_chosen = law is not None and arrival.job.batch is not None and arrival.job.batch.adaptive
        yield replace(job, batch_max=law.batch.max) if is_chosen and law and job.batch_max is None else job
        named[arrival.job.name] = named[str(number)] = f"{number}-{arrival.job.name}"


def check_convertible(path: str) -> None:
    """Raises ConfigError for features that a trace cannot state, so that nothing is lost silently."""
    workload = load_yaml(path, WorkloadFile)
    if workload.incidents:
        raise ConfigError(
            f"{path}: incidents happen to machines, and a trace has jobs alone",
            field="incidents",
            fix="put them into a file of conditions, or simulate the workload file as it is",
        )
    for row, arrival in enumerate(workload.jobs):
        if len({demand.count for demand in arrival.job.resources.accelerators}) > 1:
            raise ConfigError(
                f"{path}: jobs[{row}] takes another number of accelerators by their type, and a trace has one `gang`",
                field=f"jobs[{row}].job.resources.accelerators",
                fix="give all types the same number, or simulate the workload file as it is",
            )
        for field in ("plans", "roles"):
            if not getattr(arrival.job, field):
                continue
            raise ConfigError(
                f"{path}: jobs[{row}] has `{field}`, and a trace has one `gang`",
                field=f"jobs[{row}].job.{field}",
                fix="simulate the workload file as it is",
            )
        if arrival.job.hold:
            raise ConfigError(
                f"{path}: jobs[{row}] is held, and a trace has no user who releases it",
                field=f"jobs[{row}].job.hold",
                fix="remove hold, or give not_before",
            )


def _trace_job(path: str, number: int, arrival: ArrivalEntry, named: dict[str, str]) -> TraceJob:
    spec, true, project = arrival.job, arrival.simulated, arrival.project or arrival.job.project or "default"
    request = to_request(spec, JobId(number), user=arrival.user, project=project, at=arrival.at)
    types = tuple(demand.accelerator for demand in request.demands if demand.accelerator != ANY_ACCELERATOR)
    steps = true.steps if true.steps is not None else request.steps
    factor = request.steps / true.steps if true.steps is not None and request.steps is not None else 1.0
    return TraceJob(
        at=arrival.at,
        name=f"{number}-{spec.name}",
        kind=request.kind,
        gang=max(demand.count for demand in request.demands),
        types=types,
        steps=steps,
        estimate_s=request.duration_s if request.steps is None else None,
        estimate_factor=0.0 if true.steps is not None and request.steps is request.duration_s is None else factor,
        speeds=request.declared,
        sizes=request.sizes,
        fork_max=request.fork_max,
        mixed="shares" if request.shares else request.mixed,
        nodes=request.nodes,
        cpus=request.cpus_per_accelerator,
        memory_bytes=request.memory_bytes_per_accelerator,
        depends_on=tuple(_dependency_above(path, spec.name, wanted, named) for wanted in spec.depends_on),
        condition="finished" if request.depends_on_any_end else "",
        cancel_at=inf if true.cancel is None else true.cancel,
        max_restarts=request.retry.max_restarts,
        restart_codes=request.retry.on_exit_codes,
        failures=tuple(TraceFailure(each.part, each.exit_code, each.times) for each in true.failures),
        batch=global_batch_of(spec.batch),
        batch_max=None if spec.batch is None else spec.batch.max,
        **group_fields(request, JobIdentity, JobLimits),
    )


def _dependency_above(path: str, name: str, wanted: int | str, named: dict[str, str]) -> str:
    if str(wanted) not in named:
        raise ConfigError(
            f"{path}: {name!r} depends on {wanted!r}, which is not submitted before it",
            field="depends_on",
            fix="name a job that arrives earlier",
        )
    return named[str(wanted)]


#: Largest number of accelerators as which one GPU may be counted.
SLICES_MOST = 64
#: Name of the format of workload files, which state more than a trace can.
WORKLOAD_FILE = "workload"

FORMATS: dict[str, TraceFormat] = {
    each.name: each
    for each in (
        TraceFormat("csv", "Walras' own, CSV", read_walras_csv, (".csv",), header=REQUIRED_COLUMNS),
        TraceFormat("jsonl", "Walras' own, JSON lines", read_walras_jsonl, (".jsonl", ".ndjson")),
        TraceFormat(WORKLOAD_FILE, "a Walras workload file (YAML)", read_workload_file, (".yaml", ".yml")),
        TraceFormat("gavel", "Gavel traces", read_gavel, (".tsv", ".trace"), tabs=10),
        TraceFormat("shockwave", "Shockwave traces", read_shockwave, (".tsv", ".trace"), tabs=12),
        TraceFormat("philly", "Philly and its kin, CSV", read_philly, (".csv",), header=PHILLY_REQUIRED),
        TraceFormat("pollux", "Pollux and Sia workloads", read_pollux, (".csv",), header=POLLUX_REQUIRED),
        TraceFormat("elasticflow", "ElasticFlow traces", read_elasticflow, (".csv",), header=ELASTICFLOW_REQUIRED),
        TraceFormat("openb", "Alibaba 2023 (openb) pods", read_openb, (".csv",), header=OPENB_REQUIRED, has_parts=True),
        TraceFormat("gfs", "Alibaba 2026 (GFS) jobs", read_gfs, (".csv",), header=GFS_REQUIRED, has_parts=True),
        TraceFormat("arena", "Arena's traces", read_arena, (".csv",), header=ARENA_REQUIRED),
        TraceFormat("swf", "Standard Workload Format", read_swf, (".swf",)),
    )
}
WRITERS: dict[str, Callable[[Trace, TextIO], None]] = {"csv": write_walras_csv, "jsonl": write_walras_jsonl}


def read_trace(path: str | Path, format: str | None = None, reading: ReadOptions | None = None) -> Trace:
    """Reads a trace, plain or gzip. Raises ConfigError that names file, line and column.

    `format` is a name in `FORMATS`; with None the file's ending and its first line decide.
    """
    reading = reading or ReadOptions()
    known = find_format(format) if format is not None else detect_format(path, is_mapped=bool(reading.columns))
    source = TraceSource(path, reading)
    if source.reading.columns and not known.header:
        raise ConfigError(f"{path}: the format {known.name} has no titles to map", field="column", fix="leave it out")
    if not 1 <= reading.slices <= SLICES_MOST or (reading.slices > 1 and not known.has_parts):
        of = ", ".join(each.name for each in FORMATS.values() if each.has_parts)
        raise ConfigError(
            f"{path}: {reading.slices} slices of a GPU in the format {known.name}",
            field="slices",
            fix=f"give 1 to {SLICES_MOST}, for {of}; other formats have whole accelerators alone",
        )
    jobs = list(known.read(source))
    if source.reading.sort:
        jobs.sort(key=lambda job: job.at)
    began_at = jobs[0].at if source.clock.is_dated and jobs else None
    if began_at is not None:
        jobs = [later_by(job, -began_at) for job in jobs]
    if not jobs:
        only = f" of {source.reading.only!r}" if source.reading.only else ""
        raise ConfigError(f"{path}: no job{only} can be read in it", fix="is it the right file and format?")
    _check_dependencies(path, jobs)
    if reading.is_part:
        jobs = slice_jobs(jobs, source.reading, str(path), began_at)
    return Trace(str(path), known.name, jobs, source.skipped)


def _check_dependencies(path: str | Path, jobs: Sequence[TraceJob]) -> None:
    """Checks that jobs depend only on jobs above them, which excludes cycles."""
    wanted = {name for job in jobs for name in job.depends_on}
    above: set[str] = set()
    for job in jobs:
        missing = next((name for name in job.depends_on if name not in above), None)
        if missing is not None:
            raise ConfigError(
                f"{path}:{job.line}: depends_on names {missing!r}, and no job above it is called that",
                field="depends_on",
                fix="name jobs that arrive earlier, or stand above it in the file",
            )
        if job.name in wanted:
            above.add(job.name)


def find_format(name: str) -> TraceFormat:
    """Returns the format of that name. Raises ConfigError that names the nearest."""
    if name not in FORMATS:
        fix = nearest_or_all(name, FORMATS)
        raise ConfigError(f"no trace format {name!r}", field="format", fix=fix)
    return FORMATS[name]


def detect_format(path: str | Path, *, is_mapped: bool = False) -> TraceFormat:
    """Detects the format by ending and first line. Raises ConfigError if none fits.

    `is_mapped`: the user maps the file's columns to ours.
    """
    ending = _file_ending(path)
    if is_mapped and ending == ".csv":
        return FORMATS["csv"]
    candidates = [each for each in FORMATS.values() if ending in each.endings]
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        with open_text(path) as file, complete_file(f"{path}: broken off in its first line"):
            line = file.readline(4096).rstrip("\r\n")
        for each in candidates:
            if (each.header and set(each.header) <= _column_titles(line)) or (
                each.tabs and line.count("\t") + 1 == each.tabs
            ):
                return each
        if any(each.tabs for each in candidates):
            return candidates[0]  # its reader reports errors in the row
    raise ConfigError(
        f"{path}: in no format that is known by its ending and first line",
        field="format",
        fix=f"name it with --set format=NAME: {', '.join(FORMATS)}",
    )


def _column_titles(line: str) -> set[str]:
    return {title.strip() for title in split_csv(line.replace('"', ""))}


def _file_ending(path: str | Path) -> str:
    return Path(str(path).lower().removesuffix(".gz")).suffix


def write_trace(trace: Trace, path: str | Path, *, force: bool = False) -> None:
    """Writes the trace atomically, in the format of the path's ending (`.csv`, `.jsonl`, each also `.gz`).

    Raises ConfigError for another ending, and for a file that exists unless `force`.
    """
    target = Path(path)
    writer = WRITERS.get(_file_ending(path).removeprefix("."))
    if writer is None:
        endings = ", ".join(f".{name}" for name in WRITERS)
        raise ConfigError(f"{path}: traces are written as {endings} (or with .gz)", field="out", fix="change the name")
    if target.exists() and not force:
        raise ConfigError(f"{path} exists", field="out", fix="choose another name, or --force")
    with ExitStack() as files:
        half = files.enter_context(written_whole(target, fix="check the path and its permissions"))
        if target.suffix.lower() == ".gz":
            # Neither name nor time is in the header, so that the same jobs give the same bytes.
            raw = files.enter_context(half.open("wb"))
            packed = files.enter_context(gzip.GzipFile("", "wb", fileobj=raw, mtime=0))
            text: TextIO = files.enter_context(io.TextIOWrapper(packed, encoding="utf-8", newline=""))
        else:
            text = files.enter_context(half.open("w", encoding="utf-8", newline=""))
        writer(trace, text)


#: Seed of the sample: the same file and part give the same jobs, for every policy and seed of a run.
_SAMPLE_SEED = "sample"


def slice_jobs(
    jobs: Sequence[TraceJob], reading: ReadOptions, path: str, began_at: float | None = None
) -> list[TraceJob]:
    """Returns the requested jobs, on a clock that begins with the range.

    `began_at`: start of the trace, seconds since 1970; None if it has no dates. Raises ConfigError for an invalid
    range, and for a slice without a job.
    """
    since_s = _instant(reading.since, "since", began_at) if reading.since else 0.0
    until_s = _instant(reading.until, "until", began_at) if reading.until else inf
    if not since_s < until_s:
        raise ConfigError(f"since {reading.since or 0}, until {reading.until}", field="until", fix="give a later one")
    if reading.sample is not None and not 0 < reading.sample <= 1:
        raise ConfigError(f"sample {reading.sample:g}", field="sample", fix="give a part, above 0 and at most 1")
    if reading.first is not None and reading.first < 1:
        raise ConfigError(f"first {reading.first}", field="first", fix="give a number of jobs, at least 1")
    found = [job for job in jobs if since_s <= job.at < until_s]
    if reading.sample is not None and found:
        kept = max(1, round(reading.sample * len(found)))
        places = sorted(Random(_SAMPLE_SEED).sample(range(len(found)), kept))
        found = [found[place] for place in places]
    found = found[: reading.first]
    if not found:
        last = f"{jobs[-1].at:g} s"
        raise ConfigError(f"{path}: no job arrives in that range; the last arrives at {last}", field="since",
                          fix="choose another range")  # fmt: skip
    names = {job.name for job in found}
    whole = [
        job
        if all(name in names for name in job.depends_on)
        else replace(job, depends_on=tuple(name for name in job.depends_on if name in names))
        for job in found
    ]
    return [later_by(job, -since_s) for job in whole] if since_s else whole


def later_by(job: TraceJob, seconds: float) -> TraceJob:
    """Returns the job with all its instants moved."""
    return replace(
        job,
        at=job.at + seconds,
        deadline_at=job.deadline_at + seconds,
        cancel_at=job.cancel_at + seconds,
        not_before_at=job.not_before_at + seconds,
    )


def _instant(text: str, option: str, began_at: float | None) -> float:
    """Returns seconds since the trace began, from a length (`2d`) or a date."""
    try:
        return parse_length(text)
    except ValueError:
        pass
    try:
        at = epoch_seconds(text)
    except ValueError:
        fix = "write a length since the trace began, such as 2d, or a date such as 2026-11-05T18:00:00Z"
        raise ConfigError(f"{option} {text[:60]!r}", field=option, fix=fix) from None
    if began_at is None:
        raise ConfigError(
            f"{option} is a date, and this trace counts seconds from its beginning",
            field=option,
            fix="write a length since the trace began, such as 2d",
        )
    return at - began_at
