"""Options that commands share: the user sees each of them, the command gets one value."""

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from walras.cli.simulate_commands import with_options


@dataclass(frozen=True)
class Part:
    since: str
    first: int | None


def part(since: Annotated[str, typer.Option()] = "", first: Annotated[int | None, typer.Option(min=1)] = None) -> Part:
    return Part(since, first)


@with_options(which=part)
def wide(which: Part, name: Annotated[str, typer.Option()] = "x") -> tuple[Part, str]:
    return which, name


def test_a_command_takes_the_with_options_its_groups_and_of_theirs() -> None:
    app = typer.Typer()

    @app.command()
    @with_options(found=wide)
    def show(*, file: Annotated[str, typer.Argument()], found: tuple[Part, str]) -> None:
        """Show it."""
        print(file, found)

    answer = CliRunner().invoke(app, ["f", "--since", "2d", "--first", "3"])
    assert answer.output.strip() == f"f {(Part('2d', 3), 'x')}"
    usage = CliRunner().invoke(app, ["--help"]).output
    assert "Show it." in usage
    assert all(option in usage for option in ("--since", "--first", "--name"))
    assert CliRunner().invoke(app, ["f", "--first", "0"]).exit_code == 2, "the option's own limits hold"


def test_a_group_for_no_parameter_and_an_option_twice_are_mistakes() -> None:
    def command(which: Part, since: str) -> None: ...

    with pytest.raises(TypeError, match="no parameter what"):
        with_options(what=part)(command)
    with pytest.raises(TypeError, match="takes since twice"):
        with_options(which=part)(command)
