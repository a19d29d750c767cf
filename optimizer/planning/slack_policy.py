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
"""

from collections.abc import Generator, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from optimizer.planning.deadline_job import DeadlineJob, DeadlineState, HeldMachine

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

#: Value of a state that may miss the deadline: more than any bill times the least probability of a change (1e-4).
NEVER = 1e12


@dataclass(frozen=True, slots=True)
class HeldMode:
    """What is held at the start of a slot, and the units of its changeover that are still to come."""

    held: HeldMachine
    pending: int


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


def slot_values(job: DeadlineJob, slots_left: int, ahead: FloatArray, spot: BoolArray) -> FloatArray:
    """Returns the values with `slots_left` slots to go, from the expected values after the slot (s, m, z).

    Args:
        ahead: expected value after the slot, by slack, mode after it, and the market's state now (s, m, z).
        spot: states of the market in which a spot machine can be held (z,).
    """
    many = len(ahead)
    slack = np.arange(many)
    work_left = slots_left * job.slot - slack
    value = np.full_like(ahead, NEVER)
    for place, mode in enumerate(held_modes(job)):
        for move in slot_choices(job, mode):
            after = slack - move.slack
            paid = move.usd(job, np.maximum(work_left, 0).astype(np.float64))
            to_come = np.where((after >= 0)[:, None], ahead[np.maximum(after, 0), move.mode], NEVER)
            ended = work_left <= move.work if move.held is not HeldMachine.NOTHING else work_left <= 0
            worth = paid[:, None] + np.where(ended[:, None], 0.0, to_come)
            if move.held is HeldMachine.SPOT:
                worth = np.where(spot[None, :], worth, NEVER)
            value[:, place] = np.minimum(value[:, place], worth)
    value[work_left <= 0] = 0.0
    return value


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
#: Probability per slot that the market becomes another hypothesis, drawn uniformly.
_DRIFT = 0.005
#: Factors on the rates at which machines come and go in `spread_market`.
_SPREAD = (0.6, 1.7)


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


def spread_market(change: FloatArray) -> tuple[SpotMarket, ...]:
    """Returns markets around one (2, CLASSES) in which machines come and go more and less often: a prior without
    observations.
    """
    factors = np.array([(comes, goes) for comes in _SPREAD for goes in _SPREAD])
    return tuple(
        SpotMarket(np.clip(1.0 - (1.0 - change) ** factor[:, None], _RAREST, 1 - _RAREST)) for factor in factors
    )


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
    """Posterior probabilities of several markets, given the slots that were observed."""

    def __init__(self, markets: Sequence[SpotMarket]) -> None:
        #: (hypotheses, 2, CLASSES)
        self._change = np.array([market.change for market in markets])
        self._remaining = np.array([market.remaining() for market in markets])
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
            self._drift(slots)
            changed = self._change[:, int(self._available), age_class(self._age)]
            self._log += np.log(changed if available != self._available else 1 - changed)
            self._age = max(1, slots // 2) if available != self._available else self._age + slots
        self._available = available

    def _drift(self, slots: int) -> None:
        """Applies the probability that the market has become another hypothesis meanwhile."""
        stays = (1.0 - _DRIFT) ** slots
        self._log = np.log(stays * self.weights + (1.0 - stays) / len(self._log))

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

    def policy(self) -> "SlackPolicy":
        """Returns a policy for one run."""
        return SlackPolicy(self, MarketBelief(self.markets))


def plan_slack(job: DeadlineJob, markets: Sequence[SpotMarket], taken: Sequence[float] = ()) -> SlackPlan:
    """Returns the costs to go of a job under each of several markets.

    Args:
        taken: for each market, the probability per slot that the held machine is revoked while others are available
            (several zones).

    Raises ValueError if `taken` is given for another number of markets.
    """
    pieces = plan_slack_in_pieces(job, markets, taken)
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            plan: SlackPlan = end.value
            return plan


def plan_slack_in_pieces(
    job: DeadlineJob, markets: Sequence[SpotMarket], taken: Sequence[float] = ()
) -> Generator[None, None, SlackPlan]:
    """Computes `plan_slack` with a pause after each slot; all markets are computed at once, as states of one."""
    gone_chances = np.array(taken or [0.0] * len(markets))
    if len(gone_chances) != len(markets):
        raise ValueError(f"{len(gone_chances)} chances for {len(markets)} markets")
    many, lost = len(markets), modes_after_revocation(job)
    # One transition matrix per market; it multiplies values from the left.
    chances = np.array([market.transitions() for market in markets])
    spot, gone_too = np.tile(spot_states(), many), np.repeat(gone_chances, MARKET_STATES)
    value = deadline_values(job, many * MARKET_STATES)
    found = np.empty((job.slots, many, len(value), value.shape[1], MARKET_STATES), dtype=np.float32)
    for slots_left in range(job.slots):
        if slots_left:
            before = np.moveaxis(found[slots_left - 1], 0, 2).reshape(value.shape).astype(np.float64)
            value = slot_values(job, slots_left, before, spot)
        # A machine that the market revokes at the end of the slot is gone at the start of the next one.
        gone = value[:, lost]
        arrived = np.where(spot, (1 - gone_too) * value + gone_too * gone, gone)
        by_market = np.moveaxis(arrived.reshape(*value.shape[:2], many, MARKET_STATES), 2, 0)
        to_come = by_market @ chances.transpose(0, 2, 1)[:, None]
        found[slots_left] = (1.0 - _DRIFT) * to_come + _DRIFT * to_come.mean(axis=0)
        yield
    return SlackPlan(job, tuple(markets), np.moveaxis(found, 1, 0))


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
            ended = move.held is not HeldMachine.NOTHING and now.work_left <= move.work
            to_come = 0.0 if ended else float(weights @ after[:, now.slack - move.slack, move.mode, state])
            worth[move.held] = float(move.usd(job, np.array([float(now.work_left)]))[0]) + to_come
        return worth
