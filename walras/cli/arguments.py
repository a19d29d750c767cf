"""What several commands read in the same way: shared options, lengths of time, choices of jobs, and documents in files.

Job numbers are written `12`, `12-20`, `12,14`, `last`, or several of them; `session` adds sweeps and names. Jobs are
also chosen by user, project, state, name, label and age: `queue`, `jobs` and `cancel` choose in the same way. The
server filters by user, project and state; this module filters what it lists by name, label and age.

`--set FIELD=VALUE` is one option for all fields of a model; `--set help` says what they are. A command names the model
of its fields where it is registered; the model is imported only when a field is given. The release before had an option
for each field: those go on for this one, with a note.
"""

import importlib
import re
import time
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Union, get_args, get_origin, overload

import typer
from typer.core import TyperCommand

from walras.cli.terminal_output import OutputFormat, show_columns, warn
from walras.errors import UserError
from walras.states import JobState
from walras.units import format_length, parse_length

if TYPE_CHECKING:
    from pydantic import BaseModel

    from walras.client import Client
    from walras.resources.jobs import DryRun, JobView, ReasonView
    from walras.spec.file_model import FileModel


OutputOption = Annotated[
    OutputFormat,
    typer.Option("--output", "-o", help="Output format: a table for people, or JSON with stable names for programs."),
]
#: What other programs call `-o json`.
OTHERS_OUTPUT = ("--json", "-j", "--format")
NoHeaderOption = Annotated[bool, typer.Option("--no-header", help="Omit the column titles.")]
WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="Refresh the list every two seconds until Ctrl-C.")]
UserOption = Annotated[str | None, typer.Option("--user", "-u", help="Only jobs of this user.")]
ProjectOption = Annotated[str | None, typer.Option("--project", "-p", help="Only jobs of this project.")]
JobsArgument = Annotated[
    list[str],
    typer.Argument(metavar="JOB...", help="Numbers, ranges (12-20), names, or `last` for the job you submitted last."),
]
JobArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="A number, a name, or `last` for the job you submitted last.")
]
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


#: The most jobs that one command may name, or choose by its options.
MOST_CHOSEN = 10_000
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
        if high - low >= MOST_CHOSEN or len(found) + high - low >= MOST_CHOSEN:
            raise UserError(f"{word} is more than {MOST_CHOSEN:,} jobs", field="JOB", fix="give a smaller range")
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
    from walras.spec.file_model import MAX_FILE_BYTES, file_bytes, load_mapping

    if path.suffix in _YAML_ENDINGS:
        return load_mapping(path)
    from walras.spec.text_formats import parse_strict_json

    return parse_strict_json(file_bytes(path), source=str(path), max_bytes=MAX_FILE_BYTES)


MineOption = Annotated[bool, typer.Option("--me", help="Only your own jobs.")]
StateOption = Annotated[
    list[str] | None, typer.Option("--state", help="Only jobs in this state (RUNNING, FAILED, ...); repeatable.")
]
NameOption = Annotated[str | None, typer.Option("--name", help="Only jobs with this name; `*` stands for any text.")]
LabelOption = Annotated[
    list[str] | None, typer.Option("--label", "-l", help="Only jobs with this label, KEY or KEY=VALUE; repeatable.")
]
SinceOption = Annotated[str | None, typer.Option("--since", help="Only jobs submitted within this time, such as 2d.")]


@dataclass(frozen=True)
class JobChoice:
    """The conditions that a job must meet. A field that is empty or None is no condition."""

    user: str | None = None
    mine: bool = False
    project: str | None = None
    states: tuple[JobState, ...] = ()
    #: A name, in which `*` and `?` are wildcards.
    name: str | None = None
    #: A label as KEY, or KEY=VALUE.
    labels: Iterable[str] | None = None
    #: The largest age since submission, in seconds.
    since_s: float | None = None
    #: Whether only jobs that have not ended are chosen.
    active: bool = False
    #: Whether one job of a sweep stands for all of them.
    fold_sweeps: bool = False
    limit: int = 1000

    @property
    def names_somebody(self) -> bool:
        """Whether it asks for anything at all, apart from a limit."""
        return bool(self.user or self.mine or self.project or self.states or self.name or self.labels or self.since_s)

    def accepts(self, job: "JobView", now_unix_s: float) -> bool:
        """Returns whether the job meets the conditions that the server does not check."""
        if self.name is not None and not fnmatchcase(job.name, self.name):
            return False
        if self.since_s is not None and now_unix_s - instant_of(job.submitted_at) > self.since_s:
            return False
        return all(_has_label(job, label) for label in self.labels or ())


def _has_label(job: "JobView", label: str) -> bool:
    key, equals, value = label.partition("=")
    return key in job.labels and (not equals or job.labels[key] == value)


def states_of(words: list[str] | None) -> tuple[JobState, ...]:
    """Returns the states that the words name, commas allowed. Raises UserError naming the nearest one."""
    found = []
    for word in chain.from_iterable(word.split(",") for word in words or ()):
        if word.upper() not in JobState.__members__:
            meant = get_close_matches(word.upper(), JobState.__members__, n=1)
            fix = f"did you mean {meant[0]}?" if meant else f"choose from {', '.join(JobState.__members__)}"
            raise UserError(f"{word!r} is no state", field="--state", fix=fix)
        found.append(JobState(word.upper()))
    return tuple(found)


async def choose_jobs(client: "Client", wanted: JobChoice, *, sort: str = "-id") -> "list[JobView]":
    """Returns the jobs in this order of the server, newest first by default; one more than `limit` if there are more,
    so that the caller can say so.
    """
    user = (await client.whoami()).user if wanted.mine else wanted.user
    is_narrowed = wanted.name is not None or wanted.since_s is not None or bool(wanted.labels)
    listed = client.jobs(
        states=list(wanted.states),
        user=user,
        project=wanted.project,
        active=wanted.active,
        fold_sweeps=wanted.fold_sweeps,
        sort=sort,
        limit=1_000_000 if is_narrowed else wanted.limit + 1,
    )
    found, now = [], time.time()
    async for job in listed:
        if wanted.since_s is not None and now - instant_of(job.submitted_at) > wanted.since_s:
            break  # newest first: all that follow are older
        if wanted.accepts(job, now):
            found.append(job)
        if len(found) > wanted.limit:
            break
    return found


def instant_of(text: str) -> float:
    """Returns an instant of the server as Unix seconds; 0 if it is none."""
    from walras.spec.field_types import parse_instant

    try:
        return parse_instant(text, now=0.0)
    except ValueError:
        return 0.0


def why_text(of: "JobView | ReasonView | DryRun") -> str:
    """Returns a reason in words, with its numbers."""
    return ": ".join(filter(None, (of.reason and of.reason.words, of.detail)))


def local_time(text: str | None) -> str:
    """Returns an instant of the server in the zone of this machine, to the second; empty for None."""
    at = 0.0 if not text else instant_of(text)
    return "" if not at else time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(at))


_SET = "--set"
SetOption = Annotated[
    list[str] | None,
    typer.Option(_SET, "-s", metavar="FIELD=VALUE", help="Set a field; `--set help` lists them; repeatable."),
]


def read_settings(model: type[ModelT], given: Iterable[str] | None) -> ModelT:
    """Returns the model with the fields that are given, each as FIELD=VALUE. Raises UserError naming the field.

    A value is read as YAML, unless the field is a text; of a list it is the items between commas.
    """
    from walras.spec.file_model import check_model
    from walras.spec.text_formats import apply_overrides

    texts = list(given or ())
    values = apply_overrides({}, texts, source=_SET)
    names = set[str]()
    for name, _, value in (text.partition("=") for text in texts):
        kinds = () if name not in model.model_fields else _types(model.model_fields[name].annotation)
        if any(get_origin(kind) is tuple for kind in kinds):
            values[name] = [*(values[name] if name in names else ()), *value.split(",")]
        elif name in names:
            raise UserError(f"{name} is set twice", field=name, fix="set it once")
        elif str in kinds:
            values[name] = value
        names.add(name)
    return check_model(model, values, source=_SET)


def _types(annotation: Any) -> tuple[Any, ...]:
    """Returns the types that a field may have, None left out."""
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(each for part in get_args(annotation) for each in _types(part))
    return () if annotation is type(None) else (annotation,)


def show_fields(model: "type[BaseModel]") -> None:
    """Prints the fields of a model: name, default, meaning."""
    rows = []
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        shown = str(default).lower() if isinstance(default, bool) else "" if not default else str(default)
        if isinstance(default, float) and any(getattr(each, "func", None) is parse_length for each in field.metadata):
            shown = format_length(default)
        rows.append([name, shown, field.description or ""])
    show_columns("FIELD | DEFAULT | MEANING~", rows)


def settings_command(where: str) -> type[TyperCommand]:
    """Returns the kind of a command with `--set` for the fields of this model, such as `package.module:Model`."""

    class WithSettings(TyperCommand):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            """Prints the fields where `--set help` asks for them; reads a former option as the field that it was."""
            if any(args[at : at + 2] == [_SET, "help"] or args[at] == f"{_SET}=help" for at in range(len(args))):
                show_fields(_load(where))
                ctx.exit()
            return super().parse_args(ctx, replace_former(args, self.get_params(ctx), lambda each: _field(where, each)))

    return WithSettings


def _load(where: str) -> "type[FileModel]":
    module, _, name = where.partition(":")
    found: type[FileModel] = getattr(importlib.import_module(module), name)
    return found


def _field(where: str, option: str) -> list[str] | None:
    """Returns the words for a former option, `{}` standing for its value; None for what was none."""
    model = _load(where)
    name = option.removeprefix("--no-").removeprefix("--").replace("-", "_")
    name = model.other_words.get(name, name)
    if not option.startswith("--") or name not in model.model_fields:
        return None
    kinds = _types(model.model_fields[name].annotation)
    if bool in kinds:
        return [_SET, f"{name}={'false' if option.startswith('--no-') else 'true'}"]
    return [_SET, f"{name}.{{}}" if any(get_origin(kind) is dict for kind in kinds) else f"{name}={{}}"]


def replace_former(
    args: Sequence[str], params: Iterable[Any], words_of: Callable[[str], list[str] | None]
) -> list[str]:
    """Returns a command line on which each option that is none of these parameters is what it is now, with a note.

    `words_of`: what an option is now, `{}` standing for its value; None: it stays.
    """
    known = {*OTHERS_OUTPUT, *(option for each in params for option in (*each.opts, *each.secondary_opts))}
    words, at = list[str](), 0
    while at < len(args):
        word, at = args[at], at + 1
        if word == "--":
            return [*words, word, *args[at:]]
        option, equals, value = word.partition("=")
        found = words_of(option) if option.startswith("-") and option not in known else None
        if found is None:
            words.append(word)
            continue
        if not equals and at < len(args) and any("{}" in each for each in found):
            value, at = args[at], at + 1
        now = [each.replace("{}", value) for each in found]
        warn(f"walras: `{option}` is now `{' '.join(now)}`")
        words += now
    return words
