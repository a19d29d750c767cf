"""Lifetimes of spot machines, the useful part of their time, and the interval between checkpoints on them.

Lengths in hours. A law of survival answers with the chance of living to an age; everything else follows from that.
Revocation rates are learned per zone (gamma prior, Poisson counts). At a constant rate lambda, with C, R hours of a
checkpoint and of going on elsewhere, the part of a machine's paid time that becomes work that lasts is

    useful part  =  Delta lambda / (exp(lambda R) (exp(lambda (Delta + C)) - 1)),     Delta = sqrt(2 C / lambda)

(Young 1974; Daly 2006). With a notice long enough for a checkpoint only R and that checkpoint are lost: 1 / (1 +
lambda (R + C)). Where age tells when a machine may go, checkpoints are placed by dynamic programming (Kadupitiya and
others, HPDC'20).
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, exp, expm1, inf, sqrt
from typing import Protocol

import numpy as np

from optimizer.problem import FloatArray, IntArray


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

    def survival(self, age_h: float) -> float:
        """Returns the survival averaged over the belief (`Lifetime.survival`), so that a zone with few observations is
        not trusted far.
        """
        known_h = self.prior_h + self.machine_h
        return float((known_h / (known_h + max(age_h, 0.0))) ** (self.prior_revocations + self.revocations))


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
        return 0.0 if age_h > self.cap_h else 1.0 - self.failed(age_h)

    def failed(self, age_h: float) -> float:
        """Returns F(t), the chance of being gone by an age."""
        if age_h <= 0:
            return 0.0
        early, late = exp(-age_h / self.early_h), exp((age_h - self.cap_h) / self.late_h)
        return min(self.scale * (1.0 - early + late), 1.0)


@dataclass(frozen=True, slots=True)
class EmpiricalLifetime:
    """Survival as it was observed, including machines that were alive when last seen (the Kaplan-Meier estimator)."""

    #: Ages at which machines were taken, ascending, and the survival from each age on.
    ages_h: tuple[float, ...]
    survivals: tuple[float, ...]

    @classmethod
    def of(cls, taken_h: Sequence[float], alive_h: Sequence[float] = ()) -> "EmpiricalLifetime":
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
        """Returns the chance of living to an age (`Lifetime.survival`)."""
        position = bisect_right(self.ages_h, age_h)
        return self.survivals[position - 1] if position else 1.0


def survival_from(law: Lifetime, age_h: float, further_h: float) -> float:
    """Returns the chance that a machine of this age lives `further_h` hours longer; 0 if none reaches the age."""
    reached = law.survival(age_h)
    return law.survival(age_h + further_h) / reached if reached > 0 else 0.0


def mean_life(law: Lifetime, until_h: float, steps: int = 2000) -> float:
    """Returns the mean hours that a new machine lives, with lives cut off at `until_h`."""
    width = until_h / steps
    inner = sum(law.survival(number * width) for number in range(1, steps))
    return width * (inner + (law.survival(0.0) + law.survival(until_h)) / 2)


#: Smaller chances count as this one: a segment that no machine outlasts is merely never chosen.
_RAREST = 1e-12
#: The most parts into which ages divide a step, and how close the checkpoint must then be to a whole number of parts.
_FINEST, _NEAR = 120, 0.01
#: A plan that would take longer than this counts as never ending.
_LONGEST_RUN_H = 1e8


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    """The work between checkpoints for one job on machines whose age matters, with means from the age asked about."""

    #: Hours of work before each checkpoint of a job that is not interrupted, in order.
    segments_h: tuple[float, ...]
    #: Mean hours until all work is done and saved; infinite where no machine outlasts a segment.
    expected_h: float
    #: The mean number of machines taken until then, and of hours spent on checkpoints that last.
    revocations: float
    writing_h: float
    #: Mean hours of lost work, half-written checkpoints included.
    lost_h: float


def plan_checkpoints(
    law: Lifetime, work_h: float, costs: CheckpointCosts, age_h: float, step_h: float, interval_h: float | None = None
) -> CheckpointPlan:
    """Returns the segments with the least mean time to the end (after Kadupitiya and others, HPDC'20).

        M(J, a) = min over i of  E[min(T, i + C)] + P M(J - i, a + i + C) + (1 - P) (R + M(J, 0))

    T the life left at age a, P the chance that it outlasts the segment and its checkpoint. Work is in whole steps of
    `step_h`, ages and the checkpoint in parts of a step; ages beyond what all segments of one step would reach count
    as one. With `interval_h`, segments have just this length (the last may be shorter) instead of the best one.
    """
    grid = _Grid.of(law, work_h, costs, age_h, step_h)
    only = None if interval_h is None else max(1, round(interval_h / step_h))
    restart = costs.restart_h / step_h
    spent, choice = np.zeros((grid.work + 1, grid.ages)), np.zeros((grid.work + 1, grid.ages), dtype=np.int64)
    taken, written = np.zeros_like(spent), np.zeros_like(spent)
    for left in range(1, grid.work + 1):
        sizes = np.arange(1, left + 1) if only is None else np.array([min(only, left)])
        chance = grid.outlasts[sizes - 1]
        ahead = grid.spent[sizes - 1] + chance * spent[(left - sizes)[:, None], grid.after[sizes - 1]]
        # On a new machine a lost segment starts again from the same state: the equation is solved for M(J, 0).
        fresh = np.min((ahead[:, 0] + (1 - chance[:, 0]) * restart) / np.maximum(chance[:, 0], _RAREST))
        worth = ahead + (1 - chance) * (restart + fresh)
        choice[left], spent[left] = sizes[worth.argmin(axis=0)], worth.min(axis=0)
        taken[left] = grid.counted(choice[left], left, taken, kept=0.0, lost=1.0)
        written[left] = grid.counted(choice[left], left, written, kept=1.0, lost=0.0)
    begun = grid.work, grid.age
    segments_h = tuple(size * step_h for size in grid.walk(choice))
    expected_h, writing_h = float(spent[begun]) * step_h, float(written[begun]) * costs.checkpoint_h
    if expected_h > _LONGEST_RUN_H:
        return CheckpointPlan(segments_h, inf, inf, inf, inf)
    lost_h = expected_h - grid.work * step_h - writing_h - float(taken[begun]) * costs.restart_h
    return CheckpointPlan(segments_h, expected_h, float(taken[begun]), writing_h, max(lost_h, 0.0))


@dataclass(frozen=True, slots=True, eq=False)
class _Grid:
    """Segments of one step and more, with their checkpoints, begun at each age (sizes, ages); time is in steps."""

    #: Steps of work, the number of ages that are distinguished, and the age to begin with.
    work: int
    ages: int
    age: int
    #: Mean time until a segment ends or the machine is taken, and the chance that the segment ends.
    spent: FloatArray
    outlasts: FloatArray
    #: The age after the segment.
    after: IntArray

    @classmethod
    def of(cls, law: Lifetime, work_h: float, costs: CheckpointCosts, age_h: float, step_h: float) -> "_Grid":
        parts = _parts(costs.checkpoint_h / step_h)
        work, age = max(1, round(work_h / step_h)), round(age_h / step_h * parts)
        writing = round(costs.checkpoint_h / step_h * parts) or int(costs.checkpoint_h > 0)
        ages = work * (parts + writing) + age + 1
        lasts = np.arange(1, work + 1) * parts + writing
        survival = np.array([law.survival(number * step_h / parts) for number in range(ages + int(lasts[-1]))])
        lived = np.concatenate([[0.0], np.cumsum((survival[1:] + survival[:-1]) / 2)]) / parts
        ends = np.arange(ages) + lasts[:, None]
        reached = np.maximum(survival[:ages], _RAREST)
        spent = (lived[ends] - lived[:ages]) / reached
        return cls(work, ages, age, spent, survival[ends] / reached, np.minimum(ends, ages - 1))

    def counted(self, sizes: IntArray, left: int, known: FloatArray, *, kept: float, lost: float) -> FloatArray:
        """Returns, by age, the mean sum of `kept` per segment that ends and `lost` per one that does not, with these
        sizes.
        """
        age = np.arange(self.ages)
        chance = self.outlasts[sizes - 1, age]
        ahead = chance * (kept + known[left - sizes, self.after[sizes - 1, age]]) + (1 - chance) * lost
        found: FloatArray = ahead + (1 - chance) * (ahead[0] / max(float(chance[0]), _RAREST))
        return found

    def walk(self, choice: IntArray) -> list[int]:
        """Returns the sizes of the segments of a job that is not interrupted."""
        found, left, age = list[int](), self.work, self.age
        while left:
            found.append(int(choice[left, age]))
            age = int(self.after[found[-1] - 1, age])
            left -= found[-1]
        return found


def _parts(checkpoint: float) -> int:
    """Returns the fewest parts of a step of which the checkpoint, in steps, is nearly a whole number."""
    if checkpoint <= 0:
        return 1
    fewest = min(max(1, ceil(1 / checkpoint - _NEAR)), _FINEST)
    errors = {parts: abs(checkpoint * parts - round(checkpoint * parts)) for parts in range(fewest, _FINEST + 1)}
    near = (parts for parts, error in errors.items() if error <= _NEAR * checkpoint * parts)
    return next(near, min(errors, key=lambda parts: errors[parts] / parts))


def prefers_aged_machine(law: Lifetime, work_h: float, age_h: float) -> bool:
    """Returns whether a job is at least as likely to end on a machine of this age as on a new one."""
    return survival_from(law, age_h, work_h) >= law.survival(work_h)
