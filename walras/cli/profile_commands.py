"""`walras cloud profile`: where a job's time goes, facts of its kind, and predicted speeds beside measured ones.

With `run --on TYPE` the runs of a profile are a job of the cluster's queue. That job has the folder, code, data, Python
and secrets of the profiled one, takes one machine, and starts the profiler of that machine's agent with the profiled
job as JSON in a variable. Its outputs are the report and the profile.
"""

import json
import tempfile
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walras.cli.arguments import JobArgument, OutputOption, example_or_path, parse_length_option, read_document
from walras.cli.job_control_commands import wait_for_jobs
from walras.cli.job_files import check_publishable, read_job_file, stated_facts_of
from walras.cli.session import job_id_of, remember_submitted_job, with_client
from walras.cli.submit_commands import in_local_folder, with_snapshot
from walras.cli.terminal_output import OutputFormat, safe_text, show_as_json, show_columns, show_json, show_line, warn
from walras.errors import JobSpecError, NotFound, UserError
from walras.server_access import server_access
from walras.states import JobState

if TYPE_CHECKING:
    from optimizer.prediction.ensemble import AccuracyRow, ScoredPrediction
    from walras.client import Client
    from walras.profiling.profiles import ProfileFile, ProfileReport, ProfilingExtent
    from walras.resources.jobs import FactsView
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
        titles = f"{name.upper()} | PREDICTIONS> | MEDIAN %> | MEAN %> | IN INTERVAL %>"
        rows = [_score_cells(line, weights.get(line.name) if name == "source" else None) for line in lines]
        show_columns(titles + (" | WEIGHT>" if name == "source" else ""), rows)
        show_line("")


def _score_cells(line: "AccuracyRow", weight: float | None) -> list[str]:
    coverage = "-" if line.coverage is None or not isfinite(line.coverage) else f"{100 * line.coverage:.0f}"
    errors = [f"{100 * line.median_error:.1f}", f"{100 * line.mean_error:.1f}"]
    return [line.name, str(line.predictions), *errors, coverage, *([] if weight is None else [f"{weight:.2f}"])]


profile_commands = typer.Typer(help="Profile jobs, and compare predicted with measured speeds.", no_args_is_help=True)


_ProfileFileOption = Annotated[
    Path | None,
    typer.Option("--profile", help="Write a profile of this kind, as `walras cloud recommend --profile` reads it."),
]
_PictureOption = Annotated[
    Path | None, typer.Option("--picture", help="Draw the stalls as stacked bars into this .svg, .png or .pdf file.")
]


def _write_profile(
    report: "ProfileReport", kind: "ProfileFile", file: Path | None, picture: Path | None, output: OutputFormat
) -> None:
    """Writes the profile and its picture where they are wanted, and prints it. Raises UserError."""
    from walras.profiling.profiles import draw_profile

    if file is not None:
        try:
            file.write_text(kind.model_dump_json(indent=2, exclude_defaults=True) + "\n")
        except OSError as error:
            raise UserError(f"{file}: {error.strerror}", fix="a file in a folder that exists") from None
    if picture is not None:
        draw_profile(report, picture)
    if not show_as_json(report, output):
        _show_profile(report)


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
    profile_file: _ProfileFileOption = None,
    picture: _PictureOption = None,
    publish: Annotated[bool, typer.Option("--publish", help="Send the facts of this kind to the server.")] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Run a job's script for some steps in several set-ups, and attribute its step time to stalls."""
    from walras.profiling.profiles import ProfilingExtent
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
    _write_profile(report, kind, profile_file, picture, output)
    if on is not None and output is OutputFormat.TABLE and (row := declared_speed(on, report, kind)):
        show_line(f"for its job file: {row}")
    if publish:
        batch = global_batch_of(spec.batch)
        _publish_facts(kind, "the profile", batch, spec.project, quiet=output is OutputFormat.JSON)


def _profile_here(spec: "JobSpec", ranks: int | None, extent: "ProfilingExtent") -> "tuple[ProfileReport, ProfileFile]":
    from optimizer.prediction.step_time import StallRuns, attribute_stalls
    from walras.profiling.profiles import ProfileFile, profile_file_fields, profile_report
    from walras.spec.file_model import check_model
    from workers.trials.profile_job import profile_job

    profile = profile_job(spec, ranks, extent, lambda *seconds: attribute_stalls(StallRuns(*seconds)))
    return profile_report(profile), check_model(ProfileFile, profile_file_fields(profile), source="the profile")


@profile_commands.command("show")
def profile_show_command(
    job: JobArgument,
    profile_file: _ProfileFileOption = None,
    picture: _PictureOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show what a job of `walras cloud profile run --on TYPE` found."""
    report, kind = fetch_profile(job_id_of(job))
    _write_profile(report, kind, profile_file, picture, output)


@profile_commands.command("publish")
def profile_publish_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file of `walras cloud profile run --profile`.")],
) -> None:
    """Send a profile's facts to the server, which predicts unmeasured speeds from them."""
    from walras.profiling.profiles import ProfileFile

    _publish_facts(read_document(file, ProfileFile), str(file), None, None, quiet=False)


@profile_commands.command("facts")
def profile_facts_command(
    kind: Annotated[str | None, typer.Argument(metavar="[KIND]", help="Only this kind.")] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the facts of kinds of jobs that the server knows, and their sources."""
    found = with_client(lambda client: client.facts(kind))
    rows = [(each.kind, each.project, each.source, _facts_line(each)) for each in found]
    show_columns("KIND | PROJECT | SOURCE | FACTS~", rows, [each.model_dump(mode="json") for each in found], output)


def _facts_line(view: "FactsView") -> str:
    facts = [f"{name} {value:g}" for name, value in view.facts.items()]
    words = [f"{name} {value}" for name in ("precision", "family") if (value := getattr(view, name)) is not None]
    return ", ".join(facts + words)


def _publish_facts(profile: "ProfileFile", source: str, batch: int | None, project: str | None, *, quiet: bool) -> None:
    check_publishable(profile, source)
    facts = stated_facts_of(profile)
    believed = with_client(lambda client: client.state_facts(profile.kind, facts, batch, project))
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
    show_prediction_scores(read_scored_predictions(source), output)


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
    show_columns("STALL | MS/STEP> | %> | FROM~", rows)
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


REPORT_FILE = "walras-profile-report.json"
KIND_FILE = "walras-profile-kind.json"
_JOB_VARIABLE = "PROFILED_JOB"
#: The agent's own Python has the profiler; the job's modules and its PYTHONPATH must not hide that.
_COMMAND = (
    'exec env -u PYTHONPATH "$WALRAS_AGENT_PYTHON" -P -c "from walras.cli.main import main; main()" profile run -'
    " --ranks {ranks} --steps {steps} --warm-up {warm_up} --timeout {timeout_s:g}s"
    f' --profile {KIND_FILE} -o json <<< "${_JOB_VARIABLE}" > {REPORT_FILE}'
)
#: Fields that the profiling job takes over: where the script runs, as what, and for whom.
_OF_THE_PLACE = ("workdir", "code", "git", "inputs", "python", "setup", "project", "priority", "value_usd_per_h")
#: Fields of the script itself, which the profiler reads.
_OF_THE_SCRIPT = ("name", "run", "envs", "batch")
_MOST_RUNS = 6
_MOST_BYTES = 8 * 1024**2
_LOG_LINES = 20


@dataclass(frozen=True, slots=True)
class ProfilingOrder:
    """The accelerators to profile on, and the length of the runs: the options of `walras cloud profile run`."""

    #: The accelerators as `--on` states them: `a100`, `a100:4`.
    on: str
    steps: int
    warm_up: int
    timeout_s: float


def profiling_job(spec: "JobSpec", order: ProfilingOrder, folder: Path) -> "JobSpec":
    """Returns the job that profiles `spec`. `folder`: where its relative `workdir` begins.

    Raises JobSpecError for a job that cannot be profiled in the queue.
    """
    from walras.job_request import ANY_ACCELERATOR
    from walras.spec.job_spec import parse_spec, spec_mapping
    from walras.spec.spec_request import kind_of

    if spec.image is not None:
        raise JobSpecError(
            "image: the profiler of the machine cannot start inside a container image",
            field="image",
            fix="profile with `python:` or the machine's own Python",
        )
    given = spec_mapping(spec)
    inner = {name: given[name] for name in _OF_THE_SCRIPT if name in given} | {"profile": kind_of(spec)}
    if spec.secrets:
        inner["secrets"] = {name: {"env": name} for name in spec.secrets}
    outer = {name: given[name] for name in _OF_THE_PLACE if name in given}
    if spec.workdir is not None and spec.workdir.startswith("/"):
        # The outputs go to a folder of the attempt, because other users may write to that of the job.
        inner["workdir"] = outer.pop("workdir")
    elif any(name in outer for name in ("workdir", "code", "git")):
        inner["workdir"] = "."
    outer |= {"name": f"profile {spec.name}"[:200], "profile": f"profile {kind_of(spec)}"[:200]}
    outer["envs"] = spec.envs | {_JOB_VARIABLE: json.dumps(inner)}
    outer["resources"] = given.get("resources", {}) | {"accelerators": order.on}
    outer["outputs"] = [REPORT_FILE, KIND_FILE]
    outer["limits"] = {"max_runtime": _MOST_RUNS * order.timeout_s + 120}
    if "secrets" in given:
        outer["secrets"] = given["secrets"]
    (demand, *others) = parse_spec(outer | {"run": "true"}, source="--on").resources.accelerators
    if others or demand.accelerator == ANY_ACCELERATOR:
        raise JobSpecError(f"--on {order.on}: not one type", field="--on", fix="name one, such as --on a100:4")
    if demand.count > 1:
        outer["nproc_per_node"] = 1
    outer["run"] = _COMMAND.format(
        ranks=demand.count, steps=order.steps, warm_up=order.warm_up, timeout_s=order.timeout_s
    )
    return parse_spec(outer, source=f"the profile of {spec.name}")


def submit_profiling(spec: "JobSpec", order: ProfilingOrder, start: Path) -> int:
    """Submit the job that profiles `spec`; returns its number. Folders are relative to `start`."""
    folder, sent, tree = with_snapshot(profiling_job(spec, order, start), start)

    async def send(client: "Client") -> int:
        if tree is not None:
            await client.send_folder(folder, tree)
        submitted = await client.submit(sent)
        assert submitted.id is not None
        return submitted.id

    job_id = with_client(send)
    remember_submitted_job(server_access().url, job_id)
    return job_id


def wait_for_profile(job_id: int) -> None:
    """Wait until the job that profiles has ended. Raises UserError with the end of its log if it failed."""
    warn(f"job {job_id} profiles; Ctrl-C leaves it queued; `walras cloud profile show {job_id}` shows what it found")
    state = with_client(lambda client: wait_for_jobs(client, [job_id], None, whole=()), stays=True)[job_id]
    if state is not JobState.SUCCEEDED:
        raise UserError(
            f"job {job_id}, which was to profile, is {'gone' if state is None else state}\n{_log_tail(job_id)}",
            fix=f"walras logs {job_id}; walras explain {job_id}",
        )


def fetch_profile(job_id: int) -> "tuple[ProfileReport, ProfileFile]":
    """Returns what a profiling job found: the report, and the profile for `walras cloud recommend` and the server.

    Raises UserError if it left none yet, ConfigError for files that are not what the profiler writes.
    """
    from walras.client import fetch_outputs
    from walras.profiling.profiles import ProfileFile, ProfileReport
    from walras.spec.file_model import check_model

    with tempfile.TemporaryDirectory(prefix="walras-profile-") as place:
        folder = Path(place) / "outputs"
        try:
            with_client(lambda client: fetch_outputs(client, job_id, "", folder))
        except NotFound as error:
            raise UserError(
                f"{error}", field="JOB", fix="a job of `walras cloud profile run --on TYPE` that has ended"
            ) from None
        report = check_model(
            ProfileReport, _json_of(folder / REPORT_FILE, job_id), source=f"the report of job {job_id}"
        )
        kind = check_model(ProfileFile, _json_of(folder / KIND_FILE, job_id), source=f"the profile of job {job_id}")
    if kind.kind != report.kind:
        raise UserError(f"job {job_id}: its report is of {report.kind!r}, its profile of {kind.kind!r}", field="JOB")
    return report, kind


def declared_speed(on: str, report: "ProfileReport", kind: "ProfileFile") -> str:
    """Returns the line of a job file that declares the measured speed; empty if the machine only emulates the type."""
    asked = on.partition(":")[0]
    if asked != "cpu" and any(row.accelerator == "cpu" for row in kind.measured):
        return ""
    return f"throughput: {{{asked}: {report.steps_per_s:.4g}}}"


def _json_of(file: Path, job_id: int) -> Any:
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise UserError(f"job {job_id}: {file.name} has more than {_MOST_BYTES:,} bytes", field="JOB")
        return json.loads(file.read_bytes())
    except OSError:
        raise UserError(
            f"job {job_id} left no {file.name}",
            field="JOB",
            fix="a job of `walras cloud profile run --on TYPE` that has succeeded",
        ) from None
    except (ValueError, RecursionError):
        raise UserError(f"job {job_id}: {file.name} is no JSON", field="JOB") from None


def _log_tail(job_id: int) -> str:
    async def read(client: "Client") -> bytes:
        kept = b""
        async for piece in client.logs(job_id):
            kept = (kept + piece)[-16_384:]
        return kept

    try:
        text = with_client(read).decode(errors="replace")
    except UserError:
        return ""
    return safe_text("\n".join(text.splitlines()[-_LOG_LINES:]), lines=True)
