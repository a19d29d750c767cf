"""The run itself: jobs handed in at their times, the spot machine taken back, everything watched until the end."""

import asyncio
from datetime import UTC, datetime
from math import inf

import psutil

from walras.api import JobView, NodeView
from walras.demo.cluster import Cluster
from walras.demo.recording import Recording
from walras.demo.stage import Stage
from walras.demo.view import View
from walras.states import JobState

WATCH_EVERY_S = 0.5
PRICES_EVERY_S = 2.0
#: The run is given up after this long: a minute over what is promised.
GIVE_UP_S = 300.0
#: A machine is revoked when it has been training for a while, so that there is something to save, and when it still has
#: as much to do, so that there is somebody left to save it.
STEPS_BEFORE_REVOCATION = 20.0


class Run:
    """One run of a workload on a cluster that is up."""

    def __init__(self, stage: Stage, cluster: Cluster, view: View) -> None:
        self._stage = stage
        self._cluster = cluster
        self._view = view
        self._started = asyncio.get_running_loop().time()
        self._pending_incidents = sorted(stage.workload.incidents, key=lambda incident: incident.at)
        self.recording = Recording(epoch=datetime.now(UTC))
        #: Job ids in the order of the workload file; 0 until submitted.
        self.job_ids = [0] * len(stage.workload.jobs)

    @property
    def at_s(self) -> float:
        return asyncio.get_running_loop().time() - self._started

    async def play(self) -> bool:
        """Submit, watch, and answer whether everything ended in time."""
        try:
            async with asyncio.timeout(GIVE_UP_S), asyncio.TaskGroup() as tasks:
                tasks.create_task(self._submit_all())
                tasks.create_task(self._watch())
        except TimeoutError:
            self._view.say(self.at_s, [f"given up after {GIVE_UP_S:g} s"])
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
            submitted = await self._cluster.users[arrival.user].submit(spec)
            assert submitted.id is not None
            self.job_ids[row] = submitted.id
            urgent = f", priority {spec.priority}" if spec.priority != 50 else ""
            self._view.say(self.at_s, [f"{arrival.user} submits job {submitted.id} {spec.name}{urgent}"])

    async def _watch(self) -> None:
        psutil.cpu_percent()
        prices_due_s = 0.0
        while True:
            self._cluster.check_alive()
            jobs = [job async for job in self._cluster.admin.jobs()]
            nodes = await self._cluster.admin.nodes()
            lines = self.recording.note_nodes(nodes, self.at_s) + self.recording.note_jobs(jobs, self.at_s)
            if self.at_s >= prices_due_s:
                prices_due_s = self.at_s + PRICES_EVERY_S
                lines += self.recording.note_prices((await self._cluster.admin.prices()).items, self.at_s)
            lines += await self._revoke_if_due(nodes)
            self.recording.busy.append(psutil.cpu_percent() / 100.0)
            self._view.say(self.at_s, lines)
            self._view.show(jobs, nodes, self.recording.prices[-1].prices if self.recording.prices else ())
            if self._is_over(jobs):
                return
            await asyncio.sleep(WATCH_EVERY_S)

    def _is_over(self, jobs: list[JobView]) -> bool:
        return all(self.job_ids) and len(jobs) >= len(self.job_ids) and all(job.state.is_final for job in jobs)

    async def _revoke_if_due(self, nodes: list[NodeView]) -> list[str]:
        """Take back the machine of a due incident, once it trains something that has got somewhere."""
        if not self._pending_incidents or self.at_s < self._pending_incidents[0].at:
            return []
        incident = self._pending_incidents[0]
        for node in nodes:
            if node.pool == incident.revoke and node.state == "up" and any(map(self._is_worth_saving, node.jobs)):
                self._pending_incidents.pop(0)
                notice_s = self._stage.cluster.entry(incident.revoke).notice
                await self._cluster.admin.revoke_pool(incident.revoke, notice_s)
                return [f"the cloud takes {node.node_id} back: {notice_s:g} s notice"]
        return []

    def _is_worth_saving(self, job_id: int) -> bool:
        job = self.recording.jobs.get(job_id)
        left = inf if job is None or job.steps_total is None else job.steps_total - job.steps
        return (
            self.recording.states.get(job_id, ("", ""))[0] == JobState.RUNNING
            and self.recording.steps_in_attempt(job_id) >= STEPS_BEFORE_REVOCATION
            and left >= STEPS_BEFORE_REVOCATION
        )

    async def _note_details(self) -> None:
        for job_id in filter(None, self.job_ids):
            self.recording.jobs[job_id] = await self._cluster.admin.job(job_id)
