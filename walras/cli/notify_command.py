"""`walras notify`: where you are told of what becomes of your jobs, and of lost machines."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from walras.cli.arguments import NoHeaderOption, OutputOption, refuse_options
from walras.cli.session import with_client
from walras.cli.terminal_output import OutputFormat, dash, show_as_json, show_items, show_line, warn
from walras.errors import UserError

if TYPE_CHECKING:
    from walras.resources.notifications import ChannelView

_DEFAULT_KINDS = "failed,finished"
_LONGEST_URL = 2000


def notify_command(
    url: Annotated[
        str | None,
        typer.Argument(
            metavar="[URL]",
            help="https://... for a webhook, a chat or mail address of Apprise, or - for standard input.",
        ),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="KINDS",
            help="Of failed,finished,at_risk,budget,stuck,idle and, for operators, machine_lost "
            f"(default: {_DEFAULT_KINDS}).",
        ),
    ] = None,
    remove: Annotated[int | None, typer.Option("--remove", metavar="ID", min=1, help="Remove an address.")] = None,
    test: Annotated[
        int | None, typer.Option("--test", metavar="ID", min=1, help="Send a test; exit code 1 if it was not taken.")
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
    no_header: NoHeaderOption = False,
) -> None:
    """Send my notifications to an address; without one, list the addresses and what came of each.

    The key that a webhook's notifications are signed with is printed once. Of an address only its host is listed.
    """
    if remove is not None or test is not None:
        other = {"URL": url, "--on": on, "--test": test if remove is not None else None}
        refuse_options(other, "is no part of --remove or --test", "leave it out")
    if remove is not None:
        gone = with_client(lambda client: client.remove_channel(remove))
        show_line(f"channel {gone.id} ({gone.shown}) is removed")
    elif test is not None:
        _test(test)
    elif url is not None:
        _add(url, on or _DEFAULT_KINDS, output)
    else:
        refuse_options({"--on": on}, "is of a new address", "give its URL too")
        _list(output, header=not no_header)


def _test(channel: int) -> None:
    tested = with_client(lambda client: client.test_channel(channel))
    if tested.problem:
        warn(f"walras: channel {tested.id} ({tested.shown}): {tested.problem}")
        raise typer.Exit(1)
    show_line(f"channel {tested.id} ({tested.shown}) took it")


def _add(url: str, on: str, output: OutputFormat) -> None:
    kinds = _event_kinds(on)
    address = (sys.stdin.read(_LONGEST_URL + 2) if url == "-" else url).strip()
    made = with_client(lambda client: client.add_channel(address, kinds))
    if show_as_json(made, output):
        return
    if made.key:
        # Only the secret goes to standard output, so that it can go straight into a file.
        show_line(made.key)
    signed = "; the receiver checks `webhook-signature` with the key" if made.key else ""
    warn(f"channel {made.id}: {made.shown} hears of {', '.join(made.kinds)}{signed}", f"walras notify --test {made.id}")


def _event_kinds(written: str) -> list[str]:
    from walras.resources.notifications import CHOICES

    kinds = [each.strip().lower().replace("-", "_") for each in written.split(",") if each.strip()]
    unknown = [each for each in kinds if each not in CHOICES]
    if unknown or not kinds:
        told = f"{unknown[0][:40]!r} is nothing to be told of" if unknown else "nothing is to be told"
        raise UserError(told, field="--on", fix=f"choose of {','.join(CHOICES)}")
    return list(dict.fromkeys(kinds))


def _list(output: OutputFormat, *, header: bool) -> None:
    channels = with_client(lambda client: client.channels())
    show_items(
        "ID> | TO~ | ON~ | WAITING> | DELIVERED> | FAILED> | DROPPED> | LAST | PROBLEM?9/",
        channels,
        _channel_row,
        output,
        header=header,
    )


def _channel_row(channel: "ChannelView") -> list[str]:
    counts = [channel.waiting, channel.delivered, channel.failed, channel.dropped]
    return [
        str(channel.id),
        channel.shown,
        ",".join(channel.kinds),
        *map(str, counts),
        dash(channel.delivered_at),
        dash(channel.problem),
    ]
