"""Endpoints about the policy: which one is in force, which ones were, and another one in its place."""

import json
from typing import Any

from aiohttp import web

from scheduler.core.rules import dump_policy
from scheduler.live.auth.access_control import UserRole
from scheduler.live.http.audit_trail import note_write
from scheduler.live.http.requests import RequestContext, Route, check_text, json_list, parse_json_body
from scheduler.live.loop.transaction import Transaction
from scheduler.live.services.policy_service import PolicyInForce, PolicyWish
from scheduler.live.store.table_rows import PolicyRow
from walras.errors import UserError
from walras.policy_views import REASON_LENGTH, PolicyView

_VERSION_MOST = 1 << 53


async def show_current_policy(call: RequestContext) -> PolicyView:
    return _policy_view(call, call.server.policies.in_force)


async def list_policy_versions(call: RequestContext) -> web.StreamResponse:
    """Lists the versions of the policy, newest first, those included that this release cannot run any more."""
    rows = await call.server.read(call.server.store.policies)
    return json_list([_row_view(call, row) for row in rows])


async def put_policy(call: RequestContext) -> PolicyView:
    data = parse_json_body(await call.body())
    if call.flag("dry_run"):
        spec, rules = await call.server.policies.try_out(data)
        now, before = call.server.loop.clock.now(), call.server.policies.in_force.row.version
        return _policy_view(call, PolicyInForce(PolicyRow(before + 1, "", now, call.user.name), spec, rules))
    stated = "if_version" in call.request.query
    wish = PolicyWish(call.user.name, _reason(call), call.number("if_version", 0, 0, _VERSION_MOST) if stated else None)

    def note(transaction: Transaction, replaced: PolicyInForce | None, chosen: PolicyInForce) -> None:
        was, now = (None if each is None else dump_policy(each.spec, each.rules) for each in (replaced, chosen))
        note_write(call, transaction, f"policy, version {chosen.row.version}", before=was, after=now)

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


def _row_view(call: RequestContext, row: PolicyRow) -> PolicyView:
    return call.server.views.policy(row, json.loads(row.body))


def policy_routes() -> list[Route]:
    """Returns the routes about the policy. All users may read it; administrators change it."""
    base = "/api/v1/policy"
    return [
        Route("GET", base, show_current_policy, "The policy in force", response=PolicyView),
        Route("PUT", base, put_policy, "Change the policy", role=UserRole.ADMIN, response=PolicyView,
              query=("dry_run", "reason", "if_version")),
        Route("GET", f"{base}/versions", list_policy_versions, "The policies that were in force, newest first",
              response=list[PolicyView]),
    ]  # fmt: skip
