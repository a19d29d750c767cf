"""`walras money`: what was spent, on whom and on what."""

from typing import TYPE_CHECKING, Annotated

import typer

from walras.cli.options import NoHeader, Output, Project
from walras.cli.output import Column, Listing, OutputFormat, dash, show_line, show_listing
from walras.cli.session import with_client
from walras.units import format_length, format_money

if TYPE_CHECKING:
    from walras.api import MoneyReport, MoneyRow


def money_command(
    by: Annotated[str, typer.Option("--by", help="Sum by project, user, job, pool or month.")] = "project",
    month: Annotated[str, typer.Option("--month", help="Only this month (UTC), such as 2026-11.")] = "",
    project: Project = None,
    output: Output = OutputFormat.TABLE,
    no_header: NoHeader = False,
) -> None:
    """Show what was spent until now, at the price of the time of use, beside what it would have cost on demand."""
    found = with_client(lambda client: client.money(by, month=month, project=project or ""))
    columns = (
        Column(by.upper(), shrinks=True),
        Column("HELD", right=True),
        Column("USED", right=True),
        Column("IDLE", right=True),
        Column("ON DEMAND", right=True),
    )
    data = found.model_dump(mode="json")
    show_listing(Listing(columns, [_row(row) for row in found.items], data), output, header=not no_header)
    if output is OutputFormat.TABLE:
        show_line(_total(found))


def _row(row: "MoneyRow") -> list[str]:
    return [
        dash(row.key),
        format_length(row.accelerator_s),
        format_money(row.usd),
        format_money(row.idle_usd),
        format_money(row.on_demand_usd),
    ]


def _total(found: "MoneyReport") -> str:
    words = (
        f"in all {format_money(found.total_usd)}: {format_money(found.used_usd)} used by jobs, "
        f"{format_money(found.idle_usd)} for rented machines that idled"
    )
    if found.on_demand_usd <= found.total_usd + 1e-9:
        return words
    saved = 1.0 - found.total_usd / found.on_demand_usd
    return f"{words}; all on demand {format_money(found.on_demand_usd)}, {saved:.0%} saved"
