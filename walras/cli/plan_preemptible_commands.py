"""`walras plan checkpoint` and `walras plan workers`: training on machines that may be taken back.

`plan checkpoint` says how often one job should save, given the law of machines' lifetimes; `plan workers` says which
cluster of spot workers, around parameter servers that stay, does a run for the least money.
"""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walras.cli.arguments import OutputOption, parse_length_option, read_document
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
    from optimizer.planning.worker_clusters import WorkerPlan
    from optimizer.renting.spot_lifetimes import BathtubLifetime, CheckpointPlan, Lifetime
    from walras.spec.plan_files import WorkerEntry


#: The steps of work that are planned unless --step says otherwise, and the most that may be.
_STEPS, _MOST_STEPS = 120, 240
#: Published parameters for preemptible machines with a cap of a day (HPDC'20).
_PUBLISHED_BATHTUB = "0.4137,54m,45m36s,24h"
_MOST_SEGMENTS_SHOWN = 8


LifetimeOption = Annotated[
    str,
    typer.Option(
        "--lifetime",
        metavar="LAW",
        help="Distribution of machine lifetimes: exponential, bathtub, or a file of recorded lifetimes.",
    ),
]
WriteOption = Annotated[
    str, typer.Option("--write", help="Time that one checkpoint takes, during which training stops, such as 20s.")
]
RestartOption = Annotated[
    str, typer.Option("--restart", help="Time from a revocation to the next step on a new machine.")
]
MeanLifeOption = Annotated[
    str | None, typer.Option("--mean-life", help="With exponential: mean lifetime of a machine.")
]
BathtubOption = Annotated[
    str,
    typer.Option("--bathtub", help="With bathtub: fraction of early deaths, then the times early, late and cap."),
]
StepOption = Annotated[
    str | None, typer.Option("--step", help="Granularity of the plan; default: 120 to 240 steps over the work.")
]


@ends_at_interrupt
def plan_checkpoint_command(
    lifetime: LifetimeOption,
    work: Annotated[str, typer.Option("--work", help="Run time of the whole job, such as 10h.")],
    write: WriteOption,
    restart: RestartOption = "2m",
    mean_life: MeanLifeOption = None,
    bathtub: BathtubOption = _PUBLISHED_BATHTUB,
    age: Annotated[str, typer.Option("--age", help="Age of the machine when the job starts.")] = "0s",
    step: StepOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Say how often a job on preemptible machines should checkpoint. Needs no server.

    The optimal plan is shown beside Young and Daly's interval and no checkpoints at all.
    """
    from optimizer.renting.spot_lifetimes import CheckpointCosts, plan_checkpoints, prefers_aged_machine, young_daly_h
    from optimizer.renting.spot_lifetimes import mean_life as mean_life_h

    work_h, write_h = _parse_hours(work, "--work"), _parse_hours(write, "--write")
    if not 0 < write_h < work_h:
        raise UserError(
            "a checkpoint has to take some time, and less than the work", field="--write", fix="such as 20s"
        )
    law, until_h = _lifetime_law(lifetime, mean_life, bathtub)
    age_h = _parse_hours(age, "--age")
    if law.survival(age_h) <= 0:
        raise UserError(f"no machine gets {age} old by this law", field="--age", fix="give a lower one")
    life_h = mean_life_h(law, until_h)
    costs = CheckpointCosts(write_h, _parse_hours(restart, "--restart"))
    interval_h = young_daly_h(write_h, life_h)
    step_h = _planning_step_h(None if step is None else _parse_hours(step, "--step"), work_h, interval_h)
    plans = {
        name: plan_checkpoints(law, work_h, costs, age_h, step_h, segment_h)
        for name, segment_h in (("best", None), ("Young-Daly", interval_h), ("no checkpoints", work_h))
    }
    is_better = prefers_aged_machine(law, work_h, age_h) if age_h > 0 else None
    if output is OutputFormat.JSON:
        terms = {"work_h": work_h, "step_h": step_h, "mean_life_h": life_h, "young_daly_h": interval_h}
        show_json(
            {
                **terms,
                "better_than_a_new_machine": is_better,
                "plans": [_checkpoint_data(*each) for each in plans.items()],
            }
        )
    else:
        _show_checkpoint_plans(plans, work_h, life_h, interval_h)
        step = format_length(step_h * SECONDS_PER_HOUR)
        show_line(f"No plan in steps of {step} is expected to end sooner than the best one.")
        if is_better is not None:
            chance = "likelier" if is_better else "no likelier"
            show_line(f"A machine that is {age} old is {chance} to outlast the work than a new one.")


def _parse_hours(text: str, option: str) -> float:
    return parse_length_option(text, option) / SECONDS_PER_HOUR


def _planning_step_h(wanted_h: float | None, work_h: float, young_daly_h: float) -> float:
    """Returns the granularity of the plan, hours: at most half of Young and Daly's interval, to tell plans apart.

    Raises UserError for work that is too long for that, and for an invalid --step.
    """
    least_h = work_h / _MOST_STEPS
    if wanted_h is None:
        found_h = max(min(work_h / _STEPS, young_daly_h / 2), least_h)
        if found_h <= young_daly_h:
            return found_h
        part = format_length(_MOST_STEPS * young_daly_h / 2 * SECONDS_PER_HOUR)
        raise UserError(
            f"work of {format_length(work_h * SECONDS_PER_HOUR)} is too long to plan in steps below "
            f"{format_length(young_daly_h * SECONDS_PER_HOUR)}, Young and Daly's interval",
            field="--work",
            fix=f"plan a part, such as --work {part}: what is saved is behind it; or give --step",
        )
    if not least_h - 1e-9 <= wanted_h <= work_h:
        least, most = (format_length(hours * SECONDS_PER_HOUR) for hours in (least_h, work_h))
        message = f"work of {most} in steps of {format_length(wanted_h * SECONDS_PER_HOUR)}"
        raise UserError(message, field="--step", fix=f"between {least} and {most}")
    return wanted_h


def _lifetime_law(lifetime: str, mean_life: str | None, bathtub: str) -> "tuple[Lifetime, float]":
    """Returns the lifetime distribution, and the age (hours) up to which its mean is taken. Raises UserError."""
    from optimizer.renting.spot_lifetimes import EmpiricalLifetime, ExponentialLifetime
    from simulator.workloads.spot_market_files import read_machine_lifetimes

    if lifetime == "exponential":
        mean_h = _parse_hours(mean_life or "0", "--mean-life")
        if mean_h <= 0:
            raise UserError("how long machines live is not known", field="--mean-life", fix="such as --mean-life 8h")
        # Hardly one in 10^13 gets older than thirty mean lives.
        return ExponentialLifetime(1.0 / mean_h), 30.0 * mean_h
    if mean_life is not None:
        raise UserError("a mean says all of exponential lives only", field="--mean-life", fix="--lifetime exponential")
    if lifetime == "bathtub":
        law = _parse_bathtub(bathtub)
        return law, law.cap_h
    if not Path(lifetime).exists():
        raise UserError(
            f"{lifetime[:100]!r} is neither a law nor a file", field="--lifetime", fix="exponential, bathtub, or a file"
        )
    lives = read_machine_lifetimes(Path(lifetime))
    taken = [life_s / SECONDS_PER_HOUR for life_s, was_taken in lives if was_taken]
    alive = [life_s / SECONDS_PER_HOUR for life_s, was_taken in lives if not was_taken]
    return EmpiricalLifetime.of(taken, alive), max(life_s for life_s, _ in lives) / SECONDS_PER_HOUR


def _parse_bathtub(text: str) -> "BathtubLifetime":
    from optimizer.renting.spot_lifetimes import BathtubLifetime

    part, *lengths = text.split(",")
    try:
        scale = float(part)
    except ValueError:
        scale = 0.0
    if len(lengths) != 3 or not 0 < scale < 1:
        raise UserError(
            f"{text[:60]!r} is no bathtub", field="--bathtub", fix=f"four values, such as {_PUBLISHED_BATHTUB}"
        )
    early_h, late_h, cap_h = (_parse_hours(length, "--bathtub") for length in lengths)
    if min(early_h, late_h, cap_h) <= 0:
        raise UserError("a bathtub's lengths are above 0", field="--bathtub", fix=f"such as {_PUBLISHED_BATHTUB}")
    return BathtubLifetime(scale, early_h, late_h, cap_h)


def _checkpoint_data(name: str, plan: "CheckpointPlan") -> dict[str, Any]:
    """Returns a plan as plain data; infinite figures become None."""
    figures = {key: value for key, value in asdict(plan).items() if key != "segments_h"}
    return {
        "name": name,
        "segments_h": list(plan.segments_h),
        **{key: value if isfinite(value) else None for key, value in figures.items()},
    }


def _show_checkpoint_plans(
    plans: "dict[str, CheckpointPlan]", work_h: float, life_h: float, young_daly_h: float
) -> None:
    columns = [
        Column("PLAN"),
        Column("CHECKPOINTS", right=True, spare=2),
        Column("EXPECTED", right=True),
        Column("OVER THE WORK", right=True),
        Column("LOST", right=True),
        Column("WRITING", right=True),
        Column("REVOCATIONS", right=True, spare=1),
    ]
    show_listing(Listing(columns, [_checkpoint_row(*each, work_h) for each in plans.items()], None), OutputFormat.TABLE)
    show_line(f"Best: save after {_segments_text(plans['best'].segments_h)} of work.")
    show_line(
        f"Young and Daly: every {format_length(young_daly_h * SECONDS_PER_HOUR)}, from a mean life of "
        f"{format_length(life_h * SECONDS_PER_HOUR)}; the table has it in whole steps."
    )


def _checkpoint_row(name: str, plan: "CheckpointPlan", work_h: float) -> list[str]:
    many = str(len(plan.segments_h))
    if not isfinite(plan.expected_h):
        return [name, many, "never", "-", "-", "-", "-"]
    return [
        name,
        many,
        format_length(plan.expected_h * SECONDS_PER_HOUR),
        f"{plan.expected_h / work_h - 1:.1%}",
        format_length(plan.lost_h * SECONDS_PER_HOUR),
        format_length(plan.writing_h * SECONDS_PER_HOUR),
        f"{plan.revocations:.2f}",
    ]


def _segments_text(segments_h: tuple[float, ...]) -> str:
    """Returns the segments with equal neighbours joined: `10m00s, 3 x 20m00s`."""
    runs = [
        (round(length * SECONDS_PER_HOUR), len(list(alike)))
        for length, alike in groupby(segments_h, lambda h: round(h, 9))
    ]
    parts = [format_length(length) if many == 1 else f"{many} x {format_length(length)}" for length, many in runs]
    return ", ".join(parts[:_MOST_SEGMENTS_SHOWN]) + (", ..." if len(parts) > _MOST_SEGMENTS_SHOWN else "")


_MOST_OF_A_KIND = 999


@ends_at_interrupt
def plan_workers_command(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="YAML file of the run, the kinds of workers, and the parameter servers."),
    ],
    most: Annotated[int, typer.Option("--most", min=1, max=64, help="Use at most this many workers.")] = 8,
    within: Annotated[str | None, typer.Option("--within", help="Finish within this time, such as 31m.")] = None,
    cluster: Annotated[
        list[str] | None,
        typer.Option(
            "--cluster",
            metavar="KIND=N",
            help="Also evaluate this cluster; repeat the option for several kinds of workers.",
        ),
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Find the cheapest cluster of spot workers for a training run. Needs no server."""
    from optimizer.planning.worker_clusters import WorkerOffer, make_worker_plan
    from walras.spec.plan_files import WorkerFile

    within_s = parse_length_option(within, "--within")
    if within_s == 0:
        raise UserError("a time is above 0", field="--within", fix="such as --within 31m")
    given = read_document(file, WorkerFile)
    offers = [
        WorkerOffer(
            each.name,
            each.steps_per_s,
            each.spot_usd_per_h,
            each.on_demand_usd_per_h,
            _worker_lifetime(file, each),
            each.replacement,
        )
        for each in given.workers
    ]
    servers_usd, points = 0.0, list[tuple[float, float]]()
    if given.servers is not None:
        servers_usd = given.servers.usd_per_h
        points = [(point.alone, point.through) for point in given.servers.saturation]
    wanted = _parse_cluster(cluster or [], [each.name for each in given.workers])
    limit_s = inf if within_s is None else within_s
    found = make_worker_plan(offers, servers_usd, points, given.steps, most=most, within_s=limit_s, asked=wanted)
    if output is OutputFormat.JSON:
        show_json({"steps": given.steps, "within_s": within_s, **asdict(found)})
    else:
        _show_worker_plan(found, most)


def _parse_cluster(parts: Sequence[str], known: Sequence[str]) -> list[str]:
    """Returns one kind for each worker of a cluster given as KIND=N. Raises UserError."""
    found: list[str] = []
    for part in parts:
        name, _, many = part.partition("=")
        if name not in known or not (many.isascii() and many.isdigit() and len(many) <= 3 and int(many) > 0):
            fix = f"KIND=N, such as {known[0]}=8, of {', '.join(known)}, N at most {_MOST_OF_A_KIND}"
            raise UserError(f"{part[:100]!r} is no part of a cluster", field="--cluster", fix=fix)
        found += [name] * int(many)
    return found


def _worker_lifetime(file: Path, worker: "WorkerEntry") -> "Lifetime":
    from optimizer.renting.spot_lifetimes import EmpiricalLifetime, ExponentialLifetime
    from simulator.workloads.spot_market_files import read_machine_lifetimes

    if worker.lives is None:
        assert worker.mean_life is not None, "the file says one of both"
        return ExponentialLifetime(SECONDS_PER_HOUR / worker.mean_life)
    lives = read_machine_lifetimes(file.parent / worker.lives)
    return EmpiricalLifetime.of(
        [life_s / SECONDS_PER_HOUR for life_s, taken in lives if taken],
        [life_s / SECONDS_PER_HOUR for life_s, taken in lives if not taken],
    )


def _show_worker_plan(found: "WorkerPlan", most: int) -> None:
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
