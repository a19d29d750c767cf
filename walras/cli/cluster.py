"""`walras nodes`, `walras prices`: machines, and what their accelerators are worth."""

from typing import TYPE_CHECKING, Annotated

import typer

from walras.cli.options import NoHeader, Output
from walras.cli.output import STATE_STYLES, Column, Listing, OutputFormat, dash, joined, show_line, show_listing
from walras.cli.session import with_client
from walras.units import format_count, format_length, format_money

if TYPE_CHECKING:
    from walras.api import CertificateView, NodeView, PriceView


def nodes_command(output: Output = OutputFormat.TABLE, no_header: NoHeader = False) -> None:
    """List machines, what is free on them, and which jobs they run."""
    found = with_client(lambda client: client.nodes())
    columns = (
        Column("NODE", shrinks=True),
        Column("ACCELERATOR"),
        Column("MARKET", spare=2),
        Column("ZONE", shrinks=True, spare=3),
        Column("STATE"),
        Column("FREE", right=True),
        Column("OF", right=True),
        Column("JOBS", shrinks=True),
        Column("HEARD", right=True, spare=1),
        Column("DETAIL", shrinks=True),
    )
    data = [node.model_dump(mode="json") for node in found]
    show_listing(
        Listing(columns, [_node_row(node) for node in found], data, STATE_STYLES), output, header=not no_header
    )


def _node_row(node: "NodeView") -> list[str]:
    return [
        node.node_id,
        node.accelerator + (" (emulated)" if node.emulated else ""),
        node.market,
        node.zone,
        node.state,
        str(node.free),
        str(node.accelerators),
        joined(node.jobs),
        "-" if node.last_heard_s is None else f"{format_length(node.last_heard_s)} ago",
        dash(node.detail),
    ]


def prices_command(
    whole: Annotated[
        bool, typer.Option("--whole", help="Also what whole gangs can reach at best (up to 64 accelerators; seconds).")
    ] = False,
    output: Output = OutputFormat.TABLE,
    no_header: NoHeader = False,
) -> None:
    """List the price of every pool at the last solve, beside what the market asks."""
    found = with_client(lambda client: client.prices(whole=whole))
    columns = (
        Column("POOL", shrinks=True),
        Column("ACCELERATOR", spare=3),
        Column("MARKET", spare=2),
        Column("PRICE", right=True),
        Column("UNIT", shrinks=True),
        Column("MARKET PRICE", right=True),
        Column("FREE", right=True),
        Column("OF", right=True),
        Column("RENTED", right=True, spare=1),
    )
    data = found.model_dump(mode="json")
    show_listing(Listing(columns, [_price_row(price) for price in found.items], data), output, header=not no_header)
    if found.certificate is not None and output is OutputFormat.TABLE:
        show_line(_certified(found.certificate))
        if whole and found.certificate.status != "empty":
            show_line(_whole_gangs(found.certificate))


def _price_row(price: "PriceView") -> list[str]:
    return [
        price.pool,
        price.accelerator,
        price.market,
        f"{price.price:.4g}",
        price.unit,
        f"{format_money(price.market_usd_per_h)}/h",
        format_count(price.free),
        format_count(price.capacity),
        f"{price.rented_machines} of {price.quota_machines}" if price.quota_machines else "-",
    ]


def _certified(certificate: "CertificateView") -> str:
    if certificate.status == "empty":
        return f"at the last solve ({certificate.solved_at}) no job could use any pool: no prices"
    ran = "" if certificate.realised is None else f"; realised over the last rounds {certificate.realised:.1%} of it"
    return (
        f"solved {certificate.solved_at} by {certificate.path}: {certificate.status}, objective "
        f"{certificate.objective:.6g}, bound {certificate.bound:.6g}, solve gap {certificate.gap:.2%}{ran}"
    )


def _whole_gangs(certificate: "CertificateView") -> str:
    if certificate.integral_bound is None:
        return "no integral bound of the round: more than 64 accelerators, a policy that bounds nothing, or out of time"
    lost = abs(certificate.integral_bound - certificate.bound) / max(abs(certificate.bound), 1e-12)
    return (
        f"integral bound of the round, for whole gangs: {certificate.integral_bound:.6g}, {lost:.1%} short of the bound"
    )
