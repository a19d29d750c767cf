"""`walras logs`: what a job printed."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from walras.cli.control import exit_code_of
from walras.cli.options import Job
from walras.cli.output import LogText, warn
from walras.cli.session import job_named, with_client

if TYPE_CHECKING:
    from walras.client import Client


def logs(
    job: Job,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job ends; then exit as `wait` does.")
    ] = False,
    rank: Annotated[int | None, typer.Option("--rank", "-r", min=0, help="This rank; default 0.")] = None,
    attempt: Annotated[int | None, typer.Option("--attempt", "-a", min=1, help="This attempt, not the newest.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="The bytes as printed, escape sequences included.")] = False,
) -> None:
    """Print what a job printed. Without --raw, escape sequences are removed."""
    job_id = job_named(job)

    async def print_all(client: "Client") -> int:
        text, is_empty = LogText(), True
        async for piece in client.logs(job_id, attempt=attempt, rank=rank, follow=follow):
            is_empty = is_empty and not piece
            if raw:
                sys.stdout.buffer.write(piece)
            else:
                sys.stdout.write(text.feed(piece))
            sys.stdout.flush()
        sys.stdout.write(text.feed(b"", final=True))
        if is_empty:
            found = await client.job(job_id)
            why = " ".join(filter(None, (found.reason, found.detail)))
            warn(f"nothing was printed there; job {job_id} is {found.state}, attempts {found.attempts} {why}".rstrip())
        if not follow or attempt is not None:
            return 0
        return exit_code_of([(await client.job(job_id)).state])

    code = with_client(print_all)
    if code:
        raise typer.Exit(code)
