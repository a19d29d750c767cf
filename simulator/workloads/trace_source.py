"""Turns an untrusted trace file into the jobs that it states, before any cluster is known.

A bad row is an error, or is left out where that is asked for (`ReadOptions`). The limits are on size, length of a line
and number of jobs; no name may occur twice, and arrivals are in order. Each format defines the meaning of its columns.
`simulator.workloads.trace_binding` determines what a job means on a given cluster: the types it accepts, its speed.
"""

import csv
import gzip
import re
import zlib
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import lru_cache
from math import inf, isfinite
from pathlib import Path
from sys import intern
from typing import Annotated, ClassVar, Literal, TextIO

from pydantic import ConfigDict, Field

from walras.errors import ConfigError, system_refusals
from walras.job_request import JobIdentity, JobLimits
from walras.spec.accelerator_names import canonical_accelerator
from walras.spec.field_types import shown_name
from walras.spec.file_model import FileModel


@dataclass(frozen=True, slots=True)
class TraceFailure:
    """A failure of a rank after this part of the job's work."""

    #: Part of the work, from 0 to below 1.
    part: float
    exit_code: int = 1
    #: Number of failures; None: every attempt fails.
    times: int | None = None


@dataclass(frozen=True, slots=True)
class TraceJob(JobIdentity, JobLimits):
    """One row of a trace. Instants count from the start of the trace."""

    #: Instant of submission, seconds since the start of the trace.
    at: float
    #: Unique in its trace.
    name: str
    #: Jobs of one kind and gang run equally fast.
    kind: str
    #: Accelerators that it holds, all at once.
    gang: int
    #: Accelerator types that it accepts; empty: every type on which it has a speed.
    types: tuple[str, ...] = ()
    #: Its work in steps.
    steps: float | None = None
    #: Its run time on `duration_on`, seconds.
    duration_s: float | None = None
    #: The type that `duration_s` and `slo` refer to; "": the fastest of those it may run on.
    duration_on: str = ""
    #: The user's estimate of the run time. None: the scheduler knows the true length times `estimate_factor`.
    estimate_s: float | None = None
    #: The length that the scheduler knows, divided by the true one; 0: it knows none.
    estimate_factor: float = 1.0
    #: Steps per second of the gang, by type, ascending by name.
    speeds: tuple[tuple[str, float], ...] = ()
    #: Elastic: gang sizes from which a policy may choose, ascending, `gang` among them. Empty: the gang is fixed.
    sizes: tuple[int, ...] = ()
    #: Largest number of parts into which it may be forked, each a whole gang; and whether its gang may span several
    #: pools, and shares its batches there.
    fork_max: int = 1
    mixed: bool | Literal["shares"] = False
    #: For an elastic job without a table or law of speeds: n times the accelerators are n ** scaling as fast.
    scaling: float = 1.0
    #: Machines over which the gang is distributed evenly; 1: as few as possible.
    nodes: int = 1
    #: A deadline as a multiple of the run time on `duration_on`, counted from submission.
    slo: float | None = None
    #: Per accelerator: processors, and bytes of memory.
    cpus: float = 0.0
    memory_bytes: int = 0
    #: Names of jobs above it that must end first, and how: "" with success, "finished" in any way.
    depends_on: tuple[str, ...] = ()
    condition: str = ""
    #: Instant at which its user cancels it.
    cancel_at: float = inf
    max_restarts: int = 0
    #: Exit codes after which it is retried; empty: all.
    restart_codes: tuple[int, ...] = ()
    failures: tuple[TraceFailure, ...] = ()
    #: Global batch size, and the rule that changes it: "" none; static, accordion, gns as in Shockwave.
    batch: int | None = None
    batch_rule: str = ""
    #: For a job whose kind follows a goodput law: the largest batch that it may choose. None: it chooses none.
    batch_max: int | None = None
    #: Line of the file; not a property of the job.
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class SkippedRows:
    """Rows that could not be read and were left out, as `ReadOptions.skip_bad_rows` requests."""

    count: int = 0
    #: What was wrong with the first few.
    first: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs in order of arrival, and their source."""

    #: The file, or the generator's name.
    source: str
    #: Name of the format, or "generated".
    format: str
    jobs: Sequence[TraceJob]
    skipped: SkippedRows = SkippedRows()


MAX_LINE = 64 * 1024
#: Largest size of the text after decompression, so that a small file cannot unpack to a huge one.
MAX_CHARACTERS = 2**31
MAX_JOBS = 5_000_000
MAX_GANG = 65_536
_MAX_NAME = 200
_FIRST_FEW = 5
_BATCH_IN_NAME = re.compile(r"\(batch size (\d{1,9})\)$")
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_LONGEST_QUOTE = 40
#: A million years: larger instants would lose the precision of seconds.
_MAX_NUMBER = 1e15


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read a file; with the defaults every bad row is an error."""

    #: Leave out rows that cannot be read; they are counted, and the first few are reported.
    skip_bad_rows: bool = False
    #: Sort the rows by arrival first.
    sort: bool = False
    #: For a file of several traces: only rows with this word in the column `cluster`.
    only: str = ""
    #: The part of the trace (`slice_jobs`): arrivals from and before these instants, this part of
    #: those at random, and this number of them.
    since: str = ""
    until: str = ""
    sample: float | None = None
    first: int | None = None
    #: Columns with another title in the file: (ours, the file's). Unknown columns are ignored then.
    columns: tuple[tuple[str, str], ...] = ()
    #: Accelerators that stand for one GPU in formats with parts of GPUs; 1: a part counts as a whole one.
    slices: int = 1

    @property
    def is_part(self) -> bool:
        """Whether a part of the trace was requested."""
        return bool(self.since or self.until or self.sample is not None or self.first is not None)


def parse_columns(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Returns `gang=num_gpus` as pairs. Raises ConfigError for a text that maps no column, and for one mapped twice."""
    pairs: list[tuple[str, str]] = []
    for text in texts:
        ours, _, theirs = (part.strip() for part in text.partition("="))
        if not (ours and theirs):
            raise ConfigError(f"{text[:60]!r} maps no column", field="columns", fix="write columns.gang=num_gpus")
        if any(ours == other or theirs == known for other, known in pairs):
            raise ConfigError(f"{text[:60]!r}: a column is mapped twice", field="columns", fix="map each once")
        pairs.append((ours, theirs))
    return tuple(pairs)


@dataclass(slots=True)
class TraceClock:
    """How a file states instants: seconds since its trace began, or dates. None before the first instant."""

    is_dated: bool | None = None


@dataclass(slots=True, eq=False)
class TraceRow:
    """One row of a file: cells by the name of their column."""

    _cells: Sequence[str]
    _columns: Mapping[str, int]
    _path: str
    line: int
    _clock: TraceClock

    def text(self, column: str) -> str:
        """Returns the cell without surrounding blanks; "" where the file has no such column."""
        position = self._columns.get(column, -1)
        return self._cells[position].strip() if position >= 0 else ""

    def name(self, column: str, default: str | None = None) -> str:
        """Returns a name that a terminal can show. Without a default the cell must not be empty."""
        text = self.text(column)
        if not text:
            if default is None:
                raise self.error(column, "is empty", "give a name")
            return default
        if len(text) > _MAX_NAME:
            raise self.error(column, f"has {len(text)} characters", f"give at most {_MAX_NAME}")
        if not (text.isascii() and text.isprintable()):
            try:
                shown_name(text)
            except ValueError as problem:
                raise self.error(column, str(problem), "remove them") from None
        return intern(text)

    def number(
        self,
        column: str,
        *,
        least: float = -inf,
        above: float = -inf,
        most: float = _MAX_NUMBER,
        default: float | None = None,
    ) -> float:
        """Returns a finite number, `>= least`, `> above`, its size at most `most`; the default for an empty cell."""
        text = self.text(column)
        if not text and default is not None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = inf
        if value < least or value <= above or not -most <= value <= most or "_" in text:
            bound = f" above {above:g}" if isfinite(above) else f" not below {least:g}" if isfinite(least) else ""
            raise self.error(column, f"is {_quote_cell(text)}", f"give a number{bound}")
        return value

    def instant(self, column: str, *, least: float = -inf, above: float = -inf, default: float | None = None) -> float:
        """Returns an instant in seconds: since the trace began, or since 1970 where the file has dates.

        A date without a time zone is in UTC. A file has one or the other: `read_trace` lets the clock of a trace with
        dates begin at its first arrival.
        """
        text = self.text(column)
        if not text and default is not None:
            return default
        is_dated = _DATE.match(text) is not None
        if self._clock.is_dated is None:
            self._clock.is_dated = is_dated
        elif self._clock.is_dated != is_dated:
            raise self.error(column, f"is {_quote_cell(text)}", "give all instants in seconds, or all as dates")
        if not is_dated:
            return self.number(column, least=least, above=above)
        try:
            value = epoch_seconds(text)
        except ValueError:
            raise self.error(column, f"is {_quote_cell(text)}", "write a date such as 2026-11-05T18:00:00Z") from None
        if value < least or value <= above:
            raise self.error(column, f"is {_quote_cell(text)}, before the instant that it follows", "mend the row")
        return value

    def whole(self, column: str, *, least: int = 1, most: int = 10**15, default: int | None = None) -> int:
        """Returns a whole number in digits (`3`; `3.0` too, which some tools write)."""
        text = self.text(column)
        if not text and default is not None:
            return default
        digits = text.removesuffix(".0")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 16 and least <= int(digits) <= most):
            raise self.error(
                column, f"is {_quote_cell(text)}", f"give a whole number from {least} to {most}, or leave the row out"
            )
        return int(digits)

    def one_of(self, column: str, words: Collection[str]) -> str:
        """Returns the cell, which must be one of these words."""
        word = self.text(column)
        if word not in words:
            raise self.error(column, f"is {word[:40]!r}", f"write one of {', '.join(words)}")
        return intern(word)

    def gang(self, column: str) -> int:
        """Accelerators of a gang: at least 1."""
        return self.whole(column, most=MAX_GANG)

    def types(self, column: str) -> tuple[str, ...]:
        """Returns the accelerator types, separated by `|` in the cell."""
        text = self.text(column)
        return tuple(self.accelerator(part, column) for part in text.split("|")) if text else ()

    def accelerator(self, text: str, column: str) -> str:
        """Returns the canonical name of a type."""
        try:
            return intern(canonical_accelerator(text))
        except ValueError as problem:
            problem_text, _, fix = str(problem).partition("; ")
            raise self.error(column, problem_text, fix) from None

    def error(self, column: str, problem: str, fix: str) -> ConfigError:
        """Returns the error about a cell, for the caller to raise."""
        return ConfigError(f"{self._path}:{self.line}: {column} {problem}", field=column, fix=fix)


def epoch_seconds(text: str) -> float:
    """Returns the seconds since 1970 of an ISO 8601 date, in UTC without a time zone. Raises ValueError."""
    found = datetime.fromisoformat(text)
    try:
        return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
    except OverflowError:
        raise ValueError(text) from None


@dataclass(frozen=True, slots=True)
class RowFormat:
    """How lines of a format are split into cells."""

    columns: Mapping[str, int]
    cut: Callable[[str], Sequence[str]]
    #: Fewer or more cells than this are a mistake.
    width: int


class TraceSource:
    """A trace file that is being read."""

    def __init__(self, path: str | Path, reading: ReadOptions) -> None:
        self.path = str(path)
        self.reading = reading
        self.clock = TraceClock()
        self._skipped = 0
        self._first: list[str] = []

    @property
    def skipped(self) -> SkippedRows:
        """Rows that were left out so far."""
        return SkippedRows(self._skipped, tuple(self._first))

    def lines(self) -> Generator[tuple[int, str], None, None]:
        """Yields numbered lines without their ends. The file is open until the last one, or until `close`.

        Raises ConfigError for a file that exceeds the bounds.
        """
        left = MAX_CHARACTERS
        with open_text(self.path) as file:
            number = 0
            while True:
                with complete_file(f"{self.path}: broken off after line {number}"):
                    line = file.readline(MAX_LINE + 1)
                if not line:
                    return
                number += 1
                left -= len(line)
                if len(line) > MAX_LINE:
                    raise ConfigError(f"{self.path}:{number}: more than {MAX_LINE} characters", fix="is it a trace?")
                if left < 0:
                    raise ConfigError(f"{self.path}: more than {MAX_CHARACTERS:,} characters", fix="cut it into parts")
                yield number, line.rstrip("\r\n")

    def jobs(
        self, lines: Iterator[tuple[int, str]], table: RowFormat, parse: Callable[[TraceRow], TraceJob | None]
    ) -> Iterator[TraceJob]:
        """Yields the jobs of the lines; a row that cannot be read is an error, or left out on request.

        `parse` returns None for a row that belongs to another trace in the same file.
        """
        seen: set[str] = set()
        arrived_at = -inf
        for number, line in lines:
            try:
                job = parse(self._row(number, line, table))
                if job is None:
                    continue
                self._fits(job, seen, arrived_at)
            except ConfigError as error:
                self._refuse(error)
                continue
            seen.add(job.name)
            arrived_at = job.at
            if len(seen) > MAX_JOBS:
                raise ConfigError(f"{self.path}: more than {MAX_JOBS:,} jobs", fix="cut it into parts")
            yield job

    def rows(self, lines: Iterator[tuple[int, str]], table: RowFormat) -> Iterator[TraceRow]:
        """Yields the rows of a file that does not hold jobs."""
        for number, line in lines:
            yield self._row(number, line, table)

    def _row(self, number: int, line: str, table: RowFormat) -> TraceRow:
        if not line.strip():
            raise ConfigError(f"{self.path}:{number}: an empty line", fix="remove it")
        try:
            cells = table.cut(line)
        except (csv.Error, ValueError) as error:
            raise ConfigError(f"{self.path}:{number}: {error}", fix="correct the row") from None
        if len(cells) != table.width:
            raise ConfigError(
                f"{self.path}:{number}: {len(cells)} columns, {table.width} expected", fix="correct the row"
            )
        return TraceRow(cells, table.columns, self.path, number, self.clock)

    def _fits(self, job: TraceJob, seen: set[str], arrived_at: float) -> None:
        where = f"{self.path}:{job.line}"
        if job.name in seen:
            raise ConfigError(
                f"{where}: a second job {job.name!r}", field="name", fix="give each job a name of its own"
            )
        if job.at < arrived_at and not self.reading.sort:
            raise ConfigError(
                f"{where}: arrives at {job.at:g} s, before the row above it ({arrived_at:g} s)",
                field="arrival",
                fix="sort the file by arrival, or ask for that: --set sort=true",
            )

    def _refuse(self, error: ConfigError) -> None:
        if not self.reading.skip_bad_rows:
            raise error
        self._skipped += 1
        if len(self._first) < _FIRST_FEW:
            self._first.append(str(error))


def header_row_format(source: TraceSource, lines: Iterator[tuple[int, str]], required: Sequence[str]) -> RowFormat:
    """Reads the next line as a CSV header. Raises ConfigError for a missing or duplicate column."""
    number, line = next(lines, (0, ""))
    if not line.strip():
        raise ConfigError(f"{source.path}: no header; the file is empty or begins with an empty line", fix="correct it")
    try:
        titles = [title.strip() for title in split_csv(line)]
    except csv.Error as error:
        raise ConfigError(f"{source.path}:{number}: {error}", fix="correct the header") from None
    titles = _our_titles(source, titles, number)
    doubled = next((title for title in titles if titles.count(title) > 1), None)
    if doubled is not None:
        raise ConfigError(f"{source.path}:{number}: two columns {doubled!r}", field=doubled, fix="remove one")
    missing = [title for title in required if title not in titles]
    if missing:
        raise ConfigError(
            f"{source.path}:{number}: no column {', '.join(missing)}; there are {', '.join(titles)}"[:1000],
            field=missing[0],
            fix="add it, or name the format: --from",
        )
    return RowFormat({title: position for position, title in enumerate(titles)}, split_csv, len(titles))


def _our_titles(source: TraceSource, titles: list[str], line: int) -> list[str]:
    """Returns the titles with our names for the mapped columns; a column that a mapping replaces is dropped."""
    mapped = {theirs: ours for ours, theirs in source.reading.columns}
    for theirs in mapped:
        if theirs not in titles:
            there = f"{source.path}:{line}: no column {theirs[:60]!r}; there are {', '.join(titles)}"[:1000]
            raise ConfigError(there, field="columns", fix="name a column of the file: columns.OURS=THEIRS")
    replaced = set(mapped.values()) - set(mapped)
    return [mapped.get(title, f"({title})" if title in replaced else title) for title in titles]


def named_row_format(names: Sequence[str], cut: Callable[[str], Sequence[str]]) -> RowFormat:
    """Returns the row format of a file without a header."""
    return RowFormat({name: position for position, name in enumerate(names)}, cut, len(names))


def split_csv(line: str) -> list[str]:
    """Returns the cells of one line of CSV. A record is one line: no cell may contain a line break."""
    return next(csv.reader([line], strict=True), []) if '"' in line else line.split(",")


def split_tabs(line: str) -> list[str]:
    """Returns the cells between tabs."""
    return line.split("\t")


def open_text(path: str | Path) -> TextIO:
    """Opens a file as text, unpacked if it is gzip. Raises ConfigError where that fails."""
    with system_refusals(path, fix="check the path"):
        with Path(path).open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        if packed:
            return gzip.open(path, "rt", encoding="utf-8-sig", errors="replace")
        return Path(path).open(encoding="utf-8-sig", errors="replace")


@contextmanager
def complete_file(broken: str) -> Iterator[None]:
    """Raises ConfigError, with this text, where a file of `open_text` that is read inside is truncated."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{broken}: {error}", fix="fetch the file again") from None


def _quote_cell(text: str) -> str:
    return repr(text if len(text) <= _LONGEST_QUOTE else text[:_LONGEST_QUOTE] + "…")


@lru_cache(maxsize=4096)
def batch_in_kind(kind: str) -> int | None:
    """Returns the batch size in a name such as `LM (batch size 10)`; None without one."""
    found = _BATCH_IN_NAME.search(kind)
    return int(found[1]) if found else None


# ------------------------------------------------------------------------------------------ what `--set` may say


class GeneratedSettings(FileModel):
    """How jobs are generated."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    gangs: bool | None = None
    """Generated: multi-accelerator jobs, or single-accelerator jobs only; default: as the generator has it."""
    priorities: bool = False
    """Generated: give one job in five weight 5."""
    slos: bool = False
    """Generated: give jobs deadlines of 1.2, 2 or 10 times their run time."""
    stretch: Annotated[float, Field(gt=0)] = 1.0
    """Generated: multiply run times by this factor."""


class GeneratorSettings(GeneratedSettings):
    """What `walras simulate workload generate` takes."""

    speeds: str | None = None
    """Throughput table in Gavel's format, or speed laws (YAML)."""


class ReadSettings(FileModel):
    """How a trace is read, and which part of it counts."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    format: str | None = None
    """Read: format of the file; default: from its ending and first line."""
    skip_bad_rows: bool = False
    """Read: skip bad rows, rows without a length, and jobs that no machine could hold; they are counted."""
    sort: bool = False
    """Read: sort the jobs by arrival time first."""
    only: str = ""
    """Read: of a file with several traces, the one with this value in column `cluster`."""
    since: str = ""
    """Read: only jobs that arrive from here on, a length into the trace (2d) or a date."""
    until: str = ""
    """Read: only jobs that arrive before, a length into the trace (5d) or a date."""
    sample: float | None = None
    """Read: only this part of the jobs (0.1), drawn the same every time."""
    first: int | None = None
    """Read: use only the first jobs, this many."""
    columns: Annotated[dict[str, str], Field(default_factory=dict)]
    """Read: what the file calls a column, as columns.gang=num_gpus. Unknown columns are ignored then."""
    slices: int = 1
    """Read: accelerators per GPU (7 for MIG) in formats with fractions of a GPU; a fraction counts as some of them."""

    other_words: ClassVar[dict[str, str]] = {"column": "columns", "from": "format"}

    def reading(self) -> ReadOptions:
        """Returns how the trace is read. Raises ConfigError for a column that is mapped twice."""
        said = {each.name: getattr(self, each.name) for each in fields(ReadOptions) if each.name != "columns"}
        return ReadOptions(**said, columns=parse_columns([f"{ours}={name}" for ours, name in self.columns.items()]))


class ConvertSettings(ReadSettings):
    """What `walras simulate workload convert` takes."""

    seeded_speeds: str | None = None
    """Draw random speeds for the accelerator types of this cluster."""
    kinds: Annotated[int, Field(ge=1, le=10_000)] = 26
    """With seeded_speeds: number of kinds to assign jobs to."""
    seed: int = 0
    """With seeded_speeds: seed of the draws."""


class DescribeSettings(ReadSettings):
    """What `walras simulate workload describe` takes."""

    speeds: str | None = None
    """Throughput table in Gavel's format, or speed laws (YAML)."""
