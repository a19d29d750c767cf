"""What shares reach and what prices prove, for each of the three things that policies maximise.

For any prices p >= 0 and any feasible shares x, what the jobs' shares cost is at most p . capacity. So:

    level    z is out of reach if the cheapest ways to all targets at z cost more than p . capacity
    sum      sum value.x <= p . capacity + sum over jobs of the largest (value - cost).x with worth.x >= floor
    log      sum w log(worth.x) <= p . capacity + sum over jobs of the largest w log(worth.x) - cost.x
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from optimizer.checking.facts import Facts
from optimizer.checking.packed import PackedDuals
from optimizer.checking.responses import cheapest, cheapest_at_least, most_of_logarithm
from optimizer.decision import Shares
from optimizer.problem import BoolArray, FloatArray

#: Who is within this part of what it can use is full, so that rounding cannot make it look starved.
FULL = 1e-8
#: Sums that agree to this part are equal.
ROUNDING = 3e-10
#: What is kept is known to that part, so what it costs is allowed a little more.
_AFFORDED = 1e-9
#: What earlier levels left to everybody is known to this part.
_KNOWN = 1e-8
#: An error in that never excuses more than this part of the highest level and of the level itself.
_EXCUSED, _EXCUSED_HERE = 1e-6, 5e-5
#: Parts of a level that are little; a target may bend within the larger ones.
_STEPS = (1e-9, 1e-7, 1e-5)
#: Halvings of a level: enough for the last bit.
_HALVINGS = 200


@dataclass(frozen=True, slots=True, eq=False)
class Proof:
    """Prices of the rows, >= 0 (r,); where jobs may be packed, those of utility and time besides."""

    facts: Facts
    prices: FloatArray
    packed: PackedDuals | None = None


class Targets(Protocol):
    """How much each job is to have at level z."""

    @property
    def cap(self) -> FloatArray:
        """The utility at which a job is left alone (n,)."""
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
        """The largest level whose targets the utilities reach; who is within the part `full` of its cap is full."""
        ...


class _EachAlone(ABC):
    """Targets of jobs that do not depend on each other: a job's utility tells its level."""

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
class Proportional(_EachAlone):
    """min(slope z, cap); who has no slope keeps its floor (all (n,))."""

    slope: FloatArray
    cap: FloatArray
    floor: FloatArray

    @property
    def rising(self) -> BoolArray:
        """Who has a slope, and something to use."""
        return np.asarray((self.slope > 0) & (self.cap > 0))

    def at(self, z: float) -> FloatArray:
        return np.asarray(np.where(self.rising, np.minimum(self.slope * z, self.cap), self.floor))

    def levels(self, utility: FloatArray) -> FloatArray:
        levels = np.full(len(utility), np.inf)
        np.divide(utility, self.slope, out=levels, where=self.slope > 0)
        return levels


@dataclass(frozen=True, eq=False)
class FinishTimes(_EachAlone):
    """min(pace z / (1 - past z), cap), from rho = past + pace / utility and z = 1 / rho (all (n,))."""

    pace: FloatArray
    past: FloatArray
    cap: FloatArray

    @property
    def rising(self) -> BoolArray:
        """Who has something to use."""
        return np.asarray(self.cap > 0)

    def at(self, z: float) -> FloatArray:
        left = 1 - self.past * z
        due = np.divide(self.pace * z, left, out=np.full(len(left), np.inf), where=left > 0)
        return np.asarray(np.minimum(due, self.cap))

    def levels(self, utility: FloatArray) -> FloatArray:
        return np.asarray(utility / (self.pace + self.past * utility))


@dataclass(frozen=True, slots=True, eq=False)
class LevelForm:
    """The largest level that all targets reach."""

    worth: FloatArray
    targets: Targets

    @property
    def highest(self) -> float:
        """The level that fills the last job."""
        return self.targets.highest

    def reached(self, facts: Facts, shares: Shares) -> float:
        return self.targets.reached(facts.gained(self.worth, shares), FULL)

    def bound(self, proof: Proof, slack: float = _AFFORDED) -> float:
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

    def blur(self, proof: Proof) -> float:
        """How far the bound moves when what the others keep is known no better than it is: much, where they keep
        nearly everything.
        """
        low, high = self.bound(proof, -_KNOWN), self.bound(proof, _KNOWN)
        return min(high - low, _EXCUSED * self.highest + _EXCUSED_HERE * high)

    def spending(self, proof: Proof) -> Callable[[float], float]:
        """What the targets cost at least, by level."""
        packed, targets = proof.packed, self.targets
        if packed is not None:
            return lambda level: float(packed.utility @ targets.at(level))
        menu = proof.facts.menu(self.worth, proof.facts.cost(proof.prices))
        return lambda level: float(cheapest(menu, targets.at(level)).sum())

    def per_level(self, proof: Proof, z: float) -> tuple[float, float]:
        """The least and the most that a unit of the level costs about z: 1 lies between for its dual values."""
        spent = self.spending(proof)
        slopes = [(spent(z * (1 + side * step)) - spent(z)) / (side * step * z) for step in _STEPS for side in (-1, 1)]
        return min(slopes), max(slopes)


@dataclass(frozen=True, slots=True, eq=False)
class SumForm:
    """The largest sum of values while every job keeps its floor."""

    value: FloatArray
    worth: FloatArray
    floor: FloatArray

    def reached(self, facts: Facts, shares: Shares) -> float:
        return float(facts.gained(self.value, shares).sum())

    def bound(self, proof: Proof) -> float:
        facts, prices, packed = proof.facts, proof.prices, proof.packed
        if packed is not None:
            return packed.income - float(packed.utility @ self.floor)
        menu = facts.menu(self.worth, facts.cost(prices) - self.value)
        return float(prices @ facts.row_capacity) - float(cheapest_at_least(menu, self.floor).sum())


@dataclass(frozen=True, slots=True, eq=False)
class LogForm:
    """The largest weighted sum of logarithms of utilities."""

    worth: FloatArray
    weight: FloatArray

    def reached(self, facts: Facts, shares: Shares) -> float:
        utility = facts.gained(self.worth, shares)
        with np.errstate(divide="ignore"):
            return float(sum(w * np.log(max(u, 0.0)) for w, u in zip(self.weight, utility, strict=True) if w > 0))

    def bound(self, proof: Proof) -> float:
        facts, prices = proof.facts, proof.prices
        menu = facts.menu(self.worth, facts.cost(prices))
        return float(prices @ facts.row_capacity) + float(most_of_logarithm(menu, self.weight).sum())


Form = LevelForm | SumForm | LogForm
