"""The working set of one `handle`: queues, reservations, timers, the active ordering, and the commands so far.

Handlers are functions of a `Cycle`. It keeps the pieces together and records every change of a state as a command; it
makes no decisions. A policy's decision is carried out by a `JobOrdering` and a `RoundMechanism`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import Protocol

from scheduler.core.commands import AttemptTransitioned, Command, JobTransitioned
from scheduler.core.events import RoundEnded
from scheduler.core.state.bookings import Bookings
from scheduler.core.state.fleet import FleetMachine
from scheduler.core.state.job_queues import JobQueues, QueueKey
from scheduler.core.state.ledger import ActivePolicy, JobRecord, Ledger
from scheduler.core.state.market_watch import SpotWatch
from scheduler.core.state.placement_limits import PlacementLimits, Reservation
from scheduler.core.state.shared_accelerators import AcceleratorSharing
from scheduler.core.state.spending import SpendingMeter
from scheduler.core.state.stopping import Protection
from walras.cluster import Placement
from walras.job_request import JobId
from walras.states import AttemptState, JobState, Reason, check_job_transition


@dataclass(slots=True)
class _Sweep:
    at_most: int
    #: Jobs that have their turn.
    running: set[JobId] = field(default_factory=set)
    #: Heap of job ids that wait for a turn; it may contain jobs that no longer wait.
    waiting: list[JobId] = field(default_factory=list)


@dataclass(slots=True)
class SweepTurns:
    """Which jobs have a turn in each limited sweep; `JobRecord.awaits_turn` states it for a job.

    At most a given number of a limited sweep's jobs run at once, in the order of their numbers. A job without a turn
    takes no part in solves, queues and reservations, like one that waits for another job. It keeps its turn until it
    has ended or is held: through preemption, moves and retry delays. So the jobs that hold accelerators never exceed
    the limit, and an event costs only the jobs whose turn it changes.
    """

    jobs: dict[JobId, JobRecord]
    _sweeps: dict[JobId, _Sweep] = field(default_factory=dict)

    def ask(self, job: JobRecord) -> None:
        """Gives a job of a sweep that wants to run its turn now, or lets it wait for one.

        A job that is restored with accelerators has its turn in any case; such jobs are restored before all others.
        """
        request = job.request
        if request.sweep is None or not request.sweep_limit:
            return
        sweep = self._sweeps.setdefault(request.sweep, _Sweep(request.sweep_limit))
        if job.job_id in sweep.running:
            return
        job.awaits_turn = not job.holds and len(sweep.running) >= sweep.at_most
        if job.awaits_turn:
            heappush(sweep.waiting, job.job_id)
        else:
            sweep.running.add(job.job_id)

    def give_up(self, job: JobRecord) -> Iterable[JobRecord]:
        """Ends the turn of a job that has ended or is held. Returns the jobs that get a turn by it."""
        request = job.request
        sweep = None if request.sweep is None else self._sweeps.get(request.sweep)
        if sweep is None:
            return ()
        job.awaits_turn = False
        sweep.running.discard(job.job_id)
        next_ones = []
        while len(sweep.running) < sweep.at_most and sweep.waiting:
            known = self.jobs.get(heappop(sweep.waiting))
            if known is not None and known.awaits_turn:
                known.awaits_turn = False
                sweep.running.add(known.job_id)
                next_ones.append(known)
        if not sweep.running and not sweep.waiting and request.sweep is not None:
            del self._sweeps[request.sweep]
        return next_ones


@dataclass(slots=True)
class Incumbents:
    """Jobs that hold accelerators of a pool, as of one instant."""

    #: Weakest first.
    jobs: list[JobRecord]

    def weaker_than(self, challenger: JobRecord) -> Iterable[JobRecord]:
        """Returns the jobs that the challenger may preempt, weakest first."""
        return ()


class JobOrdering:
    """The order of jobs on each pool, and which job may take a place from which other.

    This one neither orders nor displaces jobs: it holds before the first policy, and for mechanisms without queues.
    """

    #: Whether running jobs are compared with waiting ones at round ends.
    compares: bool = False
    #: Whether the head of the queue blocks all jobs behind it.
    strict: bool = False
    #: Whether jobs are sent to pools on which the speed of their kind is unknown.
    profiles: bool = False
    #: Whether an elastic job whose gang fits nowhere may start with a smaller one.
    shrinks_gangs: bool = False
    #: Why a job may take another's place, as the rest of a sentence after its name.
    preempt_reason: str = ""
    #: Why a job leaves its place for one on another pool, up to the pool's name.
    move_reason: str = ""

    def fill_queues(self, queues: JobQueues) -> None:
        """Fills the (cleared) queues with every waiting job."""

    def keys(self, job: JobRecord) -> list[tuple[int, QueueKey]]:
        """Returns (pool, queue key) of a waiting job for every pool on which it may run."""
        return []

    def challengers(self, most: int) -> Iterator[tuple[JobRecord, int]]:
        """Yields (job, pool) of jobs that should run on a pool and do not, in the order in which they may challenge.

        There are at most `most` jobs per pool, waiting or running elsewhere.
        """
        return iter(())

    def pools_of(self, job: JobRecord) -> Sequence[int]:
        """Returns pools on which a job of the high class that found no free place may preempt at once, best first."""
        return ()

    def incumbents(self, pool: int, most: int) -> Incumbents:
        """Returns the `most` jobs that hold accelerators of this pool and that the ordering would preempt first."""
        return Incumbents([])

    def may_move(self, job: JobRecord, pool: int, fetch_s: float = 0.0) -> bool:
        """Returns whether a running job gains enough by moving to this pool, where downloads take `fetch_s` seconds."""
        return False

    def protects(self, job: JobRecord) -> Protection | None:
        """Returns what keeps a job from being asked to checkpoint and leave for others' turn; None if nothing does."""
        return None

    def is_entitled(self, job: JobRecord, pool: int) -> bool:
        """Returns whether the job is entitled to the pool, and does not merely use it while it is free."""
        return True

    def alternatives(self, job: JobRecord, pool: int) -> list[int]:
        """Returns pools to try before this one for the job, best first."""
        return []

    def may_profile(self, job: JobRecord, pool: int) -> bool:
        """Returns whether the job may be sent to the pool for a while to measure its kind's speed there."""
        return False


class RoundMechanism(Protocol):
    """Turns a policy's decision into starts and stops. It is called after every event."""

    def settle(self, cycle: "Cycle") -> None:
        """Does what is due now, and requests solves."""
        ...


_NOWHERE: frozenset[int] = frozenset()


class Timers:
    """Heap of the instants at which the core is to be called: (at, order of setting, kind, subject, number)."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, str, int, int]] = []
        self._count = 0
        #: The earliest instant set; inf: none.
        self.next_at = inf
        #: The earliest instant requested of the shells.
        self.asked_at = inf
        #: End of the round for which a timer is set; inf: none.
        self.round_at = inf

    def set(self, at: float, what: str, subject: int = 0, number: int = 0) -> None:
        """Sets a timer. `what` is its kind, (`subject`, `number`) what it is about (a job and its attempt)."""
        if at < inf:
            self._count += 1
            heappush(self._heap, (at, self._count, what, subject, number))
            self.next_at = self._heap[0][0]

    def due(self, now: float) -> tuple[str, int, int] | None:
        """Removes and returns the next timer that is due; None if none is."""
        if self.next_at > now or not self._heap:
            return None
        _, _, what, subject, number = heappop(self._heap)
        self.next_at = self._heap[0][0] if self._heap else inf
        return what, subject, number


@dataclass(frozen=True, slots=True)
class Due:
    """What the current event has made due. It is empty when a `handle` begins, so nothing outlives its event."""

    #: Whether the round timer has fired.
    round_ended: bool = False
    #: Whether a solve was answered, or failed.
    solve_ended: bool = False
    #: The end of a lockstep round, on which only lockstep mechanisms act.
    lockstep_round: RoundEnded | None = None
    #: Whether running jobs are to be compared with waiting ones.
    compares: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "compares", self.round_ended or self.solve_ended)


NOTHING_DUE = Due()


@dataclass(slots=True)
class Backlog:
    """Work that handlers leave for the round mechanism. What it does not take stays for the next event."""

    #: Rows of machines on which something became free, in order.
    freed: dict[int, None] = field(default_factory=dict)
    #: Rows of rented machines that may be released: freed, newly joined, or quarantined.
    emptied: dict[int, None] = field(default_factory=dict)
    #: Places that jobs left soon after they had started, since the last round: (pool, class of the job).
    left_soon: list[tuple[int, int]] = field(default_factory=list)
    #: Jobs that may start from now on and have not been judged by the arrival rule, in order.
    arrived: list[JobId] = field(default_factory=list)
    #: Pools in which something became free, or for which a job came, since they were last filled.
    stale_pools: set[int] = field(default_factory=set)
    #: Whether every queue must be filled anew: pools, shapes, keys or the policy changed, or a round ended.
    rebuild_queues: bool = False


@dataclass(slots=True)
class SolveState:
    """The solve in flight, and whether another is wanted."""

    #: Whether something changed that the next solve should know.
    problem_changed: bool = False
    #: Whether a plan may be out of date because a round has ended since it was asked for.
    time_passed: bool = False
    #: Numbers of the last event that told of anything but time, and of that at which the last solve was requested.
    told_at_event: int = 0
    asked_at_event: int = 0
    #: Request id of the solve in flight; 0: none. `last_request` is the newest ever sent.
    in_flight: int = 0
    last_request: int = 0
    #: Answers to requests up to this one are about an older policy.
    void_up_to: int = 0
    #: When the last request was sent, and the instant for which a timer for the next one is set.
    requested_at: float = -inf
    timer_at: float = inf


@dataclass(slots=True)
class DeadlineWatch:
    """Jobs with a deadline (`handlers/deadlines.py`)."""

    #: Heap of (when to check, job).
    heap: list[tuple[float, JobId]] = field(default_factory=list)
    #: Jobs that were moved, or are moving, to machines that are not reclaimed.
    secured: set[JobId] = field(default_factory=set)
    #: Of these, jobs whose machines do not come: failed requests of the pool at the last check, when to check again.
    stranded: dict[JobId, tuple[int, float]] = field(default_factory=dict)
    #: Spot markets, and jobs that hold machines there by their slack (`handlers/spot_holding.py`).
    market: SpotWatch = field(default_factory=SpotWatch)

    def sizes_gang_of(self, job: JobRecord) -> bool:
        """Returns whether the size of the job's gang is chosen with its pool, because of its deadline."""
        hold = self.market.holds.get(job.job_id)
        return job.deadline_pool >= 0 or (hold is not None and hold.asked >= 0)


@dataclass(slots=True)
class Cycle:
    """Everything that a handler may change."""

    ledger: Ledger
    queues: JobQueues
    #: Copies of the ledger's, because they are read very often: the instant of this event, and the active policy.
    now: float = 0.0
    policy: ActivePolicy = field(init=False)
    #: Turns the policy's decision into starts and stops; None before the first policy.
    mechanism: RoundMechanism | None = None
    #: The order of jobs in the queues, set by the mechanism.
    ordering: JobOrdering = field(default_factory=JobOrdering)
    #: What this event has made due, and the commands that answer it.
    due: Due = NOTHING_DUE
    commands: list[Command] = field(default_factory=list)
    backlog: Backlog = field(default_factory=Backlog)
    solves: SolveState = field(default_factory=SolveState)
    deadlines: DeadlineWatch = field(default_factory=DeadlineWatch)
    timers: Timers = field(default_factory=Timers)
    #: Reservations by job; and the backfill reservations among them, by pool, oldest first.
    reservations: dict[JobId, Reservation] = field(default_factory=dict)
    backfill_reservations: dict[int, dict[JobId, Reservation]] = field(default_factory=dict)
    #: Jobs with a reservation on a machine, by its row, oldest first.
    reserved_on: dict[int, list[JobId]] = field(default_factory=dict)
    #: What is being spent, and which jobs may not start because of it.
    spending: SpendingMeter = field(init=False)
    #: What projects and users may hold at once.
    limits: PlacementLimits = field(init=False)
    #: Machines that people have booked.
    bookings: Bookings = field(init=False)
    #: Which jobs of limited sweeps may run.
    turns: SweepTurns = field(init=False)
    #: Jobs that agreed to share an accelerator, and those that do.
    sharing: AcceleratorSharing = field(init=False)

    def __post_init__(self) -> None:
        self.policy = self.ledger.policy
        self.spending = SpendingMeter(self.ledger)
        self.limits = PlacementLimits(self.ledger, self.reservations)
        self.queues.parked, self.queues.barred = self.limits.parked, self.limits.barred
        self.bookings = Bookings(self.ledger, self.ledger.columns.kept_off)
        self.queues.kept_off, self.queues.avoiding = self.bookings.barred, self.ledger.retries.waiting
        self.turns = SweepTurns(self.ledger.jobs)
        self.sharing = AcceleratorSharing(self.ledger)

    def closed_to(self, job: JobRecord, pool: int) -> frozenset[int]:
        """Returns the rows of machines of the pool on which a waiting job must not be started now.

        They are booked, or the job failed there and other machines may hold it.
        """
        booked = self.booked_to(job, pool)
        return booked | self.avoided(job, pool) if job.job_id in self.ledger.retries.failed else booked

    def booked_to(self, job: JobRecord, pool: int) -> frozenset[int]:
        """Returns the rows of machines of the pool that are booked for others than this job."""
        return self.bookings.closed_to(job, pool) if self.bookings.declared else _NOWHERE

    def avoided(self, job: JobRecord, pool: int) -> frozenset[int]:
        """Returns the rows of machines of the pool that are closed to the job because it failed on them."""
        retries, ledger = self.ledger.retries, self.ledger
        here = retries.rows(job.job_id, ledger.fleet, pool)
        if not here:
            return _NOWHERE

        def usable(other: int) -> frozenset[int] | None:
            count = ledger.count_on(job, other)
            reached = self.limits.reached(job, count, other) if self.limits.are_declared else None
            return None if reached is not None and reached.allowed < count else self.booked_to(job, other)

        shape = ledger.shape_of(job)
        return here & retries.closed(job.job_id, ledger.fleet, shape, self.now, usable)

    def set_job_state(self, job: JobRecord, state: JobState, reason: Reason | None = None, detail: str = "") -> None:
        """Changes the job's state, and emits a command that reports it to the shells."""
        check_job_transition(job.state, state)
        job.state = state
        job.over_budget = state is JobState.PENDING and self.spending.closed_to(job) is not None
        if state is JobState.PENDING and job.request.sweep is not None:
            self.turns.ask(job)
        self.ledger.set_eligible(job)
        self.commands.append(JobTransitioned(job.job_id, state, reason, detail))
        if job.request.sweep is not None and (state is JobState.HELD or state.is_final):
            self._pass_turn_on(job)

    def _pass_turn_on(self, job: JobRecord) -> None:
        """Ends the job's turn in its sweep, so that others may start."""
        for other in self.turns.give_up(job):
            self.ledger.set_eligible(other)
            self.backlog.arrived.append(other.job_id)
            self.solves.problem_changed = True

    def set_attempt_state(
        self, job: JobRecord, state: AttemptState, reason: Reason | None = None, placement: Placement | None = None
    ) -> None:
        self.commands.append(AttemptTransitioned(job.job_id, job.attempt, state, reason, placement))


def enqueue_job(cycle: Cycle, job: JobRecord) -> None:
    """Puts a waiting job in the queue of every pool on which it may run."""
    if not job.waits or job.ready_at > cycle.now:
        return
    cycle.sharing.is_due = cycle.sharing.is_due or job.request.shared is not None
    for pool, key in cycle.ordering.keys(job):
        cycle.queues.push(job, pool, key)
        cycle.backlog.stale_pools.add(pool)


def refresh_pools(cycle: Cycle) -> None:
    """Recomputes classes of jobs and queues, because pools or their machines' pace changed."""
    ledger, pools = cycle.ledger, cycle.ledger.fleet.pools
    if len(pools) != ledger.columns.pools:
        ledger.columns.set_pools(len(pools))
    tools = [state.tool_sets for state in pools] if ledger.fleet.knows_tools else ()
    paces = [state.pace for state in pools] if ledger.slow_machines.pools else ()
    ledger.classes.pools_changed([state.pool for state in pools], tools, paces)
    cycle.solves.problem_changed = cycle.backlog.rebuild_queues = True


def count_tools(cycle: Cycle, machine: FleetMachine) -> None:
    """Counts the machine in its pool's tool statistics, together with the tools in use there."""
    jobs = (cycle.ledger.jobs[job_id] for job_id in machine.holders)
    used = {name for job in jobs for any_of in job.request.tools for name in any_of}
    before, now = machine.counted_tools, None if machine.tools is None else machine.tools | used
    cycle.ledger.fleet.pools[machine.pool].tools.recount(before, now)
    machine.counted_tools = now
    settle_tools(cycle)


def settle_tools(cycle: Cycle) -> None:
    """Updates which pools fit jobs that need tools, after machines came, left or reported."""
    if cycle.ledger.classes.tools_changed([state.tool_sets for state in cycle.ledger.fleet.pools]):
        cycle.solves.problem_changed = cycle.backlog.rebuild_queues = True
