"""How much each class must have at a level: the `Targets` of max-min fairness, finish-time fairness and makespan.

    Capped       t(z) = min(w z, cap)              equal utility for equal weight, until a job can use no more
    FinishTime   t(z) = min(z / (1 - a z), cap)    Themis: z = 1 / rho, u = rate D / R, a = t / D

A class that does not rise keeps its floor at every level. Decides nothing else.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.problem import FloatArray


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
    """min(z / (1 - past z), cap): convex until the cap. `past` is time gone over time due alone (both arrays (k,))."""

    past: FloatArray
    cap: FloatArray

    @property
    def highest(self) -> float:
        """The level at which the last class is full."""
        return float((self.cap / (1 + self.cap * self.past)).max(initial=0.0))

    def at(self, z: float) -> tuple[FloatArray, FloatArray]:
        """Targets, and their slopes just below z."""
        left = 1 - self.past * z
        rising = (left > 0) & (z <= self.cap * left * (1 + 1e-15))
        share = np.where(rising, left, 1.0)
        return np.where(rising, z / share, self.cap), np.where(rising, 1 / share**2, 0.0)
