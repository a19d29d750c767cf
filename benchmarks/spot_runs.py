"""Jobs with deadlines on recorded spot markets: traces from the reference data, starts, and what policies come to.

The set-up of "Can't Be Late" (Wu and others, NSDI'24): 48 h of work in 60 h, on demand at three times the price of
spot, .2 h for every start. Of its eight traces of October 2022 the four of us-west-2a are at hand; the four of
us-west-2b that were taken a month later stand in for the others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from optimizer.planning.deadline_job import DeadlineJob, SpotPolicy
from optimizer.planning.spot_plan import ReplayedPolicy, ReplayStart, draw_starts, replay_policy
from simulator.workloads.spot_markets import read_spot_availability

#: Units of 120 s: a slot of 600 s is 5, the changeover of .2 h is 6.
UNITS_PER_H = 30
JOB = DeadlineJob(slot=5, work=48 * UNITS_PER_H, deadline=60 * UNITS_PER_H, changeover=6, on_demand_price=3.0)
ON_DEMAND_ALONE = JOB.work / JOB.slot * JOB.on_demand_price
_SLOT_S = 600.0
_JUDGED = ("availability/1-node/aws-10-26-2022/", "availability/1-node/aws-2022-11-28/")
#: What our policy is fitted on besides the judged sets of other times, and mostly other zones.
_FITTED = ("availability/1-node/aws-2022-12-13/", "availability/1-node/aws-02-15-2023/")


@dataclass(frozen=True, slots=True)
class Total:
    """Means over all starts: productive hours, cost as a part of on-demand alone; and how many were late."""

    spot_h: float
    on_demand_h: float
    cost: float
    starts: float
    late: int


def judged(data: Path) -> list[tuple[bool, ...]]:
    """The eight traces that policies are judged on."""
    return traces(data, _JUDGED)


def fitted(data: Path) -> list[list[tuple[bool, ...]]]:
    """For each judged trace, what ours is fitted on: all sets of other times, traces without a machine left out."""
    found = []
    for own in _JUDGED:
        others = traces(data, (*_FITTED, *(name for name in _JUDGED if name != own)))
        found += [[other for other in others if any(other)]] * len(traces(data, (own,)))
    return found


def fitted_elsewhere(data: Path) -> list[tuple[bool, ...]]:
    """The traces of dates on which nothing is judged, traces without a machine left out."""
    return [trace for trace in traces(data, _FITTED) if any(trace)]


def traces(data: Path, prefixes: tuple[str, ...]) -> list[tuple[bool, ...]]:
    """The traces of some sets, in the order of their names."""
    return list(named(data, prefixes).values())


def named(data: Path, prefixes: tuple[str, ...]) -> dict[str, tuple[bool, ...]]:
    """The same by name."""
    file = data / "spot" / "capacity_traces_rle.csv.gz"
    return read_spot_availability(file, _SLOT_S, lambda name: name.startswith(prefixes))


def starts(traces: Sequence[tuple[bool, ...]], each: int, seed: int = 0) -> list[ReplayStart]:
    """Random starts: one in each of so many equal parts of every trace, so that none of its weather is left out."""
    random = Random(seed)
    return [start for trace in traces for start in draw_starts((trace,), JOB.slots, each, random)]


def total(begun: Sequence[ReplayStart], policy: Callable[[ReplayStart], SpotPolicy]) -> Total:
    """Run a policy, made anew for each start."""
    return totalled(replay_policy(JOB, begun, policy))


def totalled(found: ReplayedPolicy) -> Total:
    """In hours and parts of on-demand alone."""
    return Total(
        spot_h=found.spot_work / UNITS_PER_H,
        on_demand_h=found.on_demand_work / UNITS_PER_H,
        cost=found.cost / ON_DEMAND_ALONE,
        starts=found.starts,
        late=found.late,
    )
