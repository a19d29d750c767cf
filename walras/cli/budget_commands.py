"""`walras admin credit` and `walras money --budgets`: what may be used, how much of it is, and what is added to it."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from walras.cli.arguments import NoHeaderOption, OutputOption
from walras.cli.session import with_client
from walras.cli.terminal_output import Column, Listing, OutputFormat, dash, show_json, show_line, show_listing
from walras.errors import UserError

if TYPE_CHECKING:
    from walras.budgets import BudgetView

#: Formats of amounts, by unit.
_UNITS = {"usd": "USD", "accelerator_h": "acc-h", "fair_share_h": "share-h"}


def credit_command(
    project: Annotated[
        str | None, typer.Option("--project", "-p", metavar="NAME", help="The project whose budget it is for.")
    ] = None,
    user: Annotated[
        str | None, typer.Option("--user", "-u", metavar="NAME", help="The user whose budget it is for.")
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", metavar="NAME", help="The group whose budget it is for.")
    ] = None,
    usd: Annotated[float | None, typer.Option("--usd", help="USD to add.")] = None,
    accelerator_hours: Annotated[
        float | None, typer.Option("--accelerator-hours", help="Accelerator-hours to add.")
    ] = None,
    fair_share_hours: Annotated[
        float | None, typer.Option("--fair-share-hours", help="Fair-share hours to add.")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Kept with it.")] = "",
    show: Annotated[bool, typer.Option("--list", help="List what was added, newest first.")] = False,
    output: OutputOption = OutputFormat.TABLE,
    no_header: NoHeaderOption = False,
) -> None:
    """Add to a budget of a project, user or group: pre-paid use."""
    amounts = {"usd": usd, "accelerator_h": accelerator_hours, "fair_share_h": fair_share_hours}
    given = {name: amount for name, amount in amounts.items() if amount is not None}
    if show:
        if given or project or user or group or reason:
            raise UserError("a list takes nothing else", field="--list", fix="leave the other options out")
        _show_credits(output, header=not no_header)
        return
    if len(given) != 1:
        fix = "give one of --usd, --accelerator-hours and --fair-share-hours"
        raise UserError("how much is added", field="--usd", fix=fix)
    whom: dict[str, Any] = {"project": project, "user": user, "group": group}
    body = given | {name: value for name, value in whom.items() if value} | {"reason": reason}
    found = with_client(lambda client: client.add_credit(body))
    if output is OutputFormat.JSON:
        show_json(found.model_dump(mode="json"))
        return
    show_line(f"credit {found.id}: {found.amount:g} {_UNITS[found.unit]} for {found.whose or 'the cluster'}")


def _show_credits(output: OutputFormat, *, header: bool) -> None:
    found = with_client(lambda client: client.credits())
    columns = [Column("ID", right=True), Column("AT"), Column("WHOSE", shrinks=True), Column("ADDED", right=True)]
    columns += [Column("BY", shrinks=True), Column("REASON", shrinks=True)]
    rows = [
        [str(row.id), row.at, row.whose or "cluster", f"{row.amount:g} {_UNITS[row.unit]}", row.created_by,
         dash(row.reason)]
        for row in found
    ]  # fmt: skip
    data = [row.model_dump(mode="json") for row in found]
    show_listing(Listing(columns, rows, data), output, header=header)


def show_budgets(output: OutputFormat, *, header: bool) -> None:
    """Print the budgets that the caller may see."""
    found = with_client(lambda client: client.budgets())
    columns = [Column("BUDGET OF", shrinks=True), Column("EVERY")]
    columns += [Column(name, right=True) for name in ("USED", "LIMIT", "LEFT", "CREDITED", "AN HOUR")]
    columns += [Column("FILLED AGAIN"), Column("STATE")]
    data = [row.model_dump(mode="json") for row in found]
    show_listing(Listing(columns, [_budget_row(row) for row in found], data), output, header=header)


def budget_line(row: "BudgetView") -> str:
    """Returns a budget in a sentence."""
    period = f" this {row.every}" if row.every.isalpha() else f" in these {row.every}" if row.every else ""
    refills = f", filled again {row.refills}" if row.refills else ""
    unit = _UNITS[row.unit]
    used, closed = f"{row.used:.2f} of {row.limit:g} {unit} used", "; no job of it starts" if row.closed else ""
    return f"budget of {row.whose or 'the cluster'}: {used}{period}{refills}{closed}"


def _budget_row(row: "BudgetView") -> list[str]:
    unit = _UNITS[row.unit]
    return [
        row.whose or "cluster",
        row.every or "in all",
        f"{row.used:.2f} {unit}",
        f"{row.limit:g} {unit}",
        f"{row.limit - row.used:.2f} {unit}",
        f"{row.credited:g}" if row.credited else "-",
        f"{row.per_h:.2f}",
        dash(row.refills or ""),
        "closed" if row.closed else "open",
    ]
