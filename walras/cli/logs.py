"""`walras logs`: what a job printed."""

import re
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from walras.cli.control import exit_code_of
from walras.cli.options import Job
from walras.cli.output import LogText, warn
from walras.cli.session import job_named, with_client
from walras.errors import UserError

if TYPE_CHECKING:
    from walras.api import JobDetail
    from walras.client import Client


def logs_command(
    job: Job,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job ends; then exit as `wait` does.")
    ] = False,
    rank: Annotated[
        str | None, typer.Option("--rank", "-r", help="This rank; default 0. `all`: one after another, each marked.")
    ] = None,
    attempt: Annotated[int | None, typer.Option("--attempt", "-a", min=1, help="This attempt, not the newest.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="The bytes as printed, escape sequences included.")] = False,
) -> None:
    """Print what a job printed. Without --raw, escape sequences are removed."""
    job_id, ranks = job_named(job), _ranks(rank)
    if ranks is None:
        if follow or raw:
            raise UserError("one rank is followed, or printed raw", field="--rank", fix="name the rank")
        with_client(lambda client: _all_ranks(client, job_id, attempt))
        return

    async def print_all(client: "Client") -> int:
        text, is_empty = LogText(), True
        async for piece in client.logs(job_id, attempt=attempt, rank=ranks, follow=follow):
            is_empty = is_empty and not piece
            if raw:
                sys.stdout.buffer.write(piece)
            else:
                sys.stdout.write(text.feed(piece))
            sys.stdout.flush()
        sys.stdout.write(text.feed(b"", final=True))
        if is_empty:
            _tell_empty(await client.job(job_id))
        if not follow or attempt is not None:
            return 0
        return exit_code_of([(await client.job(job_id)).state])

    code = with_client(print_all, stays=follow)
    if code:
        raise typer.Exit(code)


def _ranks(word: str | None) -> int | None:
    """The one rank that is meant; None for all of them."""
    if word is not None and word.strip().lower() == "all":
        return None
    if word is not None and not re.fullmatch(r"[0-9]{1,6}", word):
        raise UserError(f"{word[:40]!r} is no rank", field="--rank", fix="a number from 0, or `all`")
    return int(word or 0)


async def _all_ranks(client: "Client", job_id: int, attempt: int | None) -> None:
    """Every rank's log in turn, every line marked with its rank."""
    found = await client.job(job_id)
    ranks = next((each.accelerators for each in found.attempt_list if each.attempt == attempt), found.accelerators)
    is_empty = True
    for rank in range(ranks):
        text, line = LogText(), ""
        async for piece in client.logs(job_id, attempt=attempt, rank=rank):
            *whole, line = (line + text.feed(piece)).split("\n")
            sys.stdout.writelines(f"{rank}| {each}\n" for each in whole)
            is_empty = is_empty and not piece
        line += text.feed(b"", final=True)
        sys.stdout.writelines(f"{rank}| {each}\n" for each in line.split("\n") if each)
    if is_empty:
        _tell_empty(found)


def _tell_empty(job: "JobDetail") -> None:
    why = " ".join(filter(None, (job.reason, job.detail)))
    warn(f"nothing was printed there; job {job.id} is {job.state}, attempts {job.attempts} {why}".rstrip())
