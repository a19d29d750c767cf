"""Jobs with a deadline and no stated value: by their slack they hold spot machines, on-demand machines or none.

The rule is in `optimizer.planning.slack_policy`; elastic jobs also choose the cheapest gang size. The choice is
repeated every `WATCH_S` seconds, and when the market reclaims or refuses a machine; for an elastic job also when a
price or its gang's speed changes. Whether spot machines are available is learnt by requesting one, and only where one
would be held. A job on demand stays there until the spot machine is ready. Owned machines, and those that other jobs
pay for, are used where the policy gives them; a job that would have to leave these is left to `handlers/deadlines.py`,
as is one without a cheaper spot pool.

A job chooses among offers, one for each size of its gang. An offer has an on-demand pool where the job would end in
time with a gang of that size, and spot pools with machines about as fast. The cost until the job's end is the
cost-to-go of its slack (`optimizer.planning.slack_policy`), revocations, gaps and restarts included, as if it kept that
size. The size is chosen again at every look, so the least of these costs is an upper estimate of what the job will
cost, and the deadline is never missed by it. A rigid job has one offer.
"""

from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import ceil, inf

from optimizer.planning.deadline_job import HeldMachine
from optimizer.planning.slack_policy import WATCH_S, SlackSituation, likely_stay_s
from scheduler.core.commands import Rent
from scheduler.core.handlers import deadlines
from scheduler.core.placement.checkpoint_intervals import FIRST_BY_S, is_warned_in_time
from scheduler.core.placement.reservations import drop_reservation
from scheduler.core.placement.search import find_free_place
from scheduler.core.placement.where import may_hold
from scheduler.core.state.fleet import MachineCondition, PoolState
from scheduler.core.state.ledger import JobRecord, Ledger
from scheduler.core.state.market_watch import SpotHold, WatchedMarket
from scheduler.core.state.remaining_work import from_checkpoint_s, remaining_here_s
from scheduler.core.state.stopping import StopFor, may_be_stopped
from scheduler.core.state.working_set import Cycle
from walras.cluster import Market
from walras.contract import SECONDS_PER_HOUR
from walras.states import JobState
from walras.units import format_length

#: Minimum speed of a spot machine relative to the on-demand one.
_FAST_ENOUGH = 0.8
#: Fraction of the remaining cost that another set of machines must save to be taken.
LEAST_GAIN = 0.05


@dataclass(frozen=True, slots=True)
class SpotOffer:
    """A gang of one size, and the pools where it could run."""

    #: Row of the class as which the job runs with this size.
    class_row: int
    #: On-demand pool, the gang's speed there, and USD per hour of the whole gang.
    sure: int
    rate: float
    sure_usd_per_h: float
    #: Rows of the spot pools, ascending.
    zones: tuple[int, ...]
    #: Cost of the same work in each spot pool, as a fraction of its cost on demand.
    price: dict[int, float]
    restart_s: float
    #: Whether there are spot pools for it, at any price.
    has_market: bool


def spot_offers(cycle: Cycle, job: JobRecord) -> tuple[SpotOffer, ...]:
    """Returns the offers; none if the job has no deadline to spend slack for, or no spot pool at any price."""
    request, ledger = job.request, cycle.ledger
    if request.deadline_at <= cycle.now or request.steps is None or request.spreads:
        return ()
    if may_be_stopped(ledger, job, StopFor.MARKET) is not None or cycle.policy.rules.value_of(request)[0] > 0:
        return ()
    rows = deadlines.gang_classes(ledger, job)
    found = [each for row in rows if (each := _offer(cycle, job, row)) is not None]
    return tuple(found) if any(each.has_market for each in found) else ()


def _offer(cycle: Cycle, job: JobRecord, class_row: int) -> SpotOffer | None:
    ledger = cycle.ledger
    sure = _sure_pool(cycle, job, class_row)
    if sure < 0 or not _may_hold(cycle, job, class_row, sure):
        return None
    on_demand = ledger.fleet.pools[sure]
    rates, boot_s = ledger.classes.classes[class_row].rates, on_demand.pool.boot_s
    rate, sure_usd_per_h = float(rates[sure]), _usd_per_h(ledger, class_row, on_demand)
    price, has_market = dict[int, float](), False
    for state in ledger.fleet.pools:
        if state.pool.market is not Market.SPOT or float(rates[state.row]) < _FAST_ENOUGH * rate:
            continue
        count = ledger.classes.count(class_row, state.row)
        if not count or state.quota < ceil(count / state.pool.shape.accelerators):
            continue
        part = _usd_per_h(ledger, class_row, state) / float(rates[state.row]) * rate / sure_usd_per_h
        if 0 < part < 1 and _may_hold(cycle, job, class_row, state.row):
            price[state.row] = part
            boot_s = max(boot_s, state.pool.boot_s)
        has_market = has_market or part > 0
    restart_s = ledger.restart_s(job, cycle.policy.rules) + boot_s
    return SpotOffer(class_row, sure, rate, sure_usd_per_h, tuple(sorted(price)), price, restart_s, has_market)


def _may_hold(cycle: Cycle, job: JobRecord, class_row: int, row: int) -> bool:
    """Returns whether limits leave room for a gang of that size; a rigid job waits for room instead."""
    return not job.request.sizes or may_hold(cycle, job, row, cycle.ledger.classes.count(class_row, row))


def _sure_pool(cycle: Cycle, job: JobRecord, class_row: int) -> int:
    """Returns the row of the on-demand pool where the job would end in time; -1 if it is owned, or there is none.

    While the job holds machines, work since its newest checkpoint may look lost for that, though it saves before it
    moves: the pool of its last choice stands then, and its slack decides.
    """
    ledger, row, pools = cycle.ledger, job.deadline_pool, cycle.ledger.fleet.pools
    is_sure = row >= 0 and pools[row].pool.market is not Market.SPOT
    if not is_sure or class_row != job.class_row:
        found, hold = deadlines.deadline_outlook(cycle, job, class_row=class_row), None
        if job.holds and (found is None or not found.is_feasible or pools[found.pool].pool.market is Market.SPOT):
            hold = cycle.deadlines.market.holds.get(job.job_id)
        row = -1 if found is None else found.pool
        row = row if hold is None else hold.sure.get(class_row, row)
    state = ledger.fleet.pools[row] if row >= 0 else None
    return row if state is not None and state.pool.market is Market.ON_DEMAND and state.pool.usd_per_h > 0 else -1


def _usd_per_h(ledger: Ledger, class_row: int, state: PoolState) -> float:
    """Returns USD per hour of the machines of a whole gang."""
    return ceil(ledger.classes.count(class_row, state.row) / state.pool.shape.accelerators) * state.pool.usd_per_h


# ------------------------------------------------------------------------------------------------ where it stands


def pool_held(cycle: Cycle, job: JobRecord) -> int:
    """Returns the row of the pool where the job is and was not asked to leave; -1: nowhere."""
    return int(cycle.ledger.columns.pool[job.slot]) if job.holds and job.revoked is None else -1


def held_machine(cycle: Cycle, job: JobRecord) -> HeldMachine:
    """Returns what the job holds for its deadline: spot, on demand or nothing."""
    here = pool_held(cycle, job)
    if here < 0 or here != job.deadline_pool:
        return HeldMachine.NOTHING
    spot = cycle.ledger.fleet.pools[here].pool.market is Market.SPOT
    return HeldMachine.SPOT if spot else HeldMachine.ON_DEMAND


def slack_situation(cycle: Cycle, job: JobRecord, offer: SpotOffer) -> SlackSituation:
    """Returns the job's situation, estimated conservatively.

    Stopping takes time, and unsaved work is lost with a machine that is reclaimed without sufficient notice. For a gang
    of another size than the job has, it holds nothing yet.
    """
    ledger, held = cycle.ledger, held_machine(cycle, job)
    if held is HeldMachine.SPOT and pool_held(cycle, job) not in offer.zones:
        held = HeldMachine.NOTHING  # it is no part of the offer any more: too dear, or not allowed
    restart_s, pending_s = offer.restart_s, 0.0
    work_s = from_checkpoint_s(job, offer.rate)
    if held is not HeldMachine.NOTHING:
        work_s = min(remaining_here_s(ledger, job) * ledger.rate_of(job) / offer.rate, work_s)
        if job.state is JobState.STARTING:
            pending_s = max(0.0, restart_s - (cycle.now - job.leased_at))
    work_s += deadlines.reserve_s(work_s) + job.request.grace_s
    if offer.zones and not is_warned_in_time(ledger, job, [ledger.fleet.pools[row] for row in offer.zones]):
        # On other markets the job saves at another interval than it will on spot.
        told_s = job.checkpoint_every_s if held is HeldMachine.SPOT else None
        planned_s = job.request.checkpoint_every_s or told_s
        work_s += FIRST_BY_S if planned_s is None else planned_s
    if offer.class_row != job.class_row:
        held, pending_s = HeldMachine.NOTHING, 0.0
    price = 1 / min(offer.price.values()) if offer.zones else 1.0
    left_s = job.request.deadline_at - cycle.now
    return SlackSituation(work_s, left_s, restart_s, pending_s, held, price, len(offer.zones))


# ------------------------------------------------------------------------------------------------ what is chosen


@dataclass(frozen=True, slots=True)
class HeldSet:
    """What the job may hold in the next slot: machines of one market for a gang of one size, or nothing."""

    offer: SpotOffer
    now: SlackSituation
    held: HeldMachine
    #: Expected cost until the job's end, USD.
    usd: float
    #: Whether nothing else meets the deadline with this size.
    is_forced: bool = False


@dataclass(slots=True)
class SpotChoice:
    """The offers of one look, and the outcome for those whose spot machines were requested."""

    offers: tuple[SpotOffer, ...]
    situations: list[SlackSituation]
    #: Classes for which no spot machines are available now.
    without_spot: set[int] = field(default_factory=set)

    def best(self, cycle: Cycle, job: JobRecord) -> HeldSet:
        """Returns the cheapest set that meets the deadline, or what is held if another saves too little to move for it.

        Nothing of a size that is not held means to wait for that size with what is held. If no set is in time, returns
        the on-demand set with most slack.
        """
        offered = list(zip(self.offers, self.situations, strict=True))
        found = [each for one in offered for each in self._sets(cycle, *one)]
        if not found:
            offer, now = max(offered, key=lambda each: each[1].slack_s)
            return HeldSet(offer, now, HeldMachine.ON_DEMAND, inf, is_forced=True)
        best, here = min(found, key=lambda each: each.usd), held_machine(cycle, job)
        stays = next((each for each in found if each.held is here and each.offer.class_row == job.class_row), None)
        is_resized = job.holds and best.offer.class_row != job.class_row
        return stays if stays is not None and is_resized and best.usd > (1 - LEAST_GAIN) * stays.usd else best

    def _sets(self, cycle: Cycle, offer: SpotOffer, now: SlackSituation) -> list[HeldSet]:
        whole_usd = now.work_left_s / SECONDS_PER_HOUR * offer.sure_usd_per_h
        if not offer.zones:
            needs_s = now.work_left_s + (0.0 if now.held is HeldMachine.ON_DEMAND else now.restart_s)
            if needs_s > now.time_left_s:
                return []
            return [HeldSet(offer, now, HeldMachine.ON_DEMAND, needs_s / SECONDS_PER_HOUR * offer.sure_usd_per_h, True)]
        market, has_spot = cycle.deadlines.market, offer.class_row not in self.without_spot
        belief = market.market(offer.zones).if_it_were(cycle.now, available=has_spot)
        worth = market.plans.worth(now, belief, spot=has_spot)
        return [HeldSet(offer, now, held, part * whole_usd, len(worth) <= 1) for held, part in worth.items()]


#: Seconds after a reclaim until the market is asked for another machine.
_AFTER_LOSS_S = 30.0
#: Seconds beyond boot time for which a requested spot machine is awaited.
_PATIENCE_S = 120.0
#: Slots of a plan computed in one event (at most 10 ms), and seconds between such events, so that no event is slow.
_SLOTS_AT_ONCE, _PLANNING_S = 8, 1.0
#: Relative change of a price, and of the gang's speed, at which a set of machines is chosen again.
_PRICE_BAND, _SPEED_BAND = 0.05, 0.15


def settle_spot_holding(cycle: Cycle) -> None:
    """Runs before other deadlines: jobs that may be on spot hold what their slack allows."""
    watch, heap = cycle.deadlines, cycle.deadlines.heap
    others = []
    while heap and heap[0][0] <= cycle.now:
        entry = heappop(heap)
        job = cycle.ledger.jobs.get(entry[1])
        offers = () if job is None or job.deadline_pool >= 0 else spot_offers(cycle, job)
        if job is not None and offers:
            _adopt(cycle, job, offers)
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
        if hold.asked < 0 and (hold.look_at <= cycle.now or _has_deviated(cycle, job, hold)):
            _choose(cycle, job, hold)


def _adopt(cycle: Cycle, job: JobRecord, offers: tuple[SpotOffer, ...]) -> None:
    """Begins to choose for the job. It stays on machines that the core before this one rented for it."""
    cycle.deadlines.market.holds.setdefault(job.job_id, SpotHold()).look_at = cycle.now
    here, pools = pool_held(cycle, job), {row for offer in offers for row in (*offer.zones, offer.sure)}
    if here in pools and job.job_id not in cycle.policy.riders:
        deadlines.secure(cycle, job, here, cycle.ledger.columns.runs_as.item(job.slot))


# ------------------------------------------------------------------------------------------------ what is held


def _follow_up(cycle: Cycle, job: JobRecord, hold: SpotHold) -> None:
    """Handles what became of the machines that the job held or requested."""
    pools, row = cycle.ledger.fleet.pools, job.deadline_pool
    if row >= 0 and pools[row].pool.market is Market.SPOT and _is_gone(cycle, job, row):
        deadlines.let_go(cycle, job)
        hold.refused.add(row)
        hold.look_at = hold.lost_at = cycle.now
    if hold.asked < 0:
        return
    row = hold.asked
    if _missing(cycle, job, row, hold.asked_as) <= 0:
        hold.asked = -1
        _take(cycle, job, row, hold.asked_as)
        hold.refused.clear()
        hold.look_at = cycle.now
    elif not pools[row].awaited or cycle.now > hold.asked_at + pools[row].pool.boot_s + _PATIENCE_S:
        hold.asked = -1
        hold.refused.add(row)
        hold.look_at = cycle.now


def _is_gone(cycle: Cycle, job: JobRecord, row: int) -> bool:
    """Returns whether the job is neither on its chosen spot pool nor has a place kept or free there."""
    reservation = cycle.reservations.get(job.job_id)
    on_its_way = reservation is not None and reservation.pool == row
    return pool_held(cycle, job) != row and not on_its_way and _missing(cycle, job, row, job.class_row) > 0


def _missing(cycle: Cycle, job: JobRecord, row: int, class_row: int) -> int:
    """Returns the accelerators that the pool lacks for this gang if the job's own there are reused; <= 0: none."""
    ledger, fleet = cycle.ledger, cycle.ledger.fleet
    count, shape = ledger.classes.count(class_row, row), ledger.classes.shape(class_row)
    if find_free_place(cycle, job, row, shape) is not None:
        return 0
    own = 0
    for machine_row, held in job.place if job.request.sizes else ():
        machine = fleet.machines[machine_row]
        if machine is not None and machine.pool == row and machine.condition is MachineCondition.UP:
            own += held
    return max(1, count - fleet.pools[row].free) if not own else count - fleet.pools[row].free - own


def _has_deviated(cycle: Cycle, job: JobRecord, hold: SpotHold) -> bool:
    """Returns whether a price, or an elastic gang's speed, differs from those at which machines were chosen."""
    if not hold.prices:
        return False
    for state in cycle.ledger.fleet.pools:
        then = hold.prices.get(state.row, 0.0)
        if abs(state.pool.usd_per_h - then) > _PRICE_BAND * then:
            return True
    return (
        bool(job.request.sizes) and abs(_planned_speed(cycle, job) - hold.steps_per_s) > _SPEED_BAND * hold.steps_per_s
    )


def _planned_speed(cycle: Cycle, job: JobRecord) -> float:
    return cycle.ledger.class_of(job).speeds[job.deadline_pool] if job.deadline_pool >= 0 else 0.0


def _take(cycle: Cycle, job: JobRecord, row: int, class_row: int) -> None:
    """Moves the job to this pool with this gang size; it stays there until another choice."""
    drop_reservation(cycle, job.job_id)
    deadlines.secure(cycle, job, row, class_row)


def _choose(cycle: Cycle, job: JobRecord, hold: SpotHold) -> None:
    """Chooses spot, on demand or nothing for the slot that begins; for an elastic job also the size."""
    offers = spot_offers(cycle, job)
    if not offers:
        _give_up(cycle, job)
        return
    hold.sure = {offer.class_row: offer.sure for offer in offers}
    refused, hold.refused = hold.refused, set()
    hold.prices = {state.row: state.pool.usd_per_h for state in cycle.ledger.fleet.pools}
    hold.steps_per_s = _planned_speed(cycle, job)
    _look_again(cycle, hold, cycle.now + (_AFTER_LOSS_S if hold.lost_at == cycle.now else WATCH_S))
    is_kept_back = job.blocked_by or job.over_budget or job.awaits_turn or job.state is JobState.HELD
    if is_kept_back or job.ready_at > cycle.now:
        return
    reservation = cycle.reservations.get(job.job_id)
    if reservation is not None and reservation.preempting and reservation.pool == job.deadline_pool:
        _look_again(cycle, hold, cycle.now + _AFTER_LOSS_S)  # it is saving, and its next place is reserved
        return
    has_zones = any(offer.zones for offer in offers)
    if not has_zones and held_machine(cycle, job) is not HeldMachine.ON_DEMAND:
        deadlines.let_go(cycle, job)
    if not has_zones or (pool_held(cycle, job) >= 0 and job.deadline_pool < 0):
        _bide(cycle, job, hold)
        hold.steps_per_s = _planned_speed(cycle, job)
        return
    choice = SpotChoice(offers, [slack_situation(cycle, job, offer) for offer in offers])
    pairs = list(zip(choice.offers, choice.situations, strict=True))
    if not all(_is_planned(cycle, now) for offer, now in pairs if offer.zones):
        hold.refused = refused
        _look_again(cycle, hold, cycle.now + _PLANNING_S)
        return
    if held_machine(cycle, job) is HeldMachine.SPOT:
        for offer, now in pairs:
            if now.held is HeldMachine.SPOT:
                cycle.deadlines.market.market(offer.zones).see(cycle.now, available=True)
    _carry_out(cycle, job, hold, choice, refused)
    hold.steps_per_s = _planned_speed(cycle, job)


def _carry_out(cycle: Cycle, job: JobRecord, hold: SpotHold, choice: SpotChoice, refused: set[int]) -> None:
    """Holds or requests the cheapest set; if it has no spot machines, the next cheapest."""
    best = choice.best(cycle, job)
    while best.held is HeldMachine.SPOT:
        if best.now.held is HeldMachine.SPOT:
            _ask(cycle, job, hold, _cheaper_zones(cycle, job, best), refused)
        if best.now.held is HeldMachine.SPOT or _ask(cycle, job, hold, best.offer, refused):
            hold.why = _why(cycle, job, HeldMachine.SPOT, best)
            return
        choice.without_spot.add(best.offer.class_row)
        best = choice.best(cycle, job)
    if refused and held_machine(cycle, job) is not HeldMachine.SPOT:
        for zones in sorted({offer.zones for offer in choice.offers if offer.class_row in choice.without_spot}):
            cycle.deadlines.market.market(zones).see(cycle.now, available=False)
    is_there = job.deadline_pool == best.offer.sure and job.class_row == best.offer.class_row
    if best.held is HeldMachine.ON_DEMAND and not is_there:
        _take(cycle, job, best.offer.sure, best.offer.class_row)
    elif best.held is HeldMachine.NOTHING and job.request.sizes and job.deadline_pool < 0:
        _take_what_is_left(cycle, job, choice)
    hold.why = _why(cycle, job, max(best.held, best.now.held), best)


def _cheaper_zones(cycle: Cycle, job: JobRecord, held: HeldSet) -> SpotOffer:
    """Returns the offer with only the zones where the rest of the work costs less than here by more than a restart."""
    offer, work_s, here = held.offer, held.now.work_left_s, held.offer.price[pool_held(cycle, job)]
    stays = here * work_s * (1 - LEAST_GAIN)
    zones = tuple(row for row in offer.zones if offer.price[row] * (work_s + offer.restart_s) < stays)
    return replace(offer, zones=zones)


def _take_what_is_left(cycle: Cycle, job: JobRecord, choice: SpotChoice) -> None:
    """Runs the largest gang for which spot machines are free while others are awaited, even one that ends too late."""
    left = [(offer, row) for offer in choice.offers for row in offer.zones]
    left = [(offer, row) for offer, row in left if _missing(cycle, job, row, offer.class_row) <= 0]
    if left:
        offer, row = max(left, key=lambda each: each[0].rate)
        _take(cycle, job, row, offer.class_row)


def _is_planned(cycle: Cycle, now: SlackSituation) -> bool:
    """Returns whether the plan for such a job is ready; if not, one event per second continues computing it."""
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
    """Leaves the job where the policy has it, or waiting for cheaper spot, until the last moment to move."""
    found = deadlines.deadline_outlook(cycle, job)
    hold.why = ""
    if job.deadline_pool >= 0:
        return
    if found is not None and found.slack_s <= 0 and cycle.ledger.fleet.pools[found.pool].rented:
        _take(cycle, job, found.pool, found.class_row)
    elif found is not None:
        _look_again(cycle, hold, cycle.now + min(max(found.slack_s, 1.0), WATCH_S))


def _give_up(cycle: Cycle, job: JobRecord) -> None:
    """Ends the choice by slack; the rules of `deadlines.py` apply again."""
    del cycle.deadlines.market.holds[job.job_id]
    if job.deadline_pool < 0 or cycle.ledger.fleet.pools[job.deadline_pool].pool.market is Market.SPOT:
        deadlines.let_go(cycle, job)
        heappush(cycle.deadlines.heap, (cycle.now, job.job_id))


def _ask(cycle: Cycle, job: JobRecord, hold: SpotHold, offer: SpotOffer, refused: set[int]) -> bool:
    """Takes or requests machines in the cheapest zone, restarts included. Zones that refused just now are left out.

    Returns False if none can be had.
    """
    watch, pools = cycle.deadlines.market, cycle.ledger.fleet.pools

    def cost(row: int) -> tuple[float, int]:
        stay_s = likely_stay_s(watch.market((row,)).if_it_were(cycle.now, available=True))
        return offer.price[row] * (1 + offer.restart_s / stay_s), row

    for row in refused:
        if len(offer.zones) > 1:
            watch.market((row,)).see(cycle.now, available=False)
    for row in sorted(offer.zones, key=cost):
        is_refused = row in refused
        if is_refused and not job.request.sizes:
            continue  # an elastic gang may still fit as a smaller one on what is left
        if _missing(cycle, job, row, offer.class_row) <= 0:
            _take(cycle, job, row, offer.class_row)
            return True
        if not is_refused and _rent(cycle, job, pools[row], offer.class_row):
            hold.asked, hold.asked_at, hold.asked_as, hold.refused = row, cycle.now, offer.class_row, refused
            if not job.holds:
                deadlines.resize_gang(cycle, job, offer.class_row)  # it waits for all its machines
            cycle.timers.set(cycle.now + pools[row].pool.boot_s + _PATIENCE_S, "deadline")
            return True
    return False


def _rent(cycle: Cycle, job: JobRecord, state: PoolState, class_row: int) -> bool:
    """Requests the machines of a gang; of an elastic one only those missing.

    Returns False if none may be requested now.
    """
    watch, coming = cycle.deadlines.market, sum(state.awaited.values())
    count = cycle.ledger.classes.count(class_row, state.row)
    missing = _missing(cycle, job, state.row, class_row) if job.request.sizes else count
    needed = ceil(missing / state.pool.shape.accelerators)
    may_ask = cycle.now >= state.rent_not_before or watch.may_ask(state.row, cycle.now)
    if not may_ask or cycle.spending.everything.closed or state.machines + coming + needed > state.quota:
        return False
    if not may_hold(cycle, job, state.row, count):
        return False
    token = f"{state.pool.pool_id}@{cycle.now:.6f}/spot-{job.job_id}-{state.machines + coming}"
    state.awaited[token] = needed
    watch.asked_at[state.row] = cycle.now
    cycle.commands.append(Rent(token, state.pool.pool_id, needed))
    return True


# ------------------------------------------------------------------------------------------------ in words


def _why(cycle: Cycle, job: JobRecord, held: HeldMachine, chosen: HeldSet) -> str:
    slack = f"its slack of {max(chosen.now.slack_s, 0.0) / SECONDS_PER_HOUR:.1f} h"
    if held is HeldMachine.SPOT:
        told = f"holds spot, or asks for it: {slack} outlasts the loss of a machine"
    elif held is HeldMachine.NOTHING and job.deadline_pool >= 0:
        told = f"holds what spot there is, and waits for more: {slack} allows it so far"
    elif held is HeldMachine.NOTHING:
        gap = format_length(_stay_s(cycle.deadlines.market.market(chosen.offer.zones)))
        return f"waits for spot: {slack} allows it so far; the gap is likely to last {gap} more"
    elif chosen.is_forced:
        told = f"holds machines on demand: {slack} is what a boot and a restart need"
    else:
        told = f"holds machines on demand: to spend {slack} on waiting for spot now would cost more than it saves"
    if not job.request.sizes:
        return told
    gang = cycle.ledger.classes.classes[chosen.offer.class_row].gang
    cost = f", likely {chosen.usd:.2f} USD until it has ended" if chosen.usd < inf else ""
    return f"{told}; a gang of {gang} is the cheapest in time{cost}"


def _stay_s(market: WatchedMarket) -> float:
    stay_s = likely_stay_s(market.belief)
    return round(stay_s / 60) * 60.0 if stay_s < inf else stay_s
