"""What people do to jobs (submit, cancel, hold, release, reprioritise), the limits they set, and jobs restored.

After a restart a fresh core receives, as events, what the database's tables contain. Reservations and the policy's
memory begin anew, and a solve follows at once. Restoring emits no commands: machines go on with their work and report
it as always.
"""

from dataclasses import replace
from heapq import heappush
from math import inf, nan

from scheduler.core.cycle.slow_pools import row_of_gang
from scheduler.core.events import (
    JobBudgetChanged,
    JobCancelled,
    JobProjectChanged,
    JobRedirected,
    JobReprioritised,
    JobRestored,
    JobSubmitted,
    StartRefused,
)
from scheduler.core.handlers.attempt_events import abort_start, end_job
from scheduler.core.handlers.deadlines import let_go
from scheduler.core.handlers.restored_state import recall_job
from scheduler.core.placement.attempt_lifecycle import is_prepared, limit_runtime, revoke_attempt
from scheduler.core.placement.reservations import drop_reservation, settle_reservation
from scheduler.core.speed_events import WorkRestated
from scheduler.core.state.crossings import count_crossing
from scheduler.core.state.ledger import JobRecord
from scheduler.core.state.shared_accelerators import hold_beside, sole_holder
from scheduler.core.state.stopping import begin_unsaved_run, saw_saving
from scheduler.core.state.working_set import Cycle, count_tools
from walras.cluster import Placement
from walras.job_request import GangRequest, group_fields, project_of
from walras.states import JobState, Reason


def on_job_submitted(cycle: Cycle, event: JobSubmitted) -> None:
    """Adds a new job: queued, or blocked by its dependencies, its start time or its submitter."""
    ledger, request = cycle.ledger, event.job
    assert request.job_id not in ledger.jobs, f"job {request.job_id} submitted twice"
    if request.declared:
        ledger.classes.declare(request)
    job = ledger.add(request, event.at)
    ledger.table.programs.ran(request.kind, request.program)
    if ledger.slow_machines.slow:
        ledger.slow_machines.meet(project_of(request.kind))
    cycle.spending.take_job(job)
    cycle.sharing.take_job(job)
    if request.deadline_at < inf:
        heappush(cycle.deadlines.heap, (event.at, request.job_id))
    # Dependencies that are not active have succeeded; the shells refuse jobs whose dependencies failed.
    job.blocked_by = {dependency for dependency in request.depends_on if dependency in ledger.jobs}
    for dependency in sorted(job.blocked_by):
        ledger.dependents.setdefault(dependency, []).append(request.job_id)
    if request.not_before_at > event.at:
        job.ready_at = request.not_before_at
        cycle.timers.set(request.not_before_at, "ready", request.job_id)
    cycle.timers.set(event.at + request.max_queue_s, "max_queue", request.job_id)
    if request.held:
        cycle.set_job_state(job, JobState.HELD, Reason.HOLD_USER)
        return
    if job.request.sweep is not None:
        cycle.turns.ask(job)
    if not job.blocked_by and not job.awaits_turn:
        cycle.backlog.arrived.append(request.job_id)


def on_job_cancelled(cycle: Cycle, job: JobRecord, event: JobCancelled) -> None:
    detail = f"by {event.by}" if event.by else ""
    drop_reservation(cycle, job.job_id)
    if not job.holds:
        end_job(cycle, job, JobState.CANCELLED, Reason.USER_CANCELLED, detail)
    elif not is_prepared(job):
        abort_start(cycle, job, Reason.USER_CANCELLED)
    elif job.state is not JobState.CANCELLING:
        revoke_attempt(cycle, job, Reason.USER_CANCELLED)
        cycle.set_job_state(job, JobState.CANCELLING, Reason.USER_CANCELLED, detail)


def hold_job(cycle: Cycle, job: JobRecord, reason: Reason) -> None:
    """Holds the job: at once if it waits, after its checkpoint if it runs. An operator's hold replaces any other."""
    is_held = job.state is JobState.HELD and (reason is not Reason.HOLD_ADMIN or job.hold_reason is reason)
    if is_held or job.state is JobState.CANCELLING:
        return
    drop_reservation(cycle, job.job_id)
    job.hold_reason = reason
    if not job.holds:
        cycle.set_job_state(job, JobState.HELD, reason)
        cycle.solves.problem_changed = True
        return
    if is_prepared(job):
        revoke_attempt(cycle, job, reason)
    else:
        abort_start(cycle, job, reason)


def release_job(cycle: Cycle, job: JobRecord) -> None:
    """Lets a held job, or one that was to be held, run again."""
    job.hold_reason = None
    job.idle_yields = job.refusals = job.supervisor_losses = 0
    if job.state is JobState.HELD:
        cycle.set_job_state(job, JobState.PENDING, Reason.WAIT_NOT_EVALUATED)
        cycle.solves.problem_changed = True
        cycle.backlog.arrived.append(job.job_id)


def on_job_reprioritised(cycle: Cycle, job: JobRecord, event: JobReprioritised) -> None:
    job.request = replace(job.request, priority=event.priority)
    cycle.ledger.columns.priority_class[job.slot] = job.request.priority_class
    cycle.solves.problem_changed = cycle.backlog.rebuild_queues = True
    if job.waits:
        cycle.backlog.arrived.append(job.job_id)


def on_job_budget_changed(cycle: Cycle, job: JobRecord, event: JobBudgetChanged) -> None:
    """Sets the job's budget; whether the job may run is decided with all accounts (`budgets.py`)."""
    job.request = replace(job.request, budget_usd=event.budget_usd)
    cycle.spending.limit_job(job, event.spent_usd)


def on_job_redirected(cycle: Cycle, job: JobRecord, event: JobRedirected) -> None:
    """Changes the machines, value and declared speeds of a held job, as if it had been submitted with these.

    Does nothing if the job is not held, holds a place, or runs otherwise than as one gang.
    """
    if job.holds or job.state is not JobState.HELD or job.request.spreads:
        return
    ledger, columns, slot = cycle.ledger, cycle.ledger.columns, job.slot
    gang = group_fields(event.gang, GangRequest)
    worth = event.value_usd_per_h
    job.request = replace(job.request, value_usd_per_h=worth, declared=event.declared, **gang)
    if event.declared:
        ledger.classes.declare(job.request)
    columns.class_row[slot] = columns.runs_as[slot] = ledger.classes.row(job.request)
    columns.gang[slot] = ledger.class_of(job).gang
    columns.value_usd_per_h[slot] = nan if worth is None else worth
    let_go(cycle, job)
    cycle.solves.problem_changed = cycle.backlog.rebuild_queues = True


def on_job_project_changed(cycle: Cycle, job: JobRecord, event: JobProjectChanged) -> None:
    """Moves a job that holds nothing to another project, as if it had been submitted there at its old instant.

    What it was owed under the former project's shares is dropped. Does nothing if the job holds a place.
    """
    if job.holds:
        return
    drop_reservation(cycle, job.job_id)
    columns, slot, worth = cycle.ledger.columns, job.slot, event.value_usd_per_h
    job.request = replace(
        job.request, project=event.project, priority=event.priority, weight=event.weight, value_usd_per_h=worth
    )
    if event.kind is not None:
        job.request = replace(job.request, kind=event.kind)
        cycle.ledger.change_kind(job, event.kind)
        cycle.ledger.table.programs.ran(event.kind, job.request.program)
    columns.settle(slot, cycle.now)
    columns.entity[slot] = cycle.ledger.entity_of(job.request)
    columns.priority_class[slot] = job.request.priority_class
    columns.weight[slot] = event.weight
    columns.value_usd_per_h[slot] = nan if worth is None else worth
    columns.owed[slot] = columns.entitled[slot] = 0.0
    job.over_budget = cycle.spending.closed_to(job) is not None
    cycle.ledger.set_eligible(job)
    cycle.solves.problem_changed = cycle.backlog.rebuild_queues = True
    if job.hold_reason is Reason.HOLD_BUDGET and job.job_id in cycle.spending.held and not job.over_budget:
        cycle.spending.held.discard(job.job_id)
        release_job(cycle, job)
    elif job.waits:
        cycle.backlog.arrived.append(job.job_id)


def on_work_restated(cycle: Cycle, job: JobRecord, event: WorkRestated) -> None:
    """Changes the job's kind (and so its speeds) and length, because it counts its work differently.

    It stays where it runs.
    """
    columns, slot = cycle.ledger.columns, job.slot
    job.request = replace(job.request, kind=event.kind, steps=event.steps_total)
    job.steps = job.safe_steps = event.steps
    job.start_steps = min(job.start_steps, event.steps)
    cycle.ledger.change_kind(job, event.kind)
    columns.steps_total[slot] = event.steps_total
    columns.steps_at[slot] = cycle.now if job.state is JobState.RUNNING else inf
    cycle.solves.problem_changed = cycle.backlog.rebuild_queues = True


def on_job_ready(cycle: Cycle, job: JobRecord, attempt: int) -> None:
    """Lets the job start again: its backoff, its `not_before` or its wait for machines close together is over."""
    if -inf < job.declines_until <= cycle.now:
        job.declines_until = -inf
        if job.job_id not in cycle.queues.nominated:
            drop_reservation(cycle, job.job_id)
    if job.waits and job.ready_at <= cycle.now:
        cycle.backlog.arrived.append(job.job_id)
    reservation = cycle.reservations.get(job.job_id)
    if reservation is not None:
        settle_reservation(cycle, reservation)


def on_max_queue_time(cycle: Cycle, job: JobRecord, attempt: int) -> None:
    """Cancels a job that never started within its `max_queue_time`."""
    if job.attempt == 0 and not job.holds:
        drop_reservation(cycle, job.job_id)
        detail = f"waited {job.request.max_queue_s:g} s, its limit"
        end_job(cycle, job, JobState.CANCELLED, Reason.POLICY_MAX_QUEUE_TIME, detail)


def on_max_runtime(cycle: Cycle, job: JobRecord, attempt: int) -> None:
    """Stops a job whose attempts have run for its `max_runtime`."""
    if job.attempt != attempt or not job.holds or job.revoked is Reason.USER_CANCELLED:
        return
    revoke_attempt(cycle, job, Reason.POLICY_MAX_RUNTIME)


def on_start_refused(cycle: Cycle, job: JobRecord, event: StartRefused) -> None:
    """Ends a start that one of its machines refused; no rank of the gang runs."""
    said = event.detail if event.node_id is None else f"{event.node_id}: {event.detail}"
    abort_start(cycle, job, Reason.INFRA_START_REFUSED, event.node_id, said)


def on_prepare_timeout(cycle: Cycle, job: JobRecord, attempt: int) -> None:
    """Ends the start of a gang whose machines did not all answer in time."""
    if job.attempt == attempt and job.holds and not is_prepared(job):
        abort_start(cycle, job, Reason.INFRA_START_TIMEOUT, None, "the gang was not prepared in time")


def on_job_restored(cycle: Cycle, event: JobRestored) -> None:
    """Adds a job as it was before the restart: queued, held, or with a running attempt."""
    ledger, columns, request = cycle.ledger, cycle.ledger.columns, event.job
    assert request.job_id not in ledger.jobs, f"job {request.job_id} restored twice"
    if request.declared:
        ledger.classes.declare(request)
    job = ledger.add(request, event.submitted_at)
    ledger.table.programs.ran(request.kind, request.program)
    cycle.spending.take_job(job, event.spent_usd)
    cycle.sharing.take_job(job)
    if request.deadline_at < inf:
        heappush(cycle.deadlines.heap, (event.at, request.job_id))
    columns.settled_at[job.slot] = event.at
    columns.attained_s[job.slot] = event.attained_s
    columns.worked_s[job.slot] = event.attained_s / columns.gang.item(job.slot)
    job.attempt, job.restarts, job.hold_reason = event.attempt, event.restarts, event.hold_reason
    recall_job(cycle, job)
    if event.saves:
        saw_saving(ledger, job)
    job.steps, job.safe_steps, job.start_steps = event.steps, event.safe_steps, event.safe_steps
    job.state, job.held_s = event.state, event.held_s
    if event.hold_reason is Reason.HOLD_BUDGET:
        cycle.spending.held.add(job.job_id)
    if event.placement is not None:
        _resume_attempt(cycle, job, event)
    else:
        _resume_waiting(cycle, job)
    if job.state is not JobState.HELD:
        cycle.turns.ask(job)
    ledger.set_eligible(job)
    cycle.solves.problem_changed = True


def _resume_attempt(cycle: Cycle, job: JobRecord, event: JobRestored) -> None:
    ledger, columns, placement = cycle.ledger, cycle.ledger.columns, event.placement
    assert placement is not None
    shape = ledger.shape_of(job)
    pool = ledger.fleet.pool_row(placement.pool_id) if job.request.spreads else row_of_gang(cycle, placement)
    assert pool is not None, f"job {job.job_id} is said to run in {placement.pool_id}, which is not declared"
    host = _shares_with(cycle, job, placement)
    if host is None:
        job.place = ledger.fleet.take_again(job.job_id, placement, shape, event.lost)
    else:
        job.place = host.place
        hold_beside(ledger.fleet, job.job_id, host.job_id, host.place, shape)
    machines = [ledger.fleet.machines[row] for row, _ in job.place] if job.request.tools else []
    for machine in machines:
        if machine is not None and machine.tools is not None:
            count_tools(cycle, machine)  # its pool can hold the job, whatever it has reported since the start
    job.lost = {part.node_id for part in placement.parts if ledger.fleet.machine(part.node_id) is None} | {*event.lost}
    job.placement, job.leased_at, job.running_at = placement, event.leased_at, event.running_at
    job.prepared, job.rendezvous, job.revoked = set(event.prepared), event.rendezvous, event.revoked
    if event.profiling:
        job.profiling_until = event.leased_at + cycle.policy.rules.profiling_s
        ledger.profiling.add(job.job_id)
    parts = ledger.fleet.parts_of(job.place) if job.request.spreads else ()
    held = parts or ((pool, placement.accelerators),)
    columns.hold(job.slot, held)
    cycle.spending.started(job)
    cycle.sharing.started(job)
    ledger.usage.started(job.request, held, ledger.units_of(job, held), ledger.fleet.pools, cycle.now)
    columns.runs_as[job.slot] = ledger.class_over(job, held)
    count_crossing(ledger, job)
    columns.since_at[job.slot] = event.leased_at
    here_s = placement.accelerators * (event.at - event.leased_at)
    columns.worked_s[job.slot] = max(0.0, event.attained_s - here_s) / columns.gang.item(job.slot)
    if host is not None:
        cycle.sharing.pair(host, job, ledger.fleet.pools[pool].pool.shape.accelerator)
    if event.running_at < inf:
        columns.steps_at[job.slot] = event.at
        begin_unsaved_run(ledger, job, cycle.policy.rules)
        limit_runtime(cycle, job)
    if not is_prepared(job):
        timeout_s = cycle.policy.rules.prepare_timeout_s
        cycle.timers.set(event.at + timeout_s, "prepare", job.job_id, job.attempt)


def _shares_with(cycle: Cycle, job: JobRecord, placement: Placement) -> JobRecord | None:
    """Returns the restored job with which this one shares its accelerator; None if it has its own."""
    if job.request.shared is None or len(placement.parts) != 1:
        return None
    machine = cycle.ledger.fleet.machine(placement.parts[0].node_id)
    host_id = None if machine is None else sole_holder(machine, placement.parts[0].devices)
    return None if host_id is None else cycle.ledger.jobs[host_id]


def _resume_waiting(cycle: Cycle, job: JobRecord) -> None:
    """Queues the job. Dependencies that are not active have succeeded, or the job would have ended with them."""
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
        cycle.backlog.arrived.append(job.job_id)
