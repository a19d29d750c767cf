"""What one `handle` works with: queues, reservations, timers, the active ordering, and the commands so far.

Handlers are functions of a `Cycle`. It keeps the pieces together and records every change of a state as a command;
it makes no decisions. `JobOrdering` and `RoundMechanism` are the two protocols by which a policy's decision is
carried out.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import Protocol

from scheduler.core.commands import AttemptTransitioned, Command, JobTransitioned
from scheduler.core.events import RoundEnded
from scheduler.core.state.job_queues import JobQueues, QueueKey
from scheduler.core.state.ledger import ActivePolicy, JobRecord, Ledger
from scheduler.core.state.spending import SpendingMeter
from walras.cluster import Placement
from walras.job_request import JobId
from walras.states import AttemptState, JobState, Reason, check_job_transition


class Incumbents(Protocol):
    """Jobs that hold accelerators of a pool, as of one instant."""

    @property
    def jobs(self) -> list[JobRecord]:
        """The first to go first."""
        ...

    def weaker_than(self, challenger: JobRecord) -> Iterable[JobRecord]:
        """Those whose claim to the pool, and the cost of the exchange, the challenger's claim outweighs; in order."""
        ...


class JobOrdering(Protocol):
    """The order of jobs on each pool, and who may take a place from whom."""

    #: True: running jobs are compared with waiting ones at round ends.
    compares: bool
    #: True: the first in line blocks everybody behind it.
    strict: bool
    #: True: jobs are sent to pools on which the speed of their kind is unknown.
    explores: bool
    #: True: an elastic job whose gang fits nowhere may start with a smaller one.
    shrinks: bool
    #: Why a job may take another's place, as a sentence about it goes on.
    preempt_reason: str
    #: Why a job leaves its place for one on another pool, up to the pool's name.
    move_reason: str

    def fill_queues(self, queues: JobQueues) -> None:
        """Put every waiting job in line, anew."""
        ...

    def keys(self, job: JobRecord) -> list[tuple[int, QueueKey]]:
        """(pool, place of the waiting job in its line) for every pool on which it may run."""
        ...

    def challengers(self, most: int) -> Iterator[tuple[JobRecord, int]]:
        """(job, pool): jobs that should run on a pool and do not, in the order in which they may challenge.

        At most `most` jobs a pool: waiting, or running elsewhere.
        """
        ...

    def pools_of(self, job: JobRecord) -> Sequence[int]:
        """Pools on which a job of the high class that found no free place may challenge at once, best first."""
        ...

    def incumbents(self, pool: int, most: int) -> Incumbents:
        """Jobs that hold accelerators of this pool: those `most` that would go first."""
        ...

    def may_move(self, job: JobRecord, pool: int) -> bool:
        """Whether a running job gains enough from leaving its pool for this one."""
        ...

    def can_be_stopped(self, job: JobRecord) -> bool:
        """Whether a running job may be asked to checkpoint and leave."""
        ...

    def is_entitled(self, job: JobRecord, pool: int) -> bool:
        """Whether the job has a right to the pool, not only leave to use it while it is free."""
        ...

    def alternatives(self, job: JobRecord, pool: int) -> list[int]:
        """Pools to try before this one for the job, best first."""
        ...

    def may_learn(self, job: JobRecord, pool: int) -> bool:
        """Whether the job may be sent to the pool for a while, so that its kind's speed there is known."""
        ...


class RoundMechanism(Protocol):
    """Turns a policy's decision into starts and stops: called after every event with what it left in the cycle."""

    def settle(self, cycle: "Cycle") -> None:
        """Do what is due now; ask for solves."""
        ...


@dataclass(slots=True)
class Reservation:
    """Places that are being freed, or awaited, for one job.

    The accelerators it already has are held in its name on the machines; `needs` counts those still missing there.
    """

    job_id: JobId
    #: Pool of its machines, of several the first.
    pool: int
    #: Accelerators wanted, and those still missing, by machine row.
    wanted: dict[int, int]
    needs: dict[int, int]
    #: Exchange: incumbents were told to go. Reservation (False): it waits for ends, and others may borrow meanwhile.
    preempting: bool
    #: Jobs that borrow places of a reservation, by machine row.
    lent: dict[JobId, int] = field(default_factory=dict)


class Timers:
    """Instants at which the core wants to be called: (at, order of setting, what, subject)."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, str, int, int]] = []
        self._count = 0
        #: The earliest that is set; inf: none.
        self.next_at = inf
        #: Earliest instant the shells were asked for.
        self.asked_at = inf

    def set(self, at: float, what: str, subject: int = 0, number: int = 0) -> None:
        """`what` names the kind of timer, (`subject`, `number`) what it is about (a job and its attempt)."""
        if at < inf:
            self._count += 1
            heappush(self._heap, (at, self._count, what, subject, number))
            self.next_at = self._heap[0][0]

    def due(self, now: float) -> tuple[str, int, int] | None:
        """Take the next timer that is due."""
        if self.next_at > now or not self._heap:
            return None
        _, _, what, subject, number = heappop(self._heap)
        self.next_at = self._heap[0][0] if self._heap else inf
        return what, subject, number


@dataclass(slots=True)
class Cycle:
    """Everything a handler may touch."""

    ledger: Ledger
    queues: JobQueues
    #: The ledger's own, looked at far too often to be asked for: the instant of this event, and the policy in force,
    #: which nothing has before the first event, `PolicyChanged`.
    now: float = 0.0
    policy: ActivePolicy = field(init=False)
    timers: Timers = field(default_factory=Timers)
    reservations: dict[JobId, Reservation] = field(default_factory=dict)
    #: Of these the reservations, by pool, oldest first.
    backfill_reservations: dict[int, dict[JobId, Reservation]] = field(default_factory=dict)
    #: Claims with an interest in a machine, oldest first.
    reserved_on: dict[int, list[JobId]] = field(default_factory=dict)
    commands: list[Command] = field(default_factory=list)
    #: What settles every event; None before the first policy.
    mechanism: RoundMechanism | None = None
    #: The order of the lines; None under a mechanism that keeps none.
    ordering: JobOrdering | None = None
    #: Machines on which something became free in this handle, in order.
    freed: dict[int, None] = field(default_factory=dict)
    #: Rented machines that may have to go: something was freed there, or they joined, or take no jobs any more.
    emptied: dict[int, None] = field(default_factory=dict)
    #: Jobs that may start from now on and have not been judged by the arrival rule, in order.
    arrived: list[JobId] = field(default_factory=list)
    #: Pools in which something became free, or somebody came, since they were last filled.
    stale_pools: set[int] = field(default_factory=set)
    #: Every line must be filled afresh: pools, forms, keys or the policy changed, or a round ended.
    refill: bool = False
    #: Running jobs are to be compared with waiting ones: a round ended, or a solve was answered (or failed).
    round_ended: bool = False
    answered: bool = False
    #: The end of a round in step, until the mechanism has taken it in.
    pending_round_end: RoundEnded | None = None
    #: Something changed that a solve should know about.
    dirty: bool = False
    #: Request id of the solve in flight; 0: none. `last_request` is the newest ever sent.
    in_flight: int = 0
    last_request: int = 0
    #: Answers to requests up to this one are about an older policy.
    void_up_to: int = 0
    asked_at: float = -inf
    round_timer_at: float = inf
    gate_timer_at: float = inf
    #: (when to look, job) of jobs with a deadline, and those that were given machines which stay.
    deadlines: list[tuple[float, JobId]] = field(default_factory=list)
    secured: set[JobId] = field(default_factory=set)
    #: Of these, those whose machines do not come: failures of the pool when they were looked at, and when again.
    stranded: dict[JobId, tuple[int, float]] = field(default_factory=dict)
    #: What is being spent, and who may not start because of it.
    spending: SpendingMeter = field(init=False)

    def __post_init__(self) -> None:
        self.spending = SpendingMeter(self.ledger)

    def set_job_state(self, job: JobRecord, state: JobState, reason: Reason | None = None, detail: str = "") -> None:
        """Change the job's state and tell the shells."""
        check_job_transition(job.state, state)
        job.state = state
        job.over_budget = state is JobState.PENDING and self.spending.closed_to(job) is not None
        self.ledger.set_eligible(job)
        self.commands.append(JobTransitioned(job.job_id, state, reason, detail))

    def set_attempt_state(
        self, job: JobRecord, state: AttemptState, reason: Reason | None = None, placement: Placement | None = None
    ) -> None:
        self.commands.append(AttemptTransitioned(job.job_id, job.attempt, state, reason, placement))


def enqueue_job(cycle: Cycle, job: JobRecord) -> None:
    """Put a waiting job in the line of every pool it may run on."""
    if cycle.ordering is None or not job.waits or job.ready_at > cycle.now:
        return
    for pool, key in cycle.ordering.keys(job):
        cycle.queues.push(job, pool, key)
        cycle.stale_pools.add(pool)
