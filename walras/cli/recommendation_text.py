"""Shows a recommendation of machines: the ways that no other beats, the one to take, and what was left out."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from walras.cli.terminal_output import Column, Listing, OutputFormat, show_line, show_listing
from walras.errors import UserError
from walras.units import format_length, format_money

if TYPE_CHECKING:
    from collections.abc import Iterable

    from optimizer.planning.machine_recommendation import MachineRecommendation
    from optimizer.planning.machine_setups import Setup
    from optimizer.prediction.step_time import ObtainedNetwork

#: The most left-out machines that are named.
LEFT_OUT_MOST = 5


def check_kinds(paths: list[Path], kinds: list[str]) -> None:
    """Raises UserError if two profiles are of one kind: their facts would be mixed."""
    for place, kind in enumerate(kinds):
        if (first := kinds.index(kind)) < place:
            raise UserError(
                f"{paths[first]} and {paths[place]} are both of kind {kind!r}",
                field="--profile",
                fix="give the newer one alone, or write another `kind` into the profile of another job",
            )


def show_recommendation(found: "MachineRecommendation", verdict: "ObtainedNetwork | None") -> None:
    """Shows the ways that no other beats, the one to take and why, and what was left out."""
    taken = found.recommendation
    assert taken is not None, "shown only where there is something to take"
    columns = (
        Column(""),
        Column("MACHINES", shrinks=True),
        Column("BATCH", right=True),
        Column("PASSES", right=True),
        Column("STEPS/S", right=True),
        Column("TIME", right=True),
        Column("4 OF 5 WITHIN", right=True),
        Column("USD", right=True),
    )
    rows = [
        [">" if setup == taken.setup else "", *_setup_cells(found, setup)]
        for setup in _front_with(taken.front, taken.setup)
    ]
    if verdict is not None:
        show_line(verdict.why)
    show_listing(Listing(columns, rows, None), OutputFormat.TABLE)
    show_line("")
    show_line(f"take {_setup_name(found, taken.setup)}: {taken.why}")
    show_line(
        f"  {format_length(taken.setup.time_s)} expected, four cases out of five within "
        f"{format_length(taken.setup.early_s)} and {format_length(taken.setup.late_s)}; "
        f"{format_money(taken.setup.usd)} expected"
    )
    show_line(f"  {taken.tried:,} setups judged; the table has those that no other beats in both time and money")
    for name, why in list(found.left_out.items())[:LEFT_OUT_MOST]:
        show_line(f"  left out: {name}: {why}")
    if len(found.left_out) > LEFT_OUT_MOST:
        show_line(f"  and {len(found.left_out) - LEFT_OUT_MOST} more, all in -o json")


def _front_with(front: "Iterable[Setup]", taken: "Setup") -> "list[Setup]":
    """Returns the Pareto front and the chosen setup, fastest first."""
    return sorted({*front, taken}, key=lambda setup: (setup.time_s, setup.usd))


def _setup_cells(found: "MachineRecommendation", setup: "Setup") -> list[str]:
    return [
        _setup_name(found, setup),
        str(setup.batch),
        str(setup.passes),
        f"{setup.steps_per_s:.3g}",
        format_length(setup.time_s),
        f"{format_length(setup.early_s)} - {format_length(setup.late_s)}",
        format_money(setup.usd),
    ]


def _setup_name(found: "MachineRecommendation", setup: "Setup") -> str:
    parts = [f"{count} x {m.offer.name}" for count, m in zip(setup.counts, found.machines, strict=True) if count]
    return " + ".join(parts)


def recommendation_data(found: "MachineRecommendation", verdict: "ObtainedNetwork | None") -> dict[str, Any]:
    """Returns the recommendation as JSON."""
    taken = found.recommendation
    assert taken is not None, "shown only where there is something to take"
    return {
        "kept": taken.kept,
        "why": taken.why,
        "judged": taken.tried,
        "taken": _setup_data(found, taken.setup),
        "front": [_setup_data(found, setup) for setup in taken.front],
        "left_out": dict(found.left_out),
        "network": None if verdict is None else {"below": verdict.below, "replan": verdict.replan, "why": verdict.why},
    }


def _setup_data(found: "MachineRecommendation", setup: "Setup") -> dict[str, Any]:
    used = [
        {"machine": machine.offer.name, "count": count, "samples_per_accelerator": share}
        for count, share, machine in zip(setup.counts, setup.shares, found.machines, strict=True)
        if count
    ]
    return {
        "machines": used,
        "accelerators": setup.accelerators,
        "batch": setup.batch,
        "passes": setup.passes,
        "steps_per_s": setup.steps_per_s,
        "time_s": setup.time_s,
        "early_s": setup.early_s,
        "late_s": setup.late_s,
        "usd": setup.usd,
    }
