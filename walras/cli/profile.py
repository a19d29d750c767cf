"""`walras profile run|publish|facts|report`: where a job's time goes, facts of its kind, how good predictions were."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walras.cli.facts import check_publishable, stated
from walras.cli.options import Output, length_s
from walras.cli.output import Column, Listing, OutputFormat, show_json, show_line, show_listing
from walras.cli.problem_files import read_document
from walras.cli.profile_report import read_judged, show_report
from walras.cli.session import with_client
from walras.cli.submit import read_job
from walras.errors import UserError

if TYPE_CHECKING:
    from walras.api import FactsView
    from walras.profiling.study import Attribute, Parts, Profile

profile_commands = typer.Typer(help="Measure jobs, and judge predictions of their speed.", no_args_is_help=True)


@profile_commands.command("run")
def profile_run_command(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A job file, a shell script, or - for standard input.")],
    steps: Annotated[int, typer.Option("--steps", min=5, max=100_000, help="Steps to time in each run.")] = 40,
    warm_up: Annotated[int, typer.Option("--warm-up", min=1, max=100_000, help="Steps before those.")] = 5,
    ranks: Annotated[int | None, typer.Option("--ranks", min=1, max=64, help="Ranks; else those of the gang.")] = None,
    timeout: Annotated[str, typer.Option("--timeout", help="The longest that a run may take.")] = "5m",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write everything to this file.")] = None,
    profile_file: Annotated[
        Path | None, typer.Option("--profile", help="Write what `walras recommend` reads: a profile of this kind.")
    ] = None,
    picture: Annotated[Path | None, typer.Option("--picture", help="Stacked bars: .svg, .png or .pdf.")] = None,
    publish: Annotated[bool, typer.Option("--publish", help="Tell the server the facts of this kind.")] = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Run a job's script for some steps, several times over, and tell what its steps wait for."""
    import json

    from walras.profiling.documents import as_json, as_profile_file, draw
    from walras.profiling.runs import Extent
    from workers.trials.profile_main import profile_job

    timeout_s = length_s(timeout, "--timeout")
    spec = read_job(file, [], [], [])
    profile = profile_job(spec, ranks, Extent(warm_up, steps, timeout_s), _attribute())
    if json_file is not None:
        _write(json_file, json.dumps(as_json(profile), indent=2) + "\n")
    if profile_file is not None:
        _write(profile_file, json.dumps(as_profile_file(profile), indent=2) + "\n")
    if picture is not None:
        draw(profile, picture)
    if output is OutputFormat.JSON:
        show_json(as_json(profile))
    else:
        _show(profile)
    if publish:
        from walras.job_elastic import batch_of

        _publish(as_profile_file(profile), "the profile", batch_of(spec.batch), quiet=output is OutputFormat.JSON)


@profile_commands.command("publish")
def profile_publish_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `walras profile run --profile` wrote.")],
) -> None:
    """Tell the server what a profile says of its kind's model: speeds that nobody measured are predicted from it."""
    from walras.profile_file import ProfileFile

    _publish(read_document(file, ProfileFile).model_dump(exclude_none=True), str(file), None, quiet=False)


@profile_commands.command("facts")
def profile_facts_command(
    kind: Annotated[str | None, typer.Argument(metavar="[KIND]", help="Only of this kind.")] = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show what the server knows of kinds of jobs besides their speed, and from whom."""
    found = with_client(lambda client: client.facts(kind))
    columns = (Column("KIND"), Column("SOURCE"), Column("FACTS", shrinks=True))
    rows = [(each.kind, each.source, _facts_line(each)) for each in found]
    show_listing(Listing(columns, rows, [each.model_dump(mode="json") for each in found]), output)


def _facts_line(view: "FactsView") -> str:
    facts = [f"{name} {value:g}" for name, value in view.facts.items()]
    return ", ".join(facts + ([f"precision {view.precision}"] if view.precision else []))


def _publish(data: dict[str, Any], source: str, batch: int | None, *, quiet: bool) -> None:
    from walras.checking import check
    from walras.profile_file import ProfileFile

    profile = check(ProfileFile, data, source=source)
    check_publishable(profile, source)
    believed = with_client(lambda client: client.state_facts(profile.kind, stated(profile), batch))
    if not quiet:
        why = "; a job of the kind has counted others, which go before" if believed.source == "counted" else ""
        show_line(f"the server knows kind {believed.kind} now{why}")


@profile_commands.command("report")
def profile_report_command(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="A server's data folder, or a JSON file of scored predictions.")
    ],
    output: Output = OutputFormat.TABLE,
) -> None:
    """Tell how far predicted speeds were from measured ones, and how much each source is to be believed."""

    judged = read_judged(source)
    show_report(judged, output)


def _attribute() -> "Attribute":
    from optimizer.performance.stalls import Runs, attribute

    def attribute_stalls(
        alone_s: float, together_s: float, warm_s: float, cold_s: float, apart_s: float | None
    ) -> "Parts":
        return attribute(Runs(alone_s, together_s, warm_s, cold_s, apart_s))

    return attribute_stalls


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}", fix="a file in a folder that exists") from None


_MEANING = {
    "compute": "made-up data, one rank",
    "prepare": "real data that the host remembers, against made-up data",
    "fetch": "data that the host has forgotten, against remembered",
    "inside": "all ranks of the machine, against one",
    "network": "ranks apart (loopback), against together",
}


def _show(profile: "Profile") -> None:
    whole_s = sum(stall.seconds or 0.0 for stall in profile.stalls)
    rows = [
        (
            stall.name,
            "-" if stall.seconds is None else f"{1000 * stall.seconds:.3f}",
            "-" if stall.seconds is None else f"{100 * stall.seconds / whole_s:.1f}",
            _MEANING[stall.name],
        )
        for stall in profile.stalls
    ]
    columns = (Column("STALL"), Column("MS/STEP", right=True), Column("%", right=True), Column("FROM", shrinks=True))
    show_listing(Listing(columns, rows, None), OutputFormat.TABLE)
    facts, rank = profile.facts, profile.run("alone").ranks[0]
    samples = profile.samples_per_step
    show_line("")
    show_line(
        f"{profile.job}: {1 / profile.step_s:,.4g} steps/s with {profile.ranks} "
        f"{'rank' if profile.ranks == 1 else 'ranks'} on {rank.device}"
        + (f", {samples:g} samples each" if samples else "")
    )
    show_line(
        f"model: {facts.parameters:,} parameters in {facts.layers} layers, {facts.gradient_bytes:,} bytes of "
        f"gradients, {facts.flops:,} FLOPs a step and rank"
    )
    show_line(
        f"memory: {facts.activation_bytes:,} bytes of activations kept, {rank.peak_memory_bytes:,} bytes at the peak"
    )
    for note in profile.notes:
        show_line(f"note: {note}")
