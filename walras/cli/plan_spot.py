"""`walras plan spot`: what one job with a deadline should do on spot machines, judged on recorded markets."""

from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated

import typer

from walras.cli.options import Output, length_s
from walras.cli.output import Column, Listing, OutputFormat, show_json, show_line, show_listing
from walras.errors import UserError
from walras.units import format_length, format_money

if TYPE_CHECKING:
    from scheduler.cloud.spot_plan import Checked, PolicyResult, SpotPlan
    from scheduler.cloud.spot_terms import Present

_HOUR_S = 3600.0
_MOST_ZONES = 8


class Holding(StrEnum):
    """What the job holds now."""

    NOTHING = "nothing"
    SPOT = "spot"
    ON_DEMAND = "on-demand"


def plan_spot_command(
    traces: Annotated[
        list[Path], typer.Argument(metavar="TRACE...", help="When spot machines could be had; each trace is a zone.")
    ],
    work: Annotated[str, typer.Option("--work", help="Hours of work of the whole job: 48h.")],
    deadline: Annotated[str, typer.Option("--deadline", help="Done within, from its start: 60h.")],
    spot: Annotated[float, typer.Option("--spot", help="USD per hour of the machine on spot.")],
    on_demand: Annotated[float, typer.Option("--on-demand", help="USD per hour of it on demand.")],
    restart: Annotated[
        str, typer.Option("--restart", help="Paid time without progress at each start of a machine.")
    ] = "12m",
    slot: Annotated[str, typer.Option("--slot", help="How often the market is looked at.")] = "10m",
    zone: Annotated[list[str] | None, typer.Option("--zone", help="Only this trace of the files.")] = None,
    history: Annotated[
        list[Path] | None,
        typer.Option("--history", help="Earlier traces to learn from; none: the first half of each TRACE."),
    ] = None,
    starts: Annotated[int, typer.Option("--starts", min=1, max=1000, help="Starts to judge from.")] = 40,
    seed: Annotated[int, typer.Option("--seed", help="Of the starts.")] = 0,
    work_left: Annotated[str | None, typer.Option("--work-left", help="Now; none: all of --work.")] = None,
    time_left: Annotated[str | None, typer.Option("--time-left", help="Now; none: all of --deadline.")] = None,
    held: Annotated[Holding, typer.Option("--held", help="What the job holds now.")] = Holding.NOTHING,
    check: Annotated[bool, typer.Option("--check", help="Solve four starts again as an integer program.")] = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Say whether to be on spot, on demand or on nothing, and what that saved on recorded markets. No server."""
    from scheduler.cloud.deadline_job import Held
    from scheduler.cloud.spot_plan import plan_spot
    from scheduler.cloud.spot_terms import Present, SpotTerms
    from simulator.workloads.market_files import read_availability

    slot_s, work_s, deadline_s = _above_0(slot, "--slot"), _above_0(work, "--work"), _above_0(deadline, "--deadline")
    terms = SpotTerms(work_s, deadline_s, length_s(restart, "--restart"), slot_s, spot, on_demand)
    # What cannot be planned at all is told before files are read.
    terms.job()
    now = Present(
        work_s if work_left is None else _above_0(work_left, "--work-left"),
        deadline_s if time_left is None else _above_0(time_left, "--time-left"),
        Held[held.name],
    )
    zones = _zones(traces, slot_s, zone or [])
    before = [trace for path in history or [] for trace in read_availability(path, slot_s).values()]
    found = plan_spot(terms, tuple(zones.values()), before, starts, Random(seed), now, check)
    if output is OutputFormat.JSON:
        show_json({"traces": list(zones), "learnt_from": "history" if before else "first halves", **asdict(found)})
    else:
        _show(found, now)


def _above_0(text: str, option: str) -> float:
    found = length_s(text, option)
    if found <= 0:
        raise UserError(f"{option} is {text!r}", field=option, fix="a length above 0, such as 10m")
    return found


def _zones(paths: Sequence[Path], slot_s: float, only: Sequence[str]) -> dict[str, tuple[bool, ...]]:
    """Every trace of the files, or those that are named. Raises UserError."""
    from simulator.workloads.market_files import read_availability

    found: dict[str, tuple[bool, ...]] = {}
    for path in paths:
        for name, trace in read_availability(path, slot_s).items():
            if name in found:
                raise UserError(
                    f"{path}: a second trace {name!r}", field="TRACE", fix="give each zone a name of its own"
                )
            found[name] = trace
    unknown = next((name for name in only if name not in found), None)
    if unknown is not None:
        raise UserError(f"no trace {unknown!r}", field="--zone", fix=f"one of {', '.join(list(found)[:20])}")
    chosen = {name: trace for name, trace in found.items() if not only or name in only}
    if len(chosen) > _MOST_ZONES:
        raise UserError(
            f"{len(chosen)} zones at once are too many", field="--zone", fix=f"name at most {_MOST_ZONES} of them"
        )
    return chosen


def _show(found: "SpotPlan", now: "Present") -> None:
    columns = [
        Column(""),
        Column("POLICY"),
        Column("ON SPOT", right=True),
        Column("ON DEMAND", right=True),
        Column("USD", right=True),
        Column("ABOVE BOUND", right=True),
        Column("MACHINES", right=True, spare=1),
        Column("LATE", right=True),
    ]
    rows = [_row(each, place == 0, found.starts) for place, each in enumerate(found.policies)]
    bound = found.bound
    rows.append(["", "bound", _hours(bound.spot_h), _hours(bound.on_demand_h), format_money(bound.usd), "-", "-", "-"])
    show_listing(Listing(columns, rows, None), OutputFormat.TABLE)
    show_line(f"Means over {found.starts} starts on {_counted(found.zones)}; the bound is {bound.name}.")
    show_line(f"Take {found.policies[0].name}: {found.why}.")
    if found.checked is not None:
        show_line(_told(found.checked))
    show_line("")
    show_line(
        f"Now, {format_length(now.work_left_s)} of work and {format_length(now.time_left_s)} left, "
        f"holding {now.held.name.lower().replace('_', ' ')}:"
    )
    titles = (Column("POLICY"), Column("A SPOT MACHINE THERE"), Column("NONE"), Column("WAITS FOR ONE", right=True))
    advice = [[each.name, each.with_spot, each.without_spot, _waits(each)] for each in found.policies]
    show_listing(Listing(titles, advice, None), OutputFormat.TABLE)
    for there in (True, False):
        known = [each for each in found.choices if each.spot is there]
        told = ", ".join(f"{each.does} {'too late' if each.usd is None else format_money(each.usd)}" for each in known)
        show_line(f"Ours expects to pay until the end, {'one there' if there else 'none there'}: {told}.")


def _row(each: "PolicyResult", best: bool, starts: int) -> list[str]:
    return [
        ">" if best else "",
        each.name,
        _hours(each.spot_h),
        _hours(each.on_demand_h),
        format_money(each.usd),
        f"{each.above_bound:.1%}",
        f"{each.machine_starts:.1f}",
        f"{each.late / starts:.0%}",
    ]


def _hours(hours: float) -> str:
    return f"{hours:.1f} h"


def _counted(zones: int) -> str:
    return "one zone" if zones == 1 else f"{zones} zones"


def _waits(each: "PolicyResult") -> str:
    return "-" if each.without_spot == "on demand" else f"at most {format_length(each.waits_h * _HOUR_S)}"


def _told(checked: "Checked") -> str:
    return (
        f"Checked on {checked.starts} of them: the bound is {format_money(checked.bound_usd)}; an integer program in "
        f"whole slots has a plan for {format_money(checked.program_usd)} and proves that none is below "
        f"{format_money(checked.at_least_usd)}."
    )
