"""`walras admin token|drain|resume|replay`: what an administrator does."""

from pathlib import Path
from typing import Annotated

import typer

from walras.cli.options import Output, length_s
from walras.cli.output import OutputFormat, show_json, show_line, warn
from walras.cli.session import with_client

admin_commands = typer.Typer(help="For administrators.", no_args_is_help=True)

Node = Annotated[str, typer.Argument(metavar="NODE", help="A machine, as `walras nodes` names it.")]


@admin_commands.command("token")
def admin_token_command(
    user: Annotated[str, typer.Argument(metavar="USER", help="Whose token it is.")],
    role: Annotated[str, typer.Option("--role", help="viewer, user, operator or admin.")] = "user",
    project: Annotated[
        list[str] | None, typer.Option("--project", "-p", help="A project it may use; the first is the default.")
    ] = None,
    expires: Annotated[str | None, typer.Option("--expires", help="Valid for this long: 12h, 90d.")] = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Make a token. It is printed once; only its hash is kept."""
    expires_in_s = length_s(expires, "--expires")
    made = with_client(
        lambda client: client.create_token(user, role, project or ["default"], expires_in_s=expires_in_s)
    )
    if output is OutputFormat.JSON:
        show_json(made.model_dump(mode="json"))
        return
    # The secret alone on standard output, so that it can go straight into a file.
    show_line(made.token)
    warn(f"a token for {made.user} ({made.role}); keep it in a file that only you can read (chmod 600)")


@admin_commands.command("drain")
def admin_drain_command(node: Node) -> None:
    """Give a machine no new jobs; those on it checkpoint and go on elsewhere."""
    with_client(lambda client: client.drain_node(node))
    show_line(f"node {node} takes no new jobs")


@admin_commands.command("resume")
def admin_resume_command(node: Node) -> None:
    """Use a drained or quarantined machine again."""
    with_client(lambda client: client.resume_node(node))
    show_line(f"node {node} takes jobs again")


@admin_commands.command("replay")
def admin_replay_command(
    data: Annotated[Path, typer.Option("--data", help="Folder of a server, running or not.")],
) -> None:
    """Feed a server's journal through a fresh scheduler and compare the commands. Exit code 1 if they differ."""
    from scheduler.live.records.replay import replay_folder

    report = replay_folder(data)
    show_line(f"{report.events} events, {report.commands} commands, {report.generations} starts of the server")
    if not report.identical:
        first = report.differences[0]
        warn(f"{report.different} events differ, first {first.event.type} at {first.event.at:.3f} s")
        raise typer.Exit(1)
    show_line("identical")
