"""The overview of the cluster, once (`GET /overview`) and as a stream of changes (`GET /overview/events`); and the web
page in front of the table: its files, sign-in and sign-out, which need no token.
"""

import contextlib
from typing import Any

from aiohttp import web

from scheduler.live.auth.access_control import UserCaller
from scheduler.live.http.requests import RequestContext, Route
from scheduler.live.server import Server
from scheduler.live.web.event_stream import OverviewStream
from scheduler.live.web.page_files import PageFiles
from scheduler.live.web.sessions import WebSessions
from walras.overview import Overview
from walras.people import WhoAmI

STREAM = web.AppKey("overview_stream", OverviewStream)
_SESSION_PATH = "/web/session"


class WebFace:
    """What the middleware asks before it asks for a token."""

    def __init__(self, server: Server) -> None:
        self.sessions = WebSessions(server)
        self._files = PageFiles()

    async def public_answer(self, request: web.Request) -> web.StreamResponse | None:
        """Returns what anybody may have: a file of the page, the end of a session, the beginning of one for a right
        token. None for everything else, a wrong token included: the middleware refuses it and counts.
        """
        if request.path == _SESSION_PATH:
            if request.method == "DELETE":
                return self.sessions.answer_sign_out()
            if request.method == "GET":
                return web.json_response(_session(self.sessions.caller(request)))
            return await self.sessions.answer_sign_in(request) if request.method == "POST" else None
        return self._files.answer(request)


def _session(caller: UserCaller | None) -> dict[str, Any]:
    """Whether somebody is signed in, and who: one question of the page instead of two."""
    if caller is None:
        return {"signed_in": False}
    who = WhoAmI(user=caller.name, role=caller.role.word, projects=list(caller.projects))
    return {"signed_in": True, "user": who.model_dump()}


def attach_overview(app: web.Application, server: Server) -> None:
    """Give the application its stream of overviews, which ends with it."""
    stream = app[STREAM] = OverviewStream(server)
    server.loop.effect_handlers.append(stream.builder)

    async def close(_: web.Application) -> None:
        await stream.close()

    app.on_shutdown.append(close)
    app.on_response_prepare.append(_forbid_running)


async def _forbid_running(_: web.Request, response: web.StreamResponse) -> None:
    """What is no page is data, of jobs too: a browser that is signed in must not run it, wherever it is opened."""
    response.headers.setdefault("X-Content-Type-Options", "nosniff")
    response.headers.setdefault("Content-Security-Policy", "default-src 'none'; sandbox")


async def show_overview(call: RequestContext) -> Overview:
    """The whole cluster as the caller sees it."""
    return await call.request.app[STREAM].builder.build(call.user.visible_projects)


async def stream_overview(call: RequestContext) -> web.StreamResponse:
    """Server-sent events: the whole overview, then the fields that change."""
    headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    response = web.StreamResponse(headers=headers)
    await response.prepare(call.request)
    sessions = WebSessions(call.server)
    async with contextlib.aclosing(call.request.app[STREAM].messages(call.user.visible_projects)) as messages:
        async for message in messages:
            if sessions.known(call.request) != call.caller:
                break  # signed out elsewhere: its token was revoked, or has expired
            try:
                await response.write(message)
            except ConnectionResetError:
                break  # the page was closed
    return response


def overview_routes() -> list[Route]:
    """For everybody who may look."""
    base = "/api/v1/overview"
    return [
        Route("GET", base, show_overview, "The whole cluster on one page", response=Overview),
        Route("GET", f"{base}/events", stream_overview, "The same, as a stream of what changes",
              response="text/event-stream", waits=True),
    ]  # fmt: skip
