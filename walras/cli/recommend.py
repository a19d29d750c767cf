"""`walras recommend`: which machines to rent for one job, by a deadline or a budget, and what else could be had."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walras.cli.offers import read_catalog
from walras.cli.options import Output, length_s
from walras.cli.output import Column, Listing, OutputFormat, show_json, show_line, show_listing, warn
from walras.cli.problem_files import read_document
from walras.cli.recommend_picture import draw
from walras.cli.target_steps import with_steps_of
from walras.errors import UserError
from walras.units import format_length, format_money

if TYPE_CHECKING:
    from collections.abc import Iterable

    from optimizer.performance.choosing.setups import Setup
    from optimizer.performance.choosing.spatial import Obtained
    from scheduler.cloud.recommending import Found
    from walras.job import JobSpec

EXIT_NOT_KEPT = 1
_GBIT = 1e9 / 8.0
_LEFT_OUT_MOST = 5


def recommend_command(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="A job file, with `steps` and `batch: {global}`.")],
    deadline: Annotated[str | None, typer.Option("--deadline", help="Done within: 6h, 90m.")] = None,
    budget: Annotated[float | None, typer.Option("--budget", min=0, help="For no more than, USD.")] = None,
    profile: Annotated[
        list[Path] | None, typer.Option("--profile", help="A profile: of the job, or of others, which teach too.")
    ] = None,
    catalog: Annotated[
        list[Path] | None, typer.Option("--catalog", help="A file or folder that adds to the catalog or overrides it.")
    ] = None,
    cloud: Annotated[str | None, typer.Option("--cloud", help="Only this cloud's machines.")] = None,
    precision: Annotated[
        str | None, typer.Option("--precision", help="Arithmetic: fp32, tf32, bf16, fp16. Else as --profile says.")
    ] = None,
    machines: Annotated[int, typer.Option("--machines", min=1, max=64, help="Of the gang at most.")] = 8,
    mixed: Annotated[bool, typer.Option("--mixed", help="Also gangs of several types.")] = False,
    batch: Annotated[list[int] | None, typer.Option("--batch", min=1, help="Also try this global batch.")] = None,
    spot: Annotated[bool, typer.Option("--spot", help="Also spot machines, at typical prices.")] = False,
    revocations_per_h: Annotated[
        float, typer.Option("--revocations-per-h", min=0, help="With it: of one machine.")
    ] = 0.05,
    network: Annotated[
        float | None, typer.Option("--network", metavar="GBIT/S", min=0.001, help="Between machines; none: one each.")
    ] = None,
    obtained: Annotated[
        float | None,
        typer.Option("--obtained", metavar="GBIT/S", min=0.001, help="Measured there after launch: is --network kept?"),
    ] = None,
    steps_of: Annotated[
        str | None,
        typer.Option("--steps-of", metavar="JOB", help="The work: what this job of a server takes to its target."),
    ] = None,
    picture: Annotated[Path | None, typer.Option("--picture", help="Draw it: a .png or .svg file.")] = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Recommend machines for a job. Exit code 1: nothing surely keeps the deadline and the budget. Needs no server."""
    from optimizer.performance.choosing.choice import Goal
    from scheduler.cloud.recommending import Terms, recommended
    from walras.profile_file import ProfileFile

    goal = Goal(length_s(deadline, "--deadline"), budget)
    terms = Terms(
        precision=precision,
        spot=spot,
        network_bytes_per_s=_bytes_per_s(network if obtained is None else obtained),
        revocations_per_h=revocations_per_h,
        most=machines,
        mixed=mixed,
        cloud=cloud,
    )
    verdict = _verdict(network, obtained)
    known = read_catalog(catalog or ())
    profiles = [read_document(path, ProfileFile) for path in profile or ()]
    _check_kinds(profile or [], [str(each.kind) for each in profiles])
    found = recommended(_spec(job, steps_of), profiles, known, terms, goal, batch or ())
    if found.recommendation is None:
        raise UserError(_nothing(found), field="JOB", fix="profile the job (--profile), or widen what may be rented")
    if picture is not None:
        draw(picture, found, goal)
    if output is OutputFormat.JSON:
        show_json(_data(found, verdict))
    else:
        _show(found, verdict)
    if not found.recommendation.kept:
        raise typer.Exit(EXIT_NOT_KEPT)


def _spec(path: Path, steps_of: str | None) -> "JobSpec":
    """What the file says, with the work of another job if one is named."""
    from walras.job import parse_spec

    spec = parse_spec(_text(path), source=str(path))
    if steps_of is None:
        return spec

    spec, told = with_steps_of(steps_of, spec)
    warn(f"walras: {told}")
    return spec


def _check_kinds(paths: list[Path], kinds: list[str]) -> None:
    """Facts of two profiles of one kind would be mixed. Raises UserError."""
    for place, kind in enumerate(kinds):
        if (first := kinds.index(kind)) < place:
            raise UserError(
                f"{paths[first]} and {paths[place]} are both of kind {kind!r}",
                field="--profile",
                fix="give the newer one alone, or write another `kind` into the profile of another job",
            )


def _bytes_per_s(gbit: float | None) -> float | None:
    return None if gbit is None else gbit * _GBIT


def _verdict(network: float | None, obtained: float | None) -> "Obtained | None":
    """Whether machines that run already are connected as planned; None: nobody asks."""
    if obtained is None:
        return None
    if network is None:
        raise UserError("what was obtained is compared with what was planned", field="--obtained", fix="add --network")
    from optimizer.performance.choosing.spatial import Obtained

    return Obtained(network * _GBIT, obtained * _GBIT)


def _text(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}", field="JOB", fix="check the path") from None


def _nothing(found: "Found") -> str:
    reasons = "".join(f"\n  {name}: {why}" for name, why in list(found.left_out.items())[:_LEFT_OUT_MOST])
    return f"nothing that may be rented is known to run {found.work.kind.name}{reasons}"


def _show(found: "Found", verdict: "Obtained | None") -> None:
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
    rows = [[">" if setup == taken.setup else "", *_cells(found, setup)] for setup in _with(taken.front, taken.setup)]
    if verdict is not None:
        show_line(verdict.why)
    show_listing(Listing(columns, rows, None), OutputFormat.TABLE)
    show_line("")
    show_line(f"take {_named(found, taken.setup)}: {taken.why}")
    show_line(
        f"  {format_length(taken.setup.time_s)} expected, four cases out of five within "
        f"{format_length(taken.setup.early_s)} and {format_length(taken.setup.late_s)}; "
        f"{format_money(taken.setup.usd)} expected"
    )
    show_line(f"  {taken.tried:,} setups judged; the table has those that no other beats in both time and money")
    for name, why in list(found.left_out.items())[:_LEFT_OUT_MOST]:
        show_line(f"  left out: {name}: {why}")
    if len(found.left_out) > _LEFT_OUT_MOST:
        show_line(f"  and {len(found.left_out) - _LEFT_OUT_MOST} more, all in -o json")


def _with(front: "Iterable[Setup]", taken: "Setup") -> "list[Setup]":
    """The front, and what was taken where the sure choice is not on it; fastest first."""
    return sorted({*front, taken}, key=lambda setup: (setup.time_s, setup.usd))


def _cells(found: "Found", setup: "Setup") -> list[str]:
    return [
        _named(found, setup),
        str(setup.batch),
        str(setup.passes),
        f"{setup.steps_per_s:.3g}",
        format_length(setup.time_s),
        f"{format_length(setup.early_s)} - {format_length(setup.late_s)}",
        format_money(setup.usd),
    ]


def _named(found: "Found", setup: "Setup") -> str:
    parts = [f"{count} x {m.offer.name}" for count, m in zip(setup.counts, found.machines, strict=True) if count]
    return " + ".join(parts)


def _data(found: "Found", verdict: "Obtained | None") -> dict[str, Any]:
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


def _setup_data(found: "Found", setup: "Setup") -> dict[str, Any]:
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
