"""What one more accelerator of each pool is worth by the plan in force, and the watch that keeps it.

A price in the policy's own unit becomes USD an hour by an exchange rate that the jobs themselves give: what the jobs
with a place say that an hour of theirs is worth (`value_usd_per_h`, or whatever the policy's rules say for them), over
what their places are worth to the policy. A policy whose objective is no sum of what places are worth has no such rate.
"""

import asyncio

from scheduler.core.events import Proposal
from scheduler.live.loop.event_loop import ServerLoop
from scheduler.live.loop.price_history import LOOK_EVERY_S, PoolQuote
from scheduler.live.loop.transaction import Transaction
from scheduler.live.store.price_hours import PRICES_KEPT_S

#: Pools of which prices are kept, the first by name.
_MOST_POOLS = 500
#: The unit whose prices add up to the objective over the jobs that have a place (`optimizer/policies/walras.py`).
_SUMMED_UNIT, _MONEY_UNIT = "worth of one accelerator", "USD per accelerator-hour"
_EMPTY = "empty"


def pool_quotes(transaction: Transaction) -> list[PoolQuote]:
    """What the plan in force says of each pool; nothing where none is in force, or the policy has no prices."""
    state, proposal = transaction.state, transaction.state.proposal
    if proposal is None or (not proposal.prices and proposal.status != _EMPTY):
        return []
    prices = dict(zip(proposal.pools, proposal.prices, strict=False))
    rate = usd_per_unit(transaction, proposal) if any(proposal.prices) else None
    found = []
    for pool_id, pool in sorted(state.pools.items())[:_MOST_POOLS]:
        if pool.shape.accelerators:
            # Where nobody competes one more is worth nothing, in whatever unit.
            price = 0.0 if proposal.status == _EMPTY else max(0.0, prices.get(pool_id, 0.0))
            usd = 0.0 if price == 0 else None if rate is None else price * rate
            rent = pool.usd_per_h / pool.shape.accelerators
            found.append(PoolQuote(pool_id, price, proposal.price_unit, usd, rent))
    return found


def usd_per_unit(transaction: Transaction, proposal: Proposal) -> float | None:
    """USD an hour for one unit of the proposal's prices; None where nothing says."""
    if proposal.price_unit == _MONEY_UNIT:
        return 1.0
    if proposal.price_unit != _SUMMED_UNIT or not proposal.objective > 0:
        return None
    ledger = transaction.core.ledger
    rules, known = ledger.policy.rules, ledger.jobs
    usd = sum(rules.value_of(known[job_id].request)[0] for job_id in set(proposal.job_ids) if job_id in known)
    return usd / proposal.objective if usd > 0 else None


def note_prices(transaction: Transaction) -> None:
    """Look at the prices in force, and write what is due."""
    state = transaction.state
    rows = state.price_history.look(transaction.at, state.epoch_unix_s, pool_quotes(transaction))
    if rows:
        transaction.batch.price_hours.extend(rows)
        transaction.batch.price_hours_until = max(0.0, transaction.at - PRICES_KEPT_S)


async def watch_prices(loop: ServerLoop) -> None:
    """For ever."""
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        await loop.perform(note_prices)
