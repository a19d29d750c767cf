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
from scheduler.live.web.page import PageFiles, WebSessions
from walras.overview import Overview
from walras.people import WhoAmI

STREAM = web.AppKey("overview_stream", OverviewStream)
_SESSION_PATH = "/web/session"


class WebFace:
    """Answers the requests that need no token: files of the page, sign-in and sign-out."""

    def __init__(self, server: Server) -> None:
        self.sessions = WebSessions(server)
        self._files = PageFiles()

    async def public_answer(self, request: web.Request) -> web.StreamResponse | None:
        """Returns the answer to a request that needs no token: a file of the page, a sign-out, a sign-in with a valid
        token.

        Returns None for everything else, a sign-in with a wrong token included: the middleware refuses and counts it.
        """
        if request.path == _SESSION_PATH:
            if request.method == "DELETE":
                return self.sessions.answer_sign_out()
            if request.method == "GET":
                return web.json_response(_session(self.sessions.caller(request)))
            return await self.sessions.answer_sign_in(request) if request.method == "POST" else None
        return self._files.answer(request)


def _session(caller: UserCaller | None) -> dict[str, Any]:
    """Returns whether somebody is signed in, and who; both in one answer spare the page a second request."""
    if caller is None:
        return {"signed_in": False}
    who = WhoAmI(user=caller.name, role=caller.role.word, projects=list(caller.projects))
    return {"signed_in": True, "user": who.model_dump()}


def attach_overview(app: web.Application, server: Server) -> None:
    """Add the stream of overviews to the application, and close it when the application stops."""
    stream = app[STREAM] = OverviewStream(server)
    server.loop.effect_handlers.append(stream.builder)

    async def close(_: web.Application) -> None:
        await stream.close()

    app.on_shutdown.append(close)
    app.on_response_prepare.append(_forbid_running)


async def _forbid_running(_: web.Request, response: web.StreamResponse) -> None:
    """Forbid scripts in answers beside the page: data may come from jobs, and a signed-in browser must not run it."""
    response.headers.setdefault("X-Content-Type-Options", "nosniff")
    response.headers.setdefault("Content-Security-Policy", "default-src 'none'; sandbox")


async def show_overview(call: RequestContext) -> Overview:
    """Returns the overview of the cluster as the caller may see it."""
    return await call.request.app[STREAM].builder.build(call.user.visible_projects)


async def stream_overview(call: RequestContext) -> web.StreamResponse:
    """Streams server-sent events: first the whole overview, then the fields that change."""
    headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    response = web.StreamResponse(headers=headers)
    await response.prepare(call.request)
    async with contextlib.aclosing(call.request.app[STREAM].messages(call.user.visible_projects)) as messages:
        async for message in messages:
            if call.caller_now() != call.caller:
                break  # the token was revoked, has expired, or the page was signed out
            try:
                await response.write(message)
            except ConnectionResetError:
                break  # the page was closed
    return response


def overview_routes() -> list[Route]:
    """Returns the routes of the overview, for every user."""
    base = "/api/v1/overview"
    return [
        Route("GET", base, show_overview, "The whole cluster on one page", response=Overview),
        Route("GET", f"{base}/events", stream_overview, "The same, as a stream of what changes",
              response="text/event-stream", waits=True),
    ]  # fmt: skip
