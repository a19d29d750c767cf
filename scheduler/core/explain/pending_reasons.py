"""Reasons why a job is not running: every binding constraint with its numbers, and the smallest change that would help.

Computed on demand from the ledger alone. Reasons that no waiting will cure (`CONFIG:*`) come first. The values that a
plan compares are in the policy's own unit: they rank the places of one solve and mean little to people. So reasons say
in words who has a place and who goes first, and carry these figures beside.

`dominant_reason` is the one sentence for people: which constraint decides, who goes first, who holds places, how long.
Every active job that does not run has such a sentence. Nothing here changes the core.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import inf
from types import MappingProxyType

import numpy as np

from scheduler.core.budget_limits import BudgetUnit
from scheduler.core.core import SchedulerCore
from scheduler.core.cycle.problem_snapshot import configurations_of
from scheduler.core.cycle.round import describe_newcomer
from scheduler.core.events import NOBODY, Booking
from scheduler.core.explain.feasibility import (
    expected_free_text,
    fleet_pool_text,
    infeasibility,
    missed_deadline_text,
    pool_limits,
    remedies,
    removed_pools_text,
)
from scheduler.core.explain.share_standing import owned_text
from scheduler.core.placement.search import find_free_place
from scheduler.core.placement.where import Obstacle, obstacles
from scheduler.core.rules import Backfill, RoundRules
from scheduler.core.state.bookings import runtime_limit_at
from scheduler.core.state.fleet import FleetMachine, MachineCondition, PoolState
from scheduler.core.state.ledger import JobRecord
from scheduler.core.state.remaining_work import remaining_here_s, remaining_on_best_s
from scheduler.core.state.retry_places import INSISTS_AFTER
from scheduler.core.state.spending import SpendingAccount, SpendingMeter
from scheduler.core.state.stopping import Protection, StopFor, may_be_stopped
from walras.cluster import Placement, PoolId, gang_usd_per_h
from walras.job_request import Demand, JobId, JobRequest, place_roles, roles_of
from walras.spec.accelerator_names import covers
from walras.states import JobState, Reason
from walras.units import format_jobs, format_length

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
    limits, over_pools = pool_limits(fleet, expected), core.ledger.policy.places_over_pools
    found = infeasibility(job.request, limits, over_pools=over_pools)
    if found is None and job.request.tools and not any(core.ledger.shape_of(job).counts):
        return PendingReason(
            Reason.WAIT_CAPACITY,
            f"wants {job.request.text}; no machine that is here has that",
            "install it there and start the agent again (`walras nodes -v` shows what each has), or wait for others",
        )
    return None if found is None else PendingReason(found.reason, found.detail + gone, found.fix)


def _held_reason(core: SchedulerCore, job: JobRecord) -> PendingReason:
    account = core.cycle.spending.closed_to(job) if job.hold_reason is Reason.HOLD_BUDGET else None
    if account is None:
        return PendingReason(job.hold_reason or Reason.HOLD_USER, "", f"walras hold --off {job.job_id}")
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
        yield PendingReason(Reason.WAIT_DEPENDENCY, _blockers(core, job))
    if job.awaits_turn:
        yield PendingReason(Reason.WAIT_SWEEP, f"{job.request.sweep_limit} jobs of its sweep may run at once, and do")
    if not job.holds:
        yield from _limit_reason(core, job)
    if job.ready_at > now:
        is_backoff = job.ready_at != job.request.not_before_at
        reason = Reason.WAIT_BACKOFF if is_backoff else Reason.WAIT_NOT_BEFORE
        yield PendingReason(reason, f"not before {format_length(job.ready_at - now)} from now")


def _limit_reason(core: SchedulerCore, job: JobRecord) -> Iterator[PendingReason]:
    """Yields a reason for each limit that the job's project or user has reached, first those that it never fits."""
    counts = core.ledger.shape_of(job).counts
    reached, least = core.cycle.limits.reached_everywhere(job, counts)
    for limit in sorted(reached, key=lambda each: (least <= each.allowed, each.limit.is_of_lasting)):
        if limit.limit.is_of_lasting:
            never = "it never fits" if least > limit.allowed else "or wait until they end"
            fix = f"{limit.raised_by}; {never} otherwise"
        elif least > limit.allowed:
            fix = f"ask for fewer, or raise the limit of {limit.name} (`{limit.raised_by}`): this never fits"
        else:
            fix = f"it goes on as jobs of {limit.name} end, or when the limit is raised (`{limit.raised_by}`)"
        yield PendingReason(Reason.WAIT_QUOTA, f"needs {least}; {limit.words}", fix)


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
        pools = " and ".join(fleet_pool_text(ledger.fleet, ledger.fleet.pools[row]) for row in rows)
        reason = Reason.WAIT_PREEMPTING if reservation.preempting else Reason.WAIT_RESERVATION
        detail = (
            f"{missing} of {sum(reservation.wanted.values())} accelerators of its place on {pools} are not free yet"
        )
        if counts_ahead and not reservation.preempting:
            detail += f"; {expected_free_text(core, reservation)}"
        yield PendingReason(reason, detail, fix)
        fix = ""
    if job.request.has_roles:
        yield from _role_reasons(core, job)
        return
    worth, place = values_and_costs(core, job), _place_in_queue(core, job) if counts_ahead else ""
    for state in _pools_by_preference(core, job):
        line = _pool_reason(core, job, state, is_asked=counts_ahead)
        line = line if state.row not in worth else _with_price(line, *worth[state.row])
        detail = "; ".join(filter(None, (line.detail, place)))
        yield replace(line, detail=detail, fix="; or ".join(filter(None, (line.fix, fix))))
        fix = place = ""


def _role_reasons(core: SchedulerCore, job: JobRecord) -> Iterator[PendingReason]:
    """Yields what each role waits for; those that lack nothing last, as all are placed at once."""
    fewest = min(job.request.plans, key=lambda plan: sum(use.count for use in plan.uses))
    free = []
    for role in (role for role in fewest.roles if role.each):
        here = [state for state in core.ledger.fleet.pools if covers(role.accelerator, state.pool.shape.accelerator)]
        use = Demand(role.accelerator, role.each * role.count)
        state = max((each for each in here if job.request.accepts_part(use, each.pool)), key=lambda each: each.free)
        on = fleet_pool_text(core.ledger.fleet, state)
        need = f"{role.name} needs {use.count} x {use.accelerator}: {state.free} of {state.capacity} free on {on}"
        fitting = sum(len(machine.free) // role.each for machine in state.members.values())
        if state.free < use.count:
            reason, *more = _capacity_reason(state, use.count, core.ledger.now)
            yield PendingReason(reason, "; ".join((need, *more, *_machines(core, job, state))))
        elif fitting < role.count:
            yield PendingReason(Reason.WAIT_FRAGMENTED, f"{need}, but each process needs {role.each} on one machine")
        else:
            free.append(need)
    yield PendingReason(Reason.WAIT_NOT_EVALUATED, f"roles start together, as the next plan decides; {'; '.join(free)}")


def _first_in_line(core: SchedulerCore, job: JobRecord) -> JobRecord | None:
    """Returns the head of the queue that blocks this job under a strict order, although it has a place; else None."""
    cycle, rules = core.cycle, core.cycle.policy.rules
    if not (cycle.ordering.strict or rules.backfill is Backfill.NONE) or cycle.policy.plans:
        return None
    shape, fleet = core.ledger.shape_of(job), core.ledger.fleet
    if all(find_free_place(core.cycle, job, state.row) is None for state in fleet.pools if shape.counts[state.row]):
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
    ledger, shape = core.ledger, core.ledger.shape_of(first)
    pools = [state for state in ledger.fleet.pools if shape.counts[state.row]]
    waits = ", ".join(
        f"{shape.counts[state.row]} of {fleet_pool_text(ledger.fleet, state)}, {state.free} free" for state in pools
    )
    reached = (core.cycle.limits.reached(first, shape.counts[state.row], state.row) for state in pools)
    waits = "; ".join((waits, *dict.fromkeys(limit.words for limit in reached if limit is not None)))
    detail = (
        f"behind job {first.job_id}, the head of the queue, which waits (it needs {waits}); "
        "under this policy no job starts before the head of the queue"
    )
    fix = (
        f"let job {first.job_id} start or cancel it; or let others pass: `strict: false` and another `backfill` than"
        " none in the policy"
    )
    return PendingReason(Reason.WAIT_PRIORITY, detail, fix)


def _pool_reason(core: SchedulerCore, job: JobRecord, state: PoolState, *, is_asked: bool) -> PendingReason:
    """Returns why the job does not run on one pool."""
    ledger, columns = core.ledger, core.ledger.columns
    shape = ledger.shape_of(job)
    is_shared, is_planned = core.cycle.policy.pricing is not None, core.cycle.policy.plans
    planned = dict(ledger.planned_parts(job)) if is_planned else {}
    count = planned.get(state.row, shape.counts[state.row])
    need = f"{fleet_pool_text(ledger.fleet, state)}: needs {count}, {state.free} of {state.capacity} free"
    facts = []
    if state.row in planned:
        facts.append(f"{count} of the {sum(planned.values())} it is planned on are here")
    elif is_planned:
        facts.append("planned here" if columns.entitled[job.slot, state.row] > 0 else "not planned here")
    elif is_shared:
        share = float(columns.entitled[job.slot, state.row]) / count
        owed = float(columns.owed[job.slot, state.row])
        facts.append(f"share {share:.2f}, owed {owed:.0f} accelerator-seconds")
    if state.free < count:
        reason, *more = _capacity_reason(state, count, ledger.now)
        not_rented, remedy = why_not_rented(core.cycle.policy.rules, job.request, state, count)
        if reason is Reason.WAIT_CAPACITY and state.capacity < count and not_rented:
            reason, more = Reason.WAIT_PRICE, [not_rented]
        if is_asked:
            more += [each for each in _machines(core, job, state) if not any(each in said for said in more)]
        fix = "; or ".join(filter(None, (_taking_jobs_again(state) if is_asked else "", remedy)))
        return PendingReason(reason, "; ".join((need, *more, *facts)), fix)
    if (limit := core.cycle.limits.reached(job, count, state.row)) is not None:
        return PendingReason(Reason.WAIT_QUOTA, "; ".join((need, limit.words, *facts)))
    if find_free_place(core.cycle, job, state.row) is None:
        reason, why = _what_keeps_it_off(core, job, state)
        return PendingReason(reason, "; ".join((f"{need}, but {why}", *facts)))
    reason = Reason.WAIT_NOT_EVALUATED if is_shared else Reason.WAIT_PRIORITY
    figures = "" if is_planned else price_figure(core, state.row)
    return PendingReason(reason, "; ".join((need, *facts)), figures=figures)


#: Reasons of jobs that an obstacle keeps from what is free; others leave too little on one machine.
_REASONS = {
    Obstacle.BOOKED: Reason.WAIT_BOOKED,
    Obstacle.RESERVED: Reason.WAIT_RESERVATION,
    Obstacle.FAILED: Reason.WAIT_CAPACITY,
}


def _what_keeps_it_off(core: SchedulerCore, job: JobRecord, state: PoolState) -> tuple[Reason, str]:
    """Returns why the job cannot have what is free in the pool: the obstacle that keeps most of it from the job."""
    shape = core.ledger.shape_of(job)
    found = obstacles(core.cycle, job, state.row, shape).most_common(1)
    if not found:
        return Reason.WAIT_FRAGMENTED, "not on few enough machines"
    (obstacle, node_id), _ = found[0]
    if obstacle is Obstacle.FAILED:
        return Reason.WAIT_CAPACITY, f"only on {_failed_there(core, job, state)}"
    return _REASONS.get(obstacle, Reason.WAIT_FRAGMENTED), f"{node_id} {obstacle}"


def _failed_there(core: SchedulerCore, job: JobRecord, state: PoolState) -> str:
    """Returns the machines on which the job failed and which it therefore avoids."""
    fleet, failed = core.ledger.fleet, core.ledger.retries.failed.get(job.job_id, {})
    here = [node_id for node_id in failed if (machine := fleet.machine(node_id)) and machine.pool == state.row]
    ends = max((inf if failed[each][0] >= INSISTS_AFTER else failed[each][1] for each in here), default=inf)
    until = "as long as there is one" if ends == inf else f"for {format_length(ends - core.ledger.now)} at most"
    return f"{', '.join(here[:3])}, where it failed: it waits for another machine, {until}"


def _with_price(line: PendingReason, value: float, cost: float, unit: str) -> PendingReason:
    """Returns the reason with its price figures; a WAIT_PRICE reason if only the price keeps the job from the place."""
    figures = f"worth {value:.3g} here, price {cost:.3g} ({unit})"
    if cost <= value or line.reason is not Reason.WAIT_NOT_EVALUATED:
        return replace(line, figures=figures)
    return PendingReason(Reason.WAIT_PRICE, f"{line.detail}; {_PRICED_OUT}", line.fix, figures)


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
        away = next((each for each in state.members.values() if each.condition is not MachineCondition.UP), None)
        said = "" if away is None else f": {_away_text(away)}"
        return Reason.WAIT_CAPACITY, f"more of its machines must join, or take jobs again{said}"
    return (Reason.WAIT_CAPACITY,)


def _machines(core: SchedulerCore, job: JobRecord, state: PoolState) -> list[str]:
    """Returns which other jobs hold the machines of a pool, and which machines take no jobs: the first few of each."""
    machines = state.members.values()
    holders = sorted({job_id for each in machines for job_id in each.holders} - {job.job_id})
    away = [_away_text(each) for each in machines if each.condition is not MachineCondition.UP]
    held = [f"held by {format_jobs(holders, _NAMED_MAX)}{_unstoppable(core, holders)}"] if holders else []
    return held + away[:_NAMED_MAX]


def _unstoppable(core: SchedulerCore, holders: Sequence[JobId]) -> str:
    """Returns which holders cannot be stopped now, and what protects the first of them.

    Under shares and orders these are only the ones that no other job could stop.
    """
    ledger, ordering, staying = core.ledger, core.cycle.ordering, dict[JobId, Protection]()
    for job in (ledger.jobs[job_id] for job_id in holders):
        found = ordering.protects(job) if core.cycle.policy.plans else may_be_stopped(ledger, job, StopFor.RETURN)
        if job.holds and found is not None:
            staying[job.job_id] = found
    if not staying:
        return ""
    why = next(iter(staying.values()))
    same = [job_id for job_id, found in staying.items() if found is why]
    if same == list(holders):
        return f", which {why.said_of(len(same))}"
    return f"; {format_jobs(same, _NAMED_MAX)} {why.said_of(len(same))}"


#: What machines that leave are told to do, by the reason in their detail.
_LEAVES = {
    Reason.HOLD_ADMIN.value: "is drained: it takes no new jobs",
    Reason.INFRA_SPOT_RECLAIM.value: "is about to be taken away",
    Reason.POLICY_RELEASED.value: "is about to be given back",
}


def _away_text(machine: FleetMachine) -> str:
    name, detail = machine.whole or machine.node_id, machine.detail.removeprefix("leaves: ")
    if machine.condition is MachineCondition.LEAVING:
        return f"{name} {_LEAVES.get(detail, f'takes no new jobs ({detail})')}"
    return f"{name} is {machine.condition.value}" + (f" ({detail})" if detail else "")


def _taking_jobs_again(state: PoolState) -> str:
    """Returns the command by which an administrator could let machines take jobs again; empty if there is none."""
    if state.pool.drained:
        return f"walras admin drain --pool {state.pool.pool_id} --off"
    aside = [each for each in state.members.values() if each.condition is MachineCondition.QUARANTINED]
    fix = "see why jobs fail there, then: walras admin drain --off"
    return f"{fix} {aside[0].whole or aside[0].node_id}" if aside else ""


def _place_in_queue(core: SchedulerCore, job: JobRecord) -> str:
    """Returns how many jobs are ahead in the one queue that listings show; empty if the job waits outside of it."""
    if not core.cycle.queues.is_waiting(job.job_id):
        return ""
    ahead = 0
    for ahead, job_id in enumerate(core.cycle.queues.in_order(_AHEAD_MAX)):
        if job_id == job.job_id:
            return f"{ahead} ahead"
    return f"{ahead + 1}+ ahead" if ahead + 1 >= _AHEAD_MAX else ""


# ------------------------------------------------------------------------------------------ bookings


def deciding_booking(core: SchedulerCore, job: JobRecord) -> tuple[Booking, int] | None:
    """Returns the booking without which a waiting job would have a place, and the pool's row; None if there is none.

    Of several bookings it is the one that ends first.
    """
    bookings = core.cycle.bookings
    if not bookings.declared or job.holds:
        return None
    counts = core.ledger.shape_of(job).counts
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
    if not booking.is_active(core.ledger.now):
        shape = core.ledger.shape_of(job)
        is_kept_off = find_free_place(core.cycle, job, row) is None
        return is_kept_off and core.ledger.fleet.find(row, shape) is not None
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
    machines = [each for each in core.cycle.bookings.machines(booking) if each.pool == row]
    accelerator = ledger.fleet.pools[row].pool.shape.accelerator
    what = f"{sum(each.size for each in machines)} accelerators of {accelerator} on {_named(machines)}"
    ends = f"it ends in {format_length(booking.until_at - now)}"
    because = f" ({booking.reason})" if booking.reason else ""
    if booking.is_active(now):
        whom = "nobody" if booking.project == NOBODY else f"jobs of project {booking.project} alone"
        detail = f"{booking.words}{because} keeps {what} for {whom}; {ends}"
        yield detail, f"wait for its end, or have it cancelled: walras admin remove reservation {booking.booking_id}"
        return
    begins = format_length(booking.from_at - now)
    detail = f"{booking.words}{because} takes {what} in {begins}; {ends}; this job {_why_not_before(core, job)}"
    remedy = "state `steps`, `estimated_duration` or `max_runtime` if it ends before; a job that saves may start anyway"
    yield detail, remedy


def _why_not_before(core: SchedulerCore, job: JobRecord) -> str:
    why = may_be_stopped(core.ledger, job, StopFor.LENDER) or "would have to be stopped as soon as it had started"
    stated = job.request
    is_known = stated.steps is not None or stated.duration_s is not None or stated.max_runtime_s < inf
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
    """Returns which of its stated plans the job runs, or what it holds in several pools and the speed planned there;
    empty for other jobs, and while it waits.
    """
    menu, ledger = job.request.plans, core.ledger
    if job.request.has_roles and job.placement is not None:
        return f"has {_roles_text(core, job, job.placement)}, planned at {ledger.rate_of(job):.3g} steps/s"
    held = ledger.classes.types_of(ledger.parts_of(job))
    if not menu and ledger.is_spread(job):
        named = " + ".join(f"{count} x {name}" for name, count in held.items())
        return f"has {named}, planned at {ledger.rate_of(job):.3g} steps/s"
    taken = job.request.plan_of(held)
    if taken is None:
        return ""
    row = menu.index(taken)
    return f"has {taken.text}: plans[{row}] of {len(menu)}, which states {taken.steps_per_s:.3g} steps/s"


def _roles_text(core: SchedulerCore, job: JobRecord, placement: Placement) -> str:
    """Returns which machine has which processes of a job with roles, and the rank under which they log."""
    fleet = core.ledger.fleet
    rows = [fleet.pool_row(part.pool_id or placement.pool_id) for part in placement.parts]
    types = ["" if row is None else fleet.pools[row].pool.shape.accelerator for row in rows]
    machines = list(zip(types, (len(part.devices) for part in placement.parts), strict=True))
    places = place_roles(roles_of(job.request, machines), machines)
    named = (", ".join(f"{role.name} {index}" for role, index in here) for here in places)
    return ", ".join(
        f"{roles} on {part.node_id} (log of rank {rank})"
        for rank, (roles, part) in enumerate(zip(named, placement.parts, strict=True))
    )


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
        f"state a value above {price:g} USD/h: submit it again with `value_usd_per_h`, or set `rules.values` of the"
        f" policy for project {request.project}, or `rules.delay_usd_per_h` for all"
    )
    return detail, fix


#: Number of jobs that are named, and number of jobs ahead that are examined.
_AHEAD_NAMED_MAX, _AHEAD_LOOKED_AT = 3, 500
#: What is said of a free place whose price exceeds what it is worth to the job, and of one that it will be offered.
_PRICED_OUT, _NEXT_DECIDES = "other jobs make more of it", "the next decision may give it a place"
#: Reasons about places: the sentence says who holds them and who goes first. Other reasons explain themselves.
_OF_PLACES = frozenset(
    {
        Reason.WAIT_NOT_EVALUATED,
        Reason.WAIT_CAPACITY,
        Reason.WAIT_FRAGMENTED,
        Reason.WAIT_PRICE,
        Reason.WAIT_PRIORITY,
        Reason.WAIT_FAIRSHARE,
        Reason.WAIT_RESERVATION,
        Reason.WAIT_PREEMPTING,
    }
)


def dominant_reason(core: SchedulerCore, job_id: JobId, expected: Mapping[PoolId, int] | None = None) -> str:
    """Returns why an active job does not run; for a running job with several plans, which plan it runs; else ""."""
    job = core.ledger.jobs.get(job_id)
    first = first_pending_reason(core, job_id, expected or {})
    if job is None or first is None:
        return "" if job is None else plan_taken(core, job)
    told = [_in_words(core, job, first)]
    are_roles = job.request.has_roles and first.reason is Reason.WAIT_NOT_EVALUATED
    if not job.holds and first.reason in _OF_PLACES and not are_roles:
        told = [_of_places(core, job, first, _pools_by_preference(core, job)), owned_text(core, job)]
    late = "" if job.holds else missed_deadline_text(core, job)
    return "; ".join(filter(None, (*told, late)))


def _of_places(core: SchedulerCore, job: JobRecord, first: PendingReason, pools: Sequence[PoolState]) -> str:
    """Returns the sentence for reasons about places."""
    ahead = _ahead(core, job, pools)
    holders = _holders(core, job, pools)
    is_renting = any(state.awaited for state in pools)
    if is_renting:
        return f"machines for it are on their way: {_sizes(core, job, pools)}"
    if first.reason is Reason.WAIT_PRICE and first.detail.endswith(_PRICED_OUT):
        return f"{_sizes(core, job, pools)}, but {_PRICED_OUT}"
    if ahead:
        return f"{_go_first(core, job, ahead)}{_and_hold(core, holders)}"
    if first.reason is Reason.WAIT_NOT_EVALUATED:
        return f"{_sizes(core, job, pools)}; {_NEXT_DECIDES}"
    if holders:
        return _held_by(core, job, pools, holders)
    return f"{_sizes(core, job, pools)}; {first.detail.split('; ')[0]}"


#: What is said of a held job.
_HELD = {
    Reason.HOLD_USER: "its owner holds it",
    Reason.HOLD_ADMIN: "an operator holds it",
    Reason.HOLD_REPEATED_FAILURE: "it failed repeatedly in the same way",
}


def _in_words(core: SchedulerCore, job: JobRecord, first: PendingReason) -> str:
    """Returns the sentence for reasons that are not about places."""
    if first.reason is Reason.WAIT_DEPENDENCY:
        return f"it waits for {_blockers(core, job)}{_times(core, job.blocked_by)}"
    if first.reason in (Reason.WAIT_BACKOFF, Reason.WAIT_NOT_BEFORE):
        why = "it failed recently, and restarts" if first.reason is Reason.WAIT_BACKOFF else "it was submitted to start"
        return f"{why} in {format_length(max(job.ready_at - core.ledger.now, 0.0))}"
    if first.reason in _HELD:
        return f"{_HELD[first.reason]}; it cannot start before it is released"
    return first.detail or first.reason.words


def _blockers(core: SchedulerCore, job: JobRecord) -> str:
    """Returns the jobs for which this one waits, until what, and which of them are held and so do not go on."""
    jobs = sorted(job.blocked_by)
    held = [each for each in jobs if core.ledger.jobs[each].state is JobState.HELD]
    is_held = f"; {format_jobs(held, _NAMED_MAX)} {'is' if len(held) == 1 else 'are'} held" if held else ""
    return f"{format_jobs(jobs)} to {'end' if job.request.depends_on_any_end else 'succeed'}{is_held}"


def _pools_by_preference(core: SchedulerCore, job: JobRecord) -> list[PoolState]:
    """Returns the pools that can hold the job: where it has a share first, then where enough is free, then by speed."""
    ledger = core.ledger
    job_class = ledger.class_of(job)
    counts, entitled = ledger.classes.shapes[job_class.shape].counts, ledger.columns.entitled[job.slot]
    lacks = np.array([state.free < count for state, count in zip(ledger.fleet.pools, counts, strict=True)])
    rows = np.lexsort((-job_class.rates, lacks, -entitled)).tolist()
    return [ledger.fleet.pools[row] for row in rows if counts[row]]


def _ahead(core: SchedulerCore, job: JobRecord, pools: Sequence[PoolState]) -> list[JobRecord]:
    """Returns waiting jobs that go before this one on its best pool, the most urgent first; [] if none does."""
    ordering, columns, queues = core.cycle.ordering, core.ledger.columns, core.cycle.queues
    # Computing a key settles the job's row. This is undone, because a question must not change later decisions.
    before = columns.settled_at[job.slot], columns.attained_s[job.slot], columns.owed[job.slot].copy()
    keys = dict(ordering.keys(job))
    columns.settled_at[job.slot], columns.attained_s[job.slot], columns.owed[job.slot] = before
    for state in pools:
        if state.row not in keys or not queues.busy([state.row]):
            continue
        mine = keys[state.row]
        found = sorted(
            entry
            for _, queue in queues.of(state.row)
            for entry in queue.first(_AHEAD_LOOKED_AT)
            if entry[0] < mine and entry[1] != job.job_id and queues.is_waiting(entry[1])
        )
        if found:
            return [core.ledger.jobs[job_id] for job_id in dict.fromkeys(job_id for _, job_id in found)]
    return []


def _holders(core: SchedulerCore, job: JobRecord, pools: Sequence[PoolState]) -> list[JobRecord]:
    """Returns the jobs that hold machines of the pools that this job could use; those that end first come first."""
    jobs = core.ledger.jobs
    found = {job_id for state in pools for machine in state.members.values() for job_id in machine.holders}
    holding = [jobs[job_id] for job_id in found if job_id != job.job_id and jobs[job_id].holds]
    return sorted(holding, key=lambda each: (remaining_here_s(core.ledger, each), each.job_id))


def _go_first(core: SchedulerCore, job: JobRecord, ahead: Sequence[JobRecord]) -> str:
    """Returns a text such as `jobs 18 and 19 go first: they need 20 min, you 9 h`."""
    verb = "goes" if len(ahead) == 1 else "go"
    slots = np.array([each.slot for each in (*ahead[:_AHEAD_NAMED_MAX], job)])
    needs = remaining_on_best_s(core.ledger, slots)
    theirs, own = float(needs[:-1].max()), float(needs[-1])
    text = f"{format_jobs([each.job_id for each in ahead])} {verb} first"
    if theirs < inf and own < inf:
        need = "it needs" if len(ahead) == 1 else "they need"
        return f"{text}: {need} {format_length(theirs)}, you {format_length(own)}"
    higher = [each for each in ahead if each.request.priority_class > job.request.priority_class]
    if higher:
        return f"{text}: {'its' if len(ahead) == 1 else 'their'} priority is higher"
    return text


def _and_hold(core: SchedulerCore, holders: Sequence[JobRecord]) -> str:
    if not holders:
        return ""
    verb = "has" if len(holders) == 1 else "have"
    return f"; {format_jobs([each.job_id for each in holders])} {verb} the places now{_first_ends(core, holders)}"


def _held_by(core: SchedulerCore, job: JobRecord, pools: Sequence[PoolState], holders: Sequence[JobRecord]) -> str:
    verb = "holds" if len(holders) == 1 else "hold"
    named = format_jobs([each.job_id for each in holders])
    return f"{named} {verb} what it needs ({_sizes(core, job, pools)}){_first_ends(core, holders)}"


def _first_ends(core: SchedulerCore, holders: Sequence[JobRecord]) -> str:
    """Returns when the first of these jobs ends, as far as they state it; they are sorted by what they have left."""
    left_s = remaining_here_s(core.ledger, holders[0])
    unknown = [each.job_id for each in holders if remaining_here_s(core.ledger, each) == inf]
    if left_s < inf:
        subject = f"job {holders[0].job_id}" + ("" if unknown else ", the first of them,")
        # A forecast knows how such estimates turned out, and may say otherwise on the same screen.
        whose = "" if core.ledger.lengths.factor(holders[0].request.owners[-1]) == 1.0 else "corrected "
        guessed = f" by its user's {whose}estimate" if holders[0].request.steps is None else ""
        ends = f"; {'it' if len(holders) == 1 else subject} ends in about {format_length(left_s)}{guessed}"
        return ends + (_not_stated(unknown) if unknown else "")
    limit_at, first = min((runtime_limit_at(core.ledger, each), each.job_id) for each in holders)
    if limit_at < inf:
        subject = "its" if len(holders) == 1 else f"job {first}'s"
        return f"; {subject} limit of run time ends in {format_length(limit_at - core.ledger.now)}"
    return "; when it ends is not stated" if len(holders) == 1 else _not_stated(unknown)


def _not_stated(jobs: Sequence[JobId]) -> str:
    return f"; when {format_jobs(jobs, _NAMED_MAX)} {'ends' if len(jobs) == 1 else 'end'} is not stated"


def _sizes(core: SchedulerCore, job: JobRecord, pools: Sequence[PoolState]) -> str:
    """Returns what the job needs and what is free of it; only its need if no pool can hold it or it has plans."""
    if not pools:
        return f"it needs {job.request.text}"
    counts = core.ledger.shape_of(job).counts
    free: dict[tuple[int, str], int] = {}
    for state in pools:
        way = counts[state.row], state.pool.shape.accelerator
        free[way] = free.get(way, 0) + state.free
    if job.request.plans:
        names = dict.fromkeys(accelerator for _, accelerator in free)
        idle = (f"{sum(free[way] for way in free if way[1] == name)} x {name}" for name in names)
        return f"it needs {job.request.text}; {', '.join(idle)} free"
    told = (f"{count} x {accelerator}, {idle} free" for (count, accelerator), idle in free.items())
    return f"it needs {' or '.join(islice(told, _AHEAD_NAMED_MAX))}"


def _times(core: SchedulerCore, job_ids: Iterable[JobId]) -> str:
    known = [core.ledger.jobs[job_id] for job_id in job_ids if job_id in core.ledger.jobs]
    left_s = max((remaining_here_s(core.ledger, each) for each in known), default=inf)
    return f", in about {format_length(left_s)}" if left_s < inf else ""
