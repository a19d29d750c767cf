"""Machines that people have booked for a time: for a project, or for maintenance. Users type `walras reserve`.

A reservation in this core is a place kept for one waiting gang; what people reserve is called a booking. A booking is
of whole machines: an accelerator beside others on one machine cannot be kept free of what these do to it.
"""

from dataclasses import dataclass

from walras.cluster import NodeId

#: The project of a booking for maintenance; no project is called so.
NOBODY = ""


@dataclass(frozen=True, slots=True)
class Booking:
    """Machines that only one project's jobs may hold from an instant until another; nobody's, for maintenance."""

    booking_id: int
    #: Whose jobs may use the machines; `NOBODY`: no jobs.
    project: str
    node_ids: tuple[NodeId, ...]
    #: Seconds since the cluster's epoch.
    from_at: float
    until_at: float
    #: Booked were so many accelerators of this type, on whichever machines: one that is lost is replaced. Empty: these
    #: machines and no others were meant.
    accelerator: str = ""
    accelerators: int = 0
    reason: str = ""

    def is_open_to(self, project: str) -> bool:
        """Whether jobs of the project may be there while it lasts."""
        return self.project != NOBODY and self.project == project

    def is_active(self, at: float) -> bool:
        """Whether it has begun and has not ended."""
        return self.from_at <= at < self.until_at

    def overlaps(self, from_at: float, until_at: float) -> bool:
        """Returns whether the booking overlaps with this period."""
        return self.from_at < until_at and from_at < self.until_at

    @property
    def words(self) -> str:
        """What it is, for people: `reservation 3 of project vision`, `reservation 4 (maintenance)`."""
        if self.project == NOBODY:
            return f"reservation {self.booking_id} (maintenance)"
        return f"reservation {self.booking_id} of project {self.project}"


@dataclass(slots=True)
class BookingsDeclared:
    """From now on these hold, in place of all that were declared before. Those that have ended are forgotten."""

    at: float
    bookings: tuple[Booking, ...] = ()


BookingEvent = BookingsDeclared
