"""`walras plan checkpoint`: how often a job on machines that are taken back should save, and what that costs."""

from dataclasses import asdict
from itertools import groupby
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walras.cli.options import Output, length_s
from walras.cli.output import Column, Listing, OutputFormat, show_json, show_line, show_listing
from walras.errors import UserError
from walras.units import format_length

if TYPE_CHECKING:
    from scheduler.cloud.checkpointing import CheckpointPlan
    from scheduler.cloud.lifetimes import Bathtub, Lifetime

_HOUR_S = 3600.0
#: Steps of work that are planned in unless --step says otherwise, and at most.
_STEPS, _MOST_STEPS = 120, 240
#: As published for preemptible machines with a cap of a day (HPDC'20).
_PUBLISHED_BATHTUB = "0.4137,54m,45m36s,24h"
_SHOWN_MOST = 8


def plan_checkpoint_command(
    lifetime: Annotated[
        str, typer.Option("--lifetime", metavar="LAW", help="exponential, bathtub, or a file of machines' lives.")
    ],
    work: Annotated[str, typer.Option("--work", help="Of the job: 10h.")],
    write: Annotated[str, typer.Option("--write", help="Of one checkpoint, during which no step is done: 20s.")],
    restart: Annotated[
        str, typer.Option("--restart", help="From a revocation to the next step on a new machine.")
    ] = "2m",
    mean_life: Annotated[str | None, typer.Option("--mean-life", help="With exponential: of a machine.")] = None,
    bathtub: Annotated[
        str,
        typer.Option("--bathtub", help="With bathtub: part that dies early, then lengths: early, late, cap."),
    ] = _PUBLISHED_BATHTUB,
    age: Annotated[str, typer.Option("--age", help="Of the machine at the start of the job.")] = "0s",
    step: Annotated[
        str | None, typer.Option("--step", help="Work is planned in steps of this; none: 120 to 240.")
    ] = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Say how often to write checkpoints, beside Young and Daly's interval and none at all. Needs no server."""
    from optimizer.renting.risk import Costs, young_daly_h
    from scheduler.cloud.checkpointing import plan_checkpoints, reuse
    from scheduler.cloud.lifetimes import mean_life as mean_life_h

    work_h, write_h = _hours(work, "--work"), _hours(write, "--write")
    if not 0 < write_h < work_h:
        raise UserError(
            "a checkpoint has to take some time, and less than the work", field="--write", fix="such as 20s"
        )
    law, until_h = _law(lifetime, mean_life, bathtub)
    age_h = _hours(age, "--age")
    if law.survival(age_h) <= 0:
        raise UserError(f"no machine gets {age} old by this law", field="--age", fix="give a lower one")
    life_h = mean_life_h(law, until_h)
    costs = Costs(write_h, _hours(restart, "--restart"))
    interval_h = young_daly_h(write_h, life_h)
    step_h = _step_h(None if step is None else _hours(step, "--step"), work_h, interval_h)
    plans = {
        name: plan_checkpoints(law, work_h, costs, age_h, step_h, segment_h)
        for name, segment_h in (("best", None), ("Young-Daly", interval_h), ("no checkpoints", work_h))
    }
    is_better = reuse(law, work_h, age_h) if age_h > 0 else None
    if output is OutputFormat.JSON:
        terms = {"work_h": work_h, "step_h": step_h, "mean_life_h": life_h, "young_daly_h": interval_h}
        show_json({**terms, "better_than_a_new_machine": is_better, "plans": [_data(*each) for each in plans.items()]})
    else:
        _show(plans, work_h, life_h, interval_h)
        show_line(f"No plan in steps of {format_length(step_h * _HOUR_S)} is expected to end sooner than the best one.")
        if is_better is not None:
            told = "likelier" if is_better else "no likelier"
            show_line(f"A machine that is {age} old is {told} to outlast the work than a new one.")


def _hours(text: str, option: str) -> float:
    return length_s(text, option) / _HOUR_S


def _step_h(asked_h: float | None, work_h: float, young_daly_h: float) -> float:
    """In which work is planned: Young and Daly's interval should be two steps, or no plan could tell it from others.

    Raises UserError for work that is too long for that, and for a step that will not do.
    """
    least_h = work_h / _MOST_STEPS
    if asked_h is None:
        found_h = max(min(work_h / _STEPS, young_daly_h / 2), least_h)
        if found_h <= young_daly_h:
            return found_h
        part = format_length(_MOST_STEPS * young_daly_h / 2 * _HOUR_S)
        raise UserError(
            f"work of {format_length(work_h * _HOUR_S)} is too long to plan in steps below "
            f"{format_length(young_daly_h * _HOUR_S)}, Young and Daly's interval",
            field="--work",
            fix=f"plan a part, such as --work {part}: what is saved is behind it; or give --step",
        )
    if not least_h - 1e-9 <= asked_h <= work_h:
        least, most = (format_length(hours * _HOUR_S) for hours in (least_h, work_h))
        told = f"work of {most} in steps of {format_length(asked_h * _HOUR_S)}"
        raise UserError(told, field="--step", fix=f"between {least} and {most}")
    return asked_h


def _law(lifetime: str, mean_life: str | None, bathtub: str) -> "tuple[Lifetime, float]":
    """The law, and the age until which its mean is taken. Raises UserError."""
    from scheduler.cloud.lifetimes import Empirical, Exponential
    from simulator.workloads.market_files import read_lives

    if lifetime == "exponential":
        mean_h = _hours(mean_life or "0", "--mean-life")
        if mean_h <= 0:
            raise UserError("how long machines live is not known", field="--mean-life", fix="such as --mean-life 8h")
        # Hardly one in 10^13 gets older than thirty mean lives.
        return Exponential(1.0 / mean_h), 30.0 * mean_h
    if mean_life is not None:
        raise UserError("a mean says all of exponential lives only", field="--mean-life", fix="--lifetime exponential")
    if lifetime == "bathtub":
        law = _bathtub(bathtub)
        return law, law.cap_h
    if not Path(lifetime).exists():
        raise UserError(
            f"{lifetime[:100]!r} is neither a law nor a file", field="--lifetime", fix="exponential, bathtub, or a file"
        )
    lives = read_lives(Path(lifetime))
    taken = [life_s / _HOUR_S for life_s, was_taken in lives if was_taken]
    alive = [life_s / _HOUR_S for life_s, was_taken in lives if not was_taken]
    return Empirical.of(taken, alive), max(life_s for life_s, _ in lives) / _HOUR_S


def _bathtub(text: str) -> "Bathtub":
    from scheduler.cloud.lifetimes import Bathtub

    part, *lengths = text.split(",")
    try:
        scale = float(part)
    except ValueError:
        scale = 0.0
    if len(lengths) != 3 or not 0 < scale < 1:
        raise UserError(
            f"{text[:60]!r} is no bathtub", field="--bathtub", fix=f"four values, such as {_PUBLISHED_BATHTUB}"
        )
    early_h, late_h, cap_h = (_hours(length, "--bathtub") for length in lengths)
    if min(early_h, late_h, cap_h) <= 0:
        raise UserError("a bathtub's lengths are above 0", field="--bathtub", fix=f"such as {_PUBLISHED_BATHTUB}")
    return Bathtub(scale, early_h, late_h, cap_h)


def _data(name: str, plan: "CheckpointPlan") -> dict[str, Any]:
    """What would be infinite is null."""
    told = {key: value for key, value in asdict(plan).items() if key != "segments_h"}
    return {
        "name": name,
        "segments_h": list(plan.segments_h),
        **{key: value if isfinite(value) else None for key, value in told.items()},
    }


def _show(plans: "dict[str, CheckpointPlan]", work_h: float, life_h: float, young_daly_h: float) -> None:
    columns = [
        Column("PLAN"),
        Column("CHECKPOINTS", right=True, spare=2),
        Column("EXPECTED", right=True),
        Column("OVER THE WORK", right=True),
        Column("LOST", right=True),
        Column("WRITING", right=True),
        Column("REVOCATIONS", right=True, spare=1),
    ]
    show_listing(Listing(columns, [_row(*each, work_h) for each in plans.items()], None), OutputFormat.TABLE)
    show_line(f"Best: save after {_spelt(plans['best'].segments_h)} of work.")
    show_line(
        f"Young and Daly: every {format_length(young_daly_h * _HOUR_S)}, from a mean life of "
        f"{format_length(life_h * _HOUR_S)}; the table has it in whole steps."
    )


def _row(name: str, plan: "CheckpointPlan", work_h: float) -> list[str]:
    many = str(len(plan.segments_h))
    if not isfinite(plan.expected_h):
        return [name, many, "never", "-", "-", "-", "-"]
    return [
        name,
        many,
        format_length(plan.expected_h * _HOUR_S),
        f"{plan.expected_h / work_h - 1:.1%}",
        format_length(plan.lost_h * _HOUR_S),
        format_length(plan.writing_h * _HOUR_S),
        f"{plan.revocations:.2f}",
    ]


def _spelt(segments_h: tuple[float, ...]) -> str:
    """Alike ones in a row together: `10m00s, 3 x 20m00s`."""
    runs = [(round(length * _HOUR_S), len(list(alike))) for length, alike in groupby(segments_h, lambda h: round(h, 9))]
    told = [format_length(length) if many == 1 else f"{many} x {format_length(length)}" for length, many in runs]
    return ", ".join(told[:_SHOWN_MOST]) + (", ..." if len(told) > _SHOWN_MOST else "")
