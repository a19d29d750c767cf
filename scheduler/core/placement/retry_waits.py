"""Jobs that wait for another machine than those on which they failed (`state/retry_places.py`).

Such a job is passed by in the queue of the pool where it would have a place otherwise, so that others may have that
place; it keeps its reservation of what becomes free. If the pool has no other machine that could hold it, it is
excluded from the pool, as if the pool were booked, so that no policy plans it there. Both end by themselves, at the
latest when the delay ends, or when the other machines are gone.
"""

from scheduler.core.state.ledger import JobRecord
from scheduler.core.state.retry_places import has_others
from scheduler.core.state.working_set import Cycle, enqueue_job
from walras.cluster import NodeId

#: Maximum of seconds that a job waits for another machine after a first failure (at most one round).
DELAY_MOST_S = 30.0


def blame_place(cycle: Cycle, job: JobRecord, node_id: NodeId | None) -> None:
    """Lets the job's next attempt wait a little after its backoff for another machine, because this one failed."""
    if node_id is None:
        return
    until_at = max(cycle.now, job.ready_at) + min(cycle.policy.rules.round_s, DELAY_MOST_S)
    cycle.ledger.retries.blame(job.job_id, node_id, until_at)
    if until_at > cycle.now:
        cycle.timers.set(until_at, "ready", job.job_id)


def waits_for_other_machine(cycle: Cycle, job: JobRecord, pool: int) -> bool:
    """Takes a job out of the pool's queues if it failed where it would have a place. Returns whether it did."""
    if not cycle.avoided(job, pool):
        return False
    if not _would_have_place(cycle, job, pool):
        return False
    cycle.ledger.retries.waiting.add((job.job_id, pool))
    if not has_others(cycle.ledger.fleet, pool, cycle.ledger.shape_of(job), cycle.closed_to(job, pool)):
        cycle.ledger.columns.kept_off.add((job.job_id, pool))
        cycle.solves.problem_changed = True
    return True


def let_waiting_jobs_go_on(cycle: Cycle) -> None:
    """Queues jobs again that were passed by, if the reason is gone or another machine is free."""
    retries, fleet = cycle.ledger.retries, cycle.ledger.fleet
    for job_id, pool in sorted(retries.waiting):
        job = cycle.ledger.jobs.get(job_id)
        if job is not None and job.waits and cycle.avoided(job, pool) and _would_have_place(cycle, job, pool):
            closed = cycle.closed_to(job, pool)
            if fleet.find(pool, cycle.ledger.shape_of(job), closed=closed) is None:
                continue
        retries.waiting.discard((job_id, pool))
        if (job_id, pool) in cycle.ledger.columns.kept_off:
            cycle.ledger.columns.kept_off.discard((job_id, pool))
            cycle.solves.problem_changed = True
        if job is not None:
            enqueue_job(cycle, job)


def _would_have_place(cycle: Cycle, job: JobRecord, pool: int) -> bool:
    """Returns whether there is a place for the job, as it is or smaller, including machines on which it failed."""
    fleet, booked = cycle.ledger.fleet, cycle.booked_to(job, pool)
    return any(fleet.find(pool, shape, closed=booked) is not None for shape in cycle.ledger.shapes_of(job))
