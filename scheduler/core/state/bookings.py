"""Booked machines, and which waiting jobs may not start on them because they would not be gone in time.

Before a booking begins, a job that it excludes may start on its machines if it will be gone by then: because it is
known to end (its remaining work at its speed with a margin, or its `max_runtime`), or because it can be stopped in time
without losing work. A booking of the job's own project never excludes it. While a booking lasts its machines are
`MachineCondition.BOOKED`: no search finds them, and they do not count as capacity of the fleet.
"""

from dataclasses import dataclass, field
from math import inf

from scheduler.core.events import Booking
from scheduler.core.state.fleet import FleetMachine, MachineCondition
from scheduler.core.state.ledger import JobRecord, Ledger
from scheduler.core.state.remaining_work import OVERDUE, work_ends_at, work_ends_if_started_at
from scheduler.core.state.stopping import StopFor, may_be_stopped
from walras.job_request import JobId

#: Seconds that an attempt has beyond its grace to be gone: a heartbeat, the last upload, the end of its ranks.
STOP_WITHIN_S = 60.0
#: A job that will have to leave is started if it can work for this many times its restart cost before that.
_WORTH_RESTARTS = 2.0
#: Conditions of machines that a booking may count on: they are present and not being removed.
STAYING = (MachineCondition.UP, MachineCondition.UNREACHABLE, MachineCondition.BOOKED)


def notice_s(job: JobRecord) -> float:
    """Returns how long before a booking begins a job is asked to leave, seconds."""
    return job.request.grace_s + STOP_WITHIN_S


def sure_end_at(ledger: Ledger, job: JobRecord, pool: int = -1) -> float:
    """Returns the instant by which a job has certainly ended; inf if unknown.

    Either its work is done, with a margin beyond which the stated length was wrong, or its limit of run time stops it.
    A job keeps the instant while it runs, unless speeds or restart costs change.

    Args:
    ledger: what is known.
    job: it holds places, or would be started on `pool` now.
    pool: row of the pool on which it would be started; -1: it stays where it is.
    """
    rules, since = ledger.policy.rules, job.leased_at if pool < 0 else ledger.now
    ends_at = work_ends_at(ledger, job, rules) if pool < 0 else work_ends_if_started_at(ledger, job, pool, rules)
    by_work = since + OVERDUE * (ends_at - since) if since < ends_at < inf else inf
    return min(by_work if by_work > ledger.now else inf, runtime_limit_at(ledger, job) + notice_s(job))


def runtime_limit_at(ledger: Ledger, job: JobRecord) -> float:
    """Returns when the job will have run for its `max_runtime` over all attempts, if it runs from now on."""
    since = min(job.running_at, ledger.now) if job.holds else ledger.now
    return since + max(job.request.max_runtime_s - job.held_s, 0.0)


def leaves_at(ledger: Ledger, job: JobRecord, booking: Booking) -> float:
    """Returns when to ask a job to leave the booking's machines: in time, or once it has not ended as it surely would.

    A job whose limit of run time stops it in time is never asked.
    """
    ends_at = sure_end_at(ledger, job)
    if ends_at > booking.from_at:
        return booking.from_at - notice_s(job)
    return inf if ends_at == runtime_limit_at(ledger, job) + notice_s(job) else ends_at


@dataclass(slots=True)
class Bookings:
    """The bookings in force, and the jobs that wait only because of them. Handlers read them by `Cycle.closed_to`."""

    ledger: Ledger
    #: (job, pool) pairs: the job would have a place there without bookings.
    barred: set[tuple[int, int]]
    #: Bookings that have not ended, by number.
    declared: tuple[Booking, ...] = ()
    #: Rows of machines that are booked now.
    rows: set[int] = field(default_factory=set)
    #: Instant for which a timer is set.
    timer_at: float = inf
    #: Results cached for the current event.
    _closed: dict[tuple[JobId, int], frozenset[int]] = field(default_factory=dict)
    _event_number: int = -1

    def declare(self, bookings: tuple[Booking, ...]) -> None:
        """Replaces the bookings in force."""
        now = self.ledger.now
        self.declared = tuple(sorted((each for each in bookings if each.until_at > now), key=lambda b: b.booking_id))
        self._closed.clear()

    def machines(self, booking: Booking) -> list[FleetMachine]:
        """Returns those machines of the booking that are in the fleet."""
        found = (self.ledger.fleet.machine(node_id) for node_id in booking.node_ids)
        return [machine for machine in found if machine is not None]

    def closed_to(self, job: JobRecord, pool: int) -> frozenset[int]:
        """Returns the rows of the pool's machines on which bookings forbid to start a waiting job now."""
        if self._event_number != self.ledger.event_number:
            self._event_number = self.ledger.event_number
            self._closed.clear()
        key = job.job_id, pool
        found = self._closed.get(key)
        if found is None:
            rows = (row for booking in self.declared for row in self._rows_closed(booking, job, pool))
            found = self._closed[key] = frozenset(rows)
        return found

    def keeps_off(self, job: JobRecord, pool: int) -> bool:
        """Takes the job out of the pool's queues if it would have a place without bookings. Returns whether it did."""
        closed = self.closed_to(job, pool)
        if not closed:
            return False
        if all(self.ledger.fleet.find(pool, shape) is None for shape in self.ledger.shapes_of(job)):
            return False
        self.barred.add((job.job_id, pool))
        return True

    def closing(self, job: JobRecord, pool: int) -> list[Booking]:
        """Returns the bookings that keep a waiting job away from machines of the pool."""
        return [booking for booking in self.declared if self._rows_closed(booking, job, pool)]

    def _rows_closed(self, booking: Booking, job: JobRecord, pool: int) -> list[int]:
        if booking.until_at <= self.ledger.now or booking.is_open_to(job.request.project):
            return []
        machines = [machine for machine in self.machines(booking) if machine.pool == pool]
        if not machines or (
            not booking.is_active(self.ledger.now) and sure_end_at(self.ledger, job, pool) <= booking.from_at
        ):
            return []
        may_leave = not booking.is_active(self.ledger.now) and self._can_leave_by(job, booking.from_at)
        return [machine.row for machine in machines if machine.is_private or not may_leave]

    def _can_leave_by(self, job: JobRecord, at: float) -> bool:
        """Returns whether a stop in time would lose no work, and the job could work long enough to be worth a start."""
        ledger = self.ledger
        if may_be_stopped(ledger, job, StopFor.LENDER) is not None:
            return False
        worth_s = _WORTH_RESTARTS * ledger.restart_s(job, ledger.policy.rules)
        return ledger.now + worth_s + notice_s(job) <= at
