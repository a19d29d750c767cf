"""The page of features counts right, and what its rows name exists: commands, pages and tests."""

import re
from pathlib import Path

import pytest

from tests.test_docs import command_tree

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "features.md"
ROW = re.compile(r"^\| (?P<feature>[^|]+) \| (?P<mark>[●◐○]) \| (?P<where>.+) \| (?P<test>[^|]+) \|$", re.MULTILINE)
ROWS = [found.groupdict() for found in ROW.finditer(PAGE.read_text())]


def name_of(row: dict[str, str]) -> str:
    return row["feature"]


def test_every_row_is_counted() -> None:
    """The first paragraph says how many rows there are of each mark, and no line of a table is left out."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and "| Feature |" not in line]
    assert len(lines) == len(ROWS) == 48
    assert len({row["feature"] for row in ROWS}) == 48
    whole, part, absent = (sum(row["mark"] == mark for row in ROWS) for mark in "●◐○")
    said = " ".join(PAGE.read_text().split("\n\n")[1].split())
    assert f"{whole} of 48 are here whole (●), {part or 'none'} in part (◐)" in said
    assert f"{absent or 'none'} is absent (○)" in said


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_what_a_row_names_exists(row: dict[str, str]) -> None:
    """Its test is a file of tests; the commands are commands with these options; without one it names a page."""
    path = ROOT / "tests" / row["test"].strip("`")
    assert path.is_file()
    assert "def test_" in path.read_text()
    commands = command_tree()
    named = [words.split() for words in re.findall(r"`(walras [^`]+)`", row["where"])]
    for words in named:
        plain = " ".join(word for word in words[1:] if not word.startswith("-"))
        assert plain in commands
        assert {word for word in words if word.startswith("-")} <= commands[plain]
    pages = re.findall(r"\]\(([^)#]+)", row["where"])
    assert all((PAGE.parent / page).is_file() for page in pages)
    fields = re.findall(r"`[a-z_.]+[:`]", row["where"])
    assert named or pages or fields


@pytest.mark.parametrize("row", [row for row in ROWS if row["mark"] == "◐"], ids=name_of)
def test_a_part_says_what_is_missing(row: dict[str, str]) -> None:
    assert re.search(r"\b(no|not|cannot|may land)\b", row["where"])
