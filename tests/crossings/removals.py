"""Takes away what a waiting job is said to wait for, in a copy of the core, and sees whether that was the cause."""

import re
from dataclasses import replace
from math import ceil, inf

from optimizer.policy import PolicySpec
from scheduler.core.core import SchedulerCore
from scheduler.core.events import Event, JobCancelled, NodeJoined, PolicyChanged
from scheduler.core.explain.pending_reasons import PendingReason, first_pending_reason
from scheduler.core.rules import StatedValue
from scheduler.core.state.ledger import JobRecord
from scheduler.forecast.core_copy import CoreCopy, CoreSnapshot, snapshot_at_once
from scheduler.forecast.past_jobs import DrawnLengths, PastJobs
from scheduler.forecast.rollout import Rollout, RolloutLimits
from walras.cluster import Market, NodeId, Pool
from walras.job_request import Demand, JobId, JobRequest
from walras.states import Reason

#: Seconds within which the job starts, or waits for something else: a solve, a round, a stop and a boot.
WITHIN_S = 300.0
#: How a job behind another is told of it; it waits for what the other waits for.
_HEAD = re.compile(r"^behind job (\d+), the head of the queue")
#: Reasons that time alone removes.
_OF_TIME = (Reason.WAIT_BACKOFF, Reason.WAIT_NOT_BEFORE, Reason.WAIT_NOT_EVALUATED)


def told_wrongly(core: SchedulerCore, job: JobRecord, now: float) -> str:
    """Returns what the job is said to wait for and does not; empty if it starts, or waits for another reason, without.

    Nothing in the core is changed.
    """
    told = first_pending_reason(core, job.job_id)
    if told is None or told.reason in _OF_TIME:
        return "" if told is not None else f"job {job.job_id} waits at {now:.1f}, and nothing says why"
    head = _HEAD.search(told.detail)
    first = job if head is None else core.ledger.jobs[JobId(int(head[1]))]
    of_first = told if head is None else first_pending_reason(core, first.job_id) or told
    snapshot, events = _without(snapshot_at_once(core, now), first, of_first)
    copy = CoreCopy(replace(snapshot, decided=replace(snapshot.decided, is_changed=True)))
    rollout = Rollout(copy, PastJobs(), DrawnLengths(()), "one")
    rollout.run(RolloutLimits(horizon_s=WITHIN_S), arrivals=False, then=events, until_started=job.job_id)
    rolled = rollout.jobs.get(job.job_id)
    if rolled is None or rolled.starts_at < inf or job.job_id not in copy.core.ledger.jobs:
        return ""
    after = first_pending_reason(copy.core, job.job_id)
    if after is None or _words(after) != _words(told):
        return ""
    now_first = _HEAD.search(after.detail)
    if head is not None and now_first is not None and now_first[1] != head[1]:
        return ""
    return f"job {job.job_id} waits at {now:.1f}: {told.reason}: {told.detail}; and without that: {after.detail}"


def _words(reason: PendingReason) -> tuple[Reason, str]:
    """Returns the reason without its numbers."""
    return reason.reason, re.sub(r"[\d.]+", "", reason.detail)


def _without(snapshot: CoreSnapshot, job: JobRecord, told: PendingReason) -> tuple[CoreSnapshot, list[Event]]:
    """Returns the state without what the job is said to wait for, and what people do about it."""
    at, rules = snapshot.at, snapshot.policy.rules
    match told.reason:
        case Reason.WAIT_QUOTA:
            shares = tuple(replace(share, limits=(), owned=()) for share in snapshot.shares.shares)
            return replace(snapshot, shares=replace(snapshot.shares, shares=shares)), []
        case Reason.WAIT_BUDGET:
            jobs = tuple(replace(each, job=replace(each.job, budget_usd=inf)) for each in snapshot.jobs)
            return replace(snapshot, jobs=jobs, policy=replace(snapshot.policy, rules=replace(rules, budgets=()))), []
        case Reason.WAIT_DEPENDENCY:
            return snapshot, [JobCancelled(at, each) for each in sorted(job.blocked_by)]
        case Reason.CONFIG_EXCEEDS_FLEET if job.request.has_roles and "policy" in told.detail:
            return snapshot, [PolicyChanged(at, PolicySpec("walras"), rules)]
        case Reason.WAIT_BOOKED:
            return replace(snapshot, bookings=()), []
        case Reason.WAIT_PRICE if "rents no more machines" in told.detail:
            worth = (StatedValue(job.request.project, 1000.0),)
            return replace(snapshot, policy=replace(snapshot.policy, rules=replace(rules, values=worth))), []
    return replace(snapshot, fleet=(*snapshot.fleet, *_machines_for_all(snapshot))), []


def _machines_for_all(snapshot: CoreSnapshot) -> list[NodeJoined]:
    """Returns as many more machines of each pool that a waiting job accepts as would hold them all: of rented pools,
    where it accepts no owned one.
    """
    waiting = [each.job for each in snapshot.jobs if each.placement is None]
    wanted = sum(max(use.count for use in uses_of(each)) for each in waiting)
    pools = [event.pool for event in snapshot.fleet if hasattr(event, "pool")]
    owned = [pool for pool in pools if pool.market is Market.OWNED]
    bound_to_rent = [each for each in waiting if not any(may_use(each, pool) for pool in owned)]
    return [
        NodeJoined(snapshot.at, NodeId(f"more-{pool.pool_id}-{number}"), pool.pool_id, "" if pool in owned else "more")
        for pool in pools
        if any(may_use(each, pool) for each in (waiting if pool in owned else bound_to_rent))
        for number in range(ceil(wanted / pool.shape.accelerators) + len(waiting))
    ]


def uses_of(job: JobRequest) -> list[Demand]:
    """Returns what the job may take of one type: its demands, or the parts of its plans."""
    return [use for plan in job.plans for use in plan.uses] or list(job.demands)


def may_use(job: JobRequest, pool: Pool) -> bool:
    """Returns whether the job, or a part of it, may be on machines of the pool."""
    return any(job.accepts_part(use, pool) for use in uses_of(job)) if job.plans else job.accepts(pool)
