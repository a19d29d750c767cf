"""Reading a job's log from a byte offset, and following it over lost connections without a byte lost or repeated."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp

from walras.api import AttemptView
from walras.transport import Call, Transport, error_of

NEXT_OFFSET = "X-Walras-Next-Offset"
_PIECE_BYTES = 65_536


@dataclass(slots=True)
class LogPlace:
    """Where reading stands: `offset` moves on with every piece that was handed out."""

    job_id: int
    attempt: int | None
    rank: int | None
    offset: int

    def call(self, *, follow: bool) -> Call:
        query = {"offset": str(self.offset)}
        if self.attempt is not None:
            query["attempt"] = str(self.attempt)
        if self.rank is not None:
            query["rank"] = str(self.rank)
        if follow:
            query["follow"] = "true"
        return Call("GET", f"/api/v1/jobs/{self.job_id:d}/logs", query=query)


async def read_log(transport: Transport, place: LogPlace) -> AsyncIterator[bytes]:
    """What there is now, to its end.

    The server may answer in parts. An answer shorter than a piece is the last one, so that a job that prints all the
    time is not read for ever.
    """
    failures = 0
    while True:
        before = place.offset
        try:
            async for piece in _pieces(transport, place, follow=False):
                yield piece
        except _LOST as error:
            failures = 0 if place.offset > before else failures + 1
            await _pause_or_give_up(transport, failures, error)
        else:
            if place.offset - before < _PIECE_BYTES:
                return


async def follow_attempt(transport: Transport, place: LogPlace) -> AsyncIterator[bytes]:
    """The log of `place.attempt` as it grows, until that attempt has ended and all it printed was handed out."""
    assert place.attempt is not None
    failures = 0
    while True:
        # Asked before reading: what an ended attempt printed is all there when it is read afterwards.
        ended = await _has_ended(transport, place.job_id, place.attempt)
        before = place.offset
        try:
            async for piece in _pieces(transport, place, follow=not ended):
                yield piece
            failures = 0
        except _LOST as error:
            failures = 0 if place.offset > before or isinstance(error, TimeoutError) else failures + 1
            await _pause_or_give_up(transport, failures, error)
            continue
        if ended and place.offset == before:
            return
        if not ended and place.offset == before:
            await transport.pause()


_LOST = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError)


async def _pieces(transport: Transport, place: LogPlace, *, follow: bool) -> AsyncIterator[bytes]:
    patience = transport.patience
    total = None if follow else patience.call_timeout_s
    timeout = aiohttp.ClientTimeout(
        total=total, sock_connect=patience.connect_timeout_s, sock_read=patience.silence_s if follow else None
    )
    async with transport.open(place.call(follow=follow), timeout=timeout) as response:
        if response.status != 200:
            raise await error_of(response)
        async for piece in response.content.iter_chunked(_PIECE_BYTES):
            place.offset += len(piece)
            yield piece
        # The server's count holds where it left bytes out (a log over its limit).
        told = response.headers.get(NEXT_OFFSET, "")
        if not follow and told.isascii() and told.isdigit():
            place.offset = max(place.offset, int(told))


async def _has_ended(transport: Transport, job_id: int, attempt: int) -> bool:
    answer = await transport.json(Call("GET", f"/api/v1/jobs/{job_id:d}/attempts"))
    views = [AttemptView.model_validate(item) for item in answer]
    newest = max((view.attempt for view in views), default=0)
    return newest > attempt or any(view.attempt == attempt and view.state.is_final for view in views)


async def _pause_or_give_up(transport: Transport, failures: int, error: BaseException) -> None:
    if failures >= transport.patience.tries:
        raise transport.unreachable(error) from None
    await transport.pause(failures)
