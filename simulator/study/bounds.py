"""What no scheduler could have done better: three lower bounds of a run, and how far the run is from each.

They hold for the jobs that succeeded: leaving the others out makes the fleet emptier, and so the bounds smaller. Speeds
are the true ones, restarts cost nothing, and rented machines are there up to their quota from the beginning.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import nan

from simulator.bounds.instance import Instance, no_contention_s
from simulator.metrics import JobMeasure
from simulator.study.roster import Roster

#: Job-pool pairs up to which the linear program is solved, and the priced bound is sought, unless all are asked for.
FLUID_PAIRS_MAX = 10_000
PRICED_PAIRS_MAX = 1_000
#: Prices of the priced bound are constant over this part of the time that its horizon has.
_INTERVALS = 200.0
_STEPS = 300


class BoundsAsked(StrEnum):
    """Which lower bounds are worked out."""

    NONE = "none"
    #: Those that are cheap at this size.
    CHEAP = "cheap"
    #: All of them, however long it takes.
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lower bounds, seconds; nan where one was not worked out. Gaps are run / bound - 1."""

    #: Mean completion time if every job had the fleet to itself.
    no_contention_s: float = nan
    no_contention_gap: float = nan
    #: Makespan of the fluid fleet.
    makespan_s: float = nan
    makespan_gap: float = nan
    #: Mean completion time that prices over time prove.
    jct_s: float = nan
    jct_gap: float = nan


def bounds_of(succeeded: Iterable[JobMeasure], roster: Roster, asked: BoundsAsked, *, is_whole: bool = True) -> Bounds:
    """The bounds of these jobs of a run, those that are asked for. Only all of them have a makespan."""
    # In the order of their numbers, so that policies that end all jobs meet the same bounds to the last bit.
    done = sorted(succeeded, key=lambda job: job.job_id)
    if asked is BoundsAsked.NONE or not done:
        return Bounds()
    instance = roster.instance(job.job_id for job in done)
    pairs = instance.steps_per_s.size
    mean_s = sum(job.jct_s for job in done) / len(done)
    ended_s = max(job.ended_at for job in done) - float(instance.arrival_at.min())
    alone_s = no_contention_s(instance)
    fluid_s = priced_s = nan
    if is_whole and (asked is BoundsAsked.ALL or pairs <= FLUID_PAIRS_MAX):
        from simulator.bounds.fluid import makespan_bound_s

        fluid_s = makespan_bound_s(instance)
    if asked is BoundsAsked.ALL or pairs <= PRICED_PAIRS_MAX:
        priced_s = max(_priced_s(instance), alone_s)
    return Bounds(alone_s, mean_s / alone_s - 1.0, fluid_s, ended_s / fluid_s - 1.0, priced_s, mean_s / priced_s - 1.0)


def _priced_s(instance: Instance) -> float:
    """Any length of interval gives a bound; this one keeps their number, and so the work, bounded."""
    from simulator.bounds.flow_time import flow_time_bound

    first = float(instance.arrival_at.min())
    work_s = float((instance.gang * instance.alone_s).sum()) / float(instance.capacity.sum())
    horizon_s = float((instance.arrival_at + instance.alone_s).max()) - first + work_s
    return flow_time_bound(instance, interval_s=horizon_s / _INTERVALS, steps=_STEPS).mean_s
