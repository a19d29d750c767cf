"""`GET /report`: how the cluster did lately, against a bound on what any scheduler that knew the future could have
done.

The tables are read in a reader thread, and the report is computed in a process of its own, one at a time. Callers who
see only some projects get a report on these projects' jobs alone, bounded by themselves.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool

from aiohttp import web

from scheduler.live.http.requests import RequestContext, Route
from scheduler.live.loop.billing import month_of, open_charges
from scheduler.live.loop.event_loop import Overloaded
from scheduler.live.loop.worker_process import ask_worker_process
from scheduler.live.services.past_report import ReportQuestion, report_past
from scheduler.live.store.report_rows import PastQuery, PastRentRow, PastRows, PastUseRow
from scheduler.live.store.table_rows import ChargeKind, ChargeRow
from walras.cluster_report import LONGEST_REPORT_S, MOST_REPORTED, ClusterReport
from walras.errors import ClusterError, UserError

_DEFAULT_SINCE_S = 7 * 86_400
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

    async def report(self, call: RequestContext) -> web.StreamResponse:
        """Returns a `ClusterReport`. Raises UserError for too many jobs, Overloaded, and ClusterError for a timeout."""
        if self._asking > _WAITING_MOST:
            raise Overloaded("other reports are worked out; try again in a minute")
        self._asking += 1
        try:
            async with self._turn:
                question = await _question(call)
                body = await ask_worker_process(self._find, question, self._timeout_s)
        except (TimeoutError, BrokenProcessPool):
            raise ClusterError("the report was not worked out in time; ask for a shorter time") from None
        finally:
            self._asking -= 1
        return web.Response(body=body, content_type="application/json")


async def _question(call: RequestContext) -> ReportQuestion:
    server = call.server
    state, clock = server.state, server.loop.clock
    now, visible = clock.now(), call.user.visible_projects
    since_at = max(0.0, now - call.number("since_s", _DEFAULT_SINCE_S, 1, LONGEST_REPORT_S))
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


def report_routes() -> list[Route]:
    """Returns the route of the report, for every user."""
    return [
        Route("GET", "/api/v1/report", ReportDesk().report, "How the cluster did, against a proved bound",
              response=ClusterReport, query=("since_s",), waits=True),
    ]  # fmt: skip
