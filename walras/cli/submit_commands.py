"""`walras submit`: from a job file, a script or standard input to a job in the queue.

A file with `jobs:` is a collection, whose jobs go to the queue together:

    collection: nightly          # every job of it has the label collection=nightly
    defaults: {project: vision, value_usd_per_h: 4}
    jobs:
      - {name: parse, run: python parse.py}
      - {name: train, run: python train.py, steps: 20000}

Every job is checked before any is sent. The market assigns them to pools and zones, and moves them where that pays.
"""

import json
import os
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walras.cli.arguments import (
    MOST_CHOSEN,
    JobChoice,
    NameOption,
    NetworkOption,
    OutputOption,
    ProfileOption,
    SinceOption,
    choose_jobs,
    example_or_path,
    parse_length_option,
    refuse_options,
    why_text,
)
from walras.cli.forecast_text import forecast_text, show_menu, take_from_menu
from walras.cli.job_commands import defaults_text
from walras.cli.job_control_commands import exit_code_of_states, logs_command, parse_priority, wait_for_jobs
from walras.cli.job_files import checked_spec, read_job_file
from walras.cli.recommend_live import PlanOptions, RecommendOption, YesOption, planned_job
from walras.cli.session import (
    FAILED_STATES,
    find_named_jobs,
    newest_job_here,
    remember_submitted_job,
    spec_of_sweep_again,
    with_client,
)
from walras.cli.terminal_output import (
    OutputFormat,
    dash,
    say_code_travels,
    show_as_json,
    show_columns,
    show_json,
    show_line,
    warn,
)
from walras.contract import HIDDEN
from walras.errors import JobSpecError, NotFound, UserError, WalrasError
from walras.server_access import server_access
from walras.states import JobState
from walras.units import format_size

if TYPE_CHECKING:
    from walras.client import Client
    from walras.resources.jobs import DryRun, JobView, SubmitResult
    from walras.spec.job_spec import JobSpec
    from walras.storage.content import ContentTree


#: The most bytes of a collection's file, and its most jobs; and the most jobs in one request that the server takes.
_BYTES_MOST, _JOBS_MOST, _SENT_AT_ONCE = 4_000_000, 10_000, 1000
_FIELDS = ("collection", "defaults", "jobs")


@dataclass(frozen=True, slots=True)
class SubmittedCollection:
    """Jobs that are submitted together, as mappings: the file's defaults are in each."""

    name: str
    jobs: tuple[dict[str, Any], ...]


def read_collection(file: str) -> SubmittedCollection | None:
    """Returns the collection in a YAML file; None for any other file. Raises JobSpecError if it makes no sense."""
    path = Path(file)
    if path.suffix not in (".yaml", ".yml") or not path.is_file() or path.stat().st_size > _BYTES_MOST:
        return None  # whoever reads a single job reports what is wrong with the file
    from walras.errors import ConfigError
    from walras.spec.text_formats import parse_yaml

    try:
        data = parse_yaml(path.read_bytes(), source=file, max_bytes=_BYTES_MOST)
    except (OSError, ConfigError):
        return None
    if not isinstance(data, dict) or "jobs" not in data or "run" in data:
        return None
    return _collection_of(data, file)


def _collection_of(data: dict[str, Any], file: str) -> SubmittedCollection:
    for key in data:
        if key not in _FIELDS:
            raise JobSpecError(
                f"{file}: {str(key)[:60]!r} is no field of a collection",
                field=str(key)[:60],
                fix="what all jobs have goes under `defaults`; a workload of `walras simulate` is not submitted",
            )
    name, jobs, defaults = data.get("collection", Path(file).stem), data["jobs"], data.get("defaults", {})
    if not isinstance(name, str) or not 0 < len(name) <= 63:
        raise JobSpecError(f"{file}: collection: no name", field="collection", fix="write a short text")
    if not isinstance(defaults, dict):
        raise JobSpecError(f"{file}: defaults: no fields", field="defaults", fix="write the fields of a job")
    if not isinstance(jobs, list) or not 0 < len(jobs) <= _JOBS_MOST:
        raise JobSpecError(f"{file}: jobs: not 1 to {_JOBS_MOST:,} jobs", field="jobs", fix="write a list of jobs")
    found = []
    for number, job in enumerate(jobs):
        if not isinstance(job, dict):
            raise JobSpecError(f"{file}: jobs[{number}]: no fields", field=f"jobs[{number}]", fix="write a job")
        labels = {**_labels(defaults), **_labels(job), "collection": name}
        found.append({"name": f"{name}-{number}"[:63], **defaults, **job, "labels": labels})
    return SubmittedCollection(name, tuple(found))


def _labels(fields: Mapping[str, Any]) -> dict[str, Any]:
    labels = fields.get("labels")
    return labels if isinstance(labels, dict) else {}


def submit_collection(
    collection: SubmittedCollection,
    changes: Sequence[str],
    env: list[str],
    start: Path,
    *,
    dry_run: bool,
    quiet: bool,
    output: OutputFormat,
) -> None:
    """Check every job, send what travels with them, and submit them. Exits with 1 if the server refused any.

    Args:
        collection: what was read.
        changes: `--set` for each of them, and `env`: `--env`.
        start: where relative folders begin.
        dry_run: stop once all are checked.
        quiet: print numbers only.
        output: table or JSON.
    """
    specs = [checked_spec(job, changes, env, {}, f"jobs[{number}]") for number, job in enumerate(collection.jobs)]
    if dry_run:
        show_line(f"{len(specs)} jobs of {collection.name} are valid; nothing is submitted")
        return
    ready = [with_snapshot(spec, start) for spec in specs]
    trees = {tree.name: (folder, tree) for folder, _, tree in ready if tree is not None}

    async def send(client: "Client") -> "list[SubmitResult]":
        for folder, tree in trees.values():
            await client.send_folder(folder, tree, say_code_travels())
        results: list[SubmitResult] = []
        for begin in range(0, len(ready), _SENT_AT_ONCE):
            part = [spec for _, spec, _ in ready[begin : begin + _SENT_AT_ONCE]]
            # A key, so that a request whose answer was lost is not carried out twice.
            results += (await client.submit_batch(part, idempotency_key=uuid.uuid4().hex)).items
        return results

    _tell(collection, with_client(send), quiet=quiet, output=output)


def _tell(
    collection: SubmittedCollection, results: "Sequence[SubmitResult]", *, quiet: bool, output: OutputFormat
) -> None:
    numbers = [each.id for each in results if each.id is not None]
    if output is OutputFormat.JSON:
        show_json({"collection": collection.name, "items": [each.model_dump(mode="json") for each in results]})
    elif quiet:
        for number in numbers:
            show_line(str(number))
    elif numbers:
        where = f"job {numbers[0]}" if len(numbers) == 1 else f"jobs {numbers[0]} to {numbers[-1]}"
        verb = "is" if len(numbers) == 1 else "are"
        show_line(f"{where} ({len(numbers)} of {collection.name}) {verb} in the queue")
        show_line(f"  all of them: walras queue --all --label collection={collection.name}")
    refused = [(number, each.error) for number, each in enumerate(results) if each.error is not None]
    for number, error in refused:
        fix = f" ({error.fix})" if error.fix else ""
        warn(f"walras: jobs[{number}] was refused: {error.detail}{fix}")
    if refused:
        raise typer.Exit(1)


_FileArgument = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="A job file (YAML), a script (shell or Python), a program, example:NAME, or - for standard input.",
        callback=example_or_path("jobs"),
    ),
]
_CommandArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[-- COMMAND...]", help="Run this command instead of the file's `run`.")
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


def _explain_and_exit(field: str | None) -> None:
    """Prints what a field of a job file means, and ends the command."""
    if field is None:
        return
    from walras.spec.job_spec import field_note

    note = field_note(field)
    show_line(f"{note.path}: {note.meaning}")
    rows = [["takes", note.kind], ["default", note.default or "it has to be stated"]]
    rows += [["example", f"{note.path.split('.')[-1]}: {note.example}"]] if note.example else []
    rows += [["fields", ", ".join(note.below)]] if note.below else []
    show_columns("FIELD | MEANING~+", rows, header=False)
    raise typer.Exit


_ExplainOption = Annotated[
    str | None,
    typer.Option(
        "--explain",
        metavar="FIELD",
        help="Say what a field of the job file means, takes and is by default, with an example; submit nothing.",
        callback=_explain_and_exit,
        is_eager=True,
    ),
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


_PriorityOption = Annotated[str | None, typer.Option("--priority", help="0-100, or low (20), normal (50), high (80).")]
_TimeOption = Annotated[str | None, typer.Option("--time", metavar="LENGTH", help="Longest run time, such as 4h.")]
_ArrayOption = Annotated[
    str | None, typer.Option("--array", metavar="INDICES", help="Submit a sweep of these indices, such as 0-9%2.")
]
_FollowOption = Annotated[
    bool, typer.Option("--follow", "-f", help="Then follow the output, and exit with the code of `wait`.")
]
_ProjectOption = Annotated[str | None, typer.Option("--project", "-p", help="Project of the job.")]
_StrictOption = Annotated[
    bool, typer.Option("--strict/--lenient", help="Refuse #SBATCH lines and task fields that cannot be obeyed here.")
]


def submit_command(
    file: _FileArgument,
    command: _CommandArgument = None,
    setting: _SettingOption = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the job.")] = None,
    gpus: _GpusOption = None,
    priority: _PriorityOption = None,
    project: _ProjectOption = None,
    time_limit: _TimeOption = None,
    array: _ArrayOption = None,
    env: _EnvOption = None,
    notify: _NotifyOption = None,
    explain: _ExplainOption = None,
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
    follow: _FollowOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the job number.")] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Submit a job to the queue."""
    from walras.spec.shipped_files import folder_of_relative_paths

    fields = {"name": name, "notify": notify, "project": project, "array": array, "limits.max_runtime": time_limit}
    changes = [*_changes_of(fields, gpus, priority), *(setting or [])]
    if follow:
        other = {"--dry-run": dry_run, "--quote": quote, "--output": output is OutputFormat.JSON}
        refuse_options(other, "leaves nothing to follow", "leave it or --follow out")
    if not command and wrap is None and (collection := read_collection(file)) is not None:
        single = {"--name": name, "--recommend": recommend, "--quote": quote, "--take": take, "--skypilot": skypilot}
        refuse_options(single | {"--follow": follow}, "is for one job, and this file has many", "submit it by itself")
        start = folder_of_relative_paths(file)
        submit_collection(collection, changes, env or [], start, dry_run=dry_run, quiet=quiet, output=output)
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
    if not show_as_json(submitted, output):
        if quiet or like_sbatch:
            show_line(str(submitted.id) if quiet else f"Submitted batch job {submitted.id}")
        else:
            _tell_submitted(submitted, spec, folder)
    if wait or follow:
        _stay_until_end(submitted, follow=follow, like_sbatch=like_sbatch)


async def _send(client: "Client", spec: "JobSpec", folder: Path, tree: "ContentTree | None") -> "SubmitResult":
    if tree is not None:
        await client.send_folder(folder, tree, say_code_travels())
    submitted = await client.submit(spec)
    assert submitted.id is not None
    remember_submitted_job(server_access().url, submitted.id)
    return submitted


def _stay_until_end(submitted: "SubmitResult", *, follow: bool, like_sbatch: bool) -> None:
    """Waits for a job, whose output it may follow, or a sweep, and ends with the exit code of `wait` or of sbatch."""
    job_id = submitted.id or 0
    if follow and submitted.jobs == 1:
        logs_command(str(job_id), follow=True)
        return
    states = with_client(lambda client: wait_for_jobs(client, [job_id], None, whole=[job_id]))
    code = with_client(lambda client: _code_of_sbatch(client, states)) if like_sbatch else None
    if code := exit_code_of_states(states.values()) if code is None else code:
        raise typer.Exit(code)


async def _code_of_sbatch(client: "Client", states: Mapping[int, JobState | None]) -> int:
    """Returns the highest exit code of the jobs, and 1 at least if one did not succeed."""
    codes = [0]
    for job_id, state in states.items():
        last = (await client.job(job_id)).attempt_list[-1:]
        codes += [each.exit_code or (128 + each.signal if each.signal else 0) for each in last]
        codes.append(int(state is not JobState.SUCCEEDED))
    return max(codes)


def _tell_submitted(submitted: "SubmitResult", spec: "JobSpec", folder: Path) -> None:
    if submitted.note:
        warn(f"note: job {submitted.id} {submitted.note}")
    _show_submitted(submitted, spec)
    if told := defaults_text(submitted.defaults):
        show_line(f"  not stated, so: {told}")
    if spec.code is not None:
        files = f"{spec.code.files} {'file travels' if spec.code.files == 1 else 'files travel'} with it"
        show_line(f"  {files} ({format_size(spec.code.size)} of {folder})")
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


def _changes_of(fields: dict[str, str | None], gpus: str | None, priority: str | None) -> list[str]:
    """Returns the options that stand for a field as `--set` would have them."""
    written = ((field, value) for field, value in fields.items() if value is not None)
    changes = [f"{field}={json.dumps(value, ensure_ascii=False)}" for field, value in written]
    if priority is not None:
        changes.append(f"priority={parse_priority(priority)}")
    if gpus is not None:
        changes.append(f"resources.accelerators={gpus if ':' in gpus else f'any:{gpus}'}")
    return changes


def in_local_folder(spec: "JobSpec", start: Path) -> "JobSpec":
    """Returns the job with a relative `workdir` made absolute: it runs here, and the path begins at `start`.

    Raises JobSpecError for a job that starts its ranks itself: whoever runs it here counts and measures ranks.
    """
    from walras.spec.spec_request import is_launcher
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
    from walras.spec.job_groups import CodeSpec
    from walras.storage.code_snapshot import code_fields, snapshot_folder

    folder = Path(os.path.normpath(folder))
    tree = snapshot_folder(folder)
    code = CodeSpec(**code_fields(tree, folder))
    return folder, spec.model_copy(update={"workdir": None, "code": code}), tree


def _show_dry_run(plan: "DryRun", spec: "JobSpec") -> None:
    from walras.spec.spec_request import launcher_note
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
        show_columns(" | ".join(["CHOSEN", *(title.upper().replace("_", " ") for title in titles)]), rows)
    if plan.value_by:
        show_line(f"an hour of it is worth {plan.value_usd_per_h:g} USD, says its {plan.value_by}")
    if told := defaults_text(plan.defaults):
        show_line(f"not stated, so: {told}")
    if plan.chosen is None:
        show_line(f"would wait: {dash(why_text(plan))}")
    if plan.forecast is not None:
        show_line(f"submitted now it {forecast_text(plan.forecast, time.time())}")
    for note in filter(None, (launcher_note(spec), plan.note)):
        show_line(f"it {note}")
    show_line("nothing was submitted")


def _dry_run_cell(value: Any, number: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else dash(value)


def rerun_command(
    jobs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[JOB...]", help="Job numbers, ranges (12-20), or `last`; or use --failed."),
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only jobs that failed or timed out; alone: yours.")] = False,
    name: NameOption = None,
    since: SinceOption = None,
) -> None:
    """Submit jobs again, as they were: same command, code and needs, a new number. A sweep becomes one again.

    All are submitted, or none. Those that depend on each other depend on the new ones.
    """
    if not jobs and not failed:
        raise UserError("say which jobs: their numbers, or --failed", field="JOB", fix="walras rerun last")
    since_s = parse_length_option(since, "--since")
    wanted = JobChoice(mine=True, states=FAILED_STATES, name=name, since_s=since_s, limit=MOST_CHOSEN)

    async def rerun(client: "Client") -> bool:
        again = await _chosen(client, jobs or [], wanted, failed=failed)
        await _check_all(client, again)
        await _submit_again(client, again)
        return bool(again)

    if not with_client(rerun):
        show_line("no job is so")


@dataclass(frozen=True, slots=True)
class _Again:
    """A job, or jobs of one sweep, to be submitted again."""

    #: The job's number, or that of its sweep.
    number: int
    name: str
    spec: dict[str, Any]
    #: Jobs of the sweep, by their index; empty for a single job.
    members: tuple[int, ...] = ()

    @property
    def title(self) -> str:
        return f"sweep {self.number}" if self.members else f"job {self.number}"


async def _chosen(client: "Client", words: list[str], wanted: JobChoice, *, failed: bool) -> list[_Again]:
    """Returns what to submit, by number: jobs depend on earlier ones, so that these come first."""
    sweeps: dict[int, tuple[JobView, ...]] = {}
    singles: dict[int, None] = {}
    for job in await choose_jobs(client, wanted) if not words else ():
        if job.sweep is None:
            singles[job.id] = None
        else:
            sweeps[job.sweep] = (*sweeps.get(job.sweep, ()), job)
    for named in await find_named_jobs(client, words, newest_job_here):
        if named.sweep:
            sweeps[named.ids[-1]] = tuple(job for job in named.sweep if not failed or job.state in FAILED_STATES)
        else:
            singles[named.ids[0]] = None
    again = []
    for number, members in sweeps.items():
        if members:
            job = await client.job(members[0].id)
            in_order = sorted(members, key=lambda each: each.sweep_index or 0)
            spec = spec_of_sweep_again(job.spec, members)
            again.append(_Again(number, job.name, spec, tuple(each.id for each in in_order)))
    for number in singles:
        job = await client.job(number)
        if not failed or job.state in FAILED_STATES:
            again.append(_Again(number, job.name, job.spec))
    return [_described(each) for each in sorted(again, key=lambda each: each.number)]


def _described(again: _Again) -> _Again:
    """Returns it with a spec that can be submitted: no quote, and each secret from the variable of its name."""
    from walras.resources.what_if import without_quote

    spec = without_quote(again.spec)
    if secrets := spec.get("secrets"):
        spec["secrets"] = {name: source or {"env": name} for name, source in secrets.items()}
    return _Again(again.number, again.name, spec, again.members)


async def _check_all(client: "Client", again: list[_Again]) -> None:
    """Raise JobSpecError that names everything that cannot run again, before anything is submitted."""
    wrong: list[tuple[str, UserError]] = []
    for position, each in enumerate(again):
        try:
            await _check(client, each, again[:position], is_alone=len(again) == 1)
        except UserError as error:
            wrong.append((each.title, error))
    if wrong:
        raise JobSpecError(
            "nothing was submitted: " + "; ".join(f"{title}: {error}" for title, error in wrong),
            field=wrong[0][1].field,
            fix="; ".join(dict.fromkeys(error.fix for _, error in wrong if error.fix)),
        )


async def _check(client: "Client", each: _Again, earlier: list[_Again], *, is_alone: bool) -> None:
    """Raise UserError unless the job could be submitted now. `is_alone`: its submission itself will tell the rest."""
    from walras.spec.job_groups import with_secret_values

    missing: list[UserError] = []
    for name, source in each.spec.get("secrets", {}).items():
        try:
            with_secret_values({"secrets": {name: source}}, os.environ)
        except UserError as error:
            missing.append(error)
    if missing:
        raise UserError("; ".join(map(str, missing)), field="secrets", fix="; ".join(error.fix for error in missing))
    if hidden := [name for name, value in each.spec.get("envs", {}).items() if value == HIDDEN]:
        raise UserError(
            f"you may not see the values of {', '.join(hidden)}", field="envs", fix="have its owner run it again"
        )
    for needed in each.spec.get("depends_on", ()):
        if _made_again(needed, earlier) is None and isinstance(needed, int):
            await _check_dependency(client, each, needed)
    if not is_alone:
        await client.dry_run({name: value for name, value in each.spec.items() if name != "depends_on"})


async def _check_dependency(client: "Client", each: _Again, needed: int) -> None:
    try:
        state = (await client.job(needed)).state
    except NotFound:
        raise UserError(f"no job {needed} to depend on", field="depends_on", fix="submit it from its file") from None
    must_succeed = each.spec.get("condition", "succeeded") == "succeeded"
    if must_succeed and state.is_final and state is not JobState.SUCCEEDED:
        raise UserError(
            f"job {needed}, which it depends on, has ended {state}",
            field="depends_on",
            fix=f"walras rerun {needed} {each.number}",
        )


def _made_again(needed: int | str, earlier: Iterable[_Again]) -> _Again | None:
    """Returns the one of those made again that a dependency means; of equal names, the last."""
    found = [each for each in earlier if needed in (each.number, each.name, *each.members)]
    return found[-1] if found else None


async def _submit_again(client: "Client", again: list[_Again]) -> None:
    """Submit in order, and take back what was submitted if one is refused after all."""
    new: dict[int, int] = {}
    submitted_ids, told = list[int](), list[str]()
    try:
        for position, each in enumerate(again):
            submitted = await client.submit(_with_new_numbers(each, again[:position], new))
            assert submitted.id is not None
            new |= {member: submitted.id + place for place, member in enumerate(each.members)}
            new[each.number] = submitted.id
            submitted_ids += [submitted.id + place for place in range(len(each.members) or 1)]
            if each.members:
                told.append(f"{each.title}: {submitted.jobs} jobs run again as sweep {submitted.id}")
            else:
                told.append(f"{each.title} runs again as job {submitted.id}")
    except WalrasError:
        await _take_back(client, submitted_ids)
        raise
    for line in told:
        show_line(line)


def _with_new_numbers(each: _Again, earlier: list[_Again], new: dict[int, int]) -> dict[str, Any]:
    """Returns the spec with those made again before it in the place of those that it depended on."""
    needs = []
    for needed in each.spec.get("depends_on", ()):
        found = _made_again(needed, earlier)
        number = found.number if found is not None and isinstance(needed, str) else needed
        needs.append(new.get(number, number) if found is not None else needed)
    return each.spec | ({"depends_on": needs} if needs else {})


async def _take_back(client: "Client", submitted: list[int]) -> None:
    left = []
    for job_id in reversed(submitted):
        try:
            await client.cancel(job_id)
        except WalrasError:
            left.append(job_id)
    if submitted:
        warn(f"taken back, as not all could be submitted: {_numbers(set(submitted) - set(left))}")
    if left:
        warn(f"these could not be taken back: {_numbers(left)}")


def _numbers(jobs: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(jobs))) or "none"
