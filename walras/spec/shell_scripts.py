"""Shell scripts as jobs: their first line, their `#WALRAS` lines, and what is wrong with their text.

A script runs by the interpreter that its first line names, with the option there (`#!/bin/bash -e`), as the kernel
would run the file. Its text travels with the job, so that an edit changes no job that waits.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from walras.errors import JobSpecError
from walras.spec.text_formats import apply_overrides

_DIRECTIVE = re.compile(r"#\s?WALRAS\s+(?P<setting>.*?)\s*")
#: What is told of a file that asks for no accelerator.
NO_ACCELERATOR = "it asks for no accelerator, and a job here has one on each machine, of any type"
_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh", "mksh"})
#: The most lines of one refusal that are shown.
_TOLD_MOST = 20


@dataclass
class ForeignReading:
    """What a file of another scheduler states in our words, and what has no words here."""

    #: Fields of a job, as a job file has them.
    fields: dict[str, Any] = field(default_factory=dict)
    #: One text, beginning with its place, for everything that decides how the job runs and cannot be obeyed.
    refused: list[str] = field(default_factory=list)
    #: The same for what decides nothing here.
    notes: list[str] = field(default_factory=list)
    #: Lines of a scheduler that is none of ours; they are refused unless an option says to ignore them.
    other_lines: list[str] = field(default_factory=list)
    #: Whether the file has options of that scheduler at all.
    has_lines: bool = False
    #: The submitter's variables.
    variables: Mapping[str, str] = field(default_factory=dict)

    def raise_if_refused(self, name: str) -> None:
        """Raises JobSpecError that lists all that is refused, if anything is."""
        if not self.refused:
            return
        told = [f"{name}: {each}" for each in self.refused[:_TOLD_MOST]]
        if len(self.refused) > _TOLD_MOST:
            told.append(f"and {len(self.refused) - _TOLD_MOST} more")
        raise JobSpecError(
            "\n".join(told), field="--lenient", fix="change the file, or submit with --lenient, which leaves this out"
        )


def plain_script(text: str, name: str) -> str:
    """Returns the script without a byte order mark. Raises JobSpecError for one with line ends of DOS."""
    if "\r\n" in text:
        line = text[: text.index("\r\n")].count("\n") + 1
        raise JobSpecError(
            f"{name}: line {line}: line ends of DOS (\\r\\n), with which no shell runs a script",
            field=f"line {line}",
            fix=f"dos2unix {name}",
        )
    return text.removeprefix("\ufeff")


def interpreter_of(text: str) -> tuple[str, ...]:
    """Returns the program of the first line and the one argument that the kernel gives it; bash without such a line."""
    first = text.partition("\n")[0]
    if not first.startswith("#!") or not first[2:].strip():
        return ("bash",)
    return tuple(first[2:].strip().split(None, 1))


def _is_shell(interpreter: tuple[str, ...]) -> bool:
    program = PurePosixPath(interpreter[0]).name
    if program == "env" and len(interpreter) > 1:
        words = interpreter[1].removeprefix("-S").split()
        program = next((PurePosixPath(word).name for word in words if "=" not in word and word[:1] != "-"), "")
    return program in _SHELLS


def script_mapping(
    text: str,
    *,
    name: str,
    fields: Mapping[str, Any] | None = None,
    arguments: Sequence[str] = (),
    run: list[str] | None = None,
) -> dict[str, Any]:
    """Returns the job of a shell script: `run`, or its text under its interpreter; `#WALRAS field=value` sets fields.

    Directives count up to the first command, as with other schedulers. `fields`: what holds where no directive says
    otherwise. Raises JobSpecError for a script of another interpreter, where `run` does not say how to run it.
    """
    interpreter = interpreter_of(text)
    if run is None and not _is_shell(interpreter):
        raise JobSpecError(
            f"{name}: {' '.join(interpreter)[:60]!r} is not a shell script",
            fix="write a job file with `run:` that starts it",
        )
    settings = []
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            break
        if found := _DIRECTIVE.fullmatch(line.strip()):
            settings.append(found["setting"])
    base: dict[str, Any] = {"run": run or [*interpreter, "-c", text, name, *arguments], **(fields or {})}
    return apply_overrides(base, settings, source=f"{name}: #WALRAS")
