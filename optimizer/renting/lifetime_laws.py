"""Laws of machine lifetimes that are stated, and the law that a pool's own machines teach. Ages in hours.

A record holds, of each machine watched, from which age to which, and whether it ended then. The learnt law takes a
prior law (what the pool states, or a constant rate), scales all of it by what was seen in all, and each range of ages
by what was seen there:

    F    =  (W + sum of ends) / (W + sum of expected ends)                    the mean of a gamma belief
    f_b  =  F (ends_b / (F expected_b)) ^ (ends_b / (ends_b + w))             F w / (w + F expected_b) if none ended

W is the weight of the prior, w half of it; of a single range F says all. The cumulative hazard is the sum over b of f_b
x that of the prior. In a range in which d of n machines ended, as many hours count as watched as make -log(1 - d / n)
its hazard: at a cap all end at once. Ranges are cut where machines ended, so that a few of them fall into each: the law
takes the shape of the record as evidence grows, be it early deaths, a cap of a day, or none at all.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import cbrt, ceil, exp, inf, log

import numpy as np

from optimizer.problem import FloatArray
from optimizer.renting.spot_lifetimes import BathtubLifetime, ExponentialLifetime, Lifetime
from walras.machine_lifetime import StatedLifetime

#: Machines that are gone and still remembered: a market changes.
MACHINES_REMEMBERED = 512
#: A record as plain values: ages from which and to which each machine was watched, whether it ended, whether with a
#: warning; and the shortest warning, seconds.
RememberedLives = tuple[tuple[tuple[float, float, bool, bool], ...], float | None]
#: No cumulative hazard is beyond this: hardly one machine in 10^12 is left.
_MOST_HAZARD = 27.0
#: Least ends in a range of ages; the least width of one, hours and part of the age: a cap is reached by many at once.
_ENDS_LEAST, _NARROWEST_H, _NARROWEST_PART = 6, 1 / 120, 0.002
#: Ends that the rate of its range would have had in a gap, for the gap to be a range of its own.
_GAP_ENDS = 4


@dataclass(frozen=True, slots=True)
class UniformLifetime:
    """All ends up to a cap are equally likely."""

    cap_h: float

    def survival(self, age_h: float) -> float:
        """See `Lifetime`."""
        return max(0.0, 1.0 - max(age_h, 0.0) / self.cap_h)


@dataclass(frozen=True, slots=True)
class WeibullLifetime:
    """exp(-(age / scale)^shape): below a shape of 1 machines die young, above it they wear out."""

    shape: float
    scale_h: float

    def survival(self, age_h: float) -> float:
        """See `Lifetime`."""
        if age_h <= 0:
            return 1.0
        power = self.shape * log(age_h / self.scale_h)
        return exp(-exp(power)) if power < 6.0 else 0.0


def lifetime_of(stated: StatedLifetime) -> Lifetime:
    """Returns the law that a text states (`walras.machine_lifetime.parse_lifetime`)."""
    match stated.law:
        case "exponential":
            return ExponentialLifetime(1.0 / stated.numbers[0])
        case "uniform":
            return UniformLifetime(*stated.numbers)
        case "weibull":
            return WeibullLifetime(*stated.numbers)
        case _:
            return BathtubLifetime(*stated.numbers)


def hazard_at(law: Lifetime, age_h: float) -> float:
    """Cumulative hazard, -log of the survival, at most about 27."""
    if isinstance(law, LearntLifetime):
        return min(law.hazard(age_h), _MOST_HAZARD)
    if isinstance(law, ExponentialLifetime):
        return min(law.rate_per_h * age_h, _MOST_HAZARD)
    return min(-log(max(law.survival(age_h), 1e-300)), _MOST_HAZARD)


def drawn_life_h(law: Lifetime, chance: float) -> float:
    """The age that this part of new machines, in (0, 1), outlives; infinite if more of them live for ever."""
    high = 1.0
    while law.survival(high) > chance:
        high *= 2.0
        if high > 1e9:
            return inf
    low = 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if law.survival(middle) > chance else (low, middle)
    return high


@dataclass(frozen=True, slots=True)
class WatchedLife:
    """A machine as far as it was watched."""

    from_h: float
    until_h: float
    #: It was taken, or died, at the end; False: somebody gave it back, or it lives.
    has_ended: bool = False
    #: Its end was announced.
    was_warned: bool = False


@dataclass(slots=True)
class LifetimeRecord:
    """The newest machines of a pool that are gone."""

    gone: deque[WatchedLife] = field(default_factory=lambda: deque(maxlen=MACHINES_REMEMBERED))

    def ends(self, *, unwarned: bool) -> int:
        """How many of them ended; `unwarned`: without a warning."""
        return sum(life.has_ended and not (unwarned and life.was_warned) for life in self.gone)

    @property
    def watched_h(self) -> float:
        """Machine-hours."""
        return sum(life.until_h - life.from_h for life in self.gone)


@dataclass(frozen=True, slots=True)
class LearntLifetime:
    """A prior law, scaled by what was seen."""

    prior: Lifetime
    #: Ages at which a range begins, the factor on the prior's hazard in it, and the cumulative hazard at its beginning.
    edges_h: tuple[float, ...]
    factors: tuple[float, ...]
    reached: tuple[float, ...]
    #: That of the prior there.
    prior_hazards: tuple[float, ...]

    @classmethod
    def of(
        cls, prior: Lifetime, lives: Sequence[WatchedLife], *, weight: float = 1.0, unwarned: bool = False
    ) -> "LearntLifetime":
        """From a prior, worth so many ends, and lives as they were watched. `unwarned`: ends without warning only."""
        spans = np.array([(life.from_h, life.until_h) for life in lives]).reshape(-1, 2)
        counts = [life.has_ended and not (unwarned and life.was_warned) for life in lives]
        ends = np.sort(spans[np.array(counts, dtype=bool), 1])
        starts = np.array([0.0, *_with_gaps(_cuts(ends), ends)])
        stops = np.append(starts[1:], inf)
        # Beyond the last cut the prior is taken at its rate over as long again.
        last_h = max(2 * float(starts[-1]), 24.0, float(spans[:, 1].max(initial=0.0)))
        hazards = np.array([hazard_at(prior, age) for age in (*starts.tolist(), last_h)])
        added, widths = np.diff(hazards), np.diff(np.append(starts, last_h))
        seen = np.diff(np.searchsorted(ends, np.append(starts, inf), side="left")).astype(float)
        expected = _watched_hours(spans, starts, stops, seen) * added / widths
        overall = (weight + seen.sum()) / (weight + expected.sum())
        half = weight / 2 if len(starts) > 1 else inf
        none = half / (half + overall * expected) if half < inf else np.ones(1)
        ratio = np.maximum(seen, 0.5) / np.maximum(overall * expected, 1e-9)
        factors = overall * np.where(seen > 0, ratio ** (seen / (seen + half)), none)
        reached = np.concatenate([[0.0], np.cumsum(factors * added)[:-1]])
        tables = (starts, factors, reached, hazards[:-1])
        return cls(prior, *(tuple(table.tolist()) for table in tables))

    @property
    def is_constant(self) -> bool:
        """Nothing tells one age from another: the chance to live on is the same at all of them."""
        return isinstance(self.prior, ExponentialLifetime) and len(self.edges_h) == 1

    def survival(self, age_h: float) -> float:
        """See `Lifetime`."""
        return exp(-self.hazard(age_h))

    def hazard(self, age_h: float) -> float:
        """The cumulative hazard."""
        if age_h <= 0:
            return 0.0
        row = bisect_right(self.edges_h, age_h) - 1
        inside = hazard_at(self.prior, age_h) - self.prior_hazards[row]
        return self.reached[row] + self.factors[row] * max(inside, 0.0)


def _cuts(ends: FloatArray) -> list[float]:
    """Ages between which about the cubic root of the number of ends falls; none where there are too few of them."""
    group = max(_ENDS_LEAST, ceil(cbrt(len(ends))))
    wanted: list[float] = []
    for row in range(group, len(ends), group):
        before, after = float(ends[row - 1]), float(ends[row])
        gap = max(_NARROWEST_H, _NARROWEST_PART * after)
        # Where many end at once, just before and just after that.
        wanted += [(before + after) / 2] if after - before > 2 * gap else [before - gap, after + gap]
    if len(ends) > group:
        wanted.append(float(ends[-1]) + max(_NARROWEST_H, _NARROWEST_PART * float(ends[-1])))
    found: list[float] = []
    for cut in sorted(wanted):
        if cut > (found[-1] if found else 0.0) + max(_NARROWEST_H, _NARROWEST_PART * cut):
            found.append(cut)
    return found


def _with_gaps(cuts: list[float], ends: FloatArray) -> list[float]:
    """The cuts, and both sides of gaps in which far fewer machines ended than in the rest of their range."""
    found = list(cuts)
    for start, stop in pairwise([0.0, *cuts]):
        inside = ends[(ends >= start) & (ends < stop)]
        points = np.array([start, *inside.tolist(), stop])
        row = int(np.diff(points).argmax())
        before, after = float(points[row]), float(points[row + 1])
        if len(inside) * (after - before) >= _GAP_ENDS * (stop - start):
            margin = (after - before) / 20
            found += [edge for edge in (before + margin, after - margin) if start < edge < stop]
    return sorted(found)


def _watched_hours(spans: FloatArray, starts: FloatArray, stops: FloatArray, ends: FloatArray) -> FloatArray:
    """Machine-hours by range of ages; where many of those at risk ended, as many as their part of them says."""
    overlap = np.maximum(np.minimum(spans[:, 1:], stops) - np.maximum(spans[:, :1], starts), 0.0)
    hours: FloatArray = overlap.sum(axis=0)
    for row in np.flatnonzero(ends > 1):
        # Those that were watched over a part of the range only, and did not end in it, count for half.
        whole = ((spans[:, 0] <= starts[row]) & (spans[:, 1] >= stops[row])).sum()
        parts = (overlap[:, row] > 0).sum() - whole - ends[row]
        at_risk = whole + ends[row] + max(parts, 0) / 2
        part = min(ends[row] / at_risk, 1 - 0.5 / at_risk)
        hours[row] = min(hours[row], ends[row] * (stops[row] - starts[row]) / -log(1 - part))
    return hours
