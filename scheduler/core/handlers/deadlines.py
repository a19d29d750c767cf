"""Deadlines: a job runs where its policy has it until the last moment to move to safe machines and end in time.

Safe machines are the cheapest on-demand or owned ones; the moment includes boot time and one restart. Then the job
moves there (or stays there), and machines are rented for it, whatever its value per hour. Cheapest means least cost
until the job has ended, whole machines counted: waiting longer would save little on spot and leave only faster
machines, which cost more. The moment is computed conservatively: from the steps of the newest checkpoint, the speed
there, and a margin. It recedes as the job makes progress, so it is computed again only when it has come. A job that was
moved stays until it has ended, because going back would cost the restarts that the margin was kept for. While its
machines do not come it takes any free place where it ends no later, and others at the last moment for those. Where no
safe pool is fast enough, a spot pool that is counts as one. Jobs without a stated value that may run on spot
are handled by their slack instead (`handlers/spot_holding.py`).
"""

from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from math import ceil, inf

from scheduler.core.commands import Rent
from scheduler.core.events import JobDeadlineChanged
from scheduler.core.placement.attempt_lifecycle import ask_to_leave, start_attempt
from scheduler.core.placement.reservations import drop_reservation, open_reservation
from scheduler.core.placement.search import find_free_place, find_victims
from scheduler.core.placement.where import may_hold
from scheduler.core.state.fleet import PoolState
from scheduler.core.state.ledger import JobRecord, Ledger
from scheduler.core.state.remaining_work import from_checkpoint_s, remaining_here_s
from scheduler.core.state.stopping import StopFor, may_be_stopped
from scheduler.core.state.working_set import Cycle
from walras.cluster import Market, PoolId
from walras.contract import SECONDS_PER_HOUR
from walras.job_request import JobId
from walras.states import Reason

#: Margin beyond one restart: a fraction of the time needed, plus a constant (seconds).
_MARGIN_PART = 0.05
_MARGIN_S = 30.0
#: Minimum of seconds before a deadline is checked again.
_RECHECK_S = 5.0
#: Seconds after which a job is asked again that the plan gave an owned place.
_AGAIN_S = 60.0


@dataclass(frozen=True, slots=True)
class DeadlineOutlook:
    """How a job with a deadline would certainly end in time."""

    pool: int
    pool_id: PoolId
    #: Seconds: from now to its end there, moving and booting included; the margin on top; and the time to the deadline.
    needs_s: float
    margin_s: float
    left_s: float
    #: Cost of the machines until the job has ended, USD; 0 on owned ones.
    usd: float
    #: Whether the job runs there already.
    is_there: bool
    #: Row of the class as which it would run there; for an elastic job it fixes the gang size.
    class_row: int

    @property
    def slack_s(self) -> float:
        """Seconds until the last moment to move."""
        return self.left_s - self.needs_s - self.margin_s

    @property
    def is_feasible(self) -> bool:
        """Returns whether the job would end in time, even if that uses up the margin."""
        return self.left_s >= self.needs_s

    @property
    def is_safe(self) -> bool:
        """Returns whether it would end in time if the work takes a little longer (checkpoints, warm-up)."""
        return self.left_s >= self.needs_s + reserve_s(self.needs_s)

    @property
    def is_at_risk(self) -> bool:
        return not self.is_feasible if self.is_there else self.slack_s <= 0


def settle_deadlines(cycle: Cycle) -> None:
    """Runs before other starts: jobs whose last moment has come get machines that cannot be reclaimed."""
    heap, secured = cycle.deadlines.heap, cycle.deadlines.secured
    while heap and heap[0][0] <= cycle.now:
        job = cycle.ledger.jobs.get(heappop(heap)[1])
        if job is not None and job.deadline_pool < 0:
            _check_deadline(cycle, job)
    for job_id in secured - cycle.ledger.jobs.keys():
        secured.discard(job_id)
        cycle.deadlines.stranded.pop(job_id, None)
    jobs = map(cycle.ledger.jobs.__getitem__, secured)
    for job in sorted(jobs, key=lambda job: (-job.request.priority_class, job.job_id)):
        _reconsider(cycle, job)
        if job.deadline_pool >= 0:
            _move(cycle, job)


def entitle_secured_jobs(cycle: Cycle) -> None:
    """Runs after a solve: jobs that were moved stay entitled to that pool and to nothing else."""
    for job_id in sorted(cycle.deadlines.secured):
        job = cycle.ledger.jobs.get(job_id)
        if job is not None and _has_a_better_place(cycle, job):
            let_go(cycle, job)
            heappush(cycle.deadlines.heap, (cycle.now + _AGAIN_S, job_id))
            cycle.timers.set(cycle.now + _AGAIN_S, "deadline")
        elif job is not None:
            _entitle(cycle, job)


def _has_a_better_place(cycle: Cycle, job: JobRecord) -> bool:
    """Returns whether a plan gives the job an owned place while no machine is free, or on its way, in its safe pool."""
    pools, columns = cycle.ledger.fleet.pools, cycle.ledger.columns
    owned = [row for row in columns.entitled[job.slot].nonzero()[0].tolist() if not pools[row].rented]
    if not (cycle.policy.plans and job.waits and owned) or pools[job.deadline_pool].awaited:
        return False
    return find_free_place(cycle, job, job.deadline_pool) is None


def deadline_outlook(
    cycle: Cycle, job: JobRecord, without: int = -1, class_row: int | None = None
) -> DeadlineOutlook | None:
    """Returns the cheapest safe pool where the job would end in time, with some reserve if there is one.

    If safe pools are too slow for that, returns the cheapest spot pool that is not; if it would end in time nowhere,
    where it would end first. For an elastic job it is with its gang size there.
    Returns None without a deadline, or if length or speed are unknown.

    Args:
    cycle: what the handlers work with.
    job: whose deadline it is.
    without: row of a pool to leave out.
    class_row: the one class as which it may run; None: any size that an elastic job may have.
    """
    if job.request.deadline_at == inf or job.request.steps is None:
        return None
    ledger = cycle.ledger
    sizes = gang_classes(ledger, job) if class_row is None else (class_row,)
    pools = [state for state in ledger.fleet.pools if state.row != without]
    found = [each for row in sizes for state in pools if (each := _outlook_on(cycle, job, state, row)) is not None]
    in_time = [each for each in found if each.is_safe] or [each for each in found if each.is_feasible]
    if not in_time and job.request.preemptible:
        risky = [_outlook_on(cycle, job, state, row, on_spot=True) for row in sizes for state in pools]
        in_time = [each for each in risky if each is not None and each.is_feasible]
    if in_time:
        return min(in_time, key=lambda each: (each.usd, -each.slack_s, not each.is_there))
    return max(found, key=lambda each: (each.slack_s, each.is_there), default=None)


def gang_classes(ledger: Ledger, job: JobRecord) -> tuple[int, ...]:
    """Returns the rows of the classes as which the job may run: its own first, then other sizes of an elastic job.

    A job that holds machines of several pools, or is forked, keeps the class it has.
    """
    if not job.request.sizes or job.request.spreads:
        return (job.class_row,)
    return tuple(dict.fromkeys((job.class_row, *ledger.classes.options(job.class_row))))


def _outlook_on(
    cycle: Cycle, job: JobRecord, state: PoolState, class_row: int, *, on_spot: bool = False
) -> DeadlineOutlook | None:
    """Returns the job's outlook on this pool as one of this class; None if it cannot run there, or the pool is not one
    of spot machines where those are asked for (`on_spot`), or is one where they are not.
    """
    ledger = cycle.ledger
    job_class = ledger.classes.classes[class_row]
    shape = ledger.classes.shapes[job_class.shape]
    rate, count = float(job_class.rates[state.row]), int(shape.counts[state.row])
    if rate <= 0 or not count or (state.pool.market is Market.SPOT) is not on_spot or not _may_have(state, count):
        return None
    left_s = job.request.deadline_at - ledger.now
    machines = ceil(count / state.pool.shape.accelerators)
    usd_per_s = machines * state.pool.usd_per_h / SECONDS_PER_HOUR if state.rented else 0.0
    restart_s = ledger.restart_s(job, ledger.policy.rules)
    is_there = _held_on(ledger, job, state.row) == count
    if is_there:
        # Until it is held there for its deadline, the policy may move it, and it would have to come back.
        needs_s = remaining_here_s(ledger, job)
        margin_s = 2 * restart_s + state.pool.boot_s + reserve_s(needs_s)
    else:
        is_free = find_free_place(cycle, job, state.row, shape) is not None
        if not is_free and (not state.rented or state.pool.drained):
            return None  # other jobs hold the owned ones
        stop_s = job.request.grace_s if job.holds else 0.0
        needs_s = from_checkpoint_s(job, rate) + restart_s + stop_s + (0.0 if is_free else state.pool.boot_s)
        margin_s = restart_s + reserve_s(needs_s)
    usd = needs_s * usd_per_s
    return DeadlineOutlook(state.row, state.pool.pool_id, needs_s, margin_s, left_s, usd, is_there, class_row)


def reserve_s(needs_s: float) -> float:
    """Returns the seconds kept in reserve in case the work takes a little longer than its speed says."""
    return _MARGIN_S + _MARGIN_PART * needs_s


def _may_have(state: PoolState, count: int) -> bool:
    machines = max(state.pool.quota, state.machines) if state.rented else state.machines
    return machines * state.pool.shape.accelerators >= count


def _check_deadline(cycle: Cycle, job: JobRecord) -> None:
    """Secures the job if its last moment has come, else sets the next check."""
    found, left_s = deadline_outlook(cycle, job), job.request.deadline_at - cycle.now
    is_risky = found is not None and cycle.ledger.fleet.pools[found.pool].pool.market is Market.SPOT
    is_due = found is not None and (found.slack_s <= 0 or is_risky) and left_s > 0
    reservation = cycle.reservations.get(job.job_id)
    if reservation is not None and job.waits and not cycle.ledger.fleet.pools[reservation.pool].rented:
        is_due = False  # others leave an owned place for it
    if found is not None and is_due and cycle.ledger.fleet.pools[found.pool].rented:
        secure(cycle, job, found.pool, found.class_row)
        return
    wait_s = _RECHECK_S + (left_s / 10 if found is None or found.slack_s <= 0 else found.slack_s)
    if left_s > 0:
        heappush(cycle.deadlines.heap, (cycle.now + min(wait_s, left_s), job.job_id))
        cycle.timers.set(cycle.deadlines.heap[0][0], "deadline")


def secure(cycle: Cycle, job: JobRecord, pool: int, class_row: int) -> None:
    """Moves the job to this pool as one of this class and keeps it there, whatever the policy decides."""
    resize_gang(cycle, job, class_row)
    job.deadline_pool = pool
    job.is_secured = job.holds and int(cycle.ledger.columns.pool[job.slot]) == pool
    cycle.deadlines.secured.add(job.job_id)
    _entitle(cycle, job)
    cycle.solves.problem_changed = True


def resize_gang(cycle: Cycle, job: JobRecord, class_row: int) -> None:
    """Changes the job's class from its next start on, and drops a reservation for a gang of another size."""
    if class_row != job.class_row:
        drop_reservation(cycle, job.job_id)
        cycle.ledger.reclass(job, class_row)
        cycle.backlog.rebuild_queues = True


def _reconsider(cycle: Cycle, job: JobRecord) -> None:
    """Looks again at a job that waits for the machines of its pool.

    It takes a free place where it ends no later. At the last moment for machines of another pool it waits for those
    instead. Once its deadline has passed and no machine is on its way, the policy decides as for any other job.
    """
    state = cycle.ledger.fleet.pools[job.deadline_pool]
    if job.is_secured or _takes_free_place(cycle, job):
        return
    if job.waits and job.request.deadline_at <= cycle.now and not state.awaited:
        drop_reservation(cycle, job.job_id)
        let_go(cycle, job)
        cycle.solves.problem_changed = cycle.backlog.rebuild_queues = True
        return
    if not state.rent_failures or state.awaited or state.pool.market is Market.SPOT:
        return
    found = deadline_outlook(cycle, job, job.deadline_pool)
    if found is None or not cycle.ledger.fleet.pools[found.pool].rented:
        return
    if found.slack_s <= 0 < found.left_s:
        drop_reservation(cycle, job.job_id)
        secure(cycle, job, found.pool, found.class_row)
        return
    failures, look_at = cycle.deadlines.stranded.get(job.job_id, (0, 0.0))
    if failures != state.rent_failures or look_at <= cycle.now:
        look_at = cycle.now + max(found.slack_s, _RECHECK_S)
        cycle.deadlines.stranded[job.job_id] = state.rent_failures, look_at
        cycle.timers.set(look_at, "deadline")


def _takes_free_place(cycle: Cycle, job: JobRecord) -> bool:
    """Secures a waiting job on a pool with a free place, if it ends there no later than where it waits for machines."""
    pools = cycle.ledger.fleet.pools
    if not job.waits or job.ready_at > cycle.now or job.job_id in cycle.reservations:
        return False
    state = pools[job.deadline_pool]
    awaited = _outlook_on(cycle, job, state, job.class_row, on_spot=state.pool.market is Market.SPOT)
    coming = bool(state.awaited)
    found = deadline_outlook(cycle, job, job.deadline_pool)
    if found is None or (coming and awaited is not None and found.needs_s > awaited.needs_s):
        return False
    if found.class_row != job.class_row and not found.is_feasible:
        return False
    shape = cycle.ledger.classes.shape(found.class_row)
    if find_free_place(cycle, job, found.pool, shape) is None:
        return False
    if shape.counts[found.pool] > cycle.limits.room(job, found.pool, lasts=True):
        return False
    if not pools[found.pool].rented and _is_wanted_above(cycle, job, found.pool):
        return False
    secure(cycle, job, found.pool, found.class_row)
    return True


def _is_wanted_above(cycle: Cycle, job: JobRecord, pool: int) -> bool:
    """Returns whether a job of a higher class waits that a free place of the pool would hold."""
    columns, failed = cycle.ledger.columns, cycle.ledger.retries.failed
    slots, tried = columns.waiting_above(job.request.priority_class), set[tuple[int, int]]()
    rows = (each[slots].tolist() for each in (columns.job_id, columns.class_row, columns.entity))
    for job_id, class_row, entity in zip(*rows, strict=True):
        # Jobs of one class and user find the same place, unless machines are closed to one of them alone.
        if (class_row, entity) in tried and job_id not in failed and not cycle.bookings.declared:
            continue
        each = cycle.ledger.jobs[JobId(job_id)]
        if each.waits and each.job_id not in cycle.reservations:
            tried.add((class_row, entity))
            if find_free_place(cycle, each, pool) is not None:
                return True
    return False


def leave_pool(cycle: Cycle, row: int) -> None:
    """Lets jobs that were to move to this pool choose another safe one, because no machines come to it any more."""
    for job_id in sorted(cycle.deadlines.secured & cycle.ledger.jobs.keys()):
        job = cycle.ledger.jobs[job_id]
        if job.deadline_pool == row and not job.is_secured:
            job.deadline_pool = -1
            cycle.deadlines.secured.discard(job_id)
            cycle.deadlines.stranded.pop(job_id, None)
            heappush(cycle.deadlines.heap, (cycle.now, job_id))


def _entitle(cycle: Cycle, job: JobRecord) -> None:
    columns = cycle.ledger.columns
    columns.settle(job.slot, cycle.now)
    columns.entitled[job.slot] = 0.0
    columns.entitled[job.slot, job.deadline_pool] = cycle.ledger.count_on(job, job.deadline_pool)


def _move(cycle: Cycle, job: JobRecord) -> None:
    """Moves the job onto its safe pool if there is a place, else rents one; until then it runs on where it is."""
    ledger, row = cycle.ledger, job.deadline_pool
    is_there = job.holds and int(ledger.columns.pool[job.slot]) == row
    if (is_there and not _is_resized(ledger, job)) or (job.holds and job.revoked is not None):
        return
    reservation = cycle.reservations.get(job.job_id)
    if reservation is not None and reservation.pool == row:
        return
    if not may_hold(cycle, job, row, ledger.count_on(job, row)):
        return  # its project holds all that its limit allows
    place = find_free_place(cycle, job, row) if not is_there else None
    if is_there and (found := find_victims(cycle, job, row, ())) is not None:
        place = found.place  # what it holds there counts as free
    if place is None:
        _rent(cycle, job, ledger.fleet.pools[row])
    elif job.waits and job.ready_at <= cycle.now:
        drop_reservation(cycle, job.job_id)
        start_attempt(cycle, job, row, place)
    elif may_be_stopped(ledger, job, StopFor.OWN_DEADLINE) is None:
        drop_reservation(cycle, job.job_id)
        open_reservation(cycle, job, row, place, preempting=True)
        where = f"to {ledger.fleet.pools[row].pool.pool_id}"
        if is_there:
            where = f"from {ledger.columns.count[job.slot]:g} to {ledger.count_on(job, row)} accelerators"
        detail = f"{where}, to end before its deadline"
        ask_to_leave(cycle, job, StopFor.OWN_DEADLINE, Reason.POLICY_MOVED, detail=detail)


def _rent(cycle: Cycle, job: JobRecord, state: PoolState) -> None:
    """Rents machines for all jobs that wait for this pool, less those free there and those requested."""
    if not state.rented or cycle.spending.everything.closed or cycle.now < state.rent_not_before:
        return
    count = accelerators_awaited(cycle, state.row)
    coming = sum(state.awaited.values())
    needed = ceil((count - state.free) / state.pool.shape.accelerators) - coming
    missing = min(needed, state.quota - state.machines - coming)
    if missing > 0:
        # Unique, though several jobs may ask at one instant, or one may ask again: a cloud answers a token only once.
        token = f"{state.pool.pool_id}@{cycle.now:.6f}/deadline-{job.job_id}-{state.machines + coming}"
        state.awaited[token] = missing
        cycle.commands.append(Rent(token, state.pool.pool_id, missing))


def accelerators_awaited(cycle: Cycle, row: int, *, held: bool = False) -> int:
    """Returns the accelerators that jobs moving to the pool, or awaiting requested spot machines there, still lack.

    If `held`, accelerators that these jobs hold there already are included.
    """
    ledger, counts = cycle.ledger, dict[JobId, int]()
    for job_id in cycle.deadlines.secured & ledger.jobs.keys():
        job = ledger.jobs[job_id]
        if job.deadline_pool == row and (not _held_on(ledger, job, row) or _is_resized(ledger, job)):
            counts[job_id] = ledger.count_on(job, row)
    for job_id, hold in cycle.deadlines.market.holds.items():
        if hold.asked == row and job_id in ledger.jobs:
            counts[job_id] = ledger.classes.count(hold.asked_as, row)
    if held:
        return sum(counts.values())
    return sum(max(0, count - _held_on(ledger, ledger.jobs[job_id], row)) for job_id, count in counts.items())


def _is_resized(ledger: Ledger, job: JobRecord) -> bool:
    """Returns whether the job is to have a gang of another size where it runs."""
    return bool(job.request.sizes) and not job.request.spreads and ledger.is_resized(job)


def _held_on(ledger: Ledger, job: JobRecord, row: int) -> int:
    """Returns the accelerators that the job holds in the pool."""
    return int(ledger.columns.count[job.slot]) if job.holds and int(ledger.columns.pool[job.slot]) == row else 0


def on_job_deadline_changed(cycle: Cycle, job: JobRecord, event: JobDeadlineChanged) -> None:
    """Judges the job anew, as if it was just submitted with this deadline.

    If it was moved for an earlier deadline, the policy decides again until the last moment for the new one comes. A job
    that holds machines by its slack chooses again at once.
    """
    watch, is_later = cycle.deadlines, event.deadline_at > job.request.deadline_at
    job.request = replace(job.request, deadline_at=event.deadline_at)
    cycle.ledger.columns.deadline_at[job.slot] = event.deadline_at
    watch.heap[:] = [entry for entry in watch.heap if entry[1] != job.job_id]
    heapify(watch.heap)
    hold = watch.market.holds.get(job.job_id)
    if hold is not None and event.deadline_at < inf:
        hold.look_at = cycle.now
    elif is_later or not job.is_secured:
        watch.market.holds.pop(job.job_id, None)
        let_go(cycle, job)
    if event.deadline_at < inf and job.deadline_pool < 0:
        heappush(watch.heap, (cycle.now, job.job_id))
    cycle.solves.problem_changed = cycle.backlog.rebuild_queues = True


def let_go(cycle: Cycle, job: JobRecord) -> None:
    """Ends the job's assignment to a pool for its deadline, until that is decided anew."""
    job.deadline_pool, job.is_secured = -1, False
    cycle.deadlines.secured.discard(job.job_id)
    cycle.deadlines.stranded.pop(job.job_id, None)
