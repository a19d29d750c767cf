"""Endpoints about the past of accelerators: who held them when, for how long and at what cost; reports; budgets.

Use is read from the ledger of money and from the open charges, both as of one instant. Callers who see only some
projects are told of these projects' jobs alone, and not of other people or their hours; their report (`GET /report`:
how the cluster did lately, against a bound on what any scheduler that knew the future could have done) is bounded by
these jobs. It is computed in a process of its own, one at a time.

Users see the budgets that their own jobs count against, and those of their projects; administrators see all, and add
credits. A credit is a row that stays in the tables; the core is told of it in the same transaction.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from aiohttp import web

from optimizer.problem import FloatArray
from scheduler.core.budget_limits import BudgetOwner, BudgetUnit
from scheduler.core.explain.share_standing import BudgetStanding, budget_standings
from scheduler.live.auth.access_control import UserRole
from scheduler.live.http.request_bodies import is_machine, user_holder
from scheduler.live.http.requests import RequestContext, serves
from scheduler.live.loop.apply_commands import emit
from scheduler.live.loop.billing import month_of, open_charges, restate_spending
from scheduler.live.loop.budget_sums import team_keys
from scheduler.live.loop.event_loop import Clock, Overloaded
from scheduler.live.loop.transaction import Transaction
from scheduler.live.loop.worker_process import ask_worker_process
from scheduler.live.services.agent_identity import nodes_named
from scheduler.live.services.past_report import ReportQuestion, report_past
from scheduler.live.services.views import view_of
from scheduler.live.store.retention import shares_of_ended_jobs
from scheduler.live.store.store_interface import PriceQuery
from scheduler.live.store.table_rows import ChargeKind, ChargeRow, CreditRow, PriceRow
from scheduler.live.store.usage_sums import (
    AttemptUse,
    HeldQuery,
    HeldRow,
    NodeAttemptRow,
    PastQuery,
    PastRentRow,
    PastRows,
    PastUseRow,
    UsageQuery,
    use_of_charge,
)
from walras.cluster import Market, Pool
from walras.errors import ClusterError, Conflict, NotFound, UserError
from walras.resources.money import (
    LONGEST_REPORT_S,
    LONGEST_USAGE_S,
    MOST_HELD_PROJECTS,
    MOST_NODE_ATTEMPTS,
    MOST_REPORTED,
    MOST_USES,
    NODE_HISTORY,
    USAGE,
    BudgetView,
    CreditView,
    HeldByProject,
    HeldHistory,
    HolderUse,
    MoneyCalls,
    NewCredit,
    NodeAttempt,
    TypePrice,
    UsageCalls,
    UsageReport,
    UsageRow,
)
from walras.resources.prices import LONGEST_WORTH_S, MOST_HOURS, PriceCalls, WorthHour, WorthReport

_DEFAULT_SINCE_S = 30 * 86_400
#: The most attempts that are read for one answer.
_MOST_ATTEMPTS = 4 * MOST_USES


@serves(USAGE)
async def show_usage(call: RequestContext) -> bytes:
    """Returns what jobs held of each accelerator type. Raises UserError where that is more than an answer may hold."""
    server = call.server
    state, clock = server.state, server.loop.clock
    now = clock.now()
    since_at = max(0.0, now - call.number("since_s", _DEFAULT_SINCE_S, 1, LONGEST_USAGE_S))
    wanted, visible = call.request.query.get("type", ""), call.user.visible_projects
    month = month_of(clock.unix(since_at))
    query = UsageQuery(since_at, month, state.next_charge_id, wanted, visible, _MOST_ATTEMPTS + 1)
    found = (
        use_of_charge(charge, query, state.jobs[charge.job_id].row.submitted_at)
        for charge in open_charges(state, now)
        if charge.job_id in state.jobs
    )
    open_now = [use for use in found if use is not None]
    prices = on_demand_prices(tuple(state.pools.values()))
    await server.loop.settled()
    written = await server.read(server.store.attempt_uses, query)
    if len(written) > _MOST_ATTEMPTS:
        raise _too_many()
    # A month of a large cluster has thousands of jobs, so the report is not computed in the loop's thread.
    return await server.read(_report, clock, (since_at, now), (written, open_now), prices, visible is not None)


def _too_many() -> UserError:
    fix = "ask for less: a shorter --since, or one --type"
    return UserError(f"more than {MOST_USES:,} jobs ran in this time", field="since_s", fix=fix)


def on_demand_prices(pools: Sequence[Pool]) -> list[TypePrice]:
    """Returns USD per accelerator-hour of each type in its cheapest on-demand pool; other types are left out."""
    found: dict[str, float] = {}
    for pool in pools:
        if pool.market is Market.ON_DEMAND and pool.shape.accelerators and pool.usd_per_h > 0:
            usd_per_h = pool.usd_per_h / pool.shape.accelerators
            found[pool.shape.accelerator] = min(usd_per_h, found.get(pool.shape.accelerator, usd_per_h))
    return [TypePrice(accelerator=name, usd_per_h=usd_per_h) for name, usd_per_h in sorted(found.items())]


def _report(
    clock: Clock,
    window: tuple[float, float],
    uses: tuple[Sequence[AttemptUse], Sequence[AttemptUse]],
    prices: list[TypePrice],
    partial: bool,
) -> bytes:
    since_at, until_at = window
    written, open_now = uses
    running = {(use.job_id, use.accelerator) for use in open_now}
    by_job = sorted([*written, *open_now], key=lambda use: (use.job_id, use.accelerator, use.attempt))
    rows = [
        _row(clock, since_at, list(those), key in running)
        for key, those in groupby(by_job, key=lambda use: (use.job_id, use.accelerator))
    ]
    if len(rows) > MOST_USES:
        raise _too_many()
    rows.sort(key=lambda row: (row.arrived_at, row.job))
    since, until = clock.unix(since_at), clock.unix(until_at)
    report = UsageReport(since=since, until=until, items=rows, on_demand=prices, partial=partial)
    return report.model_dump_json().encode()


def _row(clock: Clock, since_at: float, uses: list[AttemptUse], running: bool) -> UsageRow:
    """Returns the row of one job on one accelerator type; `uses` are sorted by attempt."""
    widest = 1
    for _, those in groupby(uses, key=lambda use: use.attempt):
        parts = list(those)
        held_s = max(use.until_at for use in parts) - min(use.since_at for use in parts)
        widest = max(widest, round(sum(use.accelerator_s for use in parts) / held_s))
    first = uses[0]
    arrived_at = first.since_at if first.submitted_at is None else max(first.submitted_at, since_at)
    return UsageRow(
        job=first.job_id,
        project=first.project,
        user=first.user,
        accelerator=first.accelerator,
        accelerators=widest,
        accelerator_s=sum(use.accelerator_s for use in uses),
        arrived_at=clock.unix(arrived_at),
        usd=sum(use.usd for use in uses),
        on_demand_usd=sum(use.on_demand_usd for use in uses),
        running=running,
    )


# ------------------------------------------------------------------------------------------ worth

_DEFAULT_WORTH_S = 7 * 86_400


@serves(PriceCalls.worth)
async def show_worth(call: RequestContext) -> bytes:
    """Returns what one more accelerator of each pool was worth, hour by hour.

    Raises NotFound for an unknown pool, UserError where there is more than one answer may hold.
    """
    server, clock = call.server, call.server.loop.clock
    now, pool = clock.now(), call.request.query.get("pool", "")
    since_at = max(0.0, now - call.number("since_s", _DEFAULT_WORTH_S, 1, LONGEST_WORTH_S))
    if pool and pool not in server.state.pools:
        raise NotFound(f"no pool {pool[:100]}", field="pool", fix="check `walras admin list pools`")
    open_now = {(row.since_at, row.pool_id): row for row in server.state.price_history.open_rows()}
    await server.loop.settled()
    written = await server.read(server.store.price_hours, PriceQuery(since_at, pool, MOST_HOURS + 1))
    if len(written) > MOST_HOURS:
        fix = "ask for less: a shorter --since, or one --pool"
        raise UserError(f"more than {MOST_HOURS:,} hours of pools", field="since_s", fix=fix)
    rows = {(row.since_at, row.pool_id): row for row in written}
    rows |= {key: row for key, row in open_now.items() if pool in ("", row.pool_id)}
    return await server.read(_worth_report, clock, (since_at, now), [rows[key] for key in sorted(rows)])


def _worth_report(clock: Clock, window: tuple[float, float], rows: Sequence[PriceRow]) -> bytes:
    items = [
        view_of(WorthHour, row, pool=row.pool_id, since=clock.unix(row.since_at), until=clock.unix(row.until_at))
        for row in rows
    ]
    report = WorthReport(since=clock.unix(window[0]), until=clock.unix(window[1]), items=items)
    return report.model_dump_json().encode()


# ------------------------------------------------------------------------------------------ budgets


_MOST_CREDITS = 100_000
_SHOWN_CREDITS = 200


@serves(MoneyCalls.budgets)
async def list_budgets(call: RequestContext) -> list[BudgetView]:
    """Returns the limits that the caller may see, with their present use."""
    core, now = call.server.loop.core, call.server.loop.clock.now()
    found = [each for each in budget_standings(core, now) if _sees(call, each.owner)]
    return [_view(call, each) for each in found]


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
    return view_of(
        BudgetView,
        standing,
        whose=owner.words,
        project=owner.project,
        user=owner.user,
        group=owner.group,
        unit=standing.unit.value,
        credited=standing.credit,
        refills=clock.shown(standing.refills_at) if standing.refills_at < float("inf") else None,
    )


@serves(MoneyCalls.add_credit)
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
        transaction.batch.put(row)
        emit(transaction, restate_spending(transaction))
        told = {"whose": owner.words, "unit": unit.value, "amount": amount, "reason": asked.reason}
        call.note_write(transaction, f"credit {number}", after=told, project=owner.project)
        return _credit_view(call, row)

    return await call.server.loop.perform(step)


@serves(MoneyCalls.credits)
async def list_credits(call: RequestContext) -> list[CreditView]:
    """Lists the newest credits of budgets that the caller may see, newest first."""
    rows = [
        row for row in call.server.state.budgets.credits if _sees(call, BudgetOwner(row.project, row.user, row.team))
    ]
    return [_credit_view(call, row) for row in reversed(rows[-_SHOWN_CREDITS:])]


def _credit_view(call: RequestContext, row: CreditRow) -> CreditView:
    return view_of(
        CreditView,
        row,
        id=row.credit_id,
        at=call.server.loop.clock.shown(row.at),
        whose=BudgetOwner(row.project, row.user, row.team).words,
    )


@serves(UsageCalls.holders)
async def list_holders(call: RequestContext) -> list[HolderUse]:
    """Lists who holds what, the largest holders of a thing first."""
    server = call.server
    shared = [*server.shares_of_requests, server.content.holders.shares]
    ended = shares_of_ended_jobs(await server.read(server.store.ended_jobs_of_users))
    of_users = [server.gateway.sessions.shares, server.state.job_shares, ended, server.logs.shares, server.logs.files]
    uses = [
        HolderUse(
            what=each.what,
            holder=user_holder(holder) if each in of_users else holder,
            held=held,
            share=each.share_of(holder, is_reserved=is_machine(holder)),
        )
        for each in (*shared, *of_users)
        for holder, held in each.held.items()
    ]
    return sorted(uses, key=lambda use: (use.what, -use.held, use.holder))


# ------------------------------------------------------------------------------------------ report


_REPORT_SINCE_S = 7 * 86_400
#: How long a report may take, seconds: the first one of a new installation compiles the code of the bound.
_TIMEOUT_S = 60.0
#: How many reports may wait for the one that is being computed.
_WAITING_MOST = 4


class ReportDesk:
    """Computes one report after the other."""

    def __init__(self, find: Callable[[ReportQuestion], bytes] = report_past, timeout_s: float = _TIMEOUT_S) -> None:
        self._find = find
        self._timeout_s = timeout_s
        self._turn = asyncio.Lock()
        self._asking = 0

    async def report(self, call: RequestContext) -> bytes:
        """Returns a `ClusterReport`. Raises UserError for too many jobs, Overloaded, and ClusterError for a timeout."""
        if self._asking > _WAITING_MOST:
            raise Overloaded("other reports are worked out; try again in a minute")
        self._asking += 1
        try:
            async with self._turn:
                question = await _question(call)
                return await ask_worker_process(self._find, question, self._timeout_s)
        except (TimeoutError, BrokenProcessPool):
            raise ClusterError("the report was not worked out in time; ask for a shorter time") from None
        finally:
            self._asking -= 1


_DESK = web.AppKey("report_desk", ReportDesk)


def attach_reports(app: web.Application) -> None:
    """Have the application compute one report after the other."""
    app[_DESK] = ReportDesk()


@serves(UsageCalls.report)
async def show_report(call: RequestContext) -> bytes:
    return await call.request.app[_DESK].report(call)


async def _question(call: RequestContext) -> ReportQuestion:
    server = call.server
    state, clock = server.state, server.loop.clock
    now, visible = clock.now(), call.user.visible_projects
    since_at = max(0.0, now - call.number("since_s", _REPORT_SINCE_S, 1, LONGEST_REPORT_S))
    month = month_of(clock.unix(since_at))
    query = PastQuery(since_at, now, month, state.next_charge_id, visible, MOST_REPORTED + 1)
    charges = [each for each in open_charges(state, now) if each.until_at > max(each.since_at, since_at)]
    pools = {**state.removed_pools, **state.pools}
    shapes = {str(pool_id): (pool.shape.accelerator, pool.shape.accelerators) for pool_id, pool in pools.items()}
    await server.loop.settled()
    rows: PastRows = await server.read(server.store.past, query)
    if rows.job_count > MOST_REPORTED:
        fix = "ask for less: a shorter --since"
        raise UserError(f"more than {MOST_REPORTED:,} jobs were there in this time", field="since_s", fix=fix)
    return ReportQuestion(
        since_at=since_at,
        until_at=now,
        epoch_unix_s=clock.unix(0.0),
        rows=rows,
        open_uses=tuple(
            _use(each, since_at)
            for each in charges
            if each.kind is ChargeKind.USE and (visible is None or each.project in visible)
        ),
        open_rents=tuple(
            PastRentRow(each.accelerator, each.accelerators, each.since_at, each.until_at)
            for each in charges
            if each.kind is ChargeKind.MACHINE
        ),
        shapes=shapes,
        partial=visible is not None,
    )


def _use(charge: ChargeRow, since_at: float) -> PastUseRow:
    """Returns the part of a charge that lies after `since_at`."""
    held_s = charge.until_at - max(charge.since_at, since_at)
    part = held_s / (charge.until_at - charge.since_at)
    return PastUseRow(
        charge.project,
        charge.accelerator,
        charge.accelerators * held_s,
        charge.usd * part,
        charge.on_demand_usd * part,
    )


# ------------------------------------------------------------------------------------------ history


_HISTORY_SINCE_S = 7 * 86_400
#: The lengths of steps, seconds, of which a history takes the shortest that needs no more than so many steps.
_STEPS_S, _STEPS_MOST = (60, 900, 3600, 6 * 3600, 86_400, 7 * 86_400), 120
_DEFAULT_ATTEMPTS = 100


@dataclass(frozen=True, slots=True)
class _Window:
    """A stretch of time in steps of one length; the last step may be shorter."""

    since_at: float
    until_at: float
    step_s: int

    def spread(self, row: HeldRow) -> Iterator[tuple[int, float]]:
        """Yields (index of the step, fraction of the row's time that lies in it) for each step that it touches."""
        length_s = row.until_at - row.since_at
        since_at, until_at = max(row.since_at, self.since_at), min(row.until_at, self.until_at)
        first = int((since_at - self.since_at) // self.step_s)
        last = int((until_at - self.since_at) // self.step_s)
        for step in range(first, last + 1):
            begin = max(since_at, self.since_at + step * self.step_s)
            end = min(until_at, self.since_at + (step + 1) * self.step_s)
            if end > begin:
                yield step, (end - begin) / length_s

    def lengths_s(self) -> FloatArray:
        """Returns the length of each step, seconds."""
        begins = np.arange(self.since_at, self.until_at, self.step_s)
        return np.minimum(self.step_s, self.until_at - begins)


@serves(UsageCalls.held_history)
async def show_held_history(call: RequestContext) -> bytes:
    """Returns the accelerators that each project held, step by step. Raises UserError where `since_s` is too long."""
    server = call.server
    state, clock = server.state, server.loop.clock
    now, visible = clock.now(), call.user.visible_projects
    since_at = max(0.0, now - call.number("since_s", _HISTORY_SINCE_S, 1, LONGEST_USAGE_S))
    step_s = next((each for each in _STEPS_S if now - since_at <= each * _STEPS_MOST), _STEPS_S[-1])
    window = _Window(since_at, now, step_s)
    query = HeldQuery(since_at, month_of(clock.unix(since_at)), state.next_charge_id, step_s, visible)
    still_open = [
        _held_of(charge)
        for charge in open_charges(state, now)
        if charge.job_id and charge.until_at > charge.since_at and call.user.sees(charge.project)
    ]
    await server.loop.settled()
    written = await server.read(server.store.held, query)
    return await server.read(_history, clock, window, [*written, *still_open])


def _held_of(charge: ChargeRow) -> HeldRow:
    held_s = charge.until_at - charge.since_at
    return HeldRow(
        charge.project, charge.since_at, charge.until_at, charge.accelerators * held_s, charge.units * held_s
    )


def _history(clock: Clock, window: _Window, rows: Iterable[HeldRow]) -> bytes:
    lengths_s = window.lengths_s()
    held: dict[str, FloatArray] = {}
    for row in rows:
        sums = held.setdefault(row.project, np.zeros((2, len(lengths_s))))
        for step, part in window.spread(row):
            sums[:, min(step, len(lengths_s) - 1)] += row.accelerator_s * part, row.unit_s * part
    order = sorted(held, key=lambda project: (-float(held[project][0].sum()), project))
    items = []
    for project in order[:MOST_HELD_PROJECTS]:
        accelerators, units = held[project] / lengths_s
        items.append(HeldByProject(project=project, accelerators=accelerators.tolist(), units=units.tolist()))
    history = HeldHistory(
        since=clock.unix(window.since_at),
        until=clock.unix(window.until_at),
        step_s=window.step_s,
        items=items,
        left_out=max(0, len(order) - MOST_HELD_PROJECTS),
    )
    return history.model_dump_json().encode()


@serves(NODE_HISTORY)
async def list_node_attempts(call: RequestContext) -> list[NodeAttempt]:
    """Lists the attempts that ran on a machine, or on its parts, newest first. Raises NotFound for an unknown name."""
    server = call.server
    limit = int(call.number("limit", _DEFAULT_ATTEMPTS, 1, MOST_NODE_ATTEMPTS))
    nodes = nodes_named(server.state, call.request.match_info["node_id"])
    await server.loop.settled()
    found: list[NodeAttemptRow] = []
    for node_id in nodes:
        found += await server.read(server.store.node_attempts, node_id, call.user.visible_projects, limit)
    newest = {(row.job_id, row.attempt): row for row in sorted(found, key=lambda row: -row.leased_at)}
    return [_attempt_view(server.loop.clock, row) for row in list(newest.values())[:limit]]


def _attempt_view(clock: Clock, row: NodeAttemptRow) -> NodeAttempt:
    return view_of(
        NodeAttempt,
        row,
        job=row.job_id,
        leased_at=clock.unix(row.leased_at),
        started_at=None if row.started_at is None else clock.unix(row.started_at),
        ended_at=None if row.ended_at is None else clock.unix(row.ended_at),
    )
