"""The time to work before the next checkpoint, by the age of the machines and the law of their lifetimes.

With w(riting) hours of a checkpoint and a price p of a lost hour against a written one, work for tau hours costs

    w  +  p integral of (time since the last checkpoint) x hazard        and so       p tau H / 2  =  w

in the optimum, H being the cumulative hazard over the segment and its checkpoint (Young 1974 where the hazard is
constant). That looks no further than one segment. Where the hazard rises steeply, as before a cap of a day, it pays to
end a segment just before: `schedule_checkpoints` finds the segments of a machine's whole life that leave most saved
work,

    V(a)  =  max over tau  P(life > a + tau + w | life > a) (tau + V(a + tau + w)),

by dynamic programming over ages that lie a part of such a segment apart. The other costs of a machine's end (a new
machine, loading) do not depend on the segments. Where pause and loss are paid at one price, that price cancels out.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from math import inf, sqrt

import numpy as np

from optimizer.problem import FloatArray
from optimizer.renting.lifetime_laws import hazard_at
from optimizer.renting.spot_lifetimes import Lifetime

#: Ages per segment that the search distinguishes, segments that it looks ahead, and the most segments in a life.
_PARTS, _REACH, _MOST_SEGMENTS = 5, 4, 100
#: Planning stops at an age that fewer than this part of machines outlive.
_RARE = 1e-4
_SHORTEST_H, _LONGEST_H = 1e-6, 24.0 * 365
_HALVINGS = 18


def interval_by_hazard(hazard: Callable[[float], float], checkpoint_h: float, lost_price: float = 1.0) -> float:
    """Returns the hours of work after which a checkpoint that takes `checkpoint_h` pays; infinite where no machine
    ends.

    `hazard`: the cumulative hazard from now to so many hours ahead, over all machines whose end stops the run.
    `lost_price`: the price of a lost hour over that of an hour spent on writing.
    """

    def costs_more(work_h: float) -> bool:
        loss_h = work_h * work_h / (work_h + checkpoint_h) * hazard(work_h + checkpoint_h) / 2
        return lost_price * loss_h > checkpoint_h

    if not costs_more(_LONGEST_H):
        return inf
    low, high = _SHORTEST_H, _LONGEST_H
    for _ in range(_HALVINGS):
        middle = sqrt(low * high)
        low, high = (low, middle) if costs_more(middle) else (middle, high)
    return low


@dataclass(frozen=True, slots=True)
class CheckpointSchedule:
    """Hours of work before the next checkpoint, by the age of the machine at which it begins."""

    law: Lifetime
    checkpoint_h: float
    lost_price: float
    #: Ages, ascending, and the work from each of them; empty: the hazard over one segment decides at every age.
    ages_h: tuple[float, ...] = ()
    intervals_h: tuple[float, ...] = ()

    def interval_h(self, age_h: float) -> float:
        """Returns the hours of work before the next checkpoint from this age on; infinite if machines no longer end."""
        if self.ages_h and age_h <= self.ages_h[-1]:
            row = bisect_right(self.ages_h, age_h) - 1
            near = min(row + 1, len(self.ages_h) - 1)
            row = near if self.ages_h[near] - age_h < age_h - self.ages_h[row] else row
            return self.intervals_h[row]
        return _interval_at(self.law, age_h, self.checkpoint_h, self.lost_price)


def schedule_at_any_age(law: Lifetime, checkpoint_h: float, lost_price: float = 1.0) -> CheckpointSchedule:
    """Returns the schedule under a law without memory: the same interval at all ages, computed once."""
    interval_h = _interval_at(law, 0.0, checkpoint_h, lost_price)
    return CheckpointSchedule(law, checkpoint_h, lost_price, (0.0, inf), (interval_h, interval_h))


def schedule_checkpoints(law: Lifetime, checkpoint_h: float, lost_price: float = 1.0) -> CheckpointSchedule:
    """Returns the schedule over a machine's life. In lives of more than 100 segments each segment is planned by
    itself.
    """
    plain = CheckpointSchedule(law, checkpoint_h, lost_price)
    begins, age = [0.0], 0.0
    while law.survival(age) > _RARE:
        work_h = _interval_at(law, age, checkpoint_h, lost_price)
        if work_h == inf or len(begins) > _MOST_SEGMENTS:
            return plain
        age += work_h + checkpoint_h
        begins.append(age)
    at = np.arange((len(begins) - 1) * _PARTS + 1) / _PARTS
    ages = np.interp(at, np.arange(len(begins)), begins)
    chosen = _best_ends(law, ages, checkpoint_h, lost_price)
    last = max((row for row, end in enumerate(chosen) if end > row), default=-1)
    intervals = [float(ages[chosen[row]] - ages[row]) - checkpoint_h for row in range(last + 1)]
    return CheckpointSchedule(law, checkpoint_h, lost_price, tuple(ages[: last + 1].tolist()), tuple(intervals))


def _interval_at(law: Lifetime, age_h: float, checkpoint_h: float, lost_price: float) -> float:
    lived = hazard_at(law, age_h)
    return interval_by_hazard(lambda ahead_h: hazard_at(law, age_h + ahead_h) - lived, checkpoint_h, lost_price)


def _best_ends(law: Lifetime, ages: FloatArray, checkpoint_h: float, lost_price: float) -> list[int]:
    """Returns, for each age, the row of the age at which a segment that begins there ends; its own row where no
    segment pays.
    """
    survival = np.array([law.survival(age) for age in ages.tolist()])
    saved, chosen = np.zeros(len(ages)), list(range(len(ages)))
    for row in range(len(ages) - 2, -1, -1):
        if survival[row] <= 0:
            continue
        ends = slice(row + 1, row + 1 + _REACH * _PARTS)
        work_h = ages[ends] - ages[row] - checkpoint_h
        # Hours of writing are not lost: where lost hours cost more than those, they count as a gain.
        gain_h = lost_price * work_h + (lost_price - 1.0) * checkpoint_h
        worth = np.where(work_h > 0, survival[ends] / survival[row] * (gain_h + saved[ends]), 0.0)
        best = int(worth.argmax())
        if worth[best] > 0:
            saved[row], chosen[row] = worth[best], row + 1 + best
    return chosen
