"""What one more accelerator of each pool is worth by the plan in force, and the task that records it.

The plan's price is in the policy's own unit. Beside it stands what one more accelerator would gain the jobs in USD per
hour, by what they state an hour of theirs is worth (`value_usd_per_h`, or the default of the policy's rules), which is
computed with each plan (`optimizer/renting/usd_certificate.py`).
"""

import asyncio

from scheduler.core.events import Proposal
from scheduler.live.loop.event_loop import ServerLoop
from scheduler.live.loop.live_state import LiveState
from scheduler.live.loop.price_history import LOOK_EVERY_S, PoolQuote
from scheduler.live.loop.transaction import Transaction
from scheduler.live.store.price_hours import PRICES_KEPT_S

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
        transaction.batch.price_hours.extend(rows)
        transaction.batch.price_hours_until = max(0.0, transaction.at - PRICES_KEPT_S)


async def watch_prices(loop: ServerLoop) -> None:
    """Record the prices in force every half minute, for ever."""
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        await loop.perform(note_prices)
