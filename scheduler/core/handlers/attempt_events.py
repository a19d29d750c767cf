"""Reports of attempts (machines prepared, ranks running, steps, checkpoints), and how attempts end.

When an attempt ends, its handler decides whose fault it was and what becomes of the job. Preemption and infrastructure
failures never consume a retry and never end a job. A job ends by its own failures, by a person's wish, by a limit or by
a failed dependency.
"""

from collections.abc import Iterable
from dataclasses import replace
from math import inf

from scheduler.core.commands import Revoke
from scheduler.core.events import (
    AttemptEnded,
    AttemptProgressed,
    CheckpointRecorded,
    EndCause,
    Prepared,
    RoundEnded,
)
from scheduler.core.handlers.quarantine import blame, clear_failures
from scheduler.core.placement.attempt_lifecycle import ask_to_leave, command_start, limit_runtime, release_attempt
from scheduler.core.placement.checkpoint_intervals import replan_interval
from scheduler.core.placement.reservations import drop_reservation
from scheduler.core.placement.retry_waits import blame_place
from scheduler.core.rules import OWED
from scheduler.core.state.fleet import FleetMachine, is_jobs_fault
from scheduler.core.state.ledger import JobRecord
from scheduler.core.state.remaining_work import note_length
from scheduler.core.state.stopping import StopFor, begin_unsaved_run, saw_saving
from scheduler.core.state.working_set import Cycle, enqueue_job
from walras.cluster import NodeId, Rendezvous
from walras.contract import EXIT_CHECKPOINTED, EXIT_MACHINE_UNABLE, EXIT_NOT_PREPARED, SIGKILL
from walras.job_request import project_of
from walras.states import AttemptState, JobState, Reason

#: A place was left soon if its job ran for no longer than this many of the shortest times between two plans.
LEFT_SOON = 10.0


def on_prepared(cycle: Cycle, job: JobRecord, event: Prepared) -> None:
    """Notes that one machine holds its part of a gang. When all do, the ranks are started."""
    node_id = event.node_id
    if job.revoked is not None or job.state is not JobState.STARTING or job.placement is None:
        return
    nodes = [part.node_id for part in job.placement.parts]
    if len(nodes) < 2 or node_id not in nodes or node_id in job.prepared:
        return
    job.prepared.add(node_id)
    if node_id == nodes[0]:
        job.rendezvous = Rendezvous(event.address, event.port)
    if len(job.prepared) == len(nodes):
        command_start(cycle, job)


def mark_running(cycle: Cycle, job: JobRecord) -> None:
    """Marks the job as running, because all its ranks are up."""
    if job.state is JobState.STARTING:
        job.running_at = cycle.ledger.columns.steps_at[job.slot] = cycle.now
        job.refusals = 0
        limit_runtime(cycle, job)
        for row, _ in job.place if job.request.max_runtime_s < inf else ():
            if (machine := cycle.ledger.fleet.machines[row]) is not None:
                machine.ends_version = -1
        cycle.sharing.is_due = cycle.sharing.is_due or job.request.shared is not None
        begin_unsaved_run(cycle.ledger, job, cycle.policy.rules)
        cycle.set_job_state(job, JobState.RUNNING)
        cycle.set_attempt_state(job, AttemptState.RUNNING)


def on_attempt_progressed(cycle: Cycle, job: JobRecord, event: AttemptProgressed) -> None:
    """Applies a progress report. Classes of jobs and the next solve follow if it changed the kind's published speed."""
    ledger = cycle.ledger
    mark_running(cycle, job)
    if event.saves:
        _saw_saving(cycle, job)
    job.steps = max(job.steps, event.steps)
    ledger.columns.steps_at[job.slot] = cycle.now
    if event.start_s is not None and not job.start_reported:
        job.start_reported = True  # once per start: reports repeat the value
        ledger.costs.saw_start(job.request.kind, event.start_s, cold=job.is_cold)
    if event.steps_per_s is None or job.placement is None:
        return
    if ledger.is_spread(job):
        _saw_mix(cycle, job, event.steps_per_s)
        return  # a speed over several pools is no measurement of either
    if cycle.sharing.willing and not cycle.sharing.counts_report(job, event.samples):
        return
    pool = int(ledger.columns.pool[job.slot])
    kind, accelerator = ledger.kind_of(job), ledger.fleet.pools[pool].pool.shape.accelerator
    # Slow machines are not learnt from an emulated scheduler, or from jobs that are slower for another reason.
    if cycle.policy.rules.mechanism == OWED and not job.request.sizes and cycle.sharing.is_settled(job.job_id):
        declared = ledger.fleet.declared_row(pool)
        is_slow = ledger.slow_machines.took_in(job.request, declared, job.placement, event.steps_per_s)
        if is_slow and kind == job.request.kind:
            return  # the kind keeps its speed from other machines
    if ledger.table.measure(kind, accelerator, job.placement.accelerators, event.steps_per_s, ledger.classes.nominal):
        ledger.classes.refresh_kind(kind)
        cycle.solves.problem_changed = cycle.sharing.is_due = True
    if kind == job.request.kind:
        gang = accelerator, job.placement.accelerators
        ledger.table.programs.saw(job.request.program, project_of(kind), gang, event.steps_per_s)


def _saw_mix(cycle: Cycle, job: JobRecord, steps_per_s: float) -> None:
    """Records the speed of a gang over several pools, where that counts."""
    ledger, kind = cycle.ledger, cycle.ledger.kind_of(job)
    held = ledger.classes.types_of(ledger.parts_of(job))
    if job.request.is_measured_spread and ledger.table.measure_mix(kind, held, steps_per_s):
        ledger.classes.refresh_kind(kind)
        cycle.solves.problem_changed = True


def on_checkpoint_recorded(cycle: Cycle, job: JobRecord, event: CheckpointRecorded) -> None:
    """Records the steps that the checkpoint contains as safe."""
    if event.lost:
        job.safe_steps, job.lost_checkpoint = event.steps, True
        return
    job.saved, job.loses_work, job.supervisor_losses = True, False, 0
    if job.job_id in cycle.ledger.retries.failed and job.placement is not None:
        cycle.ledger.retries.clear(job.job_id, [part.node_id for part in job.placement.parts])
    _saw_saving(cycle, job)
    job.safe_steps = max(job.safe_steps, event.steps)
    if job.safe_steps > job.steps:
        job.steps = job.safe_steps
        if job.running_at < inf:
            # Extrapolation from an older report would count them twice.
            cycle.ledger.columns.steps_at[job.slot] = cycle.now
    cycle.ledger.costs.saw_checkpoint(job.request.kind, event.took_s)
    cycle.ledger.costs.saw_lag(job.request.kind, event.lag_s)
    job.checkpoint_at = cycle.now
    replan_interval(cycle, job)


def _saw_saving(cycle: Cycle, job: JobRecord) -> None:
    """Notes that the job can save its work and so may be moved, which the next plan should know."""
    if not saw_saving(cycle.ledger, job):
        return
    cycle.solves.problem_changed = True
    machines = (cycle.ledger.fleet.machines[row] for row, _ in job.place)
    drained = [each.node_id for each in machines if each is not None and each.gentle_until > cycle.now]
    if drained:
        ask_to_leave(cycle, job, StopFor.MACHINE, Reason.POLICY_DRAINED, detail=f"{drained[0]} leaves")


def on_round_ended(cycle: Cycle, event: RoundEnded) -> None:
    """Applies one report of the steps of all attempts in a lockstep round; their work is saved."""
    jobs = [cycle.ledger.jobs[job_id] for job_id in event.job_ids]
    for job, steps in zip(jobs, event.steps, strict=True):
        job.safe_steps, job.saved = steps, True
    columns, slots = cycle.ledger.columns, [job.slot for job in jobs]
    columns.steps[slots], columns.steps_at[slots] = event.steps, event.at
    columns.loses_work[slots] = False
    cycle.due = replace(cycle.due, lockstep_round=event)


#: Yields in a row without a step between them, after which the job is held.
IDLE_YIELDS_MAX = 5
#: Refused starts in a row after which the job is held, because waiting longer would not help.
REFUSALS_MAX = 5
#: Maximum factor of the exponential backoff.
BACKOFF_MAX = 32


#: Detail of a requeue whose cause is a torn or missing checkpoint.
_LOST_TEXT = "its newest checkpoint is lost: it goes on from the one before"


def _lost_its_work(cycle: Cycle, job: JobRecord, event: AttemptEnded) -> bool:
    """Returns whether the stop that ended the attempt shows that the job cannot save its work.

    A job that says it can is not judged by an attempt younger than a restart takes, because its script was still
    starting.
    """
    if job.saved or event.exit_code == EXIT_CHECKPOINTED or job.running_at == inf:
        return False
    is_young = cycle.now < job.running_at + cycle.ledger.restart_s(job, cycle.policy.rules)
    return job.loses_work or job.request.unproven or not is_young


#: How a job ends whose end the scheduler asked for.
_ENDS_ASKED_FOR = {
    Reason.USER_CANCELLED: (JobState.CANCELLED, AttemptState.CANCELLED),
    Reason.POLICY_MAX_RUNTIME: (JobState.TIMEOUT, AttemptState.TIMEOUT),
}


def on_attempt_ended(cycle: Cycle, job: JobRecord, event: AttemptEnded) -> None:
    """Handles the end of the job's current attempt: decides who was at fault and what becomes of the job.

    What the scheduler asked for comes before the exit code, unless the job's work is known to be done.
    """
    if event.steps is not None:
        job.steps = max(job.steps, event.steps)
    reason, node_id = job.revoked, event.node_id
    is_clean = event.cause is EndCause.EXITED and event.exit_code == 0 and event.signal is None
    succeeded = is_clean and (not event.unfinished or _has_all_steps(job))
    if succeeded:
        clear_failures(cycle, job)
        if cycle.policy.plans and cycle.now - job.running_at <= LEFT_SOON * cycle.policy.rules.resolve_min_s:
            cycle.backlog.left_soon.append((cycle.ledger.columns.pool.item(job.slot), job.class_row))
    release_attempt(cycle, job)
    if succeeded:
        cycle.set_attempt_state(job, AttemptState.SUCCEEDED)
        end_job(cycle, job, JobState.SUCCEEDED)
    elif reason in _ENDS_ASKED_FOR:
        _end_as_asked(cycle, job, reason)
    elif event.cause is not EndCause.EXITED:
        _lost(cycle, job, event)
    elif event.exceeded:
        _failed(cycle, job, event, None)
    elif reason is not None:
        job.loses_work = _lost_its_work(cycle, job, event)
        cycle.set_attempt_state(job, AttemptState.PREEMPTED, reason)
        requeue_job(cycle, job, reason, _stopped_text(event))
    elif is_clean or event.exit_code == EXIT_CHECKPOINTED:
        _yielded(cycle, job)
    elif job.lost_checkpoint:
        cycle.set_attempt_state(job, AttemptState.FAILED, Reason.INFRA_CHECKPOINT_LOST)
        _requeue_after_infra_failure(cycle, job, Reason.INFRA_CHECKPOINT_LOST, _LOST_TEXT)
    elif event.exit_code == EXIT_MACHINE_UNABLE and job.idle_yields < IDLE_YIELDS_MAX:
        _machine_was_unable(cycle, job, event)
    else:
        _failed(cycle, job, event, node_id)


def _has_all_steps(job: JobRecord) -> bool:
    return job.request.steps is not None and job.steps >= job.request.steps


def _end_as_asked(cycle: Cycle, job: JobRecord, reason: Reason) -> None:
    state, attempt_state = _ENDS_ASKED_FOR[reason]
    detail = f"ran {job.request.max_runtime_s:g} s, its limit" if reason is Reason.POLICY_MAX_RUNTIME else ""
    cycle.set_attempt_state(job, attempt_state, reason)
    end_job(cycle, job, state, reason, detail)


def _machine_was_unable(cycle: Cycle, job: JobRecord, event: AttemptEnded) -> None:
    """Requeues a job whose machine lacked a tool or room, at no cost to its retries; after several it has failed."""
    job.idle_yields += 1
    _back_off(cycle, job, job.idle_yields)
    blame(cycle, job, event.node_id)
    detail = f"{event.node_id} lacks a tool or room to prepare it: its log says which"
    blamed = _place_of(job, event.node_id)
    cycle.set_attempt_state(job, AttemptState.FAILED, Reason.INFRA_START_REFUSED)
    _requeue_after_infra_failure(cycle, job, Reason.INFRA_START_REFUSED, detail, blamed)


def _lost(cycle: Cycle, job: JobRecord, event: AttemptEnded) -> None:
    """Requeues a job whose lease ran out or whose supervisor died: an infrastructure failure, within a limit.

    A supervisor that dies while its agent lives on (`witnessed`) was most likely killed by its own ranks. The job then
    waits longer after each loss and is finally held; the machine is not blamed.
    """
    if event.cause is EndCause.LEASE_EXPIRED:
        cycle.set_attempt_state(job, AttemptState.LEASE_EXPIRED, Reason.INFRA_LEASE_EXPIRED)
        lost = _place_of(job, event.node_id)
        _requeue_after_infra_failure(cycle, job, Reason.INFRA_LEASE_EXPIRED, blamed=lost)
        return
    detail = ""
    if event.witnessed:
        job.supervisor_losses += 1
        _back_off(cycle, job, job.supervisor_losses)
        detail = "its supervisor was killed, while the machine lived on"
        most = cycle.policy.rules.supervisor_losses_held
        if 0 < most <= job.supervisor_losses:
            job.hold_reason = job.hold_reason or Reason.HOLD_REPEATED_FAILURE
            detail = (
                f"{detail}; {job.supervisor_losses} times in a row, last on {event.node_id}: does the job kill it, or "
                "use up the memory?"
            )
    cycle.set_attempt_state(job, AttemptState.NODE_LOST, Reason.INFRA_NODE_LOST)
    _requeue_after_infra_failure(cycle, job, Reason.INFRA_NODE_LOST, detail, _place_of(job, event.node_id))


def end_attempts_on_lost_machine(cycle: Cycle, machine: FleetMachine, reason: Reason) -> list[JobRecord]:
    """Ends attempts that ran only on the lost machine. Returns the gangs that have ranks left elsewhere."""
    ledger = cycle.ledger
    left: list[JobRecord] = []
    for job in ledger.jobs_on(machine):
        job.lost.add(machine.node_id)
        assert job.placement is not None
        if all(part.node_id in job.lost for part in job.placement.parts):
            release_attempt(cycle, job)
            if job.revoked in _ENDS_ASKED_FOR:
                _end_as_asked(cycle, job, job.revoked)
            else:
                cycle.set_attempt_state(job, AttemptState.NODE_LOST, reason)
                _requeue_after_infra_failure(cycle, job, reason, blamed=(machine.node_id,))
        else:
            left.append(job)
            ledger.fleet.give_back(job.job_id, machine, ledger.shape_of(job), cycle.now)
    return left


def fail_start(cycle: Cycle, job: JobRecord, node_id: NodeId | None, reason: Reason, detail: str) -> None:
    """Ends an attempt of which no rank ran: its places are free at once, and the failure is noted for the machine."""
    release_attempt(cycle, job)
    if job.lost_checkpoint and reason is not Reason.USER_CANCELLED:  # the checkpoint is at fault, not the machine
        reason, node_id = Reason.INFRA_CHECKPOINT_LOST, None
    blame(cycle, job, node_id)
    if reason is Reason.USER_CANCELLED or job.revoked in _ENDS_ASKED_FOR:
        _end_as_asked(cycle, job, job.revoked or reason)
    else:
        lost = () if job.lost_checkpoint else _place_of(job, node_id)
        cycle.set_attempt_state(job, AttemptState.START_FAILED, reason)
        job.refusals += 1
        _back_off(cycle, job, job.refusals)
        if job.refusals >= REFUSALS_MAX and reason is Reason.INFRA_START_REFUSED:
            job.hold_reason = Reason.HOLD_REPEATED_FAILURE
            detail = f"{job.refusals} starts in a row were refused; the last: {detail}"
        _requeue_after_infra_failure(cycle, job, reason, detail, lost)


def abort_start(cycle: Cycle, job: JobRecord, reason: Reason, node_id: NodeId | None = None, detail: str = "") -> None:
    """Ends an attempt of which no rank can be running yet: the machines drop it, and its places are free at once."""
    cycle.commands.append(Revoke(job.job_id, job.attempt, reason, 0.0))
    if reason is Reason.USER_CANCELLED:
        cycle.set_job_state(job, JobState.CANCELLING, reason)
    fail_start(cycle, job, node_id, reason, detail or "stopped before it started")


def _requeue_after_infra_failure(
    cycle: Cycle, job: JobRecord, reason: Reason, detail: str = "", blamed: Iterable[NodeId] = ()
) -> None:
    """Requeues a job after an infrastructure failure, at no cost to its retries.

    `blamed` are machines that may be at fault, which the next attempt avoids.
    """
    job.infra_failures += 1
    for node_id in blamed:
        blame_place(cycle, job, node_id)
    requeue_job(cycle, job, reason, detail)


def _place_of(job: JobRecord, node_id: NodeId | None) -> tuple[NodeId, ...]:
    """Returns the named machine, else the only machine of the attempt; empty if it had several."""
    if node_id is not None:
        return (node_id,)
    parts = () if job.placement is None else job.placement.parts
    return (parts[0].node_id,) if len(parts) == 1 else ()


def requeue_job(cycle: Cycle, job: JobRecord, reason: Reason, detail: str = "") -> None:
    """Requeues the job; it resumes from its newest recorded checkpoint."""
    job.steps = job.safe_steps
    if job.hold_reason is not None:
        cycle.set_job_state(job, JobState.HELD, job.hold_reason, detail)
        cycle.solves.problem_changed = True  # changes of place alone change no problem
        return
    cycle.set_job_state(job, JobState.PENDING, reason, detail)
    enqueue_job(cycle, job)
    if job.job_id in cycle.reservations:
        cycle.backlog.arrived.append(job.job_id)  # its reserved place may be free already


def end_job(cycle: Cycle, job: JobRecord, state: JobState, reason: Reason | None = None, detail: str = "") -> None:
    """Ends the job: its row is freed, and jobs that depend on it are unblocked or cancelled."""
    cycle.set_job_state(job, state, reason, detail)
    drop_reservation(cycle, job.job_id)
    best_rate = cycle.ledger.class_of(job).best_rate
    if state is JobState.SUCCEEDED and best_rate > 0 and job.steps > 0:
        cycle.ledger.finished_s.append(job.steps / best_rate)
    note_length(cycle.ledger, job, succeeded=state is JobState.SUCCEEDED)
    had_s = cycle.ledger.columns.attained_s.item(job.slot)
    cycle.ledger.weights.ended(job.request.owners[-1], had_s, job.request.weight, cycle.now)
    cycle.spending.forget_job(job)
    cycle.sharing.forget(job)
    if job.job_id in cycle.ledger.retries.failed:
        cycle.ledger.retries.forget(job.job_id)
    cycle.ledger.remove(job)
    cycle.solves.problem_changed = True
    for dependent_id in cycle.ledger.dependents.pop(job.job_id, ()):
        dependent = cycle.ledger.jobs.get(dependent_id)
        if dependent is not None:
            _dependency_ended(cycle, dependent, job, state)


def _dependency_ended(cycle: Cycle, job: JobRecord, dependency: JobRecord, state: JobState) -> None:
    if state is not JobState.SUCCEEDED and not job.request.depends_on_any_end:
        detail = f"job {dependency.job_id} ended {state}"
        end_job(cycle, job, JobState.CANCELLED, Reason.USER_DEPENDENCY_FAILED, detail)
        return
    job.blocked_by.discard(dependency.job_id)
    if not job.blocked_by and not job.awaits_turn:
        cycle.backlog.arrived.append(job.job_id)


def _yielded(cycle: Cycle, job: JobRecord) -> None:
    """Requeues a job that checkpointed and asked for it (exit 85); holds it after too many yields without a step."""
    cycle.set_attempt_state(job, AttemptState.PREEMPTED)
    job.idle_yields = job.idle_yields + 1 if job.steps <= job.start_steps else 0
    if job.idle_yields >= IDLE_YIELDS_MAX:
        job.hold_reason = Reason.HOLD_REPEATED_FAILURE
        requeue_job(cycle, job, Reason.HOLD_REPEATED_FAILURE, f"asked {job.idle_yields} times in a row to be requeued")
    else:
        requeue_job(cycle, job, Reason.WAIT_NOT_EVALUATED, "the job asked to be requeued")


def _failed(cycle: Cycle, job: JobRecord, event: AttemptEnded, node_id: NodeId | None) -> None:
    """Handles a failure of the job itself: it is retried if its rule allows, else it has failed."""
    if not is_jobs_fault(event.exit_code, own_fault=event.own_fault):
        blame(cycle, job, node_id)
    reason = Reason.USER_EXIT_CODE if event.signal is None else Reason.USER_SIGNAL
    detail = f"exit code {event.exit_code}" if event.signal is None else f"signal {event.signal}"
    if event.exceeded == "memory":
        reason, detail = Reason.USER_OOM, f"used more main memory than it asked for, on {event.node_id}"
    elif event.exceeded:
        detail = f"wrote more to the {event.exceeded} than an attempt may, on {event.node_id}"
    elif event.signal == SIGKILL:
        detail += " (often: out of memory)"
    rule = job.request.retry
    if event.exit_code == EXIT_NOT_PREPARED:
        detail = f"its setup, environment, data or code could not be prepared on {event.node_id}: its log says why"
    code = event.exit_code if event.signal is None else 128 + event.signal  # as shells have it
    allowed = code in rule.on_exit_codes or (not rule.on_exit_codes and code != EXIT_NOT_PREPARED)
    if job.restarts < rule.max_restarts and allowed:
        job.restarts += 1
        cycle.set_attempt_state(job, AttemptState.FAILED, reason)
        _back_off(cycle, job, job.restarts)
        blame_place(cycle, job, event.node_id)
        requeue_job(cycle, job, Reason.WAIT_BACKOFF, f"{detail}; retry {job.restarts} of {rule.max_restarts}")
        return
    cycle.set_attempt_state(job, AttemptState.FAILED, reason)
    end_job(cycle, job, JobState.FAILED, reason, detail)


def _back_off(cycle: Cycle, job: JobRecord, times: int) -> None:
    job.ready_at = cycle.now + cycle.policy.rules.backoff_s * min(2 ** (times - 1), BACKOFF_MAX)
    cycle.timers.set(job.ready_at, "ready", job.job_id)


def _stopped_text(event: AttemptEnded) -> str:
    if event.exit_code == EXIT_CHECKPOINTED:
        return "checkpointed and stopped"
    return f"stopped by signal {event.signal}" if event.signal is not None else f"stopped, exit code {event.exit_code}"
