"""Asking for a solve and living with its answer.

At most one solve is in flight. Its answer is never dropped for being old: jobs that ended since are skipped, capacity
that was lost since scales the shares of that pool down. Only an answer to a question asked before a policy change is
void.
"""

from math import inf

import numpy as np

from optimizer.arrival import choose
from optimizer.decision import Quote
from optimizer.policy import Newcomer
from optimizer.problem import Columns, Entities, Jobs, Pools, Problem
from scheduler.core.attempts import start
from scheduler.core.commands import Solve
from scheduler.core.cycle import Cycle
from scheduler.core.events import Proposal, Solved
from scheduler.core.ledger import JobRecord, Ledger

_HOUR_S = 3600.0


# ------------------------------------------------------------------------------------------------ asking


def ask_if_due(cycle: Cycle) -> None:
    """Send `Solve` if something changed, none is in flight and the last request is long enough ago."""
    standing = cycle.standing
    if not cycle.dirty or cycle.in_flight or standing.sharing is None:
        return
    if not cycle.ledger.jobs and not any(state.rented and state.machines for state in cycle.ledger.fleet.pools):
        cycle.dirty = False  # nobody to place and nothing to give back
        return
    gate_at = cycle.asked_at + standing.rules.resolve_min_s
    if cycle.now < gate_at:
        if cycle.gate_timer_at > gate_at or cycle.gate_timer_at <= cycle.now:
            cycle.gate_timer_at = gate_at
            cycle.timers.set(gate_at, "gate")
        return
    ask(cycle, build_problem(cycle.ledger))


def ask(cycle: Cycle, problem: Problem) -> None:
    """Send `Solve` about the ledger as it is."""
    standing = cycle.standing
    assert not cycle.in_flight, "one solve at a time"
    cycle.dirty = False
    cycle.asked_at = cycle.now
    cycle.last_request += 1
    cycle.in_flight = cycle.last_request
    cycle.commands.append(
        Solve(
            cycle.last_request,
            problem,
            standing.spec,
            standing.memory,
            standing.rules.delay_usd_per_h,
        )
    )


def build_problem(ledger: Ledger) -> Problem:
    """The ledger as a problem: eligible jobs in ascending id, one column per job and pool it can run on."""
    columns, pools = ledger.columns, ledger.fleet.pools
    ledger.columns.settle_all(ledger.now, inf)
    rows = np.flatnonzero(columns.active & columns.eligible)
    rows = rows[np.argsort(columns.job_id[rows], kind="stable")]
    classes = ledger.classes
    forms = np.array([f.counts for f in classes.forms], float).reshape(len(classes.forms), len(pools))
    counts = np.array([forms[c.form] for c in classes.classes]).reshape(len(classes.classes), len(pools))
    rates = np.array([c.rates for c in classes.classes]).reshape(len(classes.classes), len(pools))
    capacity = np.array([float(state.capacity) for state in pools])
    size = np.array([float(state.pool.shape.accelerators) for state in pools])
    rentable = np.array([float(state.pool.quota) for state in pools]) * size
    counts = np.where(counts <= np.maximum(capacity, rentable), counts, 0.0)
    per_job = counts[columns.class_row[rows]]
    job, pool = np.nonzero((per_job > 0) & (rates[columns.class_row[rows]] > 0))
    gang = np.where(per_job > 0, per_job, np.inf).min(axis=1, initial=np.inf)
    return Problem(
        at=ledger.now,
        jobs=Jobs(
            job_id=columns.job_id[rows],
            weight=columns.weight[rows],
            gang=np.where(np.isfinite(gang), gang, 1.0),
            remaining_steps=np.maximum(columns.steps_total[rows] - columns.steps[rows], 0.0),
            submitted_at=columns.submitted_at[rows],
            attained_s=columns.attained_s[rows],
            deadline_at=columns.deadline_at[rows],
            value_usd_per_h=columns.value_usd_per_h[rows],
            priority_class=columns.priority_class[rows],
            entity=columns.entity[rows],
        ),
        columns=Columns(
            job=job,
            steps_per_s=rates[columns.class_row[rows]][job, pool],
            use_column=np.arange(len(job)),
            use_pool=pool,
            use_count=per_job[job, pool],
            running=columns.pool[rows][job] == pool,
        ),
        pools=Pools(
            pool_id=tuple(state.pool.pool_id for state in pools),
            accelerator=tuple(state.pool.shape.accelerator for state in pools),
            capacity=capacity,
            rentable=rentable,
            machine_size=size,
            usd_per_h=np.array([state.pool.usd_per_h for state in pools]) / size,
            rented=np.where([state.rented for state in pools], np.minimum(capacity, rentable), 0.0),
            coming=np.array([float(sum(state.awaited.values())) for state in pools]) * size,
            boot_s=np.array([state.pool.boot_s for state in pools]),
            minimum_billing_s=np.array([state.pool.minimum_billing_s for state in pools]),
        ),
        entities=Entities(
            tuple(ledger.entities), np.ones(len(ledger.entities)), np.array(ledger.entity_parents, dtype=np.int64)
        ),
    )


# ------------------------------------------------------------------------------------------------ the answer


def apply_answer(cycle: Cycle, event: Solved) -> bool:
    """Take the answer over: new entitlements and prices. False if it is void."""
    if event.request_id != cycle.in_flight:
        return False
    cycle.in_flight = 0
    if event.request_id <= cycle.void_up_to:
        cycle.dirty = True
        return False
    proposal, standing = event.proposal, cycle.standing
    limit_s = standing.rules.owed_limit_rounds * max(standing.rules.round_s, 1.0)
    cycle.ledger.columns.settle_all(cycle.now, limit_s)
    _entitle(cycle.ledger, proposal)
    standing.memory = proposal.memory
    standing.proposal, standing.solved_at = proposal, cycle.now
    standing.quote = Quote(np.array(proposal.prices), proposal.price_unit, proposal.exchange)
    return True


def _entitle(ledger: Ledger, proposal: Proposal) -> None:
    """Replace the entitlements of the jobs that were asked about; owed time follows them to their new pools."""
    columns, jobs = ledger.columns, ledger.jobs
    asked = np.array([jobs[job_id].slot for job_id in proposal.asked if job_id in jobs], np.int64)
    fresh = np.zeros_like(columns.entitled)
    for job_id, pool, count, share in zip(
        proposal.job_ids, proposal.pool_rows, proposal.counts, proposal.shares, strict=True
    ):
        row = ledger.fleet.pool_row(proposal.pools[pool])
        if job_id in jobs and row is not None:
            fresh[jobs[job_id].slot, row] += count * share
    capacity = np.array([float(state.capacity) for state in ledger.fleet.pools])
    total = fresh.sum(axis=0)
    fresh *= np.minimum(1.0, capacity / np.maximum(total, 1e-12))
    if not len(asked):
        return
    owed, new = columns.owed[asked], fresh[asked]
    entitled = new > 0
    stranded = np.where(entitled, 0.0, owed).sum(axis=1)
    share = new / np.maximum(new.sum(axis=1), 1e-12)[:, None]
    columns.owed[asked] = np.where(entitled, owed + stranded[:, None] * share, 0.0)
    columns.entitled[asked] = new


# ------------------------------------------------------------------------------------------------ arrivals


def admit(cycle: Cycle, job: JobRecord) -> bool:
    """The arrival rule: the configuration worth most above its price is taken at once if it is free (design 2).

    Before the first solve nothing has a price. True if the job was started.
    """
    policy = cycle.standing.sharing
    if policy is None:
        return False
    ledger = cycle.ledger
    job_class, pools = ledger.class_of(job), ledger.fleet.pools
    counts = np.array(ledger.classes.forms[job_class.form].counts, float)
    capacity = np.array([float(state.capacity) for state in pools])
    usable = np.flatnonzero((counts > 0) & (job_class.rates > 0) & (counts <= capacity))
    if not len(usable):
        return False
    quote = cycle.standing.quote
    if quote is None or len(quote.prices) != len(pools):
        quote = Quote(np.zeros(len(pools)), "none", 1.0)
    usd_per_h = np.array([state.pool.usd_per_h / state.pool.shape.accelerators for state in pools])
    newcomer = Newcomer(job_class.rates[usable], usable, counts[usable], job.request.weight, capacity, usd_per_h)
    best, _ = choose(policy, newcomer, quote)
    if best is None:
        return False
    pool = int(usable[best])
    place = ledger.fleet.find(pool, ledger.classes.forms[job_class.form])
    if place is None:
        return False
    # Until the next solve it is entitled to what it was given.
    ledger.columns.settle(job.slot, cycle.now)
    ledger.columns.entitled[job.slot] = 0.0
    ledger.columns.entitled[job.slot, pool] = counts[pool]
    start(cycle, job, pool, place)
    return True
