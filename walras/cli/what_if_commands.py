"""`walras whatif`: what would be different if something else were so, before anything is done."""

from pathlib import Path
from typing import Annotated, Any

import typer

from walras.cli.arguments import OutputOption, example_or_path
from walras.cli.job_files import read_job_file
from walras.cli.policy_commands import policy_mapping
from walras.cli.session import with_client
from walras.cli.terminal_output import OutputFormat, show_json
from walras.cli.what_if_text import show_what_if
from walras.errors import UserError


def what_if_command(
    add: Annotated[
        list[str] | None,
        typer.Option("--add", metavar="NxTYPE[:MARKET]", help="Accelerators more, such as 4xh100 or 8xa100:spot."),
    ] = None,
    remove: Annotated[
        list[str] | None,
        typer.Option("--remove", metavar="NAME", help="Without this machine, pool or accelerator type."),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="NAME|FILE",
            help="With this policy in force: a name, a policy file, or example:NAME.",
            callback=example_or_path("policies"),
        ),
    ] = None,
    submit: Annotated[
        list[Path] | None, typer.Option("--submit", metavar="FILE", help="With this job in the queue.")
    ] = None,
    no_limit: Annotated[
        list[str] | None, typer.Option("--no-limit", metavar="PROJECT", help="Without the limits set on a project.")
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Say what would be different if something else were so; nothing is changed."""
    from walras.what_if import WhatIfRequest

    asked = WhatIfRequest.model_validate(
        {
            "add": [parse_added(each) for each in add or ()],
            "remove": remove or [],
            "policy": None if policy is None else policy_mapping(policy),
            "submit": [_job_of(each) for each in submit or ()],
            "no_limit": no_limit or [],
        }
    )
    found = with_client(lambda client: client.what_if(asked))
    if output is OutputFormat.JSON:
        show_json(found.model_dump(mode="json"))
    else:
        show_what_if(found)


def parse_added(text: str) -> dict[str, Any]:
    """Returns `4xh100:spot` as a field of the request. Raises UserError."""
    count, times, rest = text.partition("x")
    accelerator, colon, market = rest.partition(":")
    markets = ("owned", "spot", "on_demand")
    if not times or not count.isdecimal() or not accelerator or (colon and market.replace("-", "_") not in markets):
        raise UserError(f"{text!r} says no number of accelerators of a type", field="--add", fix="such as 4xh100:spot")
    added: dict[str, Any] = {"accelerator": accelerator, "accelerators": int(count)}
    return added | ({"market": market.replace("-", "_")} if colon else {})


def _job_of(path: Path) -> dict[str, Any]:
    from walras.spec.job_spec import spec_mapping

    return spec_mapping(read_job_file(str(path), [], [], []))
