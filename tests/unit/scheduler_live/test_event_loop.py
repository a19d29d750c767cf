"""The loop gives everybody a turn: behind batches, between pieces of a step, beside the collector."""

import asyncio
import contextlib
import gc
import threading
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

from scheduler.live.loop.event_loop import Step, collect_young, freeze_gc
from scheduler.live.loop.transaction import Transaction
from scheduler.live.store.store_interface import WriteBatch
from tests.support.live_world import World

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


async def test_who_waits_for_what_is_durable_does_not_wait_for_an_idle_moment(w: World) -> None:
    busy = Busy(w)
    async with busy.on():
        for _ in range(5):
            before = busy.batches
            await asyncio.wait_for(w.loop.settled(), 5.0)
            assert busy.batches - before <= BATCHES_MOST
            await asyncio.sleep(0)


async def test_a_heartbeat_with_reports_is_answered_after_its_own_batch(w: World) -> None:
    """Else heartbeats of a busy server wait, one behind the other, until nobody wants anything of it."""
    agent, job_id = await w.running({"profile": "cnn", "steps": 1000})
    busy = Busy(w)
    async with busy.on():
        for step in range(1, 6):
            before = busy.batches
            await asyncio.wait_for(agent.beat(agent.progress(job_id, 1, float(step))), 5.0)
            assert busy.batches - before <= BATCHES_MOST + 1


PIECES = 5


async def test_between_pieces_the_loop_runs_and_no_other_step_does(w: World) -> None:
    """Whoever wants to read waits for `settled`; a step put meanwhile is taken after the last piece."""
    seen: list[str] = []
    beside = asyncio.get_running_loop()

    def long(transaction: Transaction) -> Iterator[None]:
        for piece in range(PIECES):
            seen.append(f"piece {piece}")
            beside.call_soon(seen.append, f"beside {piece}")
            w.clock.at += 1.0  # longer than the loop may be held
            yield

    w.loop.perform_soon_in_pieces(long)
    await asyncio.sleep(0)
    await w.loop.perform(lambda transaction: seen.append("next step"))
    assert seen == [f"{what} {n}" for n in range(PIECES) for what in ("piece", "beside")] + ["next step"]


def _slow(w: World, seen: list[str], who: str, count: int) -> list[Step[int]]:
    """Steps of which two take longer than a turn may while others wait."""

    def step(number: int, transaction: Transaction) -> int:
        w.clock.at += 0.003
        seen.append(who)
        return number

    return [partial(step, number) for number in range(count)]


async def test_a_turn_is_short_while_others_wait_for_the_batch(w: World) -> None:
    """Whether with a step of their own or to read what is durable; alone it has as many steps as a turn may have."""
    seen: list[str] = []
    alone = asyncio.create_task(
        w.loop.perform_in_turns("ada", _slow(w, seen, "ada", 8), last=lambda _: seen.append("end"))
    )
    assert await alone == list(range(8))
    assert seen == ["ada"] * 8 + ["end"]

    async def read() -> None:
        await w.loop.settled()
        seen.append("read")

    for other in (lambda: w.loop.perform(lambda _: seen.append("step")), read):
        seen.clear()
        begun = asyncio.Event()
        first = partial(lambda event, _: event.set(), begun)
        long = asyncio.create_task(w.loop.perform_in_turns("ada", _slow(w, seen, "ada", 8), first=first))
        await begun.wait()
        await other()
        assert len(seen) <= 4
        assert seen[-1] != "ada"
        assert await long == list(range(8))


async def test_each_holder_has_its_turn(w: World) -> None:
    """However many submissions one holder has under way, another waits for one turn of these."""
    seen: list[str] = []
    submit = w.loop.perform_in_turns
    many = [submit("ada", _slow(w, seen, "ada", 4)) for _ in range(10)]
    await asyncio.gather(*many, submit("bob", _slow(w, seen, "bob", 4)))
    assert seen.index("bob") <= 4
    assert (seen.count("ada"), seen.count("bob")) == (40, 4)


async def test_a_turn_does_not_wait_for_ever_behind_steps_of_others(w: World) -> None:
    busy, seen = Busy(w), list[str]()
    async with busy.on():
        before = busy.batches
        await asyncio.wait_for(w.loop.perform_in_turns("ada", _slow(w, seen, "ada", 1)), 5.0)
        assert busy.batches - before <= BATCHES_MOST + 1


_MADE, _TURNS = 100, 300


async def test_new_objects_do_not_pile_up_while_old_ones_are_freed() -> None:
    """The collector counts what is made less what is freed: alone it would meet all of them in one piece."""
    found: list[int] = []

    def count(phase: str, about: dict[str, Any]) -> None:
        if phase == "start" and about["generation"] == 0:
            found.append(len(gc.get_objects(generation=0)))

    async def serve() -> None:
        for _ in range(_TURNS):
            kept.append([[] for _ in range(_MADE)])
            del old[-2 * _MADE :]
            await asyncio.sleep(0)

    before = gc.get_threshold()
    kept: list[list[list[None]]] = []
    old = [[] for _ in range(3 * _MADE * _TURNS)]  # type: ignore[var-annotated]
    freeze_gc()
    gc.callbacks.append(count)
    collecting = asyncio.create_task(collect_young(every_s=0.0))
    try:
        await serve()
        collecting.cancel()
    finally:
        gc.callbacks.remove(count)
        gc.unfreeze()
        gc.set_threshold(*before)
    assert len(found) > _TURNS / 2
    assert max(found) < 10 * _MADE
