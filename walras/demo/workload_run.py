"""The run of the demo's workload: submits jobs at their times, has the spot machine revoked, and watches until the end.

While it runs it is shown as a live picture on a terminal, or as one line per change elsewhere. Observed are the newest
view of every job, and samples of machines, prices, speeds and processor use. The notes say what changed since the last
look; `walras.demo.main` judges them.
"""

import asyncio
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf
from statistics import median
from typing import Self

import psutil
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from walras.demo.local_cluster import DemoSetup, LocalCluster
from walras.resources.fleet import NodeView
from walras.resources.jobs import AttemptView, JobDetail, JobView
from walras.resources.prices import PriceView
from walras.states import JobState

#: A job is worth saving when it has made so many steps where it runs, and has as many left: what it saves is used.
STEPS_WORTH_SAVING = 20.0
#: So many seconds of work must be left as well: the job would else end before anything is done to its machine.
SECONDS_WORTH_SAVING = 4.0
#: Seconds in which a few windows of the in-job client are reported and shown.
SETTLED_S = 2.0


@dataclass(frozen=True, slots=True)
class PriceSample:
    at_s: float
    prices: tuple[PriceView, ...]


@dataclass(slots=True)
class NodeSpan:
    """A machine that belonged to the cluster from `from_s` to `to_s`, as far as polling can tell."""

    node: NodeView
    from_s: float
    to_s: float
    #: Whether a revocation notice was seen.
    left: bool = False


@dataclass(slots=True)
class AttemptProgress:
    """Steps and instants (seconds) of an attempt, as far as polling can tell."""

    #: Steps of the job when the attempt was first seen.
    first_steps: float
    steps: float = 0.0
    stepping_s: float | None = None
    stepping_steps: float = 0.0


@dataclass(frozen=True, slots=True)
class DemoJobSummary:
    """One row of the table of jobs."""

    job: JobDetail
    jct_s: float
    #: Accelerator types in the order in which they were used, repetitions removed.
    types: tuple[str, ...]


@dataclass(slots=True)
class DemoRecording:
    """Everything the report is made from. Seconds count from `epoch`, the instant of the first submission."""

    epoch: datetime
    jobs: dict[int, JobDetail] = field(default_factory=dict)
    nodes: dict[str, NodeSpan] = field(default_factory=dict)
    prices: list[PriceSample] = field(default_factory=list)
    #: Measured speeds of running jobs by (kind, accelerator), one entry per look.
    paces: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    #: Busy share of all processors, 0-1, one entry per look.
    busy: list[float] = field(default_factory=list)
    states: dict[int, tuple[str, str]] = field(default_factory=dict)
    #: Steps that the newest look left each job to do; infinity where it has not said how many it has.
    steps_left: dict[int, float] = field(default_factory=dict)
    #: The seconds that these steps take at the speed of the newest look; 0 where none was measured yet.
    seconds_left: dict[int, float] = field(default_factory=dict)
    #: By (job, attempt): the instant at which it was first observed, and at which it was first seen stepping.
    marks: dict[tuple[int, int], "AttemptProgress"] = field(default_factory=dict)

    def seconds(self, instant: str) -> float:
        """Returns the seconds from the epoch to an RFC 3339 instant."""
        return (datetime.fromisoformat(instant) - self.epoch).total_seconds()

    def note_jobs(self, jobs: Iterable[JobView], at_s: float) -> list[str]:
        """Records states and speeds; returns one line per job whose state or machine changed."""
        lines = []
        for job in jobs:
            self._mark(job, at_s)
            self.steps_left[job.id] = inf if job.steps_total is None else job.steps_total - job.steps
            self.seconds_left[job.id] = self.steps_left[job.id] / job.steps_per_s if job.steps_per_s else 0.0
            if job.accelerator and job.steps_per_s and self._is_settled(job, at_s):
                self.paces.setdefault((job.kind, job.accelerator), []).append(job.steps_per_s)
            where = job.accelerator or ""
            if self.states.get(job.id) != (job.state, where):
                self.states[job.id] = (job.state, where)
                lines.append(job_change_line(job))
        return lines

    def _is_settled(self, job: JobView, at_s: float) -> bool:
        """Returns whether the job has made steps for a while, so that its speed is not that of an earlier attempt."""
        marks = self.marks.get((job.id, job.attempts))
        settled = marks is not None and marks.stepping_s is not None and at_s - marks.stepping_s >= SETTLED_S
        return settled and job.state == "RUNNING"

    def _mark(self, job: JobView, at_s: float) -> None:
        if job.attempts == 0 or job.state not in ("STARTING", "RUNNING", "PREEMPTING"):
            return
        marks = self.marks.setdefault((job.id, job.attempts), AttemptProgress(job.steps))
        marks.steps = job.steps
        if marks.stepping_s is None and job.steps > marks.first_steps:
            marks.stepping_s, marks.stepping_steps = at_s, job.steps

    def steps_in_attempt(self, job_id: int) -> float:
        """Returns the steps of the job's newest attempt, as far as observed."""
        numbers = [attempt for job, attempt in self.marks if job == job_id]
        if not numbers:
            return 0.0
        marks = self.marks[job_id, max(numbers)]
        return marks.steps - marks.first_steps

    def has_trained(self, job_id: int) -> bool:
        """Returns whether the job runs and has trained for a while in its newest attempt."""
        is_running = self.states.get(job_id, ("", ""))[0] == JobState.RUNNING
        return is_running and self.steps_in_attempt(job_id) >= STEPS_WORTH_SAVING

    def is_worth_saving(self, job_id: int) -> bool:
        """Returns whether the job has trained for a while where it runs, and has as much to do."""
        is_far_from_done = (
            self.steps_left[job_id] >= STEPS_WORTH_SAVING and self.seconds_left[job_id] >= SECONDS_WORTH_SAVING
        )
        return is_far_from_done and self.has_trained(job_id)

    def note_nodes(self, nodes: Iterable[NodeView], at_s: float) -> list[str]:
        """Records the machines; returns one line per machine that joined, is leaving or left."""
        lines = []
        for node in nodes:
            gone = node.state in ("lost", "released")
            seen = self.nodes.get(node.node_id)
            if seen is None:
                self.nodes[node.node_id] = NodeSpan(node, at_s, at_s, left=node.state == "leaving")
                lines.append(f"machine {node.node_id} ({node.accelerators} x {node.accelerator}, {node.market}) joined")
                continue
            if node.state != seen.node.state:
                detail = f": {node.detail}" if node.detail else ""
                lines.append(f"machine {node.node_id} is {node.state}{detail}")
            seen.left = seen.left or node.state == "leaving"
            seen.node = node
            seen.to_s = seen.to_s if gone else at_s
        return lines

    def note_prices(self, prices: Sequence[PriceView], at_s: float) -> list[str]:
        """Records a sample of prices; returns a line if they differ from the last sample."""
        shown = prices_line(prices)
        changed = not self.prices or shown != prices_line(self.prices[-1].prices)
        if prices and changed:
            self.prices.append(PriceSample(at_s, tuple(prices)))
            return [f"prices: {shown}"]
        return []

    def pace(self, kind: str, accelerator: str) -> float | None:
        """Returns the median measured speed in steps per second, None if it was never measured."""
        values = self.paces.get((kind, accelerator))
        return median(values) if values else None

    def summary(self, job_id: int) -> DemoJobSummary:
        job = self.jobs[job_id]
        types: list[str] = []
        for attempt in started_attempts(job):
            if not types or types[-1] != attempt.accelerator:
                types.append(attempt.accelerator)
        end = job.ended_at or job.submitted_at
        return DemoJobSummary(job, self.seconds(end) - self.seconds(job.submitted_at), tuple(types))

    def rank_starts(self) -> int:
        """Returns the ranks started over all jobs: one per accelerator of every attempt that reached its start."""
        return sum(attempt.accelerators for job in self.jobs.values() for attempt in started_attempts(job))


def started_attempts(job: JobDetail) -> list[AttemptView]:
    """Returns the attempts whose ranks were started, in order."""
    return [attempt for attempt in job.attempt_list if attempt.started_at is not None]


def attempt_taken(job: JobDetail, machines: Container[str]) -> AttemptView | None:
    """Returns the job's first attempt that ended because one of these machines was taken away; None if none did."""
    for attempt in started_attempts(job):
        was_there = any(part.rpartition(":")[0] in machines for part in attempt.placement)
        if was_there and attempt.reason is not None and attempt.reason.is_infrastructure:
            return attempt
    return None


def job_change_line(job: JobView) -> str:
    """Returns one line for the plain view: what happened to a job."""
    where = f" on {job.accelerator}" if job.accelerator else ""
    why = f" ({job.reason})" if job.reason else ""
    steps = f", step {job.steps:.0f}" if job.steps else ""
    return f"job {job.id} {job.name}: {job.state}{where}{why}{steps}"


def prices_line(prices: Sequence[PriceView]) -> str:
    """Returns the prices of all pools on one line, rounded to three digits."""
    return "  ".join(f"{price.pool} {price.price:.3g}" for price in prices)


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

    def __exit__(self, *_: object) -> None:
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


class WorkloadRun:
    """One run of a workload on a cluster that is up."""

    def __init__(self, stage: DemoSetup, cluster: LocalCluster, view: LiveView) -> None:
        self._stage = stage
        self.cluster = cluster
        self._view = view
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
