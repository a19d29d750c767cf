"""`walras reserve`: machines kept for a project, or for maintenance, for a time; without arguments, which ones are."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from walras.cli.arguments import NoHeaderOption, OutputOption, refuse_options
from walras.cli.session import with_client
from walras.cli.terminal_output import Column, Listing, OutputFormat, dash, show_json, show_line, show_listing, warn
from walras.errors import UserError

if TYPE_CHECKING:
    from walras.reservations import ReservationView


_NOW = "+0s"


def reserve_command(
    accelerators: Annotated[
        str | None, typer.Argument(metavar="TYPE:N", help="Accelerators, such as a100:8; whole machines are taken.")
    ] = None,
    node: Annotated[
        list[str] | None, typer.Option("--node", metavar="NAME", help="This machine, in place of TYPE:N; repeatable.")
    ] = None,
    start: Annotated[
        str, typer.Option("--from", metavar="WHEN", help="Its beginning: 2026-12-01T08:00:00Z, or +2h.")
    ] = _NOW,
    end: Annotated[str | None, typer.Option("--until", metavar="WHEN", help="Its end.")] = None,
    project: Annotated[
        str | None, typer.Option("--project", "-p", metavar="NAME", help="Only jobs of this project run there.")
    ] = None,
    maintenance: Annotated[
        bool, typer.Option("--maintenance", help="No job runs there: the machines are empty when it begins.")
    ] = False,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Shown to those who wait.")] = "",
    cancel: Annotated[int | None, typer.Option("--cancel", metavar="ID", min=1, help="Cancel this one.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="List also the newest of those that are over.")] = False,
    output: OutputOption = OutputFormat.TABLE,
    no_header: NoHeaderOption = False,
) -> None:
    """Reserve machines for a project, or for maintenance; jobs are planned around that.

    Without anything to reserve, lists reservations: for whom, when, on which machines, and what stands in their way.
    """
    of_new = {"--until": end, "--project": project, "--maintenance": maintenance, "--reason": reason}
    of_new["--from"] = None if start == _NOW else start
    if cancel is not None:
        others = of_new | {"TYPE:N": accelerators, "--node": node, "--all": everything}
        refuse_options(others, "says nothing of what is cancelled", "give --cancel ID alone")
        found = with_client(lambda client: client.cancel_reservation(cancel))
    elif accelerators is None and not node:
        refuse_options(of_new, "is of a new reservation", "add TYPE:N, such as a100:8, or --node NAME")
        _list_reservations(everything, output, header=not no_header)
        return
    else:
        refuse_options({"--all": everything}, "is of the list", "leave out what is to be reserved")
        body = _asked(accelerators, node or [], start, end) | {"maintenance": maintenance, "reason": reason}
        if maintenance == bool(project):
            raise UserError("for whom is it", field="--project", fix="give either --project or --maintenance")
        found = with_client(lambda client: client.reserve(body | ({"project": project} if project else {})))
    if output is OutputFormat.JSON:
        show_json(found.model_dump(mode="json"))
        return
    whom = "maintenance" if found.maintenance else f"project {found.project}"
    what = f"{found.reserved} accelerators on {', '.join(found.nodes)}"
    ended = "is cancelled" if found.state == "cancelled" else f"from {found.starts} until {found.ends}"
    show_line(f"reservation {found.id} for {whom}: {what}, {ended}")
    for note in found.notes:
        warn(note)


def _asked(accelerators: str | None, nodes: list[str], start: str, end: str | None) -> dict[str, Any]:
    """Returns the fields of the request that say what and when. Raises UserError."""
    if (accelerators is None) is not bool(nodes):
        raise UserError("what is to be reserved", field="TYPE:N", fix="give either TYPE:N, or --node NAME")
    from walras.spec.field_types import parse_instant

    if end is None:
        raise UserError("a reservation has an end", field="--until", fix="add --until, such as --until +8h")
    for option, text in (("--from", start), ("--until", end)):
        try:
            parse_instant(text, now=0.0)  # the server knows its now; here only the writing is looked at
        except ValueError as error:
            raise UserError(str(error), field=option) from None
    body: dict[str, Any] = {"starts": start, "ends": end}
    if accelerators is None:
        return body | {"nodes": nodes}
    kind, colon, count = accelerators.rpartition(":")
    if not colon or not kind or not count.isascii() or not count.isdecimal() or not int(count[:9]):
        raise UserError(f"{accelerators[:60]!r} says no number of a type", field="TYPE:N", fix="such as a100:8")
    return body | {"accelerator": kind, "accelerators": int(count[:9])}


def _list_reservations(everything: bool, output: OutputFormat, *, header: bool) -> None:
    found = with_client(lambda client: client.reservations(everything=everything))
    columns = [
        Column("ID", right=True),
        Column("FOR", shrinks=True),
        Column("STATE"),
        Column("FROM"),
        Column("UNTIL"),
        Column("ACCELERATORS", right=True),
        Column("MACHINES", shrinks=True),
        Column("NOTES", shrinks=True),
    ]
    data = [each.model_dump(mode="json") for each in found]
    show_listing(Listing(columns, [_row(each) for each in found], data), output, header=header)


def _row(found: "ReservationView") -> list[str]:
    notes = [*([found.reason] if found.reason else []), *found.notes]
    return [
        str(found.id),
        "maintenance" if found.maintenance else found.project,
        found.state,
        found.starts,
        found.ends,
        str(found.reserved),
        ",".join(found.nodes),
        dash("; ".join(notes)),
    ]
