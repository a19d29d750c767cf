"""Reasons why a job is not running: every binding constraint with its numbers, and the smallest change that would help.

Computed on demand from the ledger alone. Reasons that no waiting will cure (`CONFIG:*`) come first. The values that a
plan compares are in the policy's own unit: they rank the places of one solve and mean little to people. So reasons say
in words who has a place and who goes first, and carry these figures beside.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from types import MappingProxyType

import numpy as np

from scheduler.core.booking_events import NOBODY, Booking
from scheduler.core.budget_limits import BudgetUnit
from scheduler.core.core import SchedulerCore
from scheduler.core.cycle.problem_snapshot import configurations_of
from scheduler.core.cycle.round import describe_newcomer
from scheduler.core.explain.feasibility import (
    expected_free_text,
    infeasibility,
    pool_limits,
    remedies,
    removed_pools_text,
)
from scheduler.core.rules import Backfill, RoundRules
from scheduler.core.state.fleet import FleetMachine, MachineCondition, PoolState
from scheduler.core.state.ledger import JobRecord
from scheduler.core.state.retry_places import INSISTS_AFTER
from scheduler.core.state.spending import SpendingMeter
from scheduler.core.state.spending_accounts import SpendingAccount
from scheduler.core.state.unsaved_work import is_fixed, may_lose_work, why_fixed
from walras.cluster import PoolId, gang_usd_per_h
from walras.job_request import JobId, JobRequest
from walras.states import JobState, Reason
from walras.units import format_length

_NOTHING_MORE: Mapping[PoolId, int] = MappingProxyType({})
#: Maximum up to which jobs ahead are counted.
_AHEAD_MAX = 5000
#: Number of jobs or machines that are named.
_NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class PendingReason:
    reason: Reason
    #: The constraint with its numbers.
    detail: str
    #: What would change it; empty if only time will.
    fix: str = ""
    #: Value and price of the place in the policy's own units, for closer inspection; empty if the place has none.
    figures: str = ""


def pending_reasons(
    core: SchedulerCore, job_id: JobId, expected: Mapping[PoolId, int] = _NOTHING_MORE
) -> tuple[PendingReason, ...]:
    """Returns why an active job does not run, most binding reason first; empty for a running or unknown job.

    `expected` are machines of a pool that are known from elsewhere, joined or not.
    """
    job = core.ledger.jobs.get(job_id)
    if job is None:
        return ()
    return tuple(_reasons(core, job, expected, counts_ahead=True))


def first_pending_reason(
    core: SchedulerCore, job_id: JobId, expected: Mapping[PoolId, int] = _NOTHING_MORE
) -> PendingReason | None:
    """Returns the most binding reason, without the position in the queue: cheap enough for every row of a listing.

    Returns None for a running or unknown job.
    """
    job = core.ledger.jobs.get(job_id)
    return None if job is None else next(_reasons(core, job, expected, counts_ahead=False), None)


def _reasons(
    core: SchedulerCore, job: JobRecord, expected: Mapping[PoolId, int], *, counts_ahead: bool
) -> Iterator[PendingReason]:
    if job.state in (JobState.RUNNING, JobState.STARTING):
        return
    if job.state is JobState.HELD:
        yield _held_reason(core, job)
    elif job.state in (JobState.PREEMPTING, JobState.CANCELLING):
        is_cancelled = job.state is JobState.CANCELLING
        doing = "being cancelled: its attempt is" if is_cancelled else "its attempt is checkpointing and"
        silent = "".join(f"; no heartbeat from {name}" for name in _silent(core, job))
        yield PendingReason(Reason.WAIT_PREEMPTING, f"{doing} stopping{silent}")
    elif job.state is JobState.UNREACHABLE:
        yield PendingReason(
            Reason.WAIT_NOT_EVALUATED,
            f"no heartbeat from {', '.join(_silent(core, job))}; until its lease has run out the attempt may be alive",
            "it goes on if the machine comes back; once that is lost (`walras nodes` counts down), elsewhere, from its"
            " last checkpoint",
        )
    elif (never := _infeasible(core, job, expected)) is not None:
        yield never
    else:
        yield from _blocking_reasons(core, job)
        yield from (PendingReason(Reason.WAIT_BOOKED, detail, fix) for detail, fix in booking_reason(core, job))
        yield from _pool_reasons(core, job, counts_ahead=counts_ahead)


def _silent(core: SchedulerCore, job: JobRecord) -> list[str]:
    machines = (core.ledger.fleet.machines[row] for row, _ in job.place)
    return [each.node_id for each in machines if each is not None and each.condition is MachineCondition.UNREACHABLE]


def _infeasible(core: SchedulerCore, job: JobRecord, expected: Mapping[PoolId, int]) -> PendingReason | None:
    fleet = core.ledger.fleet
    gone = removed_pools_text(fleet, job.request)
    if all(state.pool.removed for state in fleet.pools):
        detail = f"there is no pool{gone}" if gone else "no machine has joined this cluster yet"
        return PendingReason(Reason.WAIT_CAPACITY, detail, "start a `walras agent`")
    found = infeasibility(job.request, pool_limits(fleet, expected))
    if (
        found is None
        and job.request.tools
        and not any(core.ledger.classes.shapes[core.ledger.class_of(job).shape].counts)
    ):
        return PendingReason(
            Reason.WAIT_CAPACITY,
            f"wants {job.request.text}; no machine that is here has that",
            "install it there and start the agent again (`walras nodes -v` shows what each has), or wait for others",
        )
    return None if found is None else PendingReason(found.reason, found.detail + gone, found.fix)


def _held_reason(core: SchedulerCore, job: JobRecord) -> PendingReason:
    account = core.cycle.spending.closed_to(job) if job.hold_reason is Reason.HOLD_BUDGET else None
    if account is None:
        detail = "held: its accelerators stood idle" if job.hold_reason is Reason.HOLD_IDLE else "held"
        return PendingReason(job.hold_reason or Reason.HOLD_USER, detail, f"walras release {job.job_id}")
    return _budget_reason(core, account, Reason.HOLD_BUDGET)


def _budget_reason(core: SchedulerCore, account: SpendingAccount, reason: Reason) -> PendingReason:
    """Returns the reason that names the exceeded budget, with its numbers."""
    spending = core.cycle.spending
    if account.is_of_job:
        job_id = account.name.removeprefix("job ")
        fix = f"it goes on from its last checkpoint once its budget is raised: walras update {job_id} --budget USD"
    elif account.every or account.unit is not BudgetUnit.USD or account.name.startswith("group "):
        in_s = account.refills_at - core.ledger.now
        when = f", or when it is filled again, in {format_length(in_s)}" if 0 < in_s < inf else ""
        fix = f"it goes on by itself when the budget is raised (rules.budgets of the policy) or credited{when}"
    else:
        in_s = spending.next_month_at - core.ledger.now
        when = f", in {format_length(in_s)}" if 0 < in_s < inf and account.month_limit < inf else ""
        fix = "it goes on by itself when the budget is raised (rules.budgets of the policy), or with the next month"
        fix += when
    return PendingReason(reason, account_text(spending, account), fix)


def account_text(spending: SpendingMeter, account: SpendingAccount) -> str:
    """Returns the limits of an account that are near, in words."""
    return account.text(spending.spent_now(account), spending.committed(account))


def _blocking_reasons(core: SchedulerCore, job: JobRecord) -> Iterator[PendingReason]:
    now = core.ledger.now
    account = core.cycle.spending.closed_to(job)
    if account is not None:
        yield _budget_reason(core, account, Reason.WAIT_BUDGET)
    if job.blocked_by:
        blockers = ", ".join(map(str, sorted(job.blocked_by)))
        yield PendingReason(Reason.WAIT_DEPENDENCY, f"waits for job {blockers}")
    if job.awaits_turn:
        yield PendingReason(Reason.WAIT_SWEEP, f"{job.request.sweep_limit} jobs of its sweep may run at once, and do")
    if not job.holds:
        yield from _limit_reason(core, job)
    if job.ready_at > now:
        is_backoff = job.ready_at != job.request.not_before_at
        reason = Reason.WAIT_BACKOFF if is_backoff else Reason.WAIT_NOT_BEFORE
        yield PendingReason(reason, f"not before {job.ready_at - now:.0f} s from now")


def _limit_reason(core: SchedulerCore, job: JobRecord) -> Iterator[PendingReason]:
    """Yields a reason if the job's project or user holds all that a limit of the policy allows."""
    counts = core.ledger.classes.shapes[core.ledger.class_of(job).shape].counts
    limit, least = core.cycle.limits.reached_everywhere(job, counts)
    if limit is None:
        return
    what = "user" if "/" in limit.name else "project"
    detail = f"needs {least}; {what} {limit.name} holds {limit.held}, and {limit.words}"
    if least > limit.allowed:
        fix = f"ask for fewer, or raise the limit of {limit.name} (`{limit.raised_by}`): this never fits"
    else:
        fix = f"it goes on as jobs of {limit.name} end, or when the limit is raised (`{limit.raised_by}`)"
    yield PendingReason(Reason.WAIT_QUOTA, detail, fix)


def _pool_reasons(core: SchedulerCore, job: JobRecord, *, counts_ahead: bool) -> Iterator[PendingReason]:
    first = _first_in_line(core, job)
    if first is not None:
        yield _behind(core, first)
    ledger, reservation = core.ledger, core.cycle.reservations.get(job.job_id)
    # Remedies are computed once, for the most binding reason, and only if a person asks about this job. While other
    # jobs are stopped for it, no remedy would help.
    is_preempting = reservation is not None and reservation.preempting
    fix = remedies(core, job) if counts_ahead and not is_preempting and first is None else ""
    if reservation is not None:
        missing = sum(reservation.needs.values())
        rows = [row for row, _ in ledger.fleet.parts_of(reservation.wanted.items())]
        pool_id = " and ".join(ledger.fleet.pools[row].name for row in rows)
        reason = Reason.WAIT_PREEMPTING if reservation.preempting else Reason.WAIT_RESERVATION
        detail = (
            f"{missing} of {sum(reservation.wanted.values())} accelerators of its place on {pool_id} are not free yet"
        )
        if counts_ahead and not reservation.preempting:
            detail += f"; {expected_free_text(core, reservation)}"
        yield PendingReason(reason, detail, fix)
        fix = ""
    job_class, worth = ledger.class_of(job), values_and_costs(core, job)
    counts, entitled = ledger.classes.shapes[job_class.shape].counts, ledger.columns.entitled[job.slot]
    # Pools where the job has a share come first, then the fastest.
    for row in np.lexsort((-job_class.rates, -entitled)).tolist():
        if counts[row]:
            line = _pool_reason(core, job, ledger.fleet.pools[row], counts_ahead=counts_ahead)
            line = line if row not in worth else _with_price(line, *worth[row])
            yield replace(line, fix="; or ".join(filter(None, (line.fix, fix))))
            fix = ""


def _first_in_line(core: SchedulerCore, job: JobRecord) -> JobRecord | None:
    """Returns the head of the queue that blocks this job under a strict order, although it has a place; else None."""
    cycle, rules = core.cycle, core.cycle.policy.rules
    if not (cycle.ordering.strict or rules.backfill is Backfill.NONE) or cycle.policy.plans:
        return None
    shape, fleet = core.ledger.classes.shapes[core.ledger.class_of(job).shape], core.ledger.fleet
    if all(fleet.find(state.row, shape) is None for state in fleet.pools if shape.counts[state.row]):
        return None
    pools = range(len(core.ledger.fleet.pools))
    heads = [
        head
        for pool in cycle.queues.busy(pools)
        for shape, queue in cycle.queues.of(pool)
        if (head := cycle.queues.head(pool, shape, queue)) is not None
    ]
    key, first = min(heads, key=lambda head: head[0], default=((), None))
    own = [each for _, each in cycle.ordering.keys(job)]
    return None if first is None or first is job or not own or min(own) < key else first


def _behind(core: SchedulerCore, first: JobRecord) -> PendingReason:
    """Returns the reason of a job behind the head of a strict queue: what the head waits for, and what would help."""
    ledger, shape = core.ledger, core.ledger.classes.shapes[core.ledger.class_of(first).shape]
    pools = [state for state in ledger.fleet.pools if shape.counts[state.row]]
    waits = ", ".join(f"{shape.counts[state.row]} of {state.name}, {state.free} free" for state in pools)
    detail = (
        f"behind job {first.job_id}, the head of the queue, which waits (it needs {waits}); "
        "under this policy no job starts before the head of the queue"
    )
    fix = (
        f"let job {first.job_id} start or cancel it; or let others pass: `strict: false` and another `backfill` than"
        " none in the policy"
    )
    return PendingReason(Reason.WAIT_PRIORITY, detail, fix)


def _pool_reason(core: SchedulerCore, job: JobRecord, state: PoolState, *, counts_ahead: bool) -> PendingReason:
    """Returns why the job does not run on one pool."""
    ledger, columns = core.ledger, core.ledger.columns
    shape = ledger.classes.shapes[ledger.class_of(job).shape]
    is_shared, is_planned = core.cycle.policy.pricing is not None, core.cycle.policy.plans
    planned = dict(ledger.planned_parts(job)) if is_planned else {}
    count = planned.get(state.row, shape.counts[state.row])
    need = f"{state.name}: needs {count}, {state.free} of {state.capacity} free"
    facts = []
    if state.row in planned:
        facts.append(f"{count} of the {sum(planned.values())} it is planned on are here")
    elif is_planned:
        facts.append("planned here" if columns.entitled[job.slot, state.row] > 0 else "not planned here")
    elif is_shared:
        share = float(columns.entitled[job.slot, state.row]) / count
        owed = float(columns.owed[job.slot, state.row])
        facts.append(f"share {share:.2f}, owed {owed:.0f} accelerator-seconds")
    if counts_ahead:
        ahead = _jobs_ahead(core, job, state.row)
        facts.append(f"{ahead}{'+' if ahead >= _AHEAD_MAX else ''} ahead")
    if state.free < count:
        reason, *more = _capacity_reason(state, count, ledger.now)
        not_rented, remedy = why_not_rented(core.cycle.policy.rules, job.request, state, count)
        if reason is Reason.WAIT_CAPACITY and state.capacity < count and not_rented:
            reason, more = Reason.WAIT_PRICE, [not_rented]
        if counts_ahead:
            more += _machines(core, job, state)
        fix = "; or ".join(filter(None, (_taking_jobs_again(state), remedy))) if counts_ahead else ""
        return PendingReason(reason, "; ".join((need, *more, *facts)), fix)
    if told := _failed_there(core, job, state):
        return PendingReason(Reason.WAIT_CAPACITY, "; ".join((f"{need}, but only on {told}", *facts)))
    if ledger.fleet.find(state.row, shape) is None:
        where = "on few enough machines" + (" that have what it needs" if job.request.tools else "")
        return PendingReason(Reason.WAIT_FRAGMENTED, "; ".join((f"{need}, but not {where}", *facts)))
    reason = Reason.WAIT_PRICE if is_shared else Reason.WAIT_PRIORITY
    figures = "" if is_planned else price_figure(core, state.row)
    return PendingReason(reason, "; ".join((need, *facts)), figures=figures)


def _failed_there(core: SchedulerCore, job: JobRecord, state: PoolState) -> str:
    """Returns the machines on which the job failed and which it therefore avoids; empty if there are none."""
    if (job.job_id, state.row) not in core.ledger.retries.waiting:
        return ""
    fleet, failed = core.ledger.fleet, core.ledger.retries.failed.get(job.job_id, {})
    here = [node_id for node_id in failed if (machine := fleet.machine(node_id)) and machine.pool == state.row]
    ends = max((inf if failed[each][0] >= INSISTS_AFTER else failed[each][1] for each in here), default=inf)
    until = "as long as there is one" if ends == inf else f"for {format_length(ends - core.ledger.now)} at most"
    return f"{', '.join(here[:3])}, where it failed: it waits for another machine, {until}"


def _with_price(line: PendingReason, value: float, cost: float, unit: str) -> PendingReason:
    """Returns the reason with its price figures; a WAIT_PRICE reason if the price exceeds the place's worth."""
    figures = f"worth {value:.3g} here, price {cost:.3g} ({unit})"
    if cost <= value:
        return replace(line, figures=figures)
    return PendingReason(Reason.WAIT_PRICE, f"{line.detail}; others make more of it", line.fix, figures)


def _capacity_reason(state: PoolState, count: int, now: float) -> tuple[Reason, *tuple[str, ...]]:
    """Returns why a pool has too little free, and which machines are requested."""
    if state.pool.drained:
        return Reason.WAIT_CAPACITY, "it is drained: it takes no new jobs and rents no machines"
    if state.awaited:
        return Reason.WAIT_PROVISIONING, f"{sum(state.awaited.values())} machines are on their way"
    if state.rent_not_before > now:
        asked = f"asked again in {state.rent_not_before - now:.0f} s"
        return Reason.WAIT_PROVISIONING, f"could not be rented: {state.rent_problem}; {asked}"
    if state.capacity < count:
        if state.rented:
            return Reason.WAIT_CAPACITY, "the policy rents no more machines at this price"
        return Reason.WAIT_CAPACITY, "more of its machines must join, or take jobs again"
    return (Reason.WAIT_CAPACITY,)


def _machines(core: SchedulerCore, job: JobRecord, state: PoolState) -> list[str]:
    """Returns which other jobs hold the machines of a pool, and which machines take no jobs: the first few of each."""
    machines = state.members.values()
    holders = sorted({job_id for each in machines for job_id in each.holders} - {job.job_id})
    away = [_away_text(each) for each in machines if each.condition is not MachineCondition.UP]
    more = ", ..." if len(holders) > _NAMED_MAX else ""
    held = [f"held by job {', '.join(map(str, holders[:_NAMED_MAX]))}{more}"] if holders else []
    return held + _unstoppable(core, holders) + away[:_NAMED_MAX]


def _unstoppable(core: SchedulerCore, holders: Sequence[JobId]) -> list[str]:
    """Returns which holders cannot be stopped now; under shares and orders only those that would lose their work."""
    ordering, jobs, plans = core.cycle.ordering, core.ledger.jobs, core.cycle.policy.plans
    if not plans:
        return _losing(core, holders)
    staying = [job_id for job_id in holders if jobs[job_id].holds and not ordering.can_be_stopped(jobs[job_id])]
    if not staying:
        return []
    named = ", ".join(map(str, staying[:_NAMED_MAX])) + (", ..." if len(staying) > _NAMED_MAX else "")
    return [
        f"job {named} cannot be stopped now (`preemptible: false`, no checkpoint, a private machine, being measured, or"
        " protected by the policy's rules)"
    ]


def _losing(core: SchedulerCore, holders: Sequence[JobId]) -> list[str]:
    """Returns the jobs that keep their places because their work would be lost."""
    fixed = [job_id for job_id in holders if is_fixed(core.ledger, core.ledger.jobs[job_id])]
    if not fixed:
        return []
    named = ", ".join(map(str, fixed[:_NAMED_MAX])) + (", ..." if len(fixed) > _NAMED_MAX else "")
    return [f"job {named} {why_fixed(core.ledger, core.ledger.jobs[fixed[0]])}"]


def _away_text(machine: FleetMachine) -> str:
    detail = f" ({machine.detail})" if machine.detail else ""
    return f"{machine.whole or machine.node_id} is {machine.condition.value}{detail}"


def _taking_jobs_again(state: PoolState) -> str:
    """Returns the command by which an administrator could let machines take jobs again; empty if there is none."""
    if state.pool.drained:
        return f"walras admin pool drain {state.pool.pool_id} --off"
    aside = [each for each in state.members.values() if each.condition is MachineCondition.QUARANTINED]
    fix = "see why jobs fail there, then: walras admin resume"
    return f"{fix} {aside[0].whole or aside[0].node_id}" if aside else ""


def _jobs_ahead(core: SchedulerCore, job: JobRecord, pool: int) -> int:
    """Returns the number of waiting jobs ahead in the pool's queues, counted up to `_AHEAD_MAX`."""
    ordering, columns = core.cycle.ordering, core.ledger.columns
    # Computing a key settles the job's row. This is undone, because a question must not change later decisions.
    before = columns.settled_at[job.slot], columns.attained_s[job.slot], columns.owed[job.slot].copy()
    mine = dict(ordering.keys(job)).get(pool)
    columns.settled_at[job.slot], columns.attained_s[job.slot], columns.owed[job.slot] = before
    return 0 if mine is None else core.cycle.queues.ahead(pool, mine, _AHEAD_MAX)


# ------------------------------------------------------------------------------------------ bookings


def deciding_booking(core: SchedulerCore, job: JobRecord) -> tuple[Booking, int] | None:
    """Returns the booking without which a waiting job would have a place, and the pool's row; None if there is none.

    Of several bookings it is the one that ends first.
    """
    bookings = core.cycle.bookings
    if not bookings.declared or job.holds:
        return None
    counts = core.ledger.classes.shapes[core.ledger.class_of(job).shape].counts
    found = [
        (booking, row)
        for row, count in enumerate(counts)
        if count
        for booking in bookings.closing(job, row)
        if _would_have_place(core, job, booking, row, count)
    ]
    return min(found, key=lambda each: (each[0].until_at, each[0].booking_id), default=None)


def _would_have_place(core: SchedulerCore, job: JobRecord, booking: Booking, row: int, count: int) -> bool:
    """Returns whether the idle accelerators of the booked machines, with those free beside them, would suffice."""
    if (job.job_id, row) in core.cycle.bookings.barred:
        return True
    if not booking.is_active(core.ledger.now):
        return False  # an upcoming booking only blocks a job while places are free, and then the job is in `barred`
    state = core.ledger.fleet.pools[row]
    idle = sum(len(each.free) for each in core.cycle.bookings.machines(booking) if each.pool == row)
    return state.free < count <= state.free + idle


def booking_reason(core: SchedulerCore, job: JobRecord) -> Iterator[tuple[str, str]]:
    """Yields (what is booked, for whom and until when; what would help) if a booking keeps the job waiting."""
    found = deciding_booking(core, job)
    if found is None:
        return
    booking, row = found
    ledger, now = core.ledger, core.ledger.now
    pool_id = ledger.fleet.pools[row].pool.pool_id
    machines = [each for each in core.cycle.bookings.machines(booking) if each.pool == row]
    what = f"{sum(each.size for each in machines)} accelerators of {pool_id} on {_named(machines)}"
    ends = f"it ends in {format_length(booking.until_at - now)}"
    because = f" ({booking.reason})" if booking.reason else ""
    if booking.is_active(now):
        whom = "nobody" if booking.project == NOBODY else f"jobs of project {booking.project} alone"
        detail = f"{booking.words}{because} keeps {what} for {whom}; {ends}"
        yield detail, "wait for its end, or have it cancelled: walras reserve --cancel " + str(booking.booking_id)
        return
    begins = format_length(booking.from_at - now)
    detail = f"{booking.words}{because} takes {what} in {begins}; {ends}; this job {_why_not_before(core, job)}"
    yield detail, "state `steps` or `max_runtime` if it ends before; a job that saves its work may start, and is moved"


def _why_not_before(core: SchedulerCore, job: JobRecord) -> str:
    if not job.request.preemptible:
        why = "may not be stopped"
    elif job.loses_work or may_lose_work(core.ledger, job):
        why = "would lose its work if it were stopped"
    else:
        why = "would have to be stopped as soon as it had started"
    is_known = job.request.steps is not None or job.request.max_runtime_s < inf
    return f"{why}, and {'would not have ended by then' if is_known else 'is not known to end before'}"


def _named(machines: list[FleetMachine]) -> str:
    names = [str(each.node_id) for each in machines]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


# ------------------------------------------------------------------------------------------ values and prices of places


def values_and_costs(core: SchedulerCore, job: JobRecord) -> dict[int, tuple[float, float, str]]:
    """Returns by pool, under a plan: the place's worth to the job, its cost at the plan's prices, and their unit.

    Empty under other policies, and before the first plan.
    """
    ledger, policy = core.ledger, core.cycle.policy
    quote, pools = policy.quote, ledger.fleet.pools
    if policy.pricing is None or not policy.plans or quote is None or len(quote.prices) != len(pools):
        return {}
    capacity = np.array([float(state.capacity) for state in pools])
    ways = configurations_of(ledger.classes, np.array([job.class_row]), capacity)
    if not len(ways.job):
        return {}
    value = policy.value(describe_newcomer(ledger, job, ways, capacity), quote)
    cost = ways.count * quote.prices[ways.pool]
    # Of several gang sizes on a pool, the one with the largest surplus comes last and is kept.
    return {int(ways.pool[at]): (value[at], cost[at], quote.unit) for at in np.argsort(value - cost, kind="stable")}


def plan_taken(core: SchedulerCore, job: JobRecord) -> str:
    """Returns which of its stated plans the job runs; empty for a job without plans, or while it waits."""
    menu, ledger = job.request.plans, core.ledger
    held: dict[str, int] = {}
    for pool, count in ledger.parts_of(job) if menu else ():
        name = ledger.fleet.pools[pool].pool.shape.accelerator
        held[name] = held.get(name, 0) + count
    taken = job.request.plan_of(held)
    if taken is None:
        return ""
    row = menu.index(taken)
    return f"has {taken.text}: plans[{row}] of {len(menu)}, which states {taken.steps_per_s:.3g} steps/s"


def price_figure(core: SchedulerCore, pool: int) -> str:
    """Returns the price of an accelerator of the pool in the last solve; empty where the policy has no prices."""
    policy = core.ledger.policy
    if policy.quote is None or pool >= len(policy.quote.prices):
        return ""
    return f"price {policy.quote.prices[pool]:.3g} {policy.quote.unit}"


def why_not_rented(rules: RoundRules, request: JobRequest, state: PoolState, count: int) -> tuple[str, str]:
    """Returns why the job's value pays for no machine of the pool, and the remedy; empty texts if that is not why."""
    if not state.rented or state.pool.drained or request.deadline_at < inf:
        return "", ""
    value, by = rules.value_of(request)
    price = gang_usd_per_h(state.pool, count)
    if value >= price and value > 0:
        return "", ""
    says = "no value of an hour is stated for this job" if not by else f"its {by} says {value:g} USD/h"
    if by in ("job", "policy"):
        says = f"an hour of it is worth {value:g} USD by the {by}"
    detail = (
        f"the policy rents no more machines at this price: {says}, and {count} accelerators here cost {price:g} USD/h"
    )
    fix = (
        f"state a value above {price:g} USD/h: `value_usd_per_h` of the job, `rules.values` of the policy file for "
        f"project {request.project}, or `rules.delay_usd_per_h` for all"
    )
    return detail, fix
