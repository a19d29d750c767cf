"""The state of the scheduler: active jobs, the fleet, known speeds, the active policy.

Each active job has a slot, freed when it ends, so memory is linear in active jobs. The numpy columns hold what a solve
or a round reads of all jobs at once; everything else about a job is in its `JobRecord`. Only the core's handlers write
here.

`owed` is the integral of (entitled - received) accelerator-seconds by pool, over the pools to which the job is
entitled; service on other pools does not count. `share_standing.realised_fraction` states how much of the promised
shares was delivered.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from math import exp2, inf

import numpy as np
from numpy.typing import NDArray

from optimizer.decision import Memory, Quote
from optimizer.policy import Newcomer, PlanPolicy, PolicySpec, PricingPolicy, places_over_pools
from optimizer.problem import FloatArray
from scheduler.core.events import Proposal, RememberedJob
from scheduler.core.rules import RoundRules
from scheduler.core.state.fleet import Fleet, FleetMachine, Place
from scheduler.core.state.job_classes import JobClass, JobClasses, PoolParts, ResourceShape
from scheduler.core.state.job_columns import START_S, JobColumns
from scheduler.core.state.policy_faults import PolicyFault, fault_of
from scheduler.core.state.retry_places import RetryPlaces
from scheduler.core.state.share_usage import ShareUsage
from scheduler.core.state.slow_machines import SlowMachines
from scheduler.core.state.statement_records import LengthRecords, WeightRecords
from scheduler.core.state.throughput import ModelFactsTable, NetworkTable, RestartCosts, ThroughputTable
from walras.cluster import NodeId, Placement, Rendezvous
from walras.job_request import JobId, JobRequest, Kind
from walras.states import JobState, Reason

#: Seconds after which what restarts took, and ended jobs had, counts half.
RESTARTS_HALF_LIFE_S = 86_400.0
#: Number of finished jobs whose lengths are kept.
FINISHED_MAX = 512
#: States of jobs that wait for accelerators or run.
_SCHEDULABLE_STATES = frozenset({JobState.PENDING, JobState.STARTING, JobState.RUNNING, JobState.PREEMPTING})


@dataclass(slots=True)
class JobRecord:
    """An active job. What a solve or a round reads of all jobs at once is kept only in its row of the columns."""

    request: JobRequest
    slot: int
    columns: JobColumns = field(repr=False, compare=False)
    state: JobState = JobState.PENDING
    #: Number of the newest attempt (its fence); 0 before the first.
    attempt: int = 0
    #: Attempts charged against `retry.max_restarts`, and ends by infrastructure failures.
    restarts: int = 0
    infra_failures: int = 0
    #: Consecutive starts of which no rank ran.
    refusals: int = 0
    #: Consecutive supervisors lost on machines that lived on, without a checkpoint between.
    supervisor_losses: int = 0
    #: Consecutive ends by exit 85 without a step since the start.
    idle_yields: int = 0
    #: Whether it has shown that it can save its work.
    saves: bool = False
    #: Whether it runs on a drained or booked machine, which does not count as the fleet's capacity.
    is_aside: bool = False
    #: Seconds that its ended attempts ran, which count against `max_runtime`.
    held_s: float = 0.0
    #: Steps at the newest recorded checkpoint, and at the start of this attempt.
    safe_steps: float = 0.0
    start_steps: float = 0.0

    # -- of the current attempt; meaningless while `place` is empty
    place: Place = ()
    #: Steps that it has made beyond those of its present speed from its start, because its speed was another before.
    ahead_steps: float = 0.0
    placement: Placement | None = None
    leased_at: float = 0.0
    prepared: set[NodeId] = field(default_factory=set)
    rendezvous: Rendezvous | None = None
    #: Why the attempt was asked to stop; None if it was not.
    revoked: Reason | None = None
    #: Whether a checkpoint was recorded in this attempt.
    saved: bool = False
    #: Whether the checkpoint from which this attempt was to resume is unavailable.
    lost_checkpoint: bool = False
    #: Interval between checkpoints as last sent to the attempt, seconds; None: none was sent.
    checkpoint_every_s: float | None = None
    #: When the newest checkpoint of the attempt was recorded; -inf: it has none.
    checkpoint_at: float = -inf
    start_reported: bool = False  # the duration of this start was reported
    is_cold: bool = False  # a machine of the attempt lacked some of the job's inputs when it started
    #: Whether it had no share of its pool when it started there (a scavenger): such jobs leave first.
    scavenger: bool = False
    #: When it will end if left alone, and the version of the speeds used for that (`expected_end_at`).
    ends_at: float = inf
    ends_version: int = -1
    #: Machines of the attempt that are lost.
    lost: set[NodeId] = field(default_factory=set)

    #: Row of the pool to which it was moved, or is to be, because its deadline is near; -1: none.
    deadline_pool: int = -1
    #: Whether it holds its place there: only the loss of machines and people take that away.
    is_secured: bool = False

    # -- of a waiting job
    #: Instant before which it must not start (backoff, not_before).
    ready_at: float = -inf
    blocked_by: set[JobId] = field(default_factory=set)
    #: Until when it may decline places with machines further apart than they could be; inf: it has declined none; -inf:
    #: it takes any.
    declines_until: float = inf
    #: Whether it waits because the maximum of jobs of its sweep runs already (`SweepTurns`).
    awaits_turn: bool = False
    #: Whether a budget for it is used up, so that it may not start.
    over_budget: bool = False
    #: Reason for which it is held once its attempt has ended; None: it is not.
    hold_reason: Reason | None = None
    #: Job id of the request; the same in all its versions.
    job_id: JobId = field(init=False)

    def __post_init__(self) -> None:
        self.job_id = self.request.job_id

    @property
    def holds(self) -> bool:
        """Returns whether it holds accelerators."""
        return bool(self.place)

    @property
    def waits(self) -> bool:
        """Returns whether it lacks nothing but a place to start now."""
        is_kept_back = self.blocked_by or self.over_budget or self.awaits_turn
        return self.state is JobState.PENDING and not self.place and not is_kept_back

    @property
    def class_row(self) -> int:
        """Returns the row of the class as which it runs, or will run next (an elastic job may be resized)."""
        return self.columns.class_row.item(self.slot)

    @property
    def steps(self) -> float:
        """Returns the steps that it has reported."""
        return self.columns.steps.item(self.slot)

    @steps.setter
    def steps(self, steps: float) -> None:
        self.columns.steps[self.slot] = steps

    @property
    def running_at(self) -> float:
        """Returns when all ranks of its newest attempt were up; inf before."""
        return self.columns.running_at.item(self.slot)

    @running_at.setter
    def running_at(self, at: float) -> None:
        self.columns.running_at[self.slot] = at

    @property
    def protected_from(self) -> float:
        """Returns from when on its run is protected, as `JobColumns.protected_from`."""
        return min(self.running_at, self.columns.since_at.item(self.slot) + START_S)

    @property
    def profiling_until(self) -> float:
        """Returns until when a profiling attempt is protected from preemption; -inf if it is not profiling."""
        return self.columns.profiling_until.item(self.slot)

    @profiling_until.setter
    def profiling_until(self, at: float) -> None:
        self.columns.profiling_until[self.slot] = at

    @property
    def loses_work(self) -> bool:
        """Returns whether it was stopped once without having saved, so that another stop would lose all its work."""
        return self.columns.loses_work.item(self.slot)

    @loses_work.setter
    def loses_work(self, loses_work: bool) -> None:
        self.columns.loses_work[self.slot] = loses_work


@dataclass(slots=True)
class ActivePolicy:
    """The policy in force and what its last answer left."""

    spec: PolicySpec
    #: The policy if it answers with shares or plans, and prices; None for one that only ranks.
    pricing: PricingPolicy | None
    rules: RoundRules
    memory: Memory = None
    quote: Quote | None = None
    proposal: Proposal | None = None
    #: When it came, or was last found to hold still.
    solved_at: float = -inf
    #: Jobs on paid machines in the last answer that are no reason to keep these machines.
    riders: frozenset[JobId] = frozenset()
    #: The policy's first fault; after it the policy is not called any more. None: no fault.
    fault: PolicyFault | None = None
    #: Consecutive solves without an answer.
    failed_solves: int = 0

    def weighs_stops_of(self, request: JobRequest) -> bool:
        """Returns whether the policy alone bounds how often the job is stopped: an elastic one, by its sizes."""
        return bool(request.sizes) and self.plans and not getattr(self.pricing, "bounds_resizes", False)

    def failed(self, fault: PolicyFault) -> None:
        """Records a fault; only the first one counts."""
        self.fault = self.fault or fault

    def value(self, newcomer: Newcomer, quote: Quote) -> FloatArray:
        """Returns what each configuration is worth to a newcomer (c,); 0 if the policy has no prices, or failed."""
        nothing = np.zeros(len(newcomer.pool))
        if self.pricing is None or self.fault is not None:
            return nothing
        try:
            value = np.asarray(self.pricing.value(newcomer, quote), dtype=np.float64)
            if value.shape != nothing.shape or np.isnan(value).any():
                raise ValueError(f"value() answers numbers of shape {nothing.shape}, not {value!r}"[:200])
        except (Exception, SystemExit) as error:  # foreign code: whatever it raises, the event is handled to its end
            self.failed(fault_of("value", error))
            return nothing
        return value

    @property
    def plans(self) -> bool:
        """Returns whether the policy plans: it states which job runs where, event by event."""
        # Asked at every event: of what prices, only a plan moves jobs, and `isinstance` alone walks the whole protocol.
        return hasattr(self.pricing, "moves") and isinstance(self.pricing, PlanPolicy)

    @property
    def places_over_pools(self) -> bool:
        return self.plans and places_over_pools(self.pricing)


@dataclass(slots=True)
class RestartAccount:
    """What restarts for others took, and ended jobs had, in accelerator-seconds (`stopping`)."""

    taken_s: float = 0.0
    ended_s: float = 0.0
    at: float = 0.0
    #: What active jobs had and need, as of this event.
    known_s: float = 0.0
    known_at_event: int = -1

    def add(self, now: float, *, taken_s: float = 0.0, ended_s: float = 0.0) -> None:
        kept = self.kept(now)
        self.taken_s, self.ended_s, self.at = self.taken_s * kept + taken_s, self.ended_s * kept + ended_s, now

    def kept(self, now: float) -> float:
        """Returns the part of what is recorded that counts now."""
        return exp2(-max(now - self.at, 0.0) / RESTARTS_HALF_LIFE_S)


class Ledger:
    """State of the scheduler at `now`."""

    def __init__(self) -> None:
        self.now = 0.0
        #: Number of the current event; results computed from all jobs are cached for one event.
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
        #: Jobs whose attempt is a profiling lease.
        self.profiling: set[JobId] = set()
        #: Kinds of which a job has shown that it can save its work.
        self.saving_kinds: set[Kind] = set()
        #: Facts from before a restart about jobs that have not been restored yet.
        self.remembered: dict[JobId, RememberedJob] = {}
        #: Jobs waiting for the end of another: dependency -> dependents.
        self.dependents: dict[JobId, list[JobId]] = {}
        #: Projects and their users ("project", "project/user") in order of first sight: name -> row of the problem's
        #: entities; and the row of the project above each user, -1 for projects.
        self.entities: dict[str, int] = {}
        self.entity_parents: list[int] = []
        self.usage = ShareUsage()
        #: How users' stated lengths compare with true ones.
        self.lengths = LengthRecords()
        self.weights = WeightRecords()
        #: Machines on which jobs failed.
        self.retries = RetryPlaces()
        self.slow_machines = SlowMachines()
        self.policy = ActivePolicy(PolicySpec("none"), None, RoundRules())  # until the first `PolicyChanged`
        self.restarts = RestartAccount()
        #: Lengths of the newest jobs that succeeded, in seconds on their best pool.
        self.finished_s: deque[float] = deque(maxlen=FINISHED_MAX)
        #: Restart costs by class, and the versions of the data from which they were computed.
        self._restarts_s: NDArray[np.float64] = np.zeros(0)
        self._restarts_known: tuple[int, int, float] | None = None

    def __iter__(self) -> Iterator[JobRecord]:
        return iter(self.jobs.values())

    def class_of(self, job: JobRecord) -> JobClass:
        return self.classes.classes[
            self.columns.class_row.item(job.slot)
        ]  # `class_row`, inlined because it is read often

    def rate_of(self, job: JobRecord) -> float:
        """Returns steps per second of the job where it runs, with its gang there; 0 while it holds nothing."""
        pool = int(self.columns.pool[job.slot])
        return self.classes.classes[self.columns.runs_as[job.slot]].speeds[pool] if pool >= 0 else 0.0

    def shape_of(self, job: JobRecord) -> ResourceShape:
        """Returns what the job's gang takes."""
        return self.classes.shapes[self.class_of(job).shape]

    def shapes_of(self, job: JobRecord) -> list[ResourceShape]:
        """Returns what the job's gang takes, then what gangs of the sizes take that an elastic job may have."""
        sizes = self.classes.options(job.class_row) if job.request.sizes else ()
        return [self.classes.shape(row) for row in (job.class_row, *sizes)]

    def jobs_on(self, machine: FleetMachine) -> list[JobRecord]:
        """Returns the jobs whose attempt has a part on the machine; reservations alone do not count."""
        jobs = (self.jobs[job_id] for job_id in machine.holders)
        return [job for job in jobs if any(row == machine.row for row, _ in job.place)]

    def count_on(self, job: JobRecord, pool: int) -> int:
        """Returns the accelerators that the job is to take on the pool."""
        return self.classes.shapes[self.class_of(job).shape].counts[pool]

    def class_with(self, job: JobRecord, pool: int, count: int) -> int:
        """Returns the row of the class as which the job runs with this many accelerators of the pool."""
        if self.count_on(job, pool) == count:
            return job.class_row
        return self.classes.resized(job.class_row, {self.fleet.pools[pool].pool.shape.accelerator: count})

    def class_over(self, job: JobRecord, parts: PoolParts) -> int:
        """Returns the row of the class as which the job runs with what it holds in these pools."""
        (pool, count), *more = parts
        if not more and count == self.count_on(job, pool):
            return job.class_row
        if not job.request.spreads:
            return self.class_with(job, pool, count)
        return self.classes.spread(job.class_row, parts)

    def parts_of(self, job: JobRecord) -> PoolParts:
        """Returns (pool, accelerators) of each pool in which the job holds some."""
        several = self.columns.parts.get(job.slot)
        if several is not None:
            return several
        pool = self.columns.pool.item(job.slot)
        return ((pool, int(self.columns.count.item(job.slot))),) if pool >= 0 else ()

    def most_usd_per_h(self, job: JobRecord) -> float:
        """Returns what an accelerator-hour of a rented machine costs the job at most where it is, USD; inf: the market
        price.

        Only plans distinguish jobs that pay for machines from riders.
        """
        parts = self.parts_of(job) if self.policy.plans else ()
        if not parts:
            return inf
        (pool, _), *_ = parts
        there, best = self.classes.classes[self.class_over(job, parts)].speeds[pool], self.class_of(job).best_rate
        if job.request.sizes:  # at its best means as the largest gang that some pool could hold
            most = [max(state.capacity, state.pool.quota * state.pool.shape.accelerators) for state in self.fleet.pools]
            classes, ways = self.classes, product(self.classes.options(job.class_row), range(len(most)))
            fitting = (classes.classes[row].speeds[at] for row, at in ways if classes.count(row, at) <= most[at])
            best = max(fitting, default=0.0)
        relative = min(there / best, 1.0) if best > 0 else 1.0
        return self.policy.rules.most_usd_per_h(job.request, relative, sum(count for _, count in parts))

    def planned_parts(self, job: JobRecord) -> PoolParts:
        """Returns what a plan gives the job in each pool; empty if that is at most one gang in one pool."""
        if not job.request.spreads:
            return ()
        # If capacity was lost since, this is less than planned, and maybe nothing.
        given = np.rint(self.columns.entitled[job.slot])
        parts = tuple((pool, int(given[pool])) for pool in given.nonzero()[0].tolist())
        return () if len(parts) == 1 and parts[0][1] == self.count_on(job, parts[0][0]) else parts

    def is_spread(self, job: JobRecord) -> bool:
        """Returns whether it holds something other than one gang in one pool."""
        return bool(self.classes.classes[self.columns.runs_as[job.slot]].parts) and job.holds

    def is_resized(self, job: JobRecord) -> bool:
        """Returns whether it holds something other than the one gang that it is to have there."""
        pool = int(self.columns.pool[job.slot])
        if pool < 0:
            return False
        return job.slot in self.columns.parts or self.count_on(job, pool) != int(self.columns.count[job.slot])

    def resize(self, job: JobRecord, chosen: Mapping[str, int]) -> None:
        """Changes the job's counts (by accelerator type) from its next start on."""
        self.reclass(job, self.classes.resized(job.class_row, chosen))

    def reclass(self, job: JobRecord, row: int) -> None:
        """Changes the job's class from its next start on."""
        self.columns.class_row[job.slot] = row
        self.columns.gang[job.slot] = self.classes.classes[row].gang

    def change_kind(self, job: JobRecord, kind: Kind, since: float = -inf) -> None:
        """Changes the kind whose speeds are used for the job, where it runs and elsewhere.

        `since`: it had its former speed until then; by default, the new one from the start of its attempt.
        """
        columns, slot, before = self.columns, job.slot, self.rate_of(job)
        columns.class_row[slot] = self.classes.of_kind(job.class_row, kind)
        columns.runs_as[slot] = self.classes.of_kind(columns.runs_as.item(slot), kind)
        job.ahead_steps += max(0.0, since - job.leased_at) * (before - self.rate_of(job))
        job.ends_version = -1
        for row, _ in job.place:
            machine = self.fleet.machines[row]
            if machine is not None:
                machine.ends_version = -1

    def slow_down(self, job: JobRecord, kind: Kind, pace: float) -> None:
        """Gives a job a kind of its own where it runs: this part of its kind's speed there, until that is measured."""
        accelerator = self.fleet.pools[int(self.columns.pool[job.slot])].pool.shape.accelerator
        count = sum(count for _, count in job.place)
        usual = self.table.speed(job.request.kind, accelerator, count, self.classes.nominal)
        self.table.derive(kind, job.request.kind)
        self.table.guess(kind, accelerator, count, pace * usual.steps_per_s)
        self.change_kind(job, kind)

    def kind_of(self, job: JobRecord) -> Kind:
        """Returns the kind whose speeds it has: its own, unless its speed or machines differ (`speed_reports.py`)."""
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
        """Returns the seconds lost by stopping a running job now: its restart, and its run so far if unsaved."""
        return self.restart_s(job, rules) + (self.now - job.leased_at if job.loses_work else 0.0)

    def stop_costs_s(self, rows: NDArray[np.int64], rules: RoundRules) -> NDArray[np.float64]:
        """Returns `stop_cost_s` of the running jobs in these slots."""
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
        """Adds a record and a row for a new job."""
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
        columns.attained_s[slot] = columns.worked_s[slot] = 0.0
        columns.settled_at[slot] = at
        columns.renewed_at_s[slot] = 0.0
        columns.since_at[slot] = at
        columns.entitled[slot] = 0.0
        columns.owed[slot] = 0.0
        columns.promised[slot] = 0.0
        columns.delivered[slot] = 0.0
        return job

    def entity_of(self, request: JobRequest) -> int:
        """Returns the row of the job's user in its project; adds rows for names that are new."""
        row = -1
        for name in request.owners:
            if name not in self.entities:
                self.entity_parents.append(row)
            row = self.entities.setdefault(name, len(self.entities))
        return row

    def remove(self, job: JobRecord) -> None:
        """Removes a job that has ended, and its row."""
        assert not job.place, f"job {job.job_id} ended while holding {job.place}"
        if had_s := self.columns.attained_s.item(job.slot):
            self.restarts.add(self.now, ended_s=had_s)
        self.columns.free_slot(job.slot)
        del self.jobs[job.job_id]
        self.slow_machines.own.pop(job.job_id, None)
        self.spreading -= job.request.spreads

    @contextmanager
    def trying(self, request: JobRequest) -> Iterator[JobRecord]:
        """Has the job as if it were submitted, for a question about it; afterwards everything is as before. Its number
        must be nobody's.
        """
        assert request.job_id not in self.jobs, f"job {request.job_id} is there already"
        before = self.classes, self.entities, self.entity_parents
        self.classes, self.entities, self.entity_parents = before[0].copy(), dict(before[1]), list(before[2])
        job = self.add(request, self.now)
        job.blocked_by = set(request.depends_on) & self.jobs.keys()
        job.ready_at = max(job.ready_at, request.not_before_at)
        try:
            yield job
        finally:
            self.remove(job)
            self.classes, self.entities, self.entity_parents = before

    def set_eligible(self, job: JobRecord) -> None:
        """Recomputes whether the job takes part in the next problem."""
        self.columns.eligible[job.slot] = (
            job.state in _SCHEDULABLE_STATES
            and not job.blocked_by
            and not job.over_budget
            and not job.awaits_turn
            and not job.is_aside
            and job.hold_reason is None
            and job.ready_at <= self.now
        )
