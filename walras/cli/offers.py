"""`walras offers`: what clouds rent out, at which typical price, known since when."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from walras.cli.options import NoHeader, Output
from walras.cli.output import Column, Listing, OutputFormat, show_listing, warn
from walras.units import format_money, format_size

if TYPE_CHECKING:
    from walras.catalog import Catalog, Instance


def offers(
    cloud: Annotated[str | None, typer.Option("--cloud", help="Only this cloud's machines.")] = None,
    accelerator: Annotated[str | None, typer.Option("--accelerator", "-a", help="Only machines with this one.")] = None,
    catalog: Annotated[
        list[Path] | None, typer.Option("--catalog", help="A file or folder that adds to the catalog or overrides it.")
    ] = None,
    output: Output = OutputFormat.TABLE,
    no_header: NoHeader = False,
) -> None:
    """List the machines that clouds rent out, cheapest accelerator-hour first. Needs no server."""
    from walras.catalog import load_catalog
    from walras.names import canonical_accelerator

    wanted = accelerator
    if accelerator is not None:
        try:
            wanted = canonical_accelerator(accelerator)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--accelerator") from None
    known = load_catalog(catalog or ())
    for problem in known.problems:
        warn(f"walras: left out: {problem}")
    found = known.offers(cloud, wanted)
    columns = (
        Column("CLOUD"),
        Column("INSTANCE", shrinks=True),
        Column("REGION"),
        Column("ACCELERATOR"),
        Column("OF", right=True),
        Column("MEMORY EACH", right=True),
        Column("ON DEMAND", right=True),
        Column("SPOT", right=True),
        Column("PER ACCELERATOR", right=True),
        Column("AS OF"),
    )
    rows = [_row(entry, known) for entry in found]
    data = [entry.model_dump(mode="json") for entry in found]
    show_listing(Listing(columns, rows, data), output, header=not no_header)


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
