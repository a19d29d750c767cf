"""What providers report of their pools over time: market prices, and how long machines wait in a queue.

A pool is declared again when its price or its waits change; all that depends on them (what to rent, what use costs from
then on, whether a machine would still be of use, when a deadline forces a job elsewhere, when a request has hung)
follows from the declaration. A pool's `boot` in the cluster file is the time that a machine takes once the provider
starts it, to which the wait is added.

For rehearsals and tests, a script takes the place of a market: its steps are those of the cluster file (`market`), in
seconds after the server was ready, which declare a pool with another price, or revoke its machines with or without a
notice.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite

from scheduler.core.events import PoolDeclared
from scheduler.live.loop.apply_commands import emit
from scheduler.live.loop.event_loop import ServerLoop
from scheduler.live.loop.transaction import Transaction
from scheduler.live.providers.live_provider import QueueingProvider
from scheduler.live.providers.provisioning import Provisioner
from scheduler.providers.provider import CloudProvider, ProviderProblem, RentalOffer
from walras.cluster import Pool, PoolId
from walras.spec.cluster_file import MarketStep

log = logging.getLogger(__name__)

_POLL_EVERY_S = 300.0


def _is_plausible(offer: RentalOffer) -> bool:
    """Returns False, and logs it, for a price of 0 or of no number: a listing's mistake, where the last price holds."""
    if isfinite(offer.usd_per_h) and offer.usd_per_h > 0:
        return True
    log.warning("%s is offered at %g USD/h, which is not believed", offer.pool_id, offer.usd_per_h)
    return False


class MarketWatch:
    """Asks providers for their market prices every few minutes."""

    def __init__(self, loop: ServerLoop, providers: Sequence[CloudProvider]) -> None:
        self._loop = loop
        self._providers = tuple(providers)

    async def watch(self) -> None:
        """Ask for ever. A pool keeps its last price while its market does not answer."""
        while True:
            for provider in self._providers:
                try:
                    await self.look(provider)
                except ProviderProblem as problem:
                    log.warning("prices are not known: %s", problem)
            await asyncio.sleep(_POLL_EVERY_S)

    async def look(self, provider: CloudProvider) -> None:
        """Ask once, and declare pools whose price has changed. Raises ProviderProblem."""
        offers = [offer for offer in await provider.offers() if _is_plausible(offer)]
        if self._moved(offers):
            await self._loop.perform(lambda transaction: self._declare(transaction, offers))

    def _moved(self, offers: Sequence[RentalOffer]) -> bool:
        pools = self._loop.state.pools
        return any(offer.pool_id in pools and pools[offer.pool_id].usd_per_h != offer.usd_per_h for offer in offers)

    @staticmethod
    def _declare(transaction: Transaction, offers: Sequence[RentalOffer]) -> None:
        for offer in offers:
            pool = transaction.state.pools.get(offer.pool_id)
            if pool is not None and pool.usd_per_h != offer.usd_per_h:
                log.info("%s costs %g USD/h, no longer %g", pool.pool_id, offer.usd_per_h, pool.usd_per_h)
                emit(transaction, PoolDeclared(transaction.at, replace(pool, usd_per_h=offer.usd_per_h)))


async def play_market_script(loop: ServerLoop, provisioner: Provisioner, steps: Sequence[MarketStep]) -> None:
    """Take each step of the script at its time, then wait for ever."""
    began_at = loop.clock.now()
    for step in sorted(steps, key=lambda step: step.at):
        await asyncio.sleep(max(0.0, began_at + step.at - loop.clock.now()))
        pool_id = PoolId(step.pool)
        if step.usd_per_h is not None:
            await loop.perform(lambda transaction, p=pool_id, usd=step.usd_per_h: _reprice(transaction, p, usd))  # type: ignore[misc]
        if step.revoke is not None:
            taken = provisioner.revoke(pool_id, step.revoke)
            log.info("market script: %s takes %s back", pool_id, ", ".join(taken) or "nothing")
    await asyncio.Event().wait()


def _reprice(transaction: Transaction, pool_id: PoolId, usd_per_h: float) -> None:
    pool = transaction.state.pools.get(pool_id)
    if pool is not None and pool.usd_per_h != usd_per_h:
        emit(transaction, PoolDeclared(transaction.at, replace(pool, usd_per_h=usd_per_h)))


# ------------------------------------------------------------------------------------------ waits in queues


_LOOK_EVERY_S = 30.0
#: A changed wait is declared only beyond this fraction and these seconds, because every declaration makes a solve due.
_SAME_PART = 0.25
_SAME_S = 15.0
#: The longest wait that is believed, seconds: longer ones change no decision, and may come from a clock that jumped.
_LONGEST_S = 30 * 86_400.0


class QueueWatch:
    """Asks providers with a queue for their waits."""

    def __init__(self, loop: ServerLoop, providers: Sequence[QueueingProvider]) -> None:
        self._loop = loop
        self._providers = tuple(providers)
        #: Boot times without the queue, seconds, as people declared the pools.
        self._stated: dict[PoolId, float] = {}
        self._told: dict[PoolId, float] = {}

    async def watch(self) -> None:
        """Ask for ever. A pool keeps its last wait while its queue is not known."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            for provider in self._providers:
                try:
                    await self.look(provider)
                except ProviderProblem as problem:
                    log.warning("queues are not known: %s", problem)

    async def look(self, provider: QueueingProvider) -> None:
        """Ask once, and declare pools whose boot time has changed. Raises ProviderProblem."""
        boots = self._boots(await provider.waits())
        if boots:
            await self._loop.perform(lambda transaction: self._declare(transaction, boots))

    def _boots(self, waits: Mapping[PoolId, float]) -> dict[PoolId, float]:
        """Returns the new boot time, seconds, of each pool for which it has changed."""
        moved = {}
        for pool_id, wait_s in waits.items():
            pool = self._loop.state.pools.get(pool_id)
            if pool is None or not isfinite(wait_s) or wait_s < 0:
                continue
            boot_s = self._stated_boot_s(pool) + min(wait_s, _LONGEST_S)
            if abs(boot_s - pool.boot_s) > max(_SAME_S, _SAME_PART * pool.boot_s):
                moved[pool_id] = self._told[pool_id] = boot_s
        return moved

    def _stated_boot_s(self, pool: Pool) -> float:
        """Returns the pool's boot time as people stated it: the declared one, unless this class declared it."""
        if self._told.get(pool.pool_id) != pool.boot_s:
            self._stated[pool.pool_id] = pool.boot_s
        return self._stated[pool.pool_id]

    @staticmethod
    def _declare(transaction: Transaction, boots: Mapping[PoolId, float]) -> None:
        for pool_id, boot_s in boots.items():
            pool = transaction.state.pools.get(pool_id)
            if pool is not None:
                log.info("machines of %s take %.0f s to come, no longer %.0f s", pool_id, boot_s, pool.boot_s)
                emit(transaction, PoolDeclared(transaction.at, replace(pool, boot_s=boot_s)))
