"""`walras queue`, `show`, `explain`: looking at jobs; and `walras fetch`: their results.

What `walras queue` shows: the jobs that are next come first, below a line that says how full the fleet is.

The server sorts. One of an older release has no headline, or no such order: then the jobs stand newest first.
"""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from walras.cli.arguments import (
    JobArgument,
    JobChoice,
    LabelOption,
    MineOption,
    NameOption,
    NoHeaderOption,
    OutputOption,
    ProjectOption,
    SinceOption,
    StateOption,
    UserOption,
    WatchOption,
    choose_jobs,
    instant_of,
    local_time,
    parse_length_option,
    refuse_options,
    states_of,
    why_text,
)
from walras.cli.forecast_text import expected_text, forecast_text, taken_text
from walras.cli.session import job_id_of, with_client
from walras.cli.terminal_output import (
    STATE_STYLES,
    Listing,
    OutputFormat,
    columns_of,
    dash,
    show_as_json,
    show_json,
    show_line,
    show_listing,
    show_sentence,
    warn,
    watch_listing,
)
from walras.errors import NotFound, UserError
from walras.server_access import server_access
from walras.states import JobState
from walras.units import format_count, format_length, format_money, format_size

if TYPE_CHECKING:
    from walras.client import Client, KeptFiles
    from walras.resources.jobs import (
        AttemptView,
        CheckpointView,
        Explanation,
        JobDetail,
        JobView,
        SpeedView,
        TargetView,
    )
    from walras.resources.overview import Overview
    from walras.resources.people import DefaultView


_AT_REST = (JobState.PENDING, JobState.HELD)


@dataclass(frozen=True, slots=True)
class QueueLook:
    """The jobs of one look at the queue, and the line above them (empty: the server does not tell)."""

    jobs: "list[JobView]"
    headline: str


async def look_at_queue(client: "Client", wanted: JobChoice) -> QueueLook:
    """Returns the jobs that were asked for; one more than `limit` if there are more."""
    try:
        told = headline(await client.overview())
    except NotFound:
        told = ""
    try:
        return QueueLook(await choose_jobs(client, wanted, sort="queue"), told)
    except UserError as error:
        if error.field != "sort":
            raise
        return QueueLook(await choose_jobs(client, wanted), told)


def headline(overview: "Overview") -> str:
    """Returns such as "12 running, 3 waiting, 1 held; free: 0 of 8 h100, 2 of 4 a100; 4 a100 take no jobs (16:40)", in
    the reader's time.
    """
    at_work = sum(count for state, count in overview.counts.items() if state not in _AT_REST)
    held = overview.counts.get(JobState.HELD, 0)
    types = ", ".join(f"{each.free} of {each.capacity} {each.accelerator}" for each in overview.types)
    aside: dict[str, int] = {}
    for machine in overview.machines:
        if machine.state != "up":
            aside[machine.accelerator] = aside.get(machine.accelerator, 0) + len(machine.cells)
    none = ", ".join(f"{count} {name}" for name, count in sorted(aside.items()))
    jobs = f"{at_work} running, {overview.waiting} waiting" + (f", {held} held" if held else "")
    free = (types or "no machine is here") + (f"; {none} take no jobs" if none else "")
    return f"{jobs}; free: {free} ({time.strftime('%H:%M')})"


_JOB_COLUMNS = columns_of(
    "JOB> | NAME~24~ | USER~14 | PROJECT~?6 | STATE | REASON?9/ | ACC>"
    " | ON~12?2 | PROGRESS>?4 | TRIES>?8 | SPENT>?5 | AGE>?7 | EXPECTED?3/"
)


def queue_command(
    user: UserOption = None,
    mine: MineOption = False,
    project: ProjectOption = None,
    state: StateOption = None,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Also jobs that have ended: newest first, no sweep folded.")
    ] = False,
    name: NameOption = None,
    label: LabelOption = None,
    since: SinceOption = None,
    expand: Annotated[bool, typer.Option("--expand", help="A line for each job of a sweep.")] = False,
    start: Annotated[bool, typer.Option("--start", help="Shown in any case, as EXPECTED.", hidden=True)] = False,
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", min=1, max=1_000_000, help="Show at most this many (1000; with --all 100)."),
    ] = None,
    watch: WatchOption = False,
    output: OutputOption = OutputFormat.TABLE,
    no_header: NoHeaderOption = False,
) -> None:
    """List the jobs that have not ended, those who are next first; a sweep is one line."""
    since_s, states = parse_length_option(since, "--since"), states_of(state)
    if everything or name or label or since:
        refuse_options({"--watch": watch}, "follows the queue alone", "leave out --all, --name, --label and --since")
        most = limit or 100
        ended = JobChoice(user, mine, project, states, name, label, since_s, limit=most)
        _show_jobs(with_client(lambda client: choose_jobs(client, ended)), most, output, not no_header)
        return
    limit = limit or 1000
    wanted = JobChoice(user, mine, project, states, active=True, fold_sweeps=not expand, limit=limit)
    if watch:
        with_client(lambda client: watch_listing(lambda: _look(client, wanted), output, header=not no_header))
        return
    found = with_client(lambda client: look_at_queue(client, wanted))
    if found.headline and output is OutputFormat.TABLE and not no_header:
        show_line(found.headline)
    _show_jobs(found.jobs, limit, output, not no_header)


def whoami_command(
    login: Annotated[
        bool, typer.Option("--login", help="Sign in with a browser at the server's provider, for twelve hours.")
    ] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show whose token this is: the user, the role, and the projects it opens."""
    if login:
        from walras.cli.login import sign_in

        sign_in()
        return
    found = with_client(lambda client: client.whoami())
    if show_as_json(found, output):
        return
    show_line(f"{found.user}, role {found.role}, projects {', '.join(found.projects)} at {server_access().url}")


def show_command(job: JobArgument, output: OutputOption = OutputFormat.TABLE) -> None:
    """Show everything about one job, including its attempts."""
    job_id = job_id_of(job)
    detail, results = with_client(lambda client: _shown(client, job_id))
    if output is OutputFormat.JSON:
        show_json({**detail.model_dump(mode="json"), "outputs": results.model_dump(mode="json")})
        return
    facts = Listing(columns_of("FIELD | VALUE~+"), _job_facts(detail), None, STATE_STYLES)
    show_listing(facts, output, header=False)
    if detail.attempt_list:
        show_line("")
        show_listing(_attempt_listing(detail.attempt_list), output)
    for line in kept_lines(results):
        show_line(line)


async def _shown(client: "Client", job_id: int) -> "tuple[JobDetail, KeptFiles]":
    from walras.client import KeptFiles, kept_files

    detail = await client.job(job_id)
    results = await kept_files(client, job_id) if "outputs" in detail.spec else KeptFiles({}, [])
    return detail, results


def explain_command(
    job: JobArgument,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also what the place is worth and costs, in the policy's units.")
    ] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Explain why a job waits or runs where it does, and what would change that."""
    job_id = job_id_of(job)
    answer, detail = with_client(lambda client: _explained(client, job_id))
    if show_as_json(answer, output):
        return
    for line in explain_lines(answer, detail, verbose=verbose):
        show_sentence(line)


def explain_lines(answer: "Explanation", detail: "JobDetail", *, verbose: bool = False) -> list[str]:
    """Returns why the job waits or runs where it does, and what would change that. They hold text of jobs as it came:
    make it safe before a terminal sees it.
    """
    from walras.resources.jobs import planned_speed

    lines = [f"job {answer.job_id} is {answer.state}"]
    lines += [f"  {line}" for line in _progress_lines(answer.state, detail) + _network_lines(answer.state, detail)]
    if answer.why and not answer.state.is_final:
        lines.append(f"  {answer.why}")
    if (planned := planned_speed(detail.spec, detail.steps_per_s, detail.last_values)) is not None:
        lines.append(f"  {planned.text}")
    if answer.state is JobState.RUNNING and detail.checkpoint_detail:
        lines.append(f"  checkpoints: {detail.checkpoint_detail}")
    if detail.forecast is not None:
        lines.append(f"  {forecast_text(detail.forecast, time.time())}")
    for reason in answer.reasons:
        lines.append(f"  {why_text(reason)}")
        lines += [f"      {reason.figures}"] if verbose and reason.figures else []
        lines += [f"      to change this: {reason.fix}"] if reason.fix else []
    for condition in answer.conditions:
        lines.append(f"  note: {condition.detail}")
    lines += [] if answer.target is None else [f"  {_target_text(answer.target)}"]
    types = [speed.accelerator for speed in answer.speeds]
    return lines + [f"  {_speed_text(speed, types.count(speed.accelerator) > 1)}" for speed in answer.speeds]


def _target_text(target: "TargetView") -> str:
    """Returns the state of the target in one line, with the expected time of reaching it."""
    return target.detail + (f", about {local_time(target.expected_at)}" if target.expected_at is not None else "")


def _speed_text(speed: "SpeedView", is_of_several: bool) -> str:
    """Returns one measured or predicted speed, with its source and interval; of several pools of a type, which."""
    sure = (
        "" if speed.low is None or speed.high is None else f", four times in five {speed.low:.3g} to {speed.high:.3g}"
    )
    by = f" by {', '.join(speed.by)}" if speed.by else ""
    where = f"{speed.accelerators} x {speed.accelerator}" + (f" ({speed.pool})" if is_of_several else "")
    return f"on {where}: {speed.steps_per_s:.3g} steps/s ({speed.source}{by}{sure})"


async def _explained(client: "Client", job_id: int) -> "tuple[Explanation, JobDetail]":
    return await client.explain(job_id), await client.job(job_id)


def _progress_lines(state: JobState, detail: "JobDetail") -> list[str]:
    """Returns one line on a running job: its place, its progress, and the time left at its measured speed."""
    attempt = detail.attempt_list[-1] if detail.attempt_list else None
    if state is not JobState.RUNNING or attempt is None or attempt.started_at is None:
        return []
    since = format_length(max(time.time() - instant_of(attempt.started_at), 0.0))
    parts = [f"attempt {attempt.attempt} on {' '.join(attempt.placement)} for {since}"]
    if detail.steps_total or detail.steps:
        parts.append(f"{_steps(detail)} steps")
    if detail.steps_total and detail.steps_per_s:
        left_s = max(detail.steps_total - detail.steps, 0.0) / detail.steps_per_s
        parts.append(f"at {detail.steps_per_s:.3g} steps/s about {format_length(left_s)} left")
    return ["; ".join(parts)]


def _steps(job: "JobDetail") -> str:
    return format_count(job.steps) + (f" of {format_count(job.steps_total)}" if job.steps_total else "")


def _network_lines(state: JobState, detail: "JobDetail") -> list[str]:
    """Returns the bandwidth that the ranks of a multi-machine gang measured at their start, if they did."""
    from walras.contract import BANDWIDTH_VALUE

    measured = detail.last_values.get(BANDWIDTH_VALUE)
    if state is not JobState.RUNNING or measured is None:
        return []
    return [f"its machines exchange {8e-9 * measured:.3g} Gbit/s (the slowest link, measured when its ranks met)"]


# ------------------------------------------------------------------------------------------------------- listing


async def _look(client: "Client", wanted: JobChoice) -> Listing:
    found = await look_at_queue(client, wanted)
    return replace(_job_listing(found.jobs[: wanted.limit]), title=found.headline)


def _show_jobs(found: "list[JobView]", limit: int, output: OutputFormat, header: bool) -> None:
    show_listing(_job_listing(found[:limit]), output, header=header)
    if len(found) > limit and output is OutputFormat.TABLE:
        warn(f"only the first {limit} are shown; --limit shows more")


def _job_listing(found: "list[JobView]") -> Listing:
    now = time.time()
    rows = [_job_row(job, now) for job in found]
    return Listing(_JOB_COLUMNS, rows, [job.model_dump(mode="json") for job in found], STATE_STYLES)


def _job_row(job: "JobView", now: float) -> list[str]:
    # What it waits for in numbers is `explain`'s to say, one job at a time.
    why = job.reason.words if job.reason and job.state is JobState.PENDING else why_text(job)
    state, progress = str(job.state), _progress(job)
    if counts := job.sweep_states:
        why = ", ".join(f"{count:,} {name.lower()}" for name, count in sorted(counts.items(), key=_activity_first))
        ended = sum(count for name, count in counts.items() if JobState(name).is_final)
        state, progress = min(counts.items(), key=_activity_first)[0], f"{ended / sum(counts.values()):.0%}"
    return [
        _shown_number(job),
        job.name,
        job.user,
        job.project,
        state,
        why,
        str(job.accelerators),
        dash(job.accelerator),
        progress,
        str(job.attempts),
        format_money(job.usd),
        _age(job, now),
        dash(expected_text(job.forecast, now)),
    ]


def _shown_number(job: "JobView") -> str:
    """Returns how the job is named to commands: by its number; a sweep, and the jobs of one, by the first of them."""
    if job.sweep is None:
        return str(job.id)
    return f"{job.sweep}[*]" if job.sweep_states else f"{job.sweep}[{job.sweep_index}]"


#: The states of jobs in a sweep, as they are counted in its line.
_ACTIVITY = [JobState.RUNNING, JobState.STARTING, JobState.PENDING, JobState.HELD]


def _activity_first(counted: tuple[str, int]) -> tuple[int, str]:
    order = [str(state) for state in _ACTIVITY]
    return order.index(counted[0]) if counted[0] in order else len(order), counted[0]


def _progress(job: "JobView") -> str:
    if job.steps_total:
        return f"{min(job.steps / job.steps_total, 1.0):.0%}"
    return format_count(job.steps) if job.steps else "-"


def _age(job: "JobView", now: float) -> str:
    end = now if job.ended_at is None else instant_of(job.ended_at)
    return format_length(max(end - instant_of(job.submitted_at), 0.0))


# ------------------------------------------------------------------------------------------------------- one job


def defaults_text(defaults: "list[DefaultView]") -> str:
    """Returns on one line what a job did not state, and whose default it got; empty where it stated all of it."""
    return ", ".join(f"{each.field} {each.value} ({each.by})" for each in defaults)


def _job_facts(job: "JobDetail") -> list[list[str]]:
    speed = f"{job.steps_per_s:.4g} steps/s" if job.steps_per_s is not None else "-"
    used = ", ".join(f"{name} {format_length(seconds)}" for name, seconds in sorted(job.accelerator_s.items()))
    from walras.contract import CHOSEN_BATCH_VALUE, DATA_WAIT_VALUE, UPDATE_GAIN_VALUE
    from walras.resources.jobs import planned_speed

    planned = planned_speed(job.spec, job.steps_per_s, job.last_values)
    values = ", ".join(
        f"{name} {job.first_values.get(name, value):.4g} -> {value:.4g}"
        for name, value in job.last_values.items()
        if name not in (DATA_WAIT_VALUE, CHOSEN_BATCH_VALUE, UPDATE_GAIN_VALUE)
    )
    batch, gain = (job.last_values.get(name) for name in (CHOSEN_BATCH_VALUE, UPDATE_GAIN_VALUE))
    waits = job.last_values.get(DATA_WAIT_VALUE)
    facts = [
        ("job", str(job.id)),
        ("name", job.name),
        *([("sweep", _shown_number(job))] if job.sweep is not None else []),
        ("state", str(job.state)),
        ("reason", why_text(job)),
        ("user", f"{job.user} in {job.project}"),
        ("kind", job.kind),
        ("priority", str(job.priority)),
        *([("not stated", defaults_text(job.defaults))] if job.defaults else []),
        ("accelerators", str(job.accelerators)),
        *([("roles", job.why)] if job.spec.get("roles") and not job.state.is_final else []),
        ("runs on", " in ".join(filter(None, (job.accelerator, job.pool)))),
        ("steps", _steps(job) if job.steps or job.steps_total else ""),
        ("speed", speed),
        *([("plan", planned.text)] if planned is not None else []),
        *([("taken", taken_text(job))] if job.spec.get("quoted") else []),
        ("waits for data", "" if waits is None else f"{waits:.0%} of its steps"),
        ("batch", "" if batch is None or gain is None else f"{batch:.0f} now: an update is worth {gain:.3g} steps"),
        ("values", values),
        ("checkpoints", job.checkpoint_detail),
        ("target", "" if job.target is None else _target_text(job.target)),
        *([("deadline", _deadline_text(job))] if job.spec.get("deadline") else []),
        ("expected", forecast_text(job.forecast, time.time())),
        ("attempts", f"{job.attempts}, restarts after failures {job.restarts}" if job.attempts else ""),
        ("checkpoint", "" if job.checkpoint is None else _checkpoint_text(job.checkpoint)),
        ("used", used),
        ("spent", format_money(job.usd)),
        ("worth", f"{format_money(job.value_usd_per_h or 0.0)}/h, says its {job.value_by}" if job.value_by else ""),
        ("submitted", local_time(job.submitted_at)),
        ("started", local_time(job.started_at)),
        ("ended", local_time(job.ended_at)),
        *([("incarnation", f"{job.incarnation}, before a restore")] if job.incarnation else []),
        ("labels", ", ".join(f"{name}={value}" for name, value in job.labels.items())),
    ]
    return [[name, value] for name, value in facts if value not in ("", "-")]


def _deadline_text(job: "JobDetail") -> str:
    """Returns the instant; a length in the spec counts from submission."""
    from walras.spec.field_types import parse_instant

    written = str(job.spec["deadline"])
    try:
        instant = parse_instant(written, now=instant_of(job.submitted_at))
        return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(instant))
    except (OverflowError, ValueError):
        return written


def _checkpoint_text(newest: "CheckpointView") -> str:
    where = f", in the store {newest.lag_s:.3g} s after it was made (sent in {newest.upload_s:.3g} s)"
    return f"step {format_count(newest.step)} of attempt {newest.attempt}" + (where if newest.stored else "")


def _attempt_listing(attempts: "list[AttemptView]") -> Listing:
    columns = columns_of(
        "TRY> | STATE | REASON?9/ | ACCELERATOR?7/ | PLACE?6/ | EXIT?8/ | CHECKPOINT> | USED> | SPENT>"
    )
    return Listing(columns, [_attempt_row(attempt) for attempt in attempts], None, STATE_STYLES)


def _attempt_row(attempt: "AttemptView") -> list[str]:
    ended = f"signal {attempt.signal}" if attempt.signal is not None else dash(attempt.exit_code)
    marks = [word for word, holds in (("emulated", attempt.emulated), ("profiling", attempt.profiling)) if holds]
    return [
        str(attempt.attempt),
        str(attempt.state),
        dash(attempt.reason.words if attempt.reason else ""),
        f"{attempt.accelerators} x {attempt.accelerator}" + (f" ({', '.join(marks)})" if marks else ""),
        " ".join(attempt.placement),
        ended + (f" (rank {attempt.failed_rank})" if attempt.failed_rank is not None else ""),
        "-" if attempt.checkpoint_step is None else f"step {format_count(attempt.checkpoint_step)}",
        format_length(attempt.accelerator_s),
        format_money(attempt.usd),
    ]


#: The most files that `walras show` names; `walras fetch --list` names all.
_SHOWN_FILES = 20


def fetch_command(
    job: JobArgument,
    path: Annotated[
        str, typer.Argument(metavar="[PATH]", help="A file or a folder of the results; without it, all of them.")
    ] = "",
    to: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="New folder for the files; without it, job-JOB.")
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="Only list the files, with their sizes in bytes.")] = False,
) -> None:
    """Fetch what a job left in its `outputs`, also while it runs.

    Each file lies under its path in the working folder. What further machines of a gang left is below `node-N/`.
    """
    from walras.client import fetch_outputs
    from walras.storage.code_snapshot import keep_out

    job_id = job_id_of(job)
    folder = (to or Path(f"job-{job_id}")).absolute()
    if not listing and folder.exists():
        raise UserError(f"{folder} is there already", field="--to", fix="name a new folder with --to")
    found = with_client(lambda client: fetch_outputs(client, job_id, path.strip("/"), None if listing else folder))
    for name, file in found.files.items() if listing else ():
        show_line(f"{file.size:>15} {name}")
    if not listing:
        size = format_size(sum(file.size for file in found.files.values()))
        stays = "; no job takes it along, unless you delete its .walrasignore" if keep_out(folder) else ""
        show_line(f"{len(found.files)} files, {size}, in {folder}{stays}")
    for problem in found.problems:
        show_line(f"not kept: {problem}")


def kept_lines(kept: "KeptFiles") -> list[str]:
    """Returns what `walras show` says of a job's results; nothing if there are none."""
    if not kept.files and not kept.problems:
        return []
    size = format_size(sum(file.size for file in kept.files.values()))
    told = ["", f"outputs of attempt {kept.attempt}, {local_time(kept.collected_at)}: {len(kept.files)} files, {size}"]
    told += [f"  {path}  {format_size(file.size)}" for path, file in list(kept.files.items())[:_SHOWN_FILES]]
    if len(kept.files) > _SHOWN_FILES:
        told.append(f"  and {len(kept.files) - _SHOWN_FILES} more")
    return told + [f"  not kept: {problem}" for problem in kept.problems]


def reason_words(job: "JobView") -> str:
    """Returns the one reason why a job waits, in words."""
    if job.reason is None:
        return job.detail or "waits"
    return job.reason.words
