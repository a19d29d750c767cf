"""Means over seeds, and how sure they are."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, nan, sqrt

LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with the interval that holds the true one with 95 % confidence, if what is drawn is about normal."""

    mean: float
    #: nan with fewer than two values.
    low: float
    high: float
    n: int

    @property
    def half(self) -> float:
        """Half the interval's width; nan without one."""
        return (self.high - self.low) / 2.0

    @property
    def excludes_zero(self) -> bool:
        """True: a difference of which the sign is sure (at that level)."""
        return isfinite(self.low) and (self.low > 0.0 or self.high < 0.0)


def estimate(values: Sequence[float]) -> Estimate:
    """Student's interval for the mean. A value that does not exist (nan) in one run leaves no mean at all."""
    n = len(values)
    if n == 0 or not all(isfinite(value) for value in values):
        return Estimate(nan, nan, nan, n)
    mean = sum(values) / n
    if n < 2:
        return Estimate(mean, nan, nan, n)
    from scipy.stats import t

    deviation = sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    half = float(t.ppf(0.5 + LEVEL / 2.0, n - 1)) * deviation / sqrt(n)
    return Estimate(mean, mean - half, mean + half, n)


def paired(values: Sequence[float], against: Sequence[float]) -> Estimate:
    """The mean difference of runs that met the same jobs and the same chance: value by value, not mean by mean."""
    return estimate([value - other for value, other in zip(values, against, strict=True)])
