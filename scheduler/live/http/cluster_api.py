"""Endpoints about the cluster: agents, machines, prices, spending, shares, the policy, health.

A machine that will not return is forgotten (its row, its credential, its place in the list) where nothing can be alive
on it: it is lost, or it is silent and everything granted there has ended. A machine whose agent is heard stays, and so
does a rented one that is still a member, which its provider has to give back. Attempts, charges and the journal keep
what the machine did. Should it return after all, it joins anew by the join token.

The overview of the cluster is answered once (`GET /overview`) and as a stream of changes (`GET /overview/events`). The
web page in front of the table has its files, sign-in and sign-out, which need no token. The endpoints of the policy
tell which one is in force and which ones were, and put another one in its place.
"""

import contextlib
import json
import logging
import re
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import ValidationError

from scheduler.core.events import NodeLeaving, NodeUncordoned
from scheduler.core.explain.share_standing import ShareStanding, share_standings
from scheduler.core.rules import dump_policy
from scheduler.live.auth.access_control import (
    AgentCaller,
    JoinCaller,
    UserCaller,
    UserRole,
    new_user_token,
)
from scheduler.live.auth.single_sign_on import SignInCode, SignInRefused
from scheduler.live.http.requests import RequestContext, check_text, serves
from scheduler.live.loop import billing
from scheduler.live.loop.apply_commands import emit
from scheduler.live.loop.billing import spending_report, sum_charges
from scheduler.live.loop.budget_sums import team_keys
from scheduler.live.loop.departures import departure_text, drain_lost, note_return
from scheduler.live.loop.live_state import LiveNode
from scheduler.live.loop.transaction import Transaction
from scheduler.live.server import Server
from scheduler.live.services.agent_gateway import check_node_owner, declare_node_lost
from scheduler.live.services.agent_identity import machines_named, nodes_named
from scheduler.live.services.policy_service import PolicyInForce, PolicyWish
from scheduler.live.services.views import view_of
from scheduler.live.store.store_interface import MONEY_KEYS, TEAM, MoneyQuery
from scheduler.live.store.table_rows import AuditRow, ChargeKind, PolicyRow, TokenRow
from scheduler.live.web.overview import OverviewStream
from scheduler.live.web.page import CSRF_HEADER, SIGNED_IN_S, PageFiles, WebSessions, small_body
from walras.cluster import NodeId, PoolId
from walras.contract import SECONDS_PER_HOUR, pinned_token
from walras.errors import Conflict, Forbidden, UserError
from walras.resources.fleet import HEARTBEAT, REGISTER, Drain, FleetCalls, NodeView, Revocation, Revoked
from walras.resources.money import MoneyCalls, MoneyReport
from walras.resources.overview import (
    HEALTH,
    HEALTH_PROBE,
    METRICS,
    OVERVIEW_EVENTS,
    READINESS,
    READINESS_PROBE,
    REASON_LENGTH,
    Health,
    Overview,
    OverviewCalls,
    PolicyCalls,
    PolicyView,
)
from walras.resources.people import PeopleCalls, ShareLoan, ShareView, WhoAmI
from walras.resources.prices import PriceCalls, PriceList
from walras.states import Reason
from walras.wire import Heartbeat, HeartbeatAnswer, Register, Registered

#: A step that is applied to a machine, or to each part of a machine with accelerators of several types.
_NodeStep = Callable[[Transaction, LiveNode], None]


@serves(REGISTER)
async def register_agent(call: RequestContext) -> Registered:
    assert isinstance(call.caller, JoinCaller)
    return await call.server.gateway.register(await call.model(Register), call.caller.rent_token)


@serves(HEARTBEAT)
async def agent_heartbeat(call: RequestContext) -> HeartbeatAnswer:
    assert isinstance(call.caller, AgentCaller)
    message = await call.model(Heartbeat)
    check_node_owner(call.caller.node_id, message.node_id)
    return await call.server.gateway.heartbeat(message)


@serves(FleetCalls.nodes)
async def list_nodes(call: RequestContext) -> list[NodeView]:
    return call.server.views.nodes()


@serves(PriceCalls.prices)
async def show_prices(call: RequestContext) -> PriceList:
    found = call.server.views.prices()
    seen = [each for each in found.entities if call.user.sees(_project_of(each.name))]
    found = found.model_copy(update={"entities": seen})
    if not call.flag("whole") or found.certificate is None:
        return found
    bound = await call.server.whole_gangs.bound()
    return found.model_copy(update={"certificate": found.certificate.model_copy(update={"integral_bound": bound})})


@serves(FleetCalls.drain_node)
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


@serves(FleetCalls.resume_node)
async def resume_node(call: RequestContext) -> NodeView:
    def check(transaction: Transaction, node: LiveNode) -> None:
        pool_id = node.row.pool_id
        if node.is_member and transaction.state.pools[pool_id].drained:
            fix = f"walras admin drain --pool {pool_id} --off"
            raise Conflict(f"its pool {pool_id} is drained", field="node_id", fix=fix)

    def step(transaction: Transaction, node: LiveNode) -> None:
        if node.is_member:
            emit(transaction, NodeUncordoned(transaction.at, node.row.node_id))
        else:
            note_return(node)
            transaction.node_changed(node)

    return await _change_node(call, step, check)


def _node_standing(node: LiveNode) -> dict[str, Any]:
    """Returns what people can change of a machine, as audit rows show it before and after."""
    return {"state": node.shown_state, "detail": departure_text(node)}


@serves(FleetCalls.forget_node)
async def forget_node(call: RequestContext) -> NodeView:
    name = call.request.match_info["node_id"]
    unreachable_s = call.server.loop.settings.unreachable_s

    def step(transaction: Transaction) -> NodeView:
        parts = [transaction.state.nodes[node_id] for node_id in nodes_named(transaction.state, name)]
        for node in parts:  # checked before the first is forgotten: all parts or none
            _check_may_be_forgotten(transaction, node, unreachable_s)
        first = next(each for each in call.server.views.nodes() if each.node_id == parts[0].row.node_id)
        for node in parts:
            before, node_id = _node_standing(node), node.row.node_id
            if node.is_member:
                declare_node_lost(transaction, node_id, Reason.HOLD_ADMIN)
            transaction.node_forgotten(node)
            log.info("%s is forgotten", node_id)
            call.note_write(transaction, f"node {node_id}", before=before)
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
    call.audited(subject, lambda _: _node_standing(node), lambda turn: step(turn, node))(transaction)


@serves(FleetCalls.revoke_pool)
async def revoke_pool(call: RequestContext) -> Revoked:
    asked = await call.model(Revocation)
    # The audit row is committed first: a revocation cannot be undone and is no step of the loop.
    noted = {"notice_s": asked.notice_s}
    await call.server.loop.perform(lambda turn: call.note_write(turn, f"pool {asked.pool_id}", after=noted))
    return Revoked(nodes=[*call.server.providers.revoke(PoolId(asked.pool_id), asked.notice_s)])


# ------------------------------------------------------------------------------------------ health


@serves(HEALTH, HEALTH_PROBE)
async def show_health(call: RequestContext) -> web.StreamResponse:
    checks = await call.server.check_health()
    # A dead solver process is replaced by the server itself, and the last decision holds meanwhile: no reason to
    # restart.
    return _health_response(call, checks, all(checks[name] == "ok" for name in ("event_loop", "database")))


@serves(PeopleCalls.whoami)
async def show_caller(call: RequestContext) -> WhoAmI:
    user = call.user
    return WhoAmI(user=user.name, role=user.role.word, projects=list(user.projects))


@serves(READINESS, READINESS_PROBE)
async def show_readiness(call: RequestContext) -> web.StreamResponse:
    checks = {"started": "ok" if call.server.is_ready else "starting", "solver": call.server.solver.state}
    return _health_response(call, checks, call.server.is_ready)


@serves(METRICS)
async def show_metrics(call: RequestContext) -> web.StreamResponse:
    """Returns metrics of the whole cluster in the format of Prometheus, for callers who see all projects."""
    if call.user.visible_projects is not None:
        raise Forbidden(
            "metrics tell of all projects, and this token sees some",
            fix="walras admin add token monitoring role=viewer 'projects=*'",
        )
    return web.Response(body=await call.server.metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})


def _health_response(call: RequestContext, checks: dict[str, str], ok: bool) -> web.Response:
    body = Health(ok=ok, checks=checks, version=call.server.version).model_dump_json()
    return web.Response(status=200 if ok else 503, body=body.encode(), content_type="application/json")


#: Sums by team read at most this many users; the use of a user who is in no group has an empty team.
_MOST_USERS = 100_000
_MONTH = re.compile(r"^[0-9]{4}-(0[1-9]|1[0-2])$")


@serves(MoneyCalls.money)
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


@serves(PeopleCalls.share)
async def list_shares(call: RequestContext) -> list[ShareView]:
    """Lists the shares of the caller's projects and their users; other projects are one lender, "others"."""
    wanted = call.request.query.get("project", "")
    found = share_standings(call.server.core, call.server.loop.clock.now())
    rules = call.server.core.ledger.policy.rules
    seen = [each for each in found if call.user.sees(_project_of(each.name)) and wanted in ("", _project_of(each.name))]
    return [_share_view(call, each, rules.usage_half_life_s) for each in seen]


def _project_of(name: str) -> str:
    return name.partition("/")[0]


def _share_view(call: RequestContext, standing: ShareStanding, half_life_s: float) -> ShareView:
    loans: dict[str, float] = {}
    for lender, accelerators in standing.borrowed:
        shown = lender if call.user.sees(_project_of(lender)) else _OTHERS
        loans[shown] = loans.get(shown, 0.0) + accelerators
    return view_of(
        ShareView,
        standing,
        weight=standing.share.weight,
        guaranteed=standing.share.guaranteed,
        limits={limit.scope: limit.accelerators for limit in standing.share.limits},
        held={each.accelerator: each.accelerators for each in standing.held},
        held_units=standing.units,
        used_h=standing.used_s / SECONDS_PER_HOUR,
        used_unit_h=standing.units_s / SECONDS_PER_HOUR,
        half_life_s=half_life_s,
        borrowed=[ShareLoan(name=name, accelerators=count) for name, count in sorted(loans.items())],
        because=standing.because,
    )


# ------------------------------------------------------------------------------------------ forgetting


log = logging.getLogger(__name__)


def _check_may_be_forgotten(transaction: Transaction, node: LiveNode, unreachable_s: float) -> None:
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


STREAM = web.AppKey("overview_stream", OverviewStream)
_SESSION_PATH, _SIGN_ON_PATH = "/web/session", "/web/sign-on"


class WebFace:
    """Answers the requests that need no token: files of the page, sign-in and sign-out."""

    def __init__(self, server: Server) -> None:
        self._server, self.sessions = server, WebSessions(server)
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
        if request.path == _SIGN_ON_PATH and request.method in ("GET", "POST"):
            return await self._answer_sign_on(request)
        return self._files.answer(request)

    async def _answer_sign_on(self, request: web.Request) -> web.Response:
        """Returns where users sign in (GET), or the answer to who comes back from there: a cookie, or a token."""
        sign_on = self._server.sign_on
        if sign_on is None:
            return web.json_response({})
        try:
            if request.method == "GET":
                return web.json_response(await sign_on.start())
            if CSRF_HEADER not in request.headers:
                raise SignInRefused(f"a page or a command sends the header {CSRF_HEADER}")
            asked = SignInCode.model_validate(await small_body(request))
            token, row = await self._token_of(await sign_on.user_name(asked), request)
        except ValidationError:
            return _refused("this is no answer of a provider", "")
        except SignInRefused as error:
            return _refused(str(error), error.fix)
        if asked.token:
            return web.json_response({"token": pinned_token(token, self._server.secrets.pin), "user": row.user})
        return self.sessions.signed_in(request, row.sha256)

    async def _token_of(self, name: str, request: web.Request) -> tuple[str, TokenRow]:
        """Makes a token of a user who signed in, with an audit row. Raises SignInRefused for one nobody has added."""
        server, people = self._server, self._server.secrets.people
        user = None if people.is_removed(name) else people.users.get(name)
        if user is None:
            fix = f"an administrator adds it: walras admin add user {name} role=user projects=PROJECT"
            raise SignInRefused(f"there is no user {name!r}", fix=fix)
        caller = UserCaller(name, UserRole[user.role.upper()], tuple(user.projects))
        token, row = new_user_token(caller, "sign-on", SIGNED_IN_S, server.clocks, server.chance)
        action, subject = f"POST {_SIGN_ON_PATH}", f"token {row.prefix}"

        def keep(transaction: Transaction) -> None:
            transaction.batch.put(row)
            at, address = transaction.at, request.remote or ""
            transaction.batch.put(AuditRow(at, name, caller.role.word, address, action, subject, "", "null", "null"))

        await server.loop.perform(keep)
        server.secrets.users[row.sha256] = row
        return token, row


def _refused(why: str, fix: str) -> web.Response:
    return web.json_response({"title": "Not signed in", "detail": why, "fix": fix}, status=403)


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


@serves(OverviewCalls.overview)
async def show_overview(call: RequestContext) -> Overview:
    """Returns the overview of the cluster as the caller may see it."""
    return await call.request.app[STREAM].builder.build(call.user.visible_projects)


@serves(OVERVIEW_EVENTS)
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


_VERSION_MOST = 1 << 53


@serves(PolicyCalls.policy)
async def show_current_policy(call: RequestContext) -> PolicyView:
    return _policy_view(call, call.server.policies.in_force)


@serves(PolicyCalls.policy_versions)
async def list_policy_versions(call: RequestContext) -> list[PolicyView]:
    """Lists the versions of the policy, newest first, those included that this release cannot run any more."""
    rows = await call.server.read(call.server.store.policies)
    return [call.server.views.policy(row, json.loads(row.body)) for row in rows]


@serves(PolicyCalls.set_policy)
async def put_policy(call: RequestContext) -> PolicyView:
    data = await call.json()
    if call.flag("dry_run"):
        spec, rules, _ = await call.server.policies.try_out(data)
        now, before = call.server.loop.clock.now(), call.server.policies.in_force.row.version
        return _policy_view(call, PolicyInForce(PolicyRow(before + 1, "", now, call.user.name), spec, rules))
    stated = "if_version" in call.request.query
    wish = PolicyWish(call.user.name, _reason(call), call.number("if_version", 0, 0, _VERSION_MOST) if stated else None)

    def note(transaction: Transaction, replaced: PolicyInForce | None, chosen: PolicyInForce) -> None:
        was, now = (None if each is None else dump_policy(each.spec, each.rules) for each in (replaced, chosen))
        call.note_write(transaction, f"policy, version {chosen.row.version}", before=was, after=now)

    return _policy_view(call, await call.server.policies.change(data, wish, note))


def _reason(call: RequestContext) -> str:
    """Returns the stated reason on one line. Control characters stay in it: whoever prints it has to remove them."""
    text = call.request.query.get("reason", "")
    check_text(text, "reason")
    if len(text) > REASON_LENGTH:
        raise UserError(f"longer than {REASON_LENGTH} characters", field="reason", fix="say it shorter")
    return " ".join(text.split())


def _policy_view(call: RequestContext, in_force: PolicyInForce) -> PolicyView:
    written: dict[str, Any] = dump_policy(in_force.spec, in_force.rules)
    said = {"put_back": in_force.put_back, "reason": in_force.reason}
    return call.server.views.policy(in_force.row, written | said)
