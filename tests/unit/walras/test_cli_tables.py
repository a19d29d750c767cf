"""Tables in narrow terminals: what is shown is whole, or visibly cut where only words are."""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from walras.cli.main import quiet_broken_pipe
from walras.cli.terminal_output import Column, Listing, columns_of, render_table
from walras.output.json_output import json_pieces, stream_json

COLUMNS = columns_of("JOB> | NAME~ | USER~?1 | REASON~12 | TRIES>?2 | AGE>")
ROW = ("123456", "a-name-of-some-length", "someone", "WAIT:CAPACITY needs 8, 2 free", "12", "10m37s")


def lines(width: int, columns: tuple[Column, ...] = COLUMNS) -> list[str]:
    """The table as a terminal of this width shows it."""
    shown = io.StringIO()
    console = Console(file=shown, width=width, color_system=None)
    console.print(render_table(Listing(columns, [ROW[: len(columns)]], None), width))
    return shown.getvalue().splitlines()


def test_columns_are_read_from_their_titles_and_marks() -> None:
    assert columns_of(" | NAME~12~ | USD/H>?3 | %>") == (
        Column(""), Column("NAME", shrinks=True, least=12, keeps_ends=True), Column("USD/H", right=True, spare=3),
        Column("%", right=True),
    )  # fmt: skip


def test_with_room_enough_nothing_is_cut() -> None:
    """Cells stand whole, under their titles."""
    title, row = lines(200)
    assert [cell.strip() for cell in re.split(r" {2,}", row)] == list(ROW)
    assert title.split() == [column.title for column in COLUMNS]


@pytest.mark.parametrize("width", [16, 24, 30, 40, 80])
def test_what_wraps_is_never_cut(width: int) -> None:
    """Each character of each cell is there, whatever the width; without room beside each other, below each other."""
    columns = columns_of("JOB> | NAME~+ | USER~+ | REASON~+ | TRIES> | AGE>")
    shown = lines(width, columns)
    assert max(map(len, shown)) <= width
    assert "…" not in "".join(shown)
    letters = "".join("".join(shown).split())
    assert all(letters.count(each) >= "".join(ROW).count(each) for each in set("".join(ROW)) - {" "})
    assert all(number in " ".join(shown) for number in ("123456", "12", "10m37s"))


@pytest.mark.parametrize("width", [16, 24, 40, 60, 80])
def test_what_has_no_room_goes_below_its_row_whole(width: int) -> None:
    """The words of each row below it, wrapped; with room enough, or in a pipe, beside the others."""
    columns = columns_of("JOB> | NAME | REASON?9/ | AGE> | WHEN?1/")
    rows = [["1", "first", "others have it all", "10m", "-"], ["2", "second", "-", "11m", "starts at 16:40 or later"]]
    shown, whole = io.StringIO(), io.StringIO()
    for page, wide in ((shown, width), (whole, 1000)):
        listing = Listing(columns, rows, None, title="a title")
        Console(file=page, width=wide, color_system=None).print(render_table(listing, wide))
    told = [line for line in shown.getvalue().splitlines() if line.strip()]
    assert max(map(len, told)) <= width
    text = " ".join(" ".join(told).split())
    assert ("others have it all" in text, "starts at 16:40 or later" in text, "…" in text) == (True, True, False)
    assert text.index("first") < text.index("others") < text.index("second") < text.index("starts")
    assert [line.split()[0] for line in whole.getvalue().splitlines()[1:]] == ["JOB", "1", "2"]


@pytest.mark.parametrize("width", range(38, 90))
def test_numbers_are_whole_or_left_out(width: int) -> None:
    """Job numbers, tries and ages are never cut; names and reasons are, and say so with an ellipsis."""
    title, row = lines(width)
    assert max(len(title), len(row)) <= width
    assert row.startswith("123456  a-name-")
    assert row.endswith("10m37s")
    assert ("12" in row.split()) == ("TRIES" in title)
    assert "WAIT:CAPACI" in row


def test_what_matters_least_goes_first() -> None:
    """By the order that the columns state."""
    gone = [[column.title for column in COLUMNS if column.title not in lines(width)[0]] for width in range(90, 37, -1)]
    assert gone[0] == []
    assert gone[-1] == ["USER", "TRIES"]
    assert ["TRIES"] in gone
    assert ["USER"] not in gone


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
DATA = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text() | st.integers() | st.booleans(), inner) | st.lists(inner).map(tuple)
    ),
)


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 2


def written(data: Any) -> str:
    file = io.StringIO()
    stream_json(data, file)
    return file.getvalue()


@settings(max_examples=40, deadline=None)
@given(DATA)
def test_it_is_what_the_standard_library_writes(data: Any) -> None:
    """For every kind of plain data, to the last blank."""
    assert written(data) == json.dumps(data, indent=2) + "\n"


@settings(max_examples=20, deadline=None)
@given(st.lists(DATA))
def test_an_iterator_is_an_array(items: list[Any]) -> None:
    """At the top, and below the keys of a mapping."""
    assert written(iter(items)) == json.dumps(items, indent=2) + "\n"
    assert written({"before": 1, "items": iter(items)}) == json.dumps({"before": 1, "items": items}, indent=2) + "\n"


def test_items_are_asked_for_one_by_one() -> None:
    """A long list is never in memory as a whole: each item is written before the next is made."""
    made: list[int] = []

    def items() -> Iterator[int]:
        for number in range(3):
            made.append(number)
            yield number

    pieces = json_pieces({"items": items()})
    assert next(pieces) == '{\n  "items": '
    assert next(pieces) == "[\n    0"
    assert made == [0]


def test_numbers_that_json_has_not_are_null() -> None:
    """NaN and the infinities, wherever they stand."""
    assert json.loads(written({"nan": float("nan"), "rows": [float("inf"), -float("inf")]})) == {
        "nan": None,
        "rows": [None, None],
    }


def test_enumerations_are_their_values() -> None:
    """As the standard library writes them, as values and as keys."""
    assert json.loads(written({Colour.RED: [Colour.RED, Level.HIGH]})) == {"red": ["red", 2]}


def test_what_is_no_json_is_refused() -> None:
    """Rather than guessed at."""
    with pytest.raises(TypeError, match="set"):
        written({"names": {1, 2}})


WALRAS = Path(sys.executable).parent / "walras"


@contextlib.contextmanager
def unread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Standard output is a pipe whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as given:
        monkeypatch.setattr(sys, "stdout", given)
        yield


@pytest.mark.parametrize(
    "write",
    [
        lambda: sys.stdout.write("a line\n" * 10_000), lambda: sys.stdout.buffer.write(b"a line\n" * 10_000),
        lambda: sys.stdout.writelines(["a line\n"] * 10_000), lambda: print("a line", flush=True),
    ],
    ids=["text", "bytes", "lines", "print"],
)  # fmt: skip
def test_a_write_that_nobody_reads_ends_the_command_as_done(
    write: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However it was written."""
    with unread(monkeypatch), pytest.raises(SystemExit) as ended, quiet_broken_pipe():
        write()
    assert ended.value.code == 0


def test_a_command_that_failed_keeps_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though what it had written before could not be delivered."""

    def fails() -> None:
        with quiet_broken_pipe():
            sys.stdout.write("little")
            sys.exit(2)

    with unread(monkeypatch), pytest.raises(SystemExit) as ended:
        fails()
    assert ended.value.code == 2


def test_what_was_written_is_out_in_the_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In order, what was there before included."""
    path = tmp_path / "out"
    with path.open("w") as given:
        monkeypatch.setattr(sys, "stdout", given)
        sys.stdout.write("first ")
        with quiet_broken_pipe():
            sys.stdout.write("second ")
            sys.stdout.flush()
            sys.stdout.buffer.write(b"third")
        assert path.read_text() == "first second third"


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--help"], ["submit", "--help"], ["--version"], ["policy", "list"]], ids=" ".join)
def test_commands_end_quietly_where_nobody_reads(words: list[str]) -> None:
    """Help, tables and lines alike: code 0, and nothing on standard error."""
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run([WALRAS, *words], stdout=writer, stderr=subprocess.PIPE, timeout=60)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_commands_work_where_nothing_is_open(closed: str) -> None:
    """Started by a daemon without input or output, a table is written to nobody."""
    ended = subprocess.run(["sh", "-c", f"{WALRAS} policy list {closed}"], capture_output=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, b"")
