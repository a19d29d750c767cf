"""The state of the scheduler: active jobs, the fleet, what is known of speeds, the active policy.

Each active job has a slot, freed when it ends, so memory is linear in active jobs. The numpy columns hold what a
solve or a round reads of all jobs at once; everything else about a job is in its `JobRecord`. Only the core's
handlers write here.

`owed` is the integral of (entitled - received) accelerator-seconds by pool, over the pools to which the job is
entitled; service on other pools is a gift and not counted. `share_standing.realised_fraction` says how much
of the promised shares was delivered.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf

import numpy as np
from numpy.typing import NDArray

from optimizer.decision import Memory, Quote
from optimizer.policy import Newcomer, PlanPolicy, PolicySpec, PricingPolicy
from optimizer.problem import FloatArray
from scheduler.core.events import Proposal, RememberedJob
from scheduler.core.rules import RoundRules
from scheduler.core.state.fleet import Fleet, Place
from scheduler.core.state.job_classes import JobClass, JobClasses, PoolParts
from scheduler.core.state.job_columns import JobColumns
from scheduler.core.state.policy_faults import PolicyFault, fault_of
from scheduler.core.state.retry_places import RetryPlaces
from scheduler.core.state.share_usage import ShareUsage
from scheduler.core.state.slow_machines import SlowMachines
from scheduler.core.state.statement_records import LengthRecords, WeightRecords
from scheduler.core.state.throughput import ModelFactsTable, NetworkTable, RestartCosts, ThroughputTable
from walras.cluster import NodeId, Placement, Rendezvous
from walras.job_request import JobId, JobRequest, Kind
from walras.states import JobState, Reason

#: Finished jobs whose lengths are remembered.
FINISHED_MAX = 512
#: States of jobs that wait for accelerators or run.
_SCHEDULABLE_STATES = frozenset({JobState.PENDING, JobState.STARTING, JobState.RUNNING, JobState.PREEMPTING})


@dataclass(slots=True)
class JobRecord:
    """An active job. What a solve or a round reads of all jobs at once is kept in its row of the columns alone."""

    request: JobRequest
    slot: int
    columns: JobColumns = field(repr=False, compare=False)
    state: JobState = JobState.PENDING
    #: Number of the newest attempt (its fence); 0 before the first.
    attempt: int = 0
    #: Attempts charged against `retry.max_restarts`, and ends that were the world's fault.
    restarts: int = 0
    infra_failures: int = 0
    #: Starts in a row that never got a rank running.
    refusals: int = 0
    #: Supervisors lost in a row on machines that lived on, without a checkpoint between.
    supervisor_losses: int = 0
    #: Ends by exit 85 without having made a step since the start.
    idle_yields: int = 0
    #: It has shown that it can save its work.
    saves: bool = False
    #: It runs to its end on a machine that is drained, beside what the fleet has to share.
    is_aside: bool = False
    #: Steps at the newest recorded checkpoint, and at the start of this attempt.
    safe_steps: float = 0.0
    start_steps: float = 0.0

    # -- of the current attempt; meaningless while `place` is empty
    place: Place = ()
    placement: Placement | None = None
    leased_at: float = 0.0
    prepared: set[NodeId] = field(default_factory=set)
    rendezvous: Rendezvous | None = None
    #: Why the attempt was asked to stop; None if it was not.
    revoked: Reason | None = None
    #: A checkpoint was recorded in this attempt.
    saved: bool = False
    #: The checkpoint that this attempt was to resume from cannot be had.
    lost_checkpoint: bool = False
    #: Work before each checkpoint as the attempt was told, seconds; None: it was told nothing.
    checkpoint_every_s: float | None = None
    #: When the newest checkpoint of the attempt was recorded; -inf: it has none.
    checkpoint_at: float = -inf
    start_reported: bool = False  # the cost of this start has been heard of
    is_cold: bool = False  # a machine of the attempt lacked some of the job's inputs when it started
    #: It had no share of its pool when it started there: the first to go.
    scavenger: bool = False
    #: When it will end if left alone, and the version of the speeds by which that was computed (`expected_end_at`).
    ends_at: float = inf
    ends_version: int = -1
    #: Machines of the attempt that are lost.
    lost: set[NodeId] = field(default_factory=set)

    #: Row of the pool that it was moved to, or is to be, because its deadline is near; -1: none.
    deadline_pool: int = -1
    #: It holds its place there: nothing but the machines' end and people take that away.
    is_secured: bool = False

    # -- of a waiting job
    #: Not started before this instant (backoff, not_before).
    ready_at: float = -inf
    blocked_by: set[JobId] = field(default_factory=set)
    #: As many jobs of its sweep as may run at once have their turn (`sweep_turns`).
    awaits_turn: bool = False
    #: What may be spent for it is spent: it may not start.
    over_budget: bool = False
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
        is_kept_back = self.blocked_by or self.over_budget or self.awaits_turn
        return self.state is JobState.PENDING and not self.place and not is_kept_back

    @property
    def class_row(self) -> int:
        """Row of its class: as what it runs, or is to run next (an elastic job may be given another size)."""
        return self.columns.class_row.item(self.slot)

    @property
    def steps(self) -> float:
        """Steps that it has reported."""
        return self.columns.steps.item(self.slot)

    @steps.setter
    def steps(self, steps: float) -> None:
        self.columns.steps[self.slot] = steps

    @property
    def running_at(self) -> float:
        """When all ranks of its newest attempt were up; inf before."""
        return self.columns.running_at.item(self.slot)

    @running_at.setter
    def running_at(self, at: float) -> None:
        self.columns.running_at[self.slot] = at

    @property
    def profiling_until(self) -> float:
        """If it was started to learn a speed, the instant until which it is protected from preemption; else -inf."""
        return self.columns.profiling_until.item(self.slot)

    @profiling_until.setter
    def profiling_until(self, at: float) -> None:
        self.columns.profiling_until[self.slot] = at

    @property
    def loses_work(self) -> bool:
        """Whether it was stopped once and had saved nothing: stopping it again would cost all that it has done."""
        return self.columns.loses_work.item(self.slot)

    @loses_work.setter
    def loses_work(self, loses_work: bool) -> None:
        self.columns.loses_work[self.slot] = loses_work


@dataclass(slots=True)
class ActivePolicy:
    """The policy in force and what its last answer left behind."""

    spec: PolicySpec
    #: The policy, if it answers with shares or plans, and with prices; None for one that only ranks.
    pricing: PricingPolicy | None
    rules: RoundRules
    memory: Memory = None
    quote: Quote | None = None
    proposal: Proposal | None = None
    solved_at: float = -inf
    #: Jobs that the last answer has on paid machines without being a reason to keep these.
    riders: frozenset[JobId] = frozenset()
    #: What the policy did wrong first; from then on it is not asked any more. None: nothing.
    fault: PolicyFault | None = None
    #: Solves in a row that brought no answer.
    failed_solves: int = 0

    def failed(self, fault: PolicyFault) -> None:
        """Note a fault; the first one counts."""
        self.fault = self.fault or fault

    def value(self, newcomer: Newcomer, quote: Quote) -> FloatArray:
        """What each configuration is worth to a newcomer (c,); 0 under a policy without prices, or that failed."""
        nothing = np.zeros(len(newcomer.pool))
        if self.pricing is None or self.fault is not None:
            return nothing
        try:
            value = np.asarray(self.pricing.value(newcomer, quote), dtype=np.float64)
            if value.shape != nothing.shape or np.isnan(value).any():
                raise ValueError(f"value() answers numbers of shape {nothing.shape}, not {value!r}"[:200])
        except (Exception, SystemExit) as error:  # code of others: whatever it was, the event is handled to its end
            self.failed(fault_of("value", error))
            return nothing
        return value

    @property
    def plans(self) -> bool:
        """Whether the policy says who runs where, event by event."""
        return isinstance(self.pricing, PlanPolicy)

    def most_usd_per_h(self, request: JobRequest) -> float:
        """What an accelerator-hour of a rented machine costs the job at most, USD; inf: its market price.

        Only plans tell who pays for machines from who rides on them.
        """
        return self.rules.most_usd_per_h(request) if self.plans else inf


class Ledger:
    """State of the scheduler at `now`."""

    def __init__(self) -> None:
        self.now = 0.0
        #: Number of the event in hand: what was worked out from all jobs holds for one.
        self.event_number = 0
        self.fleet = Fleet()
        self.table = ThroughputTable()
        self.costs = RestartCosts()
        self.networks = NetworkTable()
        self.facts = ModelFactsTable()
        self.classes = JobClasses(self.table)
        self.columns = JobColumns()
        self.jobs: dict[JobId, JobRecord] = {}
        #: How many of them may run over several pools, or be forked.
        self.spreading = 0
        #: Jobs whose attempt was started to learn a speed.
        self.profiling: set[JobId] = set()
        #: Kinds of which a job has shown that it can save its work.
        self.saving_kinds: set[Kind] = set()
        #: What the core before this one knew of jobs that have not been restored yet.
        self.remembered: dict[JobId, RememberedJob] = {}
        #: Jobs waiting for the end of another: dependency -> dependents.
        self.dependents: dict[JobId, list[JobId]] = {}
        #: Projects and their users ("project", "project/user") in order of first sight: name -> row of the problem's
        #: entities; and the row of the project above each user, -1 for projects.
        self.entities: dict[str, int] = {}
        self.entity_parents: list[int] = []
        self.usage = ShareUsage()
        #: How far what users state of lengths came true.
        self.lengths = LengthRecords()
        self.weights = WeightRecords()
        #: Machines on which jobs failed.
        self.retries = RetryPlaces()
        self.slow_machines = SlowMachines()
        self.policy = ActivePolicy(PolicySpec("none"), None, RoundRules())  # until the first `PolicyChanged`
        #: How long the newest jobs that succeeded were, in seconds on their best pool.
        self.finished_s: deque[float] = deque(maxlen=FINISHED_MAX)
        #: What a restart costs by class, and what was known when that was worked out.
        self._restarts_s: NDArray[np.float64] = np.zeros(0)
        self._restarts_known: tuple[int, int, float] | None = None

    def __iter__(self) -> Iterator[JobRecord]:
        return iter(self.jobs.values())

    def class_of(self, job: JobRecord) -> JobClass:
        return self.classes.classes[self.columns.class_row.item(job.slot)]  # `class_row`, looked up often

    def rate_of(self, job: JobRecord) -> float:
        """Steps per second of the job where it runs, with the gang that it has there; 0 while it holds nothing."""
        pool = int(self.columns.pool[job.slot])
        return self.classes.classes[self.columns.runs_as[job.slot]].speeds[pool] if pool >= 0 else 0.0

    def count_on(self, job: JobRecord, pool: int) -> int:
        """Accelerators that the job is to take on the pool."""
        return self.classes.shapes[self.class_of(job).shape].counts[pool]

    def class_with(self, job: JobRecord, pool: int, count: int) -> int:
        """Row of the class as which the job runs with this many accelerators of the pool."""
        if self.count_on(job, pool) == count:
            return job.class_row
        return self.classes.resized(job.class_row, {self.fleet.pools[pool].pool.shape.accelerator: count})

    def class_over(self, job: JobRecord, parts: PoolParts) -> int:
        """Row of the class as which the job runs with what it holds in these pools."""
        (pool, count), *more = parts
        if not more and count == self.count_on(job, pool):
            return job.class_row
        if not job.request.spreads:
            return self.class_with(job, pool, count)
        return self.classes.spread(job.class_row, parts)

    def parts_of(self, job: JobRecord) -> PoolParts:
        """(pool, accelerators) of each pool in which the job holds some."""
        several = self.columns.parts.get(job.slot)
        if several is not None:
            return several
        pool = self.columns.pool.item(job.slot)
        return ((pool, int(self.columns.count.item(job.slot))),) if pool >= 0 else ()

    def planned_parts(self, job: JobRecord) -> PoolParts:
        """What a plan gives the job in each pool, if that is more than one gang in one pool; else nothing."""
        if not job.request.spreads:
            return ()
        # Where capacity was lost since, less than was planned, and maybe nothing.
        given = np.rint(self.columns.entitled[job.slot])
        parts = tuple((pool, int(given[pool])) for pool in given.nonzero()[0].tolist())
        return () if len(parts) == 1 and parts[0][1] == self.count_on(job, parts[0][0]) else parts

    def is_spread(self, job: JobRecord) -> bool:
        """Whether what it holds is not one gang in one pool."""
        return bool(self.classes.classes[self.columns.runs_as[job.slot]].parts) and job.holds

    def is_resized(self, job: JobRecord) -> bool:
        """Whether it holds another number of accelerators than it is to have there."""
        pool = int(self.columns.pool[job.slot])
        return pool >= 0 and self.count_on(job, pool) != int(self.columns.count[job.slot])

    def resize(self, job: JobRecord, chosen: Mapping[str, int]) -> None:
        """From its next start on the job takes these counts (by accelerator type)."""
        self.reclass(job, self.classes.resized(job.class_row, chosen))

    def reclass(self, job: JobRecord, row: int) -> None:
        """From its next start on the job is one of this class."""
        self.columns.class_row[job.slot] = row
        self.columns.gang[job.slot] = self.classes.classes[row].gang

    def change_kind(self, job: JobRecord, kind: Kind) -> None:
        """From now on the job's speeds, where it runs and elsewhere, are those of this kind."""
        columns, slot = self.columns, job.slot
        columns.class_row[slot] = self.classes.of_kind(job.class_row, kind)
        columns.runs_as[slot] = self.classes.of_kind(columns.runs_as.item(slot), kind)
        job.ends_version = -1
        for row, _ in job.place:
            machine = self.fleet.machines[row]
            if machine is not None:
                machine.ends_version = -1

    def kind_of(self, job: JobRecord) -> Kind:
        """As what its speeds are counted: its own kind, unless its machines are worse than others (`networks.py`)."""
        return self.classes.classes[self.columns.class_row.item(job.slot)].kind

    def units_of(self, job: JobRecord, parts: PoolParts) -> float:
        """Returns the value of these accelerators to the job, in accelerators of the fleet's average speed for it."""
        if len(parts) > 1:
            return float(sum(count for _, count in parts))
        job_class = self.class_of(job)
        speeds, counts = job_class.speeds, self.classes.shapes[job_class.shape].counts
        there, whole = 0, 0.0
        for speed, count, state in zip(speeds, counts, self.fleet.pools, strict=False):
            there += state.capacity
            if count:
                whole += speed / count * state.capacity
        ((pool, held),) = parts
        if whole <= 0:
            return float(held)
        return (speeds[pool] / counts[pool] if counts[pool] else 0.0) * held / (whole / there)

    def restart_s(self, job: JobRecord, rules: RoundRules) -> float:
        return self.costs.restart_s(job.request.kind, rules.restart_default_s)

    def stop_cost_s(self, job: JobRecord, rules: RoundRules) -> float:
        """Seconds lost by stopping a running job now: its restart, and its run so far if it cannot save that."""
        return self.restart_s(job, rules) + (self.now - job.leased_at if job.loses_work else 0.0)

    def stop_costs_s(self, rows: NDArray[np.int64], rules: RoundRules) -> NDArray[np.float64]:
        """`stop_cost_s` of the running jobs in these slots."""
        known = (self.costs.version, len(self.classes.classes), rules.restart_default_s)
        if self._restarts_known != known:
            kinds = [job_class.kind for job_class in self.classes.classes]
            restarts_s = [self.costs.restart_s(kind, rules.restart_default_s) for kind in kinds]
            self._restarts_s = np.array(restarts_s, np.float64)
            self._restarts_known = known
        columns = self.columns
        costs_s: NDArray[np.float64] = self._restarts_s[columns.class_row[rows]]
        costs_s += np.where(columns.loses_work[rows], self.now - columns.since_at[rows], 0.0)
        return costs_s

    def add(self, request: JobRequest, at: float) -> JobRecord:
        """A row for a new job."""
        columns = self.columns
        slot = columns.new_slot()
        job, class_row = JobRecord(request, slot, columns), self.classes.row(request)
        self.jobs[request.job_id] = job
        self.spreading += request.spreads
        columns.active[slot] = True
        columns.job_id[slot] = request.job_id
        columns.class_row[slot] = columns.runs_as[slot] = class_row
        columns.priority_class[slot] = request.priority_class
        columns.weight[slot] = request.weight
        columns.value_usd_per_h[slot] = np.nan if request.value_usd_per_h is None else request.value_usd_per_h
        columns.entity[slot] = self.entity_of(request)
        columns.submitted_at[slot] = at
        columns.deadline_at[slot] = request.deadline_at
        columns.steps_total[slot] = inf if request.steps is None else request.steps
        columns.steps[slot] = 0.0
        columns.steps_at[slot] = inf
        columns.duration_s[slot] = inf if request.duration_s is None else request.duration_s
        columns.eligible[slot] = False
        columns.gang[slot] = self.classes.classes[class_row].gang
        columns.pool[slot] = -1
        columns.count[slot] = 0.0
        columns.running_at[slot] = inf
        columns.profiling_until[slot] = -inf
        columns.loses_work[slot] = False
        columns.fixed_at[slot] = inf
        columns.attained_s[slot] = 0.0
        columns.settled_at[slot] = at
        columns.renewed_at_s[slot] = 0.0
        columns.since_at[slot] = at
        columns.entitled[slot] = 0.0
        columns.owed[slot] = 0.0
        columns.promised[slot] = 0.0
        columns.delivered[slot] = 0.0
        return job

    def entity_of(self, request: JobRequest) -> int:
        """Row of the job's user in its project; both get rows if they were never seen."""
        row = -1
        for name in request.owners:
            if name not in self.entities:
                self.entity_parents.append(row)
            row = self.entities.setdefault(name, len(self.entities))
        return row

    def remove(self, job: JobRecord) -> None:
        """The job has ended: its row leaves."""
        assert not job.place, f"job {job.job_id} ended while holding {job.place}"
        self.columns.free_slot(job.slot)
        del self.jobs[job.job_id]
        self.spreading -= job.request.spreads

    def set_eligible(self, job: JobRecord) -> None:
        """Recompute whether the job takes part in the next problem."""
        self.columns.eligible[job.slot] = (
            job.state in _SCHEDULABLE_STATES
            and not job.blocked_by
            and not job.over_budget
            and not job.awaits_turn
            and not job.is_aside
            and job.hold_reason is None
            and job.ready_at <= self.now
        )
