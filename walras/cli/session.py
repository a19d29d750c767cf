"""A command's connection to its server: which server, with which token, and one piece of asynchronous work on it.

`walras.server_access` says which server that is. This file also remembers the job submitted last (`last`).

Sweeps are named here too: `17` is the whole sweep whose first job is 17, `17[3]` and `17[3-8]` are jobs of it. Commands
that change jobs take a sweep as a whole. Its waiting jobs come before those that run: else the end of one would start
another, only for that to be stopped in turn.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from walras.cli.arguments import job_words, parse_job_id, parse_job_ids
from walras.errors import UserError
from walras.server_access import server_access
from walras.states import JobState

if TYPE_CHECKING:
    from walras.client import Client
    from walras.resources.jobs import JobView


# ------------------------------------------------------------------------------------------------- the word `last`


def _last_file(home: Path | None) -> Path:
    return (home or Path.home()) / ".local" / "state" / "walras" / "last.json"


def remember_submitted_job(url: str, job_id: int, home: Path | None = None) -> None:
    """Notes the newest job submitted from this account, for the word `last`; does nothing in a read-only home."""
    path = _last_file(home)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"server": url, "job": job_id}))
    except OSError:
        return


def last_submitted_job(url: str, home: Path | None = None) -> int:
    """Returns the newest job submitted from this account to this server. Raises UserError if none is known."""
    try:
        noted = json.loads(_last_file(home).read_text())
        if noted["server"] == url:
            return int(noted["job"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise UserError(f"no job was submitted from here to {url}", field="last", fix="give the job's number")


ResultT = TypeVar("ResultT")


#: Tries of a command that waits in any case: a minute or so, in which a server that restarts is back.
RESTART_TRIES = 16


def with_client(work: "Callable[[Client], Awaitable[ResultT]]", *, stays: bool = False) -> ResultT:
    """Returns the result of `work` with an open client. Only this function imports the client: `--help` stays quick.

    `stays`: once the server has answered, retry for as long as a restart may take.
    """
    from walras.client import Client
    from walras.connection.transport import Patience

    server = server_access()

    async def whole() -> ResultT:
        patience = None
        if stays:
            async with Client(server.url, server.token) as client:
                await client.health()
            patience = Patience(tries=RESTART_TRIES)
        async with Client(server.url, server.token, patience=patience) as client:
            return await work(client)

    return asyncio.run(whole())


def newest_job_here() -> int:
    """Returns the job that the word `last` names."""
    return last_submitted_job(server_access().url)


def job_ids_of(words: list[str]) -> list[int]:
    """Returns the job numbers that the words of a command line name."""
    if not any(map(is_told_by_server, words)):
        return parse_job_ids(words, newest_job_here)
    named = with_client(lambda client: find_named_jobs(client, words, newest_job_here))
    return list(dict.fromkeys(job_id for each in named for job_id in each.ids))


def job_ids_named(words: list[str]) -> frozenset[int]:
    """Returns the job numbers that stand there as numbers: of a sweep, the whole sweep is meant by its first."""
    return frozenset(parse_job_ids([word for word in words if not is_told_by_server(word)], newest_job_here))


def job_id_of(word: str) -> int:
    """Returns the one job number that a word names."""
    found = job_ids_of([word])
    return parse_job_id(word if len(found) != 1 else str(found[0]), newest_job_here)


_IN_SWEEP = re.compile(r"([0-9]{1,18})\[([0-9,:-]{1,200})\]", re.ASCII)
#: States of the jobs that `rerun --failed` chooses.
FAILED_STATES = (JobState.FAILED, JobState.TIMEOUT)


@dataclass(frozen=True)
class NamedJobs:
    """The jobs that one word of a command line names."""

    #: The word for messages: `job 12`, `sweep 17`.
    title: str
    #: Numbers of the jobs; in a sweep the last ones come first.
    ids: tuple[int, ...]
    #: The jobs, where the word names a whole sweep.
    sweep: "tuple[JobView, ...]" = ()


#: A word that is a job's name: it begins with a letter, unlike a number or a range.
_NAME = re.compile(r"[A-Za-z][^\s,\[\]]{0,199}")
#: Jobs that have ended and are looked through for a name, the newest first.
_LOOKED_THROUGH = 10_000


def is_told_by_server(word: str) -> bool:
    """Returns whether only the server can tell the numbers: of jobs of a sweep, or of a job that is named."""
    return "[" in word or any(map(_is_name, job_words([word])))


def _is_name(word: str) -> bool:
    return word != "last" and _NAME.fullmatch(word) is not None


async def _job_of_name(client: "Client", name: str) -> str:
    """Returns the number of the one job of this name: of those that have not ended, else of all."""
    for active in (True, False):
        listed = client.jobs(active=active, fold_sweeps=True, limit=_LOOKED_THROUGH)
        ids = [job.id if job.sweep is None else job.sweep async for job in listed if job.name == name]
        if len(ids) == 1:
            return str(ids[0])
        if ids:
            some = ", ".join(map(str, ids[:5])) + (", ..." if len(ids) > 5 else "")
            raise UserError(f"{len(ids)} jobs are named {name!r}: {some}", field="JOB", fix="give one of the numbers")
    raise UserError(
        f"no job is named {name!r}",
        field="JOB",
        fix="write a name or a number, a range such as 12-20, 17[3] of a sweep, or last",
    )


async def find_named_jobs(client: "Client", words: list[str], last: Callable[[], int]) -> list[NamedJobs]:
    """Returns what the words name, in their order. Raises UserError for a word that names nothing."""
    found: list[NamedJobs] = []
    for word in job_words(words):
        inside = _IN_SWEEP.fullmatch(word)
        if inside is not None:
            found += await _jobs_inside(client, int(inside[1]), inside[2])
            continue
        ids = parse_job_ids([await _job_of_name(client, word) if _is_name(word) else word], last)
        members = await sweep_jobs(client, ids[0]) if len(ids) == 1 else ()
        if members:
            found.append(NamedJobs(f"sweep {ids[0]}", tuple(job.id for job in members), members))
        else:
            found += [NamedJobs(f"job {job_id}", (job_id,)) for job_id in ids]
    return found


async def sweep_jobs(client: "Client", sweep: int) -> "tuple[JobView, ...]":
    """Returns the jobs of the sweep that begins with this job, the last first; none if no sweep does."""
    return tuple([job async for job in client.jobs(sweep=sweep)])


async def _jobs_inside(client: "Client", sweep: int, indices: str) -> list[NamedJobs]:
    from walras.spec.sweeps import parse_array

    try:
        wanted = parse_array(indices).indices
    except ValueError as error:
        raise UserError(f"{sweep}[{indices}] {error}", field="JOB", fix="write such as 17[3] or 17[3-8]") from None
    members = {job.sweep_index: job for job in await sweep_jobs(client, sweep)}
    if not members:
        raise UserError(f"no sweep begins with job {sweep}", field="JOB", fix="check `walras queue`")
    missing = [index for index in wanted if index not in members]
    if missing:
        raise UserError(f"sweep {sweep} has no job {missing[0]}", field="JOB", fix="walras queue --expand lists them")
    return [NamedJobs(f"job {sweep}[{index}]", (members[index].id,)) for index in wanted]


def spec_of_sweep_again(spec: dict[str, Any], members: "tuple[JobView, ...]") -> dict[str, Any]:
    """Returns what submits these jobs of a sweep again as one sweep; `spec`: that of any of them."""
    from walras.spec.sweeps import indices_text, parse_array

    at_most = parse_array(spec["array"]).at_most if "array" in spec else 0
    indices = indices_text(job.sweep_index for job in members if job.sweep_index is not None)
    again = {name: value for name, value in spec.items() if name != "array_index"}
    return again | {"array": indices + (f"%{at_most}" if at_most else "")}
