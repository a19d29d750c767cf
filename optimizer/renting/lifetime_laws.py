"""Lifetimes of rented machines: laws, stated or learnt, the useful part of a machine's time, and when to save.

Lengths and ages are in hours. A law of survival answers with the chance of living to an age; everything else follows
from that. A record holds, of each machine watched, from which age to which, and whether it ended then. The learnt law
takes a prior law (what the pool states, or a constant rate) and scales its hazard by a factor for all ages and one for
each range of ages, from the ends observed there:

    F    =  (W + sum of ends) / (W + sum of expected ends)                    the mean of a gamma belief
    f_b  =  F (ends_b / (F expected_b)) ^ (ends_b / (ends_b + w))             F w / (w + F expected_b) if none ended

W is the weight of the prior, w half of it; of a single range F says all. The cumulative hazard is the sum over b of
f_b x that of the prior. In a range in which d of n machines ended, as many hours count as watched as make -log(1 - d /
n) its hazard: at a cap all end at once. Ranges are cut where machines ended, so that a few of them fall into each: the
law takes the shape of the record as evidence grows, be it early deaths, a cap of a day, or none at all.

The time to work before the next checkpoint follows from the law and the age of the machines. With w(riting) hours of a
checkpoint and a price p of a lost hour against a written one, work for tau hours costs

    w  +  p integral of (time since the last checkpoint) x hazard        and so       p tau H / 2  =  w

in the optimum, H being the cumulative hazard over the segment and its checkpoint (Young 1974 where the hazard is
constant). That looks no further than one segment. Where the hazard rises steeply, as before a cap of a day, it pays to
end a segment just before: `schedule_checkpoints` finds the segments of a machine's whole life that leave most saved
work,

    V(a)  =  max over tau  P(life > a + tau + w | life > a) (tau + V(a + tau + w)),

by dynamic programming over ages that lie a part of such a segment apart. The other costs of a machine's end (a new
machine, loading) do not depend on the segments. Where pause and loss are paid at one price, that price cancels out.

Revocation rates of spot machines are learned per zone (gamma prior, Poisson counts). At a constant rate lambda, with C,
R hours of a checkpoint and of going on elsewhere, the part of a machine's paid time that becomes work that lasts is

    useful part  =  Delta lambda / (exp(lambda R) (exp(lambda (Delta + C)) - 1)),     Delta = sqrt(2 C / lambda)

(Young 1974; Daly 2006). With a notice long enough for a checkpoint only R and that checkpoint are lost: 1 / (1 + lambda
(R + C)).
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import cbrt, ceil, exp, expm1, inf, log, sqrt
from typing import Protocol

import numpy as np

from optimizer.problem import FloatArray
from walras.cluster import StatedLifetime


@dataclass(frozen=True, slots=True)
class CheckpointCosts:
    """The costs of going on after a revocation, in hours."""

    #: Hours for writing one checkpoint, during which no step is made.
    checkpoint_h: float
    #: Hours from a revocation to the next step: for getting a new machine, its start, and loading.
    restart_h: float
    #: Warning before a revocation; if it is long enough for a checkpoint, no work is lost.
    notice_h: float = 0.0


def young_daly_h(checkpoint_h: float, mean_life_h: float) -> float:
    """Returns the hours of work between checkpoints, sqrt(2 C M): infinite where machines live for ever."""
    return inf if mean_life_h == inf else sqrt(2.0 * checkpoint_h * mean_life_h)


def useful_part(costs: CheckpointCosts, rate_per_h: float, interval_h: float | None = None) -> float:
    """Returns the fraction of a machine's paid time that becomes lasting work, at a constant rate of revocation.

    `interval_h`: work between checkpoints; None: Young and Daly's. Steps per second times this is the risk-adjusted
    throughput. Exact for exponential lives: a segment of work and its checkpoint is repeated until it survives.
    """
    if rate_per_h <= 0:
        return 1.0
    if costs.notice_h >= costs.checkpoint_h:
        # A notice saves all work: only the restart is lost, and the checkpoint that the notice triggers.
        return 1.0 / (1.0 + rate_per_h * (costs.restart_h + costs.checkpoint_h))
    work = young_daly_h(costs.checkpoint_h, 1.0 / rate_per_h) if interval_h is None else interval_h
    spent = exp(min(rate_per_h * costs.restart_h, 700.0)) * expm1(min(rate_per_h * (work + costs.checkpoint_h), 700.0))
    return work * rate_per_h / spent


def useful_parts(costs: tuple[FloatArray, FloatArray, FloatArray], rate_per_h: FloatArray) -> FloatArray:
    """Returns `useful_part` of many at once, at Young and Daly's interval. `costs`: checkpoint, restart and notice,
    hours.
    """
    checkpoint_h, restart_h, notice_h = costs
    rate = np.maximum(rate_per_h, 1e-12)
    warned = 1.0 / (1.0 + rate * (restart_h + checkpoint_h))
    work_h = np.sqrt(2.0 * np.maximum(checkpoint_h, 1e-12) / rate)
    spent = np.exp(np.minimum(rate * restart_h, 700.0)) * np.expm1(np.minimum(rate * (work_h + checkpoint_h), 700.0))
    surprised = work_h * rate / spent
    parts = np.where(notice_h >= checkpoint_h, warned, surprised)
    return np.where(rate_per_h > 0, parts, 1.0)


@dataclass(frozen=True, slots=True)
class RateBelief:
    """A belief about the revocations per machine-hour of a zone: a prior, and what was observed (gamma, conjugate to a
    Poisson count).
    """

    #: The prior, as a number of revocations observed over a number of machine-hours.
    prior_revocations: float = 1.0
    prior_h: float = 24.0
    revocations: int = 0
    machine_h: float = 0.0

    def seen(self, revocations: int, machine_h: float) -> "RateBelief":
        """Returns the belief after this much more was observed."""
        return RateBelief(
            self.prior_revocations, self.prior_h, self.revocations + revocations, self.machine_h + machine_h
        )

    @property
    def rate_per_h(self) -> float:
        """The mean of the belief, in revocations per machine-hour."""
        return (self.prior_revocations + self.revocations) / (self.prior_h + self.machine_h)


def pooled_prior(zones: Sequence[tuple[int, float]], weight_h: float = 24.0) -> RateBelief:
    """Returns a prior for a zone from the (revocations, machine-hours) of all zones, worth `weight_h` hours of its
    own.

    The rate of all zones together combines `RateBelief`'s own prior with what was observed: the first seconds of a
    machine say next to nothing, and no zone counts as safe for ever.
    """
    revocations, hours = sum(zone[0] for zone in zones), sum(zone[1] for zone in zones)
    return RateBelief(RateBelief().seen(revocations, max(hours, 0.0)).rate_per_h * weight_h, weight_h)


class Lifetime(Protocol):
    """A survival law of machines."""

    def survival(self, age_h: float) -> float:
        """Returns the chance of living to an age, in hours: 1 at 0, never rising."""
        ...


@dataclass(frozen=True, slots=True)
class ExponentialLifetime:
    """Survival without memory: a machine of any age is as likely to live on as a new one."""

    #: Revocations per machine-hour.
    rate_per_h: float

    def survival(self, age_h: float) -> float:
        """Returns the chance of living to an age (`Lifetime.survival`)."""
        return exp(-self.rate_per_h * max(age_h, 0.0))


@dataclass(frozen=True, slots=True)
class BathtubLifetime:
    """Many machines die young, few in the middle, all by the cap (Kadupitiya and others, HPDC'20).

    F(t) = scale (1 - exp(-t / early_h) + exp((t - cap_h) / late_h)), all by `cap_h`.
    """

    scale: float
    early_h: float
    late_h: float
    cap_h: float

    def survival(self, age_h: float) -> float:
        """Returns the chance of living to an age (`Lifetime.survival`)."""
        return 0.0 if age_h > self.cap_h else 1.0 - self._failed(age_h)

    def _failed(self, age_h: float) -> float:
        """Returns F(t), the chance of being gone by an age."""
        if age_h <= 0:
            return 0.0
        early, late = exp(-age_h / self.early_h), exp((age_h - self.cap_h) / self.late_h)
        return min(self.scale * (1.0 - early + late), 1.0)


#: The most ended machines that a record keeps: a market changes.
MACHINES_REMEMBERED = 512
#: A record as plain values: the ages from which and to which each machine was watched, whether it ended, and whether
#: with a warning; and the shortest warning, in seconds.
RememberedLives = tuple[tuple[tuple[float, float, bool, bool], ...], float | None]
#: The largest cumulative hazard: about one machine in 10^12 is left.
_MOST_HAZARD = 27.0
#: The fewest ends in a range of ages; and the least width of a range, in hours and as a part of the age, because many
#: machines reach a cap at once.
_ENDS_LEAST, _NARROWEST_H, _NARROWEST_PART = 6, 1 / 120, 0.002
#: A gap becomes a range of its own where the rate of its range would have put this many ends into it.
_GAP_ENDS = 4


@dataclass(frozen=True, slots=True)
class UniformLifetime:
    """All ages of end up to a cap are equally likely."""

    cap_h: float

    def survival(self, age_h: float) -> float:
        """Returns the chance of living to an age (`Lifetime.survival`)."""
        return max(0.0, 1.0 - max(age_h, 0.0) / self.cap_h)


@dataclass(frozen=True, slots=True)
class WeibullLifetime:
    """Survival exp(-(age / scale)^shape): with a shape below 1 machines die young, above 1 they wear out."""

    shape: float
    scale_h: float

    def survival(self, age_h: float) -> float:
        """Returns the chance of living to an age (`Lifetime.survival`)."""
        if age_h <= 0:
            return 1.0
        power = self.shape * log(age_h / self.scale_h)
        return exp(-exp(power)) if power < 6.0 else 0.0


def lifetime_of(stated: StatedLifetime) -> Lifetime:
    """Returns the law that a text states (`walras.cluster.parse_lifetime`)."""
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
    """Returns the cumulative hazard, -log of the survival, at most about 27."""
    if isinstance(law, LearntLifetime):
        return min(law.hazard(age_h), _MOST_HAZARD)
    if isinstance(law, ExponentialLifetime):
        return min(law.rate_per_h * age_h, _MOST_HAZARD)
    return min(-log(max(law.survival(age_h), 1e-300)), _MOST_HAZARD)


def drawn_life_h(law: Lifetime, chance: float) -> float:
    """Returns the age that this part (in (0, 1)) of new machines outlives; infinite if a larger part lives for ever."""
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
    """The part of a machine's life that was watched."""

    from_h: float
    until_h: float
    #: Whether the machine was taken, or died, at the end; False where it was given back, or still lives.
    has_ended: bool = False
    #: Whether its end was announced.
    was_warned: bool = False


@dataclass(slots=True)
class LifetimeRecord:
    """The most recent machines of a pool that are gone."""

    gone: deque[WatchedLife] = field(default_factory=lambda: deque(maxlen=MACHINES_REMEMBERED))

    def ends(self, *, unwarned: bool) -> int:
        """Returns how many of the machines ended; with `unwarned`, how many did so without a warning."""
        return sum(life.has_ended and not (unwarned and life.was_warned) for life in self.gone)


@dataclass(frozen=True, slots=True)
class LearntLifetime:
    """A prior law whose hazard is scaled by what was observed."""

    prior: Lifetime
    #: Ages at which ranges begin, the factor on the prior's hazard in each, and the cumulative hazard at its beginning.
    edges_h: tuple[float, ...]
    factors: tuple[float, ...]
    reached: tuple[float, ...]
    #: The cumulative hazard of the prior at these ages.
    prior_hazards: tuple[float, ...]

    @classmethod
    def of(
        cls, prior: Lifetime, lives: Sequence[WatchedLife], *, weight: float = 1.0, unwarned: bool = False
    ) -> "LearntLifetime":
        """Returns the law from a prior, worth `weight` ends, and watched lives. `unwarned`: count only ends without a
        warning.
        """
        spans = np.array([(life.from_h, life.until_h) for life in lives]).reshape(-1, 2)
        counts = [life.has_ended and not (unwarned and life.was_warned) for life in lives]
        ends = np.sort(spans[np.array(counts, dtype=bool), 1])
        starts = np.array([0.0, *_with_gaps(_cuts(ends), ends)])
        stops = np.append(starts[1:], inf)
        # Beyond the last cut, the rate of the prior is its mean over as long again.
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
        """Whether the hazard is the same at all ages: the chance to live on does not depend on the age."""
        return isinstance(self.prior, ExponentialLifetime) and len(self.edges_h) == 1

    def survival(self, age_h: float) -> float:
        """Returns the chance of living to an age (`Lifetime.survival`)."""
        return exp(-self.hazard(age_h))

    def hazard(self, age_h: float) -> float:
        """Returns the cumulative hazard up to an age."""
        if age_h <= 0:
            return 0.0
        row = bisect_right(self.edges_h, age_h) - 1
        inside = hazard_at(self.prior, age_h) - self.prior_hazards[row]
        return self.reached[row] + self.factors[row] * max(inside, 0.0)


def _cuts(ends: FloatArray) -> list[float]:
    """Returns the ages that cut the record into ranges with about the cubic root of the number of ends in each; no
    cuts where there are too few ends.
    """
    group = max(_ENDS_LEAST, ceil(cbrt(len(ends))))
    wanted: list[float] = []
    for row in range(group, len(ends), group):
        before, after = float(ends[row - 1]), float(ends[row])
        gap = max(_NARROWEST_H, _NARROWEST_PART * after)
        # Where many machines end at once, cuts lie just before and just after.
        wanted += [(before + after) / 2] if after - before > 2 * gap else [before - gap, after + gap]
    if len(ends) > group:
        wanted.append(float(ends[-1]) + max(_NARROWEST_H, _NARROWEST_PART * float(ends[-1])))
    found: list[float] = []
    for cut in sorted(wanted):
        if cut > (found[-1] if found else 0.0) + max(_NARROWEST_H, _NARROWEST_PART * cut):
            found.append(cut)
    return found


def _with_gaps(cuts: list[float], ends: FloatArray) -> list[float]:
    """Returns the cuts, with both sides of gaps in which far fewer machines ended than in the rest of their range."""
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
    """Returns the machine-hours in each range of ages; where many of those at risk ended, as many as make -log(1 - d /
    n) the hazard.
    """
    overlap = np.maximum(np.minimum(spans[:, 1:], stops) - np.maximum(spans[:, :1], starts), 0.0)
    hours: FloatArray = overlap.sum(axis=0)
    for row in np.flatnonzero(ends > 1):
        # Machines watched over a part of the range only, and without an end in it, count for half.
        whole = ((spans[:, 0] <= starts[row]) & (spans[:, 1] >= stops[row])).sum()
        parts = (overlap[:, row] > 0).sum() - whole - ends[row]
        at_risk = whole + ends[row] + max(parts, 0) / 2
        part = min(ends[row] / at_risk, 1 - 0.5 / at_risk)
        hours[row] = min(hours[row], ends[row] * (stops[row] - starts[row]) / -log(1 - part))
    return hours


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
