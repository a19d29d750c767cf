"""`walras cancel`, `hold`, `update`, `wait`, `logs`, `notify`: changing jobs, following them, being told of ends."""

import asyncio
import re
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from walras.cli.arguments import (
    MOST_CHOSEN,
    JobArgument,
    JobChoice,
    JobsArgument,
    LabelOption,
    MineOption,
    NameOption,
    NoHeaderOption,
    OutputOption,
    ProjectOption,
    StateOption,
    UserOption,
    choose_jobs,
    parse_length_option,
    refuse_options,
    states_of,
    why_text,
)
from walras.cli.session import (
    NamedJobs,
    find_named_jobs,
    job_id_of,
    job_ids_named,
    job_ids_of,
    newest_job_here,
    sweep_jobs,
    with_client,
)
from walras.cli.terminal_output import LogText, OutputFormat, dash, show_as_json, show_items, show_json, show_line, warn
from walras.errors import NotFound, UserError
from walras.states import JobState

if TYPE_CHECKING:
    from walras.client import Client
    from walras.resources.jobs import JobDetail, JobView
    from walras.resources.notifications import ChannelView


NOT_FINISHED, NOT_FOUND = 101, 102
_EXIT_CODES = {JobState.SUCCEEDED: 0, JobState.FAILED: 100, JobState.CANCELLED: 103, JobState.TIMEOUT: 104}
_PRIORITY_CLASSES = {"low": 20, "normal": 50, "high": 80}


def cancel_command(
    jobs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[JOB...]", help="Job numbers, ranges (12-20), sweeps, 17[3] of one, or `last`; or options."
        ),
    ] = None,
    user: UserOption = None,
    mine: MineOption = False,
    project: ProjectOption = None,
    state: StateOption = None,
    name: NameOption = None,
    label: LabelOption = None,
    everything: Annotated[bool, typer.Option("--all", help="All jobs that you may cancel.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Cancel jobs, whether they wait or run: by number, or all that the options choose."""
    wanted = JobChoice(user, mine, project, states_of(state), name, label, active=True, limit=MOST_CHOSEN)
    if bool(jobs) == (wanted.names_somebody or everything):
        raise UserError(
            "say which jobs: their numbers, or options that choose them, not both",
            field="JOB",
            fix="walras cancel 12-20, or walras cancel --me --name 'sweep-*'",
        )

    if jobs:
        _act_on_jobs(lambda client: find_named_jobs(client, jobs, newest_job_here), _cancelled)
        return
    chosen = with_client(lambda client: choose_jobs(client, wanted))
    if not chosen:
        show_line("no active job is so")
        return
    if not yes and sys.stdin.isatty():
        typer.confirm(f"cancel {len(chosen)} jobs ({_some_names(chosen)})?", abort=True)
    named = [NamedJobs(f"job {job.id}", (job.id,)) for job in chosen]

    async def these(_: "Client") -> list[NamedJobs]:
        return named

    _act_on_jobs(these, _cancelled)


#: The most jobs of one call.
_CANCELLED_AT_ONCE = 1000


async def _cancelled(client: "Client", job_ids: list[int]) -> "AsyncIterator[str | UserError]":
    for first in range(0, len(job_ids), _CANCELLED_AT_ONCE):
        for result in await client.cancel_all(job_ids[first : first + _CANCELLED_AT_ONCE]):
            if result.error is not None or result.state is None:
                problem = result.error
                yield UserError("was refused") if problem is None else UserError(problem.detail, fix=problem.fix)
            else:
                yield f"is {result.state}" if result.state.is_final else "is being cancelled"


def _some_names(jobs: "list[JobView]") -> str:
    named = [f"{job.id} {job.name}" for job in jobs[:3]]
    return ", ".join([*named, "..."] if len(jobs) > len(named) else named)


def hold_command(
    jobs: JobsArgument,
    off: Annotated[bool, typer.Option("--off", help="Release held jobs, so that they may start.")] = False,
) -> None:
    """Hold waiting jobs: they do not start until `--off` releases them."""
    if off:
        _for_each_job(jobs, lambda client, job_id: _after("is released", client.release(job_id)), in_order=True)
    else:
        _for_each_job(jobs, lambda client, job_id: _after("is held", client.hold(job_id)))


def update_command(
    jobs: JobsArgument,
    priority: Annotated[
        str | None, typer.Option("--priority", help="New priority: 0-100, or low (20), normal (50), high (80).")
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option("--budget", min=0.01, max=1e9, help="New limit of what the job may cost in total, in USD."),
    ] = None,
    deadline: Annotated[
        str | None, typer.Option("--deadline", help="New deadline: +6h from now, an instant with its zone, or none.")
    ] = None,
    project: Annotated[
        str | None, typer.Option("--project", "-p", help="New project of a job that waits or is held.")
    ] = None,
) -> None:
    """Change the priority, the budget or the deadline of jobs that have not ended, the project of those that wait."""
    number = None if priority is None else parse_priority(priority)
    # A length without its sign can only mean from now.
    wanted = f"+{deadline}" if deadline is not None and re.fullmatch(r"\d[\w. ]*", deadline) else deadline
    if number is None and budget is None and wanted is None and project is None:
        raise UserError("nothing to change", field="--priority", fix="give --priority, --budget, --deadline, --project")

    async def change(client: "Client", job_id: int) -> str:
        if project is not None:
            await client.reassign(job_id, project, number)
        elif number is not None:
            await client.reprioritise(job_id, number)
        if budget is not None:
            await client.rebudget(job_id, budget)
        if wanted is not None:
            await client.redate(job_id, wanted)
        changes = (
            "" if project is None else f"is of project {project}",
            f"has priority {number}" if number is not None else "",
            f"may cost {budget:g} USD" if budget else "",
            "" if wanted is None else "has no deadline" if wanted == "none" else f"has the deadline {wanted}",
        )
        return " and ".join(filter(None, changes))

    _for_each_job(jobs, change)


def wait_command(
    jobs: JobsArgument,
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", help="Give up after this long, such as 30s, 10m or 2h; without it, wait forever."),
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Wait until jobs have ended.

    Exit code: 0 all succeeded, 100 one failed, 101 not ended in time, 102 no such job, 103 cancelled, 104 timed out.
    """
    timeout_s = parse_length_option(timeout, "--timeout")
    job_ids = job_ids_of(jobs)
    states = with_client(lambda client: wait_for_jobs(client, job_ids, timeout_s, whole=job_ids_named(jobs)))
    if output is OutputFormat.JSON:
        show_json([{"id": job_id, "state": state} for job_id, state in states.items()])
    else:
        for job_id, state in states.items():
            show_line(f"job {job_id} {state or 'does not exist'}")
    code = exit_code_of_states(states.values())
    if code:
        raise typer.Exit(code)


def exit_code_of_states(states: Iterable[JobState | None]) -> int:
    """Returns the exit code of `wait` and `logs -f`; None stands for a job that does not exist."""
    found = set(states)
    if None in found:
        return NOT_FOUND
    if any(state is not None and not state.is_final for state in found):
        return NOT_FINISHED
    worst = (JobState.FAILED, JobState.TIMEOUT, JobState.CANCELLED)
    return next((_EXIT_CODES[state] for state in worst if state in found), 0)


async def wait_for_jobs(
    client: "Client", job_ids: list[int], timeout_s: float | None, whole: Container[int]
) -> dict[int, JobState | None]:
    """Returns the states of the jobs once all have ended or the time is over.

    `whole`: of these, if they begin a sweep, the whole sweep is meant.
    """
    from walras.connection.transport import Outage

    until = time.monotonic() + timeout_s if timeout_s is not None else float("inf")
    states: dict[int, JobState | None] = dict.fromkeys(job_ids)
    pending, outage = list(job_ids), Outage(client.patience)
    while True:
        with outage.borne():
            for job_id in pending:
                found = await _find_job(client, job_id)
                is_new = states[job_id] is None
                states[job_id] = None if found is None else found.state
                if is_new and found is not None and found.sweep == job_id and job_id in whole:
                    states |= {job.id: job.state for job in await sweep_jobs(client, job_id)}
        pending = [job_id for job_id in states if (state := states[job_id]) is not None and not state.is_final]
        left_s = until - time.monotonic()
        if not pending or left_s <= 0:
            return states
        # Many jobs are polled less often: each poll makes a request per job.
        await asyncio.sleep(min(client.patience.poll_s * max(1.0, len(pending) / 20), left_s))


async def _find_job(client: "Client", job_id: int) -> "JobDetail | None":
    try:
        return await client.job(job_id)
    except NotFound:
        return None


def parse_priority(word: str) -> int:
    """Returns a priority of 0 to 100, also from low, normal or high. Raises UserError."""
    number = _PRIORITY_CLASSES.get(word.strip().lower())
    if number is None and word.strip().isascii() and word.strip().isdigit():
        number = int(word)
    if number is None or not 0 <= number <= 100:
        raise UserError(f"{word[:40]!r} is no priority", field="--priority", fix="0 to 100, or low, normal, high")
    return number


async def _after(done: str, act: Awaitable[object]) -> str:
    await act
    return done


def _for_each_job(words: list[str], act: "Callable[[Client, int], Awaitable[str]]", *, in_order: bool = False) -> None:
    """Calls `act` for every named job, as `_act_on_jobs` does."""

    async def one_by_one(client: "Client", job_ids: list[int]) -> "AsyncIterator[str | UserError]":
        for job_id in job_ids:
            try:
                yield await act(client, job_id)
            except UserError as error:
                yield error

    _act_on_jobs(lambda client: find_named_jobs(client, words, newest_job_here), one_by_one, in_order=in_order)


def _act_on_jobs(
    find: "Callable[[Client], Awaitable[list[NamedJobs]]]",
    act: "Callable[[Client, list[int]], AsyncIterator[str | UserError]]",
    *,
    in_order: bool = False,
) -> None:
    """Prints what `act` tells of every job that `find` returns, for a sweep in one line.

    `act` yields what became of each job, in the order given; a refusal does not stop the others.
    `in_order`: the jobs of a sweep from its first; else those that came last, and wait, come before those that run.
    Exits with 2 if one was refused.
    """

    async def all_of_them(client: "Client") -> int:
        groups = []
        for named in await find(client):
            ids = [job.id for job in named.sweep if not job.state.is_final] if named.sweep else named.ids
            groups.append((named, sorted(ids, reverse=not in_order)))
        told, refused = act(client, [job_id for _, ids in groups for job_id in ids]), 0
        for named, ids in groups:
            done = []
            for job_id in ids:
                text = await anext(told)
                if isinstance(text, str):
                    done.append(text)
                    continue
                refused += 1
                name = f"{named.title}: job {job_id}" if named.sweep else named.title
                said = str(text) if str(text) == f"no {name}" else f"{name}: {text}"
                warn(said, *([f"fix: {text.fix}"] if text.fix else []))
            if named.sweep:
                summary = ", ".join(f"{text} ({count} jobs)" for text, count in Counter(done).most_common(4))
                show_line(f"{named.title}: {summary or 'no job of it is left'}")
            elif done:
                show_line(f"{named.title} {done[0]}")
        return refused

    if with_client(all_of_them):
        raise typer.Exit(2)


def logs_command(
    job: JobArgument,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            "-f",
            help="Follow the output until the job ends, then exit with the code that `wait` would give.",
        ),
    ] = False,
    rank: Annotated[
        str | None,
        typer.Option(
            "--rank",
            "-r",
            help="Print the output of this rank (default 0), or of `all` ranks in turn, each line marked.",
        ),
    ] = None,
    role: Annotated[
        str | None, typer.Option("--role", help="Print the lines of this role alone, of all ranks unless one is named.")
    ] = None,
    attempt: Annotated[
        int | None,
        typer.Option("--attempt", "-a", min=1, help="Print the output of this attempt instead of the latest."),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Print the bytes unchanged, including escape sequences.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", min=0, help="Begin with this many of the last lines.")] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Begin with what was printed within this time, such as 10m.")
    ] = None,
) -> None:
    """Print the output of a job. Escape sequences are removed unless --raw is given."""
    job_id, ranks = job_id_of(job), _parse_rank("all" if role is not None and rank is None else rank)
    since_s = parse_length_option(since, "--since")
    if role is not None and tail is not None:
        raise UserError("the last lines are counted over all roles", field="--tail", fix="leave it out")
    if ranks is None:
        if follow or raw or tail is not None or since is not None:
            raise UserError("one rank is followed, printed raw or from its end", field="--rank", fix="name the rank")
        with_client(lambda client: _print_all_ranks(client, job_id, attempt, role))
        return

    async def print_all(client: "Client") -> int:
        if role is not None:
            _check_role(await client.job(job_id), role)
        text, is_empty, start = LogText(as_shown=not follow), tail is None and since is None, 0
        if not is_empty:
            within_s = None if since_s is None else round(since_s)
            start = await client.log_start(job_id, attempt=attempt, rank=ranks, tail=tail, since_s=within_s)
        pieces = client.logs(job_id, attempt=attempt, rank=ranks, offset=start, follow=follow)
        async for piece in _lines_of_role(pieces, role):
            is_empty = is_empty and not piece
            if raw:
                sys.stdout.buffer.write(piece)
            else:
                sys.stdout.write(text.feed(piece))
            sys.stdout.flush()
        sys.stdout.write(text.feed(b"", final=True))
        if is_empty:
            _warn_of_empty_log(await client.job(job_id))
        if not follow or attempt is not None:
            return 0
        return exit_code_of_states([(await client.job(job_id)).state])

    code = with_client(print_all, stays=follow)
    if code:
        raise typer.Exit(code)


def _parse_rank(word: str | None) -> int | None:
    """Returns the rank that the word names, or None for all ranks."""
    if word is not None and word.strip().lower() == "all":
        return None
    if word is not None and not re.fullmatch(r"[0-9]{1,6}", word):
        raise UserError(f"{word[:40]!r} is no rank", field="--rank", fix="a number from 0, or `all`")
    return int(word or 0)


def _check_role(job: "JobDetail", role: str) -> None:
    if role not in (known := job.spec.get("roles") or {}):
        fix = f"known: {', '.join(known)}" if known else "name a rank"
        raise UserError(f"job {job.id} has no role {role[:40]!r}", field="--role", fix=fix)


async def _lines_of_role(pieces: AsyncIterator[bytes], role: str | None) -> AsyncIterator[bytes]:
    """Yields the lines of a role's processes, and what was said of them (`walras.training.roles`); None: all pieces."""
    if role is None:
        async for piece in pieces:
            yield piece
        return
    begins, rest = re.compile(rf"\[(walras\] (?:cannot start )?)?{re.escape(role)} ".encode()), b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        if found := b"".join(line + b"\n" for line in lines if begins.match(line)):
            yield found
    if begins.match(rest):
        yield rest


async def _print_all_ranks(client: "Client", job_id: int, attempt: int | None, role: str | None) -> None:
    """Prints the log of every rank in turn, each line marked with its rank; of a role as it is marked already."""
    found = await client.job(job_id)
    if role is not None:
        _check_role(found, role)
    ranks = next((each.accelerators for each in found.attempt_list if each.attempt == attempt), found.accelerators)
    is_empty = True
    for rank in range(ranks):
        text, line, mark = LogText(), "", f"{rank}| " if role is None else ""
        async for piece in _lines_of_role(client.logs(job_id, attempt=attempt, rank=rank), role):
            *whole, line = (line + text.feed(piece)).split("\n")
            sys.stdout.writelines(f"{mark}{each}\n" for each in whole)
            is_empty = is_empty and not piece
        line += text.feed(b"", final=True)
        sys.stdout.writelines(f"{mark}{each}\n" for each in line.split("\n") if each)
    if is_empty:
        _warn_of_empty_log(found)


def _warn_of_empty_log(job: "JobDetail") -> None:
    why = f": {why_text(job)}" if why_text(job) else ""
    warn(f"nothing was printed there; job {job.id} is {job.state}, attempts {job.attempts}{why}")


_DEFAULT_KINDS = "failed,finished"
_LONGEST_URL = 2000


def notify_command(
    url: Annotated[
        str | None,
        typer.Argument(
            metavar="[URL]",
            help="https://... for a webhook, a chat or mail address of Apprise, or - for standard input.",
        ),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="KINDS",
            help="Of failed,finished,at_risk,budget,stuck,idle and, for operators, machine_lost "
            f"(default: {_DEFAULT_KINDS}).",
        ),
    ] = None,
    remove: Annotated[int | None, typer.Option("--remove", metavar="ID", min=1, help="Remove an address.")] = None,
    test: Annotated[
        int | None, typer.Option("--test", metavar="ID", min=1, help="Send a test; exit code 1 if it was not taken.")
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
    no_header: NoHeaderOption = False,
) -> None:
    """Send my notifications to an address; without one, list the addresses and what came of each.

    The key that a webhook's notifications are signed with is printed once. Of an address only its host is listed.
    """
    if remove is not None or test is not None:
        other = {"URL": url, "--on": on, "--test": test if remove is not None else None}
        refuse_options(other, "is no part of --remove or --test", "leave it out")
    if remove is not None:
        gone = with_client(lambda client: client.remove_channel(remove))
        show_line(f"channel {gone.id} ({gone.shown}) is removed")
    elif test is not None:
        _test(test)
    elif url is not None:
        _add(url, on or _DEFAULT_KINDS, output)
    else:
        refuse_options({"--on": on}, "is of a new address", "give its URL too")
        _list(output, header=not no_header)


def _test(channel: int) -> None:
    tested = with_client(lambda client: client.test_channel(channel))
    if tested.problem:
        warn(f"walras: channel {tested.id} ({tested.shown}): {tested.problem}")
        raise typer.Exit(1)
    show_line(f"channel {tested.id} ({tested.shown}) took it")


def _add(url: str, on: str, output: OutputFormat) -> None:
    kinds = _event_kinds(on)
    address = (sys.stdin.read(_LONGEST_URL + 2) if url == "-" else url).strip()
    made = with_client(lambda client: client.add_channel(address, kinds))
    if show_as_json(made, output):
        return
    if made.key:
        # Only the secret goes to standard output, so that it can go straight into a file.
        show_line(made.key)
    signed = "; the receiver checks `webhook-signature` with the key" if made.key else ""
    warn(f"channel {made.id}: {made.shown} hears of {', '.join(made.kinds)}{signed}", f"walras notify --test {made.id}")


def _event_kinds(written: str) -> list[str]:
    from walras.resources.notifications import CHOICES

    kinds = [each.strip().lower().replace("-", "_") for each in written.split(",") if each.strip()]
    unknown = [each for each in kinds if each not in CHOICES]
    if unknown or not kinds:
        told = f"{unknown[0][:40]!r} is nothing to be told of" if unknown else "nothing is to be told"
        raise UserError(told, field="--on", fix=f"choose of {','.join(CHOICES)}")
    return list(dict.fromkeys(kinds))


def _list(output: OutputFormat, *, header: bool) -> None:
    channels = with_client(lambda client: client.channels())
    show_items(
        "ID> | TO~ | ON~ | WAITING> | DELIVERED> | FAILED> | DROPPED> | LAST | PROBLEM?9/",
        channels,
        _channel_row,
        output,
        header=header,
    )


def _channel_row(channel: "ChannelView") -> list[str]:
    counts = [channel.waiting, channel.delivered, channel.failed, channel.dropped]
    return [
        str(channel.id),
        channel.shown,
        ",".join(channel.kinds),
        *map(str, counts),
        dash(channel.delivered_at),
        dash(channel.problem),
    ]
