"""Reading a rank's log from the server: from a byte offset on, and followed over lost connections.

Not a byte is lost or repeated: the offset advances with what was yielded.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import aiohttp

from walras.api import AttemptView
from walras.contract import NEXT_OFFSET_HEADER
from walras.transport import ApiCall, Transport, response_error

_PIECE_BYTES = 65_536


@dataclass(slots=True)
class LogCursor:
    """A position in a log: `offset` advances with every piece that was yielded."""

    job_id: int
    attempt: int | None
    rank: int | None
    offset: int

    def call(self, *, follow: bool) -> ApiCall:
        query = {"offset": str(self.offset)}
        if self.attempt is not None:
            query["attempt"] = str(self.attempt)
        if self.rank is not None:
            query["rank"] = str(self.rank)
        if follow:
            query["follow"] = "true"
        return ApiCall("GET", f"/api/v1/jobs/{self.job_id:d}/logs", query=query)


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


async def follow_attempt(transport: Transport, place: LogCursor) -> AsyncIterator[bytes]:
    """Yields the log of `place.attempt` as it grows, until the attempt has ended and its whole output was yielded."""
    assert place.attempt is not None
    failures = 0
    while True:
        # Checked before reading: the output of an attempt that has ended is complete when it is read afterwards.
        ended = await _has_ended(transport, place.job_id, place.attempt)
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


_CONNECTION_ERRORS = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError)


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


async def _has_ended(transport: Transport, job_id: int, attempt: int) -> bool:
    answer = await transport.json(ApiCall("GET", f"/api/v1/jobs/{job_id:d}/attempts"))
    views = [AttemptView.model_validate(item) for item in answer]
    newest = max((view.attempt for view in views), default=0)
    return newest > attempt or any(view.attempt == attempt and view.state.is_final for view in views)


async def _pause_or_give_up(transport: Transport, failures: int, error: BaseException) -> None:
    if failures >= transport.patience.tries:
        raise transport.unreachable(error) from None
    await transport.pause(failures)


async def log_start(transport: Transport, job_id: int, wanted: Mapping[str, int | None]) -> int:
    """Returns the offset at which the last `tail` lines of a `rank` and `attempt` begin, or what came within `since_s`
    seconds; the later of both. None: as if it were left out.
    """
    query = {name: str(value) for name, value in wanted.items() if value is not None}
    call = ApiCall("GET", f"/api/v1/jobs/{job_id:d}/logs/start", query=query)
    return int((await transport.json(call))["offset"])
