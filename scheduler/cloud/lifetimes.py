"""How long a spot machine lives: laws of its survival, and rates learned per zone from what was seen there.

A law answers with the chance of living to an age, in hours; everything else follows from that. `Lifetimes` of the
GCP kind have a cap at which a machine is taken in any case. No clock; a draw takes the Random that is handed in.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf
from random import Random
from typing import Protocol

#: Halvings of an interval when an age is drawn: 1e-9 h over a century.
_HALVINGS = 60
_LONGEST_H = 1e6


class Lifetime(Protocol):
    """A law of survival."""

    def survival(self, age_h: float) -> float:
        """Chance of living to an age: 1 at 0, never rising."""
        ...


@dataclass(frozen=True, slots=True)
class Exponential:
    """A machine that has lived is as likely to live on as a new one."""

    #: Revocations per machine-hour.
    rate_per_h: float

    def survival(self, age_h: float) -> float:
        """See `Lifetime`."""
        return exp(-self.rate_per_h * max(age_h, 0.0))


@dataclass(frozen=True, slots=True)
class Bathtub:
    """Many die young, few in the middle, all by the cap (Kadupitiya and others, HPDC'20).

    F(t) = scale (1 - exp(-t / early_h) + exp((t - cap_h) / late_h)), all by `cap_h`.
    """

    scale: float
    early_h: float
    late_h: float
    cap_h: float

    def survival(self, age_h: float) -> float:
        """See `Lifetime`."""
        return 0.0 if age_h > self.cap_h else 1.0 - self.failed(age_h)

    def failed(self, age_h: float) -> float:
        """F(t): the chance of being gone by an age."""
        if age_h <= 0:
            return 0.0
        early, late = exp(-age_h / self.early_h), exp((age_h - self.cap_h) / self.late_h)
        return min(self.scale * (1.0 - early + late), 1.0)


@dataclass(frozen=True, slots=True)
class Empirical:
    """Survival as it was seen, machines that were still alive at their last sight included (Kaplan and Meier)."""

    #: Ages at which machines were taken, ascending, and the survival from each of them on.
    ages_h: tuple[float, ...]
    survivals: tuple[float, ...]

    @classmethod
    def of(cls, taken_h: Sequence[float], alive_h: Sequence[float] = ()) -> "Empirical":
        """From ages at which machines were taken, and ages at which others were last seen alive."""
        ages: list[float] = []
        survivals: list[float] = []
        remaining = 1.0
        for age in sorted(set(taken_h)):
            at_risk = sum(other >= age for other in taken_h) + sum(other >= age for other in alive_h)
            remaining *= 1.0 - sum(other == age for other in taken_h) / at_risk
            ages.append(age)
            survivals.append(remaining)
        return cls(tuple(ages), tuple(survivals))

    def survival(self, age_h: float) -> float:
        """See `Lifetime`."""
        position = bisect_right(self.ages_h, age_h)
        return self.survivals[position - 1] if position else 1.0


def survival_from(law: Lifetime, age_h: float, further_h: float) -> float:
    """Chance that a machine of an age lives on so much longer; 0 if none reaches that age."""
    reached = law.survival(age_h)
    return law.survival(age_h + further_h) / reached if reached > 0 else 0.0


def mean_life(law: Lifetime, until_h: float, steps: int = 2000) -> float:
    """Mean hours that a new machine lives, counting no more than `until_h` of any."""
    width = until_h / steps
    inner = sum(law.survival(number * width) for number in range(1, steps))
    return width * (inner + (law.survival(0.0) + law.survival(until_h)) / 2)


def draw_life(law: Lifetime, random: Random, age_h: float = 0.0) -> float:
    """Hours that a machine of an age has still to live; infinite where the law lets some live for ever."""
    wanted = law.survival(age_h) * random.random()
    low, high = age_h, age_h + 1.0
    while law.survival(high) > wanted:
        low, high = high, age_h + 2 * (high - age_h)
        if high > _LONGEST_H:
            return inf
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if law.survival(middle) > wanted else (low, middle)
    return high - age_h
