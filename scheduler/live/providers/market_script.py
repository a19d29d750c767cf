"""A market that follows a script: prices that move and machines that are taken away, for rehearsals and tests.

The steps are the cluster file's (`market`), in seconds after the server was ready. What they do is what a real market
does: a pool is declared with another price, its machines are taken back with a notice or without one.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from scheduler.core.events import PoolDeclared
from scheduler.live.providers.rented import ProviderDesk
from scheduler.live.turns.carry_out import emit
from scheduler.live.turns.daemon import Daemon
from scheduler.live.turns.turn import Turn
from walras.config import MarketStep
from walras.ids import PoolId

log = logging.getLogger(__name__)


async def play(daemon: Daemon, desk: ProviderDesk, steps: Sequence[MarketStep]) -> None:
    """Each step at its time; then nothing more, for ever."""
    began_at = daemon.clock.now()
    for step in sorted(steps, key=lambda step: step.at):
        await asyncio.sleep(max(0.0, began_at + step.at - daemon.clock.now()))
        pool_id = PoolId(step.pool)
        if step.usd_per_h is not None:
            await daemon.perform(lambda turn, p=pool_id, usd=step.usd_per_h: _reprice(turn, p, usd))  # type: ignore[misc]
        if step.revoke is not None:
            taken = desk.revoke(pool_id, step.revoke)
            log.info("market script: %s takes %s back", pool_id, ", ".join(taken) or "nothing")
    await asyncio.Event().wait()


def _reprice(turn: Turn, pool_id: PoolId, usd_per_h: float) -> None:
    pool = turn.board.pools.get(pool_id)
    if pool is not None and pool.usd_per_h != usd_per_h:
        emit(turn, PoolDeclared(turn.at, replace(pool, usd_per_h=usd_per_h)))
