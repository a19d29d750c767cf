"""What rented machines cost now: markets are asked every few minutes, and a pool is declared anew when its price moves.

Everything that follows from a price (what to rent, what use costs from then on) follows from the declaration.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from math import isfinite

from scheduler.cloud.provider import CloudProvider, Offer, ProviderProblem
from scheduler.core.events import PoolDeclared
from scheduler.live.turns.carry_out import emit
from scheduler.live.turns.daemon import Daemon
from scheduler.live.turns.turn import Turn

log = logging.getLogger(__name__)

_EVERY_S = 300.0


def _is_believed(offer: Offer) -> bool:
    """Nobody gives machines away: a price of 0, or none at all, is a mistake of the listing, and the last one holds."""
    if isfinite(offer.usd_per_h) and offer.usd_per_h > 0:
        return True
    log.warning("%s is offered at %g USD/h, which is not believed", offer.pool_id, offer.usd_per_h)
    return False


class MarketWatch:
    """Asks the providers whose prices move."""

    def __init__(self, daemon: Daemon, providers: Sequence[CloudProvider]) -> None:
        self._daemon = daemon
        self._providers = tuple(providers)

    async def watch(self) -> None:
        """For ever. A market that does not answer keeps its last prices."""
        while True:
            for provider in self._providers:
                try:
                    await self.look(provider)
                except ProviderProblem as problem:
                    log.warning("prices are not known: %s", problem)
            await asyncio.sleep(_EVERY_S)

    async def look(self, provider: CloudProvider) -> None:
        """Ask once. Raises ProviderProblem."""
        offers = [offer for offer in await provider.offers() if _is_believed(offer)]
        if self._moved(offers):
            await self._daemon.perform(lambda turn: self._declare(turn, offers))

    def _moved(self, offers: Sequence[Offer]) -> bool:
        pools = self._daemon.board.pools
        return any(offer.pool_id in pools and pools[offer.pool_id].usd_per_h != offer.usd_per_h for offer in offers)

    @staticmethod
    def _declare(turn: Turn, offers: Sequence[Offer]) -> None:
        for offer in offers:
            pool = turn.board.pools.get(offer.pool_id)
            if pool is not None and pool.usd_per_h != offer.usd_per_h:
                log.info("%s costs %g USD/h, no longer %g", pool.pool_id, offer.usd_per_h, pool.usd_per_h)
                emit(turn, PoolDeclared(turn.at, replace(pool, usd_per_h=offer.usd_per_h)))
