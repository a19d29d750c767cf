"""How much each class must have at a level: the `Targets` of max-min fairness, finish-time fairness and makespan.

    Capped       t(z) = min(w z, cap)              equal utility for equal weight, until a job can use no more
    FinishTime   t(z) = min(b z / (1 - a z), cap)  Themis: z = 1 / rho, b = u of R / D steps/s, a = t / D

A class that does not rise keeps its floor at every level. Decides nothing else.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.problem import FloatArray

#: A class is full at a level that went through float arithmetic.
_ROUNDING = 1e-15


@dataclass(frozen=True, slots=True, eq=False)
class Capped:
    """min(slope z, cap) for classes with a slope, the floor for the others (all arrays (k,))."""

    slope: FloatArray
    cap: FloatArray
    floor: FloatArray

    @property
    def highest(self) -> float:
        """The level that fills the last class."""
        rising = self.slope > 0
        return float((self.cap[rising] / self.slope[rising]).max(initial=0.0))

    def at(self, z: float) -> tuple[FloatArray, FloatArray]:
        """Targets, and their slopes just below z."""
        rising = (self.slope > 0) & (self.slope * z <= self.cap)
        target = np.where(self.slope > 0, np.minimum(self.slope * z, self.cap), self.floor)
        return target, np.where(rising, self.slope, 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class FinishTime:
    """min(pace z / (1 - past z), cap): convex until the cap. A class with cap 0 does not rise (all arrays (k,))."""

    #: Utility of a class that ends when it would have ended alone, if it began now: that of R / D steps per second.
    pace: FloatArray
    #: t / D: time since submission over time due alone.
    past: FloatArray
    cap: FloatArray

    @property
    def highest(self) -> float:
        """The level at which the last class is full."""
        rising = self.cap > 0
        return float((self.cap / np.where(rising, self.pace + self.cap * self.past, 1.0)).max(initial=0.0))

    def at(self, z: float) -> tuple[FloatArray, FloatArray]:
        """Targets, and their slopes just below z."""
        left = 1 - self.past * z
        rising = (left > 0) & (self.pace * z <= self.cap * left * (1 + _ROUNDING)) & (self.cap > 0)
        share = np.where(rising, left, 1.0)
        target = np.where(rising, np.minimum(self.pace * z / share, self.cap), self.cap)
        return target, np.where(rising, self.pace / share**2, 0.0)
