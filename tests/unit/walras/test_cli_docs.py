"""docs/cli.md says of every command what its `--help` says first."""

import re
from collections.abc import Iterator
from pathlib import Path

import typer

import walras
from walras.cli.main import app

PAGE = Path(walras.__file__).resolve().parents[1] / "docs" / "cli.md"


def commands(command: object, words: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """(words, the first paragraph of the help) of every command that is no group and not hidden."""
    below = getattr(command, "commands", {})
    if not below:
        yield " ".join(words), " ".join(str(getattr(command, "help", "")).split("\n\n")[0].split())
    for name, child in below.items():
        if not getattr(child, "hidden", False):
            yield from commands(child, (*words, name))


def test_the_page_says_what_the_help_says() -> None:
    """One row for each command, which begins with the first paragraph of its help."""
    rows = re.findall(r"^\| `walras ([^`]*)` \| (.*) \|$", PAGE.read_text(), flags=re.MULTILINE)
    missing = [
        (words, summary)
        for words, summary in commands(typer.main.get_command(app))
        if [text.startswith(summary) for row, text in rows if f"{row} ".startswith(f"{words} ")] != [True]
    ]
    assert missing == []
