"""How long single callbacks hold up an event loop: every one is timed while the watch is on."""

import asyncio
import inspect
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heappushpop
from typing import Any

_KEPT = 20
#: Nested coroutines that are named.
_NAMES_MAX = 4


@dataclass(slots=True)
class LoopWatch:
    """The longest callbacks, as (seconds, what ran).

    `processor`: processor time of the loop's thread, which other processes cannot lengthen; `wall`: what others waited.
    """

    processor: list[tuple[float, str]] = field(default_factory=lambda: [(0.0, "")] * _KEPT)
    wall: list[tuple[float, str]] = field(default_factory=lambda: [(0.0, "")] * _KEPT)
    callbacks: int = 0

    @property
    def longest_processor_s(self) -> float:
        return max(self.processor)[0]

    @property
    def longest_wall_s(self) -> float:
        return max(self.wall)[0]


@contextmanager
def watched() -> Iterator[LoopWatch]:
    """Time every callback of every loop of this process until the end of the block."""
    watch, run = LoopWatch(), asyncio.Handle._run

    def timed(handle: Any) -> None:
        began, began_cpu = time.perf_counter(), time.thread_time()
        # Afterwards the callback may be gone.
        what = handle._callback
        run(handle)
        cpu_s, wall_s = time.thread_time() - began_cpu, time.perf_counter() - began
        watch.callbacks += 1
        if cpu_s > watch.processor[0][0]:
            heappushpop(watch.processor, (cpu_s, _named(what)))
        if wall_s > watch.wall[0][0]:
            heappushpop(watch.wall, (wall_s, _named(what)))

    asyncio.Handle._run = timed  # type: ignore[method-assign, assignment]
    try:
        yield watch
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]


def _named(callback: Any) -> str:
    """Name what ran: the task's innermost coroutine of its own, and the line at which it waits now."""
    task = getattr(callback, "__self__", None)
    if not isinstance(task, asyncio.Task):
        # No `repr`: aiohttp's client keeps the headers that its response shows, and before its start there are none.
        function = getattr(callback, "func", callback)
        return str(getattr(function, "__qualname__", type(function).__name__))
    coroutine: Any = task.get_coro()
    names, where = [], ""
    while inspect.iscoroutine(coroutine):
        names.append(coroutine.__qualname__)
        if coroutine.cr_frame is not None:
            where = f" at line {coroutine.cr_frame.f_lineno}"
        coroutine = coroutine.cr_await
    return f"{' > '.join(names[:_NAMES_MAX])}{where}"
