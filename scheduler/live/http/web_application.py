"""The HTTP application: the table of endpoints, the middleware before every handler, and the OpenAPI description.

The middleware authenticates the caller, checks that the endpoint is open to it, bounds the requests under way, and
turns errors into problem+json. The OpenAPI description is generated from the endpoints, so every one is in it.
"""

import asyncio
import json
from collections import OrderedDict
from collections.abc import Mapping
from functools import cache, partial
from typing import Any, get_args, get_origin

from aiohttp import web
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from scheduler.live.auth.access_control import AgentCaller, Caller, JobCaller, JoinCaller, UserCaller, UserRole
from scheduler.live.holder_shares import ShareTaken
from scheduler.live.http import (
    cluster_api,
    content_api,
    job_api,
    people_api,
    pool_api,
    reservation_api,
    session_api,
    submission_api,
    usage_api,
    what_if_api,
)
from scheduler.live.http.cluster_api import WebFace, attach_overview
from scheduler.live.http.connection_guard import WAY_S, ConnectionGuard
from scheduler.live.http.request_bodies import RequestLoad, holder_of, is_reserved_for
from scheduler.live.http.requests import (
    Handler,
    RequestContext,
    check_place,
    problem_detail_of,
    problem_response,
    response_of,
    served_by,
    serves,
    too_many_requests,
    unauthorised,
)
from scheduler.live.http.usage_api import attach_reports
from scheduler.live.server import Server
from walras.connection.body import ProblemDetail
from walras.errors import Forbidden, WalrasError
from walras.resources.endpoint import Endpoint
from walras.resources.overview import OPENAPI

#: Modules whose handlers say which endpoints they serve.
_SERVING = (
    submission_api, job_api, session_api, content_api, cluster_api, pool_api, what_if_api,
    usage_api, reservation_api, people_api,
)  # fmt: skip
_REF = "#/components/schemas/{model}"
#: The words of the OpenAPI description for who is not a user alone.
_AUDIENCES = {"viewer or job": "user or job", "user or agent": "user or agent", "agent": "agent", "join token": "join"}


def api_routes() -> dict[Endpoint, Handler]:
    """Returns every endpoint that the server answers, with its handler."""
    return served_by(*_SERVING) | {OPENAPI: show_openapi}


@serves(OPENAPI)
async def show_openapi(call: RequestContext) -> bytes:
    return json.dumps(openapi_document(call.server.version)).encode()


@cache
def openapi_document(version: str) -> dict[str, Any]:
    """Returns an OpenAPI 3.1 document about all endpoints, itself included."""
    models: list[type[BaseModel]] = [ProblemDetail]
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in api_routes():
        named = (endpoint.body, _item(endpoint.answer) or endpoint.answer)
        models += [model for model in named if _is_model(model) and model not in models]
        paths.setdefault(endpoint.plain_path, {})[endpoint.method.lower()] = _operation(endpoint)
    _, definitions = models_json_schema([(model, "serialization") for model in models], ref_template=_REF)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Walras", "version": version},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": definitions.get("$defs", {}),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _is_model(model: Any) -> bool:
    return isinstance(model, type) and issubclass(model, BaseModel)


def _item(model: Any) -> Any:
    """Returns the element type of `list[Model]`; None for anything else."""
    return get_args(model)[0] if get_origin(model) is list else None


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in endpoint.places
    ] + [{"name": name, "in": "query", "required": False, "schema": {"type": "string"}} for name in endpoint.query]
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "description": endpoint.text,
        "x-walras-audience": _AUDIENCES.get(endpoint.who, "user"),
        "responses": {
            str(endpoint.status): _content(endpoint.answer, "Done"),
            "default": {
                "description": "A problem",
                "content": {"application/problem+json": {"schema": {"$ref": _REF.format(model="ProblemDetail")}}},
            },
        },
    }
    if endpoint.role:
        operation["x-walras-role"] = endpoint.role
    if parameters:
        operation["parameters"] = parameters
    if endpoint.body is not None:
        operation["requestBody"] = {"required": True, **_content(endpoint.body, endpoint.summary)}
    return operation


def _content(model: Any, description: str) -> dict[str, Any]:
    if _is_model(model):
        schema: dict[str, Any] = {"$ref": _REF.format(model=model.__name__)}
        return {"description": description, "content": {"application/json": {"schema": schema}}}
    if (item := _item(model)) is not None:
        items = {"type": "array", "items": {"$ref": _REF.format(model=item.__name__)}}
        return {"description": description, "content": {"application/json": {"schema": items}}}
    if isinstance(model, str):
        return {"description": description, "content": {model: {"schema": {"type": "string"}}}}
    return {"description": description}


class BadTokenLimit:
    """Limits how many wrong tokens one address may try: a token bucket for each of a bounded number of addresses."""

    def __init__(self, burst: int = 30, per_s: float = 0.5, addresses: int = 4096) -> None:
        self._burst = float(burst)
        self._per_s = per_s
        self._addresses = addresses
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def failed(self, address: str, now: float) -> bool:
        """Count a failure. Returns False where this address has failed too often lately."""
        left, since = self._buckets.pop(address, (self._burst, now))
        left = min(self._burst, left + (now - since) * self._per_s) - 1.0
        self._buckets[address] = (max(left, -1.0), now)
        while len(self._buckets) > self._addresses:
            self._buckets.popitem(last=False)
        return left >= 0.0


class AuthMiddleware:
    """aiohttp middleware: authenticates the caller, finds the route in the table, and calls its handler."""

    def __init__(
        self,
        server: Server,
        served: Mapping[tuple[str, str], tuple[Endpoint, Handler]],
        concurrency: int,
        guard: ConnectionGuard | None = None,
    ) -> None:
        self._server = server
        self._guard = guard or ConnectionGuard()
        #: Endpoints with their handlers by (method, canonical path of aiohttp's resource).
        self._served = served
        self._load = RequestLoad(concurrency)
        server.shares_of_requests = (self._guard.shares, self._load.worked_on, self._load.coming)
        self._failures = BadTokenLimit()
        self._face = WebFace(server)

    @web.middleware
    async def __call__(self, request: web.Request, handler: Any) -> web.StreamResponse:
        caller = self._face.sessions.known(request)
        transport = request.transport
        holder = None if caller is None else holder_of(caller, request.remote or "")
        try:
            is_reserved = caller is not None and is_reserved_for(caller)
            if self._guard.request_begins(transport, holder, is_reserved=is_reserved) and holder is not None:
                await asyncio.sleep(WAY_S)
                self._guard.make_way(transport, holder, is_reserved=is_reserved)
            if (public := await self._face.public_answer(request)) is not None:
                return public
            return self._refuse_stranger(request) if caller is None else await self._answer(request, caller)
        except ShareTaken as error:
            refusal = too_many_requests(str(error), fix=error.fix)
            refusal.force_close()
            return refusal
        finally:
            self._guard.request_ends(transport)

    def _refuse_stranger(self, request: web.Request) -> web.StreamResponse:
        """Returns a refusal that is the same for every path, so that callers without a token do not learn which paths
        exist.

        The connection is closed after it.
        """
        if self._failures.failed(request.remote or "", self._server.clocks.monotonic()):
            refusal = unauthorised("no token, or one that is not valid (any more)")
        else:
            refusal = too_many_requests("too many requests with a wrong token", retry_s=10)
        refusal.force_close()
        return refusal

    async def _answer(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        resource = request.match_info.route.resource
        served = self._served.get((request.method, resource.canonical if resource is not None else ""))
        if served is None:
            error = request.match_info.http_exception
            status = error.status if error is not None else 404
            title = "Method not allowed" if status == 405 else "Not found"
            detail = f"{request.method} {request.path}"
            return problem_response(ProblemDetail(title=title, status=status, code="no_such_endpoint", detail=detail))
        endpoint, handler = served
        if endpoint.waits:
            return await _handled(RequestContext(request, self._server, caller, endpoint), handler)
        holder, is_reserved = holder_of(caller, request.remote or ""), is_reserved_for(caller)
        receiving = partial(self._load.receiving, holder, is_reserved=is_reserved)
        try:
            with self._load.working(holder, is_reserved=is_reserved):
                return await _handled(RequestContext(request, self._server, caller, endpoint, receiving), handler)
        except ShareTaken as error:
            return too_many_requests(str(error), fix=error.fix)


async def _handled(call: RequestContext, handler: Handler) -> web.StreamResponse:
    try:
        check_caller(call.endpoint, call.caller, call.request)
        check_place(call.request)
        return response_of(call.endpoint, await handler(call))
    except WalrasError as error:
        return problem_response(problem_detail_of(error))


def check_caller(endpoint: Endpoint, caller: Caller, request: web.Request) -> None:
    """Raise Forbidden unless the endpoint accepts this kind of caller, with the user's role or the job's number."""
    who = endpoint.who
    match caller:
        case UserCaller():
            allowed = bool(endpoint.role)
            if allowed and caller.role < UserRole[endpoint.role.upper()]:
                raise Forbidden(f"this needs the role {endpoint.role}; your token is {caller.role.word}")
        case JobCaller():
            allowed = who == "viewer or job" and request.match_info.get("job_id") == str(caller.job_id)
        case AgentCaller():
            allowed = who in ("agent", "user or agent")
        case JoinCaller():
            allowed = who == "join token"
    if not allowed:
        raise Forbidden("this kind of token does not open this endpoint")


def make_app(server: Server, guard: ConnectionGuard | None = None) -> web.Application:
    """Returns the application, whose middleware tells the guard which connections are authenticated."""
    by_place: dict[tuple[str, str], tuple[Endpoint, Handler]] = {}
    gate = AuthMiddleware(server, by_place, server.loop.settings.concurrency, guard)
    # Handlers bound their bodies themselves.
    app = web.Application(middlewares=[gate.__call__], client_max_size=0)
    attach_overview(app, server)
    attach_reports(app)
    for endpoint, handler in api_routes().items():
        resource = app.router.add_route(endpoint.method, endpoint.path, _never_called).resource
        assert resource is not None
        by_place[endpoint.method, resource.canonical] = endpoint, handler
    return app


async def _never_called(request: web.Request) -> web.StreamResponse:
    """Never runs: the middleware answers every request itself."""
    raise web.HTTPNotFound
