"""Steps that the server repeats by itself: storing what only the core knows, and beginning months.

What the core knows that no table has is gathered in pieces of some milliseconds; between them the rest of the server
runs but no step is taken, so it is what the core knew at one instant. The writer's thread encodes it.

A month begins by wall time: then its charges are closed, and the core learns that the budgets of a new month begin.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

from scheduler.core.handlers.restored_state import gather_state
from scheduler.live.loop import billing
from scheduler.live.loop.apply_commands import emit
from scheduler.live.loop.event_loop import ServerLoop
from scheduler.live.loop.transaction import Transaction

#: Seconds between two times that the core's own knowledge is stored; an orderly stop stores it too.
_KEEP_STATE_EVERY_S = 10.0


def keep_core_state(transaction: Transaction) -> Iterator[None]:
    """Store what the core knows that no table has, for the next start; nothing if it has not changed."""
    found = yield from gather_state(transaction.core.ledger)
    yield
    timeless, before = replace(found, at=0.0), transaction.state.kept_core_state
    if timeless == before:
        return
    # Freeing what was kept before takes milliseconds too.
    yield
    transaction.state.kept_core_state = timeless
    del before
    yield
    transaction.core_state = found


async def watch_core_state(loop: ServerLoop) -> None:
    """Store what only the core knows every `_KEEP_STATE_EVERY_S`, for ever."""
    while True:
        await asyncio.sleep(_KEEP_STATE_EVERY_S)
        await loop.perform_in_pieces(keep_core_state)


#: Seconds between two looks at the calendar, at most: wall clocks are set, and machines sleep.
_CALENDAR_EVERY_S = 600.0


def begin_month_if_due(transaction: Transaction) -> None:
    """Tell the core what was spent, if a month or a budget's period has begun that it does not know of."""
    state = transaction.state
    unix_s = transaction.at + state.epoch_unix_s
    if state.month != billing.month_of(unix_s) or unix_s >= state.budgets.refill_unix_s:
        emit(transaction, billing.restate_spending(transaction))


async def watch_months(loop: ServerLoop) -> None:
    """Look at the calendar for ever, in time for each new month and period."""
    while True:
        await loop.perform(begin_month_if_due)
        unix_s = loop.clock.unix(loop.clock.now())
        next_unix_s = min(billing.next_month_unix_s(unix_s), loop.state.budgets.refill_unix_s)
        await asyncio.sleep(min(_CALENDAR_EVERY_S, max(next_unix_s - unix_s, 0.0) + 0.01))
