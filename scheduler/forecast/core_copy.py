"""A snapshot of a core's state as plain data, and a core made from it, to be rolled forward or asked.

The state is recorded as a restarted core is told it: pools, machines, known speeds, owed time, then each job; then what
a restarted core would decide anew, and otherwise (`Decided`): the plan in force, when the next is due, and reserved
places. Taking the snapshot changes nothing in the original core; it is done in pieces of some milliseconds, between
which that core must not handle events.

To another process, a question about a state goes without the jobs, which precede it in pieces: ten thousand jobs take a
tenth of a second to pack, in which the sender's other threads hardly get a turn, and a call keeps what it carries until
its answer comes.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any, Protocol, TypeVar

from optimizer.policy import Policy
from optimizer.problem import FloatArray, IntArray
from scheduler.core.commands import Command
from scheduler.core.core import SchedulerCore
from scheduler.core.cycle.round import MECHANISMS, MakeMechanism, PlanRounds, judge_arrival, rebuild_queues
from scheduler.core.events import (
    Booking,
    BookingsDeclared,
    Event,
    JobRestored,
    MoneyRestated,
    NodeData,
    NodeJoined,
    NodeLeaving,
    NodePrivate,
    NodeQuarantined,
    NodeUnreachable,
    PolicyChanged,
    PoolDeclared,
    RentRestored,
    SharesDeclared,
    StateRestored,
    Woke,
)
from scheduler.core.handlers.restored_state import gather_state
from scheduler.core.ordering.plan_ordering import PlanOrdering
from scheduler.core.placement.reservations import open_reservation
from scheduler.core.rules import RoundRules
from scheduler.core.state.fleet import FleetMachine, MachineCondition
from scheduler.core.state.job_classes import JobClasses
from scheduler.core.state.ledger import JobRecord, Ledger
from scheduler.core.state.throughput import NetworkTable, RestartCosts, ThroughputTable
from scheduler.core.state.working_set import Cycle, RoundMechanism
from scheduler.forecast.past_jobs import DrawnLengths, EndedJob
from walras.cluster import NodeId, PoolId
from walras.job_request import JobId, JobRequest
from walras.states import Reason

#: Number of jobs recorded between two pauses, and in a piece that is packed: about a millisecond of work.
JOBS_IN_A_PIECE = 100


#: What `JobColumns`, `Ledger` and `ActivePolicy` know of decisions, beyond what a restarted core is told.
_OF_JOBS, _OF_LEDGER = ("since_at", "worked_s", "renewed_at_s"), ("restarts", "finished_s")
_OF_POLICY = ("memory", "quote", "proposal", "solved_at", "riders")


@dataclass(frozen=True, slots=True)
class Decided:
    """What a core has decided that is still in force, and what it decided it by."""

    ledger: dict[str, Any]
    policy: dict[str, Any]
    #: When the last solve was requested, and whether something has changed since.
    requested_at: float
    is_changed: bool
    #: Pools in the order of the columns of `entitled`; job ids, and values of these jobs by the column's name.
    pools: tuple[str, ...]
    job_id: IntArray
    columns: dict[str, FloatArray]
    #: Chosen accelerators of elastic jobs, by type; and jobs that wait for a lease to be measured.
    sizes: dict[JobId, dict[str, int]]
    awaiting_lease: frozenset[JobId]
    #: Job, pool, accelerators by machine, whether jobs were asked to leave, and machines by borrower.
    reservations: tuple[tuple[JobId, PoolId, dict[NodeId, int], bool, dict[JobId, NodeId]], ...]


@dataclass(frozen=True, slots=True)
class CoreSnapshot:
    """What a core knew at one instant."""

    at: float
    policy: PolicyChanged
    #: Weights, guarantees and limits that administrators have set.
    shares: SharesDeclared
    #: Machines that people have booked.
    bookings: tuple[Booking, ...]
    money: MoneyRestated
    #: Pools and machines, in the order in which a copy is told of them.
    fleet: tuple[Event, ...]
    remembered: StateRestored
    decided: Decided
    #: Active jobs, those that hold machines first.
    jobs: tuple[JobRestored, ...]
    speeds: ThroughputTable
    costs: RestartCosts
    networks: NetworkTable
    #: What each job has done until now, seconds of its whole gang at its best speed.
    had_s: dict[JobId, float]
    #: Observed revocations per machine-hour, of pools whose machines the market reclaims.
    revocations_per_h: dict[str, float]

    def requests(self) -> dict[JobId, JobRequest]:
        """Returns the requests of the active jobs, by job id."""
        return {job.job.job_id: job.job for job in self.jobs}


def snapshot_core(core: SchedulerCore, now: float) -> Generator[None, None, CoreSnapshot]:
    """Generates the snapshot of a core that has a policy; yields pauses. `now` must not be before its last event."""
    ledger = core.ledger
    remembered = yield from gather_state(ledger)
    yield
    fleet = tuple(_told_fleet(ledger, now))
    yield
    speeds, costs, networks = deepcopy(ledger.table), deepcopy(ledger.costs), deepcopy(ledger.networks)
    yield
    holding, waiting, had_s = list[JobRestored](), list[JobRestored](), dict[JobId, float]()
    for number, job in enumerate(ledger):
        if number % JOBS_IN_A_PIECE == 0:
            yield
        (holding if job.holds else waiting).append(_told_job(ledger, job, now))
        had_s[job.job_id] = _done_s(ledger, job, now)
    policy, spending = ledger.policy, core.cycle.spending
    known = spending.stated(now), spending.stated_of_users(now), spending.next_month_at
    return CoreSnapshot(
        now,
        PolicyChanged(now, policy.spec, policy.rules),
        SharesDeclared(now, tuple(ledger.usage.shares.values())),
        core.cycle.bookings.declared,
        MoneyRestated(now, *known, spending.stated_budgets(now)),
        fleet,
        replace(remembered, at=now, programs=()),
        _decided(core),
        (*holding, *waiting),
        speeds,
        costs,
        networks,
        had_s,
        {
            state.pool.pool_id: 3600.0 * state.lives.revocations / lived_s
            for state in ledger.fleet.pools
            if state.lives.revocations and (lived_s := state.lives.lived_s(now)) > 0
        },
    )


def snapshot_at_once(core: SchedulerCore, now: float) -> CoreSnapshot:
    """Returns the result of `snapshot_core`, without pauses."""
    pieces = snapshot_core(core, now)
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            found: CoreSnapshot = end.value
            return found


def known_lengths(snapshot: CoreSnapshot, ended: Iterable[EndedJob]) -> DrawnLengths:
    """Returns the distribution of lengths that ended jobs and the active ones of this state tell, at best speeds."""
    classes = CoreCopy(replace(snapshot, jobs=())).core.ledger.classes
    at_best = list[EndedJob]()
    for job in ended:
        if job.request is not None and job.steps > 0:
            best = classes.classes[classes.row(job.request)].best_rate
            job = replace(job, ran_s=job.steps / best, request=None) if best > 0 else job
        at_best.append(job)
    longer = [job for job in at_best if job.is_cut]
    for asked in (job.job for job in snapshot.jobs if job.job.steps is None):
        if (had_s := snapshot.had_s.get(asked.job_id, 0.0)) > 0:
            longer.append(EndedJob(asked.user, asked.kind, had_s, project=asked.project, guess_s=asked.duration_s))
    return DrawnLengths([job for job in at_best if not job.is_cut], longer)


def _decided(core: SchedulerCore) -> Decided:
    cycle, ledger, columns = core.cycle, core.ledger, core.ledger.columns
    slots, pools, solves = columns.active.nonzero()[0], ledger.fleet.pools, cycle.solves
    name_of = {machine.row: machine.node_id for machine in ledger.fleet.machines if machine is not None}
    kept = list[tuple[JobId, PoolId, dict[NodeId, int], bool, dict[JobId, NodeId]]]()
    for each in cycle.reservations.values():
        wanted = {name_of[row]: count for row, count in each.wanted.items()}
        lent = {job_id: name_of[row] for job_id, row in each.lent.items()}
        kept.append((each.job_id, pools[each.pool].name, wanted, each.preempting, lent))
    sizes = {
        job.job_id: {demand.accelerator: demand.count for demand in ledger.class_of(job).request.demands}
        for job in ledger
        if job.request.sizes
    }
    plans = cycle.ordering if isinstance(cycle.ordering, PlanOrdering) else None
    return Decided(
        {name: deepcopy(getattr(ledger, name)) for name in _OF_LEDGER},
        {name: getattr(ledger.policy, name) for name in _OF_POLICY},
        solves.requested_at,
        solves.problem_changed or solves.in_flight > 0,
        tuple(state.name for state in pools),
        columns.job_id[slots],
        {name: getattr(columns, name)[slots] for name in (*_OF_JOBS, "entitled")},
        sizes,
        frozenset() if plans is None else frozenset(plans.awaiting_lease),
        tuple(kept),
    )


def _decide_again(cycle: Cycle, told: Decided) -> None:
    """Puts in force what the original core has decided."""
    ledger, columns, fleet = cycle.ledger, cycle.ledger.columns, cycle.ledger.fleet
    slots = columns.slots_of(told.job_id)
    known = slots >= 0
    for name in _OF_JOBS:
        getattr(columns, name)[slots[known]] = told.columns[name][known]
    for name, value in told.ledger.items():
        setattr(ledger, name, deepcopy(value))
    ledger.restarts.known_at_event = -1
    for job_id, chosen in told.sizes.items():
        if job_id in ledger.jobs:
            ledger.resize(ledger.jobs[job_id], chosen)
    pool_rows = [ledger.slow_machines.row_named(fleet, PoolId(name)) for name in told.pools]
    for before, now in enumerate(pool_rows):
        if now is not None:
            columns.entitled[slots[known], now] = told.columns["entitled"][known, before]
    for name, value in told.policy.items():
        # Prices are by row; where rows differ, those that a restarted core is told, by name, stay.
        if name != "quote" or pool_rows == list(range(len(fleet.pools))):
            setattr(ledger.policy, name, value)
    cycle.solves.requested_at, cycle.solves.problem_changed = told.requested_at, told.is_changed
    if isinstance(cycle.ordering, PlanOrdering):
        cycle.ordering.awaiting_lease |= told.awaiting_lease
    rows = {machine.node_id: machine.row for machine in fleet.machines if machine is not None}
    for job_id, pool_id, wanted, preempting, lent in told.reservations:
        job, pool = ledger.jobs.get(job_id), ledger.slow_machines.row_named(fleet, pool_id)
        if job is not None and pool is not None and rows.keys() >= wanted.keys():
            place = tuple((rows[node_id], count) for node_id, count in wanted.items())
            reservation = open_reservation(cycle, job, pool, place, preempting=preempting)
            reservation.lent.update((borrower, rows[node_id]) for borrower, node_id in lent.items())


def _told_fleet(ledger: Ledger, now: float) -> Iterator[Event]:
    pools = ledger.fleet.pools
    for state in pools:
        if not state.pool.removed and state.slow_of is None:
            yield PoolDeclared(now, state.pool)
    for machine in ledger.fleet.machines:
        if machine is not None and machine.condition is not MachineCondition.RELEASED:
            yield from _told_machine(machine, pools[machine.pool].pool.pool_id, now)
    for state in pools:
        for token, machines in state.awaited.items():
            yield RentRestored(now, token, state.pool.pool_id, machines)


def _told_machine(machine: FleetMachine, pool_id: PoolId, now: float) -> Iterator[Event]:
    node_id, condition = machine.node_id, machine.condition
    paid_since = machine.paid_since if machine.token else None
    tools = None if machine.tools is None else tuple(sorted(machine.tools))
    yield NodeJoined(now, node_id, pool_id, machine.token, paid_since, tools=tools, machine=machine.whole)
    if machine.data:
        yield NodeData(now, node_id, tuple(sorted(machine.data)), machine.fetched)
    if machine.is_private:
        yield NodePrivate(now, node_id, private=True)
    if condition is MachineCondition.LEAVING:
        gentle = machine.gentle_until > now
        yield NodeLeaving(now, node_id, machine.gentle_until if gentle else inf, Reason.HOLD_ADMIN, gentle)
    elif condition is MachineCondition.QUARANTINED:
        yield NodeQuarantined(now, node_id, machine.detail)
    elif condition is MachineCondition.UNREACHABLE:
        yield NodeUnreachable(now, node_id)


def _told_job(ledger: Ledger, job: JobRecord, now: float) -> JobRestored:
    columns, slot = ledger.columns, job.slot
    return JobRestored(
        at=now,
        job=job.request,
        submitted_at=float(columns.submitted_at[slot]),
        state=job.state,
        attempt=job.attempt,
        restarts=job.restarts,
        steps=_steps(ledger, job, now),
        safe_steps=job.safe_steps,
        attained_s=_had_s(ledger, job, now),
        hold_reason=job.hold_reason,
        placement=job.placement if job.holds else None,
        leased_at=job.leased_at,
        running_at=job.running_at,
        prepared=tuple(job.prepared),
        rendezvous=job.rendezvous,
        revoked=job.revoked,
        saves=job.saves,
        held_s=job.held_s,
        profiling=job.profiling_until > -inf,
    )


def _steps(ledger: Ledger, job: JobRecord, now: float) -> float:
    """Returns the steps that the job has made until now, at the assumed speed since its last report."""
    since_s = max(now - float(ledger.columns.steps_at[job.slot]), 0.0)
    return job.steps + (ledger.rate_of(job) * since_s if job.holds and since_s > 0 else 0.0)


def _done_s(ledger: Ledger, job: JobRecord, now: float) -> float:
    """Returns the seconds that the job's steps take at its best speed; those that it has run if it made no steps."""
    best, steps = ledger.class_of(job).best_rate, _steps(ledger, job, now)
    if steps > 0 and best > 0:
        return steps / best
    return _had_s(ledger, job, now) / max(float(ledger.columns.gang[job.slot]), 1.0)


def _had_s(ledger: Ledger, job: JobRecord, now: float) -> float:
    """Returns the accelerator-seconds that the job has received until now."""
    columns, slot = ledger.columns, job.slot
    return float(columns.attained_s[slot] + columns.count[slot] * max(now - columns.settled_at[slot], 0.0))


class CoreCopy:
    """A core in the state of another core. Changes to try are told first; `open` then lets it decide."""

    def __init__(self, snapshot: CoreSnapshot) -> None:
        self.snapshot = snapshot
        self._mechanism: RoundMechanism | None = None
        self.core = SchedulerCore(mechanisms={name: partial(self._keep, make) for name, make in MECHANISMS.items()})
        ledger = self.core.ledger
        ledger.table, ledger.costs = deepcopy(snapshot.speeds), deepcopy(snapshot.costs)
        ledger.networks, ledger.classes = deepcopy(snapshot.networks), JobClasses(ledger.table)
        told = (snapshot.policy, snapshot.shares, snapshot.money, *snapshot.fleet, snapshot.remembered, *snapshot.jobs)
        for event in told:
            # A core neither keeps nor changes events, so they may be shared.
            self.core.handle(event)
        if snapshot.jobs:
            _decide_again(self.core.cycle, snapshot.decided)
            if isinstance(self._mechanism, PlanRounds):
                self._mechanism.carried_out = ledger.policy.proposal

    def _keep(self, make: MakeMechanism, cycle: Cycle, policy: Policy, rules: RoundRules) -> Any:
        """Keeps the mechanism until the copy is opened: a core without one decides nothing."""
        self._mechanism = make(cycle, policy, rules)

    def tell(self, event: Event) -> None:
        """Adds an event at the instant of the snapshot, before the copy begins to decide."""
        event.at = self.core.ledger.now
        self.core.handle(event)

    def open(self, at: float) -> list[Command]:
        """Lets the copy decide from now on. Returns its first commands."""
        cycle, waited = self.core.cycle, {job.job.job_id for job in self.snapshot.jobs}
        cycle.mechanism = self._mechanism
        cycle.commands = first = list[Command]()
        rebuild_queues(cycle)
        # Jobs that waited already are queued, not judged as newcomers again.
        arrived = cycle.backlog.arrived
        cycle.backlog.arrived = [job_id for job_id in arrived if job_id not in waited]
        for job_id in arrived:
            if job_id in waited and (job := cycle.ledger.jobs.get(job_id)) is not None:
                judge_arrival(cycle, job, may_start=False)
        # Not earlier: jobs of a booking that has begun start with it, and those commands would be lost.
        bookings = self.snapshot.bookings
        booked = self.core.handle(BookingsDeclared(at, bookings)) if bookings else []
        return [*first, *booked, *self.core.handle(Woke(at))]


# ------------------------------------------------------------------------------------------ jobs in pieces


Jobs = tuple[JobRestored, ...]
AnswerT = TypeVar("AnswerT")


class AboutState(Protocol):
    """A dataclass that asks about a state."""

    @property
    def snapshot(self) -> CoreSnapshot: ...


QuestionT = TypeVar("QuestionT", bound=AboutState)

#: In the process that answers: jobs that have arrived, by the ticket of their question.
_arrived: dict[int, list[JobRestored]] = {}


def pieces_of(jobs: Jobs) -> Iterator[Jobs]:
    for first in range(0, len(jobs), JOBS_IN_A_PIECE):
        yield jobs[first : first + JOBS_IN_A_PIECE]


def with_jobs(question: QuestionT, jobs: Jobs) -> QuestionT:
    """Returns the question about the same state with these jobs instead.

    Every question about a state is a dataclass; the protocol cannot say so.
    """
    asked: Any = question
    changed: QuestionT = replace(asked, snapshot=replace(question.snapshot, jobs=jobs))
    return changed


def receive_jobs(ticket: int, jobs: Jobs) -> None:
    """Keeps a piece until its question comes or is given up."""
    _arrived.setdefault(ticket, []).extend(jobs)


def give_up(ticket: int) -> None:
    """Drops the pieces of a question that will not come."""
    _arrived.pop(ticket, None)


def answer_about(ticket: int, answer: Callable[[QuestionT], AnswerT], question: QuestionT) -> AnswerT:
    """Returns the answer to the question about a state with all jobs of its ticket."""
    return answer(with_jobs(question, tuple(_arrived.pop(ticket, ()))))
