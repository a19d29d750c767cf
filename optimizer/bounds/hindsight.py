"""A lower bound on the mean completion time of ended jobs under any scheduler, even one that had known the future.

The jobs are those that ended, with the work that they turned out to be; the accelerators are those that were there,
when they were there. Restarts and moves are free in the bound, and gangs divisible, so the truth lies between the
bound and what was achieved. Leaving jobs out keeps it a bound for the others: those left out only took capacity.

A job is as fast on an accelerator type as it was measured there. On a type that it accepts and where nobody measured
it the highest of its known speeds counts; `assumed` says for how many jobs the bound rests on that. Speeds are raised
where they do not explain the work that the job did in the time that it held accelerators: what really happened is
always one of the schedules that the bound is below.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from optimizer.bounds.instance import FloatArray, SchedulingInstance, no_contention_jct_s

#: Prices of the bound are constant over this part of the time from the first arrival to the last end.
_INTERVALS = 120
#: The most and the fewest passes over the jobs that improve the prices, and the most jobs evaluated in all passes.
_PASSES_MOST, _PASSES_LEAST, _JOB_PASSES = 200, 30, 1_000_000


@dataclass(frozen=True, slots=True)
class PastJob:
    """A job that ended with its work done, run as one rigid gang on one accelerator type at a time."""

    project: str
    #: Instants of arrival and end, seconds.
    arrived_at: float
    ended_at: float
    #: The fewest accelerators that its gang takes.
    accelerators: int
    #: The work of the job, > 0, in the unit of the speeds.
    steps: float
    #: The highest known steps per second of the whole gang, by accelerator type that the job accepts; None where nobody
    #: measured it.
    speeds: Mapping[str, float | None]
    #: Seconds for which its gang held accelerators, by accelerator type.
    held_s: Mapping[str, float]


@dataclass(frozen=True, slots=True, eq=False)
class PastCapacity:
    """The accelerators that were there: `accelerators[i]` from `since_at[i]` until the next instant, or for ever."""

    types: tuple[str, ...]
    #: Instants from which the counts hold, ascending (k,).
    since_at: FloatArray
    #: Accelerators by instant and type (k, p).
    accelerators: FloatArray

    def seconds_between(self, edges: FloatArray) -> FloatArray:
        """Returns the accelerator-seconds of each type between consecutive instants (len(edges) - 1, p).

        Before the first instant the counts of the first instant hold.
        """
        knots = np.unique(np.concatenate([edges, self.since_at]))
        row = np.maximum(np.searchsorted(self.since_at, knots[:-1], side="right") - 1, 0)
        passed = np.diff(knots)[:, None] * self.accelerators[row]
        until = np.vstack([np.zeros(len(self.types)), np.cumsum(passed, axis=0)])
        seconds: FloatArray = np.diff(until[np.searchsorted(knots, edges)], axis=0)
        return seconds


@dataclass(frozen=True, slots=True)
class HindsightBound:
    """The mean completion time achieved for some jobs, and lower bounds on that of any scheduler. In seconds; all 0
    without jobs.
    """

    jobs: int
    #: Mean time from arrival to end that was achieved.
    achieved_s: float
    #: A lower bound on the mean of every scheduler.
    bound_s: float
    #: The mean if every job had all accelerators to itself: the part of the bound that no scheduler changes.
    alone_s: float
    #: Jobs for which speeds had to be assumed on a type that they accept.
    assumed: int


def hindsight_bound(jobs: Sequence[PastJob], capacity: PastCapacity) -> HindsightBound:
    """Returns the bound for the jobs that accept a type that was there and that held accelerators.

    It takes seconds for tens of thousands of jobs, and imports numba.
    """
    there = capacity.accelerators.max(axis=0, initial=0.0) > 0
    types = [name for name, was_there in zip(capacity.types, there, strict=True) if was_there]
    found = [(job, speeds) for job in jobs if (speeds := _speeds_of(job, types)) is not None]
    if not found:
        return HindsightBound(0, 0.0, 0.0, 0.0, 0)
    instance = SchedulingInstance(
        np.array([job.arrived_at for job, _ in found]),
        np.array([job.steps for job, _ in found]),
        np.array([float(job.accelerators) for job, _ in found]),
        np.array([speeds for _, (speeds, _) in found]),
        np.ascontiguousarray(capacity.accelerators.max(axis=0)[there]),
    )
    ends = np.array([job.ended_at for job, _ in found])
    alone_s = no_contention_jct_s(instance)
    return HindsightBound(
        jobs=len(found),
        achieved_s=float((ends - instance.arrival_at).mean()),
        bound_s=max(_priced_s(instance, float(ends.max()), capacity, there), alone_s),
        alone_s=alone_s,
        assumed=sum(is_assumed for _, (_, is_assumed) in found),
    )


def _speeds_of(job: PastJob, types: Sequence[str]) -> tuple[list[float], bool] | None:
    """Returns the job's highest speed on each type, and whether one of them is assumed; None where the job cannot be
    bounded.
    """
    known = [speed for speed in job.speeds.values() if speed is not None and speed > 0]
    accepted = [name for name in types if name in job.speeds]
    if not known or not accepted or job.steps <= 0:
        return None
    highest = max(known)
    unknown = [name for name in accepted if not job.speeds[name]]
    speeds = [(job.speeds[name] or highest) if name in job.speeds else 0.0 for name in types]
    done = sum(speed * job.held_s.get(name, 0.0) for name, speed in zip(types, speeds, strict=True))
    if done <= 0:
        return None
    raised = max(1.0, job.steps / done)
    return [speed * raised for speed in speeds], bool(unknown)


def _priced_s(instance: SchedulingInstance, last_end_at: float, capacity: PastCapacity, there: FloatArray) -> float:
    from optimizer.bounds.flow_time import flow_time_bound

    first = float(instance.arrival_at.min())
    edges = np.linspace(first, max(last_end_at, first + 1e-3), _INTERVALS + 1)
    seconds = np.ascontiguousarray(capacity.seconds_between(edges)[:, there])
    passes = min(_PASSES_MOST, max(_PASSES_LEAST, _JOB_PASSES // len(instance.steps)))
    return flow_time_bound(instance, interval_s=float(edges[1] - edges[0]), steps=passes, there=seconds).mean_s
