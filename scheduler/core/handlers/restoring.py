"""Taking over from a predecessor: a fresh core is told what the tables of a restarted server know.

What is not told starts anew: what jobs are owed, claims on places, the policy's memory. A solve follows at once.
Nothing is commanded: machines go on with what they were doing, and what they do is reported as always.
"""

from heapq import heappush
from math import inf

from scheduler.core.cycle import Cycle
from scheduler.core.events import JobRestored, NodeQuarantined, RentRestored
from scheduler.core.ledger.fleet import Condition
from scheduler.core.ledger.ledger import JobRecord
from scheduler.core.placement.attempts import is_prepared
from walras.reasons import Reason
from walras.states import JobState


def job_restored(cycle: Cycle, event: JobRestored) -> None:
    """A job as it was: in line, held, or with an attempt under way."""
    ledger, columns, request = cycle.ledger, cycle.ledger.columns, event.job
    assert request.job_id not in ledger.jobs, f"job {request.job_id} restored twice"
    if request.declared:
        ledger.classes.declare(request)
    job = ledger.add(request, event.submitted_at)
    cycle.spending.take_job(job, event.spent_usd)
    if request.deadline_at < inf:
        heappush(cycle.deadlines, (event.at, request.job_id))
    columns.settled_at[job.slot] = event.at
    columns.attained_s[job.slot] = event.attained_s
    job.attempt, job.restarts, job.hold_reason = event.attempt, event.restarts, event.hold_reason
    job.steps, job.safe_steps, job.start_steps = event.steps, event.safe_steps, event.safe_steps
    columns.steps[job.slot] = event.steps
    job.state = event.state
    if event.hold_reason is Reason.HOLD_BUDGET:
        cycle.spending.held.add(job.job_id)
    if event.placement is not None:
        _resume_attempt(cycle, job, event)
    else:
        _resume_waiting(cycle, job)
    ledger.set_eligible(job)
    cycle.dirty = True


def _resume_attempt(cycle: Cycle, job: JobRecord, event: JobRestored) -> None:
    ledger, columns, placement = cycle.ledger, cycle.ledger.columns, event.placement
    assert placement is not None
    form = ledger.classes.forms[ledger.class_of(job).form]
    pool = ledger.fleet.pool_row(placement.pool_id)
    assert pool is not None, f"job {job.job_id} is said to run in {placement.pool_id}, which is not declared"
    job.place = ledger.fleet.take_again(job.job_id, placement, form)
    job.lost = {part.node_id for part in placement.parts if ledger.fleet.machine(part.node_id) is None}
    job.placement, job.leased_at, job.running_at = placement, event.leased_at, event.running_at
    job.prepared, job.rendezvous, job.revoked = set(event.prepared), event.rendezvous, event.revoked
    parts = ledger.fleet.parts_of(job.place) if job.request.spreads else ()
    columns.hold(job.slot, parts or ((pool, placement.accelerators),))
    cycle.spending.started(job)
    columns.runs_as[job.slot] = ledger.class_over(job, parts or ((pool, placement.accelerators),))
    columns.since_at[job.slot], columns.running_at[job.slot] = event.leased_at, event.running_at
    if event.running_at < inf:
        columns.steps_at[job.slot] = event.at
    cycle.timers.set(event.leased_at + job.request.max_runtime_s, "max_runtime", job.job_id, job.attempt)
    if not is_prepared(job):
        timeout_s = cycle.standing.rules.prepare_timeout_s
        cycle.timers.set(event.at + timeout_s, "prepare", job.job_id, job.attempt)


def _resume_waiting(cycle: Cycle, job: JobRecord) -> None:
    """Dependencies that are not active any more have ended well: otherwise the job would have ended with them."""
    ledger, request = cycle.ledger, job.request
    job.blocked_by = {dependency for dependency in request.depends_on if dependency in ledger.jobs}
    for dependency in sorted(job.blocked_by):
        ledger.dependents.setdefault(dependency, []).append(job.job_id)
    if request.not_before_at > cycle.now:
        job.ready_at = request.not_before_at
        cycle.timers.set(request.not_before_at, "ready", job.job_id)
    if job.attempt == 0:
        submitted_at = float(ledger.columns.submitted_at[job.slot])
        cycle.timers.set(submitted_at + request.max_queue_s, "max_queue", job.job_id)
    if job.state is JobState.PENDING and not job.blocked_by:
        cycle.arrived.append(job.job_id)


def rent_restored(cycle: Cycle, event: RentRestored) -> None:
    row = cycle.ledger.fleet.pool_row(event.pool_id)
    assert row is not None, f"machines of {event.pool_id} are awaited, which is not declared"
    cycle.ledger.fleet.pools[row].awaited[event.token] = event.machines


def node_quarantined(cycle: Cycle, event: NodeQuarantined) -> None:
    machine = cycle.ledger.fleet.machine(event.node_id)
    if machine is not None and machine.condition is Condition.UP:
        cycle.ledger.fleet.set_condition(machine, Condition.QUARANTINED, event.detail)
        if machine.token:
            cycle.emptied[machine.row] = None
