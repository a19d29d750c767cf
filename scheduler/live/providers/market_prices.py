"""Market prices over time: polled from providers, or replayed from a script for rehearsals and tests.

Providers are polled every few minutes, and a pool is declared again when its price changes. All consequences of a price
(what to rent, what use costs from then on) follow from the declaration. A script's steps are those of the cluster file
(`market`), in seconds after the server was ready. They act like a real market: a pool is declared with another price,
or its machines are revoked with or without a notice.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from math import isfinite

from scheduler.core.events import PoolDeclared
from scheduler.live.loop.apply_commands import emit
from scheduler.live.loop.event_loop import ServerLoop
from scheduler.live.loop.transaction import Transaction
from scheduler.live.providers.provisioning import Provisioner
from scheduler.providers.provider import CloudProvider, ProviderProblem, RentalOffer
from walras.cluster import PoolId
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
