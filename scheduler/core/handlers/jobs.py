"""What people do to jobs: submit, cancel, hold, release, reprioritise; and the limits they set."""

from dataclasses import replace
from heapq import heappush
from math import inf

from scheduler.core.books import JobBudgetChanged
from scheduler.core.cycle import Cycle
from scheduler.core.events import (
    JobCancelled,
    JobHeld,
    JobReleased,
    JobReprioritised,
    JobSubmitted,
    StartRefused,
    WorkRestated,
)
from scheduler.core.handlers.endings import end_job, enter_lines, stop_unstarted
from scheduler.core.ledger.ledger import JobRecord
from scheduler.core.placement.attempts import is_prepared, revoke
from scheduler.core.placement.claims import drop_claim, settle_claim
from scheduler.core.resolve import admit
from scheduler.core.rounds import challenge_now
from walras.reasons import Reason
from walras.states import JobState

#: Anything at or above this class need not wait for a round to end.
HIGH_CLASS = 2


def submitted(cycle: Cycle, event: JobSubmitted) -> None:
    """A new job: in line, or blocked by its dependencies, its start time or its submitter."""
    ledger, request = cycle.ledger, event.job
    assert request.job_id not in ledger.jobs, f"job {request.job_id} submitted twice"
    if request.declared:
        ledger.classes.declare(request)
    job = ledger.add(request, event.at)
    cycle.spending.take_job(job)
    if request.deadline_at < inf:
        heappush(cycle.deadlines, (event.at, request.job_id))
    # Dependencies that are not active have ended; the shells refuse those that ended badly.
    job.blocked_by = {dependency for dependency in request.depends_on if dependency in ledger.jobs}
    for dependency in sorted(job.blocked_by):
        ledger.dependents.setdefault(dependency, []).append(request.job_id)
    if request.not_before_at > event.at:
        job.ready_at = request.not_before_at
        cycle.timers.set(request.not_before_at, "ready", request.job_id)
    cycle.timers.set(event.at + request.max_queue_s, "max_queue", request.job_id)
    if request.held:
        cycle.set_job_state(job, JobState.HELD, Reason.HOLD_USER)
    elif not job.blocked_by:
        cycle.arrived.append(request.job_id)


def arrived(cycle: Cycle, job: JobRecord) -> None:
    """The job may start from now on: judged at current prices, else put in line."""
    took_part = bool(cycle.ledger.columns.eligible[job.slot])
    cycle.ledger.set_eligible(job)
    if not job.waits or job.ready_at > cycle.now:
        return
    # One that comes back for a place it has claimed took part all the time: nothing changed that a solve should know.
    cycle.dirty = cycle.dirty or not took_part
    claim = cycle.claims.get(job.job_id)
    if claim is not None:
        settle_claim(cycle, claim)
        return
    if admit(cycle, job):
        return
    enter_lines(cycle, job)


def press(cycle: Cycle, job: JobRecord) -> None:
    """A job of the high class that found no free place takes one from a lower class now."""
    if job.request.priority_class >= HIGH_CLASS and job.waits and job.ready_at <= cycle.now:
        challenge_now(cycle, job)


def cancelled(cycle: Cycle, job: JobRecord, event: JobCancelled) -> None:
    detail = f"by {event.by}" if event.by else ""
    drop_claim(cycle, job.job_id)
    if not job.holds:
        end_job(cycle, job, JobState.CANCELLED, None, Reason.USER_CANCELLED, detail)
    elif not is_prepared(job):
        stop_unstarted(cycle, job, Reason.USER_CANCELLED)
    elif job.state is not JobState.CANCELLING:
        revoke(cycle, job, Reason.USER_CANCELLED)
        cycle.set_job_state(job, JobState.CANCELLING, Reason.USER_CANCELLED, detail)


def held(cycle: Cycle, job: JobRecord, event: JobHeld) -> None:
    if job.state in (JobState.HELD, JobState.CANCELLING):
        return
    drop_claim(cycle, job.job_id)
    if not job.holds:
        cycle.set_job_state(job, JobState.HELD, event.reason)
        cycle.dirty = True
        return
    job.hold_reason = event.reason
    if is_prepared(job):
        revoke(cycle, job, event.reason)
    else:
        stop_unstarted(cycle, job, event.reason)


def released(cycle: Cycle, job: JobRecord, event: JobReleased) -> None:
    job.hold_reason = None
    job.idle_yields = job.refusals = 0
    if job.state is JobState.HELD:
        cycle.set_job_state(job, JobState.PENDING, Reason.WAIT_NOT_EVALUATED)
        cycle.dirty = True
        cycle.arrived.append(job.job_id)


def reprioritised(cycle: Cycle, job: JobRecord, event: JobReprioritised) -> None:
    job.request = replace(job.request, priority=event.priority)
    cycle.ledger.columns.priority_class[job.slot] = job.request.priority_class
    cycle.dirty = cycle.refill = True
    if job.waits:
        cycle.arrived.append(job.job_id)


def budget_changed(cycle: Cycle, job: JobRecord, event: JobBudgetChanged) -> None:
    """It may cost more, or less, than was said: whether it may run is settled with every account (`budgets.py`)."""
    job.request = replace(job.request, budget_usd=event.budget_usd)
    cycle.spending.limit_job(job, event.spent_usd)


def work_restated(cycle: Cycle, job: JobRecord, event: WorkRestated) -> None:
    """Another kind means other speeds, another count another length; where it runs nothing changes."""
    columns, classes, slot = cycle.ledger.columns, cycle.ledger.classes, job.slot
    job.request = replace(job.request, kind=event.kind, steps=event.steps_total)
    job.steps = job.safe_steps = event.steps
    job.start_steps = min(job.start_steps, event.steps)
    job.ends_known = -1
    for row, _ in job.place:
        if (machine := cycle.ledger.fleet.machines[row]) is not None:
            machine.ends_known = -1
    job.class_row = columns.class_row[slot] = classes.of_kind(job.class_row, event.kind)
    columns.runs_as[slot] = classes.of_kind(int(columns.runs_as[slot]), event.kind)
    columns.steps_total[slot], columns.steps[slot] = event.steps_total, event.steps
    columns.steps_at[slot] = cycle.now if job.state is JobState.RUNNING else inf
    cycle.dirty = cycle.refill = True


def ready(cycle: Cycle, job: JobRecord) -> None:
    """Its backoff, or its `not_before`, is over."""
    if job.waits and job.ready_at <= cycle.now:
        cycle.arrived.append(job.job_id)


def max_queue_reached(cycle: Cycle, job: JobRecord) -> None:
    """It never started within its `max_queue_time`."""
    if job.attempt == 0 and not job.holds:
        drop_claim(cycle, job.job_id)
        detail = f"waited {job.request.max_queue_s:g} s, its limit"
        if job.state is JobState.HELD:
            end_job(cycle, job, JobState.CANCELLED, None, Reason.POLICY_MAX_QUEUE_TIME, detail)
        else:
            end_job(cycle, job, JobState.TIMEOUT, None, Reason.POLICY_MAX_QUEUE_TIME, detail)


def max_runtime_reached(cycle: Cycle, job: JobRecord, attempt: int) -> None:
    """The attempt has held accelerators for the job's `max_runtime`."""
    if job.attempt != attempt or not job.holds or job.revoked is Reason.USER_CANCELLED:
        return
    if is_prepared(job):
        revoke(cycle, job, Reason.POLICY_MAX_RUNTIME)
    else:
        prepare_timed_out(cycle, job)


def start_refused(cycle: Cycle, job: JobRecord, event: StartRefused) -> None:
    """A machine cannot take its part; no rank of the gang runs."""
    stop_unstarted(cycle, job, Reason.INFRA_START_REFUSED, event.node_id, f"{event.node_id}: {event.detail}")


def prepare_timed_out(cycle: Cycle, job: JobRecord) -> None:
    """Not every machine of the gang answered in time: the whole gang lets go."""
    stop_unstarted(cycle, job, Reason.INFRA_START_TIMEOUT, None, "the gang was not prepared in time")
