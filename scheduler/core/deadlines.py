"""Deadlines held by machines that nobody takes away: while there is time a job runs where it is cheapest; at the last
moment from which it would still end in time on an owned or on-demand machine, boot and one restart included, it is
moved there, and machines are rented for it.

That moment is found from what is safe: steps by the newest checkpoint, the speed there, and a margin. It moves on as
the job makes progress, so it is looked at again only when it has come.
"""

from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil, inf

from scheduler.core.attempts import revoke, start
from scheduler.core.claims import drop_claim, open_claim
from scheduler.core.commands import Rent
from scheduler.core.cycle import Cycle
from scheduler.core.fleet import PoolState
from scheduler.core.ledger import JobRecord, Ledger
from walras.cluster import Market
from walras.ids import PoolId
from walras.reasons import Reason
from walras.states import JobState

#: Kept besides one restart: this part of what is needed, and this long.
_MARGIN_PART = 0.05
_MARGIN_S = 30.0
#: Looked at again at least this much later.
_LOOK_S = 5.0


@dataclass(frozen=True, slots=True)
class Outlook:
    """How a job with a deadline would end in time for sure."""

    pool: int
    pool_id: PoolId
    #: From now to its end there, moving and booting included; what is kept besides; and the time left.
    needs_s: float
    margin_s: float
    left_s: float
    #: It runs there already.
    is_there: bool

    @property
    def slack_s(self) -> float:
        """Until the last moment to move."""
        return self.left_s - self.needs_s - self.margin_s

    @property
    def is_at_risk(self) -> bool:
        return self.left_s < self.needs_s if self.is_there else self.slack_s <= 0


def settle(cycle: Cycle) -> None:
    """Before anything else is started: those whose last moment has come get machines that stay."""
    heap = cycle.deadlines
    while heap and heap[0][0] <= cycle.now:
        job = cycle.ledger.jobs.get(heappop(heap)[1])
        if job is not None and job.sure_pool < 0:
            _look(cycle, job)
    for job_id in sorted(cycle.secured):
        job = cycle.ledger.jobs.get(job_id)
        if job is None:
            cycle.secured.discard(job_id)
        else:
            _move(cycle, job)


def entitle(cycle: Cycle) -> None:
    """An answer has come: those who were moved keep their right to where they are moved to, and to nothing else."""
    for job_id in sorted(cycle.secured):
        job = cycle.ledger.jobs.get(job_id)
        if job is not None:
            _entitle(cycle, job)


def outlook(ledger: Ledger, job: JobRecord) -> Outlook | None:
    """The sure pool where it would end first; None without a deadline, or where length or speed are not known."""
    if job.request.deadline_at == inf or job.request.steps is None or ledger.standing is None:
        return None
    job_class, restart_s = ledger.class_of(job), ledger.restart_s(job, ledger.standing.rules)
    counts, best = ledger.classes.forms[job_class.form].counts, None
    left_s = job.request.deadline_at - ledger.now
    for state in ledger.fleet.pools:
        rate, count = float(job_class.rates[state.row]), int(counts[state.row])
        if rate <= 0 or not count or state.pool.market is Market.SPOT or not _may_have(state, count):
            continue
        is_there = job.holds and int(ledger.columns.pool[job.slot]) == state.row
        if is_there:
            needs_s, margin_s = ledger.remaining_s(job), 0.0
        else:
            is_free = ledger.fleet.find(state.row, ledger.classes.forms[job_class.form]) is not None
            if not is_free and not state.rented:
                continue  # others hold the owned ones: nothing is sure
            work_s = max(0.0, job.request.steps - job.safe_steps) / rate
            stop_s = job.request.grace_s if job.holds else 0.0
            needs_s = work_s + restart_s + stop_s + (0.0 if is_free else state.pool.boot_s)
            margin_s = restart_s + _MARGIN_S + _MARGIN_PART * needs_s
        found = Outlook(state.row, state.pool.pool_id, needs_s, margin_s, left_s, is_there)
        if best is None or (found.slack_s, found.is_there) > (best.slack_s, best.is_there):
            best = found
    return best


def _may_have(state: PoolState, count: int) -> bool:
    machines = max(state.pool.quota, state.machines) if state.rented else state.machines
    return machines * state.pool.shape.accelerators >= count


def _look(cycle: Cycle, job: JobRecord) -> None:
    """Secure the job if it is time, else say when to look again."""
    found, left_s = outlook(cycle.ledger, job), job.request.deadline_at - cycle.now
    is_spot = any(state.pool.market is Market.SPOT for state in cycle.ledger.fleet.pools)
    is_due = found is not None and found.slack_s <= 0 and not found.is_there and is_spot and left_s > 0
    if found is not None and is_due and cycle.ledger.fleet.pools[found.pool].rented:
        job.sure_pool = found.pool
        cycle.secured.add(job.job_id)
        _entitle(cycle, job)
        cycle.dirty = True
        return
    wait_s = _LOOK_S + (left_s / 10 if found is None or found.slack_s <= 0 else found.slack_s)
    if left_s > 0:
        heappush(cycle.deadlines, (cycle.now + min(wait_s, left_s), job.job_id))
        cycle.timers.set(cycle.deadlines[0][0], "deadline")


def _entitle(cycle: Cycle, job: JobRecord) -> None:
    columns = cycle.ledger.columns
    columns.settle(job.slot, cycle.now)
    columns.entitled[job.slot] = 0.0
    columns.entitled[job.slot, job.sure_pool] = cycle.ledger.count_on(job, job.sure_pool)


def _move(cycle: Cycle, job: JobRecord) -> None:
    """Onto its sure pool if there is a place, else rent one; until it is there the job goes on where it is."""
    ledger, row = cycle.ledger, job.sure_pool
    if job.holds and (int(ledger.columns.pool[job.slot]) == row or job.revoked is not None):
        return
    claim = cycle.claims.get(job.job_id)
    if claim is not None and claim.pool == row:
        return
    place = ledger.fleet.find(row, ledger.classes.forms[ledger.class_of(job).form])
    if place is None:
        _rent(cycle, job, ledger.fleet.pools[row])
    elif job.waits and job.ready_at <= cycle.now:
        drop_claim(cycle, job.job_id)
        start(cycle, job, row, place)
    elif job.state is JobState.RUNNING and job.request.preemptible:
        drop_claim(cycle, job.job_id)
        open_claim(cycle, job, row, place, exchange=True)
        pool_id = ledger.fleet.pools[row].pool.pool_id
        revoke(cycle, job, Reason.POLICY_MOVED, detail=f"to {pool_id}, to end before its deadline")


def _rent(cycle: Cycle, job: JobRecord, state: PoolState) -> None:
    """Machines for all that wait for this pool, less those on their way."""
    if not state.rented or cycle.spending.everything.closed or cycle.now < state.rent_not_before:
        return
    waiting = [cycle.ledger.jobs[each] for each in cycle.secured if each in cycle.ledger.jobs]
    count = sum(
        cycle.ledger.count_on(each, state.row)
        for each in waiting
        if each.sure_pool == state.row and not (each.holds and int(cycle.ledger.columns.pool[each.slot]) == state.row)
    )
    needed = ceil(count / state.pool.shape.accelerators) - sum(state.awaited.values())
    missing = min(needed, state.pool.quota - state.machines - sum(state.awaited.values()))
    if missing > 0:
        token = f"{state.pool.pool_id}@{cycle.now:.6f}/deadline"
        state.awaited[token] = missing
        cycle.commands.append(Rent(token, state.pool.pool_id, missing))


def at_risk_text(found: Outlook) -> str:
    """The numbers, in hours."""
    where = f"on {found.pool_id}" + ("" if found.is_there else ", moving there included")
    return f"needs {found.needs_s / 3600.0:.2f} h more {where}; has {found.left_s / 3600.0:.2f} h left"
