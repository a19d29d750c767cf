"""Run one piece of asynchronous work against the configured server, from a synchronous command."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from walras.cli.job_ids import one_job_id, parse_job_ids
from walras.cli.settings import access, last_job

if TYPE_CHECKING:
    from walras.client import Client

ResultT = TypeVar("ResultT")


#: Tries of a command that waits in any case: a minute or so, in which a server that restarts is back.
STAYING_TRIES = 16


def with_client(work: "Callable[[Client], Awaitable[ResultT]]", *, stays: bool = False) -> ResultT:
    """The result of `work` with an open client. The client's library is loaded only here: `--help` stays quick.

    `stays`: once the server has answered, its absence is waited out, as long as a restart may take.
    """
    from walras.client import Client
    from walras.transport import Patience

    server = access()

    async def whole() -> ResultT:
        patience = None
        if stays:
            async with Client(server.url, server.token) as client:
                await client.health()
            patience = Patience(tries=STAYING_TRIES)
        async with Client(server.url, server.token, patience=patience) as client:
            return await work(client)

    return asyncio.run(whole())


def jobs_named(words: list[str]) -> list[int]:
    """The job numbers meant by the words of a command line."""
    return parse_job_ids(words, lambda: last_job(access().url))


def job_named(word: str) -> int:
    """The one job number meant by a word."""
    return one_job_id(word, lambda: last_job(access().url))
