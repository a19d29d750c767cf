"""The reason that keeps a job waiting, as one sentence for people: who goes first, who holds places, how long.

`pending_reasons` lists every constraint with its numbers; this module says which of them decides, and names the jobs
behind it and their times. Every active job that does not run has such a sentence. Nothing here changes the core.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from math import inf

import numpy as np

from scheduler.core.core import SchedulerCore
from scheduler.core.explain.pending_reasons import PendingReason, first_pending_reason, plan_taken
from scheduler.core.state.fleet import PoolState
from scheduler.core.state.ledger import JobRecord
from scheduler.core.state.remaining_work import remaining_here_s, remaining_on_best_s
from walras.cluster import PoolId
from walras.job_request import JobId
from walras.states import Reason
from walras.units import format_length

#: Number of jobs that are named, and number of jobs ahead that are examined.
_NAMED_MAX, _AHEAD_LOOKED_AT = 3, 500
#: Reasons about places: the sentence says who holds them and who goes first. Other reasons explain themselves.
_OF_PLACES = frozenset(
    {
        Reason.WAIT_CAPACITY,
        Reason.WAIT_FRAGMENTED,
        Reason.WAIT_PRICE,
        Reason.WAIT_PRIORITY,
        Reason.WAIT_FAIRSHARE,
        Reason.WAIT_RESERVATION,
        Reason.WAIT_PREEMPTING,
    }
)


def dominant_reason(core: SchedulerCore, job_id: JobId, expected: Mapping[PoolId, int] | None = None) -> str:
    """Returns why an active job does not run; for a running job with several plans, which plan it runs; else ""."""
    job = core.ledger.jobs.get(job_id)
    first = first_pending_reason(core, job_id, expected or {})
    if job is None or first is None:
        return "" if job is None else plan_taken(core, job)
    if job.holds or first.reason not in _OF_PLACES:
        return _in_words(core, job, first)
    pools = _pools_by_preference(core, job)
    ahead = _ahead(core, job, pools)
    holders = _holders(core, job, pools)
    is_renting = any(state.awaited for state in pools)
    if is_renting:
        return f"machines for it are on their way: {_sizes(core, job, pools)}"
    if ahead:
        return f"{_go_first(core, job, ahead)}{_and_hold(core, holders)}"
    if holders:
        return _held_by(core, job, pools, holders)
    return f"{_sizes(core, job, pools)}; {first.detail.split('; ')[0]}"


def _in_words(core: SchedulerCore, job: JobRecord, first: PendingReason) -> str:
    """Returns the sentence for reasons that are not about places."""
    if first.reason is Reason.WAIT_DEPENDENCY:
        return f"it waits for {_named(job.blocked_by)} to end{_times(core, job.blocked_by)}"
    if first.reason in (Reason.WAIT_BACKOFF, Reason.WAIT_NOT_BEFORE):
        why = "it failed recently, and restarts" if first.reason is Reason.WAIT_BACKOFF else "it was submitted to start"
        return f"{why} in {format_length(max(job.ready_at - core.ledger.now, 0.0))}"
    if first.reason is Reason.HOLD_USER:
        return "its owner holds it; it cannot start before it is released"
    if first.reason is Reason.HOLD_ADMIN:
        return "an operator holds it; it cannot start before it is released"
    if first.reason is Reason.HOLD_REPEATED_FAILURE:
        return "it failed repeatedly in the same way; it cannot start before it is released"
    return first.detail or str(first.reason)


def _pools_by_preference(core: SchedulerCore, job: JobRecord) -> list[PoolState]:
    """Returns the pools that can hold the job: where it has a share first, then by speed."""
    ledger = core.ledger
    job_class = ledger.class_of(job)
    counts, entitled = ledger.classes.shapes[job_class.shape].counts, ledger.columns.entitled[job.slot]
    rows = np.lexsort((-job_class.rates, -entitled)).tolist()
    return [ledger.fleet.pools[row] for row in rows if counts[row]]


def _ahead(core: SchedulerCore, job: JobRecord, pools: Sequence[PoolState]) -> list[JobRecord]:
    """Returns waiting jobs that go before this one on its best pool, the most urgent first; [] if none does."""
    ordering, columns, queues = core.cycle.ordering, core.ledger.columns, core.cycle.queues
    # Computing a key settles the job's row. This is undone, because a question must not change later decisions.
    before = columns.settled_at[job.slot], columns.attained_s[job.slot], columns.owed[job.slot].copy()
    keys = dict(ordering.keys(job))
    columns.settled_at[job.slot], columns.attained_s[job.slot], columns.owed[job.slot] = before
    for state in pools:
        if state.row not in keys or not queues.busy([state.row]):
            continue
        mine = keys[state.row]
        found = sorted(
            entry
            for _, queue in queues.of(state.row)
            for entry in queue.first(_AHEAD_LOOKED_AT)
            if entry[0] < mine and entry[1] != job.job_id and queues.is_waiting(entry[1])
        )
        if found:
            return [core.ledger.jobs[job_id] for job_id in dict.fromkeys(job_id for _, job_id in found)]
    return []


def _holders(core: SchedulerCore, job: JobRecord, pools: Sequence[PoolState]) -> list[JobRecord]:
    """Returns the jobs that hold machines of the pools that this job could use; those that end first come first."""
    jobs = core.ledger.jobs
    found = {job_id for state in pools for machine in state.members.values() for job_id in machine.holders}
    holding = [jobs[job_id] for job_id in found if job_id != job.job_id and jobs[job_id].holds]
    return sorted(holding, key=lambda each: (remaining_here_s(core.ledger, each), each.job_id))


def _go_first(core: SchedulerCore, job: JobRecord, ahead: Sequence[JobRecord]) -> str:
    """Returns a text such as `jobs 18 and 19 go first: they need 20 min, you 9 h`."""
    verb = "goes" if len(ahead) == 1 else "go"
    slots = np.array([each.slot for each in (*ahead[:_NAMED_MAX], job)])
    needs = remaining_on_best_s(core.ledger, slots, core.ledger.columns.attained_s[slots])
    theirs, own = float(needs[:-1].max()), float(needs[-1])
    text = f"{_named([each.job_id for each in ahead])} {verb} first"
    if theirs < inf and own < inf:
        need = "it needs" if len(ahead) == 1 else "they need"
        return f"{text}: {need} {format_length(theirs)}, you {format_length(own)}"
    higher = [each for each in ahead if each.request.priority_class > job.request.priority_class]
    if higher:
        return f"{text}: {'its' if len(ahead) == 1 else 'their'} priority is higher"
    return text


def _and_hold(core: SchedulerCore, holders: Sequence[JobRecord]) -> str:
    if not holders:
        return ""
    verb = "has" if len(holders) == 1 else "have"
    return f"; {_named([each.job_id for each in holders])} {verb} the places now{_first_ends(core, holders)}"


def _held_by(core: SchedulerCore, job: JobRecord, pools: Sequence[PoolState], holders: Sequence[JobRecord]) -> str:
    verb = "holds" if len(holders) == 1 else "hold"
    named = _named([each.job_id for each in holders])
    return f"{named} {verb} what it needs ({_sizes(core, job, pools)}){_first_ends(core, holders)}"


def _first_ends(core: SchedulerCore, holders: Sequence[JobRecord]) -> str:
    left_s = remaining_here_s(core.ledger, holders[0])
    if left_s == inf:
        return "; their remaining times are unknown" if len(holders) > 1 else "; its remaining time is unknown"
    subject = "it" if len(holders) == 1 else f"job {holders[0].job_id}, the first of them,"
    return f"; {subject} ends in about {format_length(left_s)}"


def _sizes(core: SchedulerCore, job: JobRecord, pools: Sequence[PoolState]) -> str:
    """Returns what the job needs and what is free of it; only its need if no pool can hold it or it has plans."""
    if not pools:
        return f"it needs {job.request.text}"
    counts = core.ledger.classes.shapes[core.ledger.class_of(job).shape].counts
    free: dict[tuple[int, str], int] = {}
    for state in pools:
        way = counts[state.row], state.pool.shape.accelerator
        free[way] = free.get(way, 0) + state.free
    if job.request.plans:
        names = dict.fromkeys(accelerator for _, accelerator in free)
        idle = (f"{sum(free[way] for way in free if way[1] == name)} x {name}" for name in names)
        return f"it needs {job.request.text}; {', '.join(idle)} free"
    told = (f"{count} x {accelerator}, {idle} free" for (count, accelerator), idle in free.items())
    return f"it needs {' or '.join(islice(told, _NAMED_MAX))}"


def _times(core: SchedulerCore, job_ids: Iterable[JobId]) -> str:
    known = [core.ledger.jobs[job_id] for job_id in job_ids if job_id in core.ledger.jobs]
    left_s = max((remaining_here_s(core.ledger, each) for each in known), default=inf)
    return f", in about {format_length(left_s)}" if left_s < inf else ""


def _named(job_ids: Iterable[JobId]) -> str:
    """Returns `job 18`, `jobs 18 and 19`, or `jobs 3, 4, 7 and 12 others`."""
    ids = list(job_ids)
    if len(ids) == 1:
        return f"job {ids[0]}"
    shown, more = ids[:_NAMED_MAX], len(ids) - _NAMED_MAX
    if more > 0:
        return f"jobs {', '.join(map(str, shown))} and {more} more"
    return f"jobs {', '.join(map(str, shown[:-1]))} and {shown[-1]}"
