"""`walras plan workers`: the cluster of workers to rent for a training run, beside others and beside the bound.

Puts the answer together; what a cluster comes to is decided in `transient_cluster`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import comb, inf

from scheduler.cloud.lifetimes import Lifetime
from scheduler.cloud.transient_cluster import (
    Expected,
    Saturation,
    Servers,
    WorkerKind,
    cheapest_within,
    clusters,
    expect,
)
from walras.errors import UserError
from walras.units import format_length

#: More are not tried one by one.
_MOST_CLUSTERS = 5000
_Found = tuple[tuple[WorkerKind, ...], Expected]


@dataclass(frozen=True, slots=True)
class WorkerOffer:
    """One kind of worker as it can be had."""

    name: str
    steps_per_s: float
    spot_usd_per_h: float
    #: None: not known.
    on_demand_usd_per_h: float | None
    law: Lifetime
    replacement_s: float

    def spot(self) -> WorkerKind:
        """On a machine that may be taken."""
        return WorkerKind(self.name, self.steps_per_s, self.spot_usd_per_h, self.law, self.replacement_s)


@dataclass(frozen=True, slots=True)
class Cluster:
    """What a cluster comes to in the mean."""

    name: str
    #: How many of each kind.
    workers: tuple[tuple[str, int], ...]
    took_s: float
    usd: float
    losses: float
    #: Part of the money that the cheapest on-demand cluster in time would cost more; None: there is none.
    saved: float | None


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """The clusters to choose from, the one to take first, and what none of them can be below."""

    clusters: tuple[Cluster, ...]
    #: The least money where no worker is ever taken.
    bound_usd: float
    tried: int


def plan_workers(
    offers: Sequence[WorkerOffer],
    servers_usd_per_h: float,
    saturation: Sequence[tuple[float, float]],
    steps: float,
    *,
    most: int,
    within_s: float = inf,
    asked: Sequence[str] = (),
) -> WorkerPlan:
    """The cheapest cluster of up to `most` workers that is done within a time.

    Args:
        asked: kinds of the workers of a cluster that is told of besides, by name.
        saturation: what the workers could do alone, and what of it came through (steps/s, ascending); none: all does.

    Raises:
        UserError: no cluster is fast enough, or there are too many to try.
    """
    tried = sum(comb(len(offers) + number - 1, number) for number in range(1, most + 1))
    if tried > _MOST_CLUSTERS:
        raise UserError(f"{tried:,} clusters are too many to try", field="--most", fix="fewer workers, or fewer kinds")
    endless = sum(offer.steps_per_s for offer in offers) * most
    points = saturation or [(endless, endless)]
    servers = Servers(servers_usd_per_h, Saturation(*map(tuple, zip(*points, strict=True))))
    kinds = [offer.spot() for offer in offers]
    every = list(clusters(kinds, servers, steps, most))
    best = cheapest_within(kinds, servers, steps, most, within_s)
    fastest = min(every, key=lambda found: (found[1].took_s, found[1].usd))
    if best is None:
        raise UserError(
            f"no cluster is done in {format_length(within_s)}; the fastest takes {format_length(fastest[1].took_s)}",
            field="--within",
            fix="a longer time, or more workers",
        )
    kept = cheapest_within([replace(kind, law=None) for kind in kinds], servers, steps, most, within_s)
    assert kept is not None, "without losses the best is faster still"
    sure = [
        WorkerKind(offer.name, offer.steps_per_s, offer.on_demand_usd_per_h)
        for offer in offers
        if offer.on_demand_usd_per_h is not None
    ]
    on_demand = cheapest_within(sure, servers, steps, most, within_s) if sure else None
    named: list[tuple[str, _Found]] = [
        ("cheapest in time" if within_s < inf else "cheapest", best),
        ("fastest", fastest),
    ]
    if on_demand is not None:
        named.append(("cheapest in time, on demand" if within_s < inf else "cheapest, on demand", on_demand))
    if asked:
        taken = tuple(next(kind for kind in kinds if kind.name == name) for name in asked)
        named.append(("as asked", (taken, expect(taken, servers, steps))))
    return WorkerPlan(tuple(_cluster(*each, on_demand) for each in named), kept[1].usd, tried)


def _cluster(name: str, found: _Found, on_demand: _Found | None) -> Cluster:
    workers, expected = found
    counted = Counter(worker.name for worker in workers)
    saved = None if on_demand is None or not on_demand[1].usd else 1 - expected.usd / on_demand[1].usd
    return Cluster(name, tuple(counted.items()), expected.took_s, expected.usd, expected.losses, saved)
