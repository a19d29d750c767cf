"""The audit of writes: each change that a user makes through the API adds a row in the transaction of that change.

A handler wraps its step with `audited`, or calls `RequestContext.note_write` inside it. The size of a row is bounded,
and no row holds a secret: variables and secrets of jobs are left out, and tokens are named by their first characters. A
request that is refused changes nothing and adds no row. Administrators see all rows, operators those of their projects.
"""

import json
from collections.abc import Callable
from typing import Any, TypeVar

from scheduler.live.auth.access_control import UserRole
from scheduler.live.http.requests import RequestContext, serves
from scheduler.live.loop.departures import departure_text
from scheduler.live.loop.live_state import LiveJob, LiveNode
from scheduler.live.loop.transaction import Transaction
from scheduler.live.services.views import view_of
from scheduler.live.store.store_interface import AuditQuery
from walras.errors import UserError
from walras.resources.people import AuditView, PeopleCalls
from walras.spec.field_types import parse_instant

T = TypeVar("T")

_PAGE, _PAGE_MOST = 100, 10_000


def audited(
    call: RequestContext,
    subject: str,
    look: Callable[[Transaction], Any],
    step: Callable[[Transaction], T],
    project: str = "",
) -> Callable[[Transaction], T]:
    """Returns a step that runs `step` and adds an audit row with what `look` sees before and after it."""

    def whole(transaction: Transaction) -> T:
        before = look(transaction)
        answer = step(transaction)
        call.note_write(transaction, subject, before=before, after=look(transaction), project=project)
        return answer

    return whole


def job_standing(job: LiveJob) -> dict[str, Any]:
    """Returns what people can change of a job, as audit rows show it before and after."""
    row = job.row
    found: dict[str, Any] = {"state": row.state.value, "reason": None if row.reason is None else row.reason.value}
    return found | {"priority": row.priority, "budget_usd": row.budget_usd, "project": row.project}


def node_standing(node: LiveNode) -> dict[str, Any]:
    """Returns what people can change of a machine, as audit rows show it before and after."""
    return {"state": node.shown_state, "detail": departure_text(node)}


@serves(PeopleCalls.audit)
async def list_audit(call: RequestContext) -> list[AuditView]:
    """Lists the audit rows that the caller may see, newest first. Raises UserError where `since` is no instant."""
    clock, written = call.server.loop.clock, call.request.query.get("since", "")
    since_at = 0.0
    if written:
        try:
            since_at = parse_instant(written, now=clock.unix(clock.now())) - clock.unix(0.0)
        except ValueError as error:
            raise UserError(f"since: {error}", field="since", fix="write it as 2026-11-05T18:00:00Z") from None
    query = AuditQuery(
        user=call.request.query.get("user", ""),
        since_at=since_at,
        projects=call.user.visible_projects,
        of_no_project=call.user.role is UserRole.ADMIN,
        limit=call.number("limit", _PAGE, 1, _PAGE_MOST),
    )
    rows = await call.server.read(call.server.store.audit, query)
    return [
        view_of(AuditView, row, at=clock.shown(row.at), before=json.loads(row.before), after=json.loads(row.after))
        for row in rows
    ]
