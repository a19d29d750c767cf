"""`walras share`: where projects and users stand."""

from typing import TYPE_CHECKING, Annotated

import typer

from walras.cli.arguments import NoHeaderOption, OutputOption
from walras.cli.session import with_client
from walras.cli.terminal_output import Column, Listing, OutputFormat, dash, show_line, show_listing
from walras.units import format_length

if TYPE_CHECKING:
    from walras.people import ShareView


def share_command(
    project: Annotated[str | None, typer.Option("--project", "-p", help="Only this project and its users.")] = None,
    output: OutputOption = OutputFormat.TABLE,
    no_header: NoHeaderOption = False,
) -> None:
    """Show what projects and users are entitled to, hold now, have used lately, and borrow."""
    shares = with_client(lambda client: client.share(project or ""))
    columns = [
        Column("NAME", shrinks=True),
        Column("WEIGHT", right=True),
        Column("ASKS FOR", right=True),
        Column("ENTITLED", right=True),
        Column("HOLDS", right=True),
        Column("UNITS", right=True),
        Column("USED LATELY", right=True),
        Column("OF ALL", right=True),
        Column("BORROWED", shrinks=True),
        Column("LIMITS", shrinks=True),
    ]
    data = [each.model_dump(mode="json") for each in shares]
    show_listing(Listing(columns, [_row(each) for each in shares], data), output, header=not no_header)
    if output is OutputFormat.TABLE and shares and not no_header:
        for each in shares:
            if each.because and "/" not in each.name:
                show_line(each.because)
        show_line(f"used lately: accelerator-hours, halved every {format_length(shares[0].half_life_s)}")


def _row(share: "ShareView") -> list[str]:
    indented = f"  {share.name.partition('/')[2]}" if "/" in share.name else share.name
    limits = [f"{scope} {most}" for scope, most in sorted(share.limits.items())]
    return [
        indented,
        f"{share.weight:g}",
        f"{share.demand:g}",
        f"{share.entitled:.1f}",
        f"{sum(share.held.values()):g}",
        f"{share.held_units:.1f}",
        f"{share.used_h:.1f} h",
        f"{share.used_part:.0%}",
        dash(", ".join(f"{loan.accelerators:.1f} of {loan.name}" for loan in share.borrowed)),
        dash(", ".join(limits)),
    ]
