"""Builds a `Problem` from the ledger: a snapshot of eligible jobs, their configurations and the pools for a policy.

On spot pools a configuration's speed is multiplied by the fraction of its time that becomes lasting work. The
revocation rate of each pool (a zone of a shape) is estimated from the pool's own record, with a prior pooled over all
spot pools: jobs leave a zone that revokes machines, and come back as its record ages. A planning policy also reads
lengths, restart costs, pinned jobs and places over several pools (`plan_problem`).

Shapes: n jobs, c columns, p pools, w configurations (ways to run one job on one pool).
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from math import ceil, inf

import numpy as np

from optimizer.classes.segments import max_by
from optimizer.decision import MultiPoolGangs, append_columns
from optimizer.problem import BoolArray, Columns, Entities, FloatArray, IntArray, Jobs, Pools, Problem
from optimizer.renting.lifetime_laws import RateBelief, pooled_prior, useful_parts
from scheduler.core.ordering.plan_ordering import PlanOrdering
from scheduler.core.state.fleet import MachineCondition, PoolState
from scheduler.core.state.job_classes import JobClasses
from scheduler.core.state.ledger import JobRecord, Ledger
from scheduler.core.state.remaining_work import (
    UNKNOWN_LENGTH_S,
    guesses_by_record,
    note_lengths_exceeded,
    steps_left,
    steps_made,
)
from scheduler.core.state.stopping import StopFor, may_be_stopped
from walras.cluster import Market, billed_until
from walras.contract import SECONDS_PER_HOUR
from walras.job_request import JobId

#: Seconds. A machine that is paid for one round plus this counts as free of charge: jobs can leave before its next
#: billing step.
PREPAID_MARGIN_S = 120.0


def revocation_rates(pools: list[PoolState], now: float) -> FloatArray:
    """Returns revocations per machine-hour of each pool; 0 where machines are not spot (p,)."""
    seen = [(state.lives.revocations, state.lives.lived_s(now) / SECONDS_PER_HOUR) for state in pools]
    spot = [row for row, state in enumerate(pools) if state.pool.market is Market.SPOT]
    rates = np.zeros(len(pools))
    prior = pooled_prior([seen[row] for row in spot])
    for row in spot:
        rates[row] = RateBelief(prior.prior_revocations, prior.prior_h).seen(*seen[row]).rate_per_h
    return rates


def lasting_fractions(
    pools: list[PoolState], now: float, pool: IntArray, count: FloatArray, restart_s: FloatArray
) -> FloatArray:
    """Returns the part of each configuration's time that becomes lasting work (w,).

    A gang stops with any of its machines. Configurations have a pool, accelerators, and the seconds that a restart
    costs the job, each (w,).
    """
    parts = np.ones(len(pool))
    rates = revocation_rates(pools, now)
    risky = np.flatnonzero(rates[pool] > 0)
    if not len(risky):
        return parts
    pool = pool[risky]
    size = np.array([float(max(state.pool.shape.accelerators, 1)) for state in pools])
    notice_h = np.array([state.pool.notice_s for state in pools])[pool] / SECONDS_PER_HOUR
    boot_h = np.array([state.pool.boot_s for state in pools])[pool] / SECONDS_PER_HOUR
    restart_h = restart_s[risky] / SECONDS_PER_HOUR
    machines = np.ceil(count[risky] / size[pool])
    # The time of a checkpoint alone is unknown; a restart includes one, so it is an upper bound.
    parts[risky] = useful_parts((restart_h, restart_h + boot_h, notice_h), rates[pool] * machines)
    return parts


def build_problem(ledger: Ledger) -> Problem:
    """Returns the problem: eligible jobs in ascending id, one column per job, pool and possible gang size."""
    columns, pools = ledger.columns, ledger.fleet.pools
    ledger.columns.settle_all(ledger.now, inf)
    note_lengths_exceeded(ledger)
    rows = np.flatnonzero(columns.active & columns.eligible)
    rows = rows[np.argsort(columns.job_id[rows], kind="stable")]
    capacity = np.array([float(state.capacity) for state in pools])
    size = np.array([float(state.pool.shape.accelerators) for state in pools])
    rentable = np.array([float(_machines_to_be_had(state, ledger.now)) for state in pools]) * size
    way = configurations_of(ledger.classes, columns.class_row[rows], np.maximum(capacity, rentable))
    kept_off = columns.kept_off | _kept_off_owned(ledger) if ledger.usage.owned.claims else columns.kept_off
    if kept_off:
        way = _without_ways(kept_off, columns.job_id[rows], way)
    job, pool, count = way.job, way.pool, way.count
    in_one_pool = columns.pool[rows]
    if columns.parts:
        in_one_pool = np.where(np.isin(rows, list(columns.parts)), -1, in_one_pool)
    running = (in_one_pool[job] == pool) & (columns.count[rows][job] == count)
    gang = np.full(len(rows), np.inf)
    np.minimum.at(gang, job, count)
    done = steps_made(ledger, rows)
    return Problem(
        at=ledger.now,
        jobs=Jobs(
            job_id=columns.job_id[rows],
            weight=columns.weight[rows],
            gang=np.where(np.isfinite(gang), gang, 1.0),
            remaining_steps=steps_left(ledger, rows, done),
            done_steps=done,
            submitted_at=columns.submitted_at[rows],
            attained_s=columns.attained_s[rows],
            deadline_at=columns.deadline_at[rows],
            value_usd_per_h=_values(ledger, rows),
            priority_class=columns.priority_class[rows],
            entity=columns.entity[rows],
        ),
        columns=Columns(
            job=job,
            steps_per_s=way.steps_per_s * _lasting_parts(ledger, rows, way),
            use_column=np.arange(len(job)),
            use_pool=pool,
            use_count=np.where(running, count, _taken(way, capacity, rentable)),
            running=running,
        ),
        pools=Pools(
            pool_id=tuple(state.name for state in pools),
            accelerator=tuple(state.pool.shape.accelerator for state in pools),
            capacity=capacity,
            rentable=rentable,
            machine_size=size,
            usd_per_h=np.array([state.pool.usd_per_h for state in pools]) / size,
            rented=np.where([state.rented for state in pools], np.minimum(capacity, rentable), 0.0),
            coming=np.array([float(sum(state.awaited.values())) for state in pools]) * size,
            boot_s=np.array([state.pool.boot_s for state in pools]),
            minimum_billing_s=np.array([state.pool.minimum_billing_s for state in pools]),
            prepaid=_prepaid(ledger),
            counted=_counted(ledger),
        ),
        entities=_entities(ledger, rows, gang, float(capacity.sum())),
        limits=ledger.usage.limits(ledger.entities, tuple(state.pool for state in pools)),
    )


def _entities(ledger: Ledger, rows: IntArray, gang: FloatArray, capacity: float) -> Entities:
    """Returns projects and users with weights and limits, adjusted if the policy makes up for past use."""
    usage = ledger.usage
    entities = usage.entities(ledger.entities, ledger.entity_parents, capacity)
    if not (usage.makes_up and usage.shares and len(entities)):
        return entities
    wanted, demand = np.where(np.isfinite(gang), gang, 0.0), np.zeros(len(entities))
    entity = ledger.columns.entity[rows]
    parent = np.asarray(entities.parent)
    while (some := entity >= 0).any():
        np.add.at(demand, entity[some], wanted[some])
        entity = np.where(some, parent[entity], -1)
    return usage.made_up(entities, demand, capacity, ledger.now)


def _machines_to_be_had(state: PoolState, now: float) -> int:
    """Returns how many rented machines the pool may hold: its quota; while requests fail, those it has or awaits.

    What takes jobs beyond a lowered quota counts too, since it is paid for. Of a drained pool nothing is to be held.
    """
    there = ceil(state.capacity / max(state.pool.shape.accelerators, 1)) if state.rented else 0
    most = state.quota if state.pool.drained else max(state.quota, there)
    if state.rent_not_before <= now or not state.rent_refused:
        return most
    return min(most, state.machines + sum(state.awaited.values()))


def _values(ledger: Ledger, rows: IntArray) -> FloatArray:
    """Returns the value of an hour of each job in USD, as job, user or project state it; nan if none does (n,)."""
    columns = ledger.columns
    stated = columns.value_usd_per_h[rows]
    if not ledger.policy.rules.values or not np.isnan(stated).any():
        return stated
    by_entity = np.full(len(ledger.entities), np.nan)
    names, values = list(ledger.entities), ledger.policy.rules.values
    for value in sorted(values, key=lambda each: bool(each.user)):  # a user's overrides the project's
        whose = f"{value.project}/{value.user}"
        for row, name in enumerate(names):
            if name == whose if value.user else name.startswith(f"{value.project}/"):
                by_entity[row] = value.usd_per_h
    return np.where(np.isnan(stated), by_entity[columns.entity[rows]], stated)


def _prepaid(ledger: Ledger) -> FloatArray:
    """Returns accelerators of machines that are paid for until after the next plan (p,); empty if there are none."""
    found, soon_at = np.zeros(len(ledger.fleet.pools)), ledger.now + ledger.policy.rules.round_s + PREPAID_MARGIN_S
    for state in ledger.fleet.pools:
        if not state.rented or not (state.pool.billing_step_s or state.pool.minimum_billing_s):
            continue
        for machine in state.members.values():
            if machine.token and machine.condition is MachineCondition.UP:
                paid = billed_until(state.pool, machine.paid_since, ledger.now) > soon_at
                found[state.row] += machine.size if paid else 0.0
    return found if found.any() else np.zeros(0)


def _counted(ledger: Ledger) -> FloatArray:
    """Returns the factor by which an accelerator of each pool counts against a share (p,); empty if all are 1."""
    if ledger.usage.spot_factor == 1.0:
        return np.zeros(0)
    return np.array([ledger.usage.factor(state) for state in ledger.fleet.pools])


@dataclass(frozen=True, slots=True)
class Configurations:
    """Parallel arrays of configurations, sorted by job, then pool, then gang size (w,)."""

    job: IntArray
    pool: IntArray
    count: FloatArray
    steps_per_s: FloatArray
    #: Accelerators of the machines over which the gang is spread; 0: it need not be spread.
    room: FloatArray


def configurations_of(classes: JobClasses, class_rows: IntArray, most: FloatArray) -> Configurations:
    """Returns configurations of jobs of these classes (n,) on pools that may come to have `most` accelerators (p,)."""
    ways = classes.ways(most)
    first = ways.first[class_rows]
    many = ways.first[class_rows + 1] - first
    job = np.repeat(np.arange(len(class_rows)), many)
    cell = np.arange(len(job)) + np.repeat(first - (np.cumsum(many) - many), many)
    return Configurations(job, ways.pool[cell], ways.count[cell], ways.steps_per_s[cell], ways.room[cell])


def _taken(way: Configurations, capacity: FloatArray, rentable: FloatArray) -> FloatArray:
    """Returns the accelerators that each configuration takes of its pool if the gang starts there (w,).

    A gang that is spread over more machines than a rented pool has takes all of these machines: they must be rented,
    though the accelerators of fewer would be enough.
    """
    lacks = (rentable[way.pool] > 0) & (way.room > capacity[way.pool])
    return np.where(lacks, np.maximum(way.count, way.room), way.count)


def _kept_off_owned(ledger: Ledger) -> set[tuple[int, int]]:
    """Returns (job, pool) pairs: the job could not leave again, and such jobs have all there that nobody else owns."""
    lasting = [job for job in ledger if may_be_stopped(ledger, job, StopFor.LOAN) is not None]
    held = [(job, ledger.parts_of(job)) for job in lasting if job.holds]
    found = set[tuple[int, int]]()
    for job in lasting:
        for pool in ledger.class_of(job).pools if job.waits else ():
            count = min(job.request.sizes or (ledger.count_on(job, pool),))
            for tally, most in ledger.usage.owned.lasting_most(ledger, job, pool, count):
                taken = sum(
                    many
                    for other, parts in held
                    if not tally.claim.is_of(other)
                    for there, many in parts
                    if tally.pools[there]
                )
                if count > most - taken:
                    found.add((int(job.job_id), pool))
    return found


def _without_ways(kept_off: Set[tuple[int, int]], job_ids: IntArray, way: Configurations) -> Configurations:
    """Returns the configurations except those in pools that are booked for others, or that others own."""
    pairs = zip(job_ids[way.job].tolist(), way.pool.tolist(), strict=True)
    able = np.array([pair not in kept_off for pair in pairs], dtype=np.bool_)
    return Configurations(way.job[able], way.pool[able], way.count[able], way.steps_per_s[able], way.room[able])


def _lasting_parts(ledger: Ledger, rows: IntArray, way: Configurations) -> FloatArray:
    """Returns the fraction of each configuration's time that becomes lasting work: below 1 on spot pools (w,)."""
    if not any(state.pool.market is Market.SPOT for state in ledger.fleet.pools):
        return np.ones(len(way.job))
    rules = ledger.policy.rules
    records = [ledger.jobs[JobId(job_id)] for job_id in ledger.columns.job_id[rows].tolist()]
    restart_s = np.array([ledger.restart_s(job, rules) for job in records], dtype=np.float64)
    return lasting_fractions(ledger.fleet.pools, ledger.now, way.pool, way.count, restart_s[way.job])


# ------------------------------------------------------------------------------------------------ asking


def with_multi_pool_columns(ledger: Ledger, problem: Problem, records: list[JobRecord]) -> Problem:
    """Returns the problem with columns for jobs that may run, run or will run over several pools."""
    requests = [job.request for job in records]
    mixes = np.array([request.mixed and not request.shares for request in requests], dtype=np.bool_)
    forks = np.array([float(request.fork_max) for request in requests])
    extended = replace(problem, jobs=replace(problem.jobs, mixes=mixes, fork_max=forks))
    rows, rates, uses = [], [], []
    for row, job in enumerate(records):
        stays = job.holds and job.revoked is None
        parts = ledger.parts_of(job) if stays else ledger.planned_parts(job)
        job_class = ledger.classes.classes[ledger.class_over(job, parts)] if parts else None
        if job_class is not None and job_class.parts:
            rows.append(row)
            rates.append(job_class.speeds[parts[0][0]])
            uses.append([dict(parts).get(pool, 0) for pool in range(len(problem.pools))])
    if rows:
        spread = _gangs(rows, rates, uses).columns
        no_other = replace(extended.columns, running=extended.columns.running & ~np.isin(extended.columns.job, rows))
        extended, _ = append_columns(
            replace(extended, columns=no_other), replace(spread, running=np.ones(len(spread), dtype=np.bool_))
        )
    return _with_listed_gangs(ledger, extended, records, dict(zip(rows, uses, strict=True)))


def _with_listed_gangs(
    ledger: Ledger, problem: Problem, records: list[JobRecord], held: Mapping[int, list[int]]
) -> Problem:
    """Returns the problem with the plans that jobs state, and with gangs over several pools of jobs that share their
    batches, except those that they hold (accelerators by pool).
    """
    rows, rates, uses = [], [], []
    most = [state.capacity for state in ledger.fleet.pools]
    for row, job in enumerate(records):
        stated = ledger.classes.plan_ways(job.class_row) if job.request.plans else ()
        for parts, steps_per_s in stated or ledger.classes.mixes(job.class_row, most):
            use = [0] * len(problem.pools)
            for pool, count in parts:
                use[pool] = count
            if use != held.get(row) and all(count <= problem.pools.capacity[pool] for pool, count in parts):
                rows.append(row)
                rates.append(steps_per_s)
                uses.append(use)
    if not rows:
        return problem
    listed = _gangs(rows, rates, uses)
    gang = np.where(np.isin(np.arange(len(records)), problem.columns.job), problem.jobs.gang, inf)
    np.minimum.at(gang, listed.job, listed.use.sum(axis=1))
    gang = np.where(np.isfinite(gang), gang, problem.jobs.gang)
    return append_columns(replace(problem, jobs=replace(problem.jobs, gang=gang)), listed.columns)[0]


def _gangs(rows: list[int], rates: list[float], uses: list[list[int]]) -> MultiPoolGangs:
    return MultiPoolGangs(np.array(rows, dtype=np.int64), np.array(rates), np.array(uses, dtype=np.float64))


def plan_problem(ledger: Ledger, ordering: PlanOrdering) -> Problem:
    """Returns the problem with all that a planning policy reads.

    A job on its way to its planned place counts as running there, so that a half-executed plan does not look like a new
    situation.
    """
    rules, problem = ledger.policy.rules, build_problem(ledger)
    records = [ledger.jobs[JobId(job_id)] for job_id in problem.jobs.job_id.tolist()]
    slots = np.array([job.slot for job in records], dtype=np.int64)
    stays = np.array([job.holds and job.revoked is None for job in records], dtype=np.bool_)
    pinned = [
        (there and bool(may_be_stopped(ledger, job, StopFor.PLACE) or ordering.protects(job)))
        or job.job_id in ordering.awaiting_lease
        for job, there in zip(records, stays.tolist(), strict=True)
    ]
    extended = replace(
        problem,
        jobs=replace(
            problem.jobs,
            length_s=guesses_by_record(ledger, slots),
            restart_s=np.array([ledger.restart_s(job, rules) for job in records], dtype=np.float64),
            pinned=np.array(pinned, dtype=np.bool_),
            unstoppable=_unstoppable(ledger, records) if problem.pools.held.any() else problem.jobs.unstoppable,
            usual_weight=_usual_weights(ledger, problem, slots),
        ),
        columns=replace(problem.columns, running=_running_columns(ledger, problem, slots, stays)),
        pools=replace(problem.pools, capacity=problem.pools.capacity + _free_beside_pairs(ledger, records)),
        finished_s=np.array(ledger.finished_s, dtype=np.float64),
    )
    return with_multi_pool_columns(ledger, extended, records) if ledger.spreading else extended


def _free_beside_pairs(ledger: Ledger, records: list[JobRecord]) -> FloatArray:
    """Returns the free accelerators of each pool that count as taken, because each of two jobs on one holds it (p,)."""
    found, known = np.zeros(len(ledger.fleet.pools)), {job.job_id for job in records}
    for row in {row for job in records if job.request.shared is not None for row, _ in job.place}:
        machine = ledger.fleet.machines[row]
        if machine is not None:
            for devices in machine.shared:
                holders = {job_id for job_id, held in machine.holders.items() if held == devices}
                found[machine.pool] += len(devices) * (holders <= known)
    return np.minimum(found, [float(state.free) for state in ledger.fleet.pools])


def _usual_weights(ledger: Ledger, problem: Problem, slots: IntArray) -> FloatArray:
    """Returns the weights that the jobs' users usually state (n,); an empty array if the policy does not use them."""
    if not ledger.weights.differ(problem.jobs.entity, problem.jobs.weight):
        return ledger.weights.unused()
    jobs, gang = problem.jobs, np.where(np.isfinite(problem.jobs.gang), problem.jobs.gang, 1.0)
    best = max_by(problem.columns.job, problem.columns.steps_per_s, len(jobs))
    left_s = np.divide(jobs.remaining_steps, best, out=np.full(len(jobs), inf), where=best > 0)
    left_s = np.where(np.isfinite(left_s), left_s, np.maximum(jobs.attained_s / gang, UNKNOWN_LENGTH_S))
    # Only what holds machines counts with what it needs: a job costs nothing while it waits.
    needs_s = jobs.attained_s + np.where(ledger.columns.pool[slots] >= 0, gang * left_s, 0.0)
    return ledger.weights.ask(tuple(ledger.entities), jobs.entity, jobs.weight, needs_s, ledger.now)


def _unstoppable(ledger: Ledger, records: list[JobRecord]) -> BoolArray:
    """Returns which jobs could not be asked to leave a machine that is paid for (n,)."""
    return np.array([may_be_stopped(ledger, job, StopFor.MARKET) is not None for job in records], dtype=np.bool_)


def _running_columns(ledger: Ledger, problem: Problem, slots: IntArray, stays: BoolArray) -> BoolArray:
    """Returns the columns in which jobs run, or to which they are on their way (c,)."""
    columns = problem.columns
    if not len(columns):
        return columns.running
    entitled = ledger.columns.entitled[slots]
    bound_for = np.where(entitled.max(axis=1, initial=0.0) > 0, entitled.argmax(axis=1), -1)
    use = np.searchsorted(columns.use_column, np.arange(len(columns)))
    pool = columns.use_pool[use]
    size = ledger.classes.counts[ledger.columns.class_row[slots][columns.job], pool]
    bound = (bound_for[columns.job] == pool) & (columns.use_count[use] == size)
    return np.where(stays[columns.job], columns.running, bound)
