"""A command's connection to its server: which server, with which token, and one piece of asynchronous work on it.

Which server that is says `walras.server_access`. This file also remembers the job submitted last, for the word `last`.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from walras.cli.arguments import parse_job_id, parse_job_ids
from walras.errors import UserError
from walras.server_access import server_access

if TYPE_CHECKING:
    from walras.client import Client


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
    from walras.transport import Patience

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
    from walras.cli.sweep_words import find_named_jobs, names_jobs_of_sweep

    if not any(map(names_jobs_of_sweep, words)):
        return parse_job_ids(words, newest_job_here)
    named = with_client(lambda client: find_named_jobs(client, words, newest_job_here))
    return list(dict.fromkeys(job_id for each in named for job_id in each.ids))


def job_ids_named(words: list[str]) -> frozenset[int]:
    """Returns the job numbers that stand there as numbers: of a sweep, the whole sweep is meant by its first."""
    from walras.cli.sweep_words import names_jobs_of_sweep

    return frozenset(parse_job_ids([word for word in words if not names_jobs_of_sweep(word)], newest_job_here))


def job_id_of(word: str) -> int:
    """Returns the one job number that a word names."""
    found = job_ids_of([word])
    return parse_job_id(word if len(found) != 1 else str(found[0]), newest_job_here)
