"""Bookings in effect: machines are cleared when a booking begins, its project's jobs run there, and they return.

Before a booking begins, jobs that it excludes and that may be stopped are asked to leave its machines, as long before
as that takes (`bookings.notice_s`). While it lasts its machines are BOOKED: they are not in the capacity that the
policy shares out, so every kind of policy respects it. The project's waiting jobs get them here, by priority and then
by age; their use is apart from the fleet's capacity (`JobRecord.is_aside`) and does not count against the project's
share in the next problem. When the booking ends, jobs that run there continue as any other job.

A booked machine that is lost, or leaves, is replaced by the machine of its type that can be empty soonest. Jobs whose
owners do not let them be stopped are never stopped for a booking; `booking_choice` refuses bookings that would need it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from math import inf

import numpy as np

from scheduler.core.booking_events import Booking, BookingsDeclared
from scheduler.core.handlers.attempt_events import abort_start
from scheduler.core.placement.attempt_lifecycle import is_prepared, revoke_attempt, start_attempt
from scheduler.core.placement.booking_choice import best_machines
from scheduler.core.placement.reservations import drop_reservation, drop_reservations_on, shape_of
from scheduler.core.placement.search import MachineCandidate, cheapest_machines
from scheduler.core.state.bookings import STAYING, notice_s
from scheduler.core.state.fleet import FleetMachine, MachineCondition, Place, is_enough
from scheduler.core.state.job_classes import ResourceShape
from scheduler.core.state.ledger import JobRecord
from scheduler.core.state.working_set import Cycle, enqueue_job
from walras.job_request import JobId, can_prepare
from walras.states import JobState, Reason


def on_bookings_declared(cycle: Cycle, event: BookingsDeclared) -> None:
    """Replaces the bookings in force; their effects are settled with every event."""
    cycle.bookings.declare(event.bookings)
    cycle.solves.problem_changed = True


def settle_bookings(cycle: Cycle) -> None:
    """Runs before the round: takes and returns machines, asks others to leave, and starts the project's jobs."""
    bookings = cycle.bookings
    if any(booking.until_at <= cycle.now for booking in bookings.declared):
        bookings.declare(bookings.declared)
    _replace_lost_machines(cycle)
    _take_and_return_machines(cycle)
    for booking in bookings.declared:
        _ask_others_to_leave(cycle, booking)
    _drop_claims(cycle)
    _start_in_booked_places(cycle)
    _let_barred_jobs_go_on(cycle)
    _set_timer(cycle)


# ------------------------------------------------------------------------------------------------ machines


def _replace_lost_machines(cycle: Cycle) -> None:
    """Moves bookings by type and number from machines that are gone, or leave, to others that can be empty."""
    bookings, fleet, changed = cycle.bookings, cycle.ledger.fleet, False
    found = list(bookings.declared)
    for number, booking in enumerate(found):
        if not booking.accelerator:
            continue
        here = {node_id: fleet.machine(node_id) for node_id in booking.node_ids}
        staying = {node_id for node_id, each in here.items() if each is not None and each.condition in STAYING}
        if len(staying) == len(here):
            continue
        have = sum(each.size for node_id, each in here.items() if each is not None and node_id in staying)
        others = tuple(each for each in found if each is not booking)
        missing = booking.accelerators - have
        candidates = best_machines(cycle.ledger, others, replace(booking, node_ids=tuple(sorted(staying))))
        chosen = [*sorted(staying, key=booking.node_ids.index)]
        for candidate in candidates:
            if missing > 0 and candidate.is_open:
                chosen.append(candidate.node_id)
                missing -= candidate.accelerators
        if missing <= 0:
            found[number], changed = replace(booking, node_ids=tuple(chosen)), True
    if changed:
        bookings.declare(tuple(found))


def _take_and_return_machines(cycle: Cycle) -> None:
    """Marks machines of bookings that have begun as BOOKED; machines of ended bookings take any job again."""
    bookings, fleet = cycle.bookings, cycle.ledger.fleet
    booked: dict[int, Booking] = {}
    for booking in bookings.declared:
        if booking.is_active(cycle.now):
            booked.update((machine.row, booking) for machine in bookings.machines(booking))
    for row in sorted(bookings.rows - booked.keys()):
        machine = fleet.machines[row]
        if machine is not None:
            _return_machine(cycle, machine)
    bookings.rows = set(booked)
    for row, booking in booked.items():
        machine = fleet.machines[row]
        if machine is None:
            continue
        if machine.condition is MachineCondition.UP:
            drop_reservations_on(cycle, machine)
            fleet.set_condition(machine, MachineCondition.BOOKED, booking.words)
            cycle.solves.problem_changed = True
        elif machine.condition is MachineCondition.UNREACHABLE and machine.before is MachineCondition.UP:
            machine.before = MachineCondition.BOOKED
        if machine.condition is MachineCondition.BOOKED:
            for job in _jobs_with_parts_on(cycle, machine):
                _set_aside(cycle, job)


def _return_machine(cycle: Cycle, machine: FleetMachine) -> None:
    if machine.condition is MachineCondition.UNREACHABLE and machine.before is MachineCondition.BOOKED:
        machine.before = MachineCondition.UP
    if machine.condition is not MachineCondition.BOOKED:
        return
    cycle.ledger.fleet.set_condition(machine, MachineCondition.UP)
    cycle.backlog.freed[machine.row] = None
    cycle.solves.problem_changed = cycle.backlog.rebuild_queues = True
    for job in _jobs_with_parts_on(cycle, machine):
        job.is_aside = any(row in cycle.bookings.rows and row != machine.row for row, _ in job.place)
        cycle.ledger.set_eligible(job)


def _set_aside(cycle: Cycle, job: JobRecord) -> None:
    if not job.is_aside:
        job.is_aside = True
        cycle.ledger.set_eligible(job)
        cycle.solves.problem_changed = True


def _jobs_with_parts_on(cycle: Cycle, machine: FleetMachine) -> list[JobRecord]:
    jobs = (cycle.ledger.jobs[job_id] for job_id in tuple(machine.holders))
    return [job for job in jobs if any(row == machine.row for row, _ in job.place)]


# ------------------------------------------------------------------------------------------------ those who must go


def _those_to_leave(cycle: Cycle, booking: Booking) -> Iterator[JobRecord]:
    """Yields jobs on the booking's machines that it excludes and that may be stopped."""
    for machine in cycle.bookings.machines(booking):
        for job in _jobs_with_parts_on(cycle, machine):
            if job.request.preemptible and not booking.is_open_to(job.request.project) and job.revoked is None:
                yield job


def _ask_others_to_leave(cycle: Cycle, booking: Booking) -> None:
    """Asks excluded jobs to leave in time for the booking's begin. On an unreachable machine they leave later."""
    for job in list(_those_to_leave(cycle, booking)):
        if cycle.now < booking.from_at - notice_s(job) or job.revoked is not None:
            continue
        detail = f"{booking.words} {'begins' if cycle.now < booking.from_at else 'has begun'} here"
        if not is_prepared(job):
            abort_start(cycle, job, Reason.POLICY_PREEMPTED, None, detail)
        elif job.state in (JobState.STARTING, JobState.RUNNING):
            revoke_attempt(cycle, job, Reason.POLICY_PREEMPTED, detail=detail)


def _drop_claims(cycle: Cycle) -> None:
    """Drops reservations of jobs that would not be gone in time; these jobs search for other places."""
    machines, bookings = cycle.ledger.fleet.machines, cycle.bookings
    for reservation in tuple(cycle.reservations.values()):
        job = cycle.ledger.jobs[reservation.job_id]
        rows = [row for row in reservation.wanted if (machine := machines[row]) is not None]
        closed = (row in bookings.closed_to(job, machine.pool) for row in rows if (machine := machines[row]))
        if any(closed):
            drop_reservation(cycle, job.job_id)
            cycle.backlog.rebuild_queues = True


# ------------------------------------------------------------------------------------------------ those who may stay


def _start_in_booked_places(cycle: Cycle) -> None:
    """Gives the project's waiting jobs the free places on its booked machines: highest priority first, then oldest."""
    for project in dict.fromkeys(booking.project for booking in cycle.bookings.declared if booking.project):
        rows = [
            machine.row
            for booking in cycle.bookings.declared
            if booking.project == project and booking.is_active(cycle.now)
            for machine in cycle.bookings.machines(booking)
            if machine.condition is MachineCondition.BOOKED and machine.free
        ]
        for job in _waiting_jobs_of(cycle, project) if rows else ():
            found = _place_among(cycle, job, rows)
            if found is not None and job.waits:
                pool, place = found
                drop_reservation(cycle, job.job_id)
                start_attempt(cycle, job, pool, place)
                _set_aside(cycle, job)


def _waiting_jobs_of(cycle: Cycle, project: str) -> list[JobRecord]:
    ledger, columns = cycle.ledger, cycle.ledger.columns
    row = ledger.entities.get(project)
    below = [each for each, parent in enumerate(ledger.entity_parents) if parent == row]
    slots = np.flatnonzero(columns.active & (columns.pool < 0) & np.isin(columns.entity, below))
    jobs = (ledger.jobs[JobId(job_id)] for job_id in columns.job_id[slots].tolist())
    able = [job for job in jobs if job.waits and job.hold_reason is None and job.ready_at <= cycle.now]
    return sorted(able, key=lambda job: (-job.request.priority, float(columns.submitted_at[job.slot]), job.job_id))


def _place_among(cycle: Cycle, job: JobRecord, rows: Iterable[int]) -> tuple[int, Place] | None:
    """Returns a place on these machines alone for the gang, or for its largest smaller size; None if there is none."""
    ledger, job_class = cycle.ledger, cycle.ledger.class_of(job)
    shapes = [shape_of(cycle, job)]
    if job.request.sizes:
        shapes += [
            ledger.classes.shapes[ledger.classes.classes[row].shape] for row in ledger.classes.options(job.class_row)
        ]
    for pool in job_class.fastest:
        closed = cycle.closed_to(job, pool)
        machines = [m for row in rows if row not in closed and (m := ledger.fleet.machines[row]) and m.pool == pool]
        room = cycle.limits.room(job, pool) if machines else 0
        most = shapes[0].counts[pool]
        able = (shape for shape in shapes if 0 < shape.counts[pool] <= min(most, room))
        for shape in sorted(able, key=lambda shape: -shape.counts[pool]) if machines else ():
            parts = ledger.fleet.gang_parts(pool, shape)
            found = cheapest_machines(parts, machines, partial(_offer_of, shape))
            if found is not None:
                return pool, tuple((offer.row, offer.accelerators) for offer in found)
    return None


def _offer_of(shape: ResourceShape, machine: FleetMachine, part: int) -> MachineCandidate | None:
    is_able = len(machine.free) >= part and not machine.closed and can_prepare(machine.tools, shape.tools)
    if not is_able or not is_enough(machine.free_cpus, machine.free_memory_bytes, part, shape):
        return None
    return MachineCandidate(machine.row, part, (float(len(machine.free)), float(machine.row)))


def _let_barred_jobs_go_on(cycle: Cycle) -> None:
    """Queues jobs again that a booking kept out of a queue, where they have a place now."""
    fleet, bookings = cycle.ledger.fleet, cycle.bookings
    for job_id, pool in sorted(bookings.barred - cycle.ledger.retries.waiting):
        job = cycle.ledger.jobs.get(JobId(job_id))
        if job is not None and job.waits:
            closed = bookings.closed_to(job, pool)
            if closed and fleet.find(pool, shape_of(cycle, job), closed=closed) is None:
                continue
        bookings.barred.discard((job_id, pool))
        cycle.solves.problem_changed = True
        if job is not None:
            enqueue_job(cycle, job)


def _set_timer(cycle: Cycle) -> None:
    """Wakes the core when a booking begins or ends, and when jobs have to be asked to leave."""
    at = inf
    for booking in cycle.bookings.declared:
        marks = [booking.from_at, booking.until_at]
        if cycle.now < booking.from_at:
            marks += [booking.from_at - notice_s(job) for job in _those_to_leave(cycle, booking)]
        at = min([at, *(mark for mark in marks if mark > cycle.now)])
    if at != cycle.bookings.timer_at:
        cycle.bookings.timer_at = at
        cycle.timers.set(at, "booking")  # only wakes the core
