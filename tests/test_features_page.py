"""The table of features counts right, and what its rows name exists: commands, pages and tests."""

import re
from pathlib import Path

import pytest

from tests.test_docs import command_tree
from walras.cli.resource_commands import RESOURCES

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "index.md"
SECTION = PAGE.read_text().split("## Features\n")[1].split("```{toctree}")[0]
ROW = re.compile(r"^\| (?P<feature>[^|]+) \| (?P<where>[^|]+) \| (?P<test>`[^|]+`) \|$", re.MULTILINE)
ROWS = [found.groupdict() for found in ROW.finditer(SECTION)]


def name_of(row: dict[str, str]) -> str:
    return row["feature"]


def test_every_row_is_counted() -> None:
    """The first paragraph says how many features are whole and in part, and no line of the table is left out."""
    lines = [line for line in SECTION.splitlines() if line.startswith("| ") and "| Feature |" not in line]
    assert len(lines) == len(ROWS) == 48
    assert len({row["feature"] for row in ROWS}) == 48
    part = sum(row["where"].startswith("in part: ") for row in ROWS)
    assert f"these 48 things; {48 - part} are here whole, {part} in part" in SECTION


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
        if plain not in commands:  # of a kind of resource
            plain, _, kind = plain.rpartition(" ")
            assert kind in RESOURCES
        assert plain in commands
        assert {word for word in words if word.startswith("-")} <= commands[plain]
    pages = re.findall(r"\]\(([^)#]+)", row["where"])
    assert all((PAGE.parent / page).is_file() for page in pages)
    fields = re.findall(r"`[a-z_.]+[:`]", row["where"])
    assert named or pages or fields


def test_a_part_says_what_is_missing() -> None:
    parts = [row["where"] for row in ROWS if row["where"].startswith("in part: ")]
    assert [where for where in parts if not re.search(r"\b(no|not|cannot|may land)\b", where)] == []
