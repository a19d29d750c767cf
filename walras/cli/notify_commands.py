"""`walras notify`: where you are told of what becomes of your jobs, and of lost machines."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from walras.cli.arguments import NoHeaderOption, OutputOption
from walras.cli.session import with_client
from walras.cli.terminal_output import Column, Listing, OutputFormat, dash, show_json, show_line, show_listing, warn
from walras.errors import UserError

if TYPE_CHECKING:
    from walras.notifications import ChannelView

notify_commands = typer.Typer(
    help="Notify me by webhook, chat or mail when jobs fail, finish, wait too long or may be late.",
    no_args_is_help=True,
)

ChannelArgument = Annotated[int, typer.Argument(metavar="ID", min=1, help="Number, as `walras notify list` has it.")]
_DEFAULT_KINDS = "failed,finished"
_LONGEST_URL = 2000


@notify_commands.command("add")
def notify_add_command(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL", help="https://... for a webhook, a chat or mail address of Apprise, or - for standard input."
        ),
    ],
    on: Annotated[
        str,
        typer.Option(
            "--on",
            metavar="KINDS",
            help="Of failed,finished,at_risk,budget,stuck,idle and, for operators, machine_lost.",
        ),
    ] = _DEFAULT_KINDS,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Be told of events at an address. The key that a webhook's notifications are signed with is printed once."""
    kinds = _kinds(on)
    address = (sys.stdin.read(_LONGEST_URL + 2) if url == "-" else url).strip()
    made = with_client(lambda client: client.add_channel(address, kinds))
    if output is OutputFormat.JSON:
        show_json(made.model_dump(mode="json"))
        return
    if made.key:
        # Only the secret goes to standard output, so that it can go straight into a file.
        show_line(made.key)
    signed = "; the receiver checks `webhook-signature` with the key" if made.key else ""
    warn(f"channel {made.id}: {made.shown} hears of {', '.join(made.kinds)}{signed}", f"walras notify test {made.id}")


def _kinds(written: str) -> list[str]:
    from walras.notifications import CHOICES

    kinds = [each.strip().lower().replace("-", "_") for each in written.split(",") if each.strip()]
    unknown = [each for each in kinds if each not in CHOICES]
    if unknown or not kinds:
        told = f"{unknown[0][:40]!r} is nothing to be told of" if unknown else "nothing is to be told"
        raise UserError(told, field="--on", fix=f"choose of {','.join(CHOICES)}")
    return list(dict.fromkeys(kinds))


@notify_commands.command("list")
def notify_list_command(output: OutputOption = OutputFormat.TABLE, no_header: NoHeaderOption = False) -> None:
    """List where you are told of events, and what came of it. Of an address only its host is shown."""
    channels = with_client(lambda client: client.channels())
    columns = [
        Column("ID", right=True),
        Column("TO", shrinks=True),
        Column("ON", shrinks=True),
        Column("WAITING", right=True),
        Column("DELIVERED", right=True),
        Column("FAILED", right=True),
        Column("DROPPED", right=True),
        Column("LAST"),
        Column("PROBLEM", shrinks=True),
    ]
    data = [channel.model_dump(mode="json") for channel in channels]
    show_listing(Listing(columns, [_row(each) for each in channels], data), output, header=not no_header)


def _row(channel: "ChannelView") -> list[str]:
    counts = [channel.waiting, channel.delivered, channel.failed, channel.dropped]
    return [
        str(channel.id),
        channel.shown,
        ",".join(channel.kinds),
        *map(str, counts),
        dash(channel.delivered_at),
        dash(channel.problem),
    ]


@notify_commands.command("remove")
def notify_remove_command(channel: ChannelArgument) -> None:
    """Be told at an address no more."""
    gone = with_client(lambda client: client.remove_channel(channel))
    show_line(f"channel {gone.id} ({gone.shown}) is removed")


@notify_commands.command("test")
def notify_test_command(channel: ChannelArgument) -> None:
    """Send a test to an address, and say what came of it. Exits with 1 if the receiver did not take it."""
    tested = with_client(lambda client: client.test_channel(channel))
    if tested.problem:
        warn(f"walras: channel {tested.id} ({tested.shown}): {tested.problem}")
        raise typer.Exit(1)
    show_line(f"channel {tested.id} ({tested.shown}) took it")
