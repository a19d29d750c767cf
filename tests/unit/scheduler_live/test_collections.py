"""The collector of garbage never finds many objects at once in a server, whatever is freed meanwhile."""

import asyncio
import gc
from typing import Any

from scheduler.live.loop.event_loop import collect_young, freeze_gc

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
