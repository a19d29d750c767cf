"""What is known: active jobs as columns, with a cold record each; the fleet; prices in force.

One slot per active job; a slot is freed when the job ends, so memory is linear in active jobs. The numpy columns hold
what a solve or a round plan reads for all jobs at once; everything else about a job is in its `JobRecord`. Only the
core's handlers write here.

`owed` is the integral of (entitled - received) accelerator-seconds by pool, over the pools where the job is entitled to
something; service on other pools is a gift that is not counted.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import exp, inf

import numpy as np
from numpy.typing import NDArray

from optimizer.decision import Memory, Quote
from optimizer.policy import PlanPolicy, PolicySpec, PricingPolicy
from scheduler.core.classes import JobClass, JobClasses
from scheduler.core.events import Proposal
from scheduler.core.fleet import Fleet, Place
from scheduler.core.rules import RoundRules
from scheduler.core.throughput import RestartCosts, ThroughputTable
from walras.cluster import Placement, Rendezvous
from walras.ids import JobId, NodeId
from walras.reasons import Reason
from walras.request import JobRequest
from walras.states import JobState

#: Finished jobs whose lengths are remembered.
FINISHED_MAX = 512
#: A job that has done so many times the steps it was said to have is believed to be of unknown length: it must not
#: keep its place for ever by being always about to end.
OVERDUE = 1.1


@dataclass(slots=True)
class JobRecord:
    """The cold part of an active job."""

    request: JobRequest
    slot: int
    #: Row of `JobClasses.classes`: as what it runs, or is to run next (an elastic job may be given another size).
    class_row: int
    state: JobState = JobState.PENDING
    #: Number of the newest attempt (its fence); 0 before the first.
    attempt: int = 0
    #: Attempts charged against `retry.max_restarts`, and ends that were the world's fault.
    restarts: int = 0
    misfortunes: int = 0
    #: Starts in a row that never got a rank running.
    refusals: int = 0
    #: Ends by exit 85 without having made a step since the start.
    idle_yields: int = 0
    #: It was stopped once and had saved nothing: stopping it again would cost all it has done.
    loses_work: bool = False
    steps: float = 0.0
    #: Steps at the newest recorded checkpoint, and at the start of this attempt.
    safe_steps: float = 0.0
    start_steps: float = 0.0

    # -- of the current attempt; meaningless while `place` is empty
    place: Place = ()
    placement: Placement | None = None
    leased_at: float = 0.0
    #: When all ranks were up; inf before.
    running_at: float = inf
    prepared: set[NodeId] = field(default_factory=set)
    rendezvous: Rendezvous | None = None
    #: Set once the attempt has been told to stop.
    revoked: Reason | None = None
    #: A checkpoint was recorded in this attempt.
    saved: bool = False
    #: The cost of this start has been heard of.
    start_told: bool = False
    #: It had no share of its pool when it started there: the first to go.
    opportunist: bool = False
    #: Started to learn a speed: protected from challengers until this instant.
    profiling_until: float = -inf
    #: Machines of the attempt that are lost.
    lost: set[NodeId] = field(default_factory=set)

    #: Row of the pool that it was moved to, or is to be, because its deadline is near; -1: none.
    sure_pool: int = -1

    # -- of a waiting job
    #: Not started before this instant (backoff, not_before).
    ready_at: float = -inf
    blocked_by: set[JobId] = field(default_factory=set)
    #: What may be spent for it is spent: it may not start.
    unpaid: bool = False
    #: Hold it as soon as its attempt has ended.
    hold_reason: Reason | None = None
    #: That of every request of the job.
    job_id: JobId = field(init=False)

    def __post_init__(self) -> None:
        self.job_id = self.request.job_id

    @property
    def holds(self) -> bool:
        """True while it holds accelerators."""
        return bool(self.place)

    @property
    def waits(self) -> bool:
        """True if it could start now, were there a place."""
        return self.state is JobState.PENDING and not self.blocked_by and not self.place and not self.unpaid


@dataclass(slots=True)
class Standing:
    """The policy in force and what its last answer left behind."""

    spec: PolicySpec
    #: The policy, if it answers with shares or plans, and with prices; None for one that only ranks.
    sharing: PricingPolicy | None
    rules: RoundRules
    memory: Memory = None
    quote: Quote | None = None
    proposal: Proposal | None = None
    solved_at: float = -inf

    @property
    def plans(self) -> bool:
        """Whether the policy says who runs where, event by event."""
        return isinstance(self.sharing, PlanPolicy)


class Columns:
    """The columns, grown by doubling. Rows of free slots hold leftovers and have `active` False."""

    def __init__(self) -> None:
        size = 64
        self.pools = 0
        self.active: NDArray[np.bool_] = np.zeros(size, bool)
        self.job_id: NDArray[np.int64] = np.zeros(size, np.int64)
        self.class_row: NDArray[np.int64] = np.zeros(size, np.int64)
        #: The class as which its newest attempt was started.
        self.runs_as: NDArray[np.int64] = np.zeros(size, np.int64)
        self.priority_class: NDArray[np.int64] = np.zeros(size, np.int64)
        self.weight: NDArray[np.float64] = np.zeros(size)
        self.value_usd_per_h: NDArray[np.float64] = np.zeros(size)
        self.entity: NDArray[np.int64] = np.zeros(size, np.int64)
        self.submitted_at: NDArray[np.float64] = np.zeros(size)
        self.deadline_at: NDArray[np.float64] = np.zeros(size)
        self.steps_total: NDArray[np.float64] = np.zeros(size)
        self.steps: NDArray[np.float64] = np.zeros(size)
        #: When `steps` was last heard of in this attempt (or its ranks came up); inf while none runs.
        self.steps_at: NDArray[np.float64] = np.full(size, inf)
        #: The submitter's guess of the whole run on the best accelerator; inf without one.
        self.duration_s: NDArray[np.float64] = np.full(size, inf)
        #: True for a job that may be given accelerators: it waits or runs, and nothing but a place is missing.
        self.eligible: NDArray[np.bool_] = np.zeros(size, bool)
        #: Accelerators of the largest gang it may run as.
        self.gang: NDArray[np.float64] = np.ones(size)
        #: Pool it holds accelerators in (-1: none), how many, and whether it is entitled there.
        self.pool: NDArray[np.int64] = np.full(size, -1, np.int64)
        self.count: NDArray[np.float64] = np.zeros(size)
        #: Accelerator-seconds received, and the instant up to which the row is settled.
        self.attained_s: NDArray[np.float64] = np.zeros(size)
        self.settled_at: NDArray[np.float64] = np.zeros(size)
        #: What it had received when an order policy last began to count its service anew.
        self.renewed_at_s: NDArray[np.float64] = np.zeros(size)
        #: When it last began, or ended, to hold accelerators; else its submission.
        self.since_at: NDArray[np.float64] = np.zeros(size)
        self.entitled: NDArray[np.float64] = np.zeros((size, 0))
        self.owed: NDArray[np.float64] = np.zeros((size, 0))
        #: Accelerator-seconds entitled to and received where entitled, old ones slowly forgotten (`settle_all`).
        self.promised: NDArray[np.float64] = np.zeros((size, 0))
        self.delivered: NDArray[np.float64] = np.zeros((size, 0))
        self._forgotten_at = 0.0
        self._free = list(range(size - 1, -1, -1))

    def new_slot(self) -> int:
        if not self._free:
            self._grow()
        return self._free.pop()

    def free_slot(self, slot: int) -> None:
        self.active[slot] = False
        self.eligible[slot] = False
        self._free.append(slot)

    def _grow(self) -> None:
        size = len(self.active)
        for name, column in vars(self).items():
            if isinstance(column, np.ndarray):
                grown = np.zeros((2 * size, *column.shape[1:]), column.dtype)
                grown[:size] = column
                setattr(self, name, grown)
        self._free.extend(range(2 * size - 1, size - 1, -1))

    def set_pools(self, pools: int) -> None:
        """Add columns for new pools."""
        more = np.zeros((len(self.active), pools - self.pools))
        self.entitled = np.hstack([self.entitled, more])
        self.owed = np.hstack([self.owed, more])
        self.promised = np.hstack([self.promised, more])
        self.delivered = np.hstack([self.delivered, more])
        self.pools = pools

    def settle(self, slot: int, at: float) -> None:
        """Bring one row's attained and owed service up to `at`."""
        passed = at - self.settled_at[slot]
        if passed <= 0:
            return
        self.settled_at[slot] = at
        pool, count = self.pool[slot], self.count[slot]
        entitled = self.entitled[slot]
        due = entitled * passed
        self.owed[slot] += due
        self.promised[slot] += due
        if pool >= 0:
            self.attained_s[slot] += count * passed
            if entitled[pool] > 0:
                self.owed[slot, pool] -= count * passed
                self.delivered[slot, pool] += count * passed

    def settle_all(self, at: float, limit_s: float) -> None:
        """Bring every active row up to `at`; remember at most `limit_s` seconds of a gang either way.

        What was promised and delivered is forgotten at the same pace: `limit_s` seconds ago counts 1/e.
        """
        rows = np.flatnonzero(self.active)
        passed = np.maximum(at - self.settled_at[rows], 0.0)
        self.settled_at[rows] = at
        if not (self.entitled.any() or self.owed.any() or self.promised.any() or self.delivered.any()):
            self.attained_s[rows] += np.where(self.pool[rows] >= 0, self.count[rows] * passed, 0.0)
            self._forgotten_at = at
            return  # an order: nobody is entitled to anything
        due = self.entitled[rows] * passed[:, None]
        self.owed[rows] += due
        self.promised[rows] += due
        holding = self.pool[rows] >= 0
        held, pool = rows[holding], self.pool[rows][holding]
        received = self.count[held] * passed[holding]
        self.attained_s[held] += received
        counted = self.entitled[held, pool] > 0
        self.owed[held[counted], pool[counted]] -= received[counted]
        self.delivered[held[counted], pool[counted]] += received[counted]
        kept = exp(-max(at - self._forgotten_at, 0.0) / max(limit_s, 1.0))
        self._forgotten_at = at
        self.promised[rows] *= kept
        self.delivered[rows] *= kept
        bound = limit_s * self.gang[rows][:, None]
        self.owed[rows] = np.clip(self.owed[rows], -bound, bound)


class Ledger:
    """State of the scheduler at `now`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.fleet = Fleet()
        self.table = ThroughputTable()
        self.costs = RestartCosts()
        self.classes = JobClasses(self.table)
        self.columns = Columns()
        self.jobs: dict[JobId, JobRecord] = {}
        #: Jobs whose attempt was started to learn a speed.
        self.profiling: set[JobId] = set()
        #: Jobs waiting for the end of another: dependency -> dependents.
        self.dependents: dict[JobId, list[JobId]] = {}
        #: Projects and their users ("project", "project/user") in order of first sight: name -> row of the problem's
        #: entities; and the row of the project above each user, -1 for projects.
        self.entities: dict[str, int] = {}
        self.entity_parents: list[int] = []
        self.standing: Standing | None = None
        #: How long the newest jobs that succeeded were, in seconds on their best pool.
        self.finished_s: deque[float] = deque(maxlen=FINISHED_MAX)

    def __iter__(self) -> Iterator[JobRecord]:
        return iter(self.jobs.values())

    def class_of(self, job: JobRecord) -> JobClass:
        return self.classes.classes[job.class_row]

    def rate_of(self, job: JobRecord) -> float:
        """Steps per second of the job where it runs, with the gang that it has there; 0 while it holds nothing."""
        pool = int(self.columns.pool[job.slot])
        return self.classes.classes[self.columns.runs_as[job.slot]].speeds[pool] if pool >= 0 else 0.0

    def count_on(self, job: JobRecord, pool: int) -> int:
        """Accelerators that the job is to take on the pool."""
        return self.classes.forms[self.class_of(job).form].counts[pool]

    def class_with(self, job: JobRecord, pool: int, count: int) -> int:
        """Row of the class as which the job runs with this many accelerators of the pool."""
        if self.count_on(job, pool) == count:
            return job.class_row
        return self.classes.resized(job.class_row, {self.fleet.pools[pool].pool.shape.accelerator: count})

    def is_resized(self, job: JobRecord) -> bool:
        """Whether it holds another number of accelerators than it is to have there."""
        pool = int(self.columns.pool[job.slot])
        return pool >= 0 and self.count_on(job, pool) != int(self.columns.count[job.slot])

    def resize(self, job: JobRecord, chosen: Mapping[str, int]) -> None:
        """From its next start on the job takes these counts (by accelerator type)."""
        self.reclass(job, self.classes.resized(job.class_row, chosen))

    def reclass(self, job: JobRecord, row: int) -> None:
        """From its next start on the job is one of this class."""
        job.class_row = self.columns.class_row[job.slot] = row
        self.columns.gang[job.slot] = max(demand.count for demand in self.classes.classes[row].demands)

    def restart_s(self, job: JobRecord, rules: RoundRules) -> float:
        return self.costs.restart_s(job.request.kind, rules.restart_default_s)

    def stop_cost_s(self, job: JobRecord, rules: RoundRules) -> float:
        """Seconds lost by stopping a running job now: its restart, and its run so far if it cannot save that."""
        return self.restart_s(job, rules) + (self.now - job.leased_at if job.loses_work else 0.0)

    def stop_costs_s(self, jobs: list[JobRecord], rules: RoundRules) -> NDArray[np.float64]:
        """`stop_cost_s` of all of them."""
        now, default_s, restart_s = self.now, rules.restart_default_s, self.costs.restart_s
        return np.array(
            [restart_s(job.request.kind, default_s) + (now - job.leased_at if job.loses_work else 0.0) for job in jobs]
        )

    def remaining_s(self, job: JobRecord) -> float:
        """Seconds that a running job has left where it runs, by its own report and its kind's speed; inf if unknown."""
        total, rate = job.request.steps, self.rate_of(job)
        if total is None or rate <= 0:
            return inf
        done = job.steps + rate * max(0.0, self.now - float(self.columns.steps_at[job.slot]))
        if done > OVERDUE * total:
            return inf  # what was said of its length is not true
        return max(0.0, total - done) / rate

    def left_s(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """`remaining_s` of the running jobs in these slots."""
        columns = self.columns
        rate, total = self.classes.rates[columns.runs_as[rows], columns.pool[rows]], columns.steps_total[rows]
        done = columns.steps[rows] + rate * np.maximum(0.0, self.now - columns.steps_at[rows])
        is_known = (rate > 0) & (done <= OVERDUE * total)
        steps = np.maximum(0.0, total - done)
        left: NDArray[np.float64] = np.divide(steps, rate, out=np.full(len(rows), inf), where=is_known)
        return left

    def add(self, request: JobRequest, at: float) -> JobRecord:
        """A row for a new job."""
        columns = self.columns
        slot = columns.new_slot()
        job = JobRecord(request, slot, self.classes.row(request))
        self.jobs[request.job_id] = job
        columns.active[slot] = True
        columns.job_id[slot] = request.job_id
        columns.class_row[slot] = columns.runs_as[slot] = job.class_row
        columns.priority_class[slot] = request.priority_class
        columns.weight[slot] = request.weight
        columns.value_usd_per_h[slot] = np.nan if request.value_usd_per_h is None else request.value_usd_per_h
        columns.entity[slot] = self._entity(f"{request.project}/{request.user}", self._entity(request.project, -1))
        columns.submitted_at[slot] = at
        columns.deadline_at[slot] = request.deadline_at
        columns.steps_total[slot] = inf if request.steps is None else request.steps
        columns.steps[slot] = 0.0
        columns.steps_at[slot] = inf
        columns.duration_s[slot] = inf if request.duration_s is None else request.duration_s
        columns.eligible[slot] = False
        columns.gang[slot] = max((demand.count for demand in request.demands), default=1)
        columns.pool[slot] = -1
        columns.count[slot] = 0.0
        columns.attained_s[slot] = 0.0
        columns.settled_at[slot] = at
        columns.renewed_at_s[slot] = 0.0
        columns.since_at[slot] = at
        columns.entitled[slot] = 0.0
        columns.owed[slot] = 0.0
        columns.promised[slot] = 0.0
        columns.delivered[slot] = 0.0
        return job

    def _entity(self, name: str, parent: int) -> int:
        """Row of an entity, a new one if it was never seen."""
        if name not in self.entities:
            self.entities[name] = len(self.entities)
            self.entity_parents.append(parent)
        return self.entities[name]

    def remove(self, job: JobRecord) -> None:
        """The job has ended: its row leaves."""
        assert not job.place, f"job {job.job_id} ended while holding {job.place}"
        self.columns.free_slot(job.slot)
        del self.jobs[job.job_id]

    def set_eligible(self, job: JobRecord) -> None:
        """Recompute whether the job takes part in the next problem."""
        self.columns.eligible[job.slot] = (
            job.state in (JobState.PENDING, JobState.STARTING, JobState.RUNNING, JobState.PREEMPTING)
            and not job.blocked_by
            and not job.unpaid
            and job.hold_reason is None
            and job.ready_at <= self.now
        )
