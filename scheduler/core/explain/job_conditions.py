"""Conditions of an active job (deadline at risk, budget low, speed differs, no steps), and its believed speeds by pool.

Computed on demand from the ledger alone.
"""

from dataclasses import dataclass, replace
from math import inf

from scheduler.core.core import SchedulerCore
from scheduler.core.cycle.slow_pools import slow_machine_text
from scheduler.core.explain.feasibility import fleet_pool_text, missed_deadline_text
from scheduler.core.explain.pending_reasons import account_text
from scheduler.core.handlers.deadlines import DeadlineOutlook, deadline_outlook
from scheduler.core.placement.search import find_free_place, ready_closer_at
from scheduler.core.state.crossings import crossing_of
from scheduler.core.state.ledger import JobRecord, Ledger
from scheduler.core.state.remaining_work import fetch_time, warmest_place
from scheduler.core.state.stopping import why_unmovable
from scheduler.core.state.throughput import BelievedSpeed, SpeedSource
from walras.cluster import PoolId
from walras.job_request import JobId, plain_kind
from walras.units import format_length, format_size

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
    deadline, spending = deadline_outlook(core.cycle, job), core.cycle.spending
    hold = core.cycle.deadlines.market.holds.get(job_id)
    holding = "" if hold is None else hold.why
    if missed := missed_deadline_text(core, job):
        found.append(JobCondition(AT_RISK, missed))
    elif deadline is not None and not holding and deadline.is_at_risk:
        found.append(JobCondition(AT_RISK, _risk_text(core.ledger, deadline)))
    if holding:
        found.append(JobCondition(SPENDS_SLACK, holding))
    for account in spending.accounts_of(job):
        if any(spent >= account.warn_at * limit for spent, limit, _ in spending.spent_now(account)):
            found.append(JobCondition(BUDGET_LOW, account_text(spending, account)))
    if detail := _crossing_text(core, job):
        found.append(JobCondition(SPEED_DIFFERS, detail))
    elif core.ledger.kind_of(job) != job.request.kind:
        detail = f"counted as {plain_kind(core.ledger.kind_of(job))!r}; give jobs that differ a `profile` each"
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


def _risk_text(ledger: Ledger, found: DeadlineOutlook) -> str:
    """Returns the times of a deadline's outlook in words."""
    where = f"on {fleet_pool_text(ledger.fleet, ledger.fleet.pools[found.pool])}"
    there = "" if found.is_there else ", moving there included"
    needs, left = format_length(found.needs_s), format_length(found.left_s)
    return f"its deadline is at risk: it needs {needs} more {where}{there}; has {left} left"


def _crossing_text(core: SchedulerCore, job: JobRecord) -> str:
    """Returns how much slower the job is where it runs, or could start now, than on machines that are closer together,
    and when such are free; empty if it is not slower.
    """
    cycle, pools = core.cycle, core.ledger.class_of(job).fastest[:_POOLS_TOLD]
    places = [job.place] if job.holds else [find_free_place(cycle, job, pool) or () for pool in pools if job.waits]
    for place in filter(None, places):
        crossing = crossing_of(core.ledger, job, place)
        machine = core.ledger.fleet.machines[place[0][0]]
        if crossing is not None and machine is not None:
            free_s = ready_closer_at(cycle, job, machine.pool) - core.ledger.now
            when = f"; closer ones are free in about {format_length(free_s)}" if free_s < inf else ""
            return f"{crossing.over}: {1.0 - crossing.pace:.0%} slower than on machines close together{when}"
    longest_s = job.declines_until - core.ledger.now
    return f"waits for machines close together, {format_length(longest_s)} at most" if 0 < longest_s < inf else ""


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
            pool = fleet_pool_text(ledger.fleet, ledger.fleet.pools[row])
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
    """Returns what is known of the job's speed on each pool where it can run, fastest first; empty for unknown jobs."""
    if (job := core.ledger.jobs.get(job_id)) is None:
        return ()
    ledger, found = core.ledger, list[PoolSpeed]()
    job_class = ledger.class_of(job)
    counts, nominal = ledger.classes.shapes[job_class.shape].counts, ledger.classes.nominal
    for row in job_class.fastest:
        state = ledger.fleet.pools[row]
        speed = ledger.table.speed(job_class.kind, state.pool.shape.accelerator, counts[row], nominal)
        if speed.source is SpeedSource.ASSUMED:
            continue
        if state.slow_of is not None:
            low, high = (None if each is None else each * state.pace for each in (speed.low, speed.high))
            speed = replace(speed, steps_per_s=speed.steps_per_s * state.pace, low=low, high=high)
        found.append(PoolSpeed(state.name, state.pool.shape.accelerator, counts[row], speed))
    return tuple(found)
