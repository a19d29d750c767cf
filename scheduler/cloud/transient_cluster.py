"""What a cluster of spot workers around parameter servers takes and costs, and the cheapest one that is fast enough.

The end-to-end model of CM-DARE (Li and others, ICDCS'20): speeds add up until the servers saturate, by a measured
curve; a worker is lost with the chance that its law of survival gives for the run, and replaced; until the replacement
works, only its own part of the speed is missing (asynchronous training goes on).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np

from scheduler.cloud.lifetimes import Lifetime

_HOUR_S = 3600.0
#: Rounds of the fixed point between the time a run takes and the workers it loses; it settles in a few.
_ROUNDS = 50


@dataclass(frozen=True, slots=True)
class WorkerKind:
    """One kind of worker."""

    name: str
    steps_per_s: float
    usd_per_h: float
    #: None: it is never taken.
    law: Lifetime | None = None
    #: From a loss until the replacement works.
    replacement_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Saturation:
    """Steps per second that come through, for the sum of what the workers could do alone (both ascending)."""

    alone: tuple[float, ...]
    through: tuple[float, ...]

    def steps_per_s(self, alone: float) -> float:
        """Linear between the measured points; beyond the last one nothing is gained."""
        return float(np.interp(alone, (0.0, *self.alone), (0.0, *self.through)))


@dataclass(frozen=True, slots=True)
class Servers:
    """The parameter servers: what they cost together, and what they let through."""

    usd_per_h: float
    saturation: Saturation


@dataclass(frozen=True, slots=True)
class Expected:
    """What a run comes to in the mean."""

    took_s: float
    usd: float
    losses: float


def expect(workers: Sequence[WorkerKind], servers: Servers, steps: float) -> Expected:
    """Time, money and losses of a run of so many steps."""
    alone = sum(worker.steps_per_s for worker in workers)
    speed = servers.saturation.steps_per_s(alone)
    took_s, losses = steps / speed, 0.0
    for _ in range(_ROUNDS):
        chances = [1.0 - worker.law.survival(took_s / _HOUR_S) if worker.law else 0.0 for worker in workers]
        missing = sum(
            chance * worker.replacement_s * worker.steps_per_s / alone
            for chance, worker in zip(chances, workers, strict=True)
        )
        before, took_s, losses = took_s, steps / speed + missing, sum(chances)
        if abs(took_s - before) < 1e-6:
            break
    usd_per_h = servers.usd_per_h + sum(worker.usd_per_h for worker in workers)
    return Expected(took_s, usd_per_h * took_s / _HOUR_S, losses)


def cheapest_within(
    kinds: Sequence[WorkerKind], servers: Servers, steps: float, most: int, limit_s: float
) -> tuple[tuple[WorkerKind, ...], Expected] | None:
    """The cheapest of all clusters of up to `most` workers that take no longer than `limit_s`; None if none is."""
    fast = [found for found in clusters(kinds, servers, steps, most) if found[1].took_s <= limit_s]
    return min(fast, key=lambda found: found[1].usd, default=None)


def clusters(
    kinds: Sequence[WorkerKind], servers: Servers, steps: float, most: int
) -> Iterator[tuple[tuple[WorkerKind, ...], Expected]]:
    """Every cluster of up to `most` workers, the smallest first, with what it comes to."""
    for number in range(1, most + 1):
        for workers in combinations_with_replacement(kinds, number):
            yield workers, expect(workers, servers, steps)
