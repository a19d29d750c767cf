"""Tables in narrow terminals: what is shown is whole, or visibly cut where only words are."""

import io
import re

import pytest
from rich.console import Console

from walras.cli.terminal_output import Column, Listing, render_table

COLUMNS = (
    Column("JOB", right=True),
    Column("NAME", shrinks=True),
    Column("USER", shrinks=True, spare=1),
    Column("REASON", shrinks=True, least=12),
    Column("TRIES", right=True, spare=2),
    Column("AGE", right=True),
)
ROW = ("123456", "a-name-of-some-length", "someone", "WAIT:CAPACITY needs 8, 2 free", "12", "10m37s")


def lines(width: int, columns: tuple[Column, ...] = COLUMNS) -> list[str]:
    """The table as a terminal of this width shows it."""
    shown = io.StringIO()
    console = Console(file=shown, width=width, color_system=None)
    console.print(render_table(Listing(columns, [ROW[: len(columns)]], None), width))
    return shown.getvalue().splitlines()


def test_with_room_enough_nothing_is_cut() -> None:
    """Cells stand whole, under their titles."""
    title, row = lines(200)
    assert [cell.strip() for cell in re.split(r" {2,}", row)] == list(ROW)
    assert title.split() == [column.title for column in COLUMNS]


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
