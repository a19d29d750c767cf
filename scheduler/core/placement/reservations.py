"""Places kept for jobs that cannot start yet: places that preempted jobs are leaving, and backfill reservations.

What is free on a reserved machine is held in the job's name at once; what becomes free there goes to the reservation
of the highest class first, then to the oldest. A backfill reservation may lend what it holds to jobs of a higher class,
and to those that end, or can be stopped, before it needs the place (EASY backfill); once only borrowers of its class or
below keep a job from its start, they are asked to leave. So a freed place cannot be taken from the job it was freed
for, and a gang cannot starve behind a stream of small jobs of its class.
`free_capacity_bound` bounds what may start on a pool, so that backfill skips queues that cannot fit.
"""

from math import inf
from typing import NamedTuple

from scheduler.core.placement.attempt_lifecycle import ask_to_leave, start_attempt
from scheduler.core.placement.where import PlaceOf, may_place
from scheduler.core.state.fleet import FleetMachine, MachineCondition, Place, is_enough, most_that_fit
from scheduler.core.state.job_classes import PoolParts
from scheduler.core.state.job_queues import ShapeQueue
from scheduler.core.state.ledger import JobRecord
from scheduler.core.state.placement_limits import Reservation
from scheduler.core.state.stopping import StopFor, may_be_stopped
from scheduler.core.state.working_set import Cycle
from walras.job_request import JobId
from walras.states import Reason


def open_reservation(cycle: Cycle, job: JobRecord, pool: int, place: Place, *, preempting: bool) -> Reservation:
    """Reserves these accelerators of these machines, taking what is free there now."""
    assert job.job_id not in cycle.reservations
    assert place
    wanted = dict(place)
    reservation = Reservation(job.job_id, pool, wanted, dict(wanted), preempting)
    cycle.reservations[job.job_id] = reservation
    if preempting:
        cycle.queues.nominated.add(job.job_id)
    else:
        cycle.backfill_reservations.setdefault(pool, {})[job.job_id] = reservation
    for row in wanted:
        cycle.reserved_on.setdefault(row, []).append(job.job_id)
        _hold(cycle, reservation, row)
        _close_or_open(cycle, row)
    return reservation


def drop_reservation(cycle: Cycle, job_id: JobId) -> None:
    """Drops a job's reservation; the accelerators that it held are free for other reservations and for queued jobs."""
    reservation = cycle.reservations.get(job_id)
    if reservation is None:
        return
    _unregister(cycle, reservation)
    for row in reservation.wanted:
        _leave_machine(cycle, reservation, row)
    job = cycle.ledger.jobs[job_id]
    for row in reservation.wanted:
        machine = cycle.ledger.fleet.machines[row]
        if machine is not None and reservation.wanted[row] > reservation.needs[row]:
            cycle.ledger.fleet.give_back(job_id, machine, cycle.ledger.shape_of(job), cycle.now)
            cycle.backlog.freed[row] = None
            cycle.backlog.stale_pools.add(machine.pool)
            if machine.token:
                cycle.backlog.emptied[row] = None
    cycle.backlog.stale_pools.add(reservation.pool)


def offer_freed_machine(cycle: Cycle, machine: FleetMachine) -> None:
    """Offers what is free on the machine to reservations, those of higher classes and older ones first; then to the
    queues.
    """
    cycle.backlog.stale_pools.add(machine.pool)
    cycle.sharing.is_due = True
    jobs = cycle.ledger.jobs
    for job_id in sorted(cycle.reserved_on.get(machine.row, ()), key=lambda each: -jobs[each].request.priority_class):
        reservation = cycle.reservations.get(job_id)
        if reservation is not None:
            _hold(cycle, reservation, machine.row)
            settle_reservation(cycle, reservation)
    _close_or_open(cycle, machine.row)


def settle_reservation(cycle: Cycle, reservation: Reservation) -> None:
    """Starts the job once all reserved accelerators are free; preempts the borrowers if only theirs are not."""
    job = cycle.ledger.jobs[reservation.job_id]
    if not any(reservation.needs.values()):
        parts, machines = reserved_parts(cycle, reservation), cycle.ledger.fleet.machines
        # A machine that fell silent while others were waited for takes no jobs until it is back.
        is_up = all(
            each is not None and each.condition is MachineCondition.UP
            for each in map(machines.__getitem__, reservation.wanted)
        )
        if is_up and job.waits and job.ready_at <= cycle.now and cycle.limits.allows(job, parts, kept=False):
            _start_reserved(cycle, reservation, job)
        return
    if not waits_for_non_borrowers(cycle, reservation):
        borrowers = [cycle.ledger.jobs[borrower_id] for borrower_id in reservation.lent]
        if not cycle.limits.allows(job, reserved_parts(cycle, reservation), borrowers, kept=False):
            return
        for borrower in borrowers:
            if _returns(cycle, borrower, job):
                detail = f"job {reservation.job_id} has reserved this place"
                ask_to_leave(cycle, borrower, StopFor.RETURN, Reason.POLICY_PREEMPTED, detail=detail)


def reserved_parts(cycle: Cycle, reservation: Reservation) -> PoolParts:
    """Returns (pool, accelerators) of the reserved place."""
    return cycle.ledger.fleet.parts_of(tuple(reservation.wanted.items()))


def waits_for_non_borrowers(cycle: Cycle, reservation: Reservation) -> bool:
    """Returns whether something is missing besides what borrowers hold."""
    missing, claimant = dict(reservation.needs), cycle.ledger.jobs[reservation.job_id]
    for borrower_id, row in reservation.lent.items():
        borrower = cycle.ledger.jobs[borrower_id]
        if _returns(cycle, borrower, claimant):
            missing[row] -= dict(borrower.place)[row]
    return any(count > 0 for count in missing.values())


def _returns(cycle: Cycle, borrower: JobRecord, claimant: JobRecord) -> bool:
    """Returns whether the borrower leaves, or may be asked to: one of a higher class, protected or an owner stays."""
    if borrower.revoked is not None:
        return True
    may = may_be_stopped(cycle.ledger, borrower, StopFor.RETURN) is None
    may = may and not cycle.ledger.usage.owned.keeps(cycle.ledger, borrower, claimant)
    return may and borrower.request.priority_class <= claimant.request.priority_class


def drop_reservations_on(cycle: Cycle, machine: FleetMachine) -> None:
    """Drops all reservations on a machine that is gone or takes no more jobs."""
    for job_id in tuple(cycle.reserved_on.get(machine.row, ())):
        drop_reservation(cycle, job_id)
        # The queues may have dropped the job while it had a reservation, so they are filled anew.
        cycle.backlog.rebuild_queues = True


def lend_reserved_place(cycle: Cycle, reservation: Reservation, borrower: JobRecord) -> bool:
    """Starts the borrower on one machine of the reservation, if what is held there suffices. Returns whether it did.

    Lending ends once only borrowers keep the reservation's job from its start: a new borrower would be asked to leave
    at once, and borrow again, for ever.
    """
    if borrower.deadline_pool >= 0 or not waits_for_non_borrowers(cycle, reservation):
        return False  # a job moved for its deadline must not be asked to leave again
    shape = cycle.ledger.shape_of(borrower)
    count = shape.counts[reservation.pool]
    claimant = cycle.ledger.jobs[reservation.job_id]
    for row, wanted in reservation.wanted.items():
        held = wanted - reservation.needs[row]
        machine = cycle.ledger.fleet.machines[row]
        if machine is None or held < count or may_place(cycle, borrower, machine, PlaceOf.LENT) is not None:
            continue
        cycle.ledger.fleet.give_back(reservation.job_id, machine, cycle.ledger.shape_of(claimant), cycle.now)
        reservation.needs[row] = wanted
        if not is_enough(machine.free_cpus, machine.free_memory_bytes, count, shape):
            _hold(cycle, reservation, row)
            continue
        reservation.lent[borrower.job_id] = row
        start_attempt(cycle, borrower, reservation.pool, ((row, count),))
        _hold(cycle, reservation, row)
        return True
    return False


def _hold(cycle: Cycle, reservation: Reservation, row: int) -> None:
    """Holds in the job's name what is free on the machine and still needed there."""
    machine = cycle.ledger.fleet.machines[row]
    need = reservation.needs[row]
    if machine is None or machine.condition is not MachineCondition.UP or not need or not machine.free:
        return
    job = cycle.ledger.jobs[reservation.job_id]
    if any(row == own for own, _ in job.place):
        return  # it runs there itself, and takes what is free together with what it frees
    shape = cycle.ledger.shape_of(job)
    fleet = cycle.ledger.fleet
    # One holding per machine and job, so the old one is returned and the larger one taken.
    held = reservation.wanted[row] - need
    fleet.give_back(reservation.job_id, machine, shape, cycle.now)
    most = max(held, most_that_fit(machine, min(reservation.wanted[row], len(machine.free)), shape))
    if most:
        fleet.hold(reservation.job_id, machine, most, shape)
    reservation.needs[row] = reservation.wanted[row] - most


def _close_or_open(cycle: Cycle, row: int) -> None:
    """Keeps what is free on the machine for jobs for which others were asked to leave there.

    These hold every accelerator that they can. What is free nevertheless lacks processors or memory until the next job
    has left; if others got it meanwhile, the whole place would never become free.
    """
    machine = cycle.ledger.fleet.machines[row]
    if machine is None:
        return
    machine.closed = False
    for job_id in cycle.reserved_on.get(row, ()):
        reservation = cycle.reservations.get(job_id)
        if reservation is not None and reservation.preempting and reservation.needs[row] > 0:
            machine.closed = True
            return


def _unregister(cycle: Cycle, reservation: Reservation) -> None:
    """Removes the reservation from the records."""
    del cycle.reservations[reservation.job_id]
    cycle.queues.nominated.discard(reservation.job_id)
    if not reservation.preempting:
        del cycle.backfill_reservations[reservation.pool][reservation.job_id]


def _leave_machine(cycle: Cycle, reservation: Reservation, row: int) -> None:
    """Removes the reservation's interest in this machine."""
    cycle.reserved_on[row].remove(reservation.job_id)
    if not cycle.reserved_on[row]:
        del cycle.reserved_on[row]
    _close_or_open(cycle, row)


def _start_reserved(cycle: Cycle, reservation: Reservation, job: JobRecord) -> None:
    """Turns the reservation's holding into an attempt."""
    fleet, shape = cycle.ledger.fleet, cycle.ledger.shape_of(job)
    _unregister(cycle, reservation)
    for row in reservation.wanted:
        _leave_machine(cycle, reservation, row)
        machine = fleet.machines[row]
        assert machine is not None
        fleet.give_back(reservation.job_id, machine, shape, cycle.now)
    start_attempt(cycle, job, reservation.pool, tuple(reservation.wanted.items()))


class FreeCapacityBound(NamedTuple):
    """Upper bounds on free accelerators: on one machine of a pool, on all of them, and to be borrowed."""

    one: float
    several: float
    lent: float

    def may_hold(self, queue: ShapeQueue) -> bool:
        """Returns False only if there is certainly no place for gangs of this queue."""
        count = queue.count
        return (queue.part <= self.one and count <= self.several) or count <= self.lent


#: No bound: any queue may have to be examined.
UNBOUNDED_CAPACITY = FreeCapacityBound(inf, inf, inf)
NO_CAPACITY = FreeCapacityBound(0, 0, 0)


def free_capacity_bound(cycle: Cycle, pool: int) -> FreeCapacityBound:
    """Returns the bound of what may start on the pool; no bound while another reservation may be opened."""
    fleet = cycle.ledger.fleet
    free, held = fleet.pools[pool].free, 0
    reserved = cycle.backfill_reservations[pool].values() if pool in cycle.backfill_reservations else ()
    for reservation in reserved:
        needs = reservation.needs
        for row, wanted in reservation.wanted.items():
            if wanted - needs[row] > held:
                held = wanted - needs[row]
    if not (free or held):
        return NO_CAPACITY
    if len(reserved) < cycle.policy.rules.max_reservations:
        return UNBOUNDED_CAPACITY
    lends = held and any(waits_for_non_borrowers(cycle, reservation) for reservation in reserved)
    return FreeCapacityBound(fleet.most_free(pool) if free else 0, free, held if lends else 0)
