"""Bookings: whole machines that people reserve for a period, for a project or for maintenance (`walras reserve`).

In the core, a reservation is a place kept for one waiting gang; what people reserve is called a booking. A booking
covers whole machines, because one accelerator cannot be shielded from the jobs on the others of its machine.
"""

from dataclasses import dataclass

from walras.cluster import NodeId

#: The project of a booking for maintenance. No real project has an empty name.
NOBODY = ""


@dataclass(frozen=True, slots=True)
class Booking:
    """A period in which some machines are for one project's jobs only, or for maintenance (`NOBODY`)."""

    booking_id: int
    #: Project whose jobs may use the machines; `NOBODY`: no jobs.
    project: str
    node_ids: tuple[NodeId, ...]
    #: Seconds since the cluster's epoch.
    from_at: float
    until_at: float
    #: Set if the booking is for a number of accelerators of this type on any machines: a machine that is lost is
    #: replaced. Empty if it is for exactly these machines.
    accelerator: str = ""
    accelerators: int = 0
    reason: str = ""

    def is_open_to(self, project: str) -> bool:
        """Returns whether jobs of the project may run on the machines during the booking."""
        return self.project != NOBODY and self.project == project

    def is_active(self, at: float) -> bool:
        """Returns whether the booking has begun and has not ended at `at`."""
        return self.from_at <= at < self.until_at

    def overlaps(self, from_at: float, until_at: float) -> bool:
        """Returns whether the booking overlaps with this period."""
        return self.from_at < until_at and from_at < self.until_at

    @property
    def words(self) -> str:
        """Returns the booking's name for people: `reservation 3 of project vision`, `reservation 4 (maintenance)`."""
        if self.project == NOBODY:
            return f"reservation {self.booking_id} (maintenance)"
        return f"reservation {self.booking_id} of project {self.project}"


@dataclass(slots=True)
class BookingsDeclared:
    """Replaces all bookings declared before by these. Bookings that have ended are dropped."""

    at: float
    bookings: tuple[Booking, ...] = ()


BookingEvent = BookingsDeclared
