"""Giving way: long work in the event loop in pieces, and garbage collected without stopping it.

Nothing in the loop may hold up the rest for 20 ms. Work over many items asks `Breath` between them. Collecting garbage
looks at every object there is, 50 to 80 ms with ten thousand active jobs, so only young objects are looked at as a
matter of course; everything is once an hour.
"""

import asyncio
import gc
import time

_WORK_S = 0.004
#: Objects made since the last look (of the youngest; then how many such looks until the next older ones are included).
_YOUNG, _MIDDLE, _NEVER = 2_000, 5, 1_000_000
_WHOLE_EVERY_S = 3600.0


class Breath:
    """Between the items of long work: `await breath.take()`."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    async def take(self) -> None:
        """Let others run, if this has gone on for long enough."""
        if time.monotonic() - self._since > _WORK_S:
            await asyncio.sleep(0)
            self._since = time.monotonic()


def keep_still() -> None:
    """From now on no automatic collection looks at what is here already, nor at what grows old."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _NEVER)


async def sweep() -> None:
    """Look at everything once in a while, for ever."""
    while True:
        await asyncio.sleep(_WHOLE_EVERY_S)
        gc.unfreeze()
        keep_still()
