"""Jobs with deadlines on recorded spot markets: traces from the reference data, starts, and what policies come to.

The set-up of "Can't Be Late" (Wu and others, NSDI'24): 48 h of work in 60 h, on demand at three times the price of
spot, .2 h for every start. Of its eight traces of October 2022 the four of us-west-2a are at hand; the four of
us-west-2b that were taken a month later stand in for the others.
"""

import csv
import gzip
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from scheduler.cloud.deadline_job import DeadlineJob, Outcome, SpotPolicy, run

#: Units of 120 s: a slot of 600 s is 5, the changeover of .2 h is 6.
UNITS_PER_H = 30
JOB = DeadlineJob(slot=5, work=48 * UNITS_PER_H, deadline=60 * UNITS_PER_H, changeover=6, on_demand_price=3.0)
ON_DEMAND_ALONE = JOB.work / JOB.slot * JOB.on_demand_price
_SLOT_S = 600.0
_JUDGED = ("availability/1-node/aws-10-26-2022/", "availability/1-node/aws-2022-11-28/")
#: What our policy is fitted on besides the judged sets of other times, and mostly other zones.
_FITTED = ("availability/1-node/aws-2022-12-13/", "availability/1-node/aws-02-15-2023/")


@dataclass(frozen=True, slots=True)
class Start:
    """A trace, and the slot at which a job begins on it."""

    available: tuple[bool, ...]
    first: int

    @property
    def ahead(self) -> tuple[bool, ...]:
        """The slots until the deadline."""
        return self.available[self.first : self.first + JOB.slots]


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


def traces(data: Path, prefixes: tuple[str, ...]) -> list[tuple[bool, ...]]:
    """The traces of some sets, in the order of their names."""
    return list(named(data, prefixes).values())


def named(data: Path, prefixes: tuple[str, ...]) -> dict[str, tuple[bool, ...]]:
    """The same by name."""
    spans: dict[str, list[tuple[float, bool]]] = {}
    with gzip.open(data / "spot" / "capacity_traces_rle.csv.gz", "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["trace_id"].startswith(prefixes):
                spans.setdefault(row["trace_id"], []).append((float(row["end_s"]), int(row["available_nodes"]) > 0))
    return {name: tuple(_slots(rows)) for name, rows in sorted(spans.items())}


def _slots(rows: Sequence[tuple[float, bool]]) -> Iterator[bool]:
    """What holds at the start of each slot."""
    at = 0.0
    for end, available in rows:
        while at < end:
            yield available
            at += _SLOT_S


def starts(traces: Sequence[tuple[bool, ...]], each: int, seed: int = 0) -> list[Start]:
    """Random starts: one in each of so many equal parts of every trace, so that none of its weather is left out."""
    random = Random(seed)
    found = []
    for trace in traces:
        width = (len(trace) - JOB.slots + 1) / each
        found += [Start(trace, int((part + random.random()) * width)) for part in range(each)]
    return found


def total(begun: Sequence[Start], policy: Callable[[Start], SpotPolicy]) -> Total:
    """Run a policy, made anew for each start."""
    outcomes: list[Outcome] = [run(JOB, policy(start), start.ahead) for start in begun]
    many = len(outcomes)
    return Total(
        spot_h=sum(outcome.spot_work for outcome in outcomes) / many / UNITS_PER_H,
        on_demand_h=sum(outcome.on_demand_work for outcome in outcomes) / many / UNITS_PER_H,
        cost=sum(outcome.cost for outcome in outcomes) / many / ON_DEMAND_ALONE,
        starts=sum(outcome.starts for outcome in outcomes) / many,
        late=sum(outcome.late > 0 for outcome in outcomes),
    )
