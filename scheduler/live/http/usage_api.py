"""Endpoints about the past of accelerators: who held them for how long and at what cost, and what one more was worth.

Use is read from the ledger of money and from the open charges, both as of one instant. Callers who see only some
projects are told of these projects' jobs alone, and not of other people or their hours.
"""

from collections.abc import Sequence
from itertools import groupby

from aiohttp import web

from scheduler.live.http.requests import RequestContext, Route
from scheduler.live.loop.billing import month_of, open_charges
from scheduler.live.loop.event_loop import Clock
from scheduler.live.store.price_hours import PriceQuery, PriceRow
from scheduler.live.store.usage_sums import AttemptUse, UsageQuery, use_of_charge
from walras.accelerator_worth import LONGEST_WORTH_S, MOST_HOURS, WorthHour, WorthReport
from walras.cluster import Market, Pool
from walras.errors import NotFound, UserError
from walras.usage import LONGEST_USAGE_S, MOST_USES, TypePrice, UsageReport, UsageRow

_DEFAULT_SINCE_S = 30 * 86_400
#: The most attempts that are read for one answer.
_MOST_ATTEMPTS = 4 * MOST_USES


async def show_usage(call: RequestContext) -> web.StreamResponse:
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
    body = await server.read(_report, clock, (since_at, now), (written, open_now), prices, visible is not None)
    return web.Response(body=body, content_type="application/json")


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


async def show_worth(call: RequestContext) -> web.StreamResponse:
    """Returns what one more accelerator of each pool was worth, hour by hour.

    Raises NotFound for an unknown pool, UserError where there is more than one answer may hold.
    """
    server, clock = call.server, call.server.loop.clock
    now, pool = clock.now(), call.request.query.get("pool", "")
    since_at = max(0.0, now - call.number("since_s", _DEFAULT_WORTH_S, 1, LONGEST_WORTH_S))
    if pool and pool not in server.state.pools:
        raise NotFound(f"no pool {pool[:100]}", field="pool", fix="check `walras admin pool list`")
    open_now = {(row.since_at, row.pool_id): row for row in server.state.price_history.open_rows()}
    await server.loop.settled()
    written = await server.read(server.store.price_hours, PriceQuery(since_at, pool, MOST_HOURS + 1))
    if len(written) > MOST_HOURS:
        fix = "ask for less: a shorter --since, or one --pool"
        raise UserError(f"more than {MOST_HOURS:,} hours of pools", field="since_s", fix=fix)
    rows = {(row.since_at, row.pool_id): row for row in written}
    rows |= {key: row for key, row in open_now.items() if pool in ("", row.pool_id)}
    body = await server.read(_worth_report, clock, (since_at, now), [rows[key] for key in sorted(rows)])
    return web.Response(body=body, content_type="application/json")


def _worth_report(clock: Clock, window: tuple[float, float], rows: Sequence[PriceRow]) -> bytes:
    items = [
        WorthHour(
            pool=row.pool_id,
            since=clock.unix(row.since_at),
            until=clock.unix(row.until_at),
            seconds=row.seconds,
            price=row.price,
            unit=row.unit,
            usd_per_h=row.usd_per_h,
            rent_usd_per_h=row.rent_usd_per_h,
        )
        for row in rows
    ]
    report = WorthReport(since=clock.unix(window[0]), until=clock.unix(window[1]), items=items)
    return report.model_dump_json().encode()


def usage_routes() -> list[Route]:
    """Returns the routes about the past of accelerators, for every user."""
    return [
        Route("GET", "/api/v1/worth", show_worth, "What one more accelerator was worth, hour by hour",
              response=WorthReport, query=("since_s", "pool")),
        Route("GET", "/api/v1/usage", show_usage, "What jobs held of each accelerator type, and when",
              response=UsageReport, query=("since_s", "type")),
    ]  # fmt: skip
