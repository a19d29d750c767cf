"""`walras plan`: what to rent, and how. Here the group and `plan capacity`.

`plan capacity` says how many accelerators to reserve for a workload, beside all on demand and beside lower bounds.
"""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walras.cli.arguments import OutputOption, parse_length_option
from walras.cli.plan_spot_commands import plan_spot_command
from walras.cli.terminal_output import (
    Column,
    Listing,
    OutputFormat,
    ends_at_interrupt,
    show_json,
    show_line,
    show_listing,
)
from walras.cli.usage_commands import (
    AskedPrices,
    SinceOption,
    TypeOption,
    read_live_usage,
    reserved_price_part,
    show_usage_caveats,
)
from walras.contract import SECONDS_PER_HOUR
from walras.errors import UserError
from walras.units import format_length, format_money

if TYPE_CHECKING:
    from optimizer.planning.reserved_capacity import Defection, ReservationTerms
    from simulator.workloads.capacity_plans import CapacityPlan, CapacityPlans


plan_commands = typer.Typer(help="Plan what to rent, and how. Needs no server.", no_args_is_help=True)


@plan_commands.callback()
def _plan() -> None:
    """Plan what to rent, and how. Needs no server, but for `plan capacity --live`."""


plan_commands.command("spot")(plan_spot_command)


TraceArgument = Annotated[
    Path | None, typer.Argument(metavar="TRACE", help="A trace of jobs to plan for, in any supported format.")
]
ArrivalsPerHOption = Annotated[
    float | None,
    typer.Option("--arrivals-per-h", min=0.0, help="Without a trace: arrivals of single-accelerator jobs per hour."),
]
JobLengthOption = Annotated[
    str | None, typer.Option("--job-length", help="With --arrivals-per-h: mean run time of a job, such as 6h.")
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
LongestWaitOption = Annotated[
    str,
    typer.Option(
        "--longest-wait", help="Jobs that would wait longer run on demand; without a trace: the mean wait allowed."
    ),
]
LotOption = Annotated[
    int, typer.Option("--lot", min=1, max=1024, help="Accelerators per machine: reserve in multiples of this.")
]
AcceleratorsOption = Annotated[
    int | None,
    typer.Option(
        "--accelerators",
        min=0,
        max=100_000,
        help="Evaluate this number of reserved accelerators instead of the optimum.",
    ),
]
LeaveAboveOption = Annotated[
    float,
    typer.Option("--leave-above", min=0.0, help="Users leave when their mean wait exceeds this many mean run times."),
]


@plan_commands.command("capacity")
@ends_at_interrupt
def plan_capacity_command(
    trace: TraceArgument = None,
    arrivals_per_h: ArrivalsPerHOption = None,
    job_length: JobLengthOption = None,
    reserved_price: ReservedPriceOption = None,
    on_demand: OnDemandOption = None,
    reserved: ReservedOption = None,
    longest_wait: LongestWaitOption = "24h",
    short: Annotated[str, typer.Option("--short", help="Jobs shorter than this do not wait.")] = "3m",
    lot: LotOption = 1,
    accelerators: AcceleratorsOption = None,
    leave_above: LeaveAboveOption = 15.0,
    live: Annotated[
        bool, typer.Option("--live", help="Plan for what the server's own jobs used, each accelerator type by itself.")
    ] = False,
    since: SinceOption = None,
    accelerator_type: TypeOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Say how many accelerators to reserve for a workload, and at what cost and waiting time.

    Needs no server but with --live.
    """
    _check_sources(trace, live, arrivals_per_h, job_length, accelerators, since, accelerator_type)
    from optimizer.planning.reserved_capacity import ReservationTerms
    from simulator.workloads.capacity_plans import capacity_plans_for_rates, capacity_plans_for_trace

    price = 1.0 if live else reserved_price_part(reserved_price, on_demand, reserved)
    terms = ReservationTerms(
        reserved_price=price,
        longest_wait_h=parse_length_option(longest_wait, "--longest-wait") / SECONDS_PER_HOUR,
        short_h=parse_length_option(short, "--short") / SECONDS_PER_HOUR,
        lot=lot,
    )
    if live:
        asked = AskedPrices(reserved_price, on_demand, {} if reserved is None else {"": reserved})
        _plan_live(since, accelerator_type, asked, terms, leave_above, accelerators, output)
        return
    if trace is not None:
        found = capacity_plans_for_trace(trace, terms, leave_above, accelerators)
    else:
        length = parse_length_option(job_length, "--job-length")
        if not arrivals_per_h or not length or arrivals_per_h < 0:
            raise UserError(
                "there is nothing to plan for",
                field="TRACE",
                fix="name a trace, or give --arrivals-per-h and --job-length",
            )
        found = capacity_plans_for_rates(arrivals_per_h, length / SECONDS_PER_HOUR, terms)
    if output is OutputFormat.JSON:
        show_json({"reserved_price": price, "on_demand_usd_per_h": on_demand, **_capacity_data(found)})
    else:
        _show_capacity(found, on_demand)


def _check_sources(
    trace: Path | None,
    live: bool,
    arrivals_per_h: float | None,
    job_length: str | None,
    accelerators: int | None,
    since: str | None,
    accelerator_type: str | None,
) -> None:
    """Raise UserError unless the jobs come from one place, and the options say something of them."""
    if live and trace is not None:
        raise UserError("the server's jobs, or those of a trace", field="--live", fix="give one of both")
    if (live or trace is not None) and (arrivals_per_h is not None or job_length is not None):
        whose = "a trace has its" if trace is not None else "the server's jobs have their"
        raise UserError(f"{whose} own arrivals and lengths", field="--arrivals-per-h", fix="give one of both")
    if accelerators is not None and trace is None and not live:
        raise UserError("a given number is tried on a trace", field="--accelerators", fix="name a trace")
    for option, given in (("--since", since), ("--type", accelerator_type)):
        if given is not None and not live:
            raise UserError(f"{option} is of the server's own jobs", field=option, fix="add --live")


def _plan_live(
    since: str | None,
    accelerator: str | None,
    asked: AskedPrices,
    terms: "ReservationTerms",
    leave_above: float,
    accelerators: int | None,
    output: OutputFormat,
) -> None:
    """Plan for what the server's own jobs used, each accelerator type by itself."""
    from simulator.workloads.capacity_plans import capacity_plans_for_jobs

    usage = read_live_usage(since, accelerator, asked, terms)
    found = [
        (each, capacity_plans_for_jobs(each.jobs(usage.report.since), each.terms, leave_above, accelerators))
        for each in usage.types
    ]
    if output is OutputFormat.JSON:
        report = usage.report
        types = [
            {
                "accelerator": each.accelerator,
                "on_demand_usd_per_h": each.on_demand_usd,
                "reserved_price": each.terms.reserved_price,
                **_capacity_data(plans),
            }
            for each, plans in found
        ]
        window = {"since": report.since, "until": report.until, "partial": report.partial}
        show_json({**window, "types": types, "unpriced": usage.unpriced})
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
    columns = [
        Column("PLAN"),
        Column("RESERVED", right=True),
        Column("PRICE", right=True),
        Column("ON DEMAND", right=True),
        Column("MEAN WAIT", right=True),
        Column("LONGEST", right=True),
        Column("RESERVED WORK PAYS", right=True),
    ]
    if on_demand_usd:
        columns.append(Column("USD/H OF WORK", right=True))
    rows = [_capacity_row(each, on_demand_usd) for each in found.plans]
    blanks = ["-"] * (len(columns) - 3)
    for bound in found.bounds:
        usd = [f"{bound.price * on_demand_usd:.3f}"] if on_demand_usd else []
        rows.append([f"bound: {bound.name}", "-", f"{bound.price:.3f}", *blanks[: len(blanks) - len(usd)], *usd])
    show_listing(Listing(columns, rows, None), OutputFormat.TABLE)
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
