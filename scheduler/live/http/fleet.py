"""Machines, prices, the policy, drills and health over HTTP."""

from math import inf
from typing import Any

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from scheduler.core.events import NodeLeaving, NodeUncordoned
from scheduler.core.policy_file import dump_policy
from scheduler.live.desks.dry_run import dry_run
from scheduler.live.desks.policy_desk import PolicyInForce
from scheduler.live.desks.submit import check_possible, draft
from scheduler.live.http.routing import Call, json_list, parse_json
from scheduler.live.records.rows import PolicyRow
from scheduler.live.turns.board import LiveNode
from scheduler.live.turns.carry_out import emit
from scheduler.live.turns.turn import Turn
from walras.api import DryRun, Health, NodeView, PolicyView, PriceList
from walras.errors import JobSpecError, NotFound
from walras.ids import JobId, NodeId, PoolId
from walras.job import to_request
from walras.reasons import Reason


class Revocation(BaseModel):
    """`POST /pools:revoke`."""

    model_config = ConfigDict(extra="forbid")
    pool_id: str
    #: Warning before the machines are gone, seconds.
    notice_s: float = Field(default=0.0, ge=0, le=86_400)


class Revoked(BaseModel):
    """Machines that will be gone."""

    nodes: list[str]


async def nodes(call: Call) -> web.StreamResponse:
    return json_list(call.server.views.nodes())


async def prices(call: Call) -> PriceList:
    found = call.server.views.prices()
    if not call.flag("whole") or found.certificate is None:
        return found
    bound = await call.server.whole_gangs.bound()
    return found.model_copy(update={"certificate": found.certificate.model_copy(update={"integral_bound": bound})})


async def drain(call: Call) -> NodeView:
    def step(turn: Turn, node: LiveNode) -> None:
        emit(turn, NodeLeaving(turn.at, node.row.node_id, inf, Reason.HOLD_ADMIN))
        node.row.detail = f"drained by {call.user.name}"

    return await _change_node(call, step)


async def resume(call: Call) -> NodeView:
    def step(turn: Turn, node: LiveNode) -> None:
        emit(turn, NodeUncordoned(turn.at, node.row.node_id))

    return await _change_node(call, step)


async def _change_node(call: Call, step: Any) -> NodeView:
    node_id = NodeId(call.request.match_info["node_id"])

    def checked(turn: Turn) -> None:
        node = turn.board.nodes.get(node_id)
        if node is None or not node.is_member:
            raise NotFound(f"no machine {node_id}", fix="check `walras nodes`")
        step(turn, node)

    await call.server.daemon.perform(checked)
    return next(view for view in call.server.views.nodes() if view.node_id == node_id)


async def revoke(call: Call) -> Revoked:
    asked = await call.model(Revocation)
    return Revoked(nodes=[*call.server.providers.revoke(PoolId(asked.pool_id), asked.notice_s)])


# ------------------------------------------------------------------------------------------ policy


async def policy(call: Call) -> PolicyView:
    return _policy_view(call, call.server.policies.in_force)


async def put_policy(call: Call) -> PolicyView:
    data = parse_json(await call.body())
    if call.flag("dry_run"):
        spec, rules = call.server.policies.check(data)
        now, before = call.server.daemon.clock.now(), call.server.policies.in_force.row.version
        return _policy_view(call, PolicyInForce(PolicyRow(before + 1, "", now, call.user.name), spec, rules))
    return _policy_view(call, await call.server.policies.change(data, call.user.name))


def _policy_view(call: Call, in_force: PolicyInForce) -> PolicyView:
    rules = dump_policy(in_force.spec, in_force.rules)["rules"]
    return call.server.views.policy(in_force.row, in_force.spec.name, dict(in_force.spec.parameters), rules)


async def dry_run_job(call: Call) -> DryRun:
    data = parse_json(await call.body())
    if not isinstance(data, dict):
        raise JobSpecError("a job spec is a mapping of fields")
    drafted = draft(data, call.user)
    server, now = call.server, call.server.daemon.clock.now()
    request = to_request(
        drafted.spec,
        JobId(server.board.next_job_id),
        user=call.user.name,
        project=drafted.project,
        at=now,
        now_wall=server.daemon.clock.unix(now),
    )
    check_possible(server.core, server.board, request)
    return dry_run(server.core, request)


# ------------------------------------------------------------------------------------------ health


async def health(call: Call) -> web.StreamResponse:
    checks = await call.server.check_health()
    # The solver restarts by itself, and the policy keeps its last answer meanwhile: not a reason to restart the server.
    return _health(call, checks, all(checks[name] == "ok" for name in ("event_loop", "database")))


async def ready(call: Call) -> web.StreamResponse:
    checks = {"started": "ok" if call.server.is_ready else "starting", "solver": call.server.solver.state}
    return _health(call, checks, call.server.is_ready)


def _health(call: Call, checks: dict[str, str], ok: bool) -> web.Response:
    body = Health(ok=ok, checks=checks, version=call.server.version).model_dump_json()
    return web.Response(status=200 if ok else 503, body=body.encode(), content_type="application/json")
