"""State beyond jobs and machines that survives a restart: owed time, retry delays, prices, slow machines, lifetimes.

`gather_state` reads it without changing the core, so it may be called at any time. It works in pieces, because there
may be many jobs; between the pieces the core must not handle events. A fresh core takes the state over before it hears
of its jobs (`on_state_restored`), and each restored job gets its part when it comes (`recall_job`). Facts about jobs
that have ended meanwhile are dropped.
"""

from collections.abc import Generator, Mapping
from math import inf
from typing import Any

import numpy as np

from optimizer.decision import Quote
from scheduler.core.cycle.slow_pools import restore_slow_pools
from scheduler.core.events import RememberedJob, RememberedUse, StateRestored
from scheduler.core.placement.checkpoint_intervals import watched_machines
from scheduler.core.state.ledger import JobRecord, Ledger
from scheduler.core.state.machine_lifetimes import dump_lifetimes, recall_lifetimes
from scheduler.core.state.stopping import know_saving_kind, saw_saving
from scheduler.core.state.working_set import Cycle
from walras.cluster import PoolId

#: Owed time below this counts as zero, accelerator-seconds.
_NOTHING_S = 0.5
#: Number of jobs, and of owed entries, between two pauses: less than a millisecond of work.
_JOBS_IN_A_BITE, _OWED_IN_A_BITE = 500, 2000
#: Maximum of kinds for which the ability to save is kept.
_KINDS_MAX = 10_000
#: Maximum of projects and users whose use is kept, those with most of it.
_ENTITIES_MAX = 10_000


def gather_state(ledger: Ledger) -> Generator[None, None, StateRestored]:
    """Generates the event that restores the state in a successor; yields a pause after some hundred jobs."""
    quote, pools = ledger.policy.quote, ledger.fleet.pools
    names = [state.name for state in pools]
    priced: dict[str, Any] = {}
    if quote is not None and len(quote.prices) == len(pools):
        prices = zip(pools, quote.prices.tolist(), strict=True)
        told = tuple((state.name, price) for state, price in prices if not state.pool.removed)
        priced = {
            "policy": ledger.policy.spec.name,
            "prices": told,
            "price_unit": quote.unit,
            "exchange": quote.exchange,
        }
    jobs = yield from _remembered_jobs(ledger, names)
    return StateRestored(
        at=ledger.now,
        jobs=tuple(jobs),
        pools=tuple(
            (state.pool.pool_id, state.rent_failures, state.rent_not_before, state.rent_problem)
            for state in pools
            if state.rent_failures
        ),
        failures=tuple(
            (each.node_id, tuple(each.failures)) for each in ledger.fleet.machines if each and each.failures
        ),
        retries=tuple(ledger.retries.remembered(ledger.jobs)),
        saving_kinds=tuple(sorted(ledger.saving_kinds)[:_KINDS_MAX]),
        **priced,
        shares=_remembered_use(ledger),
        lifetimes=tuple(
            (state.pool.pool_id, dump_lifetimes(state.lives, watched_machines(ledger, state)))
            for state in pools
            if not state.pool.removed and state.slow_of is None and state.lives.ends
        ),
        lengths=ledger.lengths.remembered(_ENTITIES_MAX),
        weights=ledger.weights.remembered(_ENTITIES_MAX),
        paces=ledger.slow_machines.remembered(ledger.fleet),
        programs=ledger.table.programs.remembered(),
    )


def _remembered_use(ledger: Ledger) -> tuple[RememberedUse, ...]:
    """Returns what projects and users have used, and how far the policy counts them as behind their shares."""
    memory = ledger.policy.memory
    fair = memory.get("fair") if isinstance(memory, Mapping) else None
    deficit, rate, at = (fair["deficit"], fair["rate"], fair["at"]) if isinstance(fair, Mapping) else ({}, {}, 0.0)
    found = {each.name: each for each in (*ledger.usage.remembered(), *ledger.usage.owned.remembered(ledger))}
    for name in {*deficit, *rate}:
        known = found.get(name, RememberedUse(name, ledger.now, 0.0, 0.0, 0.0, 0.0))
        found[name] = known._replace(behind_at=at, behind_s=deficit.get(name, 0.0), behind_rate=rate.get(name, 0.0))
    most = sorted(found.values(), key=lambda each: (-each.used_s - each.behind_s, each.name))
    return tuple(most[:_ENTITIES_MAX])


def _remembered_jobs(ledger: Ledger, names: list[PoolId]) -> Generator[None, None, list[RememberedJob]]:
    """Generates the list of jobs with facts to remember; yields pauses."""
    found: list[RememberedJob] = []
    now, columns = ledger.now, ledger.columns
    owed_by_slot = yield from _owed_by_slot(ledger, names)
    for number, job in enumerate(ledger):
        if number % _JOBS_IN_A_BITE == 0:
            yield
        owed = tuple(owed_by_slot.get(job.slot, ()))
        waits_until = job.ready_at if job.ready_at > now else 0.0
        loses_work = columns.loses_work.item(job.slot)
        counts = (job.refusals, job.infra_failures, job.idle_yields)
        if owed or waits_until or job.saves or loses_work or any(counts):
            found.append((job.job_id, waits_until, *counts, loses_work, job.saves, owed))
    return found


def _owed_by_slot(ledger: Ledger, names: list[PoolId]) -> Generator[None, None, dict[int, list[tuple[PoolId, float]]]]:
    """Generates by slot what jobs are owed by pool, where it is above `_NOTHING_S`; yields pauses."""
    slots, owed_s = ledger.columns.owed_at(ledger.now)
    places, rows = np.nonzero(np.abs(owed_s) >= _NOTHING_S)
    owed = zip(slots[places].tolist(), rows.tolist(), owed_s[places, rows].tolist(), strict=True)
    by_slot: dict[int, list[tuple[PoolId, float]]] = {}
    for number, (slot, row, seconds) in enumerate(owed):
        if number % _OWED_IN_A_BITE == 0:
            yield
        by_slot.setdefault(slot, []).append((names[row], seconds))
    return by_slot


def on_state_restored(cycle: Cycle, event: StateRestored) -> None:
    """Takes over what the core before this one knew; facts about jobs are applied when the jobs come."""
    ledger = cycle.ledger
    ledger.remembered = {each[0]: each for each in event.jobs}
    _recall_use(cycle, event)
    ledger.lengths.recall(event.lengths)
    ledger.weights.recall(event.weights)
    ledger.retries.recall(event.retries)
    for job_id, machines in event.retries:
        for until_at in sorted({until_at for _, _, until_at in machines if until_at > cycle.now}):
            cycle.timers.set(until_at, "ready", job_id)
    for kind in event.saving_kinds:
        know_saving_kind(ledger, kind)
    for node_id, failures in event.failures:
        machine = ledger.fleet.machine(node_id)
        if machine is not None:
            # The release before did not note users.
            machine.failures.extend((at, job_id, next(iter(user), "")) for at, job_id, *user in failures)
    for pool_id, times, not_before, problem in event.pools:
        row = ledger.fleet.pool_row(pool_id)
        if row is not None:
            state = ledger.fleet.pools[row]
            state.rent_failures, state.rent_not_before, state.rent_problem = times, not_before, problem
            if not_before > cycle.now:
                cycle.timers.set(not_before, "rent", row)
    for pool_id, told in event.lifetimes:
        row = ledger.fleet.pool_row(pool_id)
        if row is not None:
            recall_lifetimes(ledger.fleet.pools[row].lives, told)
    ledger.table.programs.recall(event.programs)
    restore_slow_pools(cycle, event.paces)
    _recall_prices(cycle, event)


def _recall_prices(cycle: Cycle, event: StateRestored) -> None:
    """Restores the last prices if they are those of this policy and of these pools."""
    fleet, prices = cycle.ledger.fleet, dict(event.prices)
    rows = {cycle.ledger.slow_machines.row_named(fleet, name, or_declared=True) for name in prices}
    if cycle.policy.pricing is None or event.policy != cycle.policy.spec.name or rows != {*range(len(fleet.pools))}:
        return
    found = [prices[state.name] for state in fleet.pools]
    cycle.policy.quote = Quote(np.array(found), event.price_unit, event.exchange)


def _recall_use(cycle: Cycle, event: StateRestored) -> None:
    """Restores the use of projects and users, and what a policy remembers of who is behind its share."""
    cycle.ledger.usage.recall(event.shares, cycle.now)
    told = [each for each in event.shares if each.behind_s or each.behind_rate]
    if told and cycle.policy.memory is None and cycle.policy.plans:
        behind = {each.name: each.behind_s for each in told}
        rate = {each.name: each.behind_rate for each in told}
        cycle.policy.memory = {"fair": {"at": told[0].behind_at, "deficit": behind, "rate": rate}}


def recall_job(cycle: Cycle, job: JobRecord) -> None:
    """Gives a restored job what was remembered of it, if anything."""
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
        row = ledger.slow_machines.row_named(ledger.fleet, pool_id, or_declared=True)
        if row is not None and ledger.columns.counts_owed:
            ledger.columns.owed[job.slot, row] += seconds
