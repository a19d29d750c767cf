"""Jobs with deadlines on spot machines in the zones of one region: recorded traces, starts, and what policies come to.

The traces of 2023 are the only ones that saw several zones of a region at once: two of us-west-2, two of us-east-1, one
V100. Ours is fitted on all single-zone traces of the year before; laid over each other they stand for regions whose
zones know nothing of each other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean

from benchmarks.spot_runs import JOB, ON_DEMAND_ALONE, named, traces
from benchmarks.tables import Measured
from optimizer.planning.deadline_job import SpotPolicy, UniformProgress
from optimizer.planning.slack_policy import SpotMarket, plan_slack
from optimizer.planning.spot_plan import (
    ReplayedPolicy,
    ReplayStart,
    Zones,
    draw_starts,
    replay_optimum,
    replay_policy,
    teach_policy,
    zones_optimum,
)

_SET = "availability/1-node/aws-02-15-2023/"
REGIONS = {"us-west-2": ("us-west-2a", "us-west-2c"), "us-east-1": ("us-east-1a", "us-east-1d")}
_BEFORE = tuple(f"availability/1-node/{name}/" for name in ("aws-10-26-2022", "aws-2022-11-28", "aws-2022-12-13"))
#: The integer program stops when it is proven to be this near.
_GAP = 2e-3


@dataclass(frozen=True, slots=True)
class Fitted:
    """Ours, for one zone and for two."""

    markets: tuple[SpotMarket, ...]
    one: Callable[[], SpotPolicy]
    two: Callable[[], SpotPolicy]


def region(data: Path, name: str) -> Zones:
    """The traces of a region's zones, slot by slot."""
    found = named(data, (_SET,))
    return tuple(found[f"{_SET}{zone}_v100_1"] for zone in REGIONS[name])


def fitted(data: Path) -> Fitted:
    """Our plans, from the traces of 2022."""
    before = [trace for trace in traces(data, _BEFORE) if any(trace)]
    both = teach_policy(JOB, before, 2, Random(0))
    return Fitted(both.markets, plan_slack(JOB, both.markets).policy, both.plan.policy)


def begun(zones: Zones, each: int, seed: int = 0) -> list[ReplayStart]:
    """Random starts over all zones at once."""
    return draw_starts(zones, JOB.slots, each, Random(seed))


def alone(starts: Sequence[ReplayStart], make: Callable[[], SpotPolicy]) -> ReplayedPolicy:
    """A policy in each zone by itself."""
    single = [ReplayStart((zone,), start.first, start.slots) for start in starts for zone in start.zones]
    return replay_policy(JOB, single, lambda _: make())


def across(
    starts: Sequence[ReplayStart], make: Callable[[], SpotPolicy], markets: Sequence[SpotMarket]
) -> ReplayedPolicy:
    """A policy over all zones."""
    return replay_policy(JOB, starts, lambda _: make(), markets)


def measure_zones(data: Path, name: str, each: int, ours: Fitted) -> Measured:
    """The table of one region."""
    starts = begun(region(data, name), each)
    measured = Measured(f"one job with a deadline, zones of {name}", f"{each} random starts, one V100, 2023")
    found = {
        "Uniform Progress, one zone": alone(starts, UniformProgress),
        "ours, one zone": alone(starts, ours.one),
        "Uniform Progress over zones": across(starts, UniformProgress, ours.markets),
        "ours over zones": across(starts, ours.two, ours.markets),
    }
    cost = {who: replayed.cost for who, replayed in found.items()}
    for who, replayed in found.items():
        measured.add(f"{who}, cost of on-demand alone", 100 * cost[who] / ON_DEMAND_ALONE, "%")
        measured.add(f"{who}, late", replayed.late, "jobs", at_most=0)
    solved = [plan for start in starts if (plan := zones_optimum(JOB, start.ahead, _GAP)) is not None]
    best, proven = fmean(plan.usd for plan in solved), fmean(plan.at_least for plan in solved)
    measured.add("optimum over zones, integer program, whole slots", 100 * best / ON_DEMAND_ALONE, "%")
    measured.add("the same, proven not below", 100 * proven / ON_DEMAND_ALONE, "%")
    bound = replay_optimum(JOB, starts).cost
    measured.add("optimum over zones, exact", 100 * bound / ON_DEMAND_ALONE, "%")
    measured.add("starts without a plan", len(starts) - len(solved), "", at_most=0)
    before, after = cost["Uniform Progress, one zone"], cost["ours over zones"]
    measured.add(
        "closed by ours over zones, from one zone's Uniform Progress",
        100 * (before - after) / (before - bound),
        "%",
        at_least=50,
    )
    before = cost["Uniform Progress over zones"]
    measured.add("the same, from Uniform Progress over zones", 100 * (before - after) / (before - bound), "%")
    return measured
