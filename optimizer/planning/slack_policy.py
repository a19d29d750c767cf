"""Walras's policy for one job with a deadline on spot machines: a dynamic program that spends slack where it saves
most.

    V[r](s, m, z) = min over what to hold of  paid + E[ V[r-1](s', m', z') | z ]

r is the number of slots left, s the slack, m what is held (and how much of its changeover is unpaid), z the market's
state. A state from which the deadline could be missed has the value `NEVER`, so a plan that follows these values never
risks the deadline. Slack can be used in three ways: to idle through a gap in availability instead of paying for
on-demand machines, to pay the changeovers of leaving on-demand machines for spot machines, and as a safety margin.

A market is a semi-Markov chain: the probability that availability changes after a slot depends on how long it has
lasted. Each recorded trace is one hypothesis; the fit shrinks each hypothesis towards the pooled traces, so that no
change has probability zero. The cost to go is computed once per hypothesis. In each slot the policy takes the choice
with the least mean cost over the hypotheses, weighted by Bayes' rule with what the running trace has shown so far.
Markets drift: in each slot one hypothesis turns into another with a small probability, so that old observations count
less.

A cluster's jobs state lengths in seconds and need no recorded traces (`SlackPlans`). A plan's costs to go hold for
every job with the same changeover and prices and at most its time and slack, so similar jobs share a plan. Lengths are
rounded to the grid on the safe side: slack down, the changeover and the remaining slots up. Probabilities that
availability changes are per `WATCH_S`; for longer slots they are scaled like hazard rates.

The prior belief about a spot market that was not yet observed is fitted to recorded availability of V100 and K80
machines of AWS. For one zone it is fitted to all traces of December 2022 and February 2023 together, and the hypotheses
are markets in which machines come and go more and less often. For several zones there is one hypothesis for each of
some pairs of traces of October to December 2022, in which a machine of either zone serves. `MarketBelief` weights the
hypotheses by what a market shows.
"""

from collections.abc import Generator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import ceil, inf

import numpy as np
from numpy.typing import NDArray

from optimizer.planning.deadline_job import DeadlineJob, DeadlineState, HeldMachine

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]

#: Value of a state that may miss the deadline: more than any bill times the least probability of a change (1e-4).
NEVER = 1e12


@dataclass(frozen=True, slots=True)
class HeldMode:
    """What is held at the start of a slot, and the units of its changeover that are still to come."""

    held: HeldMachine
    pending: int


@lru_cache(maxsize=256)
def held_modes(job: DeadlineJob) -> tuple[HeldMode, ...]:
    """Returns all modes in which a slot can start; the one that holds nothing is the first."""
    unpaid = {max(job.changeover - slots * job.slot, 0) for slots in range(1, job.changeover // job.slot + 2)}
    return (
        HeldMode(HeldMachine.NOTHING, 0),
        *(HeldMode(held, p) for held in (HeldMachine.SPOT, HeldMachine.ON_DEMAND) for p in sorted(unpaid)),
    )


@dataclass(frozen=True, slots=True)
class SlotChoice:
    """One choice in one mode: the change of slack and mode, and the cost while there is work."""

    held: HeldMachine
    #: Units of slack that the slot uses.
    slack: int
    #: Units of work that the slot can do.
    work: int
    #: Index of the mode after the slot in `held_modes`.
    mode: int
    #: Price per unit of time that the machine is held.
    price: float

    def usd(self, job: DeadlineJob, work_left: FloatArray) -> FloatArray:
        """Returns the cost of the slot, which ends early when the work is done."""
        if self.held is HeldMachine.NOTHING:
            return np.zeros_like(work_left)
        return (self.slack + np.minimum(float(self.work), work_left)) * self.price


@lru_cache(maxsize=1024)
def slot_choices(job: DeadlineJob, mode: HeldMode) -> tuple[SlotChoice, ...]:
    """Returns the choices in a mode, in the order of `HeldMachine`."""
    places = {known: position for position, known in enumerate(held_modes(job))}
    found = [SlotChoice(HeldMachine.NOTHING, job.slot, 0, 0, 0.0)]
    for held, price in ((HeldMachine.SPOT, 1.0), (HeldMachine.ON_DEMAND, job.on_demand_price)):
        pending = mode.pending if mode.held is held else job.changeover
        warming = min(pending, job.slot)
        after = places[HeldMode(held, pending - warming)]
        found.append(SlotChoice(held, warming, job.slot - warming, after, price / job.slot))
    return tuple(found)


def modes_after_revocation(job: DeadlineJob) -> NDArray[np.intp]:
    """Returns the index of the mode that each mode becomes when the market revokes spot machines."""
    return np.array(
        [0 if mode.held is HeldMachine.SPOT else place for place, mode in enumerate(held_modes(job))], dtype=np.intp
    )


#: Levels of slack in a shared plan, and how many of them, the shortest, count every unit.
_MOST_LEVELS, _FINE_LEVELS = 91, 45


def slack_levels(most: int) -> IntArray:
    """Returns the amounts of slack that a shared plan has values for, ascending from 0 to `most` units.

    They lie further apart where slack is plentiful: values between them are interpolated.
    """
    if most < _MOST_LEVELS:
        return np.arange(most + 1)
    coarse = np.linspace(0.0, 1.0, _MOST_LEVELS - _FINE_LEVELS + 1) ** 2
    coarse = _FINE_LEVELS + (most - _FINE_LEVELS) * coarse
    return np.unique(np.concatenate([np.arange(_FINE_LEVELS), coarse.round().astype(np.int64)]))


def between_levels(levels: IntArray, slack: IntArray) -> tuple[IntArray, IntArray, FloatArray]:
    """Returns the rows of the levels below and above each slack, and how far it lies between them, from 0 to 1."""
    below = np.maximum(np.searchsorted(levels, slack, side="right") - 1, 0)
    above = np.minimum(below + 1, len(levels) - 1)
    part = (slack - levels[below]) / np.maximum(levels[above] - levels[below], 1)
    return below, above, np.clip(part, 0.0, 1.0)


def slot_values(
    job: DeadlineJob, slots_left: int, ahead: FloatArray, spot: BoolArray, levels: IntArray | None = None
) -> FloatArray:
    """Returns the values with `slots_left` slots to go, from the expected values after the slot (s, m, z).

    Args:
        ahead: expected value after the slot, by slack, mode after it, and the market's state now (s, m, z).
        spot: states of the market in which a spot machine can be held (z,).
        levels: the slack of each row; None: every unit from 0.
    """
    slack = np.arange(len(ahead)) if levels is None else levels
    work_left = slots_left * job.slot - slack
    value = np.full_like(ahead, NEVER)
    worth: dict[SlotChoice, FloatArray] = {}
    for place, mode in enumerate(held_modes(job)):
        for move in slot_choices(job, mode):
            if move not in worth:
                worth[move] = _worth_of(job, move, ahead, slack, work_left)
            usable = spot[None, :] if move.held is HeldMachine.SPOT else True
            np.minimum(value[:, place], worth[move], out=value[:, place], where=usable)
    value[work_left <= 0] = 0.0
    return value


def _worth_of(
    job: DeadlineJob, move: SlotChoice, ahead: FloatArray, slack: IntArray, work_left: IntArray
) -> FloatArray:
    """Returns what a choice costs to the end, whatever the mode it is taken in (s, z)."""
    below, above, part = between_levels(slack, slack - move.slack)
    worth: FloatArray = ahead[below, move.mode]
    if part.any():
        worth += part[:, None] * (ahead[above, move.mode] - worth)
    worth[slack < move.slack] = NEVER
    worth[work_left <= move.work] = 0.0
    worth += move.usd(job, np.maximum(work_left, 0).astype(np.float64))[:, None]
    return worth


def deadline_values(job: DeadlineJob, states: int) -> FloatArray:
    """Returns the values when no slot is left: they are 0, because slack of at least 0 means that the work is done (s,
    m, z).
    """
    return np.zeros((job.deadline - job.work + 1, len(held_modes(job)), states))


#: First slot of each age class, and mean number of slots in each; the last class is unbounded.
_CLASS_STARTS = (1, 2, 4, 10, 28)
_CLASS_SLOTS = (1, 2, 6, 18)
AGE_CLASSES = len(_CLASS_STARTS)
#: A state is availability and its age class.
MARKET_STATES = 2 * AGE_CLASSES
#: Age in slots that is assumed at the start of a job, when the age is unknown.
_UNKNOWN_AGE = 4
#: Weight of the pooled traces in each class of one trace, in slots.
_PRIOR_SLOTS = 6.0
_RAREST = 1e-4
#: Probability per slot that the market becomes another hypothesis, drawn uniformly, where nothing is known of that.
_DRIFT = 0.005
#: The same where turns were recorded: the part of them that no record shows.
_UNSEEN = 0.001


def age_class(slots: int) -> int:
    """Returns the class of an age in slots, from 0."""
    return sum(slots >= start for start in _CLASS_STARTS) - 1


@dataclass(frozen=True, slots=True)
class SpotMarket:
    """Probability that availability changes after a slot, by availability (0, 1) and age class (2, CLASSES)."""

    change: FloatArray

    def transitions(self) -> FloatArray:
        """Returns the transition matrix between states `available * CLASSES + class`, by rows (STATES, STATES)."""
        matrix = np.zeros((MARKET_STATES, MARKET_STATES))
        for available in range(2):
            for place in range(AGE_CLASSES):
                here = available * AGE_CLASSES + place
                change = self.change[available, place]
                older = 1.0 / _CLASS_SLOTS[place] if place < AGE_CLASSES - 1 else 0.0
                matrix[here, (1 - available) * AGE_CLASSES] += change
                matrix[here, here] += (1 - change) * (1 - older)
                if older:
                    matrix[here, here + 1] += (1 - change) * older
        return matrix

    def remaining(self) -> FloatArray:
        """Returns the expected slots until availability changes, by availability and age class (2, CLASSES)."""
        found = np.zeros((2, AGE_CLASSES))
        for available in range(2):
            here = slice(available * AGE_CLASSES, (available + 1) * AGE_CLASSES)
            found[available] = np.linalg.solve(
                np.eye(AGE_CLASSES) - self.transitions()[here, here], np.ones(AGE_CLASSES)
            )
        return found


def fit_spot_markets(traces: Sequence[Sequence[bool]]) -> tuple[SpotMarket, ...]:
    """Fits one market per trace, each shrunk towards the pooled traces in classes with few observations."""
    counts = [_counts(trace) for trace in traces]
    changes, slots = (sum((part[index] for part in counts), np.zeros((2, AGE_CLASSES))) for index in range(2))
    pooled = (changes + 0.5) / (slots + 1.0)
    return tuple(
        SpotMarket(np.clip((own + _PRIOR_SLOTS * pooled) / (seen + _PRIOR_SLOTS), _RAREST, 1 - _RAREST))
        for own, seen in counts
    )


def uniform_turns(many: int, drift: float = _DRIFT) -> FloatArray:
    """Returns the probabilities per slot that each of several markets becomes another, by rows, if none is likelier."""
    return (1.0 - drift) * np.eye(many) + drift / many


def _counts(trace: Sequence[bool]) -> tuple[FloatArray, FloatArray]:
    """Counts the changes and the slots of a trace, by availability and age class."""
    changes, slots = np.zeros((2, AGE_CLASSES)), np.zeros((2, AGE_CLASSES))
    age = _UNKNOWN_AGE
    for now, later in pairwise(trace):
        slots[int(now), age_class(age)] += 1
        changes[int(now), age_class(age)] += now != later
        age = 1 if now != later else age + 1
    return changes, slots


class MarketBelief:
    """Posterior probabilities of several markets, given the slots that were observed.

    `turns`: probability per slot that each of them becomes another, by rows; None: `uniform_turns`.
    """

    def __init__(self, markets: Sequence[SpotMarket], turns: FloatArray | None = None) -> None:
        #: (hypotheses, 2, CLASSES)
        self._change = np.array([market.change for market in markets])
        self._remaining = np.array([market.remaining() for market in markets])
        self._turns = uniform_turns(len(markets)) if turns is None else turns
        self._log = np.zeros(len(markets))
        self._available: bool | None = None
        self._age = _UNKNOWN_AGE

    def see(self, available: bool, slots: int = 1) -> None:
        """Updates the posterior with the slot that begins, `slots` slots after the last observed one.

        If availability is as it was then, it is assumed not to have changed meanwhile; otherwise to have changed
        halfway.
        """
        if self._available is None:
            # The age is unknown at first, so the likelihood is the long-run frequency of availability.
            off, on = (1.0 / self._change[:, state].mean(axis=1) for state in range(2))
            self._log += np.log((on if available else off) / (on + off))
        else:
            self._log = np.log(self.weights @ np.linalg.matrix_power(self._turns, slots))
            changed = self._change[:, int(self._available), age_class(self._age)]
            self._log += np.log(changed if available != self._available else 1 - changed)
            self._age = max(1, slots // 2) if available != self._available else self._age + slots
        self._available = available

    def seen(self, available: bool, slots: int = 1) -> "MarketBelief":
        """Returns a copy that is updated with such a slot; this object stays unchanged."""
        other = copy(self)
        other._log = self._log.copy()
        other.see(available, slots)
        return other

    @property
    def weights(self) -> FloatArray:
        """Posterior probabilities of the markets, which sum to 1 (hypotheses,)."""
        shifted = np.exp(self._log - self._log.max())
        return np.asarray(shifted / shifted.sum(), dtype=np.float64)

    @property
    def remaining(self) -> float:
        """Expected slots until availability changes, averaged over the posterior."""
        return float(self.weights @ self._remaining[:, int(bool(self._available)), age_class(self._age)])

    @property
    def state(self) -> int:
        """Index of the market's current state, as in `SpotMarket.transitions`."""
        return int(bool(self._available)) * AGE_CLASSES + age_class(self._age)


def spot_states() -> BoolArray:
    """Returns the states in which a spot machine can be held (STATES,)."""
    return np.arange(MARKET_STATES) >= AGE_CLASSES


@dataclass(frozen=True, slots=True, eq=False)
class SlackPlan:
    """Costs to go of one job under each market: computed once, used by any number of runs."""

    job: DeadlineJob
    markets: tuple[SpotMarket, ...]
    #: Expected value after a slot, by hypothesis, slots left after it, slack, mode, and the market's state in the slot.
    ahead: NDArray[np.float32]
    #: The slack of each row of `ahead`, in units.
    levels: IntArray
    turns: FloatArray | None = None

    def policy(self) -> "SlackPolicy":
        return SlackPolicy(self, MarketBelief(self.markets, self.turns))


def plan_slack(job: DeadlineJob, markets: Sequence[SpotMarket], taken: Sequence[float] = ()) -> SlackPlan:
    """Returns the costs to go of a job under each of several markets.

    Args:
        taken: for each market, the probability per slot that the held machine is revoked while others are available
            (several zones).

    Raises ValueError if `taken` is given for another number of markets.
    """
    return _finished(plan_slack_in_pieces(job, markets, taken))


def _finished(pieces: Generator[None, None, SlackPlan]) -> SlackPlan:
    """Returns what a generator returns once it has done all its work."""
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            plan: SlackPlan = end.value
            return plan


def plan_slack_in_pieces(
    job: DeadlineJob,
    markets: Sequence[SpotMarket],
    taken: Sequence[float] = (),
    turns: FloatArray | None = None,
    levels: IntArray | None = None,
) -> Generator[None, None, SlackPlan]:
    """Computes `plan_slack` with a pause after each slot; all markets are computed at once, as states of one.

    `turns` is as in `MarketBelief`, `levels` as in `slot_values`.
    """
    turns = uniform_turns(len(markets)) if turns is None else turns
    gone_chances = np.array(taken or [0.0] * len(markets))
    if len(gone_chances) != len(markets):
        raise ValueError(f"{len(gone_chances)} chances for {len(markets)} markets")
    many, lost = len(markets), modes_after_revocation(job)
    # One transition matrix per market; it multiplies values from the left.
    chances = np.array([market.transitions() for market in markets])
    spot, gone_too = np.tile(spot_states(), many), np.repeat(gone_chances, MARKET_STATES)
    levels = np.arange(job.deadline - job.work + 1) if levels is None else levels
    value = np.zeros((len(levels), len(held_modes(job)), many * MARKET_STATES))
    found = np.empty((job.slots, many, len(value), value.shape[1], MARKET_STATES), dtype=np.float32)
    for slots_left in range(job.slots):
        if slots_left:
            before = np.moveaxis(found[slots_left - 1], 0, 2).reshape(value.shape).astype(np.float64)
            value = slot_values(job, slots_left, before, spot, levels)
        # A machine that the market revokes at the end of the slot is gone at the start of the next one.
        gone = value[:, lost]
        kept = (1 - gone_too) * value + gone_too * gone if gone_too.any() else value
        arrived = np.where(spot, kept, gone)
        by_market = np.moveaxis(arrived.reshape(-1, many, MARKET_STATES), 1, 0)
        to_come = by_market @ chances.transpose(0, 2, 1)
        found[slots_left] = np.tensordot(turns, to_come, 1).reshape(found.shape[1:])
        yield
    return SlackPlan(job, tuple(markets), np.moveaxis(found, 1, 0), levels, turns)


@dataclass(slots=True)
class SlackPolicy:
    """Runs one job under a plan."""

    _plan: SlackPlan
    _belief: MarketBelief

    def watch(self, before: Sequence[bool]) -> None:
        """Updates the belief with slots of the same market before the job arrived, where they were observed."""
        for available in before:
            self._belief.see(available)

    def hold(self, job: DeadlineJob, now: DeadlineState) -> HeldMachine:
        """See `SpotPolicy.hold`."""
        self._belief.see(now.spot)
        worth = self.worth(job, now)
        return min(worth, key=lambda held: worth[held])

    def worth(self, job: DeadlineJob, now: DeadlineState) -> dict[HeldMachine, float]:
        """Returns the expected cost to the end, in prices of one spot slot, of each choice in the last observed slot.

        A choice that may miss the deadline costs more than any bill: its probability of a miss times `NEVER`.
        """
        weights, state = self._belief.weights, self._belief.state
        after = self._plan.ahead[:, now.time_left // job.slot - 1]
        worth: dict[HeldMachine, float] = {}
        for move in slot_choices(job, HeldMode(now.held, now.pending)):
            if (move.held is HeldMachine.SPOT and not now.spot) or now.slack < move.slack:
                continue
            to_come = 0.0
            if move.held is HeldMachine.NOTHING or now.work_left > move.work:
                rows, above, part = between_levels(self._plan.levels, np.array([now.slack - move.slack]))
                low, high = (float(weights @ after[:, row[0], move.mode, state]) for row in (rows, above))
                to_come = low + float(part[0]) * (high - low)
            worth[move.held] = float(move.usd(job, np.array([float(now.work_left)]))[0]) + to_come
        return worth


#: Seconds between observations of a market: the length of the slots to which the beliefs are fitted.
WATCH_S = 600.0
_MOST_SLOTS, _MOST_PER_SLOT = 450, 5
#: A restart takes at most this many slots: longer restarts make longer slots.
_MOST_CHANGEOVER = 3
#: Restarts of at most this many slots are measured in parts of a slot.
_MOST_SPLIT = 2
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
#: One zone: what its market may be. `benchmarks.spot_laws.better_regimes` fits them, and how they turn into each other.
ONE_ZONE: tuple[_Changes, ...] = (
    ((0.677, 0.237, 0.259, 0.1, 0.000347), (0.0842, 0.0391, 0.00157, 0.0178, 0.00736)),
    ((0.903, 0.626, 0.0162, 0.0103, 0.00136), (0.0669, 0.0855, 0.0839, 0.0579, 0.047)),
    ((0.277, 0.419, 0.209, 0.0943, 0.109), (0.204, 0.0914, 0.0488, 0.0243, 0.0069)),
    ((0.23, 0.198, 0.0807, 0.0664, 0.0496), (0.214, 0.162, 0.0756, 0.0475, 0.0395)),
    ((0.244, 0.16, 0.0661, 0.0406, 0.0241), (0.363, 0.284, 0.23, 0.0996, 0.0704)),
    ((0.587, 0.33, 0.165, 0.109, 0.247), (0.507, 0.305, 0.212, 0.0411, 0.0264)),
)
#: Probability per slot that each of these becomes another, by rows.
ONE_ZONE_TURNS = (
    (0.99912, 0.0001, 0.0001, 0.0001, 0.0001, 0.00048),
    (0.00041, 0.99609, 0.0001, 0.0001, 0.00253, 0.00077),
    (0.0001, 0.0001, 0.99923, 0.00037, 0.0001, 0.0001),
    (0.0001, 0.0001, 0.00096, 0.9984, 0.00034, 0.0001),
    (0.00017, 0.00151, 0.0001, 0.00051, 0.99746, 0.00025),
    (0.00013, 0.0045, 0.0001, 0.00099, 0.00053, 0.99375),
)
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
    return MarketBelief(*_hypotheses(zones > 1, WATCH_S))


def _hypotheses(several: bool, slot_s: float) -> tuple[list[SpotMarket], FloatArray]:
    """Returns the markets that one zone, or several, may be, and the probabilities that they turn into each other."""
    known = [change for _, change in _SEVERAL_ZONES] if several else ONE_ZONE
    turns = uniform_turns(len(known)) if several else ONE_ZONE_TURNS @ uniform_turns(len(known), _UNSEEN)
    slots = slot_s / WATCH_S
    markets = [SpotMarket(1.0 - (1.0 - np.array(change)) ** slots) for change in known]
    return markets, np.linalg.matrix_power(turns, max(1, round(slots)))


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
            per_slot = _units_per_slot(now.restart_s / slot_s)
        changeover = max(ceil(now.restart_s / slot_s * per_slot - _ROUNDING), 1)
        price = min(max(round(now.on_demand_price, 1), _LEAST_PRICE), _MOST_PRICE)
        return cls(slot_s, per_slot, changeover, price, now.zones > 1)


def _units_per_slot(restart: float) -> int:
    """Returns the least number of units per slot that rounds a restart (in slots) up least."""

    def excess(per_slot: int) -> float:
        return round(max(ceil(restart * per_slot - _ROUNDING), 1) / (restart * per_slot), 6) if restart > 0 else 1.0

    return min(range(1, _MOST_PER_SLOT + 1), key=lambda each: (excess(each), each))


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
        return self._keep(grid, _finished(self._begin(grid, slots, slack)[1])) if known is None else known

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
        slack = min(ceil(_ROOM * slack), max(slack, _MOST_SLOTS * grid.per_slot))
        deadline = max(slots, ceil(slack / grid.per_slot)) * grid.per_slot
        job = DeadlineJob(grid.per_slot, deadline - slack, deadline, grid.changeover, grid.on_demand_price)
        taken: Sequence[float] = [chance for chance, _ in _SEVERAL_ZONES] if grid.several else ()
        markets, turns = _hypotheses(grid.several, grid.slot_s)
        return (slots, slack), plan_slack_in_pieces(job, markets, taken, turns, slack_levels(slack))

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
    slack = int(now.slack_s / grid.unit_s + _ROUNDING)
    slots = max(ceil(now.time_left_s / grid.slot_s - _ROUNDING), ceil(slack / grid.per_slot), 1)
    return grid, slots, slack


def _pending(job: DeadlineJob, units: int) -> int:
    """Returns the smallest remaining changeover of those in the plan that is at least `units`."""
    known = [mode.pending for mode in held_modes(job) if mode.held is HeldMachine.SPOT]  # they ascend
    return next((each for each in known if each >= units), known[-1])


def likely_stay_s(belief: MarketBelief) -> float:
    """Returns the expected seconds until the market's availability changes."""
    return belief.remaining * WATCH_S
