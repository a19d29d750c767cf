"""The slack policy for a cluster's jobs: lengths in seconds, many jobs on one grid, no recorded traces needed.

A plan's costs to go hold for every job with the same changeover and prices and at most its time and slack, so similar
jobs share a plan. Lengths are rounded to the grid on the safe side: slack down, the changeover and the remaining slots
up; slack beyond `_MOST_SLACK` units is not used. Probabilities that availability changes are per `WATCH_S`; for longer
slots they are scaled like hazard rates.

The prior belief about a spot market that was not yet observed is fitted to recorded availability of V100 and K80
machines of AWS. For one zone it is fitted to all traces of December 2022 and February 2023 together, and the hypotheses
are markets in which machines come and go more and less often. For several zones there is one hypothesis for each of
some pairs of traces of October to December 2022, in which a machine of either zone serves. `MarketBelief` weights the
hypotheses by what a market shows.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf

import numpy as np

from optimizer.planning.deadline_job import DeadlineJob, DeadlineState, HeldMachine
from optimizer.planning.slack_policy import (
    NEVER,
    MarketBelief,
    SlackPlan,
    SlackPolicy,
    SpotMarket,
    plan_slack_in_pieces,
    spread_market,
)

#: Seconds between observations of a market: the length of the slots to which the beliefs are fitted.
WATCH_S = 600.0
_MOST_SLOTS, _MOST_SLACK, _MOST_PER_SLOT = 450, 120, 5
#: A restart takes at most this many slots: longer restarts make longer slots.
_MOST_CHANGEOVER = 3
#: Restarts of at most this many slots are measured in parts of a slot.
_MOST_SPLIT = 2
#: Where slack is plentiful, rounding may lengthen a restart by this factor.
_MOST_EXCESS = 1.25
#: The on-demand price is limited to this range of multiples of the spot price.
_LEAST_PRICE, _MOST_PRICE = 1.1, 100.0
#: Plans are made for this multiple of the requested slots and slack, so that later jobs find one.
_ROOM = 1.25
#: Largest size in bytes of the tables of all plans that are kept.
_MOST_BYTES = 128 * 2**20
_ROUNDING = 1e-6

#: Probability per slot that an absent machine becomes available, and that a present one is lost, by age class (2,
#: AGE_CLASSES).
_Changes = tuple[tuple[float, ...], tuple[float, ...]]
_ONE_ZONE: _Changes = ((0.412, 0.243, 0.0913, 0.053, 0.0189), (0.266, 0.167, 0.0916, 0.0403, 0.0122))
#: The same for several zones together, one hypothesis for each pair of traces, preceded by the probability per slot
#: that the held machine is revoked while another zone has one.
_SEVERAL_ZONES: tuple[tuple[float, _Changes], ...] = (
    (0.0253, ((0.291, 0.181, 0.178, 0.0834, 0.0612), (0.41, 0.258, 0.113, 0.0403, 0.0147))),
    (0.0193, ((0.405, 0.259, 0.125, 0.0741, 0.0719), (0.262, 0.122, 0.0788, 0.0325, 0.0219))),
    (0.0119, ((0.562, 0.186, 0.143, 0.111, 0.132), (0.337, 0.194, 0.0669, 0.0169, 0.0127))),
    (0.0172, ((0.407, 0.383, 0.213, 0.0818, 0.138), (0.102, 0.139, 0.0693, 0.0231, 0.0153))),
    (0.0171, ((0.592, 0.348, 0.201, 0.0751, 0.0591), (0.419, 0.12, 0.111, 0.0285, 0.0054))),
    (0.00961, ((0.363, 0.179, 0.104, 0.12, 0.0401), (0.391, 0.209, 0.0354, 0.028, 0.00107))),
    (0.035, ((0.89, 0.365, 0.293, 0.0755, 0.0401), (0.035, 0.0518, 0.0223, 0.0311, 0.0175))),
    (0.00871, ((0.684, 0.165, 0.158, 0.161, 0.0401), (0.121, 0.129, 0.05, 0.0122, 0.00162))),
)


def market_belief(zones: int) -> MarketBelief:
    """Returns the prior belief about a market of so many zones that was not yet observed; slots of `WATCH_S`."""
    return MarketBelief(_hypotheses(zones, WATCH_S))


def _hypotheses(zones: int, slot_s: float) -> list[SpotMarket]:
    if zones == 1:
        markets: Sequence[SpotMarket] = spread_market(np.array(_ONE_ZONE))
    else:
        markets = [SpotMarket(np.array(change)) for _, change in _SEVERAL_ZONES]
    return [SpotMarket(1.0 - (1.0 - market.change) ** (slot_s / WATCH_S)) for market in markets]


@dataclass(frozen=True, slots=True)
class SlackSituation:
    """State of a job, in seconds; work is measured on machines that are not revoked."""

    work_left_s: float
    time_left_s: float
    #: Seconds without progress that each start of a machine costs, and how many of them the held machine still needs.
    restart_s: float
    pending_s: float
    held: HeldMachine
    #: The on-demand price as a multiple of the spot price.
    on_demand_price: float
    zones: int

    @property
    def slack_s(self) -> float:
        """Seconds that may pass without progress before the deadline is lost."""
        return self.time_left_s - self.work_left_s


@dataclass(frozen=True, slots=True)
class _Grid:
    """The quantities that jobs must have in common to share a plan."""

    slot_s: float
    per_slot: int
    changeover: int
    on_demand_price: float
    several: bool

    @property
    def unit_s(self) -> float:
        return self.slot_s / self.per_slot

    @classmethod
    def of(cls, now: SlackSituation) -> "_Grid":
        """Returns slots of `WATCH_S` or longer, divided into as few units as measure the restart precisely enough."""
        slot_s, per_slot = WATCH_S, 1
        if now.restart_s > _MOST_SPLIT * WATCH_S:
            slot_s = now.restart_s / min(int(now.restart_s / WATCH_S), _MOST_CHANGEOVER)
        while now.time_left_s > _MOST_SLOTS * slot_s:
            slot_s *= 2
        if slot_s == WATCH_S:
            per_slot = _units_per_slot(now.restart_s / slot_s, now.slack_s / slot_s)
        changeover = max(ceil(now.restart_s / slot_s * per_slot - _ROUNDING), 1)
        price = min(max(round(now.on_demand_price, 1), _LEAST_PRICE), _MOST_PRICE)
        return cls(slot_s, per_slot, changeover, price, now.zones > 1)


def _units_per_slot(restart: float, slack: float) -> int:
    """Returns the number of units per slot, for a restart and a slack in slots.

    It is the number that rounds the restart up least, if the slack can then be counted within `_MOST_SLACK` units;
    otherwise the fewest units that round it up by no more than `_MOST_EXCESS`.
    """

    def excess(per_slot: int) -> float:
        return round(max(ceil(restart * per_slot - _ROUNDING), 1) / (restart * per_slot), 6) if restart > 0 else 1.0

    every = range(1, _MOST_PER_SLOT + 1)
    enough = min(every, key=lambda each: (max(excess(each), _MOST_EXCESS), each))
    best = min(every, key=lambda each: (excess(each), each))
    return best if best * slack <= _MOST_SLACK + _ROUNDING else enough


class SlackPlans:
    """Cache of finished plans, by grid."""

    def __init__(self) -> None:
        self._plans: dict[_Grid, SlackPlan] = {}
        #: Plans in progress, and the slots and slack that were requested of each.
        self._making: dict[_Grid, tuple[tuple[int, int], Generator[None, None, SlackPlan]]] = {}

    def make_ready(self, now: SlackSituation, pieces: int) -> bool:
        """Advances the plan for such a job by at most `pieces` slots. Returns whether `worth` can use it."""
        found = _place(now)
        if found is None:
            return True
        grid, slots, slack = found
        if self._known(grid, slots, slack) is not None:
            return True
        wanted, making = self._making.get(grid, ((0, 0), None))
        if making is None or wanted[0] < slots or wanted[1] < slack:
            wanted, making = self._begin(grid, slots, slack)
            self._making[grid] = wanted, making
        for _ in range(pieces):
            try:
                next(making)
            except StopIteration as end:
                self._keep(grid, end.value)
                return True
        return False

    def worth(self, now: SlackSituation, belief: MarketBelief, *, spot: bool) -> dict[HeldMachine, float]:
        """Returns the expected cost to the end for each choice in the slot that begins.

        Costs are parts of the on-demand cost of all remaining work, as the grid counts work. Choices that may miss the
        deadline are left out, so the result is empty if all of them may. `spot` says whether a spot machine is
        available, as `belief` (from `market_belief`) has observed.
        """
        found = _place(now)
        if found is None:
            return {}
        grid, slots, slack = found
        plan = self._plan(grid, slots, slack)
        time_left = slots * grid.per_slot
        pending = _pending(plan.job, ceil(now.pending_s / grid.unit_s - _ROUNDING))
        state = DeadlineState(time_left, time_left - slack, now.held, pending, spot)
        worth = SlackPolicy(plan, belief).worth(plan.job, state)
        # A plan that is in time costs at most as much as on demand from now on; `NEVER` times the least probability
        # exceeds that.
        most = plan.job.on_demand_price * (slots + 1)
        whole = plan.job.on_demand_price * state.work_left / grid.per_slot
        return {held: usd / whole for held, usd in worth.items() if usd <= min(most, NEVER)}

    def _plan(self, grid: _Grid, slots: int, slack: int) -> SlackPlan:
        known = self._known(grid, slots, slack)
        if known is None:
            _, making = self._begin(grid, slots, slack)
            while known is None:
                try:
                    next(making)
                except StopIteration as end:
                    known = self._keep(grid, end.value)
        return known

    def _known(self, grid: _Grid, slots: int, slack: int) -> SlackPlan | None:
        """Returns the cached plan if it covers as many slots and as much slack; else None."""
        known = self._plans.get(grid)
        fits = known is not None and known.job.slots >= slots and known.job.deadline - known.job.work >= slack
        return known if fits else None

    def _begin(self, grid: _Grid, slots: int, slack: int) -> tuple[tuple[int, int], Generator[None, None, SlackPlan]]:
        """Returns the slots and slack that the plan will cover, and the generator that makes it."""
        known = self._plans.get(grid)
        if known is not None:
            slots = max(slots, known.job.slots)
            slack = max(slack, known.job.deadline - known.job.work)
        slots = min(ceil(_ROOM * slots), max(slots, _MOST_SLOTS))
        slack = min(ceil(_ROOM * slack), max(slack, _MOST_SLACK))
        deadline = max(slots, ceil(slack / grid.per_slot)) * grid.per_slot
        job = DeadlineJob(grid.per_slot, deadline - slack, deadline, grid.changeover, grid.on_demand_price)
        taken: Sequence[float] = [chance for chance, _ in _SEVERAL_ZONES] if grid.several else ()
        hypotheses = _hypotheses(2 if grid.several else 1, grid.slot_s)
        return (slots, slack), plan_slack_in_pieces(job, hypotheses, taken)

    def _keep(self, grid: _Grid, plan: SlackPlan) -> SlackPlan:
        self._making.pop(grid, None)
        self._plans.pop(grid, None)
        while self._plans and sum(each.ahead.nbytes for each in self._plans.values()) + plan.ahead.nbytes > _MOST_BYTES:
            self._plans.pop(next(iter(self._plans)))
        self._plans[grid] = plan
        return plan


def _place(now: SlackSituation) -> tuple[_Grid, int, int] | None:
    """Returns the grid, and the slots and units of slack left on it; None if every choice may miss the deadline."""
    if not (0 <= now.slack_s < inf and now.work_left_s > 0 and now.restart_s <= now.time_left_s):
        return None
    grid = _Grid.of(now)
    slack = min(int(now.slack_s / grid.unit_s + _ROUNDING), _MOST_SLACK)
    slots = max(ceil(now.time_left_s / grid.slot_s - _ROUNDING), ceil(slack / grid.per_slot), 1)
    return grid, slots, slack


def within_usable_slack(now: SlackSituation) -> SlackSituation:
    """Returns the same job with an earlier deadline, so that the grid counts all of its slack.

    Without this, slack beyond the grid's limit counts as work. That does not change the best choice of machine, but it
    overstates the job's cost when it is compared with another gang.
    """
    found = _place(now)
    if found is None or found[2] < _MOST_SLACK:
        return now
    return replace(now, time_left_s=min(now.time_left_s, now.work_left_s + _MOST_SLACK * found[0].unit_s))


def _pending(job: DeadlineJob, units: int) -> int:
    """Returns the smallest remaining changeover of those in the plan that is at least `units`."""
    known = sorted({max(job.changeover - slots * job.slot, 0) for slots in range(1, job.changeover // job.slot + 2)})
    return next((each for each in known if each >= units), known[-1])


def likely_stay_s(belief: MarketBelief) -> float:
    """Returns the expected seconds until the market's availability changes."""
    return belief.remaining * WATCH_S
