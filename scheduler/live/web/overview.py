"""Builds the overview of the cluster, which `GET /overview` answers and which open pages are sent repeatedly.

What it says of jobs, machines and prices comes from the views of the API. It adds where jobs are placed on machines,
the order of the queue, the prices of the last solves, and alerts for people.

Streams the overview to all open pages. One task builds it, however many pages are open, and each change is encoded
once for all pages whose users see the same projects.

A page receives server-sent events. The first holds the whole overview, later ones the fields that have changed. The
stream of a page that does not read its messages is ended, and the page opens a new one. After an overview the task
pauses at least twenty times as long as it took, so that pages use at most a twentieth of the server.
"""

import asyncio
import contextlib
import json
import logging
import sqlite3
from collections import Counter, deque
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any

from scheduler.core.events import Solved
from scheduler.live.loop import billing
from scheduler.live.loop.event_loop import CooperativeYield
from scheduler.live.loop.transaction import TransactionEffects
from scheduler.live.server import Server
from scheduler.live.services.views import order_of_queue
from scheduler.live.store.store_interface import MoneyQuery
from walras.cluster import NodeId
from walras.errors import ClusterError
from walras.job_request import JobId
from walras.resources.fleet import NodeView
from walras.resources.jobs import JobView
from walras.resources.overview import ClusterAlert, FreeAccelerators, MachineCells, MoneyNow, Overview, PricePoint
from walras.resources.prices import PriceList
from walras.states import JobState, Reason

#: How many waiting jobs are shown with their reasons, and how many jobs that hold accelerators by name.
_QUEUE_MOST, _NAMES_MOST = 50, 1000
#: How many solves since the start of the server are remembered with their prices, which pages draw as a line.
_HISTORY_MOST = 240
#: The ledger of money is summed at most this often, seconds.
_MONEY_EVERY_S = 20.0
_ALERTS_MOST = 50
#: A relative gap of the certificate above this raises an alert.
_LARGE_GAP = 0.05

Projects = tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class _SeenJobs:
    """The names of jobs that hold machines, and how many jobs are in each state."""

    names: dict[str, str]
    counts: dict[str, int]
    usd_per_h: float
    repeated_failures: list[JobId]


class OverviewBuilder:
    """Builds overviews. It is an effect handler of the loop too, which remembers the prices of solves."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._history: deque[PricePoint] = deque(maxlen=_HISTORY_MOST)
        self._price_unit = ""
        self._money: dict[Projects, tuple[float, MoneyNow]] = {}

    def deliver(self, effects: TransactionEffects) -> None:
        """Remember the prices of each solve, as long as they are in one unit."""
        for event, _ in effects.answered:
            if isinstance(event, Solved):
                found = {
                    str(pool): price for pool, price in zip(event.proposal.pools, event.proposal.prices, strict=False)
                }
                if event.proposal.price_unit != self._price_unit:
                    self._history.clear()
                    self._price_unit = event.proposal.price_unit
                self._history.append(PricePoint(at=self._server.loop.clock.unix(event.at), prices=found))

    async def build(self, projects: Projects) -> Overview:
        """Returns the overview for a user who sees these projects (None: all)."""
        server = self._server
        seen = await self._seen(projects)
        order = await order_of_queue(
            server.core, _QUEUE_MOST, lambda job: projects is None or job.request.project in projects
        )
        nodes, prices = server.views.nodes(), server.views.prices()
        here = [node for node in nodes if _is_shown(node)]
        return Overview(
            as_of=server.loop.clock.shown(server.loop.clock.now()),
            policy=server.policies.in_force.spec.name if server.policies.has_policy else "",
            counts=seen.counts,
            types=_free_by_type(here),
            machines=[self._cells(node) for node in here],
            pools=prices.items,
            certificate=prices.certificate,
            history=list(self._history),
            queue=await self._queue(order),
            waiting=seen.counts.get(JobState.PENDING, 0),
            names=seen.names,
            money=await self._money_now(projects, seen.usd_per_h),
            alerts=self._alerts(nodes, prices, seen.repeated_failures)[:_ALERTS_MOST],
        )

    def _cells(self, node: NodeView) -> MachineCells:
        state = self._server.state
        held = state.devices_held(state.nodes[NodeId(node.node_id)])
        return MachineCells(
            node_id=node.node_id,
            machine=node.machine,
            pool=node.pool,
            accelerator=node.accelerator,
            state=node.state,
            detail=node.detail,
            cells=[int(held.get(device, 0)) for device in range(node.accelerators)],
        )

    async def _seen(self, projects: Projects) -> _SeenJobs:
        names: dict[str, str] = {}
        counts: Counter[str] = Counter()
        usd_per_h, failed = 0.0, []
        cooperative = CooperativeYield()
        for job in list(self._server.state.jobs.values()):
            row, attempt = job.row, job.attempt
            seen = projects is None or row.project in projects
            if seen:
                counts[row.state.value] += 1
                if row.reason is Reason.HOLD_REPEATED_FAILURE:
                    failed.append(row.job_id)
            if attempt is not None and seen:
                usd_per_h += attempt.row.usd_per_h
                if len(names) < _NAMES_MOST:
                    names[str(row.job_id)] = row.name
            await cooperative.yield_if_due()
        return _SeenJobs(names, dict(counts), usd_per_h, failed)

    async def _queue(self, job_ids: tuple[JobId, ...]) -> list[JobView]:
        state, server = self._server.state, self._server
        rows = [state.jobs[job_id].row for job_id in job_ids if job_id in state.jobs]
        usage = await server.read(server.store.usage, [row.job_id for row in rows], server.loop.clock.now())
        return await server.views.jobs(rows, usage)

    async def _money_now(self, projects: Projects, usd_per_h: float) -> MoneyNow:
        """Returns the money of this month, USD; sums at most `_MONEY_EVERY_S` old are reused."""
        server, now = self._server, self._server.loop.clock.now()
        known = self._money.get(projects)
        if known is None or not 0.0 <= now - known[0] < _MONEY_EVERY_S:
            month = billing.month_of(server.loop.clock.unix(now))
            query = MoneyQuery("month", server.state.next_charge_id, month, "", projects)
            open_now = billing.sum_charges(billing.open_charges(server.state, now), query)
            written = await server.read(server.store.money, query, [month])
            told = billing.spending_report(query, [*written, *open_now])
            summed = MoneyNow(month=month, spent_usd=told.total_usd, on_demand_usd=told.on_demand_usd, usd_per_h=0.0)
            known = self._money[projects] = (now, summed)
        return known[1].model_copy(update={"usd_per_h": usd_per_h})

    def _alerts(self, nodes: list[NodeView], prices: PriceList, failed: list[JobId]) -> list[ClusterAlert]:
        server = self._server
        found: list[ClusterAlert] = []

        def add(level: str, subject: str, text: str) -> None:
            found.append(ClusterAlert(level=level, subject=subject, text=text))

        if not server.loop.is_store_writable:
            add("error", "store", "The database cannot be written; what runs goes on, and nothing new is taken.")
        if server.solver.state not in ("ok", "starting"):
            add("warning", "solver", f"The solver: {server.solver.state}. The policy keeps its last answer.")
        if server.policies.has_policy and (why := server.policies.in_force.put_back):
            add("error", "policy", f"The policy was put back: {why}")
        for node in nodes:
            if node.state in ("unreachable", "quarantined", "lost") or node.problem:
                level = "warning" if node.state in ("up", "quarantined") else "error"
                told = node.detail or "takes no jobs"
                add(level, f"machine {node.node_id}", f"{node.node_id} is {node.state}: {told}")
        gap = 0.0 if prices.certificate is None else prices.certificate.gap
        if gap > _LARGE_GAP:
            add("warning", "solver", f"The last answer may be {gap:.1%} from the best possible one.")
        for job_id in failed[:_ALERTS_MOST]:
            add("warning", f"job {job_id}", f"Job {job_id} is held because it failed again and again.")
        return found


def _is_shown(node: NodeView) -> bool:
    """Returns whether the machine is here; lost and released ones are shown in the list of machines only."""
    return node.state not in ("lost", "released")


def _free_by_type(nodes: list[NodeView]) -> list[FreeAccelerators]:
    free: Counter[str] = Counter()
    capacity: Counter[str] = Counter()
    for node in nodes:
        free[node.accelerator] += node.free
        capacity[node.accelerator] += node.accelerators if node.state == "up" else 0
    return [FreeAccelerators(accelerator=name, free=free[name], capacity=capacity[name]) for name in sorted(capacity)]


log = logging.getLogger(__name__)

#: The least pause between two overviews, seconds, and the pause as a multiple of the time that the last one took.
_PACE_S, _PART = 2.0, 20.0
#: The most streams at once; a page beyond that has to ask again later.
_STREAMS_MOST = 500
#: Messages that may wait for a page to read them.
_UNREAD_MOST = 8
#: A heartbeat is sent after this many seconds without a message, so that closed connections are noticed.
_QUIET_S = 15.0
#: Seconds for which the last overview is kept after the last page was closed: a page is often loaded again.
_KEPT_S = 10.0
_HEARTBEAT = b": still here\n\n"


class TooManyPages(ClusterError):
    """More pages are open than the server is willing to serve."""


#: One open page: its messages that are not sent yet; None ends the stream.
_OpenPage = asyncio.Queue[bytes | None]


@dataclass(slots=True)
class _Audience:
    """The pages whose users see the same projects, and the fields of the overview that these were last sent."""

    pages: set[_OpenPage] = field(default_factory=set)
    sent: dict[str, str] = field(default_factory=dict)
    #: When the last page was closed, by the loop's clock.
    left_at: float = 0.0


class OverviewStream:
    def __init__(self, server: Server) -> None:
        self._server = server
        self.builder = OverviewBuilder(server)
        self._audiences: dict[Projects, _Audience] = {}
        self._task: asyncio.Task[None] | None = None
        #: Set when a page is opened for projects of which no fresh overview exists.
        self._is_awaited = asyncio.Event()

    @property
    def pages(self) -> int:
        """How many pages are open."""
        return sum(len(audience.pages) for audience in self._audiences.values())

    async def messages(self, projects: Projects) -> AsyncGenerator[bytes, None]:
        """Yields the messages for one page until it reads too slowly or the server stops. Raises TooManyPages."""
        if self.pages >= _STREAMS_MOST:
            raise TooManyPages("too many pages are open")
        page, audience = _OpenPage(_UNREAD_MOST), self._audiences.setdefault(projects, _Audience())
        if audience.sent:
            page.put_nowait(_message(audience.sent))
        if not (audience.sent and audience.pages):
            self._is_awaited.set()
        audience.pages.add(page)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._send_for_ever(), name="pages")
        try:
            while True:
                message = await _next_message(page)
                if message is None:
                    return
                yield message
        finally:
            audience.pages.discard(page)
            audience.left_at = asyncio.get_running_loop().time()

    async def close(self) -> None:
        """End all streams."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        for audience in self._audiences.values():
            for page in audience.pages:
                _leave_behind(page)

    async def _send_for_ever(self) -> None:
        """Build and send overviews while a page is open, and for `_KEPT_S` longer.

        One that the database refuses is left out.
        """
        loop = asyncio.get_running_loop()
        while self._audiences:
            began_at = loop.time()
            self._is_awaited.clear()
            for projects, audience in list(self._audiences.items()):
                if audience.pages:
                    try:
                        await self._send(projects, audience)
                    except (OSError, sqlite3.OperationalError, ClusterError) as error:
                        log.warning("pages keep what they show: %s", error)
                elif began_at - audience.left_at > _KEPT_S:
                    del self._audiences[projects]
            pause_s = max(_PACE_S, _PART * (loop.time() - began_at))
            # Not `wait_for`: it loses a cancellation that comes at the same moment as the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._is_awaited.wait()

    async def _send(self, projects: Projects, audience: _Audience) -> None:
        overview = await self.builder.build(projects)
        # Encoding thousands of cells takes milliseconds, so it is not done in the loop's thread.
        fields = await self._server.read(_texts_of_fields, overview.model_dump)
        changed = {name: text for name, text in fields.items() if audience.sent.get(name) != text}
        audience.sent = fields
        if not changed:
            return
        message = _message(changed)
        for page in audience.pages:
            try:
                page.put_nowait(message)
            except asyncio.QueueFull:
                _leave_behind(page)


def _texts_of_fields(dump: Any) -> dict[str, str]:
    """Returns the overview as JSON texts by name of the field."""
    whole: Mapping[str, Any] = dump(mode="json", exclude_none=True)
    return {name: json.dumps(value, separators=(",", ":"), ensure_ascii=False) for name, value in whole.items()}


def _message(fields: Mapping[str, str]) -> bytes:
    """Returns a server-sent event with these fields, on one line, since JSON holds no line break."""
    body = ",".join(f'"{name}":{text}' for name, text in fields.items())
    return f"event: overview\ndata: {{{body}}}\n\n".encode()


async def _next_message(page: _OpenPage) -> bytes | None:
    try:
        return await asyncio.wait_for(page.get(), _QUIET_S)
    except TimeoutError:
        return _HEARTBEAT


def _leave_behind(page: _OpenPage) -> None:
    """Drop the messages that the page has not read, and end its stream."""
    while not page.empty():
        page.get_nowait()
    page.put_nowait(None)
