"""Logs over HTTP: bytes in from agents, bytes out to people, as they were written."""

import asyncio

from aiohttp import web

from scheduler.live.access.auth import AgentCaller
from scheduler.live.http.jobs import visible_row
from scheduler.live.http.routing import BODY_BYTES, Call
from walras.errors import Forbidden, NotFound
from walras.ids import JobId
from walras.wire import LogAccepted

#: Bytes of one answer, or of one piece of a followed log.
_PIECE_BYTES = 1024 * 1024
_LOOK_S = 0.25
_MOST = 2**53
#: Agents ship the last bytes a moment after an attempt has ended: wait for this many empty looks.
_TRAILING_LOOKS = 8
NEXT_OFFSET = "X-Walras-Next-Offset"


async def take(call: Call) -> LogAccepted:
    """An agent's chunk: of an attempt that is, or was, on its machine."""
    assert isinstance(call.caller, AgentCaller)
    job_id = JobId(call.number("job_id", 0, 1, _MOST))
    attempt, rank = call.number("attempt", 0, 1, _MOST), call.number("rank", 0, 0, 1_000_000)
    offset = call.number("offset", 0, 0, _MOST)
    live = call.server.board.attempt(job_id, attempt)
    here = call.caller.node_id
    known = live is not None and here in live.parts
    if not known and not await call.server.read(call.server.store.attempt_was_on, job_id, attempt, here):
        raise Forbidden(f"attempt {attempt} of job {job_id} was never on {here}")
    data = await call.body(BODY_BYTES)
    taken = await call.server.read(call.server.logs.append, job_id, attempt, rank, offset, data)
    return LogAccepted(next=taken.next_offset, full=taken.full)


async def show(call: Call) -> web.StreamResponse:
    """The log of one rank from an offset on; with `follow`, until the attempt has ended."""
    row = await visible_row(call)
    attempt = call.number("attempt", row.attempts, 0, _MOST)
    rank = call.number("rank", 0, 0, 1_000_000)
    offset = call.number("offset", 0, 0, _MOST)
    if attempt > row.attempts:
        raise NotFound(f"job {row.job_id} has had {row.attempts} attempts", field="attempt")
    if call.flag("follow"):
        return await _follow(call, attempt, rank, offset)
    data = await call.server.read(call.server.logs.read, row.job_id, attempt, rank, offset, _PIECE_BYTES)
    return web.Response(body=data, headers=_headers(offset + len(data)))


async def _follow(call: Call, attempt: int, rank: int, offset: int) -> web.StreamResponse:
    response = web.StreamResponse(headers=_headers(offset))
    await response.prepare(call.request)
    settled_looks = 0
    while settled_looks < _TRAILING_LOOKS:
        # Asked before reading: what is written until the end of the attempt is read after it.
        over = await _is_over(call, attempt)
        data = await call.server.read(call.server.logs.read, call.job_id, attempt, rank, offset, _PIECE_BYTES)
        if data:
            offset += len(data)
            await response.write(data)
            settled_looks = 0
            continue
        settled_looks += over
        await asyncio.sleep(_LOOK_S)
    await response.write_eof()
    return response


async def _is_over(call: Call, attempt: int) -> bool:
    """No more is to be expected: the attempt has ended, or the job has without one."""
    live = call.server.board.jobs.get(call.job_id)
    if live is None:
        return True
    return 0 < attempt < live.row.attempts or (attempt == live.row.attempts > 0 and live.attempt is None)


def _headers(next_offset: int) -> dict[str, str]:
    # The bytes are a stranger's: shown as text, never run by a browser.
    return {
        "Content-Type": "text/plain",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
        NEXT_OFFSET: str(next_offset),
    }
