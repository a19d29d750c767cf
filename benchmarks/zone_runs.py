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
from scheduler.cloud.deadline_job import Outcome, SpotPolicy, run
from scheduler.cloud.slack_plan import plan_slack
from scheduler.cloud.spot_market import SpotMarket, fit_markets
from scheduler.cloud.spot_program import zones_optimum
from scheduler.cloud.uniform_progress import UniformProgress
from scheduler.cloud.zones import ZoneChoice, run_in_zones, together

_SET = "availability/1-node/aws-02-15-2023/"
REGIONS = {"us-west-2": ("us-west-2a", "us-west-2c"), "us-east-1": ("us-east-1a", "us-east-1d")}
_BEFORE = tuple(f"availability/1-node/{name}/" for name in ("aws-10-26-2022", "aws-2022-11-28", "aws-2022-12-13"))
#: Regions of two zones that are made up for fitting.
_MADE_UP = 24
#: The integer program stops when it is proven to be this near.
_GAP = 2e-3
Zones = tuple[tuple[bool, ...], ...]


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
    random = Random(0)
    pairs = [together(random.sample(before, 2)) for _ in range(_MADE_UP)]
    markets = fit_markets(before)
    one = plan_slack(JOB, markets)
    two = plan_slack(JOB, fit_markets([pair.any for pair in pairs]), [pair.taken for pair in pairs])
    return Fitted(markets, one.policy, two.policy)


def begun(zones: Zones, each: int, seed: int = 0) -> list[Zones]:
    """What lies ahead of random starts, one in each of so many equal parts of the time."""
    random = Random(seed)
    width = (min(map(len, zones)) - JOB.slots + 1) / each
    firsts = [int((part + random.random()) * width) for part in range(each)]
    return [tuple(zone[first : first + JOB.slots] for zone in zones) for first in firsts]


def alone(ahead: Sequence[Zones], make: Callable[[], SpotPolicy]) -> list[Outcome]:
    """A policy in each zone by itself."""
    return [run(JOB, make(), zone) for zones in ahead for zone in zones]


def across(ahead: Sequence[Zones], make: Callable[[], SpotPolicy], markets: Sequence[SpotMarket]) -> list[Outcome]:
    """A policy over all zones."""
    return [run_in_zones(JOB, make(), ZoneChoice(markets, len(zones)), zones) for zones in ahead]


def measure_zones(data: Path, name: str, each: int, ours: Fitted) -> Measured:
    """The table of one region."""
    ahead = begun(region(data, name), each)
    measured = Measured(f"one job with a deadline, zones of {name}", f"{each} random starts, one V100, 2023")
    found = {
        "Uniform Progress, one zone": alone(ahead, UniformProgress),
        "ours, one zone": alone(ahead, ours.one),
        "Uniform Progress over zones": across(ahead, UniformProgress, ours.markets),
        "ours over zones": across(ahead, ours.two, ours.markets),
    }
    cost = {who: fmean(outcome.cost for outcome in outcomes) for who, outcomes in found.items()}
    for who, outcomes in found.items():
        measured.add(f"{who}, cost of on-demand alone", 100 * cost[who] / ON_DEMAND_ALONE, "%")
        measured.add(f"{who}, late", sum(outcome.late > 0 for outcome in outcomes), "jobs", at_most=0)
    solved = [plan for zones in ahead if (plan := zones_optimum(JOB, zones, _GAP)) is not None]
    best, proven = fmean(plan.usd for plan in solved), fmean(plan.at_least for plan in solved)
    measured.add("optimum over zones, integer program, whole slots", 100 * best / ON_DEMAND_ALONE, "%")
    measured.add("the same, proven not below", 100 * proven / ON_DEMAND_ALONE, "%")
    measured.add("starts without a plan", len(ahead) - len(solved), "", at_most=0)
    # The program pays for whole slots, so its proven bound less one slot is below every exact cost.
    bound = proven - JOB.on_demand_price
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
