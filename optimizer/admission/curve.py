"""The price curve of admission: what one accelerator of a slot costs, by how much of the slot is booked.

    k(gamma) = L * (U / L) ^ (gamma / (sigma * c))

L (the floor) lets the first jobs in, U (the ceiling) keeps the last ones out: at gamma = sigma * c the price has
reached what the slot can be worth to anybody. sigma = 1 - delta, with delta the largest part of a slot that one job
takes, is what the proof needs: a job that would overbook finds gamma > (1 - delta) c, and can only lose. sigma = 1 is
what serves better: more is sold before prices forbid it, and capacity is checked instead of proved.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from math import expm1

import numpy as np

from optimizer.admission.instance import Instance, options_of
from optimizer.admission.schedules import best_schedule, worth_of_slots
from optimizer.problem import FloatArray, IntArray


class Saturation(StrEnum):
    """Where the price reaches the ceiling."""

    #: When the slot is full: the plain curve, with an explicit capacity check.
    FULL = "full"
    #: When the largest job might not fit any more: the curve of the theorem.
    PROVABLE = "provable"


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Prices of all slots as functions of what is booked."""

    capacity: FloatArray
    #: L, one for all slots: half the best single utility is spread over all slots, so D_0 <= OPT / 2.
    floor: float
    #: U, at least the floor (R, p).
    ceiling: FloatArray
    #: sigma: the part of a slot at which its price is the ceiling.
    sigma: float
    #: delta: the largest part of a slot that one job takes.
    delta: float
    #: ln(U / L) (R, p), worked out once.
    steepness: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "steepness", np.log(self.ceiling / self.floor))

    def prices(self, booked: IntArray) -> FloatArray:
        """Price of one accelerator of each slot (R, p) when that many are booked (R, p)."""
        prices: FloatArray = self.floor * np.exp(self.steepness * booked / (self.sigma * self.capacity))
        return prices

    @property
    def initial_dual(self) -> float:
        """D_0: all slots at their floor."""
        return float(self.floor * self.capacity.sum() * len(self.ceiling))

    @property
    def alpha(self) -> float:
        """What one unit of value adds to the dual at most: (e^(b delta) - 1) / delta, b = max ln(U/L) / sigma."""
        steepest = float(self.steepness.max()) / self.sigma
        return max(1.0, expm1(steepest * self.delta) / self.delta)

    @property
    def alpha_of_dust(self) -> float:
        """What alpha would be for jobs infinitely small against every slot: ln(U/L)."""
        return max(1.0, float(self.steepness.max()))


def curve_of(instance: Instance, saturation: Saturation) -> Curve | None:
    """The curve for the jobs that may come; None where none of them has a schedule.

    The bounds L and U are taken from all applicants: an online algorithm has to know (or guess) such bounds beforehand.

    Raises:
        ValueError: a gang may fill a whole pool, so the provable curve does not exist.
    """
    free = np.zeros((instance.rounds, len(instance.capacity)))
    alone = max((best_schedule(instance, job, free).payoff for job in instance.applicants), default=-np.inf)
    if alone <= 0:
        return None
    capacity = np.array(instance.capacity, dtype=np.float64)
    uses = [options_of(instance, job).use for job in instance.applicants]
    delta = float(max((use / capacity).max() for use in uses if len(use)))
    if saturation is Saturation.PROVABLE and delta >= 1:
        raise ValueError("a gang may fill a whole pool: the provable curve needs gangs smaller than every pool")
    floor = alone / (2 * capacity.sum() * instance.rounds)
    worth = np.max([worth_of_slots(instance, job) for job in instance.applicants], axis=0)
    sigma = 1.0 if saturation is Saturation.FULL else 1.0 - delta
    return Curve(capacity, floor, np.maximum(worth, floor), sigma, delta)
