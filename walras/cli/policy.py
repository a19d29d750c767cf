"""`walras policy show|set|list`: the policy in force, and changing it without a restart."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from walras.cli.loading import load
from walras.cli.options import Output
from walras.cli.output import OutputFormat, show_json, show_line
from walras.cli.session import with_client

if TYPE_CHECKING:
    from walras.api import PolicyView

policy_commands = typer.Typer(help="The policy in force.", no_args_is_help=True)


@policy_commands.command("show")
def show_policy(output: Output = OutputFormat.TABLE) -> None:
    """Show the policy in force, as a policy file."""
    _show(with_client(lambda client: client.policy()), output)


@policy_commands.command("set")
def set_policy(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A policy file.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check it; change nothing.")] = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Put a policy file in force, without a restart (administrators)."""
    from walras.config import load_mapping

    written = load_mapping(file)
    view = with_client(lambda client: client.set_policy(written, dry_run=dry_run))
    _show(view, output)
    if output is OutputFormat.TABLE:
        show_line("# valid; nothing was changed" if dry_run else f"# version {view.version} is in force")


@policy_commands.command("list")
def list_policies(output: Output = OutputFormat.TABLE) -> None:
    """List the policies that this installation knows."""
    names: list[str] = sorted(load("optimizer.registry").names())
    if output is OutputFormat.JSON:
        show_json(names)
    else:
        for name in names:
            show_line(name)


def _show(view: "PolicyView", output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        show_json(view.model_dump(mode="json"))
        return
    from walras.yaml_text import dump_yaml

    by = f" by {view.changed_by}" if view.changed_by else ""
    show_line(f"# version {view.version}, in force since {view.changed_at}{by}")
    written = {"policy": {"name": view.name, "parameters": view.parameters}, "rules": view.rules}
    for line in dump_yaml(written).splitlines():
        show_line(line)
