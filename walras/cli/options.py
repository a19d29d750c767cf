"""Arguments and options that several commands share, so that they are spelt and explained alike."""

from typing import Annotated, overload

import typer

from walras.cli.output import OutputFormat
from walras.errors import UserError
from walras.units import parse_length

Output = Annotated[OutputFormat, typer.Option("--output", "-o", help="A table for people, or stable JSON.")]
NoHeader = Annotated[bool, typer.Option("--no-header", help="Leave the titles of the columns out.")]
User = Annotated[str | None, typer.Option("--user", "-u", help="Only this user's jobs.")]
Project = Annotated[str | None, typer.Option("--project", "-p", help="Only this project's jobs.")]
Jobs = Annotated[list[str], typer.Argument(metavar="JOB...", help="Numbers, ranges (12-20), or `last`.")]
Job = Annotated[str, typer.Argument(metavar="JOB", help="A number, or `last`.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=1_000_000, help="Show at most so many jobs.")]


@overload
def length_s(text: str, option: str) -> float: ...
@overload
def length_s(text: str | None, option: str) -> float | None: ...
def length_s(text: str | None, option: str) -> float | None:
    """Seconds of an option's length. Raises UserError naming the option."""
    if text is None:
        return None
    try:
        return parse_length(text)
    except ValueError as error:
        told, _, fix = str(error).partition("; ")
        raise UserError(told, field=option, fix=fix) from None
