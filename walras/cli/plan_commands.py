"""`walras cloud capacity`: how many accelerators to reserve for a workload, beside all on demand and lower bounds.

`walras cloud spot`: whether a job with a deadline should be on spot, on demand or nothing, on recorded markets.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walras.cli.arguments import OutputOption, SetOption, example_or_path, parse_length_option, read_settings
from walras.cli.money_commands import (
    AskedPrices,
    read_live_usage,
    reserved_price_part,
    show_usage_caveats,
)
from walras.cli.terminal_output import OutputFormat, ends_at_interrupt, show_columns, show_json, show_line
from walras.contract import SECONDS_PER_HOUR
from walras.errors import UserError
from walras.units import format_length, format_money

if TYPE_CHECKING:
    from optimizer.planning.reserved_capacity import Defection, ReservationTerms
    from optimizer.planning.spot_plan import CheckedBound, SpotPlan, SpotPolicyResult, SpotPresent
    from simulator.workloads.capacity_plans import CapacityPlan, CapacityPlans
    from walras.cli.command_fields import CapacitySettings


TraceArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="TRACE",
        help="A trace of jobs to plan for, in any supported format, or example:NAME.",
        callback=example_or_path("workloads"),
    ),
]
ReservedPriceOption = Annotated[
    float | None,
    typer.Option(
        "--reserved-price", help="Price of a reserved hour, used or not, as a fraction of the on-demand price."
    ),
]
OnDemandOption = Annotated[
    float | None, typer.Option("--on-demand", min=0.0, help="On-demand price in USD per accelerator-hour.")
]
ReservedOption = Annotated[
    float | None, typer.Option("--reserved", min=0.0, help="Reserved price in USD per accelerator-hour.")
]


@ends_at_interrupt
def plan_capacity_command(
    trace: TraceArgument = None,
    reserved_price: ReservedPriceOption = None,
    on_demand: OnDemandOption = None,
    reserved: ReservedOption = None,
    live: Annotated[
        bool, typer.Option("--live", help="Plan for what the server's own jobs used, each accelerator type by itself.")
    ] = False,
    setting: SetOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Say how many accelerators to reserve for a workload, and at what cost and waiting time.

    Needs no server but with --live.
    """
    from optimizer.planning.reserved_capacity import ReservationTerms
    from simulator.workloads.capacity_plans import capacity_plans_for_rates, capacity_plans_for_trace
    from walras.cli.command_fields import CapacitySettings

    said = read_settings(CapacitySettings, setting)
    _check_sources(trace, live, said)
    price = 1.0 if live else reserved_price_part(reserved_price, on_demand, reserved)
    wait_h, short_h = said.longest_wait / SECONDS_PER_HOUR, said.short / SECONDS_PER_HOUR
    terms = ReservationTerms(reserved_price=price, longest_wait_h=wait_h, short_h=short_h, lot=said.lot)
    if live:
        asked = AskedPrices(reserved_price, on_demand, {} if reserved is None else {"": reserved})
        _plan_live(said, asked, terms, output)
        return
    if trace is not None:
        found = capacity_plans_for_trace(trace, terms, said.leave_above, said.accelerators)
    elif said.arrivals_per_h is None or said.job_length is None:
        fix = "name a trace, or set arrivals_per_h and job_length"
        raise UserError("there is nothing to plan for", field="TRACE", fix=fix)
    else:
        found = capacity_plans_for_rates(said.arrivals_per_h, said.job_length / SECONDS_PER_HOUR, terms)
    if output is OutputFormat.JSON:
        show_json({"reserved_price": price, "on_demand_usd_per_h": on_demand, **_capacity_data(found)})
    else:
        _show_capacity(found, on_demand)


def _check_sources(trace: Path | None, live: bool, said: "CapacitySettings") -> None:
    """Raise UserError unless the jobs come from one place, and the settings say something of them."""
    if live and trace is not None:
        raise UserError("the server's jobs, or those of a trace", field="--live", fix="give one of both")
    if (live or trace is not None) and (said.arrivals_per_h is not None or said.job_length is not None):
        whose = "a trace has its" if trace is not None else "the server's jobs have their"
        raise UserError(f"{whose} own arrivals and lengths", field="arrivals_per_h", fix="give one of both")
    if said.accelerators is not None and trace is None and not live:
        raise UserError("a given number is tried on a trace", field="accelerators", fix="name a trace")
    for name in () if live else ("since", "type"):
        if getattr(said, name) is not None:
            raise UserError(f"{name} is of the server's own jobs", field=name, fix="add --live")


def _plan_live(said: "CapacitySettings", asked: AskedPrices, terms: "ReservationTerms", output: OutputFormat) -> None:
    """Plan for what the server's own jobs used, each accelerator type by itself."""
    from simulator.workloads.capacity_plans import capacity_plans_for_jobs

    usage = read_live_usage(said.since, said.type, asked, terms)
    found = [
        (each, capacity_plans_for_jobs(each.jobs(usage.report.since), each.terms, said.leave_above, said.accelerators))
        for each in usage.types
    ]
    if output is OutputFormat.JSON:
        types = [each.prices() | _capacity_data(plans) for each, plans in found]
        show_json({**usage.window(), "types": types, "unpriced": usage.unpriced})
        return
    for each, plans in found:
        price = each.terms.reserved_price
        usd = each.on_demand_usd
        show_line(f"{each.accelerator}: {format_money(usd)}/h on demand, {format_money(price * usd)}/h reserved")
        _show_capacity(plans, usd)
        show_line("")
    show_usage_caveats(usage)


def _capacity_data(found: "CapacityPlans") -> dict[str, Any]:
    defection = None if found.defection is None else asdict(found.defection)
    if defection is not None and defection["after"] is not None:
        del defection["after"]["slowdowns"]  # one per user; what is said of them is who stayed
    return {
        "plans": [asdict(each) for each in found.plans],
        "bounds": [asdict(bound) for bound in found.bounds],
        "defection": defection,
    }


def _show_capacity(found: "CapacityPlans", on_demand_usd: float | None) -> None:
    titles = "PLAN | RESERVED> | PRICE> | ON DEMAND> | MEAN WAIT> | LONGEST> | RESERVED WORK PAYS>"
    rows = [_capacity_row(each, on_demand_usd) for each in found.plans]
    for bound in found.bounds:
        usd = [f"{bound.price * on_demand_usd:.3f}"] if on_demand_usd else []
        rows.append([f"bound: {bound.name}", "-", f"{bound.price:.3f}", *["-"] * 4, *usd])
    show_columns(titles + (" | USD/H OF WORK>" if on_demand_usd else ""), rows)
    show_line("PRICE: of an accelerator-hour of work where all pay alike; an hour on demand is 1.")
    if found.defection is not None:
        show_line(_defection_line(found.defection))


def _capacity_row(each: "CapacityPlan", on_demand_usd: float | None) -> list[str]:
    row = [
        each.name,
        str(each.accelerators),
        f"{each.price:.3f}",
        f"{each.on_demand:.1%}",
        _wait_text(each.mean_wait_h),
        "-" if each.longest_wait_h is None else _wait_text(each.longest_wait_h),
        "-" if each.reserved_work_price is None else f"{each.reserved_work_price:.3f}",
    ]
    return [*row, f"{each.price * on_demand_usd:.3f}"] if on_demand_usd else row


def _wait_text(hours: float) -> str:
    return format_length(round(hours * SECONDS_PER_HOUR)) if hours > 0 else "0s"


def _defection_line(defection: "Defection") -> str:
    if defection.stayed == defection.users:
        return "No user would leave for waiting too long."
    if defection.after is None:
        return f"All {defection.users} users would leave for waiting too long."
    return (
        f"{defection.users - defection.stayed} of {defection.users} users would leave for waiting too long; the "
        f"others ({defection.work:.0%} of the work) would reserve {defection.after.accelerators} at a price of "
        f"{defection.after.price:.3f}."
    )


_MOST_ZONES = 8


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
    setting: SetOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Say when a job with a deadline should hold a spot machine, an on-demand machine or none. Needs no server."""
    from optimizer.planning.deadline_job import HeldMachine
    from optimizer.planning.spot_plan import SpotPresent, SpotTerms, make_spot_plan
    from simulator.workloads.spot_markets import read_spot_availability
    from walras.cli.command_fields import SpotSettings

    said = read_settings(SpotSettings, setting)
    work_s, deadline_s = _positive_length(work, "--work"), _positive_length(deadline, "--deadline")
    terms = SpotTerms(work_s, deadline_s, said.restart, said.slot, spot, on_demand)
    # Terms that cannot be planned are refused before files are read.
    terms.job()
    now = SpotPresent(said.work_left or work_s, said.time_left or deadline_s, HeldMachine[said.held.name])
    zones = _read_zones(traces, said.slot, said.zone)
    earlier = example_or_path("markets")(said.history)
    before = [trace for path in earlier for trace in read_spot_availability(path, said.slot).values()]
    found = make_spot_plan(terms, tuple(zones.values()), before, said.starts, Random(said.seed), now, said.check)
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
    from simulator.workloads.spot_markets import read_spot_availability

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
        raise UserError(f"no trace {unknown!r}", field="zone", fix=f"one of {', '.join(list(found)[:20])}")
    chosen = {name: trace for name, trace in found.items() if not only or name in only}
    if len(chosen) > _MOST_ZONES:
        raise UserError(
            f"{len(chosen)} zones at once are too many", field="zone", fix=f"name at most {_MOST_ZONES} of them"
        )
    return chosen


def _show_spot_plan(found: "SpotPlan", now: "SpotPresent") -> None:
    rows = [_spot_policy_row(each, place == 0, found.starts) for place, each in enumerate(found.policies)]
    bound = found.bound
    rows.append(
        ["", "bound", _hours_text(bound.spot_h), _hours_text(bound.on_demand_h), format_money(bound.usd), "-", "-", "-"]
    )
    show_columns(" | POLICY | ON SPOT> | ON DEMAND> | USD> | ABOVE BOUND> | MACHINES>?1 | LATE>", rows)
    zones = "one zone" if found.zones == 1 else f"{found.zones} zones"
    show_line(f"Means over {found.starts} starts on {zones}; the bound is {bound.name}.")
    show_line(f"Take {found.policies[0].name}: {found.why}.")
    if found.checked is not None:
        show_line(_check_line(found.checked))
    show_line("")
    show_line(
        f"Now, {format_length(now.work_left_s)} of work and {format_length(now.time_left_s)} left, "
        f"holding {now.held.name.lower().replace('_', ' ')}:"
    )
    titles = "POLICY | A SPOT MACHINE THERE | NONE | WAITS FOR ONE>"
    advice = [
        (each, "-" if each.without_spot == "on demand" else f"at most {format_length(each.waits_h * SECONDS_PER_HOUR)}")
        for each in found.policies
    ]
    show_columns(titles, [[each.name, each.with_spot, each.without_spot, waits] for each, waits in advice])
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


def _check_line(checked: "CheckedBound") -> str:
    return (
        f"Checked on {checked.starts} of them: the bound is {format_money(checked.bound_usd)}; an integer program in "
        f"whole slots has a plan for {format_money(checked.program_usd)} and proves that none is below "
        f"{format_money(checked.at_least_usd)}."
    )
