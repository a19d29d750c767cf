"""What several commands read in the same way: shared options, lengths of time, job numbers, and documents in files.

Job numbers are written `12`, `12-20`, `12,14`, `last`, or several of them.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, overload

import typer

from walras.cli.terminal_output import OutputFormat
from walras.errors import ConfigError, UserError
from walras.units import parse_length

if TYPE_CHECKING:
    from walras.spec.file_model import FileModel


OutputOption = Annotated[
    OutputFormat,
    typer.Option("--output", "-o", help="Output format: a table for people, or JSON with stable names for programs."),
]
NoHeaderOption = Annotated[bool, typer.Option("--no-header", help="Omit the column titles.")]
WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="Refresh the list every two seconds until Ctrl-C.")]
UserOption = Annotated[str | None, typer.Option("--user", "-u", help="Only jobs of this user.")]
ProjectOption = Annotated[str | None, typer.Option("--project", "-p", help="Only jobs of this project.")]
JobsArgument = Annotated[
    list[str],
    typer.Argument(metavar="JOB...", help="Job numbers, ranges (12-20), or `last` for the job you submitted last."),
]
JobArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="A job number, or `last` for the job you submitted last.")
]
LimitOption = Annotated[int, typer.Option("--limit", "-n", min=1, max=1_000_000, help="Show at most this many jobs.")]
CloudOption = Annotated[str | None, typer.Option("--cloud", help="Only machines of this cloud.")]
CatalogOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--catalog", help="A catalog file or folder that extends or overrides the built-in catalog; repeatable."
    ),
]


def example_or_path(folder: str) -> Callable[[Any], Any]:
    """Returns the callback of a parameter that names files: `example:NAME` is one of this shipped folder.

    It takes and returns a path, a list of paths, or None.
    """

    def shipped_path(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [shipped_path(each) for each in value]
        if value is None or not str(value).startswith("example:"):
            return value
        from walras.spec.shipped_files import find_example

        return type(value)(find_example(str(value), folder))

    return shipped_path


ProfileOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--profile",
        help="A profile of this job, or of other kinds to learn from, or example:NAME; repeatable.",
        callback=example_or_path("profiles"),
    ),
]
NetworkOption = Annotated[
    float | None,
    typer.Option(
        "--network",
        metavar="GBIT/S",
        min=0.001,
        help="Bandwidth between machines; without it, only single machines are considered.",
    ),
]


@overload
def parse_length_option(text: str, option: str) -> float: ...
@overload
def parse_length_option(text: str | None, option: str) -> float | None: ...
def parse_length_option(text: str | None, option: str) -> float | None:
    """Returns the seconds of an option's length of time, None for None. Raises UserError naming the option."""
    if text is None:
        return None
    try:
        return parse_length(text)
    except ValueError as error:
        message, _, fix = str(error).partition("; ")
        raise UserError(message, field=option, fix=fix) from None


def refuse_options(given: Mapping[str, object], why: str, fix: str) -> None:
    """Raise UserError, "OPTION why", for the first option that was given: it means nothing beside the others."""
    for option, value in given.items():
        if value is not None and value is not False and value not in ("", []):
            raise UserError(f"{option} {why}", field=option, fix=fix)


_MOST_JOBS = 10_000
_JOB_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", re.ASCII)


def job_words(words: Iterable[str]) -> list[str]:
    """Returns the single words of a command line that name jobs; commas part them, but for those in brackets."""
    return [part for given in words for part in re.split(r",(?![^\[]*\])", given)]


def parse_job_ids(words: Iterable[str], last: Callable[[], int]) -> list[int]:
    """Returns the job numbers in the order given, each once; calls `last` only for that word. Raises UserError."""
    found: dict[int, None] = {}
    for word in job_words(words):
        if word == "last":
            found[last()] = None
            continue
        match = _JOB_RANGE.fullmatch(word)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= low <= high < 2**63:
            raise UserError(
                f"{word[:40]!r} is no job",
                field="JOB",
                fix="write a number, a range such as 12-20, 17[3] of a sweep, or last",
            )
        if high - low >= _MOST_JOBS or len(found) + high - low >= _MOST_JOBS:
            raise UserError(f"{word} is more than {_MOST_JOBS:,} jobs", field="JOB", fix="give a smaller range")
        found.update(dict.fromkeys(range(low, high + 1)))
    return list(found)


def parse_job_id(word: str, last: Callable[[], int]) -> int:
    """Returns the number of a single job. Raises UserError for several."""
    found = parse_job_ids([word], last)
    if len(found) != 1:
        raise UserError(f"{word!r} is several jobs, and one is expected", field="JOB", fix="give one number")
    return found[0]


ModelT = TypeVar("ModelT", bound="FileModel")

_YAML_ENDINGS = (".yaml", ".yml")


def read_document(path: Path, model: type[ModelT]) -> ModelT:
    """Returns the validated document of a JSON file, or YAML by its ending. Raises ConfigError naming field and fix."""
    from walras.spec.file_model import check_model

    return check_model(model, _file_data(path), source=str(path))


def read_memory(path: Path) -> Any:
    """Returns what a policy left last time, from a file of plain JSON or from the `memory` of an answer."""
    data = _file_data(path)
    return data["memory"] if isinstance(data, dict) and {"policy", "memory"} <= data.keys() else data


def _file_data(path: Path) -> Any:
    from walras.spec.file_model import MAX_FILE_BYTES, load_mapping

    if path.suffix in _YAML_ENDINGS:
        return load_mapping(path)
    from walras.spec.text_formats import parse_strict_json

    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", fix="check the path and its permissions") from None
    return parse_strict_json(content, source=str(path), max_bytes=MAX_FILE_BYTES)
