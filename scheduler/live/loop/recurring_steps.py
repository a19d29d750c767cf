"""Steps that the server repeats by itself: storing what only the core knows, beginning months, recording prices.

What the core knows that no table has is gathered in pieces of some milliseconds; between them the rest of the server
runs but no step is taken, so it is what the core knew at one instant. The writer's thread encodes it.

A month begins by wall time: then its charges are closed, and the core learns that the budgets of a new month begin.

What one more accelerator of each pool is worth by the plan in force is recorded in the policy's own unit, and beside it
what that accelerator would gain the jobs in USD per hour, by what they state an hour of theirs is worth
(`value_usd_per_h`, or the default of the policy's rules), computed with each plan
(`optimizer.renting.usd_certificate`).
"""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

from scheduler.core.events import Proposal
from scheduler.core.handlers.restored_state import gather_state
from scheduler.live.loop import billing
from scheduler.live.loop.apply_commands import emit
from scheduler.live.loop.event_loop import ServerLoop
from scheduler.live.loop.live_state import LiveState
from scheduler.live.loop.price_history import LOOK_EVERY_S, PoolQuote
from scheduler.live.loop.transaction import Transaction
from scheduler.live.store.table_rows import PriceRow

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


# ------------------------------------------------------------------------------------------ prices


#: Prices are kept of this many pools, the first by name.
_MOST_POOLS = 500
_EMPTY = "empty"


def pool_quotes(state: LiveState) -> list[PoolQuote]:
    """Returns the prices of each pool in the plan in force; an empty list without a plan or without prices."""
    proposal = state.proposal
    if proposal is None or (not proposal.prices and proposal.status != _EMPTY):
        return []
    rows = {pool_id: row for row, pool_id in enumerate(proposal.pools)}
    found = []
    for pool_id, pool in sorted(state.pools.items())[:_MOST_POOLS]:
        if pool.shape.accelerators:
            price, usd = _price_and_worth(proposal, rows.get(pool_id))
            rent = pool.usd_per_h / pool.shape.accelerators
            found.append(PoolQuote(pool_id, price, proposal.price_unit, usd, rent))
    return found


def _price_and_worth(proposal: Proposal, row: int | None) -> tuple[float, float | None]:
    """Returns the price of one accelerator in the policy's unit, and its worth in USD per hour or None."""
    if proposal.status == _EMPTY:
        return 0.0, 0.0  # nobody competes
    price = max(0.0, proposal.prices[row]) if row is not None and row < len(proposal.prices) else 0.0
    if row is not None and row < len(proposal.worth_usd):
        return price, proposal.worth_usd[row]
    # In whatever unit: an accelerator without a price is worth nothing.
    return price, 0.0 if price == 0 else None


def note_prices(transaction: Transaction) -> None:
    """Record the prices in force, and write the rows that are due."""
    state = transaction.state
    rows = state.price_history.look(transaction.at, state.epoch_unix_s, pool_quotes(state))
    if rows:
        transaction.batch.put(*rows)
        transaction.batch.expire(PriceRow, transaction.at)


async def watch_prices(loop: ServerLoop) -> None:
    """Record the prices in force every half minute, for ever."""
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        await loop.perform(note_prices)
