"""The HTTP application: the route table, the middleware before every handler, and the OpenAPI description.

The middleware authenticates the caller, checks that the route is open to it, bounds the requests under way, and turns
errors into problem+json. The OpenAPI description is generated from the route table, so every endpoint is in it.
"""

import json
import logging
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, get_args, get_origin

from aiohttp import web
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from scheduler.live.auth.access_control import AgentCaller, Caller, JobCaller, JoinCaller, UserCaller, UserRole
from scheduler.live.http import (
    cluster_api,
    content_api,
    job_api,
    people_api,
    pool_api,
    session_api,
)
from scheduler.live.http.audit_trail import list_audit
from scheduler.live.http.connection_guard import ConnectionGuard
from scheduler.live.http.job_api import redirect_routes
from scheduler.live.http.overview_api import WebFace, attach_overview, overview_routes
from scheduler.live.http.people_api import notify_routes
from scheduler.live.http.policy_api import policy_routes
from scheduler.live.http.request_load import RequestLoad, holder_of
from scheduler.live.http.requests import (
    Audience,
    RequestContext,
    Route,
    check_place,
    problem_detail_of,
    problem_response,
    too_many_requests,
    unauthorised,
)
from scheduler.live.http.reservation_api import reservation_routes
from scheduler.live.http.submission_api import JobBatch, dry_run_endpoint, submit_batch, submit_job
from scheduler.live.http.usage_api import budget_routes, history_routes, report_routes, usage_routes
from scheduler.live.http.what_if_api import what_if_routes
from scheduler.live.server import Server
from walras.api import (
    AttemptView,
    BatchResult,
    CancelResults,
    DryRun,
    Explanation,
    FactsView,
    Health,
    JobDetail,
    JobPage,
    LogAccepted,
    MoneyReport,
    NodeView,
    PriceList,
    ProblemDetail,
    SubmitResult,
)
from walras.errors import Forbidden, WalrasError
from walras.people import AuditView, ShareView, WhoAmI
from walras.spec.job_spec import JobSpec
from walras.wire import Heartbeat, HeartbeatAnswer, Register, Registered

_REF = "#/components/schemas/{model}"


def openapi_document(routes: Sequence[Route], version: str) -> dict[str, Any]:
    """Returns an OpenAPI 3.1 document about these routes."""
    models: list[type[BaseModel]] = [ProblemDetail]
    for route in routes:
        named = (route.request, _item(route.response) or route.response)
        models += [model for model in named if _is_model(model) and model not in models]
    _, definitions = models_json_schema([(model, "serialization") for model in models], ref_template=_REF)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(plain_path(route.path), {})[route.method.lower()] = _operation(route)
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


def plain_path(path: str) -> str:
    """Returns the path without patterns: `/jobs/{job_id:[0-9]+}` becomes `/jobs/{job_id}`."""
    return re.sub(r"\{(\w+):[^{}]*\}", r"{\1}", path)


def _is_model(model: Any) -> bool:
    return isinstance(model, type) and issubclass(model, BaseModel)


def _item(model: Any) -> Any:
    """Returns the element type of `list[Model]`; None for anything else."""
    return get_args(model)[0] if get_origin(model) is list else None


def _operation(route: Route) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"\{(\w+)", plain_path(route.path))
    ] + [{"name": name, "in": "query", "required": False, "schema": {"type": "string"}} for name in route.query]
    operation: dict[str, Any] = {
        "summary": route.summary,
        "x-walras-audience": route.audience.value,
        "responses": {
            str(route.status): _content(route.response, "Done"),
            "default": {
                "description": "A problem",
                "content": {"application/problem+json": {"schema": {"$ref": _REF.format(model="ProblemDetail")}}},
            },
        },
    }
    if route.audience in (Audience.USER, Audience.USER_OR_JOB, Audience.USER_OR_AGENT):
        operation["x-walras-role"] = route.role.word
    if parameters:
        operation["parameters"] = parameters
    if route.request is not None:
        operation["requestBody"] = {"required": True, **_content(route.request, "")}
        if not operation["requestBody"].pop("description"):
            operation["requestBody"]["description"] = route.summary
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


log = logging.getLogger(__name__)


class AuthMiddleware:
    """aiohttp middleware: authenticates the caller, finds the route in the table, and calls its handler."""

    def __init__(
        self, server: Server, routes: Mapping[Any, Route], concurrency: int, guard: ConnectionGuard | None = None
    ) -> None:
        self._server = server
        self._guard = guard or ConnectionGuard()
        #: Routes by (method, canonical path of aiohttp's resource).
        self._routes = routes
        self._load = RequestLoad(concurrency)
        self._failures = BadTokenLimit()
        self._face = WebFace(server)

    @web.middleware
    async def __call__(self, request: web.Request, handler: Any) -> web.StreamResponse:
        caller = self._face.sessions.known(request)
        transport = request.transport
        self._guard.request_begins(transport, is_known=caller is not None)
        try:
            if (public := await self._face.public_answer(request)) is not None:
                return public
            return self._refuse_stranger(request) if caller is None else await self._answer(request, caller)
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
        route = self._routes.get((request.method, resource.canonical if resource is not None else ""))
        if route is None:
            error = request.match_info.http_exception
            status = error.status if error is not None else 404
            title = "Method not allowed" if status == 405 else "Not found"
            detail = f"{request.method} {request.path}"
            return problem_response(ProblemDetail(title=title, status=status, code="no_such_endpoint", detail=detail))
        return await self._guarded(request, route, caller)

    async def _guarded(self, request: web.Request, route: Route, caller: Caller) -> web.StreamResponse:
        if route.waits:
            return await self._handled(RequestContext(request, self._server, caller), route)
        if self._load.is_full:
            return too_many_requests("the server is busy")
        receiving = partial(self._load.receiving, holder_of(caller, request.remote or ""))
        with self._load.working():
            return await self._handled(RequestContext(request, self._server, caller, receiving), route)

    async def _handled(self, call: RequestContext, route: Route) -> web.StreamResponse:
        try:
            check_audience(route, call.caller, call.request)
            check_place(call.request)
            result = await route.handler(call)
        except WalrasError as error:
            return problem_response(problem_detail_of(error))
        if isinstance(result, BaseModel):
            return web.Response(
                status=route.status, body=result.model_dump_json().encode(), content_type="application/json"
            )
        return result


def check_audience(route: Route, caller: Caller, request: web.Request) -> None:
    """Raise Forbidden unless the route accepts this kind of caller, with the user's role or the job's number."""
    match caller:
        case UserCaller():
            allowed = route.audience not in (Audience.AGENT, Audience.JOIN)
            if allowed and caller.role < route.role:
                raise Forbidden(f"this needs the role {route.role.word}; your token is {caller.role.word}")
        case JobCaller():
            own = request.match_info.get("job_id") == str(caller.job_id)
            allowed = route.audience is Audience.USER_OR_JOB and own
        case AgentCaller():
            allowed = route.audience in (Audience.AGENT, Audience.USER_OR_AGENT)
        case JoinCaller():
            allowed = route.audience is Audience.JOIN
    if not allowed:
        raise Forbidden("this kind of token does not open this endpoint")


_API = "/api/v1"
_JOB = _API + "/jobs/{job_id:[0-9]+}"
_NODE = _API + "/nodes/{node_id}"
_OWN = Audience.USER_OR_JOB
_PAGE_QUERY = ("state", "user", "project", "name", "active", "sweep", "sweeps", "sort", "limit", "cursor")
_UPLOAD_QUERY = ("job_id", "attempt", "rank", "offset", "cluster_id", "incarnation", "granted_by")


def api_routes() -> list[Route]:
    """Returns the route table: every endpoint that the server answers."""
    user, admin, anybody = UserRole.USER, UserRole.ADMIN, Audience.ANYBODY
    table = [
        Route("POST", f"{_API}/jobs", submit_job, "Submit a job", role=user, request=JobSpec, response=SubmitResult,
              status=201),
        Route("POST", f"{_API}/jobs:batch", submit_batch, "Submit up to 1000 jobs", role=user,
              request=JobBatch, response=BatchResult),
        Route("POST", f"{_API}/jobs:dryrun", dry_run_endpoint, "What would happen to a job", role=user,
              request=JobSpec, response=DryRun),
        Route("GET", f"{_API}/jobs", job_api.list_jobs, "Jobs, newest first", response=JobPage, query=_PAGE_QUERY),
        Route("GET", _JOB, job_api.show_job, "One job", _OWN, response=JobDetail),
        Route("PATCH", _JOB, job_api.change_job, "Change a job's priority or budget", role=user,
              request=job_api.Patch, response=JobDetail),
        Route("POST", f"{_JOB}/cancel", job_api.cancel_job, "Cancel a job", role=user, response=JobDetail),
        Route("POST", f"{_API}/jobs:cancel", job_api.cancel_jobs, "Cancel up to 1000 jobs", role=user,
              request=job_api.JobsCancelled, response=CancelResults),
        Route("POST", f"{_JOB}/hold", job_api.hold_job_endpoint, "Hold a job", role=user, response=JobDetail),
        Route("POST", f"{_JOB}/release", job_api.release_job_endpoint, "Release a held job", role=user,
              response=JobDetail),
        Route("GET", f"{_JOB}/attempts", job_api.list_attempts, "Attempts of a job", _OWN, response=list[AttemptView]),
        Route("GET", f"{_JOB}/explain", job_api.explain_job, "Why a job is where it is", response=Explanation),
        *job_api.log_routes(_JOB),
        *redirect_routes(_JOB),
        Route("GET", f"{_API}/nodes", cluster_api.list_nodes, "Machines", response=list[NodeView]),
        Route("POST", f"{_NODE}/drain", cluster_api.drain_node, "Empty it without losing work, or now", role=admin,
              request=cluster_api.Drain, response=NodeView),
        Route("POST", f"{_NODE}/resume", cluster_api.resume_node, "Take jobs again", role=admin, response=NodeView),
        Route("DELETE", _NODE, cluster_api.forget_node, "Forget a machine that will not come back", role=admin,
              response=NodeView),
        Route("POST", f"{_API}/pools:revoke", cluster_api.revoke_pool, "Take a pool's rented machines away, for drills",
              role=admin, request=cluster_api.Revocation, response=cluster_api.Revoked),
        *pool_api.pool_routes(),
        Route("GET", f"{_API}/prices", cluster_api.show_prices, "Prices of the pools", response=PriceList,
              query=("whole",)),
        Route("GET", f"{_API}/money", cluster_api.show_spending, "What was spent", response=MoneyReport,
              query=("by", "month", "project", "limit")),
        Route("POST", f"{_API}/facts", job_api.state_kind_facts, "State facts of a kind of jobs", role=user,
              request=job_api.KindStated, response=FactsView),
        Route("GET", f"{_API}/facts", job_api.list_kind_facts, "What is known of kinds of jobs",
              response=list[FactsView], query=("kind",)),
        *policy_routes(), *reservation_routes(), *budget_routes(),
        *people_api.people_routes(), *notify_routes(),
        Route("GET", f"{_API}/share", cluster_api.list_shares, "Shares: entitled, held, used lately, borrowed",
              response=list[ShareView], query=("project",)),
        Route("GET", f"{_API}/whoami", cluster_api.show_caller, "Whose token this is", response=WhoAmI),
        Route("GET", f"{_API}/audit", list_audit, "Who changed what", role=UserRole.OPERATOR,
              response=list[AuditView], query=("user", "since", "limit")),
        Route("GET", f"{_API}/healthz", cluster_api.show_health, "The loop turns and the database writes", anybody,
              response=Health, waits=True),
        Route("GET", f"{_API}/readyz", cluster_api.show_readiness, "The server takes requests", anybody,
              response=Health),
        Route("POST", "/agent/v1/register", cluster_api.register_agent, "Admit a machine", Audience.JOIN,
              request=Register, response=Registered),
        Route("POST", "/agent/v1/heartbeat", cluster_api.agent_heartbeat, "Reports up, commands and leases down",
              Audience.AGENT, request=Heartbeat, response=HeartbeatAnswer, waits=True),
        Route("POST", "/agent/v1/logs", job_api.receive_log, "Bytes that a rank wrote", Audience.AGENT,
              response=LogAccepted, query=_UPLOAD_QUERY),
        *content_api.content_routes(), *content_api.outputs_routes(), *session_api.session_routes(),
        *overview_routes(), *what_if_routes(), *usage_routes(), *history_routes(), *report_routes(),
    ]  # fmt: skip
    metrics = Route("GET", "/metrics", cluster_api.show_metrics, "Figures in the format of Prometheus",
                    response="text/plain")  # fmt: skip
    # Health probes of other systems ask for `/healthz` and the like at the root.
    probes = [replace(each, path=each.path.removeprefix(_API)) for each in table if each.path.endswith("z")]
    table += [*probes, metrics]
    return [*table, _openapi_route(table)]


def _openapi_route(table: Sequence[Route]) -> Route:
    """Returns the route of the OpenAPI description, which describes itself too."""
    described: dict[str, Any] = {}

    async def openapi(call: RequestContext) -> web.StreamResponse:
        if not described:
            described.update(openapi_document([*table, route], call.server.version))
        return web.Response(body=json.dumps(described).encode(), content_type="application/json")

    route = Route("GET", f"{_API}/openapi.json", openapi, "This description", Audience.ANYBODY)
    return route


def make_app(server: Server, guard: ConnectionGuard | None = None) -> web.Application:
    """Returns the application, whose middleware tells the guard which connections are authenticated."""
    table = api_routes()
    by_place: dict[tuple[str, str], Route] = {}
    gate = AuthMiddleware(server, by_place, server.loop.settings.concurrency, guard)
    # Handlers bound their bodies themselves.
    app = web.Application(middlewares=[gate.__call__], client_max_size=0)
    attach_overview(app, server)
    for route in table:
        added = app.router.add_route(route.method, route.path, _never_called)
        resource = added.resource
        assert resource is not None
        by_place[route.method, resource.canonical] = route
    return app


async def _never_called(request: web.Request) -> web.StreamResponse:
    """Never runs: the middleware answers every request itself."""
    raise web.HTTPNotFound
