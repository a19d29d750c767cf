"""What it costs that the market takes machines back: how often that happens, and what is left of a machine's speed.

    useful part  =  Delta lambda / (exp(lambda R) (exp(lambda (Delta + C)) - 1)),     Delta = sqrt(2 C / lambda)

lambda: revocations per hour; C, R: hours of a checkpoint and of going on elsewhere. With notice enough for a checkpoint
only R and that checkpoint are lost: 1 / (1 + lambda (R + C)). Steps per second times this is the risk-adjusted
throughput. Lengths in hours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, expm1, inf, sqrt

import numpy as np

from optimizer.problem import FloatArray


@dataclass(frozen=True, slots=True)
class Costs:
    """What going on costs, hours."""

    #: Writing one checkpoint, during which no step is done.
    checkpoint_h: float
    #: From a revocation to the next step: a new machine, its start, loading.
    restart_h: float
    #: Warning before a revocation; long enough for a checkpoint, nothing is lost.
    notice_h: float = 0.0


def young_daly_h(checkpoint_h: float, mean_life_h: float) -> float:
    """Work between checkpoints, sqrt(2 C M): infinite where machines live for ever."""
    return inf if mean_life_h == inf else sqrt(2.0 * checkpoint_h * mean_life_h)


def useful_part(costs: Costs, rate_per_h: float, interval_h: float | None = None) -> float:
    """Part of a machine's paid time that becomes work that lasts, at a constant rate of revocation.

    `interval_h`: work between checkpoints; None: Young and Daly's. Steps per second times this is the risk-adjusted
    throughput. Exact for exponential lives: a segment of work and its checkpoint is repeated until it survives.
    """
    if rate_per_h <= 0:
        return 1.0
    if costs.notice_h >= costs.checkpoint_h:
        # Notice saves everything: only the restart is lost, and the checkpoint that the notice asks for.
        return 1.0 / (1.0 + rate_per_h * (costs.restart_h + costs.checkpoint_h))
    work = young_daly_h(costs.checkpoint_h, 1.0 / rate_per_h) if interval_h is None else interval_h
    spent = exp(min(rate_per_h * costs.restart_h, 700.0)) * expm1(min(rate_per_h * (work + costs.checkpoint_h), 700.0))
    return work * rate_per_h / spent


def useful_parts(costs: tuple[FloatArray, FloatArray, FloatArray], rate_per_h: FloatArray) -> FloatArray:
    """`useful_part` of many at once, at Young and Daly's interval. `costs`: checkpoint, restart and notice, hours."""
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
    """Revocations per machine-hour of a zone: a prior, and what was seen (gamma, conjugate to a Poisson count)."""

    #: The prior, as revocations seen over so many machine-hours.
    prior_revocations: float = 1.0
    prior_h: float = 24.0
    revocations: int = 0
    machine_h: float = 0.0

    def seen(self, revocations: int, machine_h: float) -> "RateBelief":
        """After so much more was seen."""
        return RateBelief(
            self.prior_revocations, self.prior_h, self.revocations + revocations, self.machine_h + machine_h
        )

    @property
    def rate_per_h(self) -> float:
        """The mean of what the rate may be."""
        return (self.prior_revocations + self.revocations) / (self.prior_h + self.machine_h)

    def survival(self, age_h: float) -> float:
        """See `Lifetime`: averaged over what the rate may be, so a zone hardly known is not trusted far."""
        known_h = self.prior_h + self.machine_h
        return float((known_h / (known_h + max(age_h, 0.0))) ** (self.prior_revocations + self.revocations))


def pooled_prior(zones: Sequence[tuple[int, float]], weight_h: float = 24.0) -> RateBelief:
    """A prior for a zone from (revocations, machine-hours) of others, worth `weight_h` hours of its own."""
    revocations, hours = sum(zone[0] for zone in zones), sum(zone[1] for zone in zones)
    if hours <= 0:
        return RateBelief(prior_h=weight_h)
    # Half a revocation stands for a market where none was seen yet: no zone is held to be safe for ever.
    return RateBelief(max(revocations, 0.5) / hours * weight_h, weight_h)
