"""Why a job is not running: every binding constraint with its numbers, and the smallest change that would help.

Computed when asked, from the ledger alone. Reasons that no waiting will cure (`CONFIG:*`) come first.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from scheduler.core.answers.possible import limits, obstacle
from scheduler.core.answers.remedies import free_when, remedies
from scheduler.core.core import SchedulerCore
from scheduler.core.ledger.fleet import Condition, Machine, PoolState
from scheduler.core.ledger.ledger import JobRecord
from scheduler.core.ledger.spending import Account
from scheduler.core.resolve import newcomer_of, ways_of
from walras.ids import JobId, PoolId
from walras.reasons import Reason
from walras.states import JobState

_NOTHING_MORE: Mapping[PoolId, int] = MappingProxyType({})
#: Jobs ahead are counted up to here.
_AHEAD_MOST = 5000
#: Jobs or machines that are named, of many.
_NAMED_MOST = 5


@dataclass(frozen=True, slots=True)
class ReasonLine:
    reason: Reason
    #: The constraint with its numbers.
    detail: str
    #: What would change it; empty when only time will.
    fix: str = ""


def explain(
    core: SchedulerCore, job_id: JobId, expected: Mapping[PoolId, int] = _NOTHING_MORE
) -> tuple[ReasonLine, ...]:
    """All reasons why an active job does not run, most binding first; empty for a running or unknown job.

    `expected`: machines of a pool that are known of elsewhere, joined or not.
    """
    job = core.ledger.jobs.get(job_id)
    if job is None:
        return ()
    return tuple(_lines(core, job, expected, counts_ahead=True))


def first_reason(
    core: SchedulerCore, job_id: JobId, expected: Mapping[PoolId, int] = _NOTHING_MORE
) -> ReasonLine | None:
    """The most binding reason alone, without the place in line: cheap enough for every row of a listing."""
    job = core.ledger.jobs.get(job_id)
    return None if job is None else next(_lines(core, job, expected, counts_ahead=False), None)


def _lines(
    core: SchedulerCore, job: JobRecord, expected: Mapping[PoolId, int], *, counts_ahead: bool
) -> Iterator[ReasonLine]:
    if job.state in (JobState.RUNNING, JobState.STARTING):
        return
    if job.state is JobState.HELD:
        yield _held(core, job)
    elif job.state in (JobState.PREEMPTING, JobState.CANCELLING):
        doing = (
            "being cancelled: its attempt is"
            if job.state is JobState.CANCELLING
            else "its attempt is checkpointing and"
        )
        silent = "".join(f"; no heartbeat from {name}" for name in _silent(core, job))
        yield ReasonLine(Reason.WAIT_PREEMPTING, f"{doing} stopping{silent}")
    elif job.state is JobState.UNREACHABLE:
        yield ReasonLine(
            Reason.WAIT_NOT_EVALUATED,
            f"no heartbeat from {', '.join(_silent(core, job))}; until its lease has run out the attempt may be alive",
            "it goes on if the machine comes back; once that is lost (`walras nodes` counts down), elsewhere, from its"
            " last checkpoint",
        )
    elif (never := _never(core, job, expected)) is not None:
        yield never
    else:
        yield from _gates(core, job)
        yield from _places(core, job, counts_ahead=counts_ahead)


def _silent(core: SchedulerCore, job: JobRecord) -> list[str]:
    machines = (core.ledger.fleet.machines[row] for row, _ in job.place)
    return [each.node_id for each in machines if each is not None and each.condition is Condition.UNREACHABLE]


def _never(core: SchedulerCore, job: JobRecord, expected: Mapping[PoolId, int]) -> ReasonLine | None:
    if not core.ledger.fleet.pools:
        return ReasonLine(Reason.WAIT_CAPACITY, "no machine has joined this cluster yet", "start a `walras agent`")
    found = obstacle(job.request, limits(core.ledger.fleet, expected))
    return None if found is None else ReasonLine(found.reason, found.detail, found.fix)


def _held(core: SchedulerCore, job: JobRecord) -> ReasonLine:
    account = core.cycle.spending.closed_to(job) if job.hold_reason is Reason.HOLD_BUDGET else None
    if account is None:
        return ReasonLine(job.hold_reason or Reason.HOLD_USER, "held", f"walras release {job.job_id}")
    return _unpaid(core, account, Reason.HOLD_BUDGET)


def _unpaid(core: SchedulerCore, account: Account, reason: Reason) -> ReasonLine:
    """Which budget, with its numbers."""
    spending = core.cycle.spending
    if account.is_of_job:
        job_id = account.name.removeprefix("job ")
        fix = f"it goes on from its last checkpoint once its budget is raised: walras update {job_id} --budget USD"
    else:
        fix = "it goes on by itself when the budget is raised (rules.budgets of the policy), or with the next month"
    return ReasonLine(reason, spending.text(account), fix)


def _gates(core: SchedulerCore, job: JobRecord) -> Iterator[ReasonLine]:
    now = core.ledger.now
    account = core.cycle.spending.closed_to(job)
    if account is not None:
        yield _unpaid(core, account, Reason.WAIT_BUDGET)
    if job.blocked_by:
        blockers = ", ".join(map(str, sorted(job.blocked_by)))
        yield ReasonLine(Reason.WAIT_DEPENDENCY, f"waits for job {blockers}")
    if job.ready_at > now:
        is_backoff = job.ready_at != job.request.not_before_at
        reason = Reason.WAIT_BACKOFF if is_backoff else Reason.WAIT_NOT_BEFORE
        yield ReasonLine(reason, f"not before {job.ready_at - now:.0f} s from now")


def _places(core: SchedulerCore, job: JobRecord, *, counts_ahead: bool) -> Iterator[ReasonLine]:
    ledger, claim = core.ledger, core.cycle.claims.get(job.job_id)
    # What would help is said once, with the most binding reason, and where somebody asks about this job. While others
    # leave for it nothing does but the seconds that they take.
    is_exchange = claim is not None and claim.exchange
    fix = remedies(core, job) if counts_ahead and not is_exchange else ""
    if claim is not None:
        missing = sum(claim.needs.values())
        rows = [row for row, _ in ledger.fleet.parts_of(claim.wanted.items())]
        pool_id = " and ".join(ledger.fleet.pools[row].pool.pool_id for row in rows)
        reason = Reason.WAIT_PREEMPTING if claim.exchange else Reason.WAIT_RESERVATION
        detail = f"{missing} of {sum(claim.wanted.values())} accelerators of its place on {pool_id} are not free yet"
        if counts_ahead and not claim.exchange:
            detail += f"; {free_when(core, claim)}"
        yield ReasonLine(reason, detail, fix)
        fix = ""
    job_class, worth = ledger.class_of(job), _worth(core, job)
    counts, entitled = ledger.classes.forms[job_class.form].counts, ledger.columns.entitled[job.slot]
    # Where it has a share comes first, then where it is fastest.
    for row in np.lexsort((-job_class.rates, -entitled)).tolist():
        if counts[row]:
            line = _place(core, job, ledger.fleet.pools[row], counts_ahead=counts_ahead)
            line = line if row not in worth else _at_price(line, *worth[row])
            yield replace(line, fix="; or ".join(filter(None, (line.fix, fix))))
            fix = ""


def _place(core: SchedulerCore, job: JobRecord, state: PoolState, *, counts_ahead: bool) -> ReasonLine:
    """Why it does not run on one pool."""
    ledger, columns = core.ledger, core.ledger.columns
    form = ledger.classes.forms[ledger.class_of(job).form]
    is_shared, is_planned = core.cycle.standing.sharing is not None, core.cycle.standing.plans
    planned = dict(ledger.planned_parts(job)) if is_planned else {}
    count = planned.get(state.row, form.counts[state.row])
    need = f"{state.pool.pool_id}: needs {count}, {state.free} of {state.capacity} free"
    standing = []
    if state.row in planned:
        standing.append(f"{count} of the {sum(planned.values())} it is planned on are here")
    elif is_planned:
        standing.append("planned here" if columns.entitled[job.slot, state.row] > 0 else "not planned here")
    elif is_shared:
        share = float(columns.entitled[job.slot, state.row]) / count
        owed = float(columns.owed[job.slot, state.row])
        standing.append(f"share {share:.2f}, owed {owed:.0f} accelerator-seconds")
    if counts_ahead:
        ahead = _ahead(core, job, state.row)
        standing.append(f"{ahead}{'+' if ahead >= _AHEAD_MOST else ''} ahead")
    if state.free < count:
        reason, *more = _missing(state, count, ledger.now)
        if counts_ahead:
            more += _machines(core, job, state)
        fix = _taking_jobs_again(state) if counts_ahead else ""
        return ReasonLine(reason, "; ".join((need, *more, *standing)), fix)
    if ledger.fleet.find(state.row, form) is None:
        return ReasonLine(Reason.WAIT_FRAGMENTED, "; ".join((f"{need}, but not on few enough machines", *standing)))
    reason = Reason.WAIT_PRICE if is_shared else Reason.WAIT_PRIORITY
    price = () if is_planned else _price(core, state.row)
    return ReasonLine(reason, "; ".join((need, *standing, *price)))


def _worth(core: SchedulerCore, job: JobRecord) -> dict[int, tuple[float, float, str]]:
    """Under a plan, by pool: what the place is worth to the job, what it costs at the plan's prices, and their unit."""
    ledger, standing = core.ledger, core.cycle.standing
    quote, pools = standing.quote, ledger.fleet.pools
    if standing.sharing is None or not standing.plans or quote is None or len(quote.prices) != len(pools):
        return {}
    capacity = np.array([float(state.capacity) for state in pools])
    ways = ways_of(ledger.classes, np.array([job.class_row]), capacity)
    if not len(ways.job):
        return {}
    value = standing.sharing.value(newcomer_of(ledger, job, ways, capacity), quote)
    cost = ways.count * quote.prices[ways.pool]
    # Of several gang sizes on a pool, the one that gains most.
    return {int(ways.pool[at]): (value[at], cost[at], quote.unit) for at in np.argsort(value - cost, kind="stable")}


def _at_price(line: ReasonLine, value: float, cost: float, unit: str) -> ReasonLine:
    """Who would have to pay more than a place is worth to it waits for the price."""
    detail = f"{line.detail}; worth {value:.3g} here, price {cost:.3g} ({unit})"
    return ReasonLine(Reason.WAIT_PRICE if cost > value else line.reason, detail, line.fix)


def _missing(state: PoolState, count: int, now: float) -> tuple[Reason, *tuple[str, ...]]:
    """Why a pool has too little free, and what is under way."""
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
    """Who else holds the machines of a pool, and which of them take no jobs: the first few."""
    machines = state.members.values()
    holders = sorted({job_id for each in machines for job_id in each.holders} - {job.job_id})
    away = [_away_text(each) for each in machines if each.condition is not Condition.UP]
    more = ", ..." if len(holders) > _NAMED_MOST else ""
    held = [f"held by job {', '.join(map(str, holders[:_NAMED_MOST]))}{more}"] if holders else []
    return held + _staying(core, holders) + away[:_NAMED_MOST]


def _staying(core: SchedulerCore, holders: Sequence[JobId]) -> list[str]:
    """Under a plan, which stops whom it moves: those that it must leave where they are, whatever waits."""
    discipline, jobs = core.cycle.discipline, core.ledger.jobs
    if discipline is None or not core.cycle.standing.plans:
        return []
    staying = [job_id for job_id in holders if jobs[job_id].holds and not discipline.can_be_stopped(jobs[job_id])]
    if not staying:
        return []
    named = ", ".join(map(str, staying[:_NAMED_MOST])) + (", ..." if len(staying) > _NAMED_MOST else "")
    return [f"job {named} cannot be stopped now (`preemptible: false`, no checkpoint, or its speed is being learnt)"]


def _away_text(machine: Machine) -> str:
    return f"{machine.node_id} is {machine.condition.value}" + (f" ({machine.detail})" if machine.detail else "")


def _taking_jobs_again(state: PoolState) -> str:
    """Machines that an administrator could let take jobs."""
    aside = [each.node_id for each in state.members.values() if each.condition is Condition.QUARANTINED]
    return f"see why jobs fail there, then: walras admin resume {aside[0]}" if aside else ""


def _price(core: SchedulerCore, pool: int) -> tuple[str, ...]:
    standing = core.ledger.standing
    if standing is None or standing.quote is None or pool >= len(standing.quote.prices):
        return ()
    return (f"price {standing.quote.prices[pool]:.3g} {standing.quote.unit}",)


def _ahead(core: SchedulerCore, job: JobRecord, pool: int) -> int:
    """Waiting jobs with a better place in the pool's line; `_AHEAD_MOST` stands for that many or more."""
    discipline, columns = core.cycle.discipline, core.ledger.columns
    # A key settles the job's row. Undone: whether somebody asks must not change a bit of what is decided later.
    before = columns.settled_at[job.slot], columns.attained_s[job.slot], columns.owed[job.slot].copy()
    mine = None if discipline is None else dict(discipline.keys(job)).get(pool)
    columns.settled_at[job.slot], columns.attained_s[job.slot], columns.owed[job.slot] = before
    return 0 if mine is None else core.cycle.lines.ahead(pool, mine, _AHEAD_MOST)
