"""A step that is taken in pieces: the rest of the server runs between them, and no other step does."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

from scheduler.live.loop.transaction import Transaction
from tests.support.live_world import world

PIECES = 5


async def test_between_pieces_the_loop_runs_and_no_other_step_does(tmp_path: Path) -> None:
    """Whoever wants to read waits for `settled`; a step put meanwhile is taken after the last piece."""
    async with world(tmp_path) as w:
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
