"""Conditions of an active job (deadline at risk, budget low, speed differs, no steps), and its believed speeds by pool.

Computed on demand from the ledger alone.
"""

from dataclasses import dataclass, replace

from scheduler.core.core import SchedulerCore
from scheduler.core.cycle.slow_pools import slow_machine_text
from scheduler.core.explain.pending_reasons import account_text
from scheduler.core.handlers.deadlines import deadline_outlook, deadline_risk_text
from scheduler.core.state.ledger import JobRecord, Ledger
from scheduler.core.state.remaining_work import fetch_time, warmest_place
from scheduler.core.state.throughput import BelievedSpeed
from scheduler.core.state.unsaved_work import why_unmovable
from walras.cluster import PoolId
from walras.job_request import JobId
from walras.units import format_size

AT_RISK, BUDGET_LOW, SPEED_DIFFERS, NO_STEPS = "at_risk", "budget_low", "speed_differs", "no_steps"
CANNOT_BE_MOVED, SPENDS_SLACK, FETCHES_INPUTS = "cannot_be_moved", "spends_slack", "fetches_inputs"
LENGTH_CORRECTED = "length_corrected"
#: Seconds after its ranks were up within which a job that states its steps is expected to report one.
NO_STEPS_AFTER_S = 600.0
#: Number of pools, the fastest ones, for which the job's downloads are stated.
_POOLS_TOLD = 3


@dataclass(frozen=True, slots=True)
class JobCondition:
    type: str
    detail: str


def job_conditions(core: SchedulerCore, job_id: JobId) -> tuple[JobCondition, ...]:
    """Returns all conditions that hold now; none for a job that is not active."""
    if (job := core.ledger.jobs.get(job_id)) is None:
        return ()
    found = []
    deadline, spending = deadline_outlook(core.ledger, job), core.cycle.spending
    hold = core.cycle.deadlines.market.holds.get(job_id)
    holding = "" if hold is None else hold.why
    if deadline is not None and (not deadline.is_feasible if holding else deadline.is_at_risk):
        found.append(JobCondition(AT_RISK, deadline_risk_text(deadline)))
    if holding:
        found.append(JobCondition(SPENDS_SLACK, holding))
    for account in spending.accounts_of(job):
        if any(spent >= account.warn_at * limit for spent, limit, _ in spending.spent_now(account)):
            found.append(JobCondition(BUDGET_LOW, account_text(spending, account)))
    if core.ledger.kind_of(job) != job.request.kind:
        detail = f"counted as {core.ledger.kind_of(job)!r}; give jobs that differ a `profile` each"
        found.append(JobCondition(SPEED_DIFFERS, detail))
    elif detail := _slow_machines_text(core.ledger, job):
        found.append(JobCondition(SPEED_DIFFERS, detail))
    if job.request.preemptible and (told := why_unmovable(core.ledger, job)):
        found.append(JobCondition(CANNOT_BE_MOVED, told))
    silent_s = core.ledger.now - job.running_at
    if job.holds and silent_s >= NO_STEPS_AFTER_S and job.request.steps is not None and job.steps <= job.start_steps:
        told = (
            f"no step was counted in {silent_s / 60:.0f} min: its speed and what is left of its {job.request.steps:g} "
        )
        told += "steps are unknown; steps are counted by walras.training.Loop in the script, or leave `steps` out"
        found.append(JobCondition(NO_STEPS, told))
    if told := _corrected_length_text(core.ledger, job):
        found.append(JobCondition(LENGTH_CORRECTED, told))
    if job.request.data and core.ledger.policy.rules.count_fetches and (told := _fetches_text(core.ledger, job)):
        found.append(JobCondition(FETCHES_INPUTS, told))
    return tuple(found)


def _corrected_length_text(ledger: Ledger, job: JobRecord) -> str:
    """Returns the corrected length with which the job is planned, and why; empty if the stated one is used."""
    request, factor = job.request, ledger.lengths.factor(job.request.owners[-1])
    if factor == 1.0 or (request.steps is None and request.duration_s is None):
        return ""
    if request.steps is not None:
        stated, planned = f"{request.steps:g} steps", f"{factor * request.steps:.4g} steps"
    else:
        assert request.duration_s is not None
        stated, planned = f"{request.duration_s:g} s", f"{factor * request.duration_s:.4g} s"
    many = ledger.lengths.jobs_of(request.owners[-1])
    whose = f"jobs of {request.user}" if request.user else "such jobs"
    return (
        f"states {stated}, but {whose} in {request.project or 'this project'} need up to {factor:.1f} times what they "
        f"state (record of {many:.0f}): planned with {planned}; jobs that keep what they state mend the record"
    )


def _slow_machines_text(ledger: Ledger, job: JobRecord) -> str:
    """Returns which of the job's machines are slow; empty if none is known to be."""
    nodes = () if job.placement is None else [part.node_id for part in job.placement.parts]
    told = [(node_id, slow_machine_text(ledger, node_id)) for node_id in nodes]
    return "; ".join(f"{node_id} is {detail}" for node_id, detail in told if detail)


def _fetches_text(ledger: Ledger, job: JobRecord) -> str:
    """Returns by how much downloads of inputs delay a start, pool by pool; empty where their bytes are unknown."""
    told = []
    for row in ledger.class_of(job).fastest[:_POOLS_TOLD]:
        place = warmest_place(ledger, job, row)
        found = fetch_time(ledger, job, place) if place else None
        if found is not None and found.size_bytes:
            pool = ledger.fleet.pools[row].pool.pool_id
            told.append(f"{found.seconds:.3g} s to fetch {format_size(found.size_bytes)} of inputs on {pool}")
    return ", ".join(told)


@dataclass(frozen=True, slots=True)
class PoolSpeed:
    """Speed of the whole gang on one pool."""

    pool_id: PoolId
    accelerator: str
    accelerators: int
    speed: BelievedSpeed


def believed_speeds(core: SchedulerCore, job_id: JobId) -> tuple[PoolSpeed, ...]:
    """Returns the speeds on every pool where the job can run, fastest first; empty for an unknown job."""
    if (job := core.ledger.jobs.get(job_id)) is None:
        return ()
    ledger, found = core.ledger, list[PoolSpeed]()
    job_class = ledger.class_of(job)
    counts, nominal = ledger.classes.shapes[job_class.shape].counts, ledger.classes.nominal
    for row in job_class.fastest:
        state = ledger.fleet.pools[row]
        speed = ledger.table.speed(job_class.kind, state.pool.shape.accelerator, counts[row], nominal)
        if state.slow_of is not None:
            low, high = (None if each is None else each * state.pace for each in (speed.low, speed.high))
            speed = replace(speed, steps_per_s=speed.steps_per_s * state.pace, low=low, high=high)
        found.append(PoolSpeed(state.name, state.pool.shape.accelerator, counts[row], speed))
    return tuple(found)
