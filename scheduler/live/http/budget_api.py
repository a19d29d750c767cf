"""Endpoints about budgets: their limits with the present use, and the credits that administrators add to them.

Users see the budgets that their own jobs count against, and those of their projects; administrators see all, and add
credits. A credit is a row that stays in the tables; the core is told of it in the same transaction.
"""

from aiohttp import web

from scheduler.core.budget_limits import BudgetOwner, BudgetUnit
from scheduler.core.explain.share_standing import BudgetStanding, budget_standings
from scheduler.live.auth.access_control import UserRole
from scheduler.live.http.audit_trail import note_write
from scheduler.live.http.requests import RequestContext, Route, json_list
from scheduler.live.loop.apply_commands import emit
from scheduler.live.loop.billing import restate_spending
from scheduler.live.loop.budget_sums import team_keys
from scheduler.live.loop.transaction import Transaction
from scheduler.live.store.usage_sums import CreditRow
from walras.budgets import BudgetView, CreditView, NewCredit
from walras.errors import Conflict

_MOST_CREDITS = 100_000
_SHOWN_CREDITS = 200


async def list_budgets(call: RequestContext) -> web.StreamResponse:
    """Returns the limits that the caller may see, with their present use."""
    core, now = call.server.loop.core, call.server.loop.clock.now()
    found = [each for each in budget_standings(core, now) if _sees(call, each.owner)]
    return json_list([_view(call, each) for each in found])


def _sees(call: RequestContext, owner: BudgetOwner) -> bool:
    user = call.user
    if user.role is UserRole.ADMIN:
        return True
    if owner.user:
        return owner.user == user.name and (not owner.project or user.sees(owner.project))
    if owner.group:
        return team_keys(call.server.state.budgets.groups).get(user.name) == owner.group
    return bool(owner.project) and user.sees(owner.project)


def _view(call: RequestContext, standing: BudgetStanding) -> BudgetView:
    owner, clock = standing.owner, call.server.loop.clock
    return BudgetView(
        whose=owner.words,
        project=owner.project,
        user=owner.user,
        group=owner.group,
        unit=standing.unit.value,
        every=standing.every,
        used=standing.used,
        limit=standing.limit,
        credited=standing.credit,
        per_h=standing.per_h,
        committed=standing.committed,
        closed=standing.closed,
        refills=clock.shown(standing.refills_at) if standing.refills_at < float("inf") else None,
    )


async def add_credit(call: RequestContext) -> CreditView:
    """Adds a credit to a budget of the policy in force. Raises UserError, Conflict where there is no such budget."""
    asked = await call.model(NewCredit)
    owner = BudgetOwner(asked.project or "", asked.user or "", asked.group or "")
    amounts = {unit: getattr(asked, unit.value) for unit in BudgetUnit}
    (unit, amount) = next((unit, amount) for unit, amount in amounts.items() if amount is not None)

    def step(transaction: Transaction) -> CreditView:
        books = transaction.state.budgets
        if not any((limit.owner, limit.unit) == (owner, unit) for limit in books.limits):
            whose = owner.words or "the cluster"
            raise Conflict(
                f"{whose} has no budget in {unit.words}",
                field=unit.value,
                fix=f"give it one in rules.budgets of the policy; with `{unit.value}: 0` credits are all there is",
            )
        if len(books.credits) >= _MOST_CREDITS:
            raise Conflict(f"there are {len(books.credits)} credits already", fix="raise the budget in the policy")
        number = max((row.credit_id for row in books.credits), default=0) + 1
        row = CreditRow(
            number, transaction.at, owner.project, owner.user, owner.group, unit.value, amount, call.user.name,
            asked.reason,
        )  # fmt: skip
        books.credits.append(row)
        transaction.batch.credits.append(row)
        emit(transaction, restate_spending(transaction))
        told = {"whose": owner.words, "unit": unit.value, "amount": amount, "reason": asked.reason}
        note_write(call, transaction, f"credit {number}", after=told, project=owner.project)
        return _credit_view(call, row)

    return await call.server.loop.perform(step)


async def list_credits(call: RequestContext) -> web.StreamResponse:
    """Lists the newest credits of budgets that the caller may see, newest first."""
    rows = [
        row for row in call.server.state.budgets.credits if _sees(call, BudgetOwner(row.project, row.user, row.team))
    ]
    return json_list([_credit_view(call, row) for row in reversed(rows[-_SHOWN_CREDITS:])])


def _credit_view(call: RequestContext, row: CreditRow) -> CreditView:
    return CreditView(
        id=row.credit_id,
        at=call.server.loop.clock.shown(row.at),
        whose=BudgetOwner(row.project, row.user, row.team).words,
        unit=row.unit,
        amount=row.amount,
        created_by=row.created_by,
        reason=row.reason,
    )


def budget_routes() -> list[Route]:
    """Returns the routes about budgets. All users may read them; administrators add credits."""
    base = "/api/v1/budgets"
    return [
        Route("GET", base, list_budgets, "Budgets: used, left, filled again when", response=list[BudgetView]),
        Route("GET", f"{base}/credits", list_credits, "What was added to budgets", response=list[CreditView]),
        Route("POST", f"{base}/credits", add_credit, "Add to a budget", role=UserRole.ADMIN,
              request=NewCredit, response=CreditView, status=201),
    ]  # fmt: skip
