"""How long each attempt works before its next checkpoint, from its machines and what is known of their lifetimes.

A job that states an interval keeps it. For others the interval is planned when the attempt starts, whenever one of its
checkpoints was recorded (machines age, writing was measured), and when a machine of its pool has ended. It follows from
the time that writing takes, the lifetime distribution of the pool's machines, their ages, and, for a job with a
deadline, the price of an hour where it would have to make up for lost work. Where the market gives enough notice to
save, only ends without notice count. The attempt is told when the plan differs notably from the interval it was told
last.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, log

from optimizer.renting.lifetime_laws import (
    CheckpointSchedule,
    LearntLifetime,
    WatchedLife,
    hazard_at,
    interval_by_hazard,
    schedule_at_any_age,
    schedule_checkpoints,
)
from scheduler.core.commands import CheckpointEvery
from scheduler.core.state.fleet import FleetMachine, PoolState
from scheduler.core.state.ledger import JobRecord, Ledger
from scheduler.core.state.machine_lifetimes import MachineLifetimes, learnt_law
from scheduler.core.state.stopping import may_lose_work
from scheduler.core.state.working_set import Cycle
from walras.cluster import Market
from walras.contract import SECONDS_PER_HOUR
from walras.states import JobState
from walras.units import format_length

#: Until a checkpoint of the kind was recorded: assumed seconds of writing, and maximum of seconds to the first one.
UNMEASURED_WRITE_S, FIRST_BY_S = 5.0, 300.0
#: Bounds of an interval, seconds. Below the lower one an attempt would mostly write.
_SHORTEST_S, _LONGEST_S = 1.0, 86_400.0
#: Relative difference from which an attempt is told another interval.
_NOTABLE = 0.1
#: A notice counts only if it lasts this factor times the time of writing, plus these seconds.
_WARNING_FACTOR, _WARNING_MARGIN_S = 1.5, 5.0
#: Maximum price of a lost hour, relative to the price of an hour here.
_DEAREST = 20.0
#: Maximum of jobs replanned when a machine of their pool has ended; others follow at their next checkpoint.
_JOBS_AT_ONCE = 256
#: Maximum of schedules kept per pool.
_SCHEDULES_MOST = 64


@dataclass(frozen=True, slots=True)
class IntervalPlan:
    """A planned interval, and what it follows from for explanations."""

    every_s: float
    write_s: float
    #: Whether the time of writing was measured, not assumed.
    is_measured: bool
    #: Price of an hour of lost work relative to an hour of writing.
    lost_price: float
    #: Whether only ends without notice count, because notice leaves time to save.
    is_warned: bool


def planned_interval_s(ledger: Ledger, job: JobRecord) -> float | None:
    """Returns the seconds of work before the next checkpoint; None without machines or where rules forbid planning."""
    if job.request.checkpoint_every_s is not None:
        return job.request.checkpoint_every_s
    if not ledger.policy.rules.plan_checkpoints:
        return None
    every_s = _planned_at_this_event(ledger, job)
    if every_s is None and (plan := plan_interval(ledger, job)) is not None:
        every_s = plan.every_s
        _keep_for_this_event(ledger, job, every_s)
    return every_s


def _planned_at_this_event(ledger: Ledger, job: JobRecord) -> float | None:
    """Returns the interval given to another attempt of the kind on the pool at the same event; None if there is none.

    A plan may start hundreds of attempts at one event.
    """
    lives = _ageless_lives(ledger, job)
    if lives is None or lives.planned_at_event != ledger.event_number:
        return None
    return lives.planned.get(job.request.kind)


def _keep_for_this_event(ledger: Ledger, job: JobRecord, every_s: float) -> None:
    lives = _ageless_lives(ledger, job)
    if lives is not None and all(law.is_constant for law, *_ in lives.laws.values()):
        if lives.planned_at_event != ledger.event_number:
            lives.planned_at_event, lives.planned = ledger.event_number, {}
        lives.planned[job.request.kind] = every_s


def _ageless_lives(ledger: Ledger, job: JobRecord) -> MachineLifetimes | None:
    """Returns the pool's lifetimes if the interval depends on kind and pool alone; None if ages or prices count."""
    if len(job.place) != 1 or job.request.deadline_at != inf:
        return None
    machine = ledger.fleet.machines[job.place[0][0]]
    return None if machine is None else ledger.fleet.pools[machine.pool].lives


def plan_interval(ledger: Ledger, job: JobRecord) -> IntervalPlan | None:
    """Returns the plan for the job's machines, even if the job states an interval; None without machines."""
    machines = [machine for row, _ in job.place if (machine := ledger.fleet.machines[row]) is not None]
    if not machines:
        return None
    measured_s, lag_s = ledger.costs.write_s(job.request.kind), ledger.costs.lag_s(job.request.kind)
    write_s = _write_s(measured_s)
    lost_price = _lost_price(ledger, job, ledger.fleet.pools[machines[0].pool])
    states = [ledger.fleet.pools[machine.pool] for machine in machines]
    is_warned = is_warned_in_time(ledger, job, states)
    # The interval counts from the last checkpoint, or from when the attempt began to work.
    since = max(job.checkpoint_at, min(job.running_at, ledger.now))
    if len(machines) == 1:
        law = _law(ledger, states[0], unwarned=is_warned)
        schedule = _schedule(states[0], law, write_s, lost_price, unwarned=is_warned)
        every_h = schedule.interval_h(machines[0].age_h(since))
    else:
        laws = [_law(ledger, state, unwarned=is_warned) for state in states]
        every_h = _gang_interval_h(machines, laws, since, write_s / SECONDS_PER_HOUR, lost_price)
    longest_s = FIRST_BY_S if measured_s is None else _LONGEST_S
    every_s = min(max(every_h * SECONDS_PER_HOUR, _SHORTEST_S, lag_s), longest_s)
    return IntervalPlan(every_s, write_s, measured_s is not None, lost_price, is_warned)


def is_warned_in_time(ledger: Ledger, job: JobRecord, states: Sequence[PoolState]) -> bool:
    """Returns whether the spot pools among these give notice early enough for the job to save."""
    needs_s = _WARNING_FACTOR * (
        _write_s(ledger.costs.write_s(job.request.kind)) + ledger.costs.lag_s(job.request.kind)
    )
    spot = (state for state in states if state.pool.market is Market.SPOT)
    return all(state.lives.warning_s(state.pool) >= needs_s + _WARNING_MARGIN_S for state in spot)


def _write_s(measured_s: float | None) -> float:
    return max(UNMEASURED_WRITE_S if measured_s is None else measured_s, 1e-3)


def replan_interval(cycle: Cycle, job: JobRecord) -> None:
    """Tells the attempt another interval if that is notably better."""
    if job.state is not JobState.RUNNING or job.revoked is not None or job.request.checkpoint_every_s is not None:
        return
    every_s = planned_interval_s(cycle.ledger, job)
    told_s = job.checkpoint_every_s
    if every_s is None or (told_s is not None and abs(log(every_s / told_s)) <= _NOTABLE):
        return
    job.checkpoint_every_s = every_s
    cycle.commands.append(CheckpointEvery(job.job_id, job.attempt, every_s))


def replan_intervals_of(cycle: Cycle, state: PoolState) -> None:
    """Replans attempts of the pool after a machine of it has ended, which may change the lifetime distribution."""
    jobs = {job_id for machine in state.members.values() for job_id in machine.holders}
    if len(jobs) <= _JOBS_AT_ONCE:
        for job_id in sorted(jobs):
            replan_interval(cycle, cycle.ledger.jobs[job_id])


def checkpoint_text(ledger: Ledger, job: JobRecord) -> str:
    """Returns in words how often the attempt saves, and why; empty without machines, or where nothing shows that."""
    if job.request.checkpoint_every_s is not None:
        return f"every {format_length(job.request.checkpoint_every_s)}, as its job file states"
    plan = plan_interval(ledger, job)
    if plan is None or job.checkpoint_every_s is None or may_lose_work(ledger, job):
        return ""
    machines = [machine for row, _ in job.place if (machine := ledger.fleet.machines[row]) is not None]
    state = ledger.fleet.pools[machines[0].pool]
    seen = state.lives.record.ends(unwarned=plan.is_warned)
    ended = "ended without a warning" if plan.is_warned else "ended"
    parts = [
        f"writing one {'takes' if plan.is_measured else 'may take'} {plan.write_s:.3g} s",
        f"{seen or 'no'} machines of {state.pool.pool_id} {ended} in {format_length(state.lives.lived_s(ledger.now))}",
    ]
    if state.pool.lifetime:
        parts.append(f"the pool states {state.pool.lifetime}")
    if plan.lost_price > 1:
        parts.append(f"lost work would have to be made up at {plan.lost_price:.3g} times the price here")
    return f"every {format_length(job.checkpoint_every_s)}: {', '.join(parts)}"


def watched_machines(ledger: Ledger, state: PoolState) -> list[WatchedLife]:
    """Returns for each present machine of the pool the ages (hours) between which it was observed."""
    now = ledger.now
    return [WatchedLife(machine.age_h(machine.joined_at), machine.age_h(now)) for machine in state.members.values()]


def _law(ledger: Ledger, state: PoolState, *, unwarned: bool) -> LearntLifetime:
    return learnt_law(state.lives, state.pool, lambda: watched_machines(ledger, state), ledger.now, unwarned=unwarned)


def _schedule(
    state: PoolState, law: LearntLifetime, write_s: float, lost_price: float, *, unwarned: bool
) -> CheckpointSchedule:
    """Returns the schedule for a single machine, kept until the distribution changes. Writing is rounded to 5 %."""
    step = round(20 * log(write_s))
    key = (unwarned, step, round(lost_price, 1))
    kept = state.lives.schedules
    if kept.get(key) is None or kept[key].law is not law:
        if len(kept) >= _SCHEDULES_MOST:
            kept.clear()
        write_h = exp(step / 20) / SECONDS_PER_HOUR
        schedule = schedule_at_any_age if law.is_constant else schedule_checkpoints
        kept[key] = schedule(law, write_h, lost_price)
    return kept[key]


def _gang_interval_h(
    machines: list[FleetMachine], laws: list[LearntLifetime], since: float, write_h: float, lost_price: float
) -> float:
    """Returns the interval of a gang in hours. A gang ends with the first of its machines, so their hazards add up."""
    ages = [machine.age_h(since) for machine in machines]
    # Machines of one distribution and nearly one age are counted together, because gangs may have hundreds.
    groups: dict[tuple[int, int], tuple[LearntLifetime, float, int]] = {}
    for law, age in zip(laws, ages, strict=True):
        law_and_age = id(law), round(age * 12)
        _, first, count = groups.get(law_and_age, (law, age, 0))
        groups[law_and_age] = law, first, count + 1
    lived = [(law, age, count, hazard_at(law, age)) for law, age, count in groups.values()]

    def hazard(ahead_h: float) -> float:
        return sum(count * (hazard_at(law, age + ahead_h) - so_far) for law, age, count, so_far in lived)

    return interval_by_hazard(hazard, write_h, lost_price)


def _lost_price(ledger: Ledger, job: JobRecord, state: PoolState) -> float:
    """Returns the price of a lost hour relative to one here: 1, or more if lost work must be made up on demand.

    Time that a job with a deadline loses on spot machines is time that it needs on safe ones before its deadline.
    """
    if job.request.deadline_at == inf or state.pool.market is not Market.SPOT or state.pool.usd_per_h <= 0:
        return 1.0
    shape = state.pool.shape
    sure = [
        each.pool.usd_per_h * shape.accelerators / each.pool.shape.accelerators
        for each in ledger.fleet.pools
        if each.pool.market is Market.ON_DEMAND and each.rented and each.pool.shape.accelerator == shape.accelerator
    ]
    worth = ledger.policy.rules.value_of(job.request)[0]
    dearer = (min(sure, default=0.0) + worth) / (state.pool.usd_per_h + worth)
    return min(max(dearer, 1.0), _DEAREST)
