"""What a cloud is to the scheduler: offers, request, describe, terminate.

A request carries a token that is written down before the call, so that repeating it after a crash rents nothing twice;
`describe` lists every machine with its token, so that a janitor can compare what is paid for with what is known.
Whether to rent, and what, is the core's decision; when to call is the shell's.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from walras.cluster import NodeId, Pool, PoolId
from walras.errors import ClusterError


class MachineState(StrEnum):
    """Where a rented machine is in its life."""

    BOOTING = "booting"
    RUNNING = "running"
    #: Notice was given: it will be gone soon.
    LEAVING = "leaving"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class RentalOffer:
    """What the cloud sells now."""

    pool_id: PoolId
    #: One machine, USD per hour.
    usd_per_h: float
    #: Machines that may be held at most.
    quota: int


@dataclass(frozen=True, slots=True)
class RentedMachine:
    """One machine as the cloud knows it."""

    node_id: NodeId
    pool_id: PoolId
    #: The token of the request it answers.
    token: str
    state: MachineState


class ProviderProblemKind(StrEnum):
    """Why a cloud did not do what was asked: who can mend it, and whether asking again helps."""

    #: The account may not hold more: an administrator asks for more, or machines are given back.
    QUOTA = "quota"
    #: The cloud has none left of this kind there: other pools may have some, later this one too.
    CAPACITY = "capacity"
    #: Too many calls: the same call, later.
    THROTTLED = "throttled"
    #: The cloud did not answer, or said that it failed. What was asked for may have been done all the same.
    UNAVAILABLE = "unavailable"
    #: It will never do this as it was asked: credentials, permissions, an image, a name.
    REFUSED = "refused"
    #: The machines of this request have been and gone.
    GONE = "gone"


class ProviderProblem(ClusterError):
    """A call to a provider that did not do all that was asked."""

    def __init__(self, kind: ProviderProblemKind, message: str, missing: int | None = None) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        #: Machines of a request that will not come; None: none of them will.
        self.missing = missing


class CloudProvider(Protocol):
    """A source of rented machines. Every call may be repeated; what was done already is not done again."""

    async def offers(self) -> tuple[RentalOffer, ...]:
        """What may be rented now, and at what price."""
        ...

    async def request(self, token: str, pool: Pool, machines: int) -> tuple[RentedMachine, ...]:
        """Rent machines of a pool. A known token answers with its machines.

        Raises:
            ProviderProblem: nothing, or only a part, can be had; machines that were obtained are returned by
                `describe`.
        """
        ...

    async def describe(self) -> tuple[RentedMachine, ...]:
        """Every machine that is held.

        Raises:
            ProviderProblem: it is not known; nothing may be concluded.
        """
        ...

    async def terminate(self, node_id: NodeId) -> None:
        """Give a machine back. Unknown or gone machines are no error.

        Raises:
            ProviderProblem: it may still be there; ask again.
        """
        ...
