"""One job with a deadline on recorded spot markets, played through the scheduler's core in the simulator.

The same job, traces and starts as `spot_runs`, where a calculator plays them slot by slot. Here the job is submitted to
the scheduler, each zone is a spot pool that has one machine while its trace says so, and one machine is to be had on
demand. Machines boot at once and every start takes .2 h of paid time without progress, as in the published set-up; a
machine that is taken back leaves its minute of notice for a checkpoint.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from statistics import fmean

from benchmarks.spot_runs import JOB, UNITS_PER_H
from optimizer.planning.spot_plan import ReplayStart, Zones
from optimizer.policy import PolicySpec
from scheduler.core.rules import RoundRules
from scheduler.providers.simulated_cloud import RentalTerms
from scheduler.world.attempts import AttemptCosts, SimulatedJob
from scheduler.world.engine import RunLimits
from scheduler.world.machines import PoolModel
from simulator.faults import MarketChange
from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.simulation import Scenario, simulate
from walras.cluster import Market, Pool, PoolId, Shape
from walras.contract import SECONDS_PER_HOUR
from walras.job_request import Demand, JobId, JobRequest, Kind

SLOT_S = 600.0
WORK_S, DEADLINE_S = (units / UNITS_PER_H * SECONDS_PER_HOUR for units in (JOB.work, JOB.deadline))
_ON_DEMAND_USD = WORK_S / SECONDS_PER_HOUR * JOB.on_demand_price
_KIND = Kind("training")
_SHAPE = Shape("one", "v100", 1, 8.0, 2**33)
_ON_DEMAND = PoolId("on-demand")
_NOTICE_S = 60.0
_COSTS = AttemptCosts(
    start_s=JOB.changeover / UNITS_PER_H * SECONDS_PER_HOUR, checkpoint_s=1.0, checkpoint_every_s=3600.0, exit_s=1.0
)


@dataclass(frozen=True, slots=True)
class ScheduledRun:
    """What one start came to: bills as parts of on-demand alone, and whether the job was late."""

    spot: float
    on_demand: float
    starts: int
    is_late: bool

    @property
    def cost(self) -> float:
        """Of the whole job."""
        return self.spot + self.on_demand


def played(zones: Zones, delay_usd_per_h: float) -> ScheduledRun:
    """One job from the first slot of these traces on; an hour of it being worth so much, USD (0: nobody says)."""
    request = JobRequest(
        JobId(1), _KIND, demands=(Demand("v100", 1),), steps=WORK_S, deadline_at=DEADLINE_S, grace_s=_NOTICE_S
    )
    spot = [_pool(f"spot-{place}", Market.SPOT, 1.0, zone[0]) for place, zone in enumerate(zones)]
    scenario = Scenario(
        (_pool(_ON_DEMAND, Market.ON_DEMAND, JOB.on_demand_price, has_machine=True), *spot),
        GroundTruth({SpeedKey(_KIND, "v100"): 1.0}, default_costs=_COSTS),
        PolicySpec("walras"),
        RoundRules(delay_usd_per_h=delay_usd_per_h, rent_keep_s=60.0),
        incidents=tuple(_changes(zones)),
        limits=RunLimits(until_at=2 * DEADLINE_S),
    )
    found = simulate([SimulatedJob(0.0, request, WORK_S)], scenario)
    assert not found.violations, found.violations
    job = (*found.jobs, *found.unfinished)[0]
    on_demand = found.bills[_ON_DEMAND] / _ON_DEMAND_USD
    whole = sum(found.bills.values()) / _ON_DEMAND_USD
    return ScheduledRun(whole - on_demand, on_demand, job.attempts, not job.ended_at <= DEADLINE_S)


def _pool(name: str, market: Market, usd_per_h: float, has_machine: bool) -> PoolModel:
    notice_s = _NOTICE_S if market is Market.SPOT else 0.0
    pool = Pool(PoolId(name), _SHAPE, market, name, usd_per_h, 1, notice_s=notice_s)
    return PoolModel(pool, terms=RentalTerms(capacity=1.0 if has_machine else 0.0))


def _changes(zones: Zones) -> Iterator[MarketChange]:
    """What each trace says, whenever it says something else than before."""
    for place, zone in enumerate(zones):
        for slot in range(1, len(zone)):
            if zone[slot] != zone[slot - 1]:
                yield MarketChange(slot * SLOT_S, PoolId(f"spot-{place}"), capacity=1.0 if zone[slot] else 0.0)


@dataclass(frozen=True, slots=True)
class ScheduledTotal:
    """Means over starts, and the worst; money as parts of on-demand alone."""

    cost: float
    dearest: float
    spot: float
    starts: float
    late: int


def scheduled_total(begun: Sequence[ReplayStart], delay_usd_per_h: float) -> ScheduledTotal:
    """The scheduler from each start; on all processors."""
    with ProcessPoolExecutor() as pool:
        runs = list(pool.map(played, [start.ahead for start in begun], repeat(delay_usd_per_h), chunksize=4))
    return ScheduledTotal(
        fmean(run.cost for run in runs),
        max(run.cost for run in runs),
        fmean(run.spot for run in runs),
        fmean(run.starts for run in runs),
        sum(run.is_late for run in runs),
    )
