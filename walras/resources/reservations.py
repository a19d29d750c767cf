"""Machines reserved for a project, or for maintenance, as people ask for them and read them.

A reservation is of whole machines, from an instant until another. Jobs of other projects are gone when it begins, and
none starts there before its end; the project's jobs get its machines before any policy is asked.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from walras.resources.endpoint import API, Call, Calls, Endpoint
from walras.spec.field_types import MAX_ACCELERATORS, AcceleratorName, ShownName, parse_instant


def _checked_instant(text: str) -> str:
    """Returns the text. Raises ValueError for one that is no instant; what it means depends on the server's now."""
    parse_instant(text, now=0.0)
    return text


_Instant = Annotated[str, Field(min_length=1, max_length=40), AfterValidator(_checked_instant)]
#: The most machines that one reservation may name.
_MOST_MACHINES = 4096


class NewReservation(BaseModel):
    """`POST /reservations`: accelerators of a type for a project, or machines by name."""

    model_config = ConfigDict(extra="forbid")

    #: Type and number of accelerators; both empty with `nodes`.
    accelerator: AcceleratorName | None = None
    accelerators: Annotated[int, Field(ge=0, le=MAX_ACCELERATORS)] = 0
    nodes: Annotated[list[Annotated[str, Field(min_length=1, max_length=300)]], Field(max_length=_MOST_MACHINES)] = []
    #: The project whose jobs may run there; empty with `maintenance`, when no jobs may.
    project: ShownName | None = None
    maintenance: bool = False
    #: RFC 3339, or a length from now such as `+2h`; `starts` empty: now.
    starts: _Instant = "+0s"
    ends: _Instant
    reason: Annotated[str, Field(max_length=200)] = ""

    @model_validator(mode="after")
    def _check_whole(self) -> Self:
        if bool(self.nodes) == bool(self.accelerator):
            raise ValueError("give either an accelerator type and a number, or machines by name")
        if bool(self.accelerator) != bool(self.accelerators):
            raise ValueError("an accelerator type needs a number above 0")
        if self.maintenance == bool(self.project):
            raise ValueError("give either a project, or maintenance")
        return self


class ReservationView(BaseModel):
    """A reservation, and what becomes of it as things stand."""

    id: int
    #: The project; empty: for maintenance.
    project: str
    maintenance: bool
    #: The type that was asked for; empty where machines were named.
    accelerator: str = ""
    accelerators: int = 0
    #: Its machines, and the accelerators of those that are present.
    nodes: list[str]
    reserved: int
    starts: str
    ends: str
    #: coming, active, over or cancelled.
    state: str
    reason: str = ""
    created_by: str = ""
    #: When its machines are empty of other jobs at the latest; None where that is unknown.
    ready: str | None = None
    #: Notes for people, with numbers: jobs still there, jobs that lose work, machines that are away.
    notes: list[str] = []


RESERVATIONS = Endpoint(
    "GET", f"{API}/reservations", "Machines reserved for a time. For your projects or for maintenance, and what "
    "stands in their way; `all=1`: with the newest of those that are over.", list[ReservationView], query=("all",),
)  # fmt: skip


class ReservationCalls(Calls):
    """The client's calls about reservations."""

    @Endpoint("POST", f"{API}/reservations", who="operator", body=NewReservation, status=201)
    async def reserve(self, asked: Mapping[str, Any]) -> ReservationView:
        """Reserve machines for a project, or for maintenance. `accelerator` and `accelerators`, or `nodes`; `project`,
        or (administrators) `maintenance`; 409 with the numbers where it cannot be honoured.
        """

    @Call
    async def reservations(self, *, everything: bool = False) -> list[ReservationView]:
        """Returns the reservations that have not ended; `everything`: the newest of the others too."""
        found: list[ReservationView] = await RESERVATIONS.ask(self, {"all": "1" if everything else ""})
        return found

    @Endpoint("DELETE", API + "/reservations/{reservation_id}", who="operator")
    async def cancel_reservation(self, reservation_id: int) -> ReservationView:
        """Cancel a reservation."""
