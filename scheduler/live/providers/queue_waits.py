"""How long machines wait in a provider's queue, as part of the time until a machine comes.

A pool's `boot` in the cluster file is the time that a machine takes once the provider starts it. Where machines wait in
a queue, the provider reports the waits it has seen, and the pool is declared again when they change. All that depends
on a boot time (whether a machine would still be of use, when a deadline forces a job elsewhere, when a request has
hung) then follows from the declaration.
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
from scheduler.providers.provider import ProviderProblem
from walras.cluster import Pool, PoolId

log = logging.getLogger(__name__)

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
