"""Whoever waits for what is durable gets a turn between two batches, however many steps wait for the next one."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path

from scheduler.live.store.store_interface import WriteBatch
from tests.support.live_world import FakeAgent, World, world

#: Batches that a caller waits for at most: the one under way, and the one that may have begun with its own step.
BATCHES_MOST = 2


class Busy:
    """Clients of whom one always has a step in the inbox when a batch has been written."""

    def __init__(self, running: World) -> None:
        self._running, self._commit = running, running.loop._store.commit
        self._loop = asyncio.get_running_loop()
        self._is_on = False
        self.batches = 0
        self._is_on_its_way = asyncio.Event()
        self._calls: set[asyncio.Future[object]] = set()
        running.loop._store.commit = self._count  # type: ignore[method-assign]

    def _count(self, batch: WriteBatch) -> None:
        self.batches += 1
        if self._is_on:
            is_put = threading.Event()
            self._loop.call_soon_threadsafe(self._put, is_put)
            assert is_put.wait(5.0)
        self._commit(batch)

    def _put(self, is_put: threading.Event) -> None:
        call: asyncio.Future[object] = asyncio.ensure_future(self._running.submit({"hold": True}))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        self._is_on_its_way.set()
        # The call has put its step into the inbox after its first turn.
        self._loop.call_soon(is_put.set)

    @contextlib.asynccontextmanager
    async def on(self) -> AsyncIterator[None]:
        """Keeps batches coming, one right after the other."""
        self._is_on = True
        await self._running.submit({"hold": True})
        await self._is_on_its_way.wait()
        try:
            yield
        finally:
            self._is_on = False
            await asyncio.gather(*self._calls)


async def test_who_waits_for_what_is_durable_does_not_wait_for_an_idle_moment(tmp_path: Path) -> None:
    async with world(tmp_path) as running:
        busy = Busy(running)
        async with busy.on():
            for _ in range(5):
                before = busy.batches
                await asyncio.wait_for(running.loop.settled(), 5.0)
                assert busy.batches - before <= BATCHES_MOST
                await asyncio.sleep(0)


async def test_a_heartbeat_with_reports_is_answered_after_its_own_batch(tmp_path: Path) -> None:
    """Else heartbeats of a busy server wait, one behind the other, until nobody wants anything of it."""
    async with world(tmp_path) as running:
        agent = await FakeAgent(running, "n1").register()
        job_id = await running.submit({"profile": "cnn", "steps": 1000})
        await agent.start_all()
        busy = Busy(running)
        async with busy.on():
            for step in range(1, 6):
                before = busy.batches
                await asyncio.wait_for(agent.beat(agent.progress(job_id, 1, float(step))), 5.0)
                assert busy.batches - before <= BATCHES_MOST + 1
