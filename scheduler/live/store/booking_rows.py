"""Reservations of machines as rows: written when people make or cancel one, read when a server starts.

The core replaces lost machines of a reservation; a row keeps the machines as of the last change by people.
"""

import json
from dataclasses import dataclass

from scheduler.core.booking_events import Booking
from walras.cluster import NodeId


@dataclass(frozen=True, slots=True)
class BookingRow:
    """A reservation as it was made."""

    booking_id: int
    #: Empty for maintenance.
    project: str
    #: JSON of what was reserved: machines, accelerator type and count, reason.
    body: str
    from_at: float
    until_at: float
    created_at: float
    created_by: str
    cancelled: bool = False

    @property
    def booking(self) -> Booking:
        """The booking that the core is given."""
        body = json.loads(self.body)
        return Booking(
            booking_id=self.booking_id,
            project=self.project,
            node_ids=tuple(NodeId(each) for each in body["nodes"]),
            from_at=self.from_at,
            until_at=self.until_at,
            accelerator=body["accelerator"],
            accelerators=body["accelerators"],
            reason=body["reason"],
        )


def booking_row(booking: Booking, created_at: float, created_by: str) -> BookingRow:
    """Returns the row of a new booking."""
    body = {
        "nodes": list(booking.node_ids),
        "accelerator": booking.accelerator,
        "accelerators": booking.accelerators,
        "reason": booking.reason,
    }
    return BookingRow(
        booking.booking_id,
        booking.project,
        json.dumps(body),
        booking.from_at,
        booking.until_at,
        created_at,
        created_by,
    )
