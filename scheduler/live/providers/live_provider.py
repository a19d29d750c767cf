"""The providers of the live server: what it expects of them besides `CloudProvider`, and those that it knows.

`CloudProvider` (scheduler/providers/provider.py) says how machines are rented; simulated clouds have it too. A provider
of the live server is a `LiveProvider`: it also knows its pools, learns where the server listens, and lives as long as
the server. More protocols are optional: `PricedProvider` if its prices move, `QueueingProvider` if machines come out of
a queue, `RevocableProvider` if it can take machines away for a drill, `GrowingProvider` if pools can be added while the
server runs, `RegionalProvider` if it is one of several, each for the pools of one region.

A provider is one entry of `PROVIDERS`, by the name that a pool gives (`provider: aws`): the function that builds it
from the cluster file. Its settings are a section of that file (walras/spec/cluster_file.py). Nothing else in the server
names a provider: main.py attaches, watches and closes all of them alike, and `walras cloud prices --market` asks those
whose prices move. docs/how-to/add-a-provider.md shows how to add one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Protocol, runtime_checkable

from scheduler.live.store.data_folder import DataFolder
from scheduler.providers.provider import CloudProvider, ProviderProblem
from walras.cluster import NodeId, Pool, PoolId
from walras.errors import ConfigError
from walras.spec.cluster_file import ClusterConfig, PoolEntry, region_of
from walras.spec.file_model import load_yaml
from walras.states import Reason

#: Reports that a machine is gone although nobody gave it back: its name, the reason, and the token of its request.
ReportGone = Callable[[NodeId, Reason, str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ProviderContext:
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


#: Returns None for nothing to rent out; several, by name, where a provider is one for each region (`region_name`).
BuildProvider = Callable[[ProviderContext], LiveProvider | Mapping[str, LiveProvider] | None]


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
class RegionalProvider(CloudProvider, Protocol):
    """A provider that rents out pools of one region alone: their zones are named after it (`region_of`)."""

    @property
    def region(self) -> str: ...


@runtime_checkable
class RevocableProvider(CloudProvider, Protocol):
    """A provider whose machines can be taken away on request, for drills."""

    async def revoke(self, node_id: NodeId, notice_s: float) -> None:
        """Give notice, then take the machine away for good. Returns when it is gone."""
        ...


#: Imported on demand, because a provider may need packages that are installed only where it is used.
PROVIDERS: dict[str, str] = {
    "local": "scheduler.live.providers.local_provider:build_local_provider",
    "aws": "scheduler.live.providers.aws_provider:build_aws_provider",
    "slurm": "scheduler.live.providers.slurm_provider:build_slurm_provider",
}

#: The provider of pools that only the simulator can rent.
SIMULATED = "simulated"


def builder_of(name: str) -> BuildProvider:
    """Returns the function that builds the provider of this name."""
    module, _, function = PROVIDERS[name].partition(":")
    build: BuildProvider = getattr(import_module(module), function)
    return build


def region_name(provider: str, region: str) -> str:
    """Returns the name of the provider of a further region; no name in a cluster file has a blank."""
    return f"{provider} {region}"


def written_name(name: str) -> str:
    """Returns the name by which a cluster file knows a provider, whichever region it is of."""
    return name.partition(" ")[0]


def regions_of(named: Mapping[str, CloudProvider], provider: str) -> dict[str, CloudProvider]:
    """Returns a provider's regions, by region, under the name that pools give; none if it is one for all places."""
    held = (each for name, each in named.items() if written_name(name) == provider)
    return {each.region: each for each in held if isinstance(each, RegionalProvider)}


def provider_for(named: Mapping[str, CloudProvider], pool: Pool) -> CloudProvider | None:
    """Returns the provider that is to rent a new pool out, by the name that the pool gives, and by its zone.

    None where none has that name, or none of its regions has the zone.
    """
    if not (regions := regions_of(named, pool.provider)):
        return named.get(pool.provider) if written_name(pool.provider) == pool.provider else None
    region = region_of(pool.zone, regions)
    return None if region is None else regions[region]


def _built(name: str, context: ProviderContext) -> dict[str, LiveProvider]:
    """Builds the provider of this name, or those of its regions, by name; none if it has nothing to rent out."""
    found = builder_of(name)(context)
    return dict(found) if isinstance(found, Mapping) else {} if found is None else {name: found}


def build_providers(context: ProviderContext) -> dict[str, LiveProvider]:
    """Builds every provider that the cluster file rents machines from, by name. Raises ConfigError for unknown ones.

    `simulated` is known and rents out nothing here: a file serves simulator and server alike.
    """
    for position, entry in enumerate(() if context.cluster is None else context.cluster.pools):
        if entry.provider and entry.provider not in (*PROVIDERS, SIMULATED):
            field, known = f"pools[{position}].provider", (*sorted(PROVIDERS), SIMULATED)
            near = get_close_matches(entry.provider, known, 1)
            raise ConfigError(
                f"pool {entry.pool_id}: no provider is called {entry.provider!r}; known: {', '.join(known)}",
                field=field,
                fix=f"did you mean `provider: {near[0]}`?" if near else "docs/how-to/add-a-provider.md adds one",
            )
    return {name: provider for known in PROVIDERS for name, provider in _built(known, context).items()}


def providers_by_pool(providers: Iterable[LiveProvider]) -> dict[PoolId, LiveProvider]:
    """Returns the provider of every pool that is rented."""
    return {pool_id: provider for provider in providers for pool_id in provider.pools}


def recorded_prices(cluster: Path, since_s: float) -> tuple[list[SpotPricePoint], dict[str, ProviderProblem]]:
    """Returns prices of a cluster file's spot pools since `since_s` seconds ago, oldest first, and who did not answer.

    The first ones were in force then; each change after it follows. Raises ConfigError, and ProviderProblem where no
    price is known because of it.
    """
    known = load_yaml(cluster, ClusterConfig)
    clouds = [name for name in PROVIDERS if known.settings_type(name) is not None]
    described = [name for name in clouds if known.provider_settings(name) is not None]
    if not described:
        missing = f"{cluster}: no pool is rented from {' or '.join(clouds)}"
        raise ConfigError(missing, field="--cluster", fix="see docs/cloud.md")
    # Asking for prices launches nothing: neither the data folder nor the server's secret is used.
    context = ProviderContext(known, DataFolder(cluster.parent), b"")
    providers = {
        region_name(name, each.region) if isinstance(each, RegionalProvider) else name: each
        for name in described
        for each in _built(name, context).values()
    }
    return asyncio.run(_price_histories(providers, datetime.now(UTC) - timedelta(seconds=since_s)))


async def _price_histories(
    providers: Mapping[str, LiveProvider], since: datetime
) -> tuple[list[SpotPricePoint], dict[str, ProviderProblem]]:
    points: list[SpotPricePoint] = []
    silent: dict[str, ProviderProblem] = {}

    async def ask(name: str, provider: PricedProvider) -> None:
        try:
            points.extend(await provider.price_history(since))
        except ProviderProblem as problem:
            silent[name] = problem

    try:
        await asyncio.gather(*(ask(name, each) for name, each in providers.items() if isinstance(each, PricedProvider)))
    finally:
        for provider in providers.values():
            await provider.close()
    if silent and not points:
        raise next(iter(silent.values()))
    return sorted(points, key=lambda point: (point.since, point.pool_id)), silent
