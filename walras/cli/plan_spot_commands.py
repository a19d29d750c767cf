"""`walras plan spot`: whether a job with a deadline should be on spot, on demand or on nothing, on recorded markets."""

from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated

import typer

from walras.cli.arguments import OutputOption, example_or_path, parse_length_option
from walras.cli.terminal_output import (
    Column,
    Listing,
    OutputFormat,
    ends_at_interrupt,
    show_json,
    show_line,
    show_listing,
)
from walras.contract import SECONDS_PER_HOUR
from walras.errors import UserError
from walras.units import format_length, format_money

if TYPE_CHECKING:
    from optimizer.planning.spot_plan import CheckedBound, SpotPlan, SpotPolicyResult, SpotPresent


_MOST_ZONES = 8


class HeldNow(StrEnum):
    """What the job holds now."""

    NOTHING = "nothing"
    SPOT = "spot"
    ON_DEMAND = "on-demand"


@ends_at_interrupt
def plan_spot_command(
    traces: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE...",
            help="Recorded availability of spot machines (CSV), or example:NAME; each trace is a zone.",
            callback=example_or_path("markets"),
        ),
    ],
    work: Annotated[str, typer.Option("--work", help="Run time of the whole job, such as 48h.")],
    deadline: Annotated[str, typer.Option("--deadline", help="Time from start to deadline, such as 60h.")],
    spot: Annotated[float, typer.Option("--spot", help="Price of the spot machine in USD per hour.")],
    on_demand: Annotated[float, typer.Option("--on-demand", help="Price of the on-demand machine in USD per hour.")],
    restart: Annotated[
        str, typer.Option("--restart", help="Paid time without progress after each start of a machine.")
    ] = "12m",
    slot: Annotated[
        str, typer.Option("--slot", help="Length of a time slot: how often the job may change machines.")
    ] = "10m",
    zone: Annotated[
        list[str] | None, typer.Option("--zone", help="Use only this zone of the traces; repeatable.")
    ] = None,
    history: Annotated[
        list[Path] | None,
        typer.Option("--history", help="Earlier traces to learn from; default: the first half of each trace."),
    ] = None,
    starts: Annotated[int, typer.Option("--starts", min=1, max=1000, help="Number of start times to simulate.")] = 40,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the start times.")] = 0,
    work_left: Annotated[str | None, typer.Option("--work-left", help="Work left now; default: all of --work.")] = None,
    time_left: Annotated[
        str | None, typer.Option("--time-left", help="Time left now; default: all of --deadline.")
    ] = None,
    held: Annotated[HeldNow, typer.Option("--held", help="What the job holds now.")] = HeldNow.NOTHING,
    check: Annotated[
        bool, typer.Option("--check", help="Verify the bound with an integer program for four of the starts.")
    ] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Say when a job with a deadline should hold a spot machine, an on-demand machine or none. Needs no server."""
    from optimizer.planning.deadline_job import HeldMachine
    from optimizer.planning.spot_plan import SpotPresent, SpotTerms, make_spot_plan
    from simulator.workloads.spot_market_files import read_spot_availability

    slot_s, work_s, deadline_s = (
        _positive_length(slot, "--slot"),
        _positive_length(work, "--work"),
        _positive_length(deadline, "--deadline"),
    )
    terms = SpotTerms(work_s, deadline_s, parse_length_option(restart, "--restart"), slot_s, spot, on_demand)
    # Terms that cannot be planned are refused before files are read.
    terms.job()
    now = SpotPresent(
        work_s if work_left is None else _positive_length(work_left, "--work-left"),
        deadline_s if time_left is None else _positive_length(time_left, "--time-left"),
        HeldMachine[held.name],
    )
    zones = _read_zones(traces, slot_s, zone or [])
    before = [trace for path in history or [] for trace in read_spot_availability(path, slot_s).values()]
    found = make_spot_plan(terms, tuple(zones.values()), before, starts, Random(seed), now, check)
    if output is OutputFormat.JSON:
        show_json({"traces": list(zones), "learnt_from": "history" if before else "first halves", **asdict(found)})
    else:
        _show_spot_plan(found, now)


def _positive_length(text: str, option: str) -> float:
    found = parse_length_option(text, option)
    if found <= 0:
        raise UserError(f"{option} is {text!r}", field=option, fix="a length above 0, such as 10m")
    return found


def _read_zones(paths: Sequence[Path], slot_s: float, only: Sequence[str]) -> dict[str, tuple[bool, ...]]:
    """Returns the traces of all files by zone, or only the named zones. Raises UserError."""
    from simulator.workloads.spot_market_files import read_spot_availability

    found: dict[str, tuple[bool, ...]] = {}
    for path in paths:
        for name, trace in read_spot_availability(path, slot_s).items():
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


def _show_spot_plan(found: "SpotPlan", now: "SpotPresent") -> None:
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
    rows = [_spot_policy_row(each, place == 0, found.starts) for place, each in enumerate(found.policies)]
    bound = found.bound
    rows.append(
        ["", "bound", _hours_text(bound.spot_h), _hours_text(bound.on_demand_h), format_money(bound.usd), "-", "-", "-"]
    )
    show_listing(Listing(columns, rows, None), OutputFormat.TABLE)
    show_line(f"Means over {found.starts} starts on {_zones_text(found.zones)}; the bound is {bound.name}.")
    show_line(f"Take {found.policies[0].name}: {found.why}.")
    if found.checked is not None:
        show_line(_check_line(found.checked))
    show_line("")
    show_line(
        f"Now, {format_length(now.work_left_s)} of work and {format_length(now.time_left_s)} left, "
        f"holding {now.held.name.lower().replace('_', ' ')}:"
    )
    titles = (Column("POLICY"), Column("A SPOT MACHINE THERE"), Column("NONE"), Column("WAITS FOR ONE", right=True))
    advice = [[each.name, each.with_spot, each.without_spot, _waits_text(each)] for each in found.policies]
    show_listing(Listing(titles, advice, None), OutputFormat.TABLE)
    for there in (True, False):
        known = [each for each in found.choices if each.spot is there]
        costs = ", ".join(f"{each.does} {'too late' if each.usd is None else format_money(each.usd)}" for each in known)
        show_line(f"Ours expects to pay until the end, {'one there' if there else 'none there'}: {costs}.")


def _spot_policy_row(each: "SpotPolicyResult", best: bool, starts: int) -> list[str]:
    return [
        ">" if best else "",
        each.name,
        _hours_text(each.spot_h),
        _hours_text(each.on_demand_h),
        format_money(each.usd),
        f"{each.above_bound:.1%}",
        f"{each.machine_starts:.1f}",
        f"{each.late / starts:.0%}",
    ]


def _hours_text(hours: float) -> str:
    return f"{hours:.1f} h"


def _zones_text(zones: int) -> str:
    return "one zone" if zones == 1 else f"{zones} zones"


def _waits_text(each: "SpotPolicyResult") -> str:
    return "-" if each.without_spot == "on demand" else f"at most {format_length(each.waits_h * SECONDS_PER_HOUR)}"


def _check_line(checked: "CheckedBound") -> str:
    return (
        f"Checked on {checked.starts} of them: the bound is {format_money(checked.bound_usd)}; an integer program in "
        f"whole slots has a plan for {format_money(checked.program_usd)} and proves that none is below "
        f"{format_money(checked.at_least_usd)}."
    )
