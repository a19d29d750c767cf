"""Bookings: which machines one can have, and how these are cleared, used by its project's jobs, and given back.

Before a booking begins, jobs that it excludes, that may be stopped and that do not end by themselves in time are asked
to leave its machines, as long before as that takes (`bookings.leaves_at`). While it lasts its machines are BOOKED: they
are not in the capacity that the policy shares out, so every kind of policy respects it. The project's waiting jobs get
them here, by priority and then by age; their use is apart from the fleet's capacity (`JobRecord.is_aside`) and does not
count against the project's share in the next problem. When the booking ends, jobs that run there continue as any other
job.

A booked machine that is lost, or leaves, is replaced by the machine of its type that can be empty soonest. Jobs whose
owners do not let them be stopped are never stopped for a booking; bookings that would need it are refused.

Before booking, this module finds the machines, whether the booking can be honoured, and which jobs are in its way. Only
machines of owned pools can be booked: rented ones come and go with their price. A machine is open to a booking if
nothing else is booked on it in that period and all jobs that run there will be gone when it begins: they end, or may be
stopped. A job that may be stopped loses at most its unsaved work. Among open machines those come first on which no job
loses work, then those that are empty soonest.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf

import numpy as np

from scheduler.core.events import Booking, BookingsDeclared
from scheduler.core.handlers.attempt_events import abort_start
from scheduler.core.placement.attempt_lifecycle import ask_to_leave, is_prepared, start_attempt
from scheduler.core.placement.reservations import drop_reservation, drop_reservations_on
from scheduler.core.placement.search import MachineCandidate, cheapest_machines, find_free_place
from scheduler.core.placement.where import PlaceOf, may_hold, may_place
from scheduler.core.state.bookings import STAYING, leaves_at, notice_s, sure_end_at
from scheduler.core.state.fleet import FleetMachine, MachineCondition, Place, PoolState, is_enough
from scheduler.core.state.job_classes import ResourceShape
from scheduler.core.state.ledger import JobRecord, Ledger
from scheduler.core.state.stopping import StopFor, may_be_stopped
from scheduler.core.state.working_set import Cycle, enqueue_job
from walras.cluster import NodeId
from walras.job_request import JobId
from walras.spec.accelerator_names import covers
from walras.states import JobState, Reason

#: Number of jobs that are named.
_NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class MachineOutlook:
    """State of one machine for a booking."""

    node_id: NodeId
    accelerators: int
    #: Jobs running there that the booking excludes.
    others: tuple[JobId, ...]
    #: Those of them that will still be there when it begins and may not be stopped.
    blocking: tuple[JobId, ...]
    #: Those of them that would lose work by being stopped.
    losing: tuple[JobId, ...]
    #: When they are gone at the latest; inf: unknown.
    empty_at: float
    #: Another booking of the machine that overlaps in time; None: there is none.
    booked: Booking | None = None

    @property
    def is_open(self) -> bool:
        """Returns whether the booking could be honoured on the machine."""
        return self.booked is None and not self.blocking


@dataclass(frozen=True, slots=True)
class BookingOutlook:
    """What becomes of a booking in the present state."""

    booking: Booking
    machines: tuple[MachineOutlook, ...]
    #: Its machines that are not in the fleet, or take no jobs.
    away: tuple[NodeId, ...]

    @property
    def accelerators(self) -> int:
        """Returns the accelerators on its machines that are present."""
        return sum(each.accelerators for each in self.machines)

    @property
    def ready_at(self) -> float:
        """Returns when the last of its machines is free of other jobs."""
        return max((each.empty_at for each in self.machines), default=self.booking.from_at)


def machine_outlook(
    ledger: Ledger, bookings: Iterable[Booking], wanted: Booking, machine: FleetMachine
) -> MachineOutlook:
    """Returns which jobs must leave the machine for the `wanted` booking, and whether they do.

    `bookings`: all others.
    """
    from_at = max(wanted.from_at, ledger.now)
    jobs = [ledger.jobs[job_id] for job_id in machine.holders]
    others = [job for job in jobs if job.holds and not wanted.is_open_to(job.request.project)]
    blocking, losing, empty_at = [], [], from_at
    for job in others:
        ends_at = sure_end_at(ledger, job)
        if ends_at <= from_at:
            continue
        if may_be_stopped(ledger, job, StopFor.BOOKING) is not None:
            blocking.append(job.job_id)
            empty_at = max(empty_at, ends_at)
            continue
        empty_at = max(empty_at, ledger.now + notice_s(job))
        if may_be_stopped(ledger, job, StopFor.TURN) is not None:
            losing.append(job.job_id)
    overlapping = (each for each in bookings if machine.node_id in each.node_ids)
    booked = next((each for each in overlapping if each.overlaps(wanted.from_at, wanted.until_at)), None)
    ids = tuple(job.job_id for job in others)
    return MachineOutlook(machine.node_id, machine.size, ids, tuple(blocking), tuple(losing), empty_at, booked)


def best_machines(ledger: Ledger, bookings: Sequence[Booking], wanted: Booking) -> list[MachineOutlook]:
    """Returns machines of the wanted type that the booking does not have yet, the best first."""
    found = []
    for state in ledger.fleet.pools:
        if state.rented or state.pool.removed or not covers(wanted.accelerator, state.pool.shape.accelerator):
            continue
        for machine in state.members.values():
            if machine.condition in STAYING and machine.node_id not in wanted.node_ids:
                outlook = machine_outlook(ledger, bookings, wanted, machine)
                found.append((_rank(ledger, outlook, machine), outlook))
    return [outlook for _, outlook in sorted(found, key=lambda each: each[0])]


def _rank(ledger: Ledger, outlook: MachineOutlook, machine: FleetMachine) -> tuple[float, ...]:
    held = sum(len(machine.holders[job_id]) for job_id in outlook.others)
    return not outlook.is_open, len(outlook.losing), outlook.empty_at, held, machine.row


def choose_machines(ledger: Ledger, bookings: Sequence[Booking], wanted: Booking) -> tuple[tuple[NodeId, ...], str]:
    """Chooses whole machines for `wanted.accelerators` of a type. Returns them, or none and why, with numbers."""
    chosen: list[NodeId] = []
    candidates, missing = best_machines(ledger, bookings, wanted), wanted.accelerators
    for each in candidates:
        if missing > 0 and each.is_open:
            chosen.append(each.node_id)
            missing -= each.accelerators
    if missing <= 0:
        return tuple(chosen), ""
    there = sum(each.accelerators for each in candidates)
    can_be_had = sum(each.accelerators for each in candidates if each.is_open)
    parts = [f"{can_be_had} of {there} {wanted.accelerator} on owned machines can be had for that time"]
    return (), "; ".join([*parts, *_obstacles(candidates)])


def check_machines(ledger: Ledger, bookings: Sequence[Booking], wanted: Booking, *, is_patient: bool = False) -> str:
    """Returns why exactly these machines cannot be booked, with numbers; empty if they can.

    `is_patient` accepts jobs that may not be stopped: the booking waits for them.
    """
    machines = {node_id: ledger.fleet.machine(node_id) for node_id in wanted.node_ids}
    unknown = [node_id for node_id, machine in machines.items() if machine is None]
    if unknown:
        return f"there is no machine {', '.join(unknown)}"
    here = [machine for machine in machines.values() if machine is not None]
    pools: list[PoolState] = ledger.fleet.pools
    rented = [machine.node_id for machine in here if pools[machine.pool].rented]
    if rented:
        return f"{', '.join(rented)} is rented: it comes and goes with its price"
    outlooks = [machine_outlook(ledger, bookings, wanted, machine) for machine in here]
    return "; ".join(_obstacles([each for each in outlooks if each.booked or (each.blocking and not is_patient)]))


def _obstacles(outlooks: Iterable[MachineOutlook]) -> list[str]:
    """Returns which bookings and jobs keep machines from being booked, with numbers of accelerators."""
    found: dict[str, int] = {}
    for each in outlooks:
        if each.booked is not None:
            words = f"are booked by {each.booked.words}"
        elif each.blocking:
            named = ", ".join(map(str, each.blocking[:_NAMED_MAX]))
            words = f"are on a machine with job {named}, which may not be stopped and is not known to end before"
        else:
            continue
        found[words] = found.get(words, 0) + each.accelerators
    return [f"{count} {words}" for words, count in found.items()][:_NAMED_MAX]


def booking_outlooks(ledger: Ledger, bookings: Sequence[Booking]) -> list[BookingOutlook]:
    """Returns what becomes of each booking in the present state."""
    found = []
    for booking in bookings:
        others = [each for each in bookings if each is not booking]
        machines = [(node_id, ledger.fleet.machine(node_id)) for node_id in booking.node_ids]
        away = [name for name, machine in machines if machine is None or machine.condition not in STAYING]
        here = [machine for name, machine in machines if machine is not None and name not in away]
        outlooks = tuple(machine_outlook(ledger, others, booking, machine) for machine in here)
        found.append(BookingOutlook(booking, outlooks, tuple(away)))
    return found


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
            for job in cycle.ledger.jobs_on(machine):
                _set_aside(cycle, job)


def _return_machine(cycle: Cycle, machine: FleetMachine) -> None:
    if machine.condition is MachineCondition.UNREACHABLE and machine.before is MachineCondition.BOOKED:
        machine.before = MachineCondition.UP
    if machine.condition is not MachineCondition.BOOKED:
        return
    cycle.ledger.fleet.set_condition(machine, MachineCondition.UP)
    cycle.backlog.freed[machine.row] = None
    cycle.solves.problem_changed = cycle.backlog.rebuild_queues = True
    for job in cycle.ledger.jobs_on(machine):
        job.is_aside = any(row in cycle.bookings.rows and row != machine.row for row, _ in job.place)
        cycle.ledger.set_eligible(job)


def _set_aside(cycle: Cycle, job: JobRecord) -> None:
    if not job.is_aside:
        job.is_aside = True
        cycle.ledger.set_eligible(job)
        cycle.solves.problem_changed = True


# ------------------------------------------------------------------------------------------------ those who must go


def _those_to_leave(cycle: Cycle, booking: Booking) -> Iterator[JobRecord]:
    """Yields jobs on the booking's machines that it excludes and that may be stopped."""
    for machine in cycle.bookings.machines(booking):
        for job in cycle.ledger.jobs_on(machine):
            is_free = job.revoked is None and may_be_stopped(cycle.ledger, job, StopFor.BOOKING) is None
            if is_free and not booking.is_open_to(job.request.project):
                yield job


def _ask_others_to_leave(cycle: Cycle, booking: Booking) -> None:
    """Asks excluded jobs to leave in time for the booking's begin. On an unreachable machine they leave later."""
    for job in list(_those_to_leave(cycle, booking)):
        if cycle.now < leaves_at(cycle.ledger, job, booking) or job.revoked is not None:
            continue
        detail = f"{booking.words} {'begins' if cycle.now < booking.from_at else 'has begun'} here"
        if not is_prepared(job):
            abort_start(cycle, job, Reason.POLICY_PREEMPTED, None, detail)
        elif job.state in (JobState.STARTING, JobState.RUNNING):
            ask_to_leave(cycle, job, StopFor.BOOKING, Reason.POLICY_PREEMPTED, detail=detail)


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
            if machine.free
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
    nominated = cycle.queues.nominated  # a place was cleared for them elsewhere
    able = [job for job in jobs if job.waits and job.hold_reason is None and job.ready_at <= cycle.now]
    able = [job for job in able if job.job_id not in nominated]
    return sorted(able, key=lambda job: (-job.request.priority, float(columns.submitted_at[job.slot]), job.job_id))


def _place_among(cycle: Cycle, job: JobRecord, rows: Iterable[int]) -> tuple[int, Place] | None:
    """Returns a place on these machines alone for the gang, or for its largest smaller size; None if there is none."""
    ledger, shapes = cycle.ledger, cycle.ledger.shapes_of(job)
    for pool in ledger.class_of(job).fastest:
        here = [m for row in rows if (m := ledger.fleet.machines[row]) and m.pool == pool]
        machines = [machine for machine in here if may_place(cycle, job, machine, PlaceOf.BOOKED) is None]
        most = shapes[0].counts[pool]
        able = (each for each in shapes if 0 < (n := each.counts[pool]) <= most and may_hold(cycle, job, pool, n))
        for shape in sorted(able, key=lambda shape: -shape.counts[pool]) if machines else ():
            parts = ledger.fleet.gang_parts(pool, shape)
            found = cheapest_machines(parts, machines, partial(_offer_of, shape))
            if found is not None:
                return pool, tuple((offer.row, offer.accelerators) for offer in found)
    return None


def _offer_of(shape: ResourceShape, machine: FleetMachine, part: int) -> MachineCandidate | None:
    if len(machine.free) < part or not is_enough(machine.free_cpus, machine.free_memory_bytes, part, shape):
        return None
    return MachineCandidate(machine.row, part, (float(len(machine.free)), float(machine.row)))


def _let_barred_jobs_go_on(cycle: Cycle) -> None:
    """Queues jobs again that a booking kept out of a queue, where they have a place now."""
    bookings = cycle.bookings
    for job_id, pool in sorted(bookings.barred - cycle.ledger.retries.waiting):
        job = cycle.ledger.jobs.get(JobId(job_id))
        if job is not None and job.waits:
            closed = bookings.closed_to(job, pool)
            if closed and find_free_place(cycle, job, pool) is None:
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
            marks += [leaves_at(cycle.ledger, job, booking) for job in _those_to_leave(cycle, booking)]
        at = min([at, *(mark for mark in marks if mark > cycle.now)])
    if at != cycle.bookings.timer_at:
        cycle.bookings.timer_at = at
        cycle.timers.set(at, "booking")  # only wakes the core
