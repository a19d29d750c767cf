"""`walras offers`: what clouds rent out, at which typical price, known since when."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from walras.cli.options import NoHeader, Output, length_s
from walras.cli.output import Column, Listing, OutputFormat, show_listing, warn
from walras.errors import UserError
from walras.units import format_money, format_size

if TYPE_CHECKING:
    from collections.abc import Iterable

    from walras.catalog import Catalog, Instance


def offers_command(
    cloud: Annotated[str | None, typer.Option("--cloud", help="Only this cloud's machines.")] = None,
    accelerator: Annotated[str | None, typer.Option("--accelerator", "-a", help="Only machines with this one.")] = None,
    catalog: Annotated[
        list[Path] | None, typer.Option("--catalog", help="A file or folder that adds to the catalog or overrides it.")
    ] = None,
    market: Annotated[
        bool, typer.Option("--market", help="What the spot pools of --cluster have cost, as their cloud tells it.")
    ] = False,
    cluster: Annotated[Path | None, typer.Option("--cluster", help="With it: a cluster file.")] = None,
    since: Annotated[str, typer.Option("--since", help="With it: how far back.")] = "24h",
    output: Output = OutputFormat.TABLE,
    no_header: NoHeader = False,
) -> None:
    """List the machines that clouds rent out, cheapest accelerator-hour first. Needs no server."""
    if market or cluster is not None:
        _show_market(cluster if market else None, since, output, header=not no_header)
        return
    from walras.names import canonical_accelerator

    wanted = accelerator
    if accelerator is not None:
        try:
            wanted = canonical_accelerator(accelerator)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--accelerator") from None
    known = read_catalog(catalog or ())
    found = known.offers(cloud, wanted)
    columns = (
        Column("CLOUD"),
        Column("INSTANCE", shrinks=True, least=16),
        Column("REGION", spare=1),
        Column("ACCELERATOR"),
        Column("OF", right=True),
        Column("MEMORY EACH", right=True, spare=2),
        Column("ON DEMAND", right=True),
        Column("SPOT", right=True),
        Column("PER ACCELERATOR", right=True),
        Column("AS OF", spare=3),
    )
    rows = [_row(entry, known) for entry in found]
    data = [entry.model_dump(mode="json") for entry in found]
    show_listing(Listing(columns, rows, data), output, header=not no_header)


def read_catalog(paths: "Iterable[Path]") -> "Catalog":
    """The catalog that comes with Walras, and those files and folders; rows that do not hold are left out, aloud."""
    from walras.catalog import load_catalog

    known = load_catalog(paths)
    for problem in known.problems:
        warn(f"walras: left out: {problem}")
    return known


def _show_market(cluster: Path | None, since: str, output: OutputFormat, *, header: bool) -> None:
    if cluster is None:
        raise UserError("prices of a market are those of a cluster's pools", fix="give both --market and --cluster")
    from scheduler.live.providers.aws_market import recorded_prices

    points = recorded_prices(cluster, length_s(since, "--since"))
    columns = (Column("POOL", shrinks=True), Column("SINCE"), Column("USD/H", right=True))
    rows = [[point.pool_id, point.since.isoformat(timespec="seconds"), f"{point.usd_per_h:g}"] for point in points]
    data = [{"pool": point.pool_id, "since": point.since.isoformat(), "usd_per_h": point.usd_per_h} for point in points]
    show_listing(Listing(columns, rows, data), output, header=header)


def _row(entry: "Instance", known: "Catalog") -> list[str]:
    facts = known.accelerators.get(entry.accelerator)
    cheapest = entry.usd_per_accelerator_h
    return [
        entry.cloud,
        entry.instance,
        entry.region,
        entry.accelerator,
        str(entry.accelerators),
        "-" if facts is None else format_size(facts.memory),
        _price(entry.on_demand_usd_per_h),
        _price(entry.spot_usd_per_h),
        "-" if cheapest == float("inf") else _price(cheapest),
        entry.as_of.isoformat(),
    ]


def _price(usd_per_h: float | None) -> str:
    return "-" if usd_per_h is None else f"{format_money(usd_per_h)}/h"
