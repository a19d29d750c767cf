"""The route table, and the aiohttp application made of it."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from aiohttp import web

from scheduler.live.access.auth import Role
from scheduler.live.http import agents, fleet, jobs, kinds, logs, money, people
from scheduler.live.http.gate import Gate
from scheduler.live.http.openapi import describe
from scheduler.live.http.routing import Audience, Call, Route
from scheduler.live.server import Server
from walras.api import (
    AttemptView,
    BatchResult,
    DryRun,
    Explanation,
    FactsView,
    Health,
    JobDetail,
    JobPage,
    MoneyReport,
    NodeView,
    PolicyView,
    PriceList,
    SubmitResult,
    TokenCreated,
)
from walras.job import JobSpec
from walras.wire import Heartbeat, HeartbeatAnswer, LogAccepted, Register, Registered

_API = "/api/v1"
_JOB = _API + "/jobs/{job_id:[0-9]+}"
_NODE = _API + "/nodes/{node_id}"
_OWN = Audience.USER_OR_JOB
_PAGE_QUERY = ("state", "user", "project", "active", "limit", "cursor")
_LOG_QUERY = ("attempt", "rank", "offset", "follow")


def routes() -> list[Route]:
    """Everything the server answers to."""
    user, admin, anybody = Role.USER, Role.ADMIN, Audience.ANYBODY
    table = [
        Route("POST", f"{_API}/jobs", jobs.submit, "Submit a job", role=user, request=JobSpec, response=SubmitResult,
              status=201),
        Route("POST", f"{_API}/jobs:batch", jobs.submit_batch, "Submit up to 1000 jobs", role=user,
              request=jobs.Batch, response=BatchResult),
        Route("POST", f"{_API}/jobs:dryrun", fleet.dry_run_job, "What would happen to a job", role=user,
              request=JobSpec, response=DryRun),
        Route("GET", f"{_API}/jobs", jobs.page, "Jobs, newest first", response=JobPage, query=_PAGE_QUERY),
        Route("GET", _JOB, jobs.detail, "One job", _OWN, response=JobDetail),
        Route("PATCH", _JOB, jobs.change, "Change a job's priority or budget", role=user, request=jobs.Patch,
              response=JobDetail),
        Route("POST", f"{_JOB}/cancel", jobs.cancel, "Cancel a job", role=user, response=JobDetail),
        Route("POST", f"{_JOB}/hold", jobs.hold, "Hold a job", role=user, response=JobDetail),
        Route("POST", f"{_JOB}/release", jobs.release, "Release a held job", role=user, response=JobDetail),
        Route("GET", f"{_JOB}/attempts", jobs.attempts, "Attempts of a job", _OWN, response=list[AttemptView]),
        Route("GET", f"{_JOB}/explain", jobs.explanation, "Why a job is where it is", response=Explanation),
        Route("GET", f"{_JOB}/logs", logs.show, "What a rank wrote", _OWN, response="text/plain", query=_LOG_QUERY,
              waits=True),
        Route("GET", f"{_API}/nodes", fleet.nodes, "Machines", response=list[NodeView]),
        Route("POST", f"{_NODE}/drain", fleet.drain, "Take no new jobs, stop those there", role=admin,
              response=NodeView),
        Route("POST", f"{_NODE}/resume", fleet.resume, "Take jobs again", role=admin, response=NodeView),
        Route("POST", f"{_API}/pools:revoke", fleet.revoke, "Take a pool's rented machines away, for drills",
              role=admin, request=fleet.Revocation, response=fleet.Revoked),
        Route("GET", f"{_API}/prices", fleet.prices, "Prices of the pools", response=PriceList,
              query=("whole",)),
        Route("GET", f"{_API}/money", money.show, "What was spent", response=MoneyReport,
              query=("by", "month", "project")),
        Route("POST", f"{_API}/facts", kinds.state, "State facts of a kind of jobs", role=user,
              request=kinds.KindStated, response=FactsView),
        Route("GET", f"{_API}/facts", kinds.show, "What is known of kinds of jobs", response=list[FactsView],
              query=("kind",)),
        Route("GET", f"{_API}/policy", fleet.policy, "The policy in force", response=PolicyView),
        Route("PUT", f"{_API}/policy", fleet.put_policy, "Change the policy", role=admin, response=PolicyView,
              query=("dry_run",)),
        Route("POST", f"{_API}/tokens", people.create, "Make a token", role=admin, request=people.NewToken,
              response=TokenCreated, status=201),
        Route("GET", f"{_API}/tokens", people.listing, "Tokens, without their secrets", role=admin,
              response=people.TokenList),
        Route("DELETE", f"{_API}/tokens/{{prefix}}", people.revoke, "Revoke a token", role=admin,
              response=people.TokenView),
        Route("GET", f"{_API}/healthz", fleet.health, "The loop turns and the database writes", anybody,
              response=Health, waits=True),
        Route("GET", f"{_API}/readyz", fleet.ready, "The server takes requests", anybody, response=Health),
        Route("POST", "/agent/v1/register", agents.register, "Admit a machine", Audience.JOIN, request=Register,
              response=Registered),
        Route("POST", "/agent/v1/heartbeat", agents.heartbeat, "Reports up, commands and leases down",
              Audience.AGENT, request=Heartbeat, response=HeartbeatAnswer, waits=True),
        Route("POST", "/agent/v1/logs", logs.take, "Bytes that a rank wrote", Audience.AGENT, response=LogAccepted,
              query=("job_id", "attempt", "rank", "offset")),
    ]  # fmt: skip
    # Probes of other systems look at the root.
    probes = [replace(each, path=each.path.removeprefix(_API)) for each in table if each.path.endswith("z")]
    table += probes
    return [*table, _openapi_route(table)]


def _openapi_route(table: Sequence[Route]) -> Route:
    """Describes the others and itself."""
    described: dict[str, Any] = {}

    async def openapi(call: Call) -> web.StreamResponse:
        if not described:
            described.update(describe([*table, route], call.server.version))
        return web.Response(body=json.dumps(described).encode(), content_type="application/json")

    route = Route("GET", f"{_API}/openapi.json", openapi, "This description", Audience.ANYBODY)
    return route


def make_app(server: Server) -> web.Application:
    """The application; its middleware finds each request's route in the table."""
    table = routes()
    by_place: dict[tuple[str, str], Route] = {}
    gate = Gate(server, by_place, server.daemon.settings.concurrency)
    # Bodies are read and bounded by the handlers.
    app = web.Application(middlewares=[gate.__call__], client_max_size=0)
    for route in table:
        added = app.router.add_route(route.method, route.path, _unreachable)
        resource = added.resource
        assert resource is not None
        by_place[route.method, resource.canonical] = route
    return app


async def _unreachable(request: web.Request) -> web.StreamResponse:
    """The gate answers every request itself."""
    raise web.HTTPNotFound
