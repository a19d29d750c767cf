"""The life of an attempt: granted, started, revoked, released.

The accelerators of an attempt are free again only when no rank can be alive on them: at `AttemptEnded`, at `NodeLost`,
or when no rank ever ran. `handlers/attempt_events.py` handles what an attempt reports and decides whose fault its end
was.
"""

from math import inf

from scheduler.core.commands import Prepare, Revoke, Start
from scheduler.core.placement.checkpoint_intervals import planned_interval_s
from scheduler.core.state.bookings import runtime_limit_at
from scheduler.core.state.crossings import count_crossing
from scheduler.core.state.fleet import Place
from scheduler.core.state.ledger import JobRecord
from scheduler.core.state.remaining_work import lacks_inputs, note_worked
from scheduler.core.state.shared_accelerators import hold_beside
from scheduler.core.state.stopping import StopFor, may_be_stopped, note_stop
from scheduler.core.state.working_set import Cycle, count_tools
from walras.states import AttemptState, JobState, Reason


def restore_own_kind(cycle: Cycle, job: JobRecord) -> None:
    """Gives the job its original kind back from now on: it leaves its machines, or has an accelerator alone again."""
    if cycle.ledger.kind_of(job) != job.request.kind:
        cycle.ledger.change_kind(job, job.request.kind, cycle.now)


def start_attempt(cycle: Cycle, job: JobRecord, pool: int, place: Place, beside: JobRecord | None = None) -> None:
    """Grants the place to a waiting job: a new attempt, whose number is the fence of everything that it will write.

    `pool` is the pool of the place, or the first of several. A gang on several machines is prepared first; a gang on
    one machine meets on its loopback interface and starts at once. `beside` is the job whose accelerators on one
    machine this job shares.
    """
    assert job.waits, f"job {job.job_id} is {job.state} and cannot start"
    ledger, columns, rules = cycle.ledger, cycle.ledger.columns, cycle.policy.rules
    job_class, slot, count = ledger.class_of(job), job.slot, sum([each for _, each in place])
    columns.settle(slot, cycle.now)
    job.attempt += 1
    job.place = place
    shape = ledger.classes.shapes[job_class.shape]
    if beside is None:
        job.placement = ledger.fleet.take(job.job_id, place, shape)
    else:
        job.placement = hold_beside(ledger.fleet, job.job_id, beside.job_id, place, shape)
    parts = ledger.fleet.parts_of(place) if job.request.spreads else ((pool, count),)
    columns.hold(slot, parts)
    cycle.spending.started(job)
    cycle.sharing.started(job)
    ledger.usage.started(job.request, parts, ledger.units_of(job, parts), ledger.fleet.pools, cycle.now)
    cycle.spending.close_full()
    job.leased_at, job.running_at, job.start_steps, job.ahead_steps = cycle.now, inf, job.steps, 0.0
    job.revoked, job.rendezvous, job.start_reported, job.saved = None, None, False, False
    job.ends_version, job.lost_checkpoint, job.declines_until = -1, False, inf
    job.is_cold = rules.count_fetches and lacks_inputs(ledger, job, place)
    job.prepared.clear()
    job.lost.clear()
    job.is_secured = job.deadline_pool == pool and len(parts) == 1
    runs_as = columns.runs_as[slot] = ledger.class_over(job, parts)
    columns.since_at[slot] = cycle.now
    job.scavenger = not cycle.ordering.is_entitled(job, pool)
    unknown = not ledger.classes.classes[runs_as].measured[pool]
    job.profiling_until = cycle.now + rules.profiling_s if unknown else -inf
    if unknown:
        ledger.profiling.add(job.job_id)
    count_crossing(ledger, job)
    cycle.set_job_state(job, JobState.STARTING)
    cycle.set_attempt_state(job, AttemptState.LEASED, placement=job.placement)
    if len(place) > 1:
        cycle.commands.append(Prepare(job.job_id, job.attempt, job.placement))
        cycle.timers.set(cycle.now + rules.prepare_timeout_s, "prepare", job.job_id, job.attempt)
    else:
        command_start(cycle, job, beside)


def limit_runtime(cycle: Cycle, job: JobRecord) -> None:
    """Sets the timer after which the job has run for its `max_runtime`, over all attempts."""
    cycle.timers.set(runtime_limit_at(cycle.ledger, job), "max_runtime", job.job_id, job.attempt)


def command_start(cycle: Cycle, job: JobRecord, beside: JobRecord | None = None) -> None:
    assert job.placement is not None
    profiling, partner = job.profiling_until > -inf, None if beside is None else beside.job_id
    job.checkpoint_at = -inf
    every_s = job.checkpoint_every_s = planned_interval_s(cycle.ledger, job)
    cycle.commands.append(
        Start(job.job_id, job.attempt, job.placement, job.rendezvous, job.safe_steps, profiling, partner, every_s)
    )


def is_prepared(job: JobRecord) -> bool:
    """Returns whether the start command was sent, so that ranks may be running."""
    return job.placement is not None and (
        len(job.placement.parts) == 1 or len(job.prepared) == len(job.placement.parts)
    )


def revoke_attempt(cycle: Cycle, job: JobRecord, reason: Reason, *, detail: str = "", grace_s: float = inf) -> None:
    """Asks the attempt to checkpoint and stop. Its accelerators stay taken until it has ended.

    A job that is to end, cancelled or over its limit, is not queued again for a later reason.
    """
    if job.revoked is None:
        cycle.set_attempt_state(job, AttemptState.STOPPING, reason)
    if job.revoked not in (Reason.USER_CANCELLED, Reason.POLICY_MAX_RUNTIME) or reason is Reason.USER_CANCELLED:
        job.revoked = reason
    grace_s = min(grace_s, job.request.grace_s)
    cycle.commands.append(Revoke(job.job_id, job.attempt, reason, grace_s))
    if job.state in (JobState.STARTING, JobState.RUNNING):
        cycle.set_job_state(job, JobState.PREEMPTING, reason, detail)


def ask_to_leave(
    cycle: Cycle, job: JobRecord, why: StopFor, reason: Reason, *, detail: str = "", grace_s: float = inf
) -> None:
    """Asks a job that holds its place to leave it, unless it was asked before or is protected from such a stop."""
    if job.holds and job.revoked is None and may_be_stopped(cycle.ledger, job, why) is None:
        if why is StopFor.PLACE:
            note_stop(cycle.ledger, job)
        revoke_attempt(cycle, job, reason, detail=detail, grace_s=grace_s)


def release_attempt(cycle: Cycle, job: JobRecord) -> None:
    """Frees the accelerators of an attempt of which no rank is alive."""
    ledger, columns = cycle.ledger, cycle.ledger.columns
    columns.settle(job.slot, cycle.now)
    note_worked(ledger, job)
    shape = ledger.shape_of(job)
    for row, _ in job.place:
        for lender in cycle.reserved_on.get(row, ()):
            cycle.reservations[lender].lent.pop(job.job_id, None)
        machine = ledger.fleet.machines[row]
        if machine is not None:
            ledger.fleet.give_back(job.job_id, machine, shape, cycle.now)
            if machine.counted_tools != machine.tools:
                count_tools(cycle, machine)
            cycle.backlog.freed[row] = None
            if machine.token:
                cycle.backlog.emptied[row] = None
                if job.job_id not in cycle.policy.riders:
                    machine.unpaid_since = inf  # a paying job held it until now
    columns.since_at[job.slot], columns.steps_at[job.slot] = cycle.now, inf
    job.held_s += max(cycle.now - job.running_at, 0.0)
    columns.fixed_at[job.slot] = inf
    cycle.spending.ended(job)
    ledger.usage.ended(job.request, cycle.now)
    columns.let_go(job.slot)
    job.place, job.is_secured, job.is_aside = (), False, False
    job.ends_version = -1
    job.profiling_until = -inf
    ledger.profiling.discard(job.job_id)
    restore_own_kind(cycle, job)
    partner = cycle.sharing.part(job.job_id)
    if partner is not None:  # the partner has the accelerator alone from now on
        restore_own_kind(cycle, partner)
