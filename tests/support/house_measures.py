"""What the house measures: the figures of docs/decisions/0014-budget.md, counted from the sources.

python -m tests.support.house_measures            prints what is measured beside the budget
python -m tests.support.house_measures --lower    writes measured figures that are below the budget into the table
"""

import ast
import dataclasses
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs" / "decisions" / "0014-budget.md"
PACKAGES = ("walras", "optimizer", "scheduler", "workers", "simulator")
MANY_FIELDS = 10
MANY_PARAMETERS = 5
_ROW = re.compile(r"^\| ([^|]+?) +\| +([\d,]+) +\|(.*)$", re.MULTILINE)


@cache
def _tracked() -> tuple[Path, ...]:
    """Files of the checkout that git tracks or would track."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True,
    )  # fmt: skip
    paths = (ROOT / name for name in listed.stdout.decode().split("\0") if name)
    return tuple(sorted(path for path in paths if path.is_file()))


def sources(*folders: str) -> list[Path]:
    """Python files below the folders."""
    return [path for path in _tracked() if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in folders]


def modules(*folders: str) -> int:
    """Number of Python files below the folders, `__init__.py` left out."""
    return sum(path.name != "__init__.py" for path in sources(*folders))


def lines(*folders: str) -> int:
    """Number of lines of the Python files below the folders."""
    return sum(path.read_text().count("\n") for path in sources(*folders))


def words_of_documents() -> int:
    """Number of words in the README, the architecture, the changelog and docs/."""
    tops = {"README.md", "ARCHITECTURE.md", "CHANGELOG.md"}
    names = [path for path in _tracked() if path.suffix == ".md"]
    read = [path for path in names if path.relative_to(ROOT).parts[0] == "docs" or path.name in tops]
    return sum(len(path.read_text().split()) for path in read)


def _leaves(command: Any) -> Iterator[Any]:
    children = getattr(command, "commands", None)
    if not children:
        yield command
    for child in (children or {}).values():
        yield from _leaves(child)


@cache
def _command_line() -> Any:
    import typer.main

    from walras.cli.main import app

    return typer.main.get_command(app)


def commands_at_the_top() -> int:
    """Number of words that `walras` takes first."""
    return sum(not command.hidden for command in _command_line().commands.values())


def commands() -> int:
    """Number of commands, those of groups included and hidden ones left out."""
    return sum(not command.hidden for command in _leaves(_command_line()))


def options() -> int:
    """Number of options of all commands."""
    return sum(parameter.param_type_name == "option" for leaf in _leaves(_command_line()) for parameter in leaf.params)


def endpoints() -> int:
    """Number of routes of the API: pairs of method and path."""
    from scheduler.live.http.web_application import api_routes

    return len(api_routes())


def tables() -> int:
    """Number of tables of a new database."""
    from sqlite_utils import Database

    from scheduler.live.store.migrations import lend_functions, migrations

    db = Database(memory=True)
    lend_functions(db)
    migrations.apply(db)
    return sum(not name.startswith(("sqlite_", "_")) for name in db.table_names())


def events_and_commands() -> int:
    """Number of types of events and commands of the core."""
    from scheduler.core.commands import Command
    from scheduler.core.events import Event

    return len(get_args(Event)) + len(get_args(Command))


def rules() -> int:
    """Number of rules that a policy file may set."""
    from scheduler.core.rules import RoundRules

    return len(dataclasses.fields(RoundRules))


def job_fields() -> int:
    """Number of fields of a job file, those of its groups included and each model counted once."""
    from pydantic import BaseModel

    from walras.spec.job_spec import JobSpec

    seen: set[type] = set()

    def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield annotation
        for argument in get_args(annotation):
            yield from models_in(argument)

    def count(model: type[BaseModel]) -> int:
        if model in seen:
            return 0
        seen.add(model)
        inner = [part for field in model.model_fields.values() for part in models_in(field.annotation)]
        return len(model.model_fields) + sum(map(count, inner))

    return count(JobSpec)


def environment_variables() -> int:
    """Number of names of environment variables of ours that occur in the product."""
    found = {name for path in sources(*PACKAGES) for name in re.findall(r"\bWALRAS(?:_[A-Z]+)+\b", path.read_text())}
    return len(found)


def extras() -> int:
    """Number of optional sets of dependencies."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return len(project["optional-dependencies"])


@cache
def _nodes() -> tuple[tuple[str, ast.AST], ...]:
    """Classes and functions of the product, each with the path of its module."""
    return tuple(
        (path.relative_to(ROOT).as_posix(), node)
        for path in sources(*PACKAGES)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    )


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


@cache
def _field_counts() -> dict[str, int]:
    """Annotated fields of each class of the product: `{module path:class: number}`."""
    return {
        f"{path}:{node.name}": sum(isinstance(line, ast.AnnAssign) for line in node.body)
        for path, node in _nodes()
        if isinstance(node, ast.ClassDef) and _is_dataclass(node)
    }


def large_dataclasses() -> int:
    """Number of dataclasses with more than ten fields."""
    return sum(count > MANY_FIELDS for count in _field_counts().values())


def functions_with_many_parameters() -> int:
    """Number of functions with more than five parameters, `self` and the commands' options left out."""
    found = 0
    for path, node in _nodes():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not path.startswith("walras/cli/"):
            names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            found += len([name for name in names if name not in ("self", "cls")]) > MANY_PARAMETERS
    return found


def fields_of_largest_values() -> int:
    """Number of fields of JobSpec, WriteBatch, RunSummary, JobRecord and LiveState together."""
    from walras.spec.job_spec import JobSpec

    names = ("WriteBatch", "RunSummary", "JobRecord", "LiveState")
    counted = {place.split(":")[1]: count for place, count in _field_counts().items()}
    return len(JobSpec.model_fields) + sum(counted[name] for name in names)


MEASURES: dict[str, Callable[[], int]] = {
    "product: modules": lambda: modules(*PACKAGES),
    "product: lines": lambda: lines(*PACKAGES),
    **{f"{name}: lines": (lambda name=name: lines(name)) for name in PACKAGES},
    "tests: lines": lambda: lines("tests"),
    "benchmarks: lines": lambda: lines("benchmarks"),
    "documents: words": words_of_documents,
    "commands at the top": commands_at_the_top,
    "commands in all": commands,
    "options": options,
    "endpoints": endpoints,
    "tables": tables,
    "event and command types": events_and_commands,
    "policy rules": rules,
    "job file fields": job_fields,
    "environment variables": environment_variables,
    "extras": extras,
    "dataclasses over 10 fields": large_dataclasses,
    "functions over 5 parameters": functions_with_many_parameters,
    "fields of the five largest values": fields_of_largest_values,
}


def budget(text: str) -> dict[str, int]:
    """The numbers of the table: `{measure: at most}`."""
    return {name: int(number.replace(",", "")) for name, number, _ in _ROW.findall(text)}


def lowered(text: str, measured: dict[str, int]) -> str:
    """The page with each number that is above what is measured set to it."""

    def row(found: re.Match[str]) -> str:
        name, number, rest = found.groups()
        least = min(int(number.replace(",", "")), measured.get(name, sys.maxsize))
        return f"| {name:<33} | {least:>7,} |{rest}"

    return _ROW.sub(row, text)


def main(arguments: list[str]) -> int:
    measured = {name: measure() for name, measure in MEASURES.items()}
    text = TABLE.read_text()
    for name, number in measured.items():
        print(f"{name:<34} {number:>8,}  of {budget(text).get(name, 0):>8,}")
    if arguments == ["--lower"]:
        TABLE.write_text(lowered(text, measured))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
