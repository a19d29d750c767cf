"""`walras plan collection`: which machine each job of a collection gets, beside what no plan can beat.

Puts the answer together; the plans and their bounds are those of `job_collections`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf

import numpy as np

from scheduler.cloud.job_collections import (
    Collection,
    Fluid,
    Offer,
    Stay,
    least_cost,
    least_time,
    longest_h,
    stay,
    stay_sooner,
)
from walras.errors import UserError
from walras.units import format_length, format_money

_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class CollectedJob:
    """One job: its steps, and steps per second by the name of a machine type."""

    name: str
    steps: float
    steps_per_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Placed:
    """Where and when a job runs: on one machine, from beginning to end."""

    job: str
    machine_type: str
    #: Which of the machines of its type, from 0.
    machine: int
    starts_h: float
    hours: float
    usd: float


@dataclass(frozen=True, slots=True)
class Sum:
    """What a plan, or a bound, comes to; None: it says nothing of that."""

    name: str
    usd: float | None
    time_h: float | None


@dataclass(frozen=True, slots=True)
class CollectionPlan:
    """The plan asked for, what else there could be, and the bounds of what was minimised."""

    plan: Sum
    others: tuple[Sum, ...]
    bounds: tuple[Sum, ...]
    #: What was minimised, over the least that a plan without moves could need, less 1.
    above_bound: float
    jobs: tuple[Placed, ...]


def plan_collection(
    offers: Sequence[Offer], jobs: Sequence[CollectedJob], *, within_h: float | None, budget_usd: float | None
) -> CollectionPlan:
    """The least money within a time, or the least time within a budget: just one of them is given.

    Raises:
        UserError: no plan is known, with the least that is.
    """
    rates = [[job.steps_per_s.get(offer.name, 0.0) * _HOUR_S for offer in offers] for job in jobs]
    given = Collection(tuple(offers), np.array([job.steps for job in jobs]), np.array(rates))
    fastest, leisurely = stay_sooner(given, inf), stay(given, longest_h(given))
    assert fastest is not None, "every job can run somewhere, and money is no matter"
    assert leisurely is not None, "one after another all jobs fit"
    cheapest = stay_sooner(given, leisurely.usd) or leisurely
    if within_h is not None:
        found, free = stay(given, within_h), least_cost(given, within_h)
        if found is None or free is None:
            raise _too_short(within_h, fastest, free)
        bounds = _bounds("usd", found.usd / found.over, free)
        found = _as_cheap_but_sooner(given, found)
    else:
        assert budget_usd is not None, "a deadline or a budget"
        found, free = stay_sooner(given, budget_usd), least_time(given, budget_usd)
        if found is None or free is None:
            raise UserError(
                f"{format_money(budget_usd)} are too little: on its cheapest machine each, all jobs cost "
                f"{format_money(cheapest.usd)}",
                field="--budget",
                fix=f"at least {ceil(100 * cheapest.usd) / 100:.2f}",
            )
        bounds = _bounds("time_h", found.time_h / found.over, free)
    others = (
        Sum("fastest at any price", fastest.usd, fastest.time_h),
        Sum("cheapest at any time", cheapest.usd, cheapest.time_h),
    )
    placed = tuple(_placed(given, [job.name for job in jobs], found))
    return CollectionPlan(Sum("plan", found.usd, found.time_h), others, bounds, found.over - 1, placed)


def _as_cheap_but_sooner(given: Collection, found: Stay) -> Stay:
    """The plan for a deadline fills machine after machine; the same money may do with less time."""
    sooner = stay_sooner(given, found.usd)
    if sooner is None or sooner.time_h >= found.time_h:
        return found
    return replace(sooner, over=found.over * sooner.usd / found.usd if found.usd else found.over)


def _too_short(within_h: float, fastest: Stay, free: Fluid | None) -> UserError:
    asked = format_length(within_h * _HOUR_S)
    told = "cannot all be done" if free is None else "fit no plan that was found"
    return UserError(
        f"the jobs {told} within {asked}; the fastest plan takes {format_length(fastest.time_h * _HOUR_S)}",
        field="--deadline",
        fix="a longer one, or more machines",
    )


def _bounds(minimised: str, without_moves: float, free: Fluid) -> tuple[Sum, ...]:
    """No job ever moves; and moves are free, so that no plan at all is below."""
    if minimised == "usd":
        return Sum("no job moves", without_moves, None), Sum("moves are free", free.usd, None)
    return Sum("no job moves", None, without_moves), Sum("moves are free", None, free.time_h)


def _placed(given: Collection, names: Sequence[str], found: Stay) -> list[Placed]:
    """In the order of the file; on one machine they follow each other in that order."""
    ends_h: dict[tuple[int, int], float] = {}
    placed = []
    for job, place in enumerate(zip(found.offer, found.machine, strict=True)):
        kind, machine = place
        hours = float(given.work[job] / given.rate[job, kind])
        starts_h = ends_h.get(place, 0.0)
        ends_h[place] = starts_h + hours
        offer = given.offers[kind]
        placed.append(Placed(names[job], offer.name, machine, starts_h, hours, hours * offer.usd_per_h))
    return placed
