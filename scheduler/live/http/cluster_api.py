"""Endpoints about the cluster: agents, machines, prices, spending, shares, the policy, health.

A machine that will not return is forgotten (its row, its credential, its place in the list) where nothing can be alive
on it: it is lost, or it is silent and everything granted there has ended. A machine whose agent is heard stays, and so
does a rented one that is still a member, which its provider has to give back. Attempts, charges and the journal keep
what the machine did. Should it return after all, it joins anew by the join token.
"""

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from math import inf

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ConfigDict, Field

from scheduler.core.events import NodeLeaving, NodeUncordoned
from scheduler.core.explain.share_standing import ShareStanding, share_standings
from scheduler.live.auth.access_control import (
    AgentCaller,
    JoinCaller,
)
from scheduler.live.http.audit_trail import audited, node_standing, note_write
from scheduler.live.http.requests import LARGE_BODY_BYTES, RequestContext, json_list
from scheduler.live.loop import billing
from scheduler.live.loop.apply_commands import emit
from scheduler.live.loop.billing import spending_report, sum_charges
from scheduler.live.loop.budget_sums import team_keys
from scheduler.live.loop.departures import drain_lost, note_return
from scheduler.live.loop.live_state import LiveNode
from scheduler.live.loop.transaction import Transaction
from scheduler.live.services.agent_gateway import check_node_owner, declare_node_lost
from scheduler.live.services.parts_of_machines import machines_named, nodes_named
from scheduler.live.store.store_interface import MONEY_KEYS, TEAM, MoneyQuery
from scheduler.live.store.table_rows import ChargeKind
from walras.api import Health, MoneyReport, NodeView, PriceList
from walras.cluster import NodeId, PoolId
from walras.contract import SECONDS_PER_HOUR
from walras.errors import Conflict, Forbidden, NotFound, UserError
from walras.people import ShareLoan, ShareView, WhoAmI
from walras.states import Reason
from walras.wire import Heartbeat, HeartbeatAnswer, Register, Registered

#: A step that is applied to a machine, or to each part of a machine with accelerators of several types.
_NodeStep = Callable[[Transaction, LiveNode], None]


async def register_agent(call: RequestContext) -> Registered:
    assert isinstance(call.caller, JoinCaller)
    return await call.server.gateway.register(await call.model(Register), call.caller.rent_token)


async def agent_heartbeat(call: RequestContext) -> HeartbeatAnswer:
    assert isinstance(call.caller, AgentCaller)
    message = await call.model(Heartbeat, LARGE_BODY_BYTES)
    check_node_owner(call.caller.node_id, message.node_id)
    return await call.server.gateway.heartbeat(message)


class Revocation(BaseModel):
    """`POST /pools:revoke`."""

    model_config = ConfigDict(extra="forbid")
    pool_id: str
    #: Warning to the machines before they are taken away, seconds.
    notice_s: float = Field(default=0.0, ge=0, le=86_400)


class Drain(BaseModel):
    """How a machine is emptied. Jobs that can save their work move at once; others run to their ends, unless ..."""

    model_config = ConfigDict(extra="forbid")

    #: All jobs are asked to stop now, those included that cannot save their work.
    now: bool = False
    #: After this time, seconds, all jobs that still run there are asked to stop; None: they may run to their ends.
    deadline_s: float | None = Field(default=None, gt=0, le=366 * 86_400, allow_inf_nan=False)


class Revoked(BaseModel):
    """Machines that will be gone."""

    nodes: list[str]


async def list_nodes(call: RequestContext) -> web.StreamResponse:
    return json_list(call.server.views.nodes())


async def show_prices(call: RequestContext) -> PriceList:
    found = call.server.views.prices()
    seen = [each for each in found.entities if call.user.sees(_project_of(each.name))]
    found = found.model_copy(update={"entities": seen})
    if not call.flag("whole") or found.certificate is None:
        return found
    bound = await call.server.whole_gangs.bound()
    return found.model_copy(update={"certificate": found.certificate.model_copy(update={"integral_bound": bound})})


async def drain_node(call: RequestContext) -> NodeView:
    asked = await call.model(Drain) if call.request.can_read_body else Drain()

    def step(transaction: Transaction, node: LiveNode) -> None:
        if not node.is_member:
            drain_lost(node, f"drained by {call.user.name}")
            transaction.node_changed(node)
            return
        until = inf if asked.deadline_s is None else transaction.at + asked.deadline_s
        gentle = not asked.now
        emit(transaction, NodeLeaving(transaction.at, node.row.node_id, until, Reason.HOLD_ADMIN, gentle))
        left = "" if asked.deadline_s is None else f", for {asked.deadline_s:g} s at most"
        node.row.detail = f"drained by {call.user.name}" + (f"; what cannot be saved runs on{left}" if gentle else "")

    return await _change_node(call, step)


async def resume_node(call: RequestContext) -> NodeView:
    def check(transaction: Transaction, node: LiveNode) -> None:
        pool_id = node.row.pool_id
        if node.is_member and transaction.state.pools[pool_id].drained:
            fix = f"walras admin pool drain {pool_id} --off"
            raise Conflict(f"its pool {pool_id} is drained", field="node_id", fix=fix)

    def step(transaction: Transaction, node: LiveNode) -> None:
        if node.is_member:
            emit(transaction, NodeUncordoned(transaction.at, node.row.node_id))
        else:
            note_return(node)
            transaction.node_changed(node)

    return await _change_node(call, step, check)


async def forget_node(call: RequestContext) -> NodeView:
    name = call.request.match_info["node_id"]
    unreachable_s = call.server.loop.settings.unreachable_s

    def step(transaction: Transaction) -> NodeView:
        parts = [transaction.state.nodes[node_id] for node_id in nodes_named(transaction.state, name)]
        for node in parts:  # checked before the first is forgotten: all parts or none
            check_may_be_forgotten(transaction, node, unreachable_s)
        first = next(each for each in call.server.views.nodes() if each.node_id == parts[0].row.node_id)
        for node in parts:
            before = node_standing(node)
            forget_machine(transaction, node.row.node_id, unreachable_s)
            note_write(call, transaction, f"node {node.row.node_id}", before=before)
        return first

    return await call.server.loop.perform(step)


async def _change_node(call: RequestContext, step: _NodeStep, check: _NodeStep = lambda *_: None) -> NodeView:
    """Change a machine, or all of its parts, in one transaction. Changes none of them if `check` raises for one."""
    name = call.request.match_info["node_id"]

    def checked(transaction: Transaction) -> NodeId:
        parts = machines_named(transaction.state, name)
        for node in parts:
            check(transaction, node)
        for node in parts:
            _change_part(call, transaction, node, step)
        return parts[0].row.node_id

    first = await call.server.loop.perform(checked)
    return next(view for view in call.server.views.nodes() if view.node_id == first)


def _change_part(call: RequestContext, transaction: Transaction, node: LiveNode, step: _NodeStep) -> None:
    subject = f"node {node.row.node_id}"
    audited(call, subject, lambda _: node_standing(node), lambda turn: step(turn, node))(transaction)


async def revoke_pool(call: RequestContext) -> Revoked:
    asked = await call.model(Revocation)
    # The audit row is committed first: a revocation cannot be undone and is no step of the loop.
    noted = {"notice_s": asked.notice_s}
    await call.server.loop.perform(lambda turn: note_write(call, turn, f"pool {asked.pool_id}", after=noted))
    return Revoked(nodes=[*call.server.providers.revoke(PoolId(asked.pool_id), asked.notice_s)])


# ------------------------------------------------------------------------------------------ health


async def show_health(call: RequestContext) -> web.StreamResponse:
    checks = await call.server.check_health()
    # A dead solver process is replaced by the server itself, and the last decision holds meanwhile: no reason to
    # restart.
    return _health_response(call, checks, all(checks[name] == "ok" for name in ("event_loop", "database")))


async def show_caller(call: RequestContext) -> WhoAmI:
    user = call.user
    return WhoAmI(user=user.name, role=user.role.word, projects=list(user.projects))


async def show_readiness(call: RequestContext) -> web.StreamResponse:
    checks = {"started": "ok" if call.server.is_ready else "starting", "solver": call.server.solver.state}
    return _health_response(call, checks, call.server.is_ready)


async def show_metrics(call: RequestContext) -> web.StreamResponse:
    """Returns metrics of the whole cluster in the format of Prometheus, for callers who see all projects."""
    if call.user.visible_projects is not None:
        raise Forbidden(
            "metrics tell of all projects, and this token sees some",
            fix="walras admin token create monitoring --role viewer --project '*'",
        )
    return web.Response(body=await call.server.metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})


def _health_response(call: RequestContext, checks: dict[str, str], ok: bool) -> web.Response:
    body = Health(ok=ok, checks=checks, version=call.server.version).model_dump_json()
    return web.Response(status=200 if ok else 503, body=body.encode(), content_type="application/json")


#: Sums by team read at most this many users; the use of a user who is in no group has an empty team.
_MOST_USERS = 100_000
_MONTH = re.compile(r"^[0-9]{4}-(0[1-9]|1[0-2])$")


async def show_spending(call: RequestContext) -> MoneyReport:
    """Returns what was spent, USD, by the key asked for: charges in the ledger and those still open, at one instant."""
    asked = call.request.query
    by, month = asked.get("by", "project"), asked.get("month", "")
    if by not in (*MONEY_KEYS, TEAM):
        known = ", ".join((*MONEY_KEYS, TEAM))
        raise UserError(f"money cannot be summed by {by[:40]!r}", field="by", fix=f"choose from {known}")
    if month and not _MONTH.match(month):
        raise UserError(f"{month[:40]!r} is no month", field="month", fix="write it as 2026-11")
    server = call.server
    state = server.state
    limit = call.number("limit", 1000, 1, 100_000)
    # A team's sums add up those of its users: all users are read first, then the most expensive teams are kept.
    users = by == TEAM
    most, projects = _MOST_USERS if users else limit, call.user.visible_projects
    key = "user" if users else by
    query = MoneyQuery(key, state.next_charge_id, month, asked.get("project", ""), projects, most)
    open_now = sum_charges(billing.open_charges(state, server.loop.clock.now()), query)
    await server.loop.settled()
    written = await server.read(server.store.money, query, [each.key for each in open_now])
    # A sum by job may have thousands of rows, so it is not computed in the loop's thread.
    sums = [*written, *open_now]
    if users:
        query, teams = replace(query, by=TEAM, limit=limit), team_keys(state.budgets.groups)
        sums = [replace(each, key=teams.get(each.key, "")) if each.kind is ChargeKind.USE else each for each in sums]
    return await server.read(spending_report, query, sums)


# ------------------------------------------------------------------------------------------ shares

_OTHERS = "others"


async def list_shares(call: RequestContext) -> web.StreamResponse:
    """Lists the shares of the caller's projects and their users; other projects are one lender, "others"."""
    wanted = call.request.query.get("project", "")
    found = share_standings(call.server.core, call.server.loop.clock.now())
    rules = call.server.core.ledger.policy.rules
    seen = [each for each in found if call.user.sees(_project_of(each.name)) and wanted in ("", _project_of(each.name))]
    return json_list([_share_view(call, each, rules.usage_half_life_s) for each in seen])


def _project_of(name: str) -> str:
    return name.partition("/")[0]


def _share_view(call: RequestContext, standing: ShareStanding, half_life_s: float) -> ShareView:
    loans: dict[str, float] = {}
    for lender, accelerators in standing.borrowed:
        shown = lender if call.user.sees(_project_of(lender)) else _OTHERS
        loans[shown] = loans.get(shown, 0.0) + accelerators
    return ShareView(
        name=standing.name,
        weight=standing.share.weight,
        guaranteed=standing.share.guaranteed,
        limits={limit.scope: limit.accelerators for limit in standing.share.limits},
        demand=standing.demand,
        entitled=standing.entitled,
        nominal=standing.nominal,
        held={each.accelerator: each.accelerators for each in standing.held},
        held_units=standing.units,
        used_h=standing.used_s / SECONDS_PER_HOUR,
        used_unit_h=standing.units_s / SECONDS_PER_HOUR,
        used_part=standing.used_part,
        half_life_s=half_life_s,
        borrowed=[ShareLoan(name=name, accelerators=count) for name, count in sorted(loans.items())],
        because=standing.because,
    )


# ------------------------------------------------------------------------------------------ forgetting


log = logging.getLogger(__name__)


def forget_machine(transaction: Transaction, node_id: NodeId, unreachable_s: float) -> None:
    """Remove a machine. Raises NotFound for an unknown machine, Conflict where something may still be alive on it."""
    node = transaction.state.nodes.get(node_id)
    if node is None:
        raise NotFound(f"no machine {node_id}", fix="check `walras nodes`")
    check_may_be_forgotten(transaction, node, unreachable_s)
    if node.is_member:
        declare_node_lost(transaction, node_id, Reason.HOLD_ADMIN)
    transaction.node_forgotten(node)
    log.info("%s is forgotten", node_id)


def check_may_be_forgotten(transaction: Transaction, node: LiveNode, unreachable_s: float) -> None:
    """Raise Conflict where something may be alive on the machine; the error says what to do first."""
    node_id, state = node.row.node_id, transaction.state
    kept = [
        job_id
        for job_id, job in state.jobs.items()
        if job.attempt is not None and (node_id in job.attempt.parts or (job_id, job.attempt.row.attempt) in node.alive)
    ]
    if kept:
        shown = ", ".join(str(job_id) for job_id in kept[:5]) + (", ..." if len(kept) > 5 else "")
        raise Conflict(
            f"{node_id} holds a part of an attempt of job {shown}",
            field="node_id",
            fix=f"empty it with `walras admin drain {node_id}`, or wait until it is lost",
        )
    if node.is_member and node.row.rent_token:
        raise Conflict(
            f"{node_id} is rented and has not been given back", field="node_id", fix="its provider gives it back"
        )
    silent_s = transaction.at - node.heard_at
    if silent_s <= unreachable_s:
        raise Conflict(
            f"the agent of {node_id} was heard {silent_s:.0f} s ago",
            field="node_id",
            fix=f"stop its agent, and try again after {unreachable_s:.0f} s",
        )
    if node.is_member and (node.must_meet or node.expected or node.outbox):
        raise Conflict(
            f"{node_id} has not said what is left on it",
            field="node_id",
            fix="wait until it is lost: `walras nodes` says when",
        )
