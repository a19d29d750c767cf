"""What the commands print: tables for people, JSON for programs, and nothing that a job could use against a terminal.

Names, reasons and logs come from jobs. Escape sequences and control characters in them are removed here, on the way to
the terminal; JSON escapes them by itself.
"""

import codecs
import contextlib
import functools
import os
import re
import signal
import sys
import textwrap
import threading
import time
import unicodedata
from asyncio import sleep as pause
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import FrameType
from typing import Any, Literal, ParamSpec

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from walras.errors import UserError
from walras.output.json_output import stream_json

_P = ParamSpec("_P")


class OutputFormat(StrEnum):
    TABLE = "table"
    JSON = "json"


#: CSI (colours, cursor), OSC and its kin (titles, links, clipboard) with their terminator, two-character escapes.
_ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-Z\\^-~]"
)
_BEGINS_ESCAPE = re.compile(r"[\x1b\x9b\x9d\x90\x98\x9e\x9f]")
#: Characters after which an unfinished escape sequence is no longer waited for.
_LONGEST_ESCAPE = 256
#: Width of a table that goes into a pipe, so that its rows are not cut.
_PIPE_WIDTH = 10_000
#: Blanks between two columns.
_COLUMN_GAP = 2


def safe_text(text: str, *, lines: bool = False) -> str:
    """Returns the text without escape sequences; other control and formatting characters become `\\ufffd`.

    `lines`: keep line breaks and tabs, as in a log; a lone carriage return becomes a line break.
    """
    text = _ESCAPE.sub("", text)
    if text.isascii() and text.isprintable():
        return text
    if lines:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    kept = "\n\t" if lines else ""
    return "".join(
        character if character in kept or _is_plain(character) else " " if character in "\n\t\r" else "\ufffd"
        for character in text
    )


def _is_plain(character: str) -> bool:
    category = unicodedata.category(character)
    return category[0] != "C" and category not in ("Zl", "Zp")


#: Seconds between two lines of `say_code_travels`.
_PROGRESS_EVERY_S = 3.0
#: Characters of a line for whose end `LogText` waits.
_LONGEST_LINE = 64 * 1024


class LogText:
    """Decodes a log for a terminal piece by piece; pieces may end inside a character or an escape sequence.

    `as_shown`: of a line that a program wrote over again and again (a progress bar) only what a terminal shows in the
    end. Without it each state is a line.
    """

    def __init__(self, *, as_shown: bool = False) -> None:
        self._as_shown = as_shown
        #: With `as_shown`: the last state of the line that has not ended yet.
        self._line = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._pending = ""

    def feed(self, piece: bytes, *, final: bool = False) -> str:
        """Returns the text that is certain so far. Bytes that are not UTF-8 become `\\ufffd`."""
        text = self._pending + self._decoder.decode(piece, final)
        cut = len(text) if final else self._certain(text)
        self._pending = text[cut:]
        certain = text[:cut]
        return safe_text(self._collapsed(certain, final) if self._as_shown else certain, lines=True)

    def _collapsed(self, text: str, final: bool) -> str:
        """Returns the lines that have ended, each in its last state, and keeps the one that has not."""
        whole = self._line + text.replace("\r\n", "\n")
        ended, mark, self._line = whole.rpartition("\n")
        if final or len(self._line) > _LONGEST_LINE:
            ended, mark, self._line = whole, "", ""
        self._line = self._last_state(self._line)
        return "\n".join(map(self._last_state, ended.split("\n"))) + mark

    @staticmethod
    def _last_state(line: str) -> str:
        """Returns what stands last of a line, whose end may come later."""
        states = line.split("\r")
        return next((state for state in reversed(states) if state), "")

    @staticmethod
    def _certain(text: str) -> int:
        """Returns the length of the part that later pieces cannot change."""
        begins = [found.start() for found in _BEGINS_ESCAPE.finditer(text, max(0, len(text) - _LONGEST_ESCAPE))]
        for begin in begins:
            ended = _ESCAPE.match(text, begin)
            if ended is None:
                return begin
        return len(text) - 1 if text.endswith("\r") else len(text)


# ------------------------------------------------------------------------------------------------------- tables


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. `right`: aligned right; `shrinks`: may be cut to `least` characters in a narrow terminal.

    `spare`: left out if the terminal is still too narrow, the highest first; 0: never. `below`: not left out then, but
    written whole on lines of its own below each row.
    """

    title: str
    right: bool = False
    shrinks: bool = False
    least: int = 8
    spare: int = 0
    #: Whether cells are cut in the middle: names of a sweep differ at their ends.
    keeps_ends: bool = False
    #: Whether cells go on in the next line instead of being cut.
    wraps: bool = False
    below: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """Rows for people, with the same content as data for programs."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    data: Any
    #: Style by cell text, such as a job's state.
    styles: dict[str, str] = field(default_factory=dict)
    #: A line above the table; empty: none.
    title: str = ""


_COLUMN = re.compile(
    r"(?P<title>.*?)(?P<right>>)?(?P<shrinks>~(?P<least>\d*)(?P<ends>~)?(?P<wraps>\+)?)?(?:\?(?P<spare>\d)(?P<below>/)?)?"
)


@functools.cache
def columns_of(text: str) -> tuple[Column, ...]:
    """Returns the columns of `JOB> | NAME~12~ | USER~?1`, each with marks behind its title in this order.

    `>`: aligned right. `~`: shrinks, to the number of characters behind it; `~~`: keeps the ends of its cells; `~+`:
    wraps them. `?`: its rank as a spare column; with `/` behind it the column goes below its rows.
    """
    found = []
    for part in text.split("|"):
        read = _COLUMN.fullmatch(part.strip())
        assert read is not None, part
        marks = read.groupdict()
        found.append(
            Column(
                marks["title"], bool(marks["right"]), bool(marks["shrinks"]), int(marks["least"] or 8),
                int(marks["spare"] or 0), bool(marks["ends"]), bool(marks["wraps"]), bool(marks["below"]),
            )
        )  # fmt: skip
    return tuple(found)


STATE_STYLES = {
    "RUNNING": "blue",
    "STARTING": "cyan",
    "PENDING": "yellow",
    "HELD": "magenta",
    "PREEMPTING": "yellow",
    "UNREACHABLE": "red",
    "CANCELLING": "yellow",
    "SUCCEEDED": "green",
    "FAILED": "red",
    "CANCELLED": "bright_black",
    "TIMEOUT": "red",
    "up": "green",
    "lost": "red",
    "unreachable": "red",
    "quarantined": "magenta",
    "leaving": "yellow",
    "draining": "yellow",
    "drained": "yellow",
}


def standard_console() -> Console:
    """Returns a console on standard output: as wide as the terminal, unbounded into a pipe."""
    return Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)


def show_listing(listing: Listing, output: OutputFormat, *, header: bool = True) -> None:
    """Prints the listing as a table or as JSON."""
    if output is OutputFormat.JSON:
        show_json(listing.data)
    else:
        page = standard_console()
        page.print(render_table(listing, page.width, header=header))


def show_columns(
    titles: str,
    rows: Sequence[Sequence[str]],
    data: Any = None,
    output: OutputFormat = OutputFormat.TABLE,
    *,
    header: bool = True,
) -> None:
    """Prints rows under columns as `columns_of` reads them, or the data as JSON."""
    show_listing(Listing(columns_of(titles), rows, data), output, header=header)


def show_items(
    titles: str, items: Sequence[Any], row: Callable[[Any], Sequence[str]], output: OutputFormat, *, header: bool
) -> None:
    """Prints items of the server, one a row, or all of them as JSON."""
    show_columns(titles, [row(each) for each in items], [each.model_dump(mode="json") for each in items], output,
                 header=header)  # fmt: skip


def show_as_json(item: Any, output: OutputFormat) -> bool:
    """Prints an item of the server where JSON is asked for; returns whether it is."""
    if output is OutputFormat.JSON:
        show_json(item.model_dump(mode="json"))
    return output is OutputFormat.JSON


@dataclass(frozen=True, slots=True)
class _LinesBelow:
    """A table of one-line rows, and below each of them what its columns had no room for; its words are wrapped."""

    table: Table
    below: Sequence[Text]
    indent: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self.table, options, new_lines=True)
        before = len(lines) - len(self.below)
        for at, line in enumerate(lines):
            yield from line
            if at >= before and (told := self.below[at - before]):
                yield Padding(told, (0, 0, 0, self.indent))


def render_table(listing: Listing, width: int, *, header: bool = True) -> Table | _LinesBelow:
    """Returns the table, every cell made safe; cells are never read as markup.

    In a narrow terminal text columns are cut or wrapped and spare columns left out or put below the rows; numbers are
    never cut: where there is no room for them beside each other, each row is a block of lines.
    """
    rows = [[Text(safe_text(cell), style=listing.styles.get(cell, "")) for cell in row] for row in listing.rows]
    titles = [cell_len(column.title) if header else 0 for column in listing.columns]
    longest = [max(title, *(row[at].cell_len for row in rows)) if rows else title for at, title in enumerate(titles)]
    least = [
        min(full, max(title, column.least)) if column.shrinks else full
        for column, title, full in zip(listing.columns, titles, longest, strict=True)
    ]
    shown = _columns_that_fit(listing.columns, least, width)
    fits = sum(least[at] + _COLUMN_GAP for at in shown) - _COLUMN_GAP <= width
    table = Table(
        box=None, pad_edge=False, show_header=header and fits, header_style="bold", title_justify="left"
    )  # fmt: skip
    table.title = Text(safe_text(listing.title)) if listing.title else None
    if not fits:
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for row in rows:
            for at in range(len(row)):
                table.add_row(listing.columns[at].title, row[at], end_section=at == len(row) - 1)
        return table
    widths = _column_widths(shown, least, longest, width)
    for at, taken in widths.items():
        column = listing.columns[at]
        justify: Literal["left", "right"] = "right" if column.right else "left"
        overflow: Literal["fold", "ellipsis"] = "fold" if column.wraps else "ellipsis"
        table.add_column(column.title, justify=justify, no_wrap=not column.wraps, overflow=overflow, width=taken)
        if column.keeps_ends and taken < longest[at]:
            for row in rows:
                row[at] = cut_in_the_middle(row[at], taken)
    for row in rows:
        table.add_row(*(row[at] for at in shown))
    below = [at for at, column in enumerate(listing.columns) if column.below and at not in shown]
    if not below:
        return table
    told = [Text("; ").join(row[at] for at in below if row[at].plain not in ("", "-")) for row in rows]
    return _LinesBelow(table, told, widths[shown[0]] + _COLUMN_GAP)


def cut_in_the_middle(cell: Text, width: int) -> Text:
    """Returns the cell with an ellipsis in its middle and its end whole, if it is wider than that."""
    if cell.cell_len <= width:
        return cell
    end = cell.plain[-(width // 2) :]
    while cell_len(end) > width // 2:
        end = end[1:]
    begin = cell.plain[: width - 1 - cell_len(end)]
    while cell_len(begin) + 1 + cell_len(end) > width:
        begin = begin[:-1]
    return Text(f"{begin}…{end}", style=cell.style)


def _columns_that_fit(columns: Sequence[Column], least: Sequence[int], width: int) -> list[int]:
    shown = list(range(len(columns)))
    spare = sorted((at for at in shown if columns[at].spare), key=lambda at: columns[at].spare)
    while spare and sum(least[at] + _COLUMN_GAP for at in shown) - _COLUMN_GAP > width:
        shown.remove(spare.pop())
    return shown


def _column_widths(shown: Sequence[int], least: Sequence[int], longest: Sequence[int], width: int) -> dict[int, int]:
    """Returns the width of each column: the room above the least widths is split equally among those that want more."""
    widths = {at: least[at] for at in shown}
    left = max(0, width - sum(widths.values()) - _COLUMN_GAP * (len(shown) - 1))
    wanting = sorted((at for at in shown if longest[at] > least[at]), key=lambda at: longest[at] - least[at])
    for number, at in enumerate(wanting):
        more = min(longest[at] - least[at], left // (len(wanting) - number))
        widths[at] += more
        left -= more
    return widths


def show_json(data: Any) -> None:
    """Prints indented JSON on standard output, in ASCII; iterators are written item by item."""
    stream_json(data, sys.stdout)


def show_line(text: str) -> None:
    """Prints one line on standard output, made safe."""
    sys.stdout.write(safe_text(text) + "\n")


def show_sentence(text: str) -> None:
    """Prints a line as `show_line` does; in a terminal its words are wrapped, two blanks further in than it begins."""
    width, inside = standard_console().width, " " * (len(text) - len(text.lstrip()) + 2)
    lines = textwrap.wrap(text, width, subsequent_indent=inside, break_long_words=False, break_on_hyphens=False)
    for line in lines:
        show_line(line)


def say_code_travels() -> Callable[[int, int], None]:
    """Returns what says on standard error how many pieces were sent, every few seconds, if it takes as long."""
    said_at = time.monotonic()

    def told(done: int, of: int) -> None:
        nonlocal said_at
        if time.monotonic() - said_at >= _PROGRESS_EVERY_S:
            said_at = time.monotonic()
            warn(f"the code travels: {done:,} of {of:,} pieces")

    return told


def warn(text: str, *hints: str) -> None:
    """Prints a message on standard error, made safe, with its hints indented below it."""
    for line in (*text.splitlines(), *(f"  {hint}" for hint in hints)):
        sys.stderr.write(safe_text(line) + "\n")


@contextlib.contextmanager
def exit_at_interrupt() -> Iterator[None]:
    """While a command computes in this process, Ctrl-C ends it at once, with one line and exit code 130.

    Compiled code (numba) turns a KeyboardInterrupt that is raised inside it into a SystemError with a traceback, so
    nothing is raised. Nothing has to be put in order either: a run that is killed leaves no half of a result behind.
    """
    with _interrupts_go_to(_exit_now):
        yield


@contextlib.contextmanager
def raise_at_interrupt() -> Iterator[None]:
    """Within `exit_at_interrupt`, makes Ctrl-C raise KeyboardInterrupt again, for code that has to clean up."""
    with _interrupts_go_to(signal.default_int_handler):
        yield


@contextlib.contextmanager
def _interrupts_go_to(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Sets the handler of Ctrl-C for the block. It does nothing in other threads, which may set no handler, or where
    this process was started to ignore Ctrl-C (a shell's `&`).
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def ends_at_interrupt(command: Callable[_P, None]) -> Callable[_P, None]:
    """Returns a command that computes in this process, under `exit_at_interrupt`; not one whose `jobs` run in workers.

    Those hear the terminal's Ctrl-C themselves, and their results are gathered by code that may be interrupted.
    """

    @functools.wraps(command)
    def guarded(*args: _P.args, **options: _P.kwargs) -> None:
        if options.get("jobs", 1) != 1:
            command(*args, **options)
            return
        with exit_at_interrupt():
            command(*args, **options)

    return guarded


#: Erases the line in which progress is drawn, and shows the cursor that was hidden meanwhile.
_AFTER_PROGRESS = b"\r\x1b[2K\x1b[?25h"


def say_interrupted(stream: int = 2) -> None:
    """Writes the line that an interrupted command ends with, over the echo of Ctrl-C and over a line of progress."""
    os.write(stream, (_AFTER_PROGRESS if os.isatty(stream) else b"\n") + b"walras: interrupted\n")


def _exit_now(number: int, frame: FrameType | None) -> None:
    """Ends the process; what its other threads still write, such as a line of progress, goes nowhere."""
    told, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    say_interrupted(told)
    os._exit(128 + number)


def exit_with(code: int) -> None:
    """Ends the command with an exit code; returns for 0."""
    if code:
        raise typer.Exit(code)


def dash(value: object) -> str:
    """Returns the cell of an optional value: `-` for None or an empty text."""
    return "-" if value is None or value == "" else str(value)


def joined(values: Iterable[object]) -> str:
    return ",".join(str(value) for value in values) or "-"


_WATCH_S = 2.0


async def watch_listing(look: Callable[[], Awaitable[Listing]], output: OutputFormat, *, header: bool) -> None:
    """Show a listing on the terminal, made anew every two seconds, until the command is interrupted.

    Raises UserError for an output that is no table.
    """
    if output is not OutputFormat.TABLE:
        raise UserError("--watch shows a table", field="--watch", fix="leave -o json out")
    from rich.live import Live

    with Live(console=standard_console(), auto_refresh=False) as live:
        while True:
            live.update(render_table(await look(), live.console.width, header=header), refresh=True)
            await pause(_WATCH_S)
