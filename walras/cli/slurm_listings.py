"""`squeue` and `sacct` in Slurm's own columns, for the scripts that read them: `squeue -h -j 12 -o %T`.

Without options people get the tables of `walras queue` and `walras queue --all`. A column that is not known here is
refused by name.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from walras.cli.arguments import JobChoice, choose_jobs, instant_of
from walras.cli.session import with_client
from walras.cli.terminal_output import show_line
from walras.errors import UserError
from walras.states import JobState

if TYPE_CHECKING:
    from walras.client import Client
    from walras.resources.jobs import JobDetail

_STATES = {
    JobState.PENDING: ("PENDING", "PD"), JobState.HELD: ("PENDING", "PD"), JobState.STARTING: ("CONFIGURING", "CF"),
    JobState.RUNNING: ("RUNNING", "R"), JobState.PREEMPTING: ("COMPLETING", "CG"),
    JobState.UNREACHABLE: ("RUNNING", "R"), JobState.CANCELLING: ("COMPLETING", "CG"),
    JobState.SUCCEEDED: ("COMPLETED", "CD"), JobState.FAILED: ("FAILED", "F"), JobState.CANCELLED: ("CANCELLED", "CA"),
    JobState.TIMEOUT: ("TIMEOUT", "TO"),
}  # fmt: skip


def _number(job: "JobDetail") -> str:
    return str(job.id) if job.sweep is None or job.sweep_index is None else f"{job.sweep}_{job.sweep_index}"


def _elapsed_s(job: "JobDetail") -> int:
    if not job.started_at:
        return 0
    until = instant_of(job.ended_at) if job.ended_at else time.time()
    return max(0, round(until - instant_of(job.started_at)))


def _length(seconds: float, *, hours: bool = False) -> str:
    """Returns seconds as `1-02:03:04`, `2:03:04` or `3:04`; with `hours` as `02:03:04`."""
    minutes, second = divmod(round(seconds), 60)
    hour, minute = divmod(minutes, 60)
    day, hour = divmod(hour, 24)
    if day or hours:
        return (f"{day}-" if day else "") + f"{hour:02d}:{minute:02d}:{second:02d}"
    return f"{hour}:{minute:02d}:{second:02d}" if hour else f"{minute}:{second:02d}"


def _instant(text: str | None) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(instant_of(text))) if text else "N/A"


def _limit_s(job: "JobDetail") -> float | None:
    limit = (job.spec.get("limits") or {}).get("max_runtime")
    return float(limit) if limit else None


def _nodes(job: "JobDetail") -> list[str]:
    return [place.partition(":")[0] for place in job.attempt_list[-1].placement] if job.attempt_list else []


def _reason(job: "JobDetail") -> str:
    if job.state is JobState.HELD:
        return "JobHeldUser"
    return job.reason.value if job.reason is not None and not job.state.is_final else "None"


def _exit_code(job: "JobDetail") -> str:
    last = job.attempt_list[-1] if job.attempt_list else None
    return "0:0" if last is None else f"{last.exit_code or 0}:{last.signal or 0}"


def _nodes_or_reason(job: "JobDetail") -> str:
    return ",".join(_nodes(job)) if job.state.holds_accelerators else f"({_reason(job)})"


def _time_left(job: "JobDetail") -> str:
    limit = _limit_s(job)
    return "UNLIMITED" if limit is None else _length(max(0.0, limit - _elapsed_s(job)))


def _time_limit(job: "JobDetail") -> str:
    limit = _limit_s(job)
    return "UNLIMITED" if limit is None else _length(limit)


_Cell = Callable[["JobDetail"], str]
#: By the names of `sacct --format` and `squeue --Format`.
_CELLS: dict[str, _Cell] = {
    "jobid": _number,
    "jobidraw": lambda job: str(job.id),
    "jobarrayid": _number,
    "arrayjobid": lambda job: str(job.sweep if job.sweep is not None else job.id),
    "arraytaskid": lambda job: "N/A" if job.sweep_index is None else str(job.sweep_index),
    "jobname": lambda job: job.name,
    "name": lambda job: job.name,
    "user": lambda job: job.user,
    "username": lambda job: job.user,
    "account": lambda job: job.project,
    "partition": lambda job: job.labels.get("partition") or job.pool or "n/a",
    "state": lambda job: _STATES[job.state][0],
    "statecompact": lambda job: _STATES[job.state][1],
    "exitcode": _exit_code,
    "reason": _reason,
    "elapsed": lambda job: _length(_elapsed_s(job), hours=True),
    "elapsedraw": lambda job: str(_elapsed_s(job)),
    "timeused": lambda job: _length(_elapsed_s(job)),
    "timelimit": _time_limit,
    "timeleft": _time_left,
    "submit": lambda job: _instant(job.submitted_at),
    "submittime": lambda job: _instant(job.submitted_at),
    "start": lambda job: _instant(job.started_at),
    "starttime": lambda job: _instant(job.started_at),
    "end": lambda job: _instant(job.ended_at) if job.ended_at else "Unknown",
    "endtime": lambda job: _instant(job.ended_at),
    "nnodes": lambda job: str(job.spec.get("num_nodes", 1)),
    "numnodes": lambda job: str(job.spec.get("num_nodes", 1)),
    "nodelist": lambda job: ",".join(_nodes(job)),
    "reasonlist": _nodes_or_reason,
    "priority": lambda job: str(job.priority),
    "prioritylong": lambda job: str(job.priority),
    "workdir": lambda job: str(job.spec.get("workdir") or ""),
    "comment": lambda job: job.labels.get("comment", ""),
    "tres-per-node": lambda job: f"gres/gpu:{job.accelerators // int(job.spec.get('num_nodes', 1))}",
    "tres-alloc": lambda job: f"gres/gpu={job.accelerators}",
    "alloctres": lambda job: f"gres/gpu={job.accelerators}",
    "reqtres": lambda job: f"gres/gpu={job.accelerators}",
    "restartcnt": lambda job: str(max(0, job.attempts - 1)),
}
#: Letters of `squeue -o`, and their titles.
_LETTERS = {
    "i": ("jobid", "JOBID"), "A": ("jobidraw", "JOBID"), "F": ("arrayjobid", "ARRAY_JOB_ID"),
    "K": ("arraytaskid", "ARRAY_TASK_ID"), "j": ("name", "NAME"), "u": ("user", "USER"), "a": ("account", "ACCOUNT"),
    "P": ("partition", "PARTITION"), "T": ("state", "STATE"), "t": ("statecompact", "ST"), "M": ("timeused", "TIME"),
    "l": ("timelimit", "TIME_LIMIT"), "L": ("timeleft", "TIME_LEFT"), "D": ("nnodes", "NODES"),
    "R": ("reasonlist", "NODELIST(REASON)"), "N": ("nodelist", "NODELIST"), "r": ("reason", "REASON"),
    "b": ("tres-per-node", "TRES_PER_NODE"),
    "S": ("starttime", "START_TIME"), "V": ("submittime", "SUBMIT_TIME"), "e": ("endtime", "END_TIME"),
    "Q": ("priority", "PRIORITY"), "Z": ("workdir", "WORK_DIR"), "k": ("comment", "COMMENT"),
}  # fmt: skip
_SQUEUE_FORMAT = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
_LONG_FORMAT = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"
_SACCT_FORMAT = "JobID,JobName,Partition,Account,State,ExitCode"


@dataclass(frozen=True, slots=True)
class _Column:
    """A cell of a line, or text between cells (`cell` is None)."""

    title: str
    cell: _Cell | None
    #: 0: as wide as the text. Negative: to the left.
    width: int = 0

    def shown(self, text: str) -> str:
        if not self.width:
            return text
        cut = text[: abs(self.width)]
        return cut.ljust(-self.width) if self.width < 0 else cut.rjust(self.width)


def _columns_of_letters(text: str) -> list[_Column]:
    """Returns the columns of `%.18i %T`: a dot is to the right, a number the width."""
    columns = []
    for between, dot, width, letter in re.findall(r"([^%]*)(?:%(\.?)(\d{0,4})([A-Za-z]))?", text):
        if between:
            columns.append(_Column(between, None))
        if letter:
            if letter not in _LETTERS:
                raise UserError(f"no column %{letter} here", field="--format", fix=f"one of {' '.join(_LETTERS)}")
            name, title = _LETTERS[letter]
            columns.append(_Column(title, _CELLS[name], int(width or 0) * (1 if dot else -1)))
    return columns


def _columns_of_names(text: str, mark: str, default: int) -> list[_Column]:
    """Returns the columns of `JobID,State%20` (sacct) or `JobID:10` (squeue); `mark` stands before the width."""
    columns = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, width = part.partition(mark)
        if name.lower() not in _CELLS or not re.fullmatch(r"\.?-?\d{0,4}", width, re.ASCII):
            raise UserError(f"no column {part[:40]!r} here", field="--format", fix=f"one of {', '.join(_CELLS)}")
        wide = int(width.lstrip(".") or default)
        is_left = mark == ":" and not width.startswith((".", "-"))
        columns.append(_Column(name, _CELLS[name.lower()], -abs(wide) if is_left else wide))
    return columns


# ------------------------------------------------------------------------------------------------ commands

_JobsOption = Annotated[list[str] | None, typer.Option("-j", "--jobs", "--job", help="Numbers, such as 12,13 or 12_3.")]
_UserOption = Annotated[str | None, typer.Option("-u", "--user", "--users", help="Only jobs of these users.")]
_StatesOption = Annotated[list[str] | None, typer.Option("-t", "--states", "-s", "--state", help="Slurm's states.")]
_NamesOption = Annotated[str | None, typer.Option("-n", "--name", help="Only jobs of this name.")]
_AccountOption = Annotated[str | None, typer.Option("-A", "--account", "--accounts", help="Only jobs of this project.")]


def slurm_squeue_command(
    jobs: _JobsOption = None,
    user: _UserOption = None,
    mine: Annotated[bool, typer.Option("--me", help="Only your own jobs.")] = False,
    states: _StatesOption = None,
    name: _NamesOption = None,
    account: _AccountOption = None,
    partition: Annotated[str | None, typer.Option("-p", "--partition", help="Only jobs of these partitions.")] = None,
    long: Annotated[bool, typer.Option("-l", "--long", help="The limit too.")] = False,
    everything: Annotated[bool, typer.Option("-a", "--all", help="It is always so.")] = False,
    letters: Annotated[str, typer.Option("-o", "--format", help="Columns, such as '%i %T'.")] = _SQUEUE_FORMAT,
    names: Annotated[str | None, typer.Option("-O", "--Format", help="Columns, such as JobID,State.")] = None,
    no_header: Annotated[bool, typer.Option("-h", "--noheader", help="No titles.")] = False,
    array: Annotated[bool, typer.Option("-r", "--array", help="It is always so.")] = False,
) -> None:
    """List jobs that have not ended in columns of `squeue`."""
    letters = _LONG_FORMAT if long else letters
    columns = _columns_of_letters(letters) if names is None else _columns_of_names(names, ":", -20)
    only = {"user": user, "name": name, "account": account, "partition": partition}
    _list(JobChoice(mine=mine, active=True), only, jobs, states, columns, "", header=not no_header)


def slurm_sacct_command(
    jobs: _JobsOption = None,
    user: _UserOption = None,
    states: _StatesOption = None,
    name: Annotated[str | None, typer.Option("--name", help="Only jobs of this name.")] = None,
    account: _AccountOption = None,
    everybody: Annotated[bool, typer.Option("-a", "--allusers", help="Jobs of all users.")] = False,
    names: Annotated[str, typer.Option("-o", "--format", help="Columns, such as JobID,State%20.")] = _SACCT_FORMAT,
    brief: Annotated[bool, typer.Option("-b", "--brief", help="Number, state and exit code.")] = False,
    parsable: Annotated[bool, typer.Option("-p", "--parsable", help="Separate by |, also at the end.")] = False,
    parsable2: Annotated[bool, typer.Option("-P", "--parsable2", help="Separate by |.")] = False,
    no_header: Annotated[bool, typer.Option("-n", "--noheader", help="No titles.")] = False,
    allocations: Annotated[bool, typer.Option("-X", "--allocations", help="It is always so.")] = False,
) -> None:
    """List jobs, those that have ended too, in columns of `sacct`."""
    columns = _columns_of_names("JobID,State,ExitCode" if brief else names, "%", 0 if parsable or parsable2 else 10)
    only = {"user": user, "name": name, "account": account}
    chosen = JobChoice(mine=user is None and not jobs and not everybody)
    _list(
        chosen, only, jobs, states, columns, "|" if parsable or parsable2 else " ", header=not no_header, end=parsable
    )


#: Commands behind the links of `walras admin slurm-links`.
SLURM_LISTINGS: dict[str, Callable[..., None]] = {
    "slurm-squeue": slurm_squeue_command,
    "slurm-sacct": slurm_sacct_command,
}


def _list(
    chosen: JobChoice,
    only: Mapping[str, str | None],
    jobs: Sequence[str] | None,
    states: Sequence[str] | None,
    columns: Sequence[_Column],
    separator: str,
    *,
    header: bool,
    end: bool = False,
) -> None:
    """Shows the chosen jobs that have, in the cells of `only`, one of the words there."""
    # A step (`12.batch`) is its job.
    numbers = [each.partition(".")[0] for word in jobs or () for each in word.split(",") if each]
    if any(re.fullmatch(r"\d{1,18}(?:_\d{1,8})?", each, re.ASCII) is None for each in numbers):
        raise UserError(f"{','.join(numbers)[:80]} are no numbers of jobs", field="--jobs", fix="such as 12 or 12_3")
    wanted = {each.strip().upper() for word in states or () for each in word.split(",")}
    known = {state for pair in _STATES.values() for state in pair}
    if wanted - known - {"ALL"}:
        raise UserError(
            f"{min(wanted - known - {'ALL'})} is no state of Slurm's here",
            field="--states",
            fix=", ".join(sorted(known)),
        )
    found = [
        job
        for job in with_client(lambda client: _details(client, chosen, numbers))
        if (not wanted - {"ALL"} or wanted & set(_STATES[job.state]))
        and all(words is None or _CELLS[cell](job) in words.split(",") for cell, words in only.items())
    ]
    if header:
        show_line(_line([column.shown(column.title) for column in columns], separator, end=end))
    for job in found:
        cells = [column.shown(column.title if column.cell is None else column.cell(job)) for column in columns]
        show_line(_line(cells, separator, end=end))


def _line(cells: Sequence[str], separator: str, *, end: bool) -> str:
    return separator.join(cells) + (separator if end else "")


async def _details(client: "Client", chosen: JobChoice, numbers: Sequence[str]) -> "list[JobDetail]":
    """Returns the jobs that are chosen, of some numbers or of all; a number of a sweep stands for all its jobs."""
    listed = await choose_jobs(client, chosen)
    if numbers:
        own = {number.partition("_")[0] for number in numbers}
        listed = [
            job
            for job in listed
            if (job.sweep is None and str(job.id) in own)
            or (str(job.sweep) in numbers or f"{job.sweep}_{job.sweep_index}" in numbers or str(job.id) in numbers)
        ]
    return [await client.job(job.id) for job in sorted(listed, key=lambda job: job.id)]
