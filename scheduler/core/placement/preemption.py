"""Preemption: waiting jobs, and jobs owed time on another pool, take places of running ones.

`compare_with_running` runs once a round and after each solve, over all active jobs, as arrays. The ordering states
which running jobs are weaker; `search.find_victims` chooses the first of them whose leaving makes room for the gang,
and `take_place` asks them to leave. The parameters (hysteresis, minimum runtime) are in `rules.py`.
"""

from collections import Counter

from scheduler.core.placement.attempt_lifecycle import ask_to_leave
from scheduler.core.placement.reservations import drop_reservation, open_reservation, settle_reservation
from scheduler.core.placement.search import FoundPlace, find_free_place, find_victims
from scheduler.core.state.ledger import JobRecord, Ledger
from scheduler.core.state.remaining_work import fetching_s
from scheduler.core.state.stopping import StopFor, have_had_their_part, may_be_stopped
from scheduler.core.state.working_set import Cycle, Incumbents
from walras.states import Reason

#: Maximum of challengers per pool and round. More would hardly fit, and this bounds the work.
CHALLENGERS_MAX = 64
#: Maximum of incumbents compared with each challenger, weakest first, and of challengers in a row that displace none.
INCUMBENTS_MAX = 256
FAILURES_MAX = 8


# ------------------------------------------------------------------------------------------------ who may be stopped


def is_movable(cycle: Cycle, job: JobRecord, pool: int, fetch_s: float = 0.0) -> bool:
    """Returns whether a running job may be stopped, and gains enough from leaving its place for one on this pool.

    `fetch_s` is the time that the new place needs to download the job's inputs, seconds.
    """
    return may_be_stopped(cycle.ledger, job, StopFor.PLACE) is None and cycle.ordering.may_move(job, pool, fetch_s)


def take_place(cycle: Cycle, job: JobRecord, found: FoundPlace, detail: str, *, move_detail: str = "") -> None:
    """Nominates the job for the place, and asks the victims, and the job itself if it runs, to leave.

    Args:
    cycle: what the handlers work with.
    job: it waits, or moves.
    found: the place, reserved for the job from now on, and its victims.
    detail: why the victims have to leave, in words for their users.
    move_detail: why the job leaves its old place, if it runs.
    """
    drop_reservation(cycle, job.job_id)
    reservation = open_reservation(cycle, job, found.pool, found.place, preempting=True)
    for victim in found.victims:
        reason = Reason.POLICY_MOVED if victim.job_id in found.moved else Reason.POLICY_PREEMPTED
        ask_to_leave(cycle, victim, StopFor.PLACE, reason, detail=detail)
    ask_to_leave(cycle, job, StopFor.PLACE, Reason.POLICY_MOVED, detail=move_detail)
    settle_reservation(cycle, reservation)


def repays_restarts(ledger: Ledger, job: JobRecord, found: FoundPlace) -> bool:
    """Returns whether the job may take the place: all who leave theirs restart, and restarts take a part of the time.

    Where the job takes what its project owns and has lent, this is no exchange: nothing is weighed.
    """
    count = sum(count for _, count in found.place)
    if job.waits and ledger.usage.owned.fits(ledger, job, found.pool, count):
        return True
    return not have_had_their_part(ledger, [*found.victims, job] if job.holds else found.victims)


# ------------------------------------------------------------------------------------------------ preempt


def compare_with_running(cycle: Cycle) -> None:
    """Compares waiting jobs, and jobs owed time on another pool, with running ones, and preempts where it pays."""
    ordering = cycle.ordering
    if not ordering.compares:
        return
    incumbents: dict[int, Incumbents] = {}
    failures: Counter[int] = Counter()
    hopeless: set[tuple[int, int]] = set()  # (class, pool) where a job failed: later jobs of the class are weaker still
    fitting: set[tuple[int, int]] = set()  # (class, pool) where any job of the class finds room, until a place is taken
    head: JobRecord | None = None
    for job, pool in ordering.challengers(CHALLENGERS_MAX):
        if ordering.strict and head is not None and job is not head and _still_waits(cycle, head):
            return  # under a strict order no job may pass the head, neither by preemption nor by filling
        head = job
        if failures[pool] >= FAILURES_MAX:
            continue
        in_vain = (job.class_row, pool) in hopeless and job.waits and job.job_id not in cycle.reservations
        if in_vain or not _preempt_for(cycle, job, pool, incumbents, fitting):
            hopeless.add((job.class_row, pool))
            failures[pool] += 1
            if all(failures[state.row] >= FAILURES_MAX for state in cycle.ledger.fleet.pools):
                return


def preempt_now(cycle: Cycle, job: JobRecord) -> None:
    """Finds a place for a job of a high priority class at once, without waiting for the round to end."""
    for pool in cycle.ordering.pools_of(job):
        if _still_waits(cycle, job):
            _preempt_for(cycle, job, pool, {}, set())


def _still_waits(cycle: Cycle, job: JobRecord) -> bool:
    return job.waits and job.job_id not in cycle.queues.nominated


def _preempt_for(
    cycle: Cycle, job: JobRecord, pool: int, incumbents: dict[int, Incumbents], fitting: set[tuple[int, int]]
) -> bool:
    """Takes a place on the pool, if the job is entitled to it and the jobs there may be asked to leave.

    Returns False if no job there can be displaced. `incumbents` caches those read so far by pool. `fitting` has (class,
    pool) where room was found.
    """
    ordering = cycle.ordering
    if job.job_id in cycle.queues.nominated or not (job.waits or is_movable(cycle, job, pool)):
        return True
    count = cycle.ledger.count_on(job, pool)
    if not count:
        return False  # the pool's machines have lost what it needs since its share was computed
    limit = cycle.limits.reached(job, count, pool)
    is_kept_off = bool(cycle.closed_to(job, pool))  # other jobs of its class may not be
    if limit is None and job.waits and (job.class_row, pool) in fitting and not is_kept_off:
        return True
    place = find_free_place(cycle, job, pool)
    if place is not None and job.waits:
        fitting.add((job.class_row, pool))
        return True  # the fill pass will start it
    if place is not None:
        found: FoundPlace | None = FoundPlace(pool, place)
    else:
        if pool not in incumbents:
            incumbents[pool] = ordering.incumbents(pool, INCUMBENTS_MAX)
        weaker = incumbents[pool].weaker_than(job)
        if limit is not None:  # only jobs counted against the same limit make room
            weaker = [each for each in weaker if cycle.limits.counts_against(each, limit)]
        found = find_victims(cycle, job, pool, weaker)
    if found is None:
        return False
    if job.holds and not is_movable(cycle, job, pool, fetching_s(cycle.ledger, job, found.place)):
        return True  # it gains too little for a place without its inputs; other jobs may gain enough
    if not repays_restarts(cycle.ledger, job, found):
        return False
    move_detail = _move_detail(cycle, job, pool, ordering.move_reason) if job.holds else ""
    take_place(cycle, job, found, f"job {job.job_id} {ordering.preempt_reason}", move_detail=move_detail)
    fitting.clear()
    return True


def _move_detail(cycle: Cycle, job: JobRecord, pool: int, text: str) -> str:
    name, columns = cycle.ledger.fleet.pools[pool].name, cycle.ledger.columns
    if pool != columns.pool[job.slot]:
        return f"{text} {name}"
    return f"{text} {name}: {cycle.ledger.count_on(job, pool)} accelerators instead of {columns.count[job.slot]:g}"
