"""`walras plan collection`: which machines to rent for a collection of jobs, within a deadline or a budget."""

from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from walras.cli.options import Output, length_s
from walras.cli.output import Column, Listing, OutputFormat, dash, show_json, show_line, show_listing
from walras.cli.problem_files import read_document
from walras.errors import UserError
from walras.units import format_length, format_money

if TYPE_CHECKING:
    from scheduler.cloud.collection_plan import CollectionPlan, Sum

_HOUR_S = 3600.0


def plan_collection_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Jobs with their speeds, and machines with prices.")],
    deadline: Annotated[str | None, typer.Option("--deadline", help="The least money, all done within: 24h.")] = None,
    budget: Annotated[
        float | None, typer.Option("--budget", min=0, help="The least time, for no more than, USD.")
    ] = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Say which machine each job of a collection should get, and what no plan can beat. Needs no server."""
    from scheduler.cloud.collection_plan import CollectedJob, plan_collection
    from scheduler.cloud.job_collections import Offer
    from walras.collection_file import CollectionFile

    if (deadline is None) == (budget is None):
        raise UserError(
            "either money or time is minimised", field="--deadline", fix="give one of --deadline and --budget"
        )
    if budget is not None and not isfinite(budget):
        raise UserError(f"{budget} is no budget", field="--budget", fix="an amount in USD, such as 140")
    within_s = length_s(deadline, "--deadline")
    if within_s == 0:
        raise UserError("a deadline is above 0", field="--deadline", fix="such as --deadline 24h")
    given = read_document(file, CollectionFile)
    found = plan_collection(
        [Offer(machine.name, machine.usd_per_h, machine.count) for machine in given.machines],
        [CollectedJob(job.name, job.steps, job.steps_per_s) for job in given.jobs],
        within_h=None if within_s is None else within_s / _HOUR_S,
        budget_usd=budget,
    )
    if output is OutputFormat.JSON:
        show_json(
            {"deadline_h": None if within_s is None else within_s / _HOUR_S, "budget_usd": budget, **asdict(found)}
        )
    else:
        _show(found, "time" if deadline is None else "money")


def _show(found: "CollectionPlan", minimised: str) -> None:
    columns = [
        Column("JOB", shrinks=True),
        Column("MACHINE"),
        Column("STARTS", right=True),
        Column("TAKES", right=True),
        Column("USD", right=True),
    ]
    rows = [
        [
            each.job,
            f"{each.machine_type} {each.machine}",
            _length(each.starts_h),
            _length(each.hours),
            format_money(each.usd),
        ]
        for each in found.jobs
    ]
    show_listing(Listing(columns, rows, None), OutputFormat.TABLE)
    show_line("")
    sums = [*(_sum(each, each.name) for each in (found.plan, *found.others))]
    sums += [_sum(each, f"bound: {each.name}") for each in found.bounds]
    titles = (Column("PLAN"), Column("USD", right=True), Column("TIME", right=True))
    show_listing(Listing(titles, sums, None), OutputFormat.TABLE)
    show_line(f"At most {found.above_bound:.1%} more {minimised} than the best plan in which no job moves.")


def _sum(each: "Sum", name: str) -> list[str]:
    usd = None if each.usd is None else format_money(each.usd)
    return [name, dash(usd), dash(None if each.time_h is None else _length(each.time_h))]


def _length(hours: float) -> str:
    return format_length(round(hours * _HOUR_S))
