"""Reading a trace file from an untrusted author: bounds, cells, bad rows, and what must hold between rows.

The bounds are on size, length of a line and number of jobs; no name may occur twice, and arrivals are in order. What
the columns mean is each format's matter.
"""

import csv
import gzip
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from math import inf, isfinite
from pathlib import Path
from sys import intern
from typing import TextIO

from simulator.workloads.trace import SkippedRows, TraceJob
from walras.errors import ConfigError
from walras.spec.field_types import canonical_accelerator, shown_name

MAX_LINE = 64 * 1024
#: Of text, after decompression: a small file that unpacks to more is refused on the way.
MAX_CHARACTERS = 2**31
MAX_JOBS = 5_000_000
MAX_GANG = 65_536
_MAX_NAME = 200
_FIRST_FEW = 5
_BATCH_IN_NAME = re.compile(r"\(batch size (\d{1,9})\)$")
_LONGEST_QUOTE = 40
#: A million years: larger instants would lose the seconds.
_MAX_NUMBER = 1e15


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read a file; the defaults accept it only as it is."""

    #: Leave out rows that cannot be read; they are counted, and the first few are reported.
    skip_bad_rows: bool = False
    #: Put the rows in order of arrival first.
    sort: bool = False
    #: Of a file that holds several traces: the one with this word in its column `cluster`.
    only: str = ""


class TraceRow:
    """One record: cells by the name of their column."""

    __slots__ = ("_cells", "_columns", "_where", "line")

    def __init__(self, cells: Sequence[str], columns: Mapping[str, int], path: str, line: int) -> None:
        self._cells = cells
        self._columns = columns
        self._where = path
        self.line = line

    def text(self, column: str) -> str:
        """The cell without surrounding blanks; "" where the file has no such column."""
        position = self._columns.get(column, -1)
        return self._cells[position].strip() if position >= 0 else ""

    def name(self, column: str, default: str | None = None) -> str:
        """A name that a terminal can show. Without a default it has to be there."""
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
        """A finite number, `>= least`, `> above`, its size at most `most`. An empty cell is the default, if any."""
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

    def whole(self, column: str, *, least: int = 1, most: int = 10**15, default: int | None = None) -> int:
        """A whole number in digits (`3`; `3.0` too, which some tools write)."""
        text = self.text(column)
        if not text and default is not None:
            return default
        digits = text.removesuffix(".0")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 16 and least <= int(digits) <= most):
            raise self.error(
                column, f"is {_quote_cell(text)}", f"give a whole number from {least} to {most}, or leave the row out"
            )
        return int(digits)

    def gang(self, column: str) -> int:
        """Accelerators of a gang: at least 1."""
        return self.whole(column, most=MAX_GANG)

    def types(self, column: str) -> tuple[str, ...]:
        """Accelerator types, separated by `|`."""
        text = self.text(column)
        return tuple(self.accelerator(part, column) for part in text.split("|")) if text else ()

    def accelerator(self, text: str, column: str) -> str:
        """The canonical name of a type."""
        try:
            return intern(canonical_accelerator(text))
        except ValueError as problem:
            problem_text, _, fix = str(problem).partition("; ")
            raise self.error(column, problem_text, fix) from None

    def error(self, column: str, problem: str, fix: str) -> ConfigError:
        """Returns the error about a cell, for the caller to raise."""
        return ConfigError(f"{self._where}:{self.line}: {column} {problem}", field=column, fix=fix)


@dataclass(frozen=True, slots=True)
class RowFormat:
    """How the lines of a format become rows."""

    columns: Mapping[str, int]
    cut: Callable[[str], Sequence[str]]
    #: Fewer or more cells than this are a mistake.
    width: int


class TraceSource:
    """A trace file that is being read."""

    def __init__(self, path: str | Path, reading: ReadOptions) -> None:
        self.path = str(path)
        self.reading = reading
        self._skipped = 0
        self._first: list[str] = []

    @property
    def skipped(self) -> SkippedRows:
        """What was left out so far."""
        return SkippedRows(self._skipped, tuple(self._first))

    def lines(self) -> Iterator[tuple[int, str]]:
        """Numbered lines without their ends. Raises ConfigError for a file that is no text within the bounds."""
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
            raise ConfigError(f"{self.path}:{number}: {error}", fix="mend the row") from None
        if len(cells) != table.width:
            raise ConfigError(f"{self.path}:{number}: {len(cells)} columns, {table.width} expected", fix="mend the row")
        return TraceRow(cells, table.columns, self.path, number)

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
                fix="sort the file by arrival, or ask for that: --sort",
            )

    def _refuse(self, error: ConfigError) -> None:
        if not self.reading.skip_bad_rows:
            raise error
        self._skipped += 1
        if len(self._first) < _FIRST_FEW:
            self._first.append(str(error))


def header_row_format(source: TraceSource, lines: Iterator[tuple[int, str]], required: Sequence[str]) -> RowFormat:
    """The table that a CSV header, the next line, announces. Raises ConfigError for a missing or doubled column."""
    number, line = next(lines, (0, ""))
    if not line.strip():
        raise ConfigError(f"{source.path}: no header; the file is empty or begins with an empty line", fix="mend it")
    try:
        titles = [title.strip() for title in split_csv(line)]
    except csv.Error as error:
        raise ConfigError(f"{source.path}:{number}: {error}", fix="mend the header") from None
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


def named_row_format(names: Sequence[str], cut: Callable[[str], Sequence[str]]) -> RowFormat:
    """A table of a format without a header."""
    return RowFormat({name: position for position, name in enumerate(names)}, cut, len(names))


def split_csv(line: str) -> list[str]:
    """Cells of one line of CSV. A record is one line: no column may hold a line break."""
    return next(csv.reader([line], strict=True), []) if '"' in line else line.split(",")


def split_tabs(line: str) -> list[str]:
    """Cells between tabs."""
    return line.split("\t")


def open_text(path: str | Path) -> TextIO:
    """The file as text, unpacked if it is gzip. Raises ConfigError where it cannot be opened."""
    try:
        with Path(path).open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        if packed:
            return gzip.open(path, "rt", encoding="utf-8-sig", errors="replace")
        return Path(path).open(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", fix="check the path") from None


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
    """The batch size in a name such as `LM (batch size 10)`."""
    found = _BATCH_IN_NAME.search(kind)
    return int(found[1]) if found else None
