"""`walras submit`: from a job file, a script or standard input to a job in the queue.

A file with `jobs:` is a collection of them (`submit_collection`).
"""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walras.cli.arguments import NetworkOption, OutputOption, ProfileOption, example_or_path
from walras.cli.forecast_text import forecast_text
from walras.cli.job_files import checked_spec, read_job_file
from walras.cli.people_commands import defaults_text
from walras.cli.recommend_live import PlanOptions, RecommendOption, YesOption, planned_job
from walras.cli.session import remember_submitted_job, with_client
from walras.cli.submit_collection import SubmittedCollection, check_options, read_collection, submit_collection
from walras.cli.terminal_output import (
    Column,
    Listing,
    OutputFormat,
    dash,
    say_progress,
    show_json,
    show_line,
    show_listing,
    warn,
)
from walras.cli.what_if_text import show_menu, take_from_menu
from walras.errors import JobSpecError
from walras.server_access import server_access

if TYPE_CHECKING:
    from walras.api import DryRun, SubmitResult
    from walras.client import Client
    from walras.content import ContentTree
    from walras.spec.job_spec import JobSpec


_FileArgument = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="A job file (YAML), a script (shell or Python), a program, example:NAME, or - for standard input.",
        callback=example_or_path("jobs"),
    ),
]
_CommandArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- COMMAND...]", help="Run this command instead of the file's `run`."),
]
_SettingOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="FIELD=VALUE",
        help="Override a field of the job file, such as --set priority=80; repeatable.",
    ),
]
_EnvOption = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        "-e",
        metavar="NAME[=VALUE]",
        help="Set an environment variable; without a value, copy it from this shell; repeatable.",
    ),
]
_GpusOption = Annotated[
    str | None, typer.Option("--gpus", metavar="[TYPE:]N", help="Accelerators of the whole gang, such as a100:4.")
]
_NotifyOption = Annotated[
    str | None,
    typer.Option("--notify", metavar="KINDS", help="Events of the job to notify you of, such as failed,finished."),
]


_DryRunOption = Annotated[
    bool,
    typer.Option("--dry-run", help="Validate the job and show which configurations it could run in; submit nothing."),
]
_QuoteOption = Annotated[
    bool,
    typer.Option("--quote", help="Say when it would start and end on each type, and at what cost; submit nothing."),
]
_TakeOption = Annotated[
    str | None,
    typer.Option(
        "--take",
        metavar="WAY",
        help="Submit it in one of the ways of --quote, such as a100:4, whose end is its deadline.",
    ),
]
_SbatchOption = Annotated[
    list[str] | None,
    typer.Option("--sbatch", metavar="OPTION", help="An option of sbatch, as in a #SBATCH line; repeatable."),
]


_StrictOption = Annotated[
    bool, typer.Option("--strict/--lenient", help="Refuse #SBATCH lines and task fields that cannot be obeyed here.")
]


def submit_command(
    file: _FileArgument,
    command: _CommandArgument = None,
    setting: _SettingOption = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the job.")] = None,
    gpus: _GpusOption = None,
    env: _EnvOption = None,
    notify: _NotifyOption = None,
    dry_run: _DryRunOption = False,
    quote: _QuoteOption = False,
    take: _TakeOption = None,
    sbatch: _SbatchOption = None,
    skypilot: Annotated[bool, typer.Option("--skypilot", help="The file is a SkyPilot task.")] = False,
    strict: _StrictOption = True,
    wrap: Annotated[str | None, typer.Option("--wrap", hidden=True, help="Run this line in a script.")] = None,
    wait: Annotated[bool, typer.Option("--wait", hidden=True, help="Wait for the end, as `sbatch --wait`.")] = False,
    like_sbatch: Annotated[bool, typer.Option("--like-sbatch", hidden=True, help="Answer as sbatch does.")] = False,
    recommend: RecommendOption = None,
    profile: ProfileOption = None,
    network: NetworkOption = None,
    yes: YesOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the job number.")] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Submit a job to the queue."""
    from walras.spec.shipped_files import folder_of_relative_paths

    changes = [*_changes_of(name, gpus, notify), *(setting or [])]
    if not command and wrap is None and (collection := read_collection(file)) is not None:
        single = {"--name": name, "--recommend": recommend, "--quote": quote, "--take": take, "--skypilot": skypilot}
        check_options(single)
        _submit_all(collection, changes, env or [], folder_of_relative_paths(file), dry_run, quiet, output)
        return
    of_slurm = [] if like_sbatch and sbatch is None else sbatch
    spec = read_job_file(
        file, command or [], changes, env or [], strict=strict, skypilot=skypilot, sbatch=of_slurm, wrap=wrap
    )
    folder, spec, tree = with_snapshot(spec, folder_of_relative_paths(file))
    if recommend is not None:
        silent = quiet or output is OutputFormat.JSON
        options = PlanOptions(recommend, tuple(profile or ()), network, yes=yes, quiet=silent)
        spec = planned_job(spec, options, ask=not (dry_run or quote))
    if take is not None:
        spec = take_from_menu(spec, take, quiet=quiet or output is OutputFormat.JSON)
    if dry_run:
        answer = with_client(lambda client: client.dry_run(spec))
        show_json(answer.model_dump(mode="json")) if output is OutputFormat.JSON else _show_dry_run(answer, spec)
        return
    if quote:
        show_menu(spec, output)
        return
    submitted = with_client(lambda client: _send(client, spec, folder, tree))
    assert submitted.id is not None
    remember_submitted_job(server_access().url, submitted.id)
    if output is OutputFormat.JSON:
        show_json(submitted.model_dump(mode="json"))
    elif quiet or like_sbatch:
        show_line(str(submitted.id) if quiet else f"Submitted batch job {submitted.id}")
    else:
        _tell_submitted(submitted, spec, folder)
    if wait:
        _wait_for_end(submitted.id)


async def _send(client: "Client", spec: "JobSpec", folder: Path, tree: "ContentTree | None") -> "SubmitResult":
    if tree is not None:
        await client.send_folder(folder, tree, say_progress("the code travels: {} of {} pieces"))
    return await client.submit(spec)


def _wait_for_end(job_id: int) -> None:
    """Waits for a job, or its sweep, and ends with the exit code of `walras wait`."""
    from walras.cli.job_control_commands import exit_code_of_states, wait_for_jobs

    states = with_client(lambda client: wait_for_jobs(client, [job_id], None, whole=[job_id]))
    if code := exit_code_of_states(states.values()):
        raise typer.Exit(code)


def _submit_all(
    collection: SubmittedCollection,
    changes: Sequence[str],
    env: list[str],
    start: Path,
    dry_run: bool,
    quiet: bool,
    output: OutputFormat,
) -> None:
    submit_collection(
        collection,
        lambda mapping, source: checked_spec(mapping, changes, env, {}, source),
        lambda spec: with_snapshot(spec, start),
        dry_run=dry_run,
        quiet=quiet,
        output=output,
    )


def _tell_submitted(submitted: "SubmitResult", spec: "JobSpec", folder: Path) -> None:
    if submitted.note:
        warn(f"note: job {submitted.id} {submitted.note}")
    _show_submitted(submitted, spec)
    if told := defaults_text(submitted.defaults):
        show_line(f"  not stated, so: {told}")
    if spec.code is not None:
        show_line(f"  with it travel {spec.code.files} files ({spec.code.size / 1e6:,.1f} MB) of {folder}")
    show_line(f"  follow it: walras logs -f {submitted.id}    why it waits: walras explain {submitted.id}")


def _show_submitted(submitted: "SubmitResult", spec: "JobSpec") -> None:
    from walras.spec.sweeps import is_sweep, parse_array

    if not is_sweep(spec):
        show_line(f"job {submitted.id} ({submitted.name or spec.name}) is in the queue")
        return
    at_most = 0 if spec.array is None else parse_array(spec.array).at_most
    limit = f", at most {at_most} at once" if at_most else ""
    show_line(f"sweep {submitted.id} ({spec.name}): {submitted.jobs} jobs are in the queue{limit}")
    show_line(f"  one of them: {submitted.id}[INDEX]    all of them: walras queue --expand")


def _changes_of(name: str | None, gpus: str | None, notify: str | None) -> list[str]:
    """Returns the options that stand for a field as `--set` would have them."""
    changes = [] if name is None else [f"name={json.dumps(name, ensure_ascii=False)}"]
    if gpus is not None:
        changes.append(f"resources.accelerators={gpus if ':' in gpus else f'any:{gpus}'}")
    if notify is not None:
        changes.append(f"notify={json.dumps(notify, ensure_ascii=False)}")
    return changes


def in_local_folder(spec: "JobSpec", start: Path) -> "JobSpec":
    """Returns the job with a relative `workdir` made absolute: it runs here, and the path begins at `start`.

    Raises JobSpecError for a job that starts its ranks itself: whoever runs it here counts and measures ranks.
    """
    from walras.spec.launchers import is_launcher
    from walras.spec.sweeps import is_sweep

    if is_sweep(spec):
        raise JobSpecError(
            "array: a sweep is many jobs, and one runs here", field="array", fix="choose one: --set array_index=0"
        )
    if is_launcher(spec):
        raise JobSpecError(
            "nproc_per_node: a job that starts its ranks itself cannot be run here",
            field="nproc_per_node",
            fix="leave nproc_per_node out, and write the script in `run` without its launcher",
        )
    if spec.workdir is None:
        return spec
    return spec.model_copy(update={"workdir": os.path.normpath(start / spec.workdir)})


def with_snapshot(spec: "JobSpec", start: Path) -> "tuple[Path, JobSpec, ContentTree | None]":
    """Returns the folder of a relative `workdir` (from `start`), the job with a snapshot of it instead, and its tree.

    An absolute `workdir` stays: the machines have that folder under that path. Raises ConfigError for a folder that
    cannot travel.
    """
    folder = start / (spec.workdir or "")
    if spec.workdir is None or spec.workdir.startswith("/"):
        return folder, spec, None
    from walras.code_snapshot import code_fields, snapshot_folder
    from walras.spec.job_groups import CodeSpec

    folder = Path(os.path.normpath(folder))
    tree = snapshot_folder(folder)
    code = CodeSpec(**code_fields(tree, folder))
    return folder, spec.model_copy(update={"workdir": None, "code": code}), tree


def _show_dry_run(plan: "DryRun", spec: "JobSpec") -> None:
    from walras.spec.launchers import launcher_note
    from walras.spec.sweeps import array_indices, is_sweep
    from walras.units import format_count

    spread = f", spread over {spec.num_nodes} machines" if spec.num_nodes > 1 else ""
    sweep = f"{len(array_indices(spec))} jobs, each: " if is_sweep(spec) else ""
    show_line(f"{spec.name}: valid; {sweep}kind {plan.kind}; accelerators {plan.accelerators}{spread}")
    titles = list(dict.fromkeys(key for row in plan.configurations for key in row))
    rows = [
        ["✔" if row == plan.chosen else "", *(_dry_run_cell(row.get(title), format_count) for title in titles)]
        for row in plan.configurations
    ]
    if rows:
        columns = [Column("CHOSEN"), *(Column(title.upper().replace("_", " ")) for title in titles)]
        show_listing(Listing(columns, rows, None), OutputFormat.TABLE)
    if plan.value_by:
        show_line(f"an hour of it is worth {plan.value_usd_per_h:g} USD, says its {plan.value_by}")
    if told := defaults_text(plan.defaults):
        show_line(f"not stated, so: {told}")
    if plan.chosen is None:
        show_line(f"would wait: {dash(plan.reason)} {plan.detail}".rstrip())
    if plan.forecast is not None:
        show_line(f"submitted now it {forecast_text(plan.forecast, time.time())}")
    for note in filter(None, (launcher_note(spec), plan.note)):
        show_line(f"it {note}")
    show_line("nothing was submitted")


def _dry_run_cell(value: Any, number: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else dash(value)
