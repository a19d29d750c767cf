"""`walras plan workers`: expected time and cost of clusters of spot workers with parameter servers, and the cheapest.

This is the end-to-end model of CM-DARE (Li and others, ICDCS'20). Workers' speeds add up until the servers saturate, by
a measured curve. A worker is revoked during the run with the probability of its survival law, and is then replaced;
until the replacement works, only that worker's speed is missing, because training is asynchronous.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from math import comb, inf

import numpy as np

from optimizer.renting.spot_lifetimes import Lifetime
from walras.contract import SECONDS_PER_HOUR
from walras.errors import UserError
from walras.units import format_length

#: Iterations of the fixed point between a run's time and the workers that it loses; it converges in a few.
_ROUNDS = 50


@dataclass(frozen=True, slots=True)
class WorkerKind:
    """One kind of worker: its speed alone, its price, its lifetime."""

    name: str
    steps_per_s: float
    usd_per_h: float
    #: Law of the lifetime; None: the worker is never revoked.
    law: Lifetime | None = None
    #: Seconds from a loss until the replacement works.
    replacement_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ServerSaturation:
    """Steps per second that the servers deliver, by the sum of the workers' own speeds (both ascending)."""

    alone: tuple[float, ...]
    through: tuple[float, ...]

    def steps_per_s(self, alone: float) -> float:
        """Interpolates linearly between the measured points; beyond the last one the speed stays constant."""
        return float(np.interp(alone, (0.0, *self.alone), (0.0, *self.through)))


@dataclass(frozen=True, slots=True)
class ParameterServers:
    """The parameter servers: their price together, and their saturation curve."""

    usd_per_h: float
    saturation: ServerSaturation


@dataclass(frozen=True, slots=True)
class ExpectedRun:
    """Expected values of a run."""

    took_s: float
    usd: float
    losses: float


def expected_run(workers: Sequence[WorkerKind], servers: ParameterServers, steps: float) -> ExpectedRun:
    """Returns the expected time, cost and number of lost workers of a run of `steps` steps."""
    alone = sum(worker.steps_per_s for worker in workers)
    speed = servers.saturation.steps_per_s(alone)
    took_s, losses = steps / speed, 0.0
    for _ in range(_ROUNDS):
        chances = [1.0 - worker.law.survival(took_s / SECONDS_PER_HOUR) if worker.law else 0.0 for worker in workers]
        missing = sum(
            chance * worker.replacement_s * worker.steps_per_s / alone
            for chance, worker in zip(chances, workers, strict=True)
        )
        before, took_s, losses = took_s, steps / speed + missing, sum(chances)
        if abs(took_s - before) < 1e-6:
            break
    usd_per_h = servers.usd_per_h + sum(worker.usd_per_h for worker in workers)
    return ExpectedRun(took_s, usd_per_h * took_s / SECONDS_PER_HOUR, losses)


def cheapest_cluster(
    kinds: Sequence[WorkerKind], servers: ParameterServers, steps: float, most: int, limit_s: float
) -> tuple[tuple[WorkerKind, ...], ExpectedRun] | None:
    """Returns the cheapest cluster of up to `most` workers that takes at most `limit_s` seconds, or None."""
    fast = [found for found in all_clusters(kinds, servers, steps, most) if found[1].took_s <= limit_s]
    return min(fast, key=lambda found: found[1].usd, default=None)


def all_clusters(
    kinds: Sequence[WorkerKind], servers: ParameterServers, steps: float, most: int
) -> Iterator[tuple[tuple[WorkerKind, ...], ExpectedRun]]:
    """Generates every cluster of up to `most` workers, the smallest first, with its expected run."""
    for number in range(1, most + 1):
        for workers in combinations_with_replacement(kinds, number):
            yield workers, expected_run(workers, servers, steps)


#: Largest number of clusters that are enumerated.
_MOST_CLUSTERS = 5000
_Found = tuple[tuple[WorkerKind, ...], ExpectedRun]


@dataclass(frozen=True, slots=True)
class WorkerOffer:
    """One kind of worker that can be rented."""

    name: str
    steps_per_s: float
    spot_usd_per_h: float
    #: None where it is unknown.
    on_demand_usd_per_h: float | None
    law: Lifetime
    replacement_s: float

    def spot(self) -> WorkerKind:
        """Returns the worker on a machine that may be revoked."""
        return WorkerKind(self.name, self.steps_per_s, self.spot_usd_per_h, self.law, self.replacement_s)


@dataclass(frozen=True, slots=True)
class WorkerCluster:
    """Expected values of a cluster."""

    name: str
    #: Number of workers of each kind.
    workers: tuple[tuple[str, int], ...]
    took_s: float
    usd: float
    losses: float
    #: Saving relative to the cheapest on-demand cluster that is in time; None if there is none.
    saved: float | None


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """The clusters to choose from, the recommended one first, and a lower bound for all of them."""

    clusters: tuple[WorkerCluster, ...]
    #: Least cost (USD) if no worker were ever revoked.
    bound_usd: float
    tried: int


def make_worker_plan(
    offers: Sequence[WorkerOffer],
    servers_usd_per_h: float,
    saturation: Sequence[tuple[float, float]],
    steps: float,
    *,
    most: int,
    within_s: float = inf,
    asked: Sequence[str] = (),
) -> WorkerPlan:
    """Returns the cheapest cluster of up to `most` workers that finishes within a time.

    Args:
        asked: kinds of the workers of one more cluster to report, by name.
        saturation: (sum of the workers' own speeds, delivered speed) in steps/s, ascending; if empty, all is delivered.

    Raises:
        UserError: no cluster is fast enough, or there are too many to enumerate.
    """
    tried = sum(comb(len(offers) + number - 1, number) for number in range(1, most + 1))
    if tried > _MOST_CLUSTERS:
        raise UserError(
            f"{tried:,} clusters are too many to try", field="--most", fix="give fewer workers, or fewer kinds"
        )
    endless = sum(offer.steps_per_s for offer in offers) * most
    points = saturation or [(endless, endless)]
    servers = ParameterServers(servers_usd_per_h, ServerSaturation(*map(tuple, zip(*points, strict=True))))
    kinds = [offer.spot() for offer in offers]
    every = list(all_clusters(kinds, servers, steps, most))
    best = cheapest_cluster(kinds, servers, steps, most, within_s)
    fastest = min(every, key=lambda found: (found[1].took_s, found[1].usd))
    if best is None:
        raise UserError(
            f"no cluster is done in {format_length(within_s)}; the fastest takes {format_length(fastest[1].took_s)}",
            field="--within",
            fix="give a longer time, or more workers",
        )
    kept = cheapest_cluster([replace(kind, law=None) for kind in kinds], servers, steps, most, within_s)
    assert kept is not None, "without losses the best is faster still"
    sure = [
        WorkerKind(offer.name, offer.steps_per_s, offer.on_demand_usd_per_h)
        for offer in offers
        if offer.on_demand_usd_per_h is not None
    ]
    on_demand = cheapest_cluster(sure, servers, steps, most, within_s) if sure else None
    named: list[tuple[str, _Found]] = [
        ("cheapest in time" if within_s < inf else "cheapest", best),
        ("fastest", fastest),
    ]
    if on_demand is not None:
        named.append(("cheapest in time, on demand" if within_s < inf else "cheapest, on demand", on_demand))
    if asked:
        taken = tuple(next(kind for kind in kinds if kind.name == name) for name in asked)
        named.append(("as asked", (taken, expected_run(taken, servers, steps))))
    return WorkerPlan(tuple(_cluster(*each, on_demand) for each in named), kept[1].usd, tried)


def _cluster(name: str, found: _Found, on_demand: _Found | None) -> WorkerCluster:
    workers, expected = found
    counted = Counter(worker.name for worker in workers)
    saved = None if on_demand is None or not on_demand[1].usd else 1 - expected.usd / on_demand[1].usd
    return WorkerCluster(name, tuple(counted.items()), expected.took_s, expected.usd, expected.losses, saved)
