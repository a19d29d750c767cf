"""What a core knows beyond its jobs and machines, kept over a restart: arrears, waits between tries, prices, evidence.

`remembered_state` reads it without changing a bit of the core, so that it may be asked at any time. A fresh core takes
it in before it hears of its jobs (`on_state_restored`), and hands each job its part when that comes (`recall_job`).
What has ended meanwhile is forgotten.
"""

from math import inf

import numpy as np

from optimizer.decision import Quote
from scheduler.core.events import RememberedJob, StateRestored
from scheduler.core.state.ledger import JobRecord, Ledger
from scheduler.core.state.unsaved_work import know_saving_kind, saw_saving
from scheduler.core.state.working_set import Cycle
from walras.cluster import PoolId

#: Arrears below this are nothing, accelerator-seconds.
_NOTHING_S = 0.5
#: Kinds of which it is kept that they save their work.
_KINDS_MAX = 10_000


def remembered_state(ledger: Ledger) -> StateRestored:
    """What a successor of the core should know, as the event that tells it."""
    quote, pools = ledger.policy.quote, ledger.fleet.pools
    pool_ids = [state.pool.pool_id for state in pools]
    known = quote is not None and len(quote.prices) == len(pools)
    return StateRestored(
        at=ledger.now,
        jobs=tuple(_remembered_jobs(ledger, pool_ids)),
        pools=tuple(
            (state.pool.pool_id, state.rent_failures, state.rent_not_before, state.rent_problem)
            for state in pools
            if state.rent_failures
        ),
        failures=tuple(
            (each.node_id, tuple(each.failures)) for each in ledger.fleet.machines if each and each.failures
        ),
        saving_kinds=tuple(sorted(ledger.saving_kinds)[:_KINDS_MAX]),
        policy=ledger.policy.spec.name if known else "",
        prices=tuple(zip(pool_ids, quote.prices.tolist(), strict=True)) if quote is not None and known else (),
        price_unit=quote.unit if quote is not None and known else "",
        exchange=quote.exchange if quote is not None and known else 1.0,
    )


def _remembered_jobs(ledger: Ledger, pool_ids: list[PoolId]) -> list[RememberedJob]:
    """Jobs of which there is something to tell."""
    found: list[RememberedJob] = []
    slots, owed_s = ledger.columns.owed_at(ledger.now)
    places = dict(zip(slots.tolist(), range(len(slots)), strict=True))
    for job in ledger:
        owed = owed_s[places[job.slot]]
        rows = np.flatnonzero(np.abs(owed) >= _NOTHING_S).tolist()
        waits_until = job.ready_at if job.ready_at > ledger.now else 0.0
        counts = (job.refusals, job.infra_failures, job.idle_yields)
        if rows or waits_until or any(counts) or job.loses_work or job.saves:
            by_pool = tuple((pool_ids[row], float(owed[row])) for row in rows)
            found.append((job.job_id, waits_until, *counts, job.loses_work, job.saves, by_pool))
    return found


def on_state_restored(cycle: Cycle, event: StateRestored) -> None:
    """Take in what the core before this one knew; of jobs when they come."""
    ledger = cycle.ledger
    ledger.remembered = {each[0]: each for each in event.jobs}
    for kind in event.saving_kinds:
        know_saving_kind(ledger, kind)
    for node_id, failures in event.failures:
        machine = ledger.fleet.machine(node_id)
        if machine is not None:
            machine.failures.extend((at, job_id) for at, job_id in failures)
    for pool_id, times, not_before, problem in event.pools:
        row = ledger.fleet.pool_row(pool_id)
        if row is not None:
            state = ledger.fleet.pools[row]
            state.rent_failures, state.rent_not_before, state.rent_problem = times, not_before, problem
            if not_before > cycle.now:
                cycle.timers.set(not_before, "rent", row)
    prices = dict(event.prices)
    pool_ids = [state.pool.pool_id for state in ledger.fleet.pools]
    if cycle.policy.pricing is not None and event.policy == cycle.policy.spec.name and set(prices) == set(pool_ids):
        cycle.policy.quote = Quote(np.array([prices[each] for each in pool_ids]), event.price_unit, event.exchange)


def recall_job(cycle: Cycle, job: JobRecord) -> None:
    """Give a restored job what was remembered of it, if anything."""
    ledger = cycle.ledger
    known = ledger.remembered.pop(job.job_id, None)
    if known is None:
        return
    _, waits_until, job.refusals, job.infra_failures, job.idle_yields, job.loses_work, saves, owed = known
    if saves:
        saw_saving(ledger, job)
    if cycle.now < waits_until < inf:
        job.ready_at = waits_until
        cycle.timers.set(waits_until, "ready", job.job_id)
    for pool_id, seconds in owed:
        row = ledger.fleet.pool_row(pool_id)
        if row is not None and ledger.columns.counts_owed:
            ledger.columns.owed[job.slot, row] = seconds
