"""Learning speeds by leases whose steps count: real jobs, run for a short while where their kind was never seen.

Every start on an unmeasured pool is such a lease by itself. This file adds the deliberate ones, at round ends: one cell
(kind, pool) at a time per free part of the profiling budget, only where the kind has work enough left to repay it.
"""

from functools import partial
from math import inf

from scheduler.core.attempts import revoke
from scheduler.core.claims import drop_claim, form_of, open_claim, settle_claim
from scheduler.core.cycle import Cycle
from scheduler.core.discipline import UNWANTED, BySharesOwed
from scheduler.core.fleet import Place
from scheduler.core.ledger import JobRecord
from scheduler.core.rounds import INCUMBENTS_MAX, victims_of
from scheduler.core.throughput import Source
from walras.ids import Kind
from walras.reasons import Reason
from walras.states import JobState


def explore(cycle: Cycle) -> None:
    """Open profiling leases within the budget, most work first."""
    discipline = cycle.discipline
    if not isinstance(discipline, BySharesOwed) or cycle.standing.rules.profiling_share <= 0:
        return
    budget = _budget(cycle)
    for pool, candidates in _cells(cycle, discipline):
        for job in candidates:
            count = form_of(cycle, job).counts[pool]
            if count <= budget and _open_lease(cycle, job, pool):
                budget -= count
                break


def _budget(cycle: Cycle) -> float:
    """Accelerators that may still start profiling; at least one gang at a time, however small the fleet."""
    ledger = cycle.ledger
    capacity = sum(state.capacity for state in ledger.fleet.pools)
    profiling = sum(
        job.placement.accelerators for job in ledger if job.profiling_until > ledger.now and job.placement is not None
    )
    share = cycle.standing.rules.profiling_share * capacity - profiling
    return max(share, 0.0) if profiling else max(share, float(capacity))


def _cells(cycle: Cycle, discipline: BySharesOwed) -> list[tuple[int, list[JobRecord]]]:
    """(pool, jobs that could measure it) for every unmeasured cell worth it, most remaining work first."""
    by_kind: dict[Kind, list[JobRecord]] = {}
    for job in cycle.ledger:
        if job.hold_reason is None and not job.blocked_by and not job.state.is_final:
            by_kind.setdefault(job.request.kind, []).append(job)
    cells: list[tuple[float, str, int, list[JobRecord]]] = []
    for kind, jobs in by_kind.items():
        if not any(_has_choice(cycle, job) for job in jobs):
            continue  # it runs where it must: knowing its speed would decide nothing
        work_s = sum(_remaining_s(cycle, job) for job in jobs)
        if work_s < cycle.standing.rules.profiling_payback * cycle.ledger.restart_s(jobs[0], cycle.standing.rules):
            continue
        for pool, state in enumerate(cycle.ledger.fleet.pools):
            known = any(cycle.ledger.class_of(job).sources[pool] == Source.MEASURED for job in jobs)
            learning = any(int(cycle.ledger.columns.pool[job.slot]) == pool for job in jobs)
            claimed = any(claim.pool == pool for claim in cycle.claims.values())
            if not state.capacity or known or learning or claimed:
                continue
            able = [job for job in jobs if discipline.tier(job, pool) != UNWANTED and _may_go(cycle, job)]
            if able:
                able.sort(key=lambda job: (not job.waits, -_remaining_s(cycle, job), job.job_id))
                cells.append((-work_s, kind, pool, able))
    return [(pool, able) for _, _, pool, able in sorted(cells, key=lambda cell: cell[:3])]


def _has_choice(cycle: Cycle, job: JobRecord) -> bool:
    """More than one pool with machines can run the job."""
    rates = cycle.ledger.class_of(job).rates
    return len([state for state in cycle.ledger.fleet.pools if state.capacity and rates[state.row] > 0]) > 1


def _remaining_s(cycle: Cycle, job: JobRecord) -> float:
    """Seconds left on the best pool; an hour when the length is unknown."""
    best = cycle.ledger.class_of(job).best_rate
    if best <= 0:
        return 0.0
    return 3600.0 if job.request.steps is None else max(0.0, job.request.steps - job.steps) / best


def _may_go(cycle: Cycle, job: JobRecord) -> bool:
    """Waiting, or running long enough elsewhere, with work left to make the trip worth while."""
    rules = cycle.standing.rules
    if job.job_id in cycle.lines.spoken_for or job.ready_at > cycle.now:
        return False
    if _remaining_s(cycle, job) < rules.profiling_s + cycle.ledger.restart_s(job, rules):
        return False
    if job.waits:
        return True
    settled = job.state is JobState.RUNNING and job.revoked is None and job.request.preemptible
    return settled and cycle.now - job.running_at >= rules.min_runtime_s and cycle.now >= job.profiling_until


def _open_lease(cycle: Cycle, job: JobRecord, pool: int) -> bool:
    """Claim a place for the lease: a free one, else that of an incumbent who has had its minimum run."""
    place: Place | None = cycle.ledger.fleet.find(pool, form_of(cycle, job))
    victims: list[JobRecord] = []
    if place is None:
        assert cycle.discipline is not None
        incumbents = cycle.discipline.incumbents(pool)[:INCUMBENTS_MAX]
        found = victims_of(cycle, job, pool, incumbents, partial(_may_disturb, cycle, job))
        if found is None:
            return False
        place, victims = found
    drop_claim(cycle, job.job_id)
    claim = open_claim(cycle, job, pool, place, exchange=True)
    pool_id = cycle.ledger.fleet.pools[pool].pool.pool_id
    for victim in victims:
        revoke(
            cycle, victim, Reason.POLICY_PREEMPTED, detail=f"the speed of {job.request.kind} on {pool_id} is unknown"
        )
    if job.holds:
        revoke(cycle, job, Reason.POLICY_MOVED, detail=f"to learn its speed on {pool_id}")
    settle_claim(cycle, claim)
    return True


def _may_disturb(cycle: Cycle, job: JobRecord, incumbent: JobRecord) -> bool:
    rules = cycle.standing.rules
    ran_s = cycle.now - incumbent.running_at if incumbent.running_at < inf else 0.0
    return (
        incumbent.request.priority_class <= job.request.priority_class
        and ran_s >= rules.min_runtime_s
        and cycle.now >= incumbent.profiling_until
        and _remaining_s(cycle, incumbent) >= cycle.ledger.restart_s(incumbent, rules)
    )
