"""The run of the demo's workload: submits jobs at their times, has the spot machine revoked, and watches until the end.

While it runs it is shown as a live picture on a terminal, or as one line per change elsewhere.
"""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Protocol, Self

import psutil
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from walras.api import JobView, NodeView, PriceView
from walras.demo.local_cluster import DemoSetup, LocalCluster
from walras.demo.observations import DemoRecording, attempt_taken, prices_line

#: The number of changes shown below the tables.
LAST_LINES = 8


class LiveView:
    """Shows the state of the cluster; use as a context manager."""

    def __init__(self, console: Console, *, live: bool) -> None:
        self._console = console
        self._live = (
            Live(console=console, refresh_per_second=4, transient=True) if live and console.is_terminal else None
        )
        self._lines: list[str] = []

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, at_s: float, lines: Iterable[str]) -> None:
        """Shows lines on what changed."""
        for line in lines:
            text = f"{at_s:6.1f} s  {line}"
            self._lines = [*self._lines[-(LAST_LINES - 1) :], text]
            if self._live is None:
                self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, jobs: Sequence[JobView], nodes: Sequence[NodeView], prices: Sequence[PriceView]) -> None:
        """Draws the present state (terminals only)."""
        if self._live is not None:
            below = Text("\n".join([f"prices: {prices_line(prices)}", "", *self._lines]))
            self._live.update(Group(_node_table(nodes), _job_table(jobs), below))


def _node_table(nodes: Sequence[NodeView]) -> Table:
    table = Table(title="machines (emulated accelerators)", title_justify="left")
    for name in ("machine", "type", "market", "state", "free", "jobs"):
        table.add_column(name)
    for node in nodes:
        busy = " ".join(str(job) for job in node.jobs)
        free = f"{node.free} of {node.accelerators}"
        table.add_row(escape(node.node_id), node.accelerator, node.market, node.state, free, busy)
    return table


def _job_table(jobs: Sequence[JobView]) -> Table:
    table = Table(title="jobs", title_justify="left")
    for name in ("job", "name", "user", "state", "on", "step", "steps/s", "loss", "reason"):
        table.add_column(name, no_wrap=True)
    for job in jobs:
        loss = job.last_values.get("loss")
        total = f" of {job.steps_total:.0f}" if job.steps_total else ""
        table.add_row(
            str(job.id),
            escape(job.name),
            escape(job.user),
            job.state,
            job.accelerator or "",
            f"{job.steps:.0f}{total}",
            f"{job.steps_per_s:.1f}" if job.steps_per_s else "",
            f"{loss:.3f}" if loss is not None else "",
            job.reason or "",
        )
    return table


WATCH_EVERY_S = 0.5
PRICES_EVERY_S = 2.0
#: Seconds after which the run is given up: a minute more than what is promised.
GIVE_UP_S = 300.0


class Drill(Protocol):
    """Something that is done to the machines while the workload runs."""

    async def look(self, run: "WorkloadRun", nodes: Sequence[NodeView]) -> list[str]:
        """Does it if it is due; returns lines on what was done."""


class WorkloadRun:
    """One run of a workload on a cluster that is up."""

    def __init__(
        self,
        stage: DemoSetup,
        cluster: LocalCluster,
        view: LiveView,
        drills: Sequence[Drill] = (),
        give_up_s: float = GIVE_UP_S,
    ) -> None:
        self._stage = stage
        self.cluster = cluster
        self._view = view
        self._drills, self._give_up_s = drills, give_up_s
        self._started = asyncio.get_running_loop().time()
        self._pending_incidents = sorted(stage.workload.incidents, key=lambda incident: incident.at)
        #: The machine of the first pending incident, as it was when it was revoked.
        self._taken: NodeView | None = None
        self.recording = DemoRecording(epoch=datetime.now(UTC))
        #: Job ids in the order of the workload file; 0 until submitted.
        self.job_ids = [0] * len(stage.workload.jobs)

    @property
    def at_s(self) -> float:
        return asyncio.get_running_loop().time() - self._started

    async def play(self) -> bool:
        """Submits and watches the jobs; returns whether everything ended in time."""
        try:
            async with asyncio.timeout(self._give_up_s), asyncio.TaskGroup() as tasks:
                tasks.create_task(self._submit_all())
                tasks.create_task(self._watch())
        except TimeoutError:
            self._view.say(self.at_s, [f"given up after {self._give_up_s:g} s"])
            return False
        finally:
            await asyncio.shield(self._note_details())
        return True

    async def _submit_all(self) -> None:
        rows = sorted(range(len(self.job_ids)), key=lambda row: self._stage.workload.jobs[row].at)
        for row in rows:
            arrival = self._stage.workload.jobs[row]
            await asyncio.sleep(max(0.0, arrival.at - self.at_s))
            spec = self._stage.spec(arrival)
            submitted = await self.cluster.users[arrival.user].submit(spec)
            assert submitted.id is not None
            self.job_ids[row] = submitted.id
            urgent = f", priority {spec.priority}" if spec.priority != 50 else ""
            self._view.say(self.at_s, [f"{arrival.user} submits job {submitted.id} {spec.name}{urgent}"])

    async def _watch(self) -> None:
        psutil.cpu_percent()
        prices_due_s = 0.0
        while True:
            self.cluster.check_alive()
            jobs = [job async for job in self.cluster.admin.jobs()]
            nodes = await self.cluster.admin.nodes()
            lines = self.recording.note_nodes(nodes, self.at_s) + self.recording.note_jobs(jobs, self.at_s)
            if self.at_s >= prices_due_s:
                prices_due_s = self.at_s + PRICES_EVERY_S
                lines += self.recording.note_prices((await self.cluster.admin.prices()).items, self.at_s)
            lines += await self._revoke_if_due(nodes)
            for drill in self._drills:
                lines += await drill.look(self, nodes)
            self.recording.busy.append(psutil.cpu_percent() / 100.0)
            self._view.say(self.at_s, lines)
            self._view.show(jobs, nodes, self.recording.prices[-1].prices if self.recording.prices else ())
            if self._is_over(jobs):
                return
            await asyncio.sleep(WATCH_EVERY_S)

    def _is_over(self, jobs: list[JobView]) -> bool:
        return all(self.job_ids) and len(jobs) >= len(self.job_ids) and all(job.state.is_final for job in jobs)

    async def _revoke_if_due(self, nodes: list[NodeView]) -> list[str]:
        """Revokes the machine of a due incident once a job trains there that it will interrupt.

        The policy may take that job off, or the job may end, in the same moment: then the next machine of the pool is
        revoked too, since what a revocation does was not seen.
        """
        if self._taken is not None:
            if any(node.node_id == self._taken.node_id and node.state in ("up", "leaving") for node in nodes):
                return []
            if await self._was_interrupted(self._taken):
                self._pending_incidents.pop(0)
            self._taken = None
        if not self._pending_incidents or self.at_s < self._pending_incidents[0].at:
            return []
        incident = self._pending_incidents[0]
        for node in nodes:
            is_due = node.pool == incident.revoke and node.state == "up"
            if is_due and any(map(self.recording.is_worth_saving, node.jobs)):
                notice_s = self._stage.cluster.entry(incident.revoke).notice
                await self.cluster.admin.revoke_pool(incident.revoke, notice_s)
                self._taken = node
                return [f"the cloud takes {node.node_id} back: {notice_s:g} s notice"]
        return []

    async def _was_interrupted(self, node: NodeView) -> bool:
        """Returns whether a job that was on the machine lost it to the revocation."""
        details = [await self.cluster.admin.job(job_id) for job_id in node.jobs]
        return any(attempt_taken(job, (node.node_id,)) is not None for job in details)

    async def _note_details(self) -> None:
        for job_id in filter(None, self.job_ids):
            self.recording.jobs[job_id] = await self.cluster.admin.job(job_id)
