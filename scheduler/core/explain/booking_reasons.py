"""Which booking keeps a job waiting, when the booking ends, and what would let the job run beside it."""

from collections.abc import Iterator
from math import inf

from scheduler.core.booking_events import NOBODY, Booking
from scheduler.core.core import SchedulerCore
from scheduler.core.state.fleet import FleetMachine
from scheduler.core.state.ledger import JobRecord
from scheduler.core.state.unsaved_work import may_lose_work
from walras.units import format_length


def deciding_booking(core: SchedulerCore, job: JobRecord) -> tuple[Booking, int] | None:
    """Returns the booking without which a waiting job would have a place, and the pool's row; None if there is none.

    Of several bookings it is the one that ends first.
    """
    bookings = core.cycle.bookings
    if not bookings.declared or job.holds:
        return None
    counts = core.ledger.classes.shapes[core.ledger.class_of(job).shape].counts
    found = [
        (booking, row)
        for row, count in enumerate(counts)
        if count
        for booking in bookings.closing(job, row)
        if _would_have_place(core, job, booking, row, count)
    ]
    return min(found, key=lambda each: (each[0].until_at, each[0].booking_id), default=None)


def _would_have_place(core: SchedulerCore, job: JobRecord, booking: Booking, row: int, count: int) -> bool:
    """Returns whether the idle accelerators of the booked machines, with those free beside them, would suffice."""
    if (job.job_id, row) in core.cycle.bookings.barred:
        return True
    if not booking.is_active(core.ledger.now):
        return False  # an upcoming booking only blocks a job while places are free, and then the job is in `barred`
    state = core.ledger.fleet.pools[row]
    idle = sum(len(each.free) for each in core.cycle.bookings.machines(booking) if each.pool == row)
    return state.free < count <= state.free + idle


def booking_reason(core: SchedulerCore, job: JobRecord) -> Iterator[tuple[str, str]]:
    """Yields (what is booked, for whom and until when; what would help) if a booking keeps the job waiting."""
    found = deciding_booking(core, job)
    if found is None:
        return
    booking, row = found
    ledger, now = core.ledger, core.ledger.now
    pool_id = ledger.fleet.pools[row].pool.pool_id
    machines = [each for each in core.cycle.bookings.machines(booking) if each.pool == row]
    what = f"{sum(each.size for each in machines)} accelerators of {pool_id} on {_named(machines)}"
    ends = f"it ends in {format_length(booking.until_at - now)}"
    because = f" ({booking.reason})" if booking.reason else ""
    if booking.is_active(now):
        whom = "nobody" if booking.project == NOBODY else f"jobs of project {booking.project} alone"
        detail = f"{booking.words}{because} keeps {what} for {whom}; {ends}"
        yield detail, "wait for its end, or have it cancelled: walras reserve --cancel " + str(booking.booking_id)
        return
    begins = format_length(booking.from_at - now)
    detail = f"{booking.words}{because} takes {what} in {begins}; {ends}; this job {_why_not_before(core, job)}"
    yield detail, "state `steps` or `max_runtime` if it ends before; a job that saves its work may start, and is moved"


def _why_not_before(core: SchedulerCore, job: JobRecord) -> str:
    if not job.request.preemptible:
        why = "may not be stopped"
    elif job.loses_work or may_lose_work(core.ledger, job):
        why = "would lose its work if it were stopped"
    else:
        why = "would have to be stopped as soon as it had started"
    is_known = job.request.steps is not None or job.request.max_runtime_s < inf
    return f"{why}, and {'would not have ended by then' if is_known else 'is not known to end before'}"


def _named(machines: list[FleetMachine]) -> str:
    names = [str(each.node_id) for each in machines]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
