"""Survival of machines as it was observed."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ObservedLifetime:
    """Survival as it was observed, including machines that were alive when last seen (the Kaplan-Meier estimator)."""

    #: Ages at which machines were taken, ascending, and the survival from each age on.
    ages_h: tuple[float, ...]
    survivals: tuple[float, ...]

    @classmethod
    def of(cls, taken_h: Sequence[float], alive_h: Sequence[float] = ()) -> "ObservedLifetime":
        """Returns the estimate from the ages at which machines were taken, and the ages at which others were last seen
        alive.
        """
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
        """Returns the chance of living to an age."""
        position = bisect_right(self.ages_h, age_h)
        return self.survivals[position - 1] if position else 1.0
