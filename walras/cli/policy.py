"""`walras policy show|set|list`: the policies that there are, the one in force, and changing it without a restart."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walras.cli.options import NoHeader, Output
from walras.cli.output import Column, Listing, OutputFormat, dash, show_json, show_line, show_listing
from walras.cli.session import with_client

if TYPE_CHECKING:
    from optimizer.describing import PolicyDescription
    from walras.api import PolicyView

policy_commands = typer.Typer(help="Policies: which there are, and which is in force.", no_args_is_help=True)


@policy_commands.command("show")
def policy_show_command(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A policy to describe; without it: the one in force.")
    ] = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Describe a policy: formula, source, parameters. Without a name: the one in force, as a policy file."""
    if name is None:
        _show(with_client(lambda client: client.policy()), output)
        return
    from optimizer.describing import describe

    described = describe(name)
    if output is OutputFormat.JSON:
        show_json(asdict(described))
    else:
        _show_description(described)


@policy_commands.command("set")
def policy_set_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A policy file.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check it; change nothing.")] = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Put a policy file in force, without a restart (administrators)."""
    from walras.config import load_mapping

    written = load_mapping(file)
    view = with_client(lambda client: client.set_policy(written, dry_run=dry_run))
    _show(view, output, dry_run=dry_run)
    if output is OutputFormat.TABLE:
        show_line("# valid; nothing was changed" if dry_run else f"# version {view.version} is in force")


@policy_commands.command("list")
def policy_list_command(output: Output = OutputFormat.TABLE, no_header: NoHeader = False) -> None:
    """List the policies that this installation knows. No server is needed."""
    from optimizer.describing import describe
    from optimizer.registry import names

    described = [describe(name) for name in sorted(names())]
    columns = [
        Column("POLICY"),
        Column("FAMILY"),
        Column("IN A SENTENCE", shrinks=True),
        Column("SOURCE", shrinks=True),
    ]
    rows = [[each.name, each.family, each.summary, dash(each.source)] for each in described]
    data = [
        {"name": each.name, "family": each.family, "summary": each.summary, "source": each.source} for each in described
    ]
    show_listing(Listing(columns, rows, data), output, header=not no_header)


def _show(view: "PolicyView", output: OutputFormat, *, dry_run: bool = False) -> None:
    if output is OutputFormat.JSON:
        show_json(view.model_dump(mode="json"))
        return
    from walras.yaml_text import dump_yaml

    by = f" by {view.changed_by}" if view.changed_by else ""
    show_line(f"# version {view.version}" + (", if set" if dry_run else f", in force since {view.changed_at}{by}"))
    written = {"policy": {"name": view.name, "parameters": view.parameters}, "rules": view.rules}
    for line in dump_yaml(written).splitlines():
        show_line(line)


def _show_description(described: "PolicyDescription") -> None:
    prices = f"; prices in {described.price_unit}" if described.price_unit else ""
    show_line(f"{described.name} ({described.family}{prices})")
    show_line("")
    for line in described.about.splitlines():
        show_line(line)
    show_line("")
    if not described.parameters:
        show_line("It takes no parameters.")
    for parameter in described.parameters:
        unit = f" {parameter.unit}" if parameter.unit else ""
        allowed = f" ({parameter.allowed})" if parameter.allowed else ""
        show_line(f"{parameter.name}: {parameter.type}{allowed}, default {_default(parameter.default)}{unit}")
        show_line(f"    {dash(parameter.description)}")


def _default(value: Any) -> str:
    from walras.yaml_text import dump_yaml

    return dump_yaml([value])[2:].strip().replace("\n", " ") if not isinstance(value, list) else str(value)
