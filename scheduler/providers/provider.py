"""The protocol between the scheduler and a cloud: offers, request, describe, terminate.

A request carries a token that is stored before the call, so that repeating it after a crash rents nothing twice;
`describe` lists every machine with its token, so that a janitor can compare what is paid for with what is known. The
core decides whether to rent, and what; the shell decides when to call.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from walras.cluster import NodeId, Pool, PoolId
from walras.errors import ClusterError


class MachineState(StrEnum):
    BOOTING = "booting"
    RUNNING = "running"
    #: Notice was given: it will be gone soon.
    LEAVING = "leaving"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class RentalOffer:
    """What the cloud offers now."""

    pool_id: PoolId
    #: Price of one machine, USD per hour.
    usd_per_h: float
    #: Maximum of machines that may be held.
    quota: int


@dataclass(frozen=True, slots=True)
class RentedMachine:
    """One machine as the cloud knows it."""

    node_id: NodeId
    pool_id: PoolId
    #: Token of the request that it answers.
    token: str
    state: MachineState


class ProviderProblemKind(StrEnum):
    """Why a cloud did not do what was requested: who can fix it, and whether a retry helps."""

    #: The account may not hold more: an administrator must raise the quota, or machines must be returned.
    QUOTA = "quota"
    #: The cloud has no machines of this kind left there: other pools may have some, and later this one too.
    CAPACITY = "capacity"
    #: Too many calls; the same call may succeed later.
    THROTTLED = "throttled"
    #: The cloud did not answer, or reported an internal failure. The request may have been carried out nevertheless.
    UNAVAILABLE = "unavailable"
    #: The request can never succeed as it is: wrong credentials, permissions, image or name.
    REFUSED = "refused"
    #: The machines of this request existed and have ended.
    GONE = "gone"


class ProviderProblem(ClusterError):
    """A call to a provider that was not fully carried out."""

    def __init__(self, kind: ProviderProblemKind, message: str, missing: int | None = None) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        #: Number of requested machines that will not come; None: none of them will.
        self.missing = missing


class CloudProvider(Protocol):
    """A source of rented machines. Every call may be repeated; what was done already is not done again."""

    async def offers(self) -> tuple[RentalOffer, ...]:
        """Returns what may be rented now, and at what price."""
        ...

    async def request(self, token: str, pool: Pool, machines: int) -> tuple[RentedMachine, ...]:
        """Rents machines of a pool and returns them. A known token returns the machines of its first request.

        Raises:
            ProviderProblem: no machines, or only some, are available; `describe` returns those obtained.
        """
        ...

    async def describe(self) -> tuple[RentedMachine, ...]:
        """Returns every machine that is held.

        Raises:
            ProviderProblem: the held machines are unknown; the caller must conclude nothing.
        """
        ...

    async def terminate(self, node_id: NodeId) -> None:
        """Returns a machine to the cloud. Unknown or gone machines are no error.

        Raises:
            ProviderProblem: the machine may still be held; call again.
        """
        ...
