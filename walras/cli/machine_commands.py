"""`walras nodes`: the machines, what is free on them, and what runs there."""

from typing import TYPE_CHECKING, Annotated

import typer

from walras.cli.arguments import NoHeaderOption, OutputOption, WatchOption
from walras.cli.session import with_client
from walras.cli.terminal_output import (
    STATE_STYLES,
    Column,
    Listing,
    OutputFormat,
    dash,
    joined,
    show_listing,
    watch_listing,
)
from walras.units import format_length

if TYPE_CHECKING:
    from walras.api import NodeView
    from walras.client import Client


def nodes_command(
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            "-v",
            help="Also show what the devices do, the tools that jobs may need, and each agent's release, protocol, boot"
            " and problem.",
        ),
    ] = False,
    watch: WatchOption = False,
    output: OutputOption = OutputFormat.TABLE,
    no_header: NoHeaderOption = False,
) -> None:
    """List the machines, their free accelerators, and the jobs they run."""
    if watch:
        with_client(lambda client: watch_listing(lambda: _listed_nodes(client, verbose), output, header=not no_header))
        return
    show_listing(with_client(lambda client: _listed_nodes(client, verbose)), output, header=not no_header)


async def _listed_nodes(client: "Client", verbose: bool) -> Listing:
    found = await client.nodes()
    columns: tuple[Column, ...] = (
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
    rows = [_node_row(node) for node in found]
    if any(node.machine for node in found):  # parts stand below each other: they sort by their machine's name
        columns = (Column("MACHINE", shrinks=True), *columns)
        rows = [[node.machine or node.node_id, *row] for row, node in zip(rows, found, strict=True)]
    if verbose:
        columns += (
            Column("BUSY", shrinks=True),
            Column("MEMORY", right=True),
            Column("TEMP", right=True),
            Column("POWER", right=True),
            Column("TOOLS", shrinks=True),
            Column("RELEASE"),
            Column("PROTOCOL", right=True),
            Column("BOOT"),
            Column("PROBLEM", shrinks=True),
        )
        rows = [row + _agent_cells(node) for row, node in zip(rows, found, strict=True)]
    data = [node.model_dump(mode="json") for node in found]
    return Listing(columns, rows, data, STATE_STYLES)


def _agent_cells(node: "NodeView") -> list[str]:
    from walras.device_samples import memory_text, power_text, temperature_text, utilization_text

    texts = (utilization_text, memory_text, temperature_text, power_text)
    devices = [dash(text(node.devices)) for text in texts]
    devices.append("-" if node.tools is None else dash(",".join(node.tools)))
    return [*devices, dash(node.version), dash(node.protocol), dash(node.boot), dash(node.problem)]


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
