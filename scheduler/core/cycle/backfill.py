"""Backfill: free places go to the most urgent jobs that fit, and one place is reserved for a gang that does not.

`fill_free_places` runs whenever places became free or a job arrived; its cost grows with the number of resource shapes
in the queues. `reserve` keeps the machines that will be free earliest; another job may borrow them meanwhile if it
ends, or can be stopped, before they are needed (EASY backfill), or is of a higher class.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain
from math import inf

from scheduler.core.placement.attempt_lifecycle import start_attempt
from scheduler.core.placement.reservations import (
    NO_CAPACITY,
    UNBOUNDED_CAPACITY,
    FreeCapacityBound,
    drop_reservation,
    free_capacity_bound,
    lend_reserved_place,
    open_reservation,
    reserved_parts,
    settle_reservation,
)
from scheduler.core.placement.retry_waits import waits_for_other_machine
from scheduler.core.placement.search import find_earliest_place, find_free_place, waits_for_closer
from scheduler.core.placement.where import may_hold
from scheduler.core.rules import Backfill
from scheduler.core.state.fleet import Place
from scheduler.core.state.job_queues import QueueKey
from scheduler.core.state.ledger import JobRecord
from scheduler.core.state.placement_limits import Reservation
from scheduler.core.state.remaining_work import end_if_started_at, ready_at
from scheduler.core.state.stopping import StopFor, may_be_stopped
from scheduler.core.state.working_set import Cycle, enqueue_job

#: Number of jobs of a shape that are tried as borrowers of a reservation.
BACKFILL_DEPTH = 64

#: Head of a queue: its key, the job, and the rows of pool and shape.
_QueueHead = tuple[QueueKey, JobRecord, int, int]


# ------------------------------------------------------------------------------------------------ fill

#: Maximum of attempts that one event starts, about 10 ms of work. The core wakes at once for the others.
STARTS_AT_ONCE = 200


def fill_free_places(cycle: Cycle) -> None:
    """Gives free places in changed pools to the most urgent jobs that fit; reserves one for a gang that does not."""
    strict = cycle.ordering.strict or cycle.policy.rules.backfill is Backfill.NONE
    if not (cycle.backlog.stale_pools or strict):
        return
    # Under a strict order the head of the queue may wait for a pool in which nothing changed, and still blocks.
    pools = cycle.queues.busy(range(len(cycle.ledger.fleet.pools)) if strict else sorted(cycle.backlog.stale_pools))
    cycle.backlog.stale_pools.clear()
    if not pools:
        return
    filling, started = _FillPass(pools, strict), 0
    while True:
        found = _most_urgent(cycle, filling)
        if found is None:
            return
        if started >= STARTS_AT_ONCE and not cycle.policy.rules.idle_to_round_end:
            cycle.backlog.stale_pools.update(pools)
            cycle.timers.set(cycle.now, "fill")  # only wakes the core
            return
        key, job, pool, shape_row = found
        if not strict:
            filling.pass_over(cycle, key, pool)
        shape = cycle.ledger.classes.shapes[shape_row]
        place = find_free_place(cycle, job, pool, shape) or _place_for_smaller_gang(cycle, job, pool)
        if place is None and not may_hold(cycle, job, pool, shape.counts[pool]):
            cycle.limits.hold_back(job, pool)
            continue  # passed by even under a strict order: it waits for places of its own project only
        if place is None and cycle.bookings.declared and cycle.bookings.keeps_off(job, pool):
            cycle.solves.problem_changed = True
            continue  # another job of its shape may have the place: it ends sooner, or the place is booked for it
        has_failed = place is None and job.job_id in cycle.ledger.retries.failed
        if has_failed and waits_for_other_machine(cycle, job, pool):
            if cycle.policy.rules.backfill is Backfill.EASY and _full_reservation(cycle, pool) is None:
                reserve(cycle, job, pool)
                filling.look_again()
            continue  # continue with other jobs: this one may not start here because it failed here
        if place is None or (not strict and waits_for_closer(cycle, job, pool, place)):
            filling.full.add((pool, shape_row))
            if not _reserve_or_lend(cycle, job, pool, filling):
                return
            filling.look_again()
            continue
        pool, place = _fastest_place(cycle, job, pool, place)
        drop_reservation(cycle, job.job_id)  # it starts now, so it needs no reservation
        start_attempt(cycle, job, pool, place)
        started += 1
        filling.look_again()


def fill_rest(cycle: Cycle, left_out: Callable[[], Iterable[JobRecord]]) -> None:
    """Gives owned places that no planned job could take to waiting jobs that the plan left out, in the order given.

    A plan counts accelerators: what is free may be spread over machines so that the planned gang does not fit. Only
    jobs that can leave again may have it, and those that are not much slower there than elsewhere.
    """
    ledger, tried = cycle.ledger, set[tuple[int, int, int]]()
    pools = [state for state in ledger.fleet.pools if state.free and not state.rented]
    for job in left_out() if pools else ():
        job_class, entity = ledger.class_of(job), ledger.columns.entity.item(job.slot)
        least = max(cycle.policy.rules.opportunistic_rate * job_class.best_rate, 1e-300)
        for state in sorted(pools, key=lambda state: -job_class.rates[state.row]):
            if not state.free or job_class.rates[state.row] < least or (job.class_row, entity, state.row) in tried:
                continue
            if len(tried) >= BACKFILL_DEPTH:
                return
            tried.add((job.class_row, entity, state.row))
            place = find_free_place(cycle, job, state.row) or _place_for_smaller_gang(cycle, job, state.row)
            if place is not None and may_be_stopped(ledger, job, StopFor.LENDER) is None:
                drop_reservation(cycle, job.job_id)
                start_attempt(cycle, job, state.row, place)
                tried.discard((job.class_row, entity, state.row))
                break


def _place_for_smaller_gang(cycle: Cycle, job: JobRecord, pool: int) -> Place | None:
    """Returns a place for the largest smaller gang as which an elastic job may run; None if there is none."""
    if not job.request.sizes or not cycle.ordering.shrinks_gangs or cycle.deadlines.sizes_gang_of(job):
        return None
    most, smaller = cycle.ledger.count_on(job, pool), reversed(cycle.ledger.shapes_of(job))
    places = (find_free_place(cycle, job, pool, shape) for shape in smaller if shape.counts[pool] < most)
    return next((place for place in places if place is not None), None)


@dataclass(slots=True)
class _FillPass:
    """What one pass over the queues has found out so far."""

    pools: list[int]
    strict: bool
    #: (pool, shape) pairs that have no free place.
    full: set[tuple[int, int]] = field(default_factory=set)
    #: Bounds on free capacity by pool, valid until a job starts or a place is lent or reserved.
    bound: dict[int, FreeCapacityBound] = field(default_factory=dict)
    #: Pools whose queue head has been served or passed over.
    begun: set[int] = field(default_factory=set)

    def look_again(self) -> None:
        """Drops the cached bounds, because a job was started, or a place was lent or reserved."""
        self.bound.clear()

    def pass_over(self, cycle: Cycle, key: QueueKey, pool: int) -> None:
        """Marks queue heads ahead of `key` on the other pools as not fitting, so that the scan skips their shape."""
        if len(self.begun) == len(self.pools):
            return
        for other in self.pools:
            if other in self.begun:
                continue
            is_first = other == pool and self.bound[pool] is UNBOUNDED_CAPACITY  # all its waiting jobs were examined
            if not is_first and cycle.ledger.fleet.pools[other].free:
                first = _most_urgent_on(cycle, self, other, UNBOUNDED_CAPACITY)
                if first is None or (first[0], other) > (key, pool):
                    continue
                if first[0] < key or other != pool:
                    self.full.add((other, first[3]))
            self.begun.add(other)


def _most_urgent(cycle: Cycle, filling: _FillPass) -> _QueueHead | None:
    """Returns the most urgent head of a queue over these pools that is not known to be full; None if none is left."""
    best: _QueueHead | None = None
    for pool in filling.pools:
        bound = filling.bound.get(pool)
        if bound is None:
            bound = filling.bound[pool] = UNBOUNDED_CAPACITY if filling.strict else free_capacity_bound(cycle, pool)
        first = _most_urgent_on(cycle, filling, pool, bound)
        if first is not None and (best is None or first[0] < best[0]):
            best = first
    return best


def _most_urgent_on(cycle: Cycle, filling: _FillPass, pool: int, bound: FreeCapacityBound) -> _QueueHead | None:
    """Returns the most urgent waiting job in the pool's queues that are not known to be full; None if none waits."""
    if bound is NO_CAPACITY:
        return None
    best: _QueueHead | None = None
    elastic = cycle.ledger.classes.elastic_shapes
    for shape_row, queue in cycle.queues.of(pool):
        may_start = bound.may_hold(queue) or (shape_row in elastic and _may_start_smaller(cycle, pool))
        if not may_start or (pool, shape_row) in filling.full:
            continue
        # Looking at a head takes longer, for those in it that wait no more are dropped.
        if best is not None and (floor := queue.floor()) is not None and floor >= best[0]:
            continue
        head = cycle.queues.head(pool, shape_row, queue)
        if head is not None and (best is None or head[0] < best[0]):
            best = *head, pool, shape_row
    return best


def _may_start_smaller(cycle: Cycle, pool: int) -> bool:
    """Returns whether an elastic job of the pool could start with a smaller gang."""
    return cycle.ledger.fleet.pools[pool].free > 0 and cycle.ordering.shrinks_gangs


def _fastest_place(cycle: Cycle, job: JobRecord, pool: int, place: Place) -> tuple[int, Place]:
    """Returns the fastest pool with a free place under an order; under shares the pool is chosen already."""
    for other in cycle.ordering.alternatives(job, pool):
        found = find_free_place(cycle, job, other)
        if found is not None:
            return other, found
    return pool, place


def settle_limits(cycle: Cycle) -> None:
    """Queues jobs again that waited for room below a limit, once there is room. Runs before any start.

    A place that is complete is taken once a limit allows it, and nothing is reserved beyond what one could allow.
    """
    limits = cycle.limits
    for job_id in tuple(limits.parked):
        job = cycle.ledger.jobs.get(job_id)
        if job is None or not job.waits or _fits_limit(cycle, job):
            del limits.parked[job_id]
            if job is not None:
                enqueue_job(cycle, job)
    for job_id, pool in tuple(limits.barred):
        job = cycle.ledger.jobs.get(job_id)
        if job is None or not job.waits or not limits.is_barred(job, pool):
            limits.barred.discard((job_id, pool))
            if job is not None:
                enqueue_job(cycle, job)
    for reservation in tuple(cycle.reservations.values()):
        if not limits.can_allow(cycle.ledger.jobs[reservation.job_id], reserved_parts(cycle, reservation)):
            drop_reservation(cycle, reservation.job_id)
            cycle.backlog.rebuild_queues = True
        elif not any(reservation.needs.values()):
            settle_reservation(cycle, reservation)


def _fits_limit(cycle: Cycle, job: JobRecord) -> bool:
    """Returns whether the smallest gang that the job may run as has room below its limits."""
    ledger = cycle.ledger
    shapes = ledger.shapes_of(job) if cycle.ordering.shrinks_gangs else [ledger.shape_of(job)]
    return min((count for shape in shapes for count in shape.counts if count), default=0) <= cycle.limits.room(job)


def _reserve_or_lend(cycle: Cycle, job: JobRecord, pool: int, filling: _FillPass) -> bool:
    """Reserves for the queue head that does not fit, or lends to it. Returns False if jobs behind it may not start."""
    if filling.strict:
        return any(find_free_place(cycle, job, other) is not None for other in range(len(cycle.ledger.fleet.pools)))
    if cycle.policy.rules.backfill is Backfill.EASY:
        reservation = _full_reservation(cycle, pool)
        if reservation is None:
            reserve(cycle, job, pool)
        elif _can_lend(reservation, cycle.ledger.count_on(job, pool)):
            those_in_line = chain((job,), cycle.queues.behind(job, pool, BACKFILL_DEPTH))
            if _lend_to_first(cycle, reservation, those_in_line):
                filling.full.discard((pool, cycle.ledger.class_of(job).shape))
                settle_reservation(cycle, reservation)
    return True


# ------------------------------------------------------------------------------------------------ reserve


def _full_reservation(cycle: Cycle, pool: int) -> Reservation | None:
    """Returns the reservation of the lowest class on the pool if as many are open as the rules allow; else None."""
    found = cycle.backfill_reservations.get(pool)
    if not found or len(found) < cycle.policy.rules.max_reservations:
        return None
    return min(found.values(), key=lambda each: cycle.ledger.jobs[each.job_id].request.priority_class)


def _can_lend(reservation: Reservation, count: int) -> bool:
    """Returns whether a machine of the reservation has `count` accelerators to lend."""
    return any(reservation.wanted[row] - need >= count for row, need in reservation.needs.items())


def reserve(cycle: Cycle, job: JobRecord, pool: int) -> None:
    """Reserves the place that is free earliest for a gang that fits nowhere."""
    count = cycle.ledger.count_on(job, pool)
    if count < 2 or job.job_id in cycle.reservations or not cycle.ordering.is_entitled(job, pool):
        return
    place = find_earliest_place(cycle, job, pool)
    if place is not None:
        open_reservation(cycle, job, pool, place, preempting=False)


def _is_of_higher_class(cycle: Cycle, job: JobRecord, reservation: Reservation) -> bool:
    return job.request.priority_class > cycle.ledger.jobs[reservation.job_id].request.priority_class


def _lend_to_first(cycle: Cycle, reservation: Reservation, jobs: Iterable[JobRecord]) -> bool:
    """Lends to the first of these jobs that may borrow. They share a shape: if one does not fit, none does."""
    for job in jobs:
        count, pool = cycle.ledger.count_on(job, reservation.pool), reservation.pool
        if _may_borrow(cycle, job, reservation) and may_hold(cycle, job, pool, count):
            return lend_reserved_place(cycle, reservation, job)
    return False


def _may_borrow(cycle: Cycle, job: JobRecord, reservation: Reservation) -> bool:
    """Returns whether the job is of a higher class, or ends or can be stopped before the place is needed."""
    if reservation.job_id == job.job_id:
        return False
    if _is_of_higher_class(cycle, job, reservation):
        return True
    if cycle.ordering.protects(job) is None and may_be_stopped(cycle.ledger, job, StopFor.LENDER) is None:
        return True
    ledger, rules = cycle.ledger, cycle.policy.rules
    end_at = end_if_started_at(ledger, job, reservation.pool, rules)
    if end_at == inf:
        return False
    machines = [ledger.fleet.machines[row] for row in reservation.wanted]
    needed_at = max(ready_at(ledger, each, reservation.needs[each.row], rules) for each in machines if each is not None)
    return end_at <= needed_at
