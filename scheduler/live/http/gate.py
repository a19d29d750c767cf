"""The gate before every handler: who is it, may they, is there room. Errors become problems here."""

import logging
import time
from collections.abc import Mapping
from typing import Any

from aiohttp import web
from pydantic import BaseModel

from scheduler.live.access.auth import AgentCaller, Caller, FailureLimit, JobCaller, JoinCaller, UserCaller
from scheduler.live.http.problems import answer, problem_of, too_many, unauthorised
from scheduler.live.http.routing import Audience, Call, Route
from scheduler.live.server import Server
from walras.api import ProblemDetail
from walras.errors import Forbidden, WalrasError

log = logging.getLogger(__name__)


class Gate:
    """aiohttp middleware over the route table."""

    def __init__(self, server: Server, routes: Mapping[Any, Route], concurrency: int) -> None:
        self._server = server
        #: By (method, aiohttp resource's canonical path).
        self._routes = routes
        self._concurrency = concurrency
        self._under_way = 0
        self._failures = FailureLimit()

    @web.middleware
    async def __call__(self, request: web.Request, handler: Any) -> web.StreamResponse:
        caller = self._server.identify(_bearer(request))
        if caller is None:
            # Nobody learns without a token which paths exist.
            if not self._failures.failed(request.remote or "", time.monotonic()):
                return too_many("too many requests with a wrong token", retry_s=10)
            return unauthorised("no token, or one that is not valid (any more)")
        resource = request.match_info.route.resource
        route = self._routes.get((request.method, resource.canonical if resource is not None else ""))
        if route is None:
            error = request.match_info.http_exception
            status = error.status if error is not None else 404
            title = "Method not allowed" if status == 405 else "Not found"
            detail = f"{request.method} {request.path}"
            return answer(ProblemDetail(title=title, status=status, code="no_such_endpoint", detail=detail))
        return await self._guarded(request, route, caller)

    async def _guarded(self, request: web.Request, route: Route, caller: Caller) -> web.StreamResponse:
        counted = not route.waits
        if counted and self._under_way >= self._concurrency:
            return too_many("the server is busy")
        self._under_way += counted
        try:
            check_allowed(route, caller, request)
            result = await route.handler(Call(request, self._server, caller))
        except WalrasError as error:
            return answer(problem_of(error))
        finally:
            self._under_way -= counted
        if isinstance(result, BaseModel):
            return web.Response(
                status=route.status, body=result.model_dump_json().encode(), content_type="application/json"
            )
        return result


def check_allowed(route: Route, caller: Caller, request: web.Request) -> None:
    """Raise Forbidden unless the route is open to the caller."""
    match caller:
        case UserCaller():
            allowed = route.audience in (Audience.USER, Audience.USER_OR_JOB, Audience.ANYBODY)
            if allowed and caller.role < route.role:
                raise Forbidden(f"this needs the role {route.role.word}; your token is {caller.role.word}")
        case JobCaller():
            own = request.match_info.get("job_id") == str(caller.job_id)
            allowed = route.audience is Audience.USER_OR_JOB and own
        case AgentCaller():
            allowed = route.audience is Audience.AGENT
        case JoinCaller():
            allowed = route.audience is Audience.JOIN
    if not allowed:
        raise Forbidden("this kind of token does not open this endpoint")


def _bearer(request: web.Request) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
