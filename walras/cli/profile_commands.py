"""`walras profile`: where a job's time goes, facts of its kind, and predicted speeds beside measured ones."""

import json
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from walras.cli.arguments import JobArgument, OutputOption, example_or_path, parse_length_option, read_document
from walras.cli.job_files import read_job_file
from walras.cli.profile_on_cluster import (
    ProfilingOrder,
    declared_speed,
    fetch_profile,
    submit_profiling,
    wait_for_profile,
)
from walras.cli.session import job_id_of, with_client
from walras.cli.stated_facts import check_publishable, stated_facts_of
from walras.cli.submit_commands import in_local_folder
from walras.cli.terminal_output import Column, Listing, OutputFormat, show_json, show_line, show_listing
from walras.errors import UserError

if TYPE_CHECKING:
    from optimizer.prediction.ensemble import AccuracyRow, ScoredPrediction
    from walras.api import FactsView
    from walras.profiling.profile_documents import ProfileFile
    from walras.profiling.profile_report import ProfileReport
    from walras.profiling.profile_runs import AttributeStalls, ProfilingExtent, StallSeconds
    from walras.spec.job_spec import JobSpec


#: File names in the folder that `walras simulate run --out` left.
SCORED_FILE = "scored.json"
_MAX_SCORED_BYTES = 64 * 1024**2


def read_scored_predictions(source: Path) -> "list[ScoredPrediction]":
    """Returns the predictions with measured speeds of a data folder, a run or a JSON file. Raises UserError."""
    run = source / SCORED_FILE
    judged = (
        _scores_of_file(run if run.is_file() else source)
        if run.is_file() or not source.is_dir()
        else _scores_of_folder(source)
    )
    if not judged:
        raise UserError(
            f"{source}: no predicted speed was measured yet",
            field="SOURCE",
            fix="let jobs run on accelerators; a simulation measures under the condition `speeds_told: false`",
        )
    return judged


def _scores_of_folder(folder: Path) -> "list[ScoredPrediction]":
    from optimizer.prediction.ensemble import ScoredPrediction
    from scheduler.live.store.event_journal import scored_folder

    return [
        ScoredPrediction(
            each.source,
            each.kind,
            f"{each.count} x {each.accelerator}",
            each.predicted,
            each.measured,
            each.low,
            each.high,
        )
        for each in scored_folder(folder)
        if each.predicted > 0 and each.measured > 0
    ]


def _scores_of_file(file: Path) -> "list[ScoredPrediction]":
    """Reads a list of objects with source, kind, accelerator, predicted, measured, low and high; or our own JSON."""
    from optimizer.prediction.ensemble import ScoredPrediction

    try:
        if file.stat().st_size > _MAX_SCORED_BYTES:
            raise UserError(f"{file}: more than {_MAX_SCORED_BYTES:,} bytes", field="SOURCE", fix="split it")
        data = json.loads(file.read_bytes())
        rows = data["predictions"] if isinstance(data, dict) else data
        found = []
        for row in rows:
            low, high = (None if row.get(name) is None else float(row[name]) for name in ("low", "high"))
            source, kind, accelerator = (str(row[name]) for name in ("source", "kind", "accelerator"))
            if "count" in row:
                accelerator = f"{row['count']} x {accelerator}"
            found.append(
                ScoredPrediction(source, kind, accelerator, float(row["predicted"]), float(row["measured"]), low, high)
            )
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}", field="SOURCE", fix="a folder or a file that exists") from None
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{file}: no list of scored predictions ({error})",
            field="SOURCE",
            fix="a list of objects with source, kind, accelerator, predicted and measured (steps per second)",
        ) from None
    return found


def show_prediction_scores(judged: "list[ScoredPrediction]", output: OutputFormat) -> None:
    """Prints the errors by source (with weights), by accelerator and by kind."""
    from optimizer.prediction.ensemble import accuracy_rows as lines_by
    from optimizer.prediction.ensemble import source_weights as weights_of

    weights = weights_of(judged)
    groups = {
        "source": lines_by(judged, lambda each: each.source),
        "accelerator": lines_by(judged, lambda each: each.accelerator),
        "kind": lines_by(judged, lambda each: each.kind),
    }
    if output is OutputFormat.JSON:
        tables = {name: [asdict(line) for line in lines] for name, lines in groups.items()}
        show_json({"predictions": [asdict(each) for each in judged], "weights": weights} | {"by": tables})
        return
    for name, lines in groups.items():
        titles = (name.upper(), "PREDICTIONS", "MEDIAN %", "MEAN %", "IN INTERVAL %", "WEIGHT")
        columns = [Column(title, right=place > 0) for place, title in enumerate(titles)]
        rows = [_score_cells(line, weights.get(line.name) if name == "source" else None) for line in lines]
        show_listing(Listing(columns if name == "source" else columns[:-1], rows, None), output)
        show_line("")


def _score_cells(line: "AccuracyRow", weight: float | None) -> list[str]:
    coverage = "-" if line.coverage is None or not isfinite(line.coverage) else f"{100 * line.coverage:.0f}"
    errors = [f"{100 * line.median_error:.1f}", f"{100 * line.mean_error:.1f}"]
    return [line.name, str(line.predictions), *errors, coverage, *([] if weight is None else [f"{weight:.2f}"])]


profile_commands = typer.Typer(help="Profile jobs, and compare predicted with measured speeds.", no_args_is_help=True)


_JsonFileOption = Annotated[Path | None, typer.Option("--json", help="Write all measurements to this JSON file.")]
_ProfileFileOption = Annotated[
    Path | None,
    typer.Option("--profile", help="Write a profile of this kind, as `walras recommend --profile` reads it."),
]
_PictureOption = Annotated[
    Path | None, typer.Option("--picture", help="Draw the stalls as stacked bars into this .svg, .png or .pdf file.")
]


@dataclass(frozen=True, slots=True)
class _ProfileOutputs:
    """Where a profile is written, and how it is printed."""

    json_file: Path | None
    profile_file: Path | None
    picture: Path | None
    output: OutputFormat

    def write(self, report: "ProfileReport", kind: "ProfileFile") -> None:
        from walras.profiling.profile_report import draw_profile

        if self.json_file is not None:
            _write_text(self.json_file, report.model_dump_json(indent=2) + "\n")
        if self.profile_file is not None:
            _write_text(self.profile_file, kind.model_dump_json(indent=2, exclude_defaults=True) + "\n")
        if self.picture is not None:
            draw_profile(report, self.picture)
        show_json(report.model_dump(mode="json")) if self.output is OutputFormat.JSON else _show_profile(report)


@profile_commands.command("run")
def profile_run_command(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A job file (YAML), a shell script, example:NAME, or - for standard input.",
            callback=example_or_path("jobs"),
        ),
    ],
    on: Annotated[
        str | None,
        typer.Option(
            "--on", metavar="TYPE[:N]", help="Profile on a machine of the cluster with these, such as a100:4, by a job."
        ),
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=5, max=100_000, help="Steps to time in each run.")] = 40,
    warm_up: Annotated[int, typer.Option("--warm-up", min=1, max=100_000, help="Untimed steps before them.")] = 5,
    ranks: Annotated[
        int | None, typer.Option("--ranks", min=1, max=64, help="Number of ranks; default: those of the job's gang.")
    ] = None,
    timeout: Annotated[str, typer.Option("--timeout", help="Longest time that one run may take.")] = "5m",
    json_file: _JsonFileOption = None,
    profile_file: _ProfileFileOption = None,
    picture: _PictureOption = None,
    publish: Annotated[bool, typer.Option("--publish", help="Send the facts of this kind to the server.")] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Run a job's script for some steps in several set-ups, and attribute its step time to stalls."""
    from walras.profiling.profile_runs import ProfilingExtent
    from walras.spec.job_groups import global_batch_of
    from walras.spec.shipped_files import folder_of_relative_paths

    timeout_s = parse_length_option(timeout, "--timeout")
    spec, start = read_job_file(file, [], [], []), folder_of_relative_paths(file)
    if on is None:
        report, kind = _profile_here(in_local_folder(spec, start), ranks, ProfilingExtent(warm_up, steps, timeout_s))
    elif ranks is not None:
        raise UserError("--ranks is for this machine", field="--ranks", fix=f"--on {on.partition(':')[0]}:{ranks}")
    else:
        job_id = submit_profiling(spec, ProfilingOrder(on, steps, warm_up, timeout_s), start)
        wait_for_profile(job_id)
        report, kind = fetch_profile(job_id)
    _ProfileOutputs(json_file, profile_file, picture, output).write(report, kind)
    if on is not None and output is OutputFormat.TABLE and (row := declared_speed(on, report, kind)):
        show_line(f"for its job file: {row}")
    if publish:
        _publish_facts(kind, "the profile", global_batch_of(spec.batch), quiet=output is OutputFormat.JSON)


def _profile_here(spec: "JobSpec", ranks: int | None, extent: "ProfilingExtent") -> "tuple[ProfileReport, ProfileFile]":
    from walras.profiling.profile_documents import ProfileFile, profile_file_fields
    from walras.profiling.profile_report import profile_report
    from walras.spec.file_model import check_model
    from workers.trials.profile_job import profile_job

    profile = profile_job(spec, ranks, extent, _stall_attribution())
    return profile_report(profile), check_model(ProfileFile, profile_file_fields(profile), source="the profile")


@profile_commands.command("show")
def profile_show_command(
    job: JobArgument,
    json_file: _JsonFileOption = None,
    profile_file: _ProfileFileOption = None,
    picture: _PictureOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show what a job of `walras profile run --on TYPE` found."""
    report, kind = fetch_profile(job_id_of(job))
    _ProfileOutputs(json_file, profile_file, picture, output).write(report, kind)


@profile_commands.command("publish")
def profile_publish_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file written by `walras profile run --profile`.")],
) -> None:
    """Send a profile's facts to the server, which predicts unmeasured speeds from them."""
    from walras.profiling.profile_documents import ProfileFile

    _publish_facts(read_document(file, ProfileFile), str(file), None, quiet=False)


@profile_commands.command("facts")
def profile_facts_command(
    kind: Annotated[str | None, typer.Argument(metavar="[KIND]", help="Only this kind.")] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the facts of kinds of jobs that the server knows, and their sources."""
    found = with_client(lambda client: client.facts(kind))
    columns = (Column("KIND"), Column("SOURCE"), Column("FACTS", shrinks=True))
    rows = [(each.kind, each.source, _facts_line(each)) for each in found]
    show_listing(Listing(columns, rows, [each.model_dump(mode="json") for each in found]), output)


def _facts_line(view: "FactsView") -> str:
    facts = [f"{name} {value:g}" for name, value in view.facts.items()]
    return ", ".join(facts + ([f"precision {view.precision}"] if view.precision else []))


def _publish_facts(profile: "ProfileFile", source: str, batch: int | None, *, quiet: bool) -> None:
    check_publishable(profile, source)
    believed = with_client(lambda client: client.state_facts(profile.kind, stated_facts_of(profile), batch))
    if not quiet:
        why = "; a job of the kind has counted others, which go before" if believed.source == "counted" else ""
        show_line(f"the server knows kind {believed.kind} now{why}")


@profile_commands.command("report")
def profile_report_command(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE",
            help="A server's data folder, the output folder of a simulation, or a JSON file of scored predictions.",
        ),
    ],
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Compare predicted with measured speeds, and show the weight of each predictor."""

    judged = read_scored_predictions(source)
    show_prediction_scores(judged, output)


def _stall_attribution() -> "AttributeStalls":
    from optimizer.prediction.step_time import StallRuns, attribute_stalls

    def attribute(
        alone_s: float, together_s: float, warm_s: float, cold_s: float, apart_s: float | None
    ) -> "StallSeconds":
        return attribute_stalls(StallRuns(alone_s, together_s, warm_s, cold_s, apart_s))

    return attribute


def _write_text(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}", fix="a file in a folder that exists") from None


_STALL_SOURCES = {
    "compute": "made-up data, one rank",
    "prepare": "real data that the host remembers, against made-up data",
    "fetch": "data that the host has forgotten, against remembered",
    "inside": "all ranks of the machine, against one",
    "network": "ranks apart (loopback), against together",
}


def _show_profile(report: "ProfileReport") -> None:
    whole_s = sum(seconds or 0.0 for _, seconds in report.stalls)
    rows = [
        (
            name,
            "-" if seconds is None else f"{1000 * seconds:.3f}",
            "-" if seconds is None else f"{100 * seconds / whole_s:.1f}",
            _STALL_SOURCES[name],
        )
        for name, seconds in report.stalls
    ]
    columns = (Column("STALL"), Column("MS/STEP", right=True), Column("%", right=True), Column("FROM", shrinks=True))
    show_listing(Listing(columns, rows, None), OutputFormat.TABLE)
    model, samples = report.model, report.samples_per_step
    show_line("")
    show_line(
        f"{report.job}: {report.steps_per_s:,.4g} steps/s with {report.ranks} "
        f"{'rank' if report.ranks == 1 else 'ranks'} on {report.device}"
        + (f", {samples:g} samples each" if samples else "")
    )
    show_line(
        f"model: {model.parameters:,} parameters in {model.layers} layers, {model.gradient_bytes:,} bytes of "
        f"gradients, {model.flops_per_step_and_rank:,} FLOPs a step and rank"
    )
    show_line(
        f"memory: {model.activation_bytes:,} bytes of activations kept, {model.peak_memory_bytes:,} bytes at the peak"
    )
    for note in report.notes:
        show_line(f"note: {note}")
