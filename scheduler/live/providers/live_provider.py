"""What the server expects of a provider besides `CloudProvider`: how it is built, watched, and closed.

`CloudProvider` (scheduler/providers/provider.py) says how machines are rented; simulated clouds have it too. A provider
of the live server is a `LiveProvider`: it also knows its pools, learns where the server listens, and lives as long as
the server. More protocols are optional: `PricedProvider` if its prices move, `QueueingProvider` if machines come out of
a queue, `RevocableProvider` if it can take machines away for a drill, `GrowingProvider` if pools can be added while the
server runs. `provider_registry.py` lists the providers; docs/how-to/add-a-provider.md adds one.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, runtime_checkable

from scheduler.live.store.data_folder import DataFolder
from scheduler.providers.provider import CloudProvider
from walras.cluster import NodeId, Pool, PoolId
from walras.spec.cluster_file import ClusterConfig, PoolEntry
from walras.states import Reason

#: Reports that a machine is gone although nobody gave it back: its name, the reason, and the token of its request.
ReportGone = Callable[[NodeId, Reason, str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ProviderContext:
    """What a provider is built from."""

    #: The cluster file; None if the server was started without one: then nothing is rented.
    cluster: ClusterConfig | None
    folder: DataFolder
    #: A secret of this server, from which the names and tokens are derived that others must not guess.
    secret: bytes

    def entries_of(self, provider: str) -> tuple[PoolEntry, ...]:
        """Returns the pools of the cluster file that this provider rents out."""
        pools = () if self.cluster is None else self.cluster.pools
        return tuple(entry for entry in pools if entry.provider == provider)


class LiveProvider(CloudProvider, Protocol):
    """A provider that the server runs."""

    @property
    def pools(self) -> Mapping[PoolId, object]:
        """The pools that it rents out."""
        ...

    def attach(self, server_url: str, report_gone: ReportGone) -> None:
        """Take note of the server's address. The server calls it once, before the first request for machines."""
        ...

    async def watch(self) -> None:
        """Look after the machines until cancelled. A provider that has nothing to watch waits for ever."""
        ...

    async def close(self) -> None:
        """Close connections and threads. Machines that cost money stay until they are given back."""
        ...


BuildProvider = Callable[[ProviderContext], LiveProvider | None]


@dataclass(frozen=True, slots=True)
class SpotPricePoint:
    """The price of a spot machine of a pool from an instant on, USD per hour."""

    pool_id: PoolId
    since: datetime
    usd_per_h: float


@runtime_checkable
class PricedProvider(CloudProvider, Protocol):
    """A provider whose prices move: the server asks for its offers every few minutes."""

    async def price_history(self, since: datetime) -> list[SpotPricePoint]:
        """Returns the prices in force at `since` and every change after it, oldest first. Raises ProviderProblem."""
        ...


@runtime_checkable
class QueueingProvider(CloudProvider, Protocol):
    """A provider with a queue of its own, such as Slurm. The server asks how long requests wait there."""

    async def waits(self) -> Mapping[PoolId, float]:
        """Returns the seconds from a request until a machine comes, of the pools where any was seen to wait."""
        ...


@runtime_checkable
class GrowingProvider(CloudProvider, Protocol):
    """A provider that accepts new pools, or new terms of its pools, while the server runs."""

    def take_up(self, pool: Pool) -> None:
        """Rent out this pool from now on, at these terms."""
        ...


@runtime_checkable
class RevocableProvider(CloudProvider, Protocol):
    """A provider whose machines can be taken away on request, for drills."""

    async def revoke(self, node_id: NodeId, notice_s: float) -> None:
        """Give notice, then take the machine away for good. Returns when it is gone."""
        ...
