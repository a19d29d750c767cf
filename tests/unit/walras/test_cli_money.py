"""`walras money`: a table for people, and CSV for spreadsheets."""

import csv
import io

import pytest
from typer.testing import CliRunner

from walras.api import MoneyReport, MoneyRow
from walras.cli import money_commands
from walras.cli.main import app

REPORT = MoneyReport(
    by="project",
    items=[
        MoneyRow(key="vision", accelerator_s=7200.0, usd=12.345678, on_demand_usd=30.0),
        MoneyRow(key="=cmd|' /C calc'!A0\x1b[2J", accelerator_s=90.0, usd=0.5),
    ],
    rest=MoneyRow(key="", accelerator_s=36.0, usd=0.25),
    rest_of=3,
    used_usd=13.1,
    idle_usd=0.0,
    total_usd=13.1,
    on_demand_usd=30.0,
)


@pytest.fixture(autouse=True)
def served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(money_commands, "with_client", lambda work: REPORT)


def _shown(*words: str) -> str:
    done = CliRunner().invoke(app, ["money", *words])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_table_says_what_was_saved() -> None:
    shown = _shown()
    assert "vision" in shown
    assert "3 others" in shown
    assert "all on demand $30.00, 56% saved" in shown


def test_csv_has_numbers_as_they_are_and_no_formula() -> None:
    """A spreadsheet runs what begins with `=`: names are of strangers."""
    header, vision, strange, rest = csv.reader(io.StringIO(_shown("--csv")))
    assert header == ["project", "accelerator_hours", "usd", "idle_usd", "on_demand_usd"]
    assert vision == ["vision", "2.0", "12.345678", "0.0", "30.0"]
    assert strange[0].startswith("'=")
    assert "\x1b" not in strange[0]
    assert rest[:2] == ["3 others", "0.01"]
    assert len(list(csv.reader(io.StringIO(_shown("--csv", "--no-header"))))) == 3
