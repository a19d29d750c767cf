"""Value of shares and dual bound of prices (weak duality) for each of the three objectives that policies maximise.

For any prices p >= 0 and any feasible shares x, the jobs' shares cost at most p . capacity. So:

    level    z is out of reach if the cheapest ways to all targets at z cost more than p . capacity
    sum      sum value.x <= p . capacity + sum over jobs of the largest (value - cost).x with worth.x >= floor
    log      sum w log(worth.x) <= p . capacity + sum over jobs of the largest w log(worth.x) - cost.x

Where jobs may be co-located in pairs, the prices of the rows do not say which of the two pays. An answer then states
for each job also the price of a unit of its utility (y) and of its time (t). At any p, y >= 0 and any t at which no
column and no pair is worth more than it costs,

    value[c] + y worth[c]                        <= cost[c] + t           each column
    sum over both of what each keeps of that     <= count p + t + t'      each pair

the sum of values is at most p . capacity + sum t - y . floor, and a level z is out of reach if y . targets(z) is more
than p . capacity + sum t. The stated t is not trusted: it is raised until all columns and pairs hold.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from optimizer.check.jobwise_problem import (
    JobwiseProblem,
    cheapest_mixture,
    cheapest_mixture_at_least,
    largest_log_surplus,
)
from optimizer.decision import Shares, SolveStage
from optimizer.problem import BoolArray, FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class CoLocationDuals:
    """Price of a unit of each job's utility (n,), and the income of all rows and all time at their prices."""

    utility: FloatArray
    income: float


def co_location_duals(
    facts: JobwiseProblem, stage: SolveStage, value: FloatArray, worth: FloatArray
) -> CoLocationDuals:
    """The stage's prices of utility and time, with time raised until all columns and pairs hold.

    Args:
        facts: of a problem with pairs.
        stage: as stated.
        value: of each column in the stage's objective, without the worth of utility (c,).
        worth: utility of each column (c,).
    """
    prices = np.maximum(stage.prices, 0.0)
    utility = np.maximum(stage.multiplier, 0.0) if len(stage.multiplier) == facts.jobs else np.zeros(facts.jobs)
    time = np.maximum(stage.time, 0.0) if len(stage.time) == facts.jobs else np.zeros(facts.jobs)
    gain = np.where(facts.usable, value + utility[facts.problem.columns.job] * worth, 0.0)
    time = np.maximum(time, facts.best(np.where(facts.usable, gain - facts.cost(prices), 0.0)))
    pairs = facts.problem.pairs
    assert pairs is not None, "packing needs pairs"
    excess = max((_excess(facts, row, gain, time, prices) for row in facts.pair_rows), default=0.0)
    time = time + np.where(pairs.kind >= 0, max(excess, 0.0) / 2, 0.0)
    return CoLocationDuals(utility, float(prices @ facts.row_capacity) + float(time.sum()))


def _excess(facts: JobwiseProblem, row: int, gain: FloatArray, time: FloatArray, prices: FloatArray) -> float:
    """The largest excess of worth over cost among the pairs of jobs of a listed row."""
    pairs = facts.problem.pairs
    assert pairs is not None, "packing needs pairs"
    pool = int(pairs.pool[row])
    firsts = _sides(facts, int(pairs.first[row]), pool, pairs.first_factor[row] * gain, time)
    seconds = _sides(facts, int(pairs.second[row]), pool, pairs.second_factor[row] * gain, time)
    most = 0.0
    for count in firsts.keys() & seconds.keys():
        best = (
            one + other for one, job in firsts[count][:2] for other, partner in seconds[count][:2] if job != partner
        )
        most = max(most, max(best, default=0.0) - count * float(prices[pool]))
    return most


def _sides(
    facts: JobwiseProblem, kind: int, pool: int, worth: FloatArray, time: FloatArray
) -> dict[float, list[tuple[float, int]]]:
    """Worth of one half of a pair to each job of a kind, less its time, by gang size, largest first."""
    pairs = facts.problem.pairs
    assert pairs is not None, "packing needs pairs"
    sides: dict[float, list[tuple[float, int]]] = defaultdict(list)
    for job in np.flatnonzero(pairs.kind == kind):
        column = facts.alone[job].get(pool)
        if column is not None:
            sides[facts.uses[column][pool]].append((float(worth[column]) - float(time[job]), int(job)))
    return {count: sorted(each, reverse=True) for count, each in sides.items()}


#: A job within this part of its cap counts as full, so that rounding does not make it look starved.
FULL_TOLERANCE = 1e-8
#: Sums that agree to this part are equal.
SUM_TOLERANCE = 3e-10
#: Kept utilities are known only to this part, so their cost may exceed the income by it.
_AFFORDED = 1e-9
#: Relative accuracy of the utilities that earlier levels left.
_KNOWN = 1e-8
#: An error in them excuses at most this part of the highest level and of the level itself.
_EXCUSED, _EXCUSED_HERE = 1e-6, 5e-5
#: Relative steps about a level for difference quotients; a target may have a kink within the larger ones.
_STEPS = (1e-9, 1e-7, 1e-5)
#: Halvings of a level: enough for the last bit.
_HALVINGS = 200


@dataclass(frozen=True, slots=True, eq=False)
class DualProof:
    """Prices of the rows, >= 0 (r,), and of utility and time where jobs may be co-located."""

    facts: JobwiseProblem
    prices: FloatArray
    packed: CoLocationDuals | None = None


class CheckedTargets(Protocol):
    """Target utility of each job as a function of the level z."""

    @property
    def cap(self) -> FloatArray:
        """The utility above which a job is no longer raised (n,)."""
        ...

    @property
    def rising(self) -> BoolArray:
        """Jobs that the level raises (n,)."""
        ...

    def at(self, z: float) -> FloatArray:
        """Target of each job, floors of those that do not rise included (n,)."""
        ...

    @property
    def highest(self) -> float:
        """The level that fills the last job."""
        ...

    def reached(self, utility: FloatArray, full: float) -> float:
        """The largest level whose targets the utilities reach; a job within the part `full` of its cap is full."""
        ...


class _SeparateTargets(ABC):
    """Targets that do not depend on other jobs, so that a job's utility determines its level."""

    cap: FloatArray

    @property
    @abstractmethod
    def rising(self) -> BoolArray:
        """Jobs that the level raises (n,)."""

    @abstractmethod
    def levels(self, utility: FloatArray) -> FloatArray:
        """The level at which each job's target would be just this utility, caps aside (n,)."""

    @property
    def highest(self) -> float:
        return float(self.levels(self.cap)[self.rising].max(initial=0.0))

    def reached(self, utility: FloatArray, full: float) -> float:
        short = self.rising & (utility < self.cap * (1 - full))
        return float(self.levels(utility)[short].min(initial=self.highest))


@dataclass(frozen=True, eq=False)
class CheckedProportional(_SeparateTargets):
    """min(slope z, cap) for jobs with a slope, the floor for the others (all (n,))."""

    slope: FloatArray
    cap: FloatArray
    floor: FloatArray

    @property
    def rising(self) -> BoolArray:
        """Jobs with a slope and a positive cap (n,)."""
        return np.asarray((self.slope > 0) & (self.cap > 0))

    def at(self, z: float) -> FloatArray:
        return np.asarray(np.where(self.rising, np.minimum(self.slope * z, self.cap), self.floor))

    def levels(self, utility: FloatArray) -> FloatArray:
        levels = np.full(len(utility), np.inf)
        np.divide(utility, self.slope, out=levels, where=self.slope > 0)
        return levels


@dataclass(frozen=True, eq=False)
class CheckedFinishTimes(_SeparateTargets):
    """min(pace z / (1 - past z), cap), from rho = past + pace / utility and z = 1 / rho (all (n,))."""

    pace: FloatArray
    past: FloatArray
    cap: FloatArray

    @property
    def rising(self) -> BoolArray:
        """Jobs with a positive cap (n,)."""
        return np.asarray(self.cap > 0)

    def at(self, z: float) -> FloatArray:
        left = 1 - self.past * z
        due = np.divide(self.pace * z, left, out=np.full(len(left), np.inf), where=left > 0)
        return np.asarray(np.minimum(due, self.cap))

    def levels(self, utility: FloatArray) -> FloatArray:
        return np.asarray(utility / (self.pace + self.past * utility))


@dataclass(frozen=True, slots=True, eq=False)
class CheckedLevel:
    """The largest level that all targets reach."""

    worth: FloatArray
    targets: CheckedTargets

    @property
    def highest(self) -> float:
        """The level that fills the last job."""
        return self.targets.highest

    def reached(self, facts: JobwiseProblem, shares: Shares) -> float:
        return self.targets.reached(facts.gained(self.worth, shares), FULL_TOLERANCE)

    def bound(self, proof: DualProof, slack: float = _AFFORDED) -> float:
        earned = float(proof.prices @ proof.facts.row_capacity)
        income = (earned if proof.packed is None else proof.packed.income) * (1 + slack)
        spent = self.spending(proof)
        low, high = 0.0, self.highest
        if spent(high) <= income:
            return high
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            if middle in (low, high):
                break
            low, high = (middle, high) if spent(middle) <= income else (low, middle)
        return high

    def blur(self, proof: DualProof) -> float:
        """Uncertainty of the bound from that of the utilities kept by other jobs; large where these use nearly all."""
        low, high = self.bound(proof, -_KNOWN), self.bound(proof, _KNOWN)
        return min(high - low, _EXCUSED * self.highest + _EXCUSED_HERE * high)

    def spending(self, proof: DualProof) -> Callable[[float], float]:
        """Least cost of the targets as a function of the level."""
        packed, targets = proof.packed, self.targets
        if packed is not None:
            return lambda level: float(packed.utility @ targets.at(level))
        menu = proof.facts.menu(self.worth, proof.facts.cost(proof.prices))
        return lambda level: float(cheapest_mixture(menu, targets.at(level)).sum())

    def per_level(self, proof: DualProof, z: float) -> tuple[float, float]:
        """Least and largest marginal cost of the level about z; dual values in units of the level have 1 in between."""
        spent = self.spending(proof)
        slopes = [(spent(z * (1 + side * step)) - spent(z)) / (side * step * z) for step in _STEPS for side in (-1, 1)]
        return min(slopes), max(slopes)


@dataclass(frozen=True, slots=True, eq=False)
class CheckedSum:
    """The largest sum of values while every job keeps its floor."""

    value: FloatArray
    worth: FloatArray
    floor: FloatArray

    def reached(self, facts: JobwiseProblem, shares: Shares) -> float:
        return float(facts.gained(self.value, shares).sum())

    def bound(self, proof: DualProof) -> float:
        facts, prices, packed = proof.facts, proof.prices, proof.packed
        if packed is not None:
            return packed.income - float(packed.utility @ self.floor)
        menu = facts.menu(self.worth, facts.cost(prices) - self.value)
        return float(prices @ facts.row_capacity) - float(cheapest_mixture_at_least(menu, self.floor).sum())


@dataclass(frozen=True, slots=True, eq=False)
class CheckedLog:
    """The largest weighted sum of logarithms of utilities."""

    worth: FloatArray
    weight: FloatArray

    def reached(self, facts: JobwiseProblem, shares: Shares) -> float:
        utility = facts.gained(self.worth, shares)
        with np.errstate(divide="ignore"):
            return float(sum(w * np.log(max(u, 0.0)) for w, u in zip(self.weight, utility, strict=True) if w > 0))

    def bound(self, proof: DualProof) -> float:
        facts, prices = proof.facts, proof.prices
        menu = facts.menu(self.worth, facts.cost(prices))
        return float(prices @ facts.row_capacity) + float(largest_log_surplus(menu, self.weight).sum())


CheckedObjective = CheckedLevel | CheckedSum | CheckedLog
