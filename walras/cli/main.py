"""The `walras` command: its sub-commands, and how errors become messages and exit codes.

Exit codes: 0 done, 1 something failed, 2 the user's input, 75 no server answers, 130 Ctrl-C; `wait` adds its own.
This file and what it imports load nothing heavy: the client, the models and the daemons come with the command that
needs them.
"""

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import walras
from walras.cli.admin import admin_commands
from walras.cli.cluster import nodes_command, prices_command
from walras.cli.control import cancel_command, hold_command, release_command, update_command, wait_command
from walras.cli.daemons import agent_command, demo_command, server_command
from walras.cli.jobs import explain_command, jobs_command, queue_command, show_command
from walras.cli.loading import own_packages
from walras.cli.logs import logs_command
from walras.cli.money import money_command
from walras.cli.offers import offers_command
from walras.cli.output import show_line, warn
from walras.cli.piped import ends_with_its_reader
from walras.cli.plan import plan_commands
from walras.cli.policy import policy_commands
from walras.cli.profile import profile_commands
from walras.cli.recommend import recommend_command
from walras.cli.search import search_command
from walras.cli.simulate import simulate_commands
from walras.cli.solve import check_command, solve_command
from walras.cli.submit import submit_command
from walras.cli.workload import workload_commands
from walras.errors import ServerUnreachable, UserError, WalrasError

EXIT_FAILED, EXIT_USER, EXIT_UNREACHABLE, EXIT_INTERRUPTED = 1, 2, 75, 130


class ErrorsToExitCodes(TyperGroup):
    """The outermost group: what a command raises becomes a message and an exit code, never a traceback for users."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with own_packages():
                return super().invoke(ctx)
        except UserError as error:
            field = [f"field: {error.field}"] if error.field and error.field not in str(error) else []
            warn(f"walras: {error}", *field, *([f"fix: {error.fix}"] if error.fix else []))
            raise typer.Exit(EXIT_USER) from None
        except ServerUnreachable as error:
            warn(f"walras: {error}", "fix: check WALRAS_SERVER; `walras server --data DIR` starts a server")
            raise typer.Exit(EXIT_UNREACHABLE) from None
        except WalrasError as error:
            warn(f"walras: {error}")
            raise typer.Exit(EXIT_FAILED) from None
        except OSError as error:
            # A path somebody gave, or a disk: what names no file is a mistake of ours, and keeps its traceback.
            if error.filename is None:
                raise
            warn(f"walras: {error.filename}: {error.strerror}", "fix: check the path, its permissions and its disk")
            raise typer.Exit(EXIT_USER) from None
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None


app = typer.Typer(
    name="walras",
    cls=ErrorsToExitCodes,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def version_command() -> None:
    """Print the version."""
    show_line(walras.__version__)


def _version_and_done(asked: bool) -> None:
    if asked:
        version_command()
        raise typer.Exit


@app.callback(help="Schedule PyTorch jobs on unlike accelerators, by prices.")
def _before_every_command(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version_and_done, is_eager=True, help="Print the version, and stop."),
    ] = False,
) -> None:
    """What may stand before a command."""


_COMMANDS: dict[str, Callable[..., None]] = {
    "submit": submit_command,
    "queue": queue_command,
    "jobs": jobs_command,
    "show": show_command,
    "logs": logs_command,
    "explain": explain_command,
    "wait": wait_command,
    "cancel": cancel_command,
    "hold": hold_command,
    "release": release_command,
    "update": update_command,
    "nodes": nodes_command,
    "prices": prices_command,
    "money": money_command,
    "offers": offers_command,
    "recommend": recommend_command,
    "search": search_command,
    "solve": solve_command,
    "check": check_command,
    "server": server_command,
    "agent": agent_command,
    "demo": demo_command,
    "version": version_command,
}
for _name, _command in _COMMANDS.items():
    app.command(_name)(_command)
app.add_typer(plan_commands, name="plan")
app.add_typer(policy_commands, name="policy")
app.add_typer(admin_commands, name="admin")
app.add_typer(simulate_commands, name="simulate")
app.add_typer(workload_commands, name="workload")
app.add_typer(profile_commands, name="profile")


def main() -> None:
    """The console script."""
    with ends_with_its_reader():
        try:
            app()
        except KeyboardInterrupt:
            sys.exit(EXIT_INTERRUPTED)
