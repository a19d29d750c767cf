"""Builds the overview of the cluster, which `GET /overview` answers and which open pages are sent repeatedly.

What it says of jobs, machines and prices comes from the views of the API. It adds where jobs are placed on machines,
the order of the queue, the prices of the last solves, and alerts for people.
"""

from collections import Counter, deque
from dataclasses import dataclass

from scheduler.core.core import SchedulerCore
from scheduler.core.events import Solved
from scheduler.live.loop import billing
from scheduler.live.loop.event_loop import CooperativeYield
from scheduler.live.loop.transaction import TransactionEffects
from scheduler.live.server import Server
from scheduler.live.store.store_interface import MoneyQuery
from walras.api import JobView, NodeView, PriceList
from walras.cluster import NodeId
from walras.job_request import JobId
from walras.overview import ClusterAlert, FreeAccelerators, MachineCells, MoneyNow, Overview, PricePoint
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

#: How many entries of each queue are looked at: jobs of the projects asked for may be far behind.
_LOOK_AT = 2000

Projects = tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class QueueOrder:
    """The beginning of the queue, and its length."""

    #: The jobs that are next, in order.
    first: tuple[JobId, ...]
    #: How many jobs wait, held ones included.
    waiting: int


def order_of_queue(core: SchedulerCore, most: int, projects: frozenset[str] | None = None) -> QueueOrder:
    """Returns the first `most` jobs of these projects (None: of all) in the queue's order, and how many of them wait.

    First come jobs in queues, by their most urgent key in any pool; a job that fits may still start out of turn
    (backfill). Behind them come jobs that cannot start even in a free place: they wait for other jobs, for an instant,
    for a preemption, or are held. Nothing of the core is changed.
    """
    jobs = core.ledger.jobs
    waiting = {
        job_id: job
        for job_id, job in jobs.items()
        if job.state in (JobState.PENDING, JobState.HELD) and (projects is None or job.request.project in projects)
    }
    first: list[JobId] = []
    for job_id in core.cycle.queues.in_order(_LOOK_AT):
        if len(first) >= most:
            break
        if job_id in waiting:
            first.append(job_id)
    if len(first) < most:
        seen = set(first)
        others = [job for job_id, job in waiting.items() if job_id not in seen]
        # Of jobs in no queue, those that may start soonest come first, and held ones last.
        others.sort(
            key=lambda job: (job.state is JobState.HELD, bool(job.blocked_by), job.ready_at, job.request.job_id)
        )
        first += [job.request.job_id for job in others[: most - len(first)]]
    return QueueOrder(tuple(first), len(waiting))


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
        self._money: dict[Projects, tuple[float, MoneyNow]] = {}

    def deliver(self, effects: TransactionEffects) -> None:
        """Remember the prices of each solve."""
        for event, _ in effects.answered:
            if isinstance(event, Solved):
                found = {
                    str(pool): price for pool, price in zip(event.proposal.pools, event.proposal.prices, strict=False)
                }
                self._history.append(PricePoint(at=self._server.loop.clock.unix(event.at), prices=found))

    async def build(self, projects: Projects) -> Overview:
        """Returns the overview for a user who sees these projects (None: all)."""
        server = self._server
        seen = await self._seen(projects)
        order = order_of_queue(server.core, _QUEUE_MOST, None if projects is None else frozenset(projects))
        nodes, prices = server.views.nodes(), server.views.prices()
        return Overview(
            as_of=server.loop.clock.shown(server.loop.clock.now()),
            policy=server.policies.in_force.spec.name if server.policies.has_policy else "",
            counts=seen.counts,
            types=_free_by_type(nodes),
            machines=[self._cells(node) for node in nodes if _is_shown(node)],
            pools=prices.items,
            certificate=prices.certificate,
            history=list(self._history),
            queue=await self._queue(order.first),
            waiting=order.waiting,
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
        if node.state == "up":
            free[node.accelerator] += node.free
            capacity[node.accelerator] += node.accelerators
    return [FreeAccelerators(accelerator=name, free=free[name], capacity=capacity[name]) for name in sorted(capacity)]
