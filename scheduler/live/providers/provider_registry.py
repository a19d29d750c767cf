"""The providers that this server knows, by the name that a pool gives (`provider: aws`).

A provider is one entry of `PROVIDERS`: the function that builds it from the cluster file. Its settings are a section of
that file (walras/spec/provider_settings.py). Nothing else in the server names a provider: main.py attaches, watches and
closes all of them alike, and `walras prices --market` asks those whose prices move. docs/how-to/add-a-provider.md shows
how to add one.
"""

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

from scheduler.live.providers.live_provider import (
    BuildProvider,
    LiveProvider,
    PricedProvider,
    ProviderContext,
    SpotPricePoint,
)
from scheduler.live.store.data_folder import DataFolder
from walras.cluster import PoolId
from walras.errors import ConfigError
from walras.spec.cluster_file import ClusterConfig
from walras.spec.file_model import load_yaml

#: Imported on demand, because a provider may need packages that are installed only where it is used.
PROVIDERS: dict[str, str] = {
    "local": "scheduler.live.providers.local_provider:build_local_provider",
    "aws": "scheduler.live.providers.aws_provider:build_aws_provider",
    "slurm": "scheduler.live.providers.slurm_provider:build_slurm_provider",
}

#: The provider of pools that only the simulator can rent.
SIMULATED = "simulated"


def builder_of(name: str) -> BuildProvider:
    """Returns the function that builds the provider of this name; it returns None if it has nothing to rent out."""
    module, _, function = PROVIDERS[name].partition(":")
    build: BuildProvider = getattr(import_module(module), function)
    return build


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
    built = {name: builder_of(name)(context) for name in PROVIDERS}
    return {name: provider for name, provider in built.items() if provider is not None}


def providers_by_pool(providers: Iterable[LiveProvider]) -> dict[PoolId, LiveProvider]:
    """Returns the provider of every pool that is rented."""
    return {pool_id: provider for provider in providers for pool_id in provider.pools}


def recorded_prices(cluster: Path, since_s: float) -> list[SpotPricePoint]:
    """Returns prices of a cluster file's spot pools since `since_s` seconds ago, oldest first.

    The first ones were in force then; each change after it follows. Raises ConfigError, ProviderProblem.
    """
    known = load_yaml(cluster, ClusterConfig)
    clouds = [name for name in PROVIDERS if known.settings_type(name) is not None]
    described = [name for name in clouds if known.provider_settings(name) is not None]
    if not described:
        missing = f"{cluster}: no pool is rented from {' or '.join(clouds)}"
        raise ConfigError(missing, field="--cluster", fix="see docs/cloud.md")
    # Asking for prices launches nothing: neither the data folder nor the server's secret is used.
    context = ProviderContext(known, DataFolder(cluster.parent), b"")
    providers = [builder_of(name)(context) for name in described]
    since = datetime.now(UTC) - timedelta(seconds=since_s)
    return asyncio.run(_price_histories([each for each in providers if each is not None], since))


async def _price_histories(providers: list[LiveProvider], since: datetime) -> list[SpotPricePoint]:
    points: list[SpotPricePoint] = []
    try:
        for provider in providers:
            if isinstance(provider, PricedProvider):
                points += await provider.price_history(since)
    finally:
        for provider in providers:
            await provider.close()
    return sorted(points, key=lambda point: (point.since, point.pool_id))
