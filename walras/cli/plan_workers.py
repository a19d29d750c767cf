"""`walras plan workers`: a training cluster of spot workers around parameter servers that stay."""

from collections.abc import Sequence
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from walras.cli.options import Output, length_s
from walras.cli.output import Column, Listing, OutputFormat, show_json, show_line, show_listing
from walras.cli.problem_files import read_document
from walras.errors import UserError
from walras.units import format_length, format_money

if TYPE_CHECKING:
    from scheduler.cloud.lifetimes import Lifetime
    from scheduler.cloud.worker_plan import WorkerPlan
    from walras.worker_file import WorkerEntry

_HOUR_S = 3600.0
_MOST_ASKED = 999


def plan_workers_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The run, kinds of workers, and parameter servers.")],
    most: Annotated[int, typer.Option("--most", min=1, max=64, help="Workers.")] = 8,
    within: Annotated[str | None, typer.Option("--within", help="Done in this time: 31m.")] = None,
    cluster: Annotated[
        list[str] | None, typer.Option("--cluster", metavar="KIND=N", help="Also tell what this one comes to.")
    ] = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Say which cluster of spot workers does a run for the least money, and what it takes. Needs no server."""
    from scheduler.cloud.worker_plan import WorkerOffer, plan_workers
    from walras.worker_file import WorkerFile

    within_s = length_s(within, "--within")
    if within_s == 0:
        raise UserError("a time is above 0", field="--within", fix="such as --within 31m")
    given = read_document(file, WorkerFile)
    offers = [
        WorkerOffer(
            each.name,
            each.steps_per_s,
            each.spot_usd_per_h,
            each.on_demand_usd_per_h,
            _law(file, each),
            each.replacement,
        )
        for each in given.workers
    ]
    servers_usd, points = 0.0, list[tuple[float, float]]()
    if given.servers is not None:
        servers_usd = given.servers.usd_per_h
        points = [(point.alone, point.through) for point in given.servers.saturation]
    asked = _asked(cluster or [], [each.name for each in given.workers])
    limit_s = inf if within_s is None else within_s
    found = plan_workers(offers, servers_usd, points, given.steps, most=most, within_s=limit_s, asked=asked)
    if output is OutputFormat.JSON:
        show_json({"steps": given.steps, "within_s": within_s, **asdict(found)})
    else:
        _show(found, most)


def _asked(parts: Sequence[str], known: Sequence[str]) -> list[str]:
    """A name for each worker. Raises UserError."""
    found: list[str] = []
    for part in parts:
        name, _, many = part.partition("=")
        if name not in known or not (many.isascii() and many.isdigit() and len(many) <= 3 and int(many) > 0):
            fix = f"KIND=N, such as {known[0]}=8, of {', '.join(known)}, N at most {_MOST_ASKED}"
            raise UserError(f"{part[:100]!r} is no part of a cluster", field="--cluster", fix=fix)
        found += [name] * int(many)
    return found


def _law(file: Path, worker: "WorkerEntry") -> "Lifetime":
    from scheduler.cloud.lifetimes import Empirical, Exponential
    from simulator.workloads.market_files import read_lives

    if worker.lives is None:
        assert worker.mean_life is not None, "the file says one of both"
        return Exponential(_HOUR_S / worker.mean_life)
    lives = read_lives(file.parent / worker.lives)
    return Empirical.of(
        [life_s / _HOUR_S for life_s, taken in lives if taken],
        [life_s / _HOUR_S for life_s, taken in lives if not taken],
    )


def _show(found: "WorkerPlan", most: int) -> None:
    columns = [
        Column(""),
        Column("CLUSTER"),
        Column("WORKERS", shrinks=True),
        Column("TIME", right=True),
        Column("USD", right=True),
        Column("LOSSES", right=True, spare=1),
        Column("SAVED", right=True),
    ]
    rows = [
        [
            "" if place else ">",
            each.name,
            " + ".join(f"{many} {name}" for name, many in each.workers),
            format_length(each.took_s),
            format_money(each.usd),
            f"{each.losses:.2f}",
            "-" if each.saved is None else f"{each.saved:.1%}",
        ]
        for place, each in enumerate(found.clusters)
    ]
    rows.append(["", "bound: no worker is taken", "-", "-", format_money(found.bound_usd), "-", "-"])
    show_listing(Listing(columns, rows, None), OutputFormat.TABLE)
    show_line(f"The best of all {found.tried:,} clusters of up to {most} workers; means. SAVED: against on demand.")
