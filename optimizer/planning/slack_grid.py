"""The slack policy for jobs as they are on a cluster: lengths in seconds, many jobs on one grid, no traces at hand.

A plan's costs to go hold for every job with the same changeover and prices and no more time and slack, so jobs that are
alike share one. Lengths go to the grid on the safe side: slack is rounded down, the changeover and the slots that are
left up; slack beyond `_MOST_SLACK` units is not used. The chances that availability changes are per `WATCH_S`; on
longer slots they are scaled as hazards are.

What is believed of a spot market before it is watched is fitted on recorded availability of V100 and K80 machines of
AWS: of one zone on all traces of December 2022 and February 2023 together, the hypotheses being markets where machines
come and go more and less often; of several zones one hypothesis for each of some pairs of traces of October to December
2022, one zone's machine being as good as another's. `MarketBelief` weighs them by what a market shows.
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

#: A market is looked at once in so many seconds: the slots that beliefs are fitted on.
WATCH_S = 600.0
_MOST_SLOTS, _MOST_SLACK, _MOST_PER_SLOT = 450, 120, 5
#: A restart takes at most so many slots: longer ones make longer slots.
_MOST_CHANGEOVER = 3
#: Up to so many slots a restart is counted in parts of a slot.
_MOST_SPLIT = 2
#: Where slack is plenty, rounding may make a restart so much longer.
_MOST_EXCESS = 1.25
#: On demand costs between so many times what spot costs.
_LEAST_PRICE, _MOST_PRICE = 1.1, 100.0
#: Plans are made for this many times the slots and slack that are asked for, so that jobs that follow find one.
_ROOM = 1.25
#: Tables of the plans that are kept, in all.
_MOST_BYTES = 128 * 2**20
_ROUNDING = 1e-6

#: Change of what is not there, and of what is, by age (2, AGE_CLASSES).
_Changes = tuple[tuple[float, ...], tuple[float, ...]]
_ONE_ZONE: _Changes = ((0.412, 0.243, 0.0913, 0.053, 0.0189), (0.266, 0.167, 0.0916, 0.0403, 0.0122))
#: The same of zones together, one hypothesis for each pair, after the chance per slot that a machine is taken while
#: another zone has one.
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
    """What is believed of a market of so many zones that nobody has watched yet; slots of `WATCH_S`."""
    return MarketBelief(_hypotheses(zones, WATCH_S))


def _hypotheses(zones: int, slot_s: float) -> list[SpotMarket]:
    if zones == 1:
        markets: Sequence[SpotMarket] = spread_market(np.array(_ONE_ZONE))
    else:
        markets = [SpotMarket(np.array(change)) for _, change in _SEVERAL_ZONES]
    return [SpotMarket(1.0 - (1.0 - market.change) ** (slot_s / WATCH_S)) for market in markets]


@dataclass(frozen=True, slots=True)
class SlackSituation:
    """Where a job stands, seconds; work on the machines that are sure."""

    work_left_s: float
    time_left_s: float
    #: Paid time without progress at each start of a machine; and how much of it what is held has still to go.
    restart_s: float
    pending_s: float
    held: HeldMachine
    #: Work on demand costs so many times what it costs on spot.
    on_demand_price: float
    zones: int

    @property
    def slack_s(self) -> float:
        """Time that may pass without progress."""
        return self.time_left_s - self.work_left_s


@dataclass(frozen=True, slots=True)
class _Grid:
    """What jobs must have in common to share a plan."""

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
        """Slots of `WATCH_S` or a little more, in as few units as tell a restart's length well enough."""
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
    """For a restart and a slack in slots: those by which the restart is rounded up least, if the slack can be counted
    in them; else the fewest that round it up by no more than `_MOST_EXCESS`."""

    def excess(per_slot: int) -> float:
        return round(max(ceil(restart * per_slot - _ROUNDING), 1) / (restart * per_slot), 6) if restart > 0 else 1.0

    every = range(1, _MOST_PER_SLOT + 1)
    enough = min(every, key=lambda each: (max(excess(each), _MOST_EXCESS), each))
    best = min(every, key=lambda each: (excess(each), each))
    return best if best * slack <= _MOST_SLACK + _ROUNDING else enough


class SlackPlans:
    """Plans that were made, by their grid."""

    def __init__(self) -> None:
        self._plans: dict[_Grid, SlackPlan] = {}
        #: Plans that are being made, and what each was asked for.
        self._making: dict[_Grid, tuple[tuple[int, int], Generator[None, None, SlackPlan]]] = {}

    def make_ready(self, now: SlackSituation, pieces: int) -> bool:
        """Go on with the plan for such a job, by at most so many of its slots. Returns whether `worth` has it."""
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
        """Money until the end by what is held in the slot that begins, in parts of what all work left costs on demand,
        as the grid counts work.

        What may miss the deadline is not among them; empty: everything may. `spot`: a machine can be had, as `belief`
        (`market_belief`) has seen.
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
        # What is in time costs at most on demand from now until the deadline; `NEVER` times the rarest chance is more.
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
        """The plan, where it is for as many slots and as much slack."""
        known = self._plans.get(grid)
        fits = known is not None and known.job.slots >= slots and known.job.deadline - known.job.work >= slack
        return known if fits else None

    def _begin(self, grid: _Grid, slots: int, slack: int) -> tuple[tuple[int, int], Generator[None, None, SlackPlan]]:
        """Returns what the plan will be for, and how it is made."""
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
    """The grid, and slots and units of slack that are left on it; None where everything may miss the deadline."""
    if not (0 <= now.slack_s < inf and now.work_left_s > 0 and now.restart_s <= now.time_left_s):
        return None
    grid = _Grid.of(now)
    slack = min(int(now.slack_s / grid.unit_s + _ROUNDING), _MOST_SLACK)
    slots = max(ceil(now.time_left_s / grid.slot_s - _ROUNDING), ceil(slack / grid.per_slot), 1)
    return grid, slots, slack


def within_usable_slack(now: SlackSituation) -> SlackSituation:
    """Return the same job with its deadline so early that the grid counts all of its slack.

    Otherwise more slack than that counts as work: no matter for what is held, but too dear beside another gang.
    """
    found = _place(now)
    if found is None or found[2] < _MOST_SLACK:
        return now
    return replace(now, time_left_s=min(now.time_left_s, now.work_left_s + _MOST_SLACK * found[0].unit_s))


def _pending(job: DeadlineJob, units: int) -> int:
    """The part of a changeover to come, among those that a plan knows: the next larger one."""
    known = sorted({max(job.changeover - slots * job.slot, 0) for slots in range(1, job.changeover // job.slot + 2)})
    return next((each for each in known if each >= units), known[-1])


def likely_stay_s(belief: MarketBelief) -> float:
    """Seconds for which the market is likely to stay as it is."""
    return belief.remaining * WATCH_S
