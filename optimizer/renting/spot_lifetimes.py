"""Lifetimes of spot machines, the useful part of their time, and the interval between checkpoints on them.

Lengths in hours. A law of survival answers with the chance of living to an age; everything else follows from that.
Revocation rates are learned per zone (gamma prior, Poisson counts). At a constant rate lambda, with C, R hours of a
checkpoint and of going on elsewhere, the part of a machine's paid time that becomes work that lasts is

    useful part  =  Delta lambda / (exp(lambda R) (exp(lambda (Delta + C)) - 1)),     Delta = sqrt(2 C / lambda)

(Young 1974; Daly 2006). With a notice long enough for a checkpoint only R and that checkpoint are lost: 1 / (1 +
lambda (R + C)). Where age tells when a machine may go, `lifetime_laws` places checkpoints.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, expm1, inf, sqrt
from typing import Protocol

import numpy as np

from optimizer.problem import FloatArray


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
