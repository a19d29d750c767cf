"""Endpoints for sessions with running jobs: the caller opens one websocket, and the job's machine the other.

A session is open to a job's owner and to operators of its project, and ends when they are not any more. Each has an
audit row before it begins.
"""

import asyncio
import contextlib
import json

from aiohttp import web
from pydantic import ValidationError

from scheduler.live.auth.access_control import AgentCaller, Caller, UserCaller
from scheduler.live.http.job_api import visible_job_row
from scheduler.live.http.requests import RequestContext, serves
from scheduler.live.loop.transaction import Transaction
from scheduler.live.services.session_broker import OpenSession
from scheduler.live.store.table_rows import JobRow
from walras.cluster import NodeId
from walras.connection.remote_session import CONNECT_S, MESSAGE_BYTES, PING_S, SessionAsked, relay, send_note
from walras.errors import Conflict, Forbidden, UserError
from walras.resources.fleet import JOIN_SESSION
from walras.resources.jobs import SESSION

#: Seconds between two looks at whether the caller of an open session may still have it.
_ASK_AGAIN_S = 1.0


def _asked(call: RequestContext) -> SessionAsked:
    """Returns the session that the query asks for. Raises UserError naming the field."""
    query = call.request.query
    given = {name: query[name] for name in SessionAsked.model_fields if name in query and name != "argv"}
    try:
        asked = SessionAsked.model_validate({**given, "argv": json.loads(query.get("argv", "[]"))})
    except ValidationError as error:
        field = str(error.errors()[0]["loc"][0])
        raise UserError(f"{field}: {error.errors()[0]['msg']}", field=field) from None
    except (ValueError, RecursionError):
        raise UserError("argv is no JSON list", field="argv") from None
    if (asked.kind == "exec" and not asked.argv) or (asked.kind == "forward" and not asked.port):
        raise UserError("say what to run (argv), or which port to reach (port)", field="kind")
    return asked


@serves(SESSION)
async def open_session(call: RequestContext) -> web.StreamResponse:
    """Serves the caller's websocket until the session ends. Raises NotFound, Forbidden, UserError, and Conflict for a
    job that does not run.
    """
    row, asked = await visible_job_row(call), _asked(call)
    if not _may_enter(call.caller, row):
        raise Forbidden(f"job {row.job_id} belongs to {row.user}")
    live = call.server.state.jobs.get(row.job_id)
    attempt = None if live is None else live.attempt
    if attempt is None:
        raise Conflict(f"job {row.job_id} does not run", fix="see `walras explain`")
    parts = {part.node_rank: node_id for node_id, part in attempt.parts.items() if part.started and not part.ended}
    node_id = parts.get(asked.node_rank)
    if node_id is None:
        raise Conflict(f"machine {asked.node_rank} of job {row.job_id} runs none of it now", field="node_rank")
    if not web.WebSocketResponse().can_prepare(call.request).ok:
        raise UserError("this endpoint is a websocket", fix="use `walras exec` or `walras exec --forward`")
    gateway = call.server.gateway
    gateway.sessions.check(row.job_id, call.user.name)  # a refused one is not written
    told = asked.model_dump(mode="json", exclude_defaults=True)

    def step(transaction: Transaction) -> None:
        call.note_write(transaction, f"session with job {row.job_id}", after=told, project=row.project)

    await call.server.loop.perform(step)
    session = gateway.sessions.ask(node_id, attempt.row, asked, call.user.name)
    try:
        gateway.wake(node_id)
        return await _serve_caller(call, session, row)
    finally:
        gateway.sessions.end(session)


def _may_enter(caller: Caller | None, row: JobRow) -> bool:
    return isinstance(caller, UserCaller) and caller.may_change(row.user, row.project)


async def _serve_caller(call: RequestContext, session: OpenSession, row: JobRow) -> web.WebSocketResponse:
    socket = web.WebSocketResponse(max_msg_size=MESSAGE_BYTES, heartbeat=PING_S, compress=False)
    await socket.prepare(call.request)
    try:
        machine = await asyncio.wait_for(asyncio.shield(session.machine), CONNECT_S)
    except TimeoutError:
        detail = f"{session.node_id} did not answer within {CONNECT_S:.0f} s; an agent of an older release cannot"
        await send_note(socket, type="refused", detail=detail)
        await socket.close()
        return socket
    passing = asyncio.create_task(relay(socket, machine))
    try:
        while _may_enter(call.caller_now(), row) and not passing.done():
            await asyncio.wait([passing], timeout=_ASK_AGAIN_S)
        if not passing.done():
            # Bounded: a caller that does not read cannot keep its session.
            with contextlib.suppress(TimeoutError, OSError):
                async with asyncio.timeout(_ASK_AGAIN_S):
                    detail = f"the session is ended: you may not enter job {row.job_id} any more"
                    await send_note(socket, type="refused", detail=detail)
    finally:
        passing.cancel()
        await asyncio.gather(passing, return_exceptions=True)
    return socket


@serves(JOIN_SESSION)
async def join_session(call: RequestContext) -> web.StreamResponse:
    """Serves the machine's websocket of a session that it was told of. Raises NotFound for any other session."""
    assert isinstance(call.caller, AgentCaller)
    node_id = NodeId(call.caller.node_id)
    socket = web.WebSocketResponse(max_msg_size=MESSAGE_BYTES, heartbeat=PING_S, compress=False)
    if not socket.can_prepare(call.request).ok:
        raise UserError("this endpoint is a websocket")
    broker, session_id = call.server.gateway.sessions, call.request.match_info["session_id"]
    session = broker.waiting(node_id, session_id)
    await socket.prepare(call.request)
    if not session.machine.done():
        session.machine.set_result(socket)
        await session.over.wait()
    return socket
