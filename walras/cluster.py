"""The fleet as every layer sees it: machine shapes, markets, pools, and the placement of an attempt on machines.

All types are frozen. The rules of money that core, server and simulator share are here too: what a stretch of time
costs (`usd_of`), what a gang pays for its part of machines (`gang_usd_per_h`), until when a rented machine is paid for
(`billed_until`).
"""

from dataclasses import dataclass
from enum import StrEnum
from math import ceil, inf
from typing import NewType

from walras.contract import SECONDS_PER_HOUR
from walras.machines.topology import Topology

#: The name of a machine that the scheduler knows.
NodeId = NewType("NodeId", str)
#: The id of a pool: (machine shape, market, zone).
PoolId = NewType("PoolId", str)

#: Part of a billing step below which it is rounding of floating-point sums.
_BILLING_TOLERANCE = 1e-9


class Market(StrEnum):
    """How a machine is paid for."""

    OWNED = "owned"
    ON_DEMAND = "on_demand"
    SPOT = "spot"


@dataclass(frozen=True, slots=True)
class Shape:
    """A kind of machine: an instance type, or a class of identical owned machines."""

    name: str
    #: Canonical accelerator name (`a100-40gb`), or `cpu` for a machine without one.
    accelerator: str
    #: Accelerators on one machine.
    accelerators: int
    cpus: float
    memory_bytes: int
    #: Nominal speed of one accelerator against the others: the prior for a throughput that was not measured yet.
    nominal_speed: float = 1.0
    #: Whether an agent paces real steps to a speed table instead of owning such an accelerator.
    emulated: bool = False
    #: Memory of one accelerator, in bytes; 0: unknown, so that no two jobs share one.
    accelerator_memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Pool:
    """Machines that are interchangeable to a policy: one shape, one market, one zone."""

    pool_id: PoolId
    shape: Shape
    market: Market = Market.OWNED
    zone: str = "default"
    #: Market price of one machine, USD per hour. Owned machines usually cost 0 at the margin.
    usd_per_h: float = 0.0
    #: Largest number of machines that may be rented; 0 for owned pools.
    quota: int = 0
    #: Seconds of warning before a revocation (spot).
    notice_s: float = 0.0
    #: Estimated time from the request for a machine until it takes jobs, seconds.
    boot_s: float = 0.0
    #: Minimum time that a rented machine is billed for, seconds.
    minimum_billing_s: float = 0.0
    #: Rented time is billed in whole steps of this length, seconds; 0: by the second.
    billing_step_s: float = 0.0
    #: The provider that rents out the machines of a pool added to a running server; for other pools the cluster file
    #: names it.
    provider: str = ""
    #: Whether an administrator drains it: its machines take no new jobs, and none is rented.
    drained: bool = False
    #: Whether it was removed from the cluster: no job fits it.
    removed: bool = False
    #: Machines that are held rented whether or not they are worth their price.
    least: int = 0
    #: The law of its machines' lifetimes, as text (`walras.machines.machine_lifetime`); empty: none is stated.
    lifetime: str = ""
    #: The switches that join its machines; None: all are equally near.
    topology: Topology | None = None


def usd_of(usd_per_h: float, seconds: float) -> float:
    """Returns what `seconds` cost at this price, USD."""
    return usd_per_h * seconds / SECONDS_PER_HOUR


def gang_usd_per_h(pool: Pool, accelerators: int, sharers: int = 1, most_usd_per_h: float = inf) -> float:
    """Returns what a gang pays an hour for accelerators of this pool, USD.

    The price of machines is split over their accelerators, and evenly over jobs that are co-located on the same ones.
    `most_usd_per_h`: an accelerator-hour of a rented machine costs this gang no more.
    """
    usd_per_h = pool.usd_per_h * (accelerators / pool.shape.accelerators / sharers)
    if most_usd_per_h < inf and pool.market is not Market.OWNED:
        return min(usd_per_h, most_usd_per_h * (accelerators / sharers))
    return usd_per_h


def billed_until(pool: Pool, since_at: float, at: float) -> float:
    """Returns until when a rented machine is paid that is billed from `since_at` and given back at `at`.

    The minimum, and every billing step that has begun; a step begins the moment after the one before has ended.
    """
    at = max(at, since_at + pool.minimum_billing_s)
    if pool.billing_step_s <= 0:
        return at
    return max(at, since_at + pool.billing_step_s * ceil((at - since_at) / pool.billing_step_s - _BILLING_TOLERANCE))


@dataclass(frozen=True, slots=True)
class NodeShare:
    """The part of one machine that an attempt holds."""

    node_id: NodeId
    #: Indices of the accelerators on that machine, ascending.
    devices: tuple[int, ...]
    #: The pool of the machine, if it differs from the placement's.
    pool_id: PoolId | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Where an attempt runs: machines in node-rank order, all of one pool unless the gang is mixed or forked."""

    #: Pool of the first machine, and of all parts that name no other.
    pool_id: PoolId
    parts: tuple[NodeShare, ...]

    @property
    def accelerators(self) -> int:
        """Accelerators held, over all machines."""
        return sum(len(part.devices) for part in self.parts)

    @property
    def by_pool(self) -> dict[PoolId, int]:
        """Accelerators held in each pool, in the order of the machines."""
        found: dict[PoolId, int] = {}
        for part in self.parts:
            pool_id = part.pool_id or self.pool_id
            found[pool_id] = found.get(pool_id, 0) + len(part.devices)
        return found


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the ranks of a gang meet: the address and port that the first machine bound for them."""

    address: str
    port: int
