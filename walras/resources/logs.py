"""Logs of jobs: read from a byte offset and followed over lost connections, without a byte lost or repeated."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import aiohttp

from walras.connection.body import ApiCall, Body
from walras.connection.transport import Outage, Transport, response_error
from walras.contract import NEXT_OFFSET_HEADER
from walras.errors import ServerUnreachable
from walras.resources.endpoint import Call, Endpoint, Stream
from walras.resources.jobs import JOB_PATH, JobCalls

T = TypeVar("T")


class LogStart(Body):
    """`GET /jobs/{id}/logs/start`: the offset to read a log from."""

    offset: int


LOG = Endpoint(
    "GET", f"{JOB_PATH}/logs", "What a rank wrote. Raw bytes, from an offset or so many before the end; "
    "`X-Walras-Next-Offset`.", "text/plain", "viewer or job", query=("attempt", "rank", "offset", "tail", "follow"),
    waits=True,
)  # fmt: skip
LOG_START = Endpoint(
    "GET", f"{JOB_PATH}/logs/start", "Where a log's last lines begin. Or what came within `since_s` seconds: `offset`.",
    LogStart, "viewer or job", query=("attempt", "rank", "tail", "since_s"),
)  # fmt: skip


class LogCalls(JobCalls):
    """The client's calls about logs."""

    @Stream
    async def logs(
        self, job_id: int, *, attempt: int | None = None, rank: int | None = None, offset: int = 0, follow: bool = False
    ) -> AsyncIterator[bytes]:
        """Yields the output of one rank (default: the first) from byte `offset` on, as raw pieces that end anywhere.

        Without `attempt`: the newest one. `follow` goes on until the attempt ends, over lost connections, every byte
        once; without `attempt` it goes on with the next attempt, from its beginning, until the job ends. Raw bytes of
        a job: never write them to a terminal before `walras.cli.terminal_output.safe_text`.
        """
        place = LogCursor(job_id, attempt, rank, offset)
        if not follow:
            async for piece in read_log(self._transport, place):
                yield piece
            return

        outage = Outage(self._transport.patience)

        async def has_ended(attempt: int) -> bool:
            views = await self._borne(outage, lambda: self.attempts(job_id))
            newest = max((view.attempt for view in views), default=0)
            return newest > attempt or any(view.attempt == attempt and view.state.is_final for view in views)

        shown = 0
        while True:
            place.attempt = attempt if attempt is not None else await self._next_attempt(job_id, shown, outage)
            if place.attempt is None:
                return
            async for piece in follow_attempt(self._transport, place, has_ended):
                yield piece
            if attempt is not None:
                return
            shown, place.offset = place.attempt, 0

    @Call
    async def log_start(self, /, job_id: int, **wanted: int | None) -> int:
        """Returns the offset at which the last `tail` lines of a `rank` and `attempt` begin, or what came within
        `since_s` seconds; the later of both. None: as if it were left out.
        """
        found: LogStart = await LOG_START.ask(self, {"job_id": job_id, **wanted})
        return found.offset

    async def _borne(self, outage: Outage, ask: Callable[[], Awaitable[T]]) -> T:
        """Returns the server's answer, asking again while its silence is borne."""
        while True:
            with outage.borne():
                return await ask()
            await self._transport.pause(1)

    async def _next_attempt(self, job_id: int, after: int, outage: Outage) -> int | None:
        """Waits for an attempt after `after` and returns the newest; None if the job ends first."""
        while True:
            job = await self._borne(outage, lambda: self.job(job_id))
            newest = max((view.attempt for view in job.attempt_list), default=job.attempts)
            if newest > after:
                return newest
            if job.state.is_final:
                return None
            await self._transport.pause()


_PIECE_BYTES = 65_536


@dataclass(slots=True)
class LogCursor:
    """A position in a log: `offset` advances with every piece that was yielded."""

    job_id: int
    attempt: int | None
    rank: int | None
    offset: int

    def call(self, *, follow: bool) -> ApiCall:
        asked = {"offset": self.offset, "attempt": self.attempt, "rank": self.rank, "follow": follow}
        return LOG.call({"job_id": self.job_id, **asked})


async def read_log(transport: Transport, place: LogCursor) -> AsyncIterator[bytes]:
    """Yields the log up to its present end.

    The server may answer in parts. An answer shorter than a piece is the last one, so that a job that prints all the
    time is not read for ever.
    """
    failures = 0
    while True:
        before = place.offset
        try:
            async for piece in _read_pieces(transport, place, follow=False):
                yield piece
        except _CONNECTION_ERRORS as error:
            failures = 0 if place.offset > before else failures + 1
            await _pause_or_give_up(transport, failures, error)
        else:
            if place.offset - before < _PIECE_BYTES:
                return


async def follow_attempt(
    transport: Transport, place: LogCursor, has_ended: Callable[[int], Awaitable[bool]]
) -> AsyncIterator[bytes]:
    """Yields the log of `place.attempt` as it grows, until the attempt has ended and its whole output was yielded."""
    assert place.attempt is not None
    failures = 0
    while True:
        # Checked before reading: the output of an attempt that has ended is complete when it is read afterwards.
        ended = await has_ended(place.attempt)
        before = place.offset
        try:
            async for piece in _read_pieces(transport, place, follow=not ended):
                yield piece
            failures = 0
        except _CONNECTION_ERRORS as error:
            failures = 0 if place.offset > before or isinstance(error, TimeoutError) else failures + 1
            await _pause_or_give_up(transport, failures, error)
            continue
        if ended and place.offset == before:
            return
        if not ended and place.offset == before:
            await transport.pause()


_CONNECTION_ERRORS = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError, ServerUnreachable)


async def _read_pieces(transport: Transport, place: LogCursor, *, follow: bool) -> AsyncIterator[bytes]:
    patience = transport.patience
    total = None if follow else patience.call_timeout_s
    timeout = aiohttp.ClientTimeout(
        total=total, sock_connect=patience.connect_timeout_s, sock_read=patience.silence_s if follow else None
    )
    async with transport.open(place.call(follow=follow), timeout=timeout) as response:
        if response.status != 200:
            raise await response_error(response)
        async for piece in response.content.iter_chunked(_PIECE_BYTES):
            place.offset += len(piece)
            yield piece
        # The server's count is right where it left bytes out (a log over its limit).
        stated = response.headers.get(NEXT_OFFSET_HEADER, "")
        if not follow and stated.isascii() and stated.isdigit():
            place.offset = max(place.offset, int(stated))


async def _pause_or_give_up(transport: Transport, failures: int, error: BaseException) -> None:
    if failures >= transport.patience.tries:
        raise error if isinstance(error, ServerUnreachable) else transport.unreachable(error) from None
    await transport.pause(failures)
