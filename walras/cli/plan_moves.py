"""`walras plan moves`: where a job is cheapest as prices change, and whether to move it now."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from walras.cli.options import Output
from walras.cli.output import Column, Listing, OutputFormat, show_json, show_line, show_listing
from walras.cli.problem_files import read_document
from walras.errors import ConfigError, UserError
from walras.units import format_length, format_money

if TYPE_CHECKING:
    from scheduler.cloud.move_plan import MovePlan
    from scheduler.cloud.price_ladder import Place
    from walras.places_file import PlacesFile


def plan_moves_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The job's steps, its speed in each place.")],
    prices: Annotated[Path, typer.Argument(metavar="PRICES", help="CSV: place, at_s, usd_per_h.")],
    starts: Annotated[int, typer.Option("--starts", min=1, max=1000, help="Starts to judge from.")] = 20,
    at: Annotated[str | None, typer.Option("--at", metavar="PLACE", help="Where the job is now.")] = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Say where to run a job as prices change, and what moving it saved on recorded prices. Needs no server."""
    from scheduler.cloud.move_plan import plan_moves
    from scheduler.cloud.price_ladder import Moving
    from walras.places_file import PlacesFile

    given = read_document(file, PlacesFile)
    if at is not None and at not in [place.name for place in given.places]:
        raise UserError(f"no place {at[:100]!r} in {file}", field="--at", fix=f"such as {given.places[0].name}")
    moving = Moving(given.moving.usd, given.moving.pause)
    found = plan_moves(_places(given, prices), given.steps, moving, starts, at)
    if output is OutputFormat.JSON:
        show_json(asdict(found))
    else:
        _show(found, at)


def _places(given: "PlacesFile", prices: Path) -> "list[Place]":
    """Each place with its price over time. Raises ConfigError for one without."""
    from scheduler.cloud.price_ladder import Place
    from scheduler.cloud.steps import Steps
    from simulator.workloads.market_files import read_prices

    known = read_prices(prices)
    for place in given.places:
        if place.name not in known:
            raise ConfigError(f"{prices}: no price of {place.name}", field="place", fix="add rows, or leave it out")
    return [Place(place.name, Steps.of(known[place.name]), place.steps_per_s) for place in given.places]


def _show(found: "MovePlan", at: str | None) -> None:
    columns = [
        Column(""),
        Column("WAY", shrinks=True),
        Column("USD", right=True),
        Column("ABOVE BOUND", right=True),
        Column("TIME", right=True),
        Column("MOVES", right=True),
    ]
    rows = [
        [
            "" if place else ">",
            each.name,
            format_money(each.usd),
            f"{each.above_bound:.1%}",
            format_length(each.took_s),
            f"{each.moves:.1f}",
        ]
        for place, each in enumerate(found.ways)
    ]
    rows.append(["", "bound", format_money(found.bound_usd), "-", "-", "-"])
    show_listing(Listing(columns, rows, None), OutputFormat.TABLE)
    show_line(
        f"Means over {found.starts} starts; the bound knows all prices beforehand, and moves and waiting are free."
    )
    now = found.now
    told = f"Now the cheapest is {now.place}: {format_money(now.usd)} at its present price"
    if now.move is None or now.stay_usd is None:
        show_line(f"{told}.")
    elif now.place == at:
        show_line(f"{told}. The job is there.")
    else:
        verdict = "move" if now.move else "stay: less would be saved than the move costs"
        show_line(f"{told}, {format_money(now.stay_usd)} where the job is: {verdict}.")
