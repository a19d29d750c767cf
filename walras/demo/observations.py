"""What the demo observed: the newest view of every job, and samples of machines, prices, speeds and processor use.

The notes say what changed since the last look; `walras.demo.run_report` judges them.
"""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from statistics import median

from walras.api import AttemptView, JobDetail, JobView, NodeView, PriceView
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
