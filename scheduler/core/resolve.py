"""Asking for a solve and living with its answer.

At most one solve is in flight. Its answer is never dropped for being old: jobs that ended since are skipped, capacity
that was lost since scales the shares of that pool down. Only an answer to a question asked before a policy change is
void.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import numpy as np

from optimizer.arrival import choose
from optimizer.decision import Quote
from optimizer.policy import Newcomer
from optimizer.problem import Columns, Entities, FloatArray, IntArray, Jobs, Pools, Problem
from scheduler.core.commands import Solve
from scheduler.core.cycle import Cycle
from scheduler.core.events import Proposal, Solved
from scheduler.core.ledger.classes import JobClasses
from scheduler.core.ledger.ledger import JobRecord, Ledger
from scheduler.core.ledger.risk import Runs, lasting
from scheduler.core.placement.attempts import start
from scheduler.core.placement.claims import drop_claim
from walras.cluster import Market
from walras.ids import JobId

# ------------------------------------------------------------------------------------------------ asking


def ask_if_due(cycle: Cycle, build: Callable[[Ledger], Problem] | None = None) -> None:
    """Send `Solve` if something changed, none is in flight and the last request is long enough ago.

    `build` makes the problem of the ledger; `build_problem` if nobody says.
    """
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
    ask(cycle, (build or build_problem)(cycle.ledger))


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
    """The ledger as a problem: eligible jobs in ascending id, one column per job, pool and gang size it can have."""
    columns, pools = ledger.columns, ledger.fleet.pools
    ledger.columns.settle_all(ledger.now, inf)
    rows = np.flatnonzero(columns.active & columns.eligible)
    rows = rows[np.argsort(columns.job_id[rows], kind="stable")]
    capacity = np.array([float(state.capacity) for state in pools])
    size = np.array([float(state.pool.shape.accelerators) for state in pools])
    rentable = np.array([float(state.pool.quota) for state in pools]) * size
    way = ways_of(ledger.classes, columns.class_row[rows], np.maximum(capacity, rentable))
    job, pool, count = way.job, way.pool, way.count
    in_one_pool = columns.pool[rows]
    if columns.parts:
        in_one_pool = np.where(np.isin(rows, list(columns.parts)), -1, in_one_pool)
    gang = np.full(len(rows), np.inf)
    np.minimum.at(gang, job, count)
    done = _steps_done(ledger, rows)
    return Problem(
        at=ledger.now,
        jobs=Jobs(
            job_id=columns.job_id[rows],
            weight=columns.weight[rows],
            gang=np.where(np.isfinite(gang), gang, 1.0),
            remaining_steps=np.maximum(columns.steps_total[rows] - done, 0.0),
            done_steps=done,
            submitted_at=columns.submitted_at[rows],
            attained_s=columns.attained_s[rows],
            deadline_at=columns.deadline_at[rows],
            value_usd_per_h=columns.value_usd_per_h[rows],
            priority_class=columns.priority_class[rows],
            entity=columns.entity[rows],
        ),
        columns=Columns(
            job=job,
            steps_per_s=way.steps_per_s * _lasting(ledger, rows, way),
            use_column=np.arange(len(job)),
            use_pool=pool,
            use_count=count,
            running=(in_one_pool[job] == pool) & (columns.count[rows][job] == count),
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


@dataclass(frozen=True, slots=True)
class Ways:
    """Parallel arrays: each way to run each job on one pool; by job, then by pool, then by gang size (w,)."""

    job: IntArray
    pool: IntArray
    count: FloatArray
    steps_per_s: FloatArray


def ways_of(classes: JobClasses, class_rows: IntArray, room: FloatArray) -> Ways:
    """Of jobs of these classes (n,) on pools that can come to have so many accelerators (p,)."""
    owner, option = classes.option_table
    counts, rates = classes.counts[option], classes.rates[option]
    at, pool = np.nonzero((counts > 0) & (counts <= room) & (rates > 0))
    count, steps_per_s = counts[at, pool], rates[at, pool]
    if len(owner) > len(classes.classes):  # several sizes of a class
        order = np.lexsort((count, pool, owner[at]))
        at, pool, count, steps_per_s = at[order], pool[order], count[order], steps_per_s[order]
    first = np.searchsorted(owner[at], class_rows)
    many = np.searchsorted(owner[at], class_rows, side="right") - first
    job = np.repeat(np.arange(len(class_rows)), many)
    cell = np.arange(len(job)) + np.repeat(first - (np.cumsum(many) - many), many)
    return Ways(job, pool[cell], count[cell], steps_per_s[cell])


def _lasting(ledger: Ledger, rows: IntArray, way: Ways) -> FloatArray:
    """Part of each way's time that becomes work that lasts: less than 1 where the market takes machines back (w,)."""
    if not any(state.pool.market is Market.SPOT for state in ledger.fleet.pools):
        return np.ones(len(way.job))
    assert ledger.standing is not None, "somebody asks"
    rules = ledger.standing.rules
    records = [ledger.jobs[JobId(job_id)] for job_id in ledger.columns.job_id[rows].tolist()]
    restart_s = np.array([ledger.restart_s(job, rules) for job in records], dtype=np.float64)
    return lasting(ledger.fleet.pools, ledger.now, Runs(way.pool, way.count, restart_s[way.job]))


def _steps_done(ledger: Ledger, rows: IntArray) -> FloatArray:
    """By the last report and the speed since: reports are a while ago, and a solve looks at now."""
    columns = ledger.columns
    if not columns.pools:
        return columns.steps[rows]
    here = ledger.classes.rates[columns.runs_as[rows], columns.pool[rows]]  # of a waiting job: never used
    done: FloatArray = columns.steps[rows] + here * np.maximum(ledger.now - columns.steps_at[rows], 0.0)
    return np.minimum(done, columns.steps_total[rows])


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
    limit_s = standing.rules.owed_limit_s
    cycle.ledger.columns.settle_all(cycle.now, limit_s)
    _resize(cycle, proposal)
    _entitle(cycle.ledger, proposal)
    standing.memory = proposal.memory
    standing.proposal, standing.solved_at = proposal, cycle.now
    standing.quote = Quote(np.array(proposal.prices), proposal.price_unit, proposal.exchange)
    return True


def _resize(cycle: Cycle, proposal: Proposal) -> None:
    """Elastic jobs take the sizes that the answer gives them: of several on one type, the one given most.

    What is owed evens out the rest. A job whose place is being made keeps its size until it has started there.
    """
    ledger = cycle.ledger
    if not ledger.classes.elastic_forms:
        return
    given: dict[JobId, dict[str, dict[int, float]]] = {}
    for job_id, pool, count, share in zip(
        proposal.job_ids, proposal.pool_rows, proposal.counts, proposal.shares, strict=True
    ):
        job, row = ledger.jobs.get(job_id), ledger.fleet.pool_row(proposal.pools[pool])
        if job is not None and job.request.sizes and row is not None:
            sizes = given.setdefault(job_id, {}).setdefault(ledger.fleet.pools[row].pool.shape.accelerator, {})
            sizes[count] = sizes.get(count, 0.0) + count * share
    for job_id, by_type in given.items():
        claim = cycle.claims.get(job_id)
        if claim is not None and claim.exchange:
            continue
        job = ledger.jobs[job_id]
        before = job.class_row
        ledger.resize(job, {name: max(sizes, key=lambda size: (sizes[size], -size)) for name, sizes in by_type.items()})
        if job.class_row != before:
            drop_claim(cycle, job_id)  # a reservation of another size


def _entitle(ledger: Ledger, proposal: Proposal) -> None:
    """Replace the entitlements of the jobs that were asked about; owed time follows them to their new pools."""
    columns = ledger.columns
    if not columns.counts_owed:
        return
    asked = columns.slots_of(np.array(proposal.asked, np.int64))
    asked = asked[asked >= 0]
    fresh = np.zeros_like(columns.entitled)
    row_of = [ledger.fleet.pool_row(pool_id) for pool_id in proposal.pools]
    rows = np.array([-1 if row is None else row for row in row_of], np.int64)[np.array(proposal.pool_rows, np.int64)]
    slots = columns.slots_of(np.array(proposal.job_ids, np.int64))
    kept = (slots >= 0) & (rows >= 0)
    given = np.array(proposal.counts, np.float64) * np.array(proposal.shares, np.float64)
    np.add.at(fresh, (slots[kept], rows[kept]), given[kept])
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
    if policy is None or _waits_for_plan(cycle, job):
        return False
    ledger, pools = cycle.ledger, cycle.ledger.fleet.pools
    capacity = np.array([float(state.capacity) for state in pools])
    ways = ways_of(ledger.classes, np.array([job.class_row]), capacity)
    if not len(ways.job):
        return False
    quote = cycle.standing.quote
    if quote is None or len(quote.prices) != len(pools):
        quote = Quote(np.zeros(len(pools)), "none", 1.0)
    best, _ = choose(policy, newcomer_of(ledger, job, ways, capacity), quote)
    if best is None:
        return False
    pool = int(ways.pool[best])
    if job.request.sizes:
        ledger.resize(job, {pools[pool].pool.shape.accelerator: int(ways.count[best])})
    place = ledger.fleet.find(pool, ledger.classes.forms[ledger.class_of(job).form])
    if place is None:
        return False
    # Until the next solve it is entitled to what it was given.
    ledger.columns.settle(job.slot, cycle.now)
    ledger.columns.entitled[job.slot] = 0.0
    ledger.columns.entitled[job.slot, pool] = ways.count[best]
    start(cycle, job, pool, place)
    return True


def _waits_for_plan(cycle: Cycle, job: JobRecord) -> bool:
    """Whether a plan will be made sooner than a start that it might undo would cost."""
    standing = cycle.standing
    if not standing.plans:
        return False
    next_at = cycle.asked_at + standing.rules.resolve_min_s
    return bool(cycle.in_flight) or next_at - cycle.now <= cycle.ledger.restart_s(job, standing.rules)


def newcomer_of(ledger: Ledger, job: JobRecord, ways: Ways, capacity: FloatArray) -> Newcomer:
    """What a policy is told of a waiting job that may run in these ways."""
    assert ledger.standing is not None
    columns, slot = ledger.columns, job.slot
    usd_per_h = np.array([state.pool.usd_per_h / state.pool.shape.accelerators for state in ledger.fleet.pools])
    return Newcomer(
        steps_per_s=ways.steps_per_s,
        pool=ways.pool,
        count=ways.count,
        weight=job.request.weight,
        capacity=capacity,
        usd_per_h=usd_per_h,
        remaining_steps=max(0.0, float(columns.steps_total[slot]) - job.steps),
        done_steps=job.steps,
        length_s=float(columns.duration_s[slot]),
        waited_s=ledger.now - float(columns.submitted_at[slot]),
        restart_s=ledger.restart_s(job, ledger.standing.rules),
        priority_class=job.request.priority_class,
    )
