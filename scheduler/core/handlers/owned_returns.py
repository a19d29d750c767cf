"""Owned accelerators for their owners' jobs: free ones at once, lent ones once those who borrow them have stopped.

The policy has the first word: a job that it starts, or has a place for, is left to it. Who it leaves waiting, and fits
what its project owns and does not use, takes a place here at the next event; under a plan once a plan has answered
about it, or after a round. Of those who borrow, the ones of the lowest class leave first, then those that started last.
"""

from collections.abc import Iterable
from itertools import islice

import numpy as np

from scheduler.core.cycle.round import entitle_until_next_plan
from scheduler.core.ordering.plan_ordering import PlanOrdering
from scheduler.core.placement.attempt_lifecycle import start_attempt
from scheduler.core.placement.preemption import INCUMBENTS_MAX, take_place
from scheduler.core.placement.reservations import drop_reservation, reserved_parts
from scheduler.core.placement.search import FoundPlace, find_free_place, find_victims
from scheduler.core.placement.where import may_hold
from scheduler.core.rules import OWED
from scheduler.core.state.ledger import JobRecord
from scheduler.core.state.owned_places import ClaimTally, credit_accelerators
from scheduler.core.state.working_set import Cycle
from walras.job_request import JobId

#: Waiting jobs of an owner that are tried at one event.
_TRIED_MAX = 16


def settle_owned_places(cycle: Cycle) -> None:
    """Runs before the round: gives owners' waiting jobs the places that are theirs."""
    owned, backlog = cycle.ledger.usage.owned, cycle.backlog
    is_due = owned.is_due or cycle.due.compares or cycle.commands or backlog.freed or backlog.arrived
    if not is_due or cycle.policy.rules.mechanism != OWED:
        return  # nothing has happened; or the mechanism of another scheduler starts jobs in lockstep
    jobs = cycle.ledger.jobs
    owned.is_due = any(claim.is_of(jobs[each]) for each in backlog.arrived if each in jobs for claim in owned.claims)
    if owned.is_due:
        cycle.timers.set(cycle.now, "owned")  # only wakes the core: the policy judges them first
    _renew_entitlements(cycle)
    for number in range(len(owned.claims)):
        if _unused(cycle, owned.tallies(cycle.ledger)[number]) < 1:
            continue
        for job in _waiting_jobs(cycle, owned.tallies(cycle.ledger)[number]):
            if job.job_id not in backlog.arrived and not _has_plans_for(cycle, job):
                _take_own(cycle, owned.tallies(cycle.ledger)[number], job)


def _unused(cycle: Cycle, tally: ClaimTally) -> int:
    """Returns the accelerators that the owner's jobs may still take, what others are leaving for them included."""
    claim, ledger = tally.claim, cycle.ledger
    coming = 0
    for job_id, reservation in cycle.reservations.items():
        if claim.is_of(ledger.jobs[job_id]) and not ledger.jobs[job_id].holds:
            coming += sum(count for pool, count in reserved_parts(cycle, reservation) if tally.pools[pool])
    more = credit_accelerators(claim, ledger.usage.owned.credit_s(claim))
    return claim.accelerators + more - tally.held - coming


def _waiting_jobs(cycle: Cycle, tally: ClaimTally) -> list[JobRecord]:
    """Returns some of the owner's jobs that lack nothing but a place: those of the highest class, as the last plan
    ranks them, or by age.
    """
    ledger, columns = cycle.ledger, cycle.ledger.columns
    slots = np.flatnonzero(columns.eligible & (columns.pool < 0))
    slots = slots[tally.owner[columns.entity[slots]]]
    if not len(slots):
        return []
    rank = np.zeros(len(slots))
    if cycle.policy.plans and cycle.policy.proposal is not None:
        known = {job_id: number for number, job_id in enumerate(cycle.policy.proposal.asked)}
        rank = np.array([known.get(JobId(job_id), len(known)) for job_id in columns.job_id[slots].tolist()])
    order = np.lexsort((columns.job_id[slots], columns.submitted_at[slots], rank, -columns.priority_class[slots]))
    jobs = (ledger.jobs[JobId(job_id)] for job_id in columns.job_id[slots[order]].tolist())
    able = (job for job in jobs if job.waits and job.ready_at <= cycle.now and job.job_id not in cycle.queues.nominated)
    return list(islice(able, _TRIED_MAX))


def _has_plans_for(cycle: Cycle, job: JobRecord) -> bool:
    """Returns whether a plan has a place for the job, or may still find one."""
    columns, policy = cycle.ledger.columns, cycle.policy
    if not policy.plans or cycle.now - columns.since_at.item(job.slot) >= policy.rules.round_s:
        return False
    is_answered = policy.proposal is not None and job.job_id in policy.proposal.asked
    return not is_answered or bool(columns.entitled[job.slot].any())


def _take_own(cycle: Cycle, tally: ClaimTally, job: JobRecord) -> None:
    """Starts the job on a free owned place, or asks those who borrow one to leave; does nothing without a place."""
    ledger, unused = cycle.ledger, _unused(cycle, tally)
    able = [pool for pool in ledger.class_of(job).fastest if tally.pools[pool]]
    for pool in able:
        if (count := ledger.count_on(job, pool)) > unused or not may_hold(cycle, job, pool, count):
            continue
        found = _place_on(cycle, tally, job, pool)
        if found is None and _drop_reservations(cycle, tally, job, pool):
            found = _place_on(cycle, tally, job, pool)
        if found is None:
            continue
        if found.victims:
            detail = f"job {job.job_id} has this place: project {tally.claim.owner} owns it"
            take_place(cycle, job, found, detail)
            _entitle(cycle, job, pool)
        else:
            drop_reservation(cycle, job.job_id)
            if cycle.policy.plans:
                entitle_until_next_plan(cycle, job, pool, count)
            start_attempt(cycle, job, pool, found.place)
        cycle.solves.problem_changed = True
        return


def _place_on(cycle: Cycle, tally: ClaimTally, job: JobRecord, pool: int) -> FoundPlace | None:
    place = find_free_place(cycle, job, pool)
    if place is not None:
        return FoundPlace(pool, place)
    return find_victims(cycle, job, pool, _borrowers(cycle, tally, job, pool))


def _borrowers(cycle: Cycle, tally: ClaimTally, job: JobRecord, pool: int) -> Iterable[JobRecord]:
    """Returns the jobs of others on the pool that make room for the owner's job, the first to leave first."""
    jobs, rows = cycle.ledger.jobs, cycle.ledger.fleet.pools[pool].members.values()
    found = {job_id: jobs[job_id] for machine in rows for job_id in machine.holders if jobs[job_id].holds}
    others = [each for each in found.values() if not tally.claim.is_of(each)]
    below_it = [each for each in others if each.request.priority_class <= job.request.priority_class]
    below_it.sort(key=lambda each: (each.request.priority_class, -each.leased_at, -each.job_id))
    return below_it[:INCUMBENTS_MAX]


def _drop_reservations(cycle: Cycle, tally: ClaimTally, job: JobRecord, pool: int) -> bool:
    """Drops what is reserved on the pool for others of its class or below; returns whether something was."""
    found = [
        job_id
        for job_id, reservation in cycle.reservations.items()
        if any(there == pool for there, _ in reserved_parts(cycle, reservation))
        and not tally.claim.is_of(other := cycle.ledger.jobs[job_id])
        and other.request.priority_class <= job.request.priority_class
        and not _is_due(cycle, other)
    ]
    for job_id in found:
        drop_reservation(cycle, job_id)
        cycle.backlog.rebuild_queues = True
    return bool(found)


# ------------------------------------------------------------------------------------------------ places on their way


def _is_due(cycle: Cycle, job: JobRecord) -> bool:
    """Returns whether the job was promised the place that is being freed for it, as an owner's or for its deadline."""
    return job.job_id in cycle.ledger.usage.owned.due or job.deadline_pool >= 0


def _entitle(cycle: Cycle, job: JobRecord, pool: int) -> None:
    """Lets no plan give away the place that is being freed for the job."""
    cycle.ledger.usage.owned.due[job.job_id] = pool
    if isinstance(cycle.ordering, PlanOrdering):
        cycle.ordering.grant_lease(job, pool)


def _renew_entitlements(cycle: Cycle) -> None:
    """Holds on to places that are being freed, whatever an answer to an older question says."""
    due, jobs = cycle.ledger.usage.owned.due, cycle.ledger.jobs
    for job_id, pool in tuple(due.items()):
        if job_id not in cycle.reservations or job_id not in jobs:
            del due[job_id]
        elif not cycle.ordering.is_entitled(jobs[job_id], pool):
            _entitle(cycle, jobs[job_id], pool)
