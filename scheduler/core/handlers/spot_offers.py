"""Offers among which a job that spends its slack chooses: one for each size of its gang.

An offer has an on-demand pool where the job would end in time with a gang of that size, and spot pools with machines
about as fast. The cost until the job's end is the cost-to-go of its slack (`optimizer.planning.slack_grid`),
revocations, gaps and restarts included, as if it kept that size. The size is chosen again at every look, so the least
of these costs is an upper estimate of what the job will cost, and the deadline is never missed by it. A rigid job has
one offer.
"""

from dataclasses import dataclass, field
from math import ceil, inf

from optimizer.planning.deadline_job import HeldMachine
from optimizer.planning.slack_grid import SlackSituation, within_usable_slack
from scheduler.core.handlers import deadlines
from scheduler.core.placement.checkpoint_intervals import FIRST_BY_S, is_warned_in_time
from scheduler.core.state.fleet import PoolState
from scheduler.core.state.ledger import JobRecord, Ledger
from scheduler.core.state.remaining_work import from_checkpoint_s, remaining_here_s
from scheduler.core.state.working_set import Cycle
from walras.cluster import Market
from walras.contract import SECONDS_PER_HOUR
from walras.states import JobState

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
    if not request.preemptible or job.loses_work or cycle.policy.rules.value_of(request)[0] > 0:
        return ()
    rows = deadlines.gang_classes(ledger, job)
    found = [each for row in rows if (each := _offer(cycle, job, row)) is not None]
    return tuple(found) if any(each.has_market for each in found) else ()


def _offer(cycle: Cycle, job: JobRecord, class_row: int) -> SpotOffer | None:
    ledger = cycle.ledger
    sure = _sure_pool(ledger, job, class_row)
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
    """Returns whether its project's limits leave room for a gang of that size; a rigid job waits for room instead."""
    return not job.request.sizes or cycle.ledger.classes.count(class_row, row) <= cycle.limits.room(job, row)


def _sure_pool(ledger: Ledger, job: JobRecord, class_row: int) -> int:
    """Returns the row of the on-demand pool where the job would end in time; -1 if it is owned, or there is none."""
    row = job.deadline_pool
    is_sure = row >= 0 and ledger.fleet.pools[row].pool.market is not Market.SPOT
    if not is_sure or class_row != job.class_row:
        found = deadlines.deadline_outlook(ledger, job, class_row=class_row)
        row = -1 if found is None else found.pool
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
    #: The situations limited to usable slack, by which sizes are compared.
    priced: list[SlackSituation] = field(init=False)
    #: Classes for which no spot machines are available now.
    without_spot: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        several = len(self.offers) > 1
        self.priced = [within_usable_slack(now) for now in self.situations] if several else self.situations

    def best(self, cycle: Cycle, job: JobRecord) -> HeldSet:
        """Returns the cheapest set that meets the deadline, or what is held if another saves too little to move for it.

        Nothing of a size that is not held means to wait for that size with what is held. If no set is in time, returns
        the on-demand set with most slack.
        """
        offered = list(zip(self.offers, self.situations, self.priced, strict=True))
        found = [each for one in offered for each in self._sets(cycle, *one)]
        if not found:
            offer, now, _ = max(offered, key=lambda each: each[1].slack_s)
            return HeldSet(offer, now, HeldMachine.ON_DEMAND, inf, is_forced=True)
        best, here = min(found, key=lambda each: each.usd), held_machine(cycle, job)
        stays = next((each for each in found if each.held is here and each.offer.class_row == job.class_row), None)
        is_resized = job.holds and best.offer.class_row != job.class_row
        return stays if stays is not None and is_resized and best.usd > (1 - LEAST_GAIN) * stays.usd else best

    def _sets(self, cycle: Cycle, offer: SpotOffer, now: SlackSituation, priced: SlackSituation) -> list[HeldSet]:
        whole_usd = now.work_left_s / SECONDS_PER_HOUR * offer.sure_usd_per_h
        if not offer.zones:
            needs_s = now.work_left_s + (0.0 if now.held is HeldMachine.ON_DEMAND else now.restart_s)
            if needs_s > now.time_left_s:
                return []
            return [HeldSet(offer, now, HeldMachine.ON_DEMAND, needs_s / SECONDS_PER_HOUR * offer.sure_usd_per_h, True)]
        market, has_spot = cycle.deadlines.market, offer.class_row not in self.without_spot
        belief = market.market(offer.zones).if_it_were(cycle.now, available=has_spot)
        worth = market.plans.worth(priced, belief, spot=has_spot)
        return [HeldSet(offer, now, held, part * whole_usd, len(worth) <= 1) for held, part in worth.items()]
