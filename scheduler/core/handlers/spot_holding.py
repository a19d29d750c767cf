"""Jobs with a deadline, an hour of which nobody gives a worth: they hold spot machines, machines on demand or none by
their slack (`optimizer.planning.slack_policy`).

The choice is made again once in `WATCH_S`, and when the market takes a machine or refuses one. Whether there is a spot
machine is learnt by asking for one, and it is asked only where one would be held. A job on demand stays there until the
spot machine is ready. Owned machines, and those that others pay for, are used where the policy gives them; a job that
would have to leave these is left to `handlers/deadlines.py`, as is one without a spot pool that is cheaper.
"""

from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil, inf

from optimizer.planning.deadline_job import HeldMachine
from optimizer.planning.slack_grid import WATCH_S, SlackSituation, likely_stay_s
from scheduler.core.commands import Rent
from scheduler.core.handlers import deadlines
from scheduler.core.placement.checkpoint_intervals import FIRST_BY_S, is_warned_in_time
from scheduler.core.placement.reservations import drop_reservation
from scheduler.core.state.fleet import PoolState
from scheduler.core.state.ledger import JobRecord, Ledger
from scheduler.core.state.market_watch import SpotHold, WatchedMarket
from scheduler.core.state.remaining_work import from_checkpoint_s, remaining_here_s
from scheduler.core.state.working_set import Cycle
from walras.cluster import Market
from walras.contract import SECONDS_PER_HOUR
from walras.states import JobState
from walras.units import format_length

#: A spot machine is as fast as this part of the one on demand at least.
_FAST_ENOUGH = 0.8
#: The market may have another machine this long after it took one.
_AFTER_LOSS_S = 30.0
#: A spot machine that was asked for is waited for this much longer than machines take to boot.
_PATIENCE_S = 120.0
#: Plans are made by so many of their slots in one event (10 ms or less), so often: no event waits for a whole one.
_SLOTS_AT_ONCE, _PLANNING_S = 8, 1.0


@dataclass(frozen=True, slots=True)
class _Offer:
    """Between what a job may choose."""

    #: Pool on demand, and its speed.
    sure: int
    rate: float
    #: Spot pools, ascending.
    zones: tuple[int, ...]
    #: Money for the same work on each, in parts of what it costs on demand.
    price: dict[int, float]
    restart_s: float


def settle_spot_holding(cycle: Cycle) -> None:
    """Before other deadlines: jobs that may be on spot hold what their slack allows."""
    watch, heap = cycle.deadlines, cycle.deadlines.heap
    others = []
    while heap and heap[0][0] <= cycle.now:
        entry = heappop(heap)
        job = cycle.ledger.jobs.get(entry[1])
        offer = None if job is None or job.deadline_pool >= 0 else _offer(cycle, job)
        if job is not None and offer is not None:
            _adopt(cycle, job, offer)
        else:
            others.append(entry)
    for entry in others:
        heappush(heap, entry)
    for job_id in sorted(watch.market.holds):
        job, hold = cycle.ledger.jobs.get(job_id), watch.market.holds[job_id]
        if job is None:
            del watch.market.holds[job_id]
            continue
        _follow_up(cycle, job, hold)
        if hold.look_at <= cycle.now and hold.asked < 0:
            _choose(cycle, job, hold)


def _adopt(cycle: Cycle, job: JobRecord, offer: _Offer) -> None:
    """Choose for the job from now on. It stays on a machine that the core before this one rented for it."""
    cycle.deadlines.market.holds.setdefault(job.job_id, SpotHold()).look_at = cycle.now
    if _here(cycle, job) in (*offer.zones, offer.sure) and job.job_id not in cycle.policy.riders:
        deadlines.secure(cycle, job, _here(cycle, job))


# ------------------------------------------------------------------------------------------------ what there is


def _offer(cycle: Cycle, job: JobRecord) -> _Offer | None:
    """None: its deadline is none that slack is spent for, or there is no spot pool for it, cheap or dear."""
    request, ledger = job.request, cycle.ledger
    if request.deadline_at <= cycle.now or request.steps is None or request.sizes or request.spreads:
        return None
    if not request.preemptible or job.loses_work or cycle.policy.rules.value_of(request)[0] > 0:
        return None
    sure = _sure_pool(ledger, job)
    if sure < 0:
        return None
    job_class, boot_s = ledger.class_of(job), ledger.fleet.pools[sure].pool.boot_s
    rate = float(job_class.rates[sure])
    price, is_dear = dict[int, float](), False
    for state in ledger.fleet.pools:
        if state.pool.market is not Market.SPOT or float(job_class.rates[state.row]) < _FAST_ENOUGH * rate:
            continue
        count = ledger.count_on(job, state.row)
        if not count or state.quota < ceil(count / state.pool.shape.accelerators):
            continue
        part = _usd_per_step(ledger, job, state) / _usd_per_step(ledger, job, ledger.fleet.pools[sure])
        is_dear = is_dear or part >= 1
        if 0 < part < 1:
            price[state.row] = part
            boot_s = max(boot_s, state.pool.boot_s)
    restart_s = ledger.restart_s(job, cycle.policy.rules) + boot_s
    return _Offer(sure, rate, tuple(sorted(price)), price, restart_s) if price or is_dear else None


def _sure_pool(ledger: Ledger, job: JobRecord) -> int:
    """Row of the pool on demand where it would end in time; -1: that is on owned machines, or nowhere."""
    row = job.deadline_pool
    if row < 0 or ledger.fleet.pools[row].pool.market is Market.SPOT:
        found = deadlines.deadline_outlook(ledger, job)
        row = -1 if found is None else found.pool
    state = ledger.fleet.pools[row] if row >= 0 else None
    return row if state is not None and state.pool.market is Market.ON_DEMAND and state.pool.usd_per_h > 0 else -1


def _usd_per_step(ledger: Ledger, job: JobRecord, state: PoolState) -> float:
    machines = ceil(ledger.count_on(job, state.row) / state.pool.shape.accelerators)
    return machines * state.pool.usd_per_h / float(ledger.class_of(job).rates[state.row])


def _here(cycle: Cycle, job: JobRecord) -> int:
    """Row of the pool where it is, and was not asked to leave; -1: nowhere."""
    return int(cycle.ledger.columns.pool[job.slot]) if job.holds and job.revoked is None else -1


def _held(cycle: Cycle, job: JobRecord) -> HeldMachine:
    here = _here(cycle, job)
    if here < 0 or here != job.deadline_pool:
        return HeldMachine.NOTHING
    spot = cycle.ledger.fleet.pools[here].pool.market is Market.SPOT
    return HeldMachine.SPOT if spot else HeldMachine.ON_DEMAND


def _situation(cycle: Cycle, job: JobRecord, offer: _Offer) -> SlackSituation:
    """Where it stands, on the safe side: stopping takes time, and what is not saved is lost with a machine whose end
    is not announced early enough."""
    ledger, held = cycle.ledger, _held(cycle, job)
    restart_s, pending_s = offer.restart_s, 0.0
    if held is HeldMachine.NOTHING:
        work_s = from_checkpoint_s(job, offer.rate)
    else:
        work_s = min(
            remaining_here_s(ledger, job) * ledger.rate_of(job) / offer.rate, from_checkpoint_s(job, offer.rate)
        )
        if job.state is JobState.STARTING:
            pending_s = max(0.0, restart_s - (cycle.now - job.leased_at))
    work_s += deadlines.reserve_s(work_s) + job.request.grace_s
    if not is_warned_in_time(ledger, job, [ledger.fleet.pools[row] for row in offer.zones]):
        # Elsewhere it saves at another interval than it will on spot.
        told_s = job.checkpoint_every_s if held is HeldMachine.SPOT else None
        planned_s = job.request.checkpoint_every_s or told_s
        work_s += FIRST_BY_S if planned_s is None else planned_s
    price = min(offer.price.values())
    left_s = job.request.deadline_at - cycle.now
    return SlackSituation(work_s, left_s, restart_s, pending_s, held, 1 / price, len(offer.zones))


# ------------------------------------------------------------------------------------------------ what is held


def _follow_up(cycle: Cycle, job: JobRecord, hold: SpotHold) -> None:
    """What became of the machine that it held, or asked for."""
    pools, row = cycle.ledger.fleet.pools, job.deadline_pool
    if row >= 0 and pools[row].pool.market is Market.SPOT and _is_gone(cycle, job, row):
        deadlines.let_go(cycle, job)
        hold.refused.add(row)
        hold.look_at = hold.lost_at = cycle.now
    if hold.asked < 0:
        return
    row = hold.asked
    if _find(cycle, job, row):
        hold.asked = -1
        _take(cycle, job, row)
        hold.refused.clear()
        hold.look_at = cycle.now
    elif not pools[row].awaited or cycle.now > hold.asked_at + pools[row].pool.boot_s + _PATIENCE_S:
        hold.asked = -1
        hold.refused.add(row)
        hold.look_at = cycle.now


def _is_gone(cycle: Cycle, job: JobRecord, row: int) -> bool:
    """It neither is on the spot pool that was chosen, nor is a place kept or free for it."""
    reservation = cycle.reservations.get(job.job_id)
    on_its_way = reservation is not None and reservation.pool == row
    return _here(cycle, job) != row and not on_its_way and not _find(cycle, job, row)


def _find(cycle: Cycle, job: JobRecord, row: int) -> bool:
    ledger = cycle.ledger
    return ledger.fleet.find(row, ledger.classes.shapes[ledger.class_of(job).shape]) is not None


def _take(cycle: Cycle, job: JobRecord, row: int) -> None:
    """It goes to this pool, and stays there until it is chosen otherwise."""
    drop_reservation(cycle, job.job_id)
    deadlines.secure(cycle, job, row)


def _choose(cycle: Cycle, job: JobRecord, hold: SpotHold) -> None:
    """Spot, on demand or nothing, for the slot that begins."""
    offer = _offer(cycle, job)
    if offer is None:
        _give_up(cycle, job)
        return
    refused, hold.refused = hold.refused, set()
    _look_again(cycle, hold, cycle.now + (_AFTER_LOSS_S if hold.lost_at == cycle.now else WATCH_S))
    is_kept_back = job.blocked_by or job.over_budget or job.awaits_turn or job.state is JobState.HELD
    if is_kept_back or job.ready_at > cycle.now:
        return
    if not offer.zones and _held(cycle, job) is not HeldMachine.ON_DEMAND:
        deadlines.let_go(cycle, job)
    if not offer.zones or (_here(cycle, job) >= 0 and job.deadline_pool < 0):
        _bide(cycle, job, hold)
        return
    market, now = cycle.deadlines.market.market(offer.zones), _situation(cycle, job, offer)
    if not _is_planned(cycle, now):
        hold.refused = refused
        _look_again(cycle, hold, cycle.now + _PLANNING_S)
        return
    if now.held is HeldMachine.SPOT:
        market.see(cycle.now, available=True)
    belief = market.if_it_were(cycle.now, available=True)
    worth = cycle.deadlines.market.plans.worth(now, belief, spot=True)
    wanted = min(worth, key=lambda held: worth[held], default=HeldMachine.ON_DEMAND)
    if wanted is HeldMachine.SPOT:
        if now.held is HeldMachine.SPOT or _ask(cycle, job, hold, offer, refused):
            hold.why = _why(HeldMachine.SPOT, now, market)
            return
        if refused:
            market.see(cycle.now, available=False)
        worth = cycle.deadlines.market.plans.worth(now, market.if_it_were(cycle.now, available=False), spot=False)
        wanted = min(worth, key=lambda held: worth[held], default=HeldMachine.ON_DEMAND)
    if wanted is HeldMachine.ON_DEMAND and job.deadline_pool != offer.sure:
        _take(cycle, job, offer.sure)
    hold.why = _why(max(wanted, now.held), now, market, is_forced=len(worth) <= 1)


def _is_planned(cycle: Cycle, now: SlackSituation) -> bool:
    """Whether there is a plan for such a job; if not, one event in a second goes on with it."""
    watch = cycle.deadlines.market
    pieces = _SLOTS_AT_ONCE if cycle.now >= watch.planned_at + _PLANNING_S else 0
    is_ready = watch.plans.make_ready(now, pieces)
    if not is_ready and pieces:
        watch.planned_at = cycle.now
    return is_ready


def _look_again(cycle: Cycle, hold: SpotHold, at: float) -> None:
    hold.look_at = at
    cycle.timers.set(at, "deadline")


def _bide(cycle: Cycle, job: JobRecord, hold: SpotHold) -> None:
    """It is where the policy has it, or waits for cheaper spot, until the last moment at which it could move."""
    found = deadlines.deadline_outlook(cycle.ledger, job)
    hold.why = ""
    if job.deadline_pool >= 0:
        return
    if found is not None and found.slack_s <= 0 and cycle.ledger.fleet.pools[found.pool].rented:
        _take(cycle, job, found.pool)
    elif found is not None:
        _look_again(cycle, hold, cycle.now + min(max(found.slack_s, 1.0), WATCH_S))


def _give_up(cycle: Cycle, job: JobRecord) -> None:
    """Other rules are for it now."""
    del cycle.deadlines.market.holds[job.job_id]
    if job.deadline_pool < 0 or cycle.ledger.fleet.pools[job.deadline_pool].pool.market is Market.SPOT:
        deadlines.let_go(cycle, job)
        heappush(cycle.deadlines.heap, (cycle.now, job.job_id))


def _ask(cycle: Cycle, job: JobRecord, hold: SpotHold, offer: _Offer, refused: set[int]) -> bool:
    """A spot machine of the zone that is cheapest, its restarts included; those that gave none now are left out."""
    watch, pools = cycle.deadlines.market, cycle.ledger.fleet.pools

    def cost(row: int) -> tuple[float, int]:
        stay_s = likely_stay_s(watch.market((row,)).if_it_were(cycle.now, available=True))
        return offer.price[row] * (1 + offer.restart_s / stay_s), row

    for row in refused:
        if len(offer.zones) > 1:
            watch.market((row,)).see(cycle.now, available=False)
    for row in sorted(set(offer.zones) - refused, key=cost):
        if _find(cycle, job, row):
            _take(cycle, job, row)
            return True
        if _rent(cycle, job, pools[row]):
            hold.asked, hold.asked_at, hold.refused = row, cycle.now, refused
            cycle.timers.set(cycle.now + pools[row].pool.boot_s + _PATIENCE_S, "deadline")
            return True
    return False


def _rent(cycle: Cycle, job: JobRecord, state: PoolState) -> bool:
    """Ask for the machines of its gang; False where they may not be asked for now."""
    watch, coming = cycle.deadlines.market, sum(state.awaited.values())
    needed = ceil(cycle.ledger.count_on(job, state.row) / state.pool.shape.accelerators)
    may_ask = cycle.now >= state.rent_not_before or watch.may_ask(state.row, cycle.now)
    if not may_ask or cycle.spending.everything.closed or state.machines + coming + needed > state.quota:
        return False
    if cycle.ledger.count_on(job, state.row) > cycle.limits.room(job, state.row):
        return False
    token = f"{state.pool.pool_id}@{cycle.now:.6f}/spot-{job.job_id}-{state.machines + coming}"
    state.awaited[token] = needed
    watch.asked_at[state.row] = cycle.now
    cycle.commands.append(Rent(token, state.pool.pool_id, needed))
    return True


# ------------------------------------------------------------------------------------------------ in words


def _why(wanted: HeldMachine, now: SlackSituation, market: WatchedMarket, *, is_forced: bool = False) -> str:
    slack = f"its slack of {max(now.slack_s, 0.0) / SECONDS_PER_HOUR:.1f} h"
    if wanted is HeldMachine.SPOT:
        return f"holds spot, or asks for it: {slack} outlasts the loss of a machine"
    if wanted is HeldMachine.NOTHING:
        gap = format_length(_stay_s(market))
        return f"waits for spot: {slack} allows it so far; the gap is likely to last {gap} more"
    if is_forced:
        return f"holds machines on demand: {slack} is what a boot and a restart need"
    return f"holds machines on demand: to spend {slack} on waiting for spot now would cost more than it saves"


def _stay_s(market: WatchedMarket) -> float:
    stay_s = likely_stay_s(market.belief)
    return round(stay_s / 60) * 60.0 if stay_s < inf else stay_s
