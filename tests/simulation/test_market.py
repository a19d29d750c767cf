"""One market, in virtual time: who is served where, what is rented for whom, and who pays."""

from dataclasses import replace
from math import inf

from optimizer.policy import PolicySpec
from scheduler.core.core import SchedulerCore
from scheduler.core.rules import RoundRules
from scheduler.providers.simulated_cloud import RentalTerms
from simulator.engine import RunLimits
from simulator.faults import MarketChange
from simulator.ground_truth import AttemptCosts, GroundTruth, SpeedKey
from simulator.machines import PoolModel
from simulator.simulated_jobs import SimulatedJob
from simulator.simulation import Scenario, Simulation, SimulationResult
from walras.cluster import Market, Pool, PoolId, Shape
from walras.job_request import Demand, JobId, JobRequest, Kind
from walras.states import JobState

KIND = Kind("cnn")
HOUR_S = 3600.0
BOX = Shape("box", "gpu", 1, 8.0, 2**33)
SPOT = Pool(PoolId("box/spot/a"), BOX, Market.SPOT, "a", 1.0, 4, boot_s=100.0, notice_s=120.0)
SURE = Pool(PoolId("box/on_demand/a"), BOX, Market.ON_DEMAND, "a", 3.0, 4, boot_s=100.0)
OWNED = Pool(PoolId("own/owned/a"), replace(BOX, name="own"), Market.OWNED, "a", 0.0, 0)
RULES = RoundRules(round_s=300.0, resolve_min_s=5.0, restart_default_s=5.0, rent_keep_s=300.0)


def job(number: int, hours: float, value: float | None = None, at: float = 0.0, count: int = 1) -> SimulatedJob:
    request = JobRequest(
        JobId(number), KIND, demands=(Demand("gpu", count),), steps=hours * HOUR_S, value_usd_per_h=value,
        project="payer" if value else "rider",
    )  # fmt: skip
    return SimulatedJob(at, request, hours * HOUR_S)


def rented(pool: Pool, **terms: float) -> PoolModel:
    return PoolModel(pool, terms=RentalTerms(pool.boot_s, pool.minimum_billing_s, **terms))


def scenario(*pools: PoolModel, rules: RoundRules = RULES, incidents: tuple[MarketChange, ...] = ()) -> Scenario:
    truth = GroundTruth({SpeedKey(KIND, "gpu"): 1.0}, {KIND: AttemptCosts(2.0, 1.0, 600.0)})
    return Scenario(
        pools, truth, PolicySpec("walras"), rules, incidents=incidents, limits=RunLimits(80 * HOUR_S)
    )  # fmt: skip


def run(told: Scenario, jobs: list[SimulatedJob], core: SchedulerCore | None = None) -> SimulationResult:
    result = Simulation(told, core=core or SchedulerCore()).run(sorted(jobs, key=lambda each: each.at))
    assert result.violations == []
    assert all(each.state is JobState.SUCCEEDED for each in result.jobs)
    assert len(result.jobs) == len(jobs)
    return result


def completion_s(result: SimulationResult, first: int = 1, last: float = inf) -> list[float]:
    return [each.ended_at - each.submitted_at for each in result.jobs if first <= each.job_id <= last]


# ------------------------------------------------------------------------------------------------ fallback


def test_a_pool_that_cannot_give_is_left_for_the_next_best_whose_price_is_below_the_value() -> None:
    """Spot has nothing for twelve hours: two jobs worth 5 USD/h run on demand at 3 meanwhile, at once."""
    told = scenario(
        rented(SPOT, capacity=0.0), rented(SURE), incidents=(MarketChange(12 * HOUR_S, SPOT.pool_id, capacity=4.0),)
    )
    result = run(told, [job(1, 1.0, 5.0), job(2, 1.0, 5.0)])
    assert max(completion_s(result)) <= 1.2 * HOUR_S
    assert result.bills[SURE.pool_id] > 0


def test_a_pool_that_cannot_give_is_left_for_no_pool_whose_price_is_above_the_value() -> None:
    told = scenario(
        rented(SPOT, capacity=0.0), rented(SURE), incidents=(MarketChange(2 * HOUR_S, SPOT.pool_id, capacity=4.0),)
    )
    result = run(told, [job(1, 1.0, 2.0)])
    assert result.bills.get(SURE.pool_id, 0.0) == 0.0
    assert min(completion_s(result)) >= 2 * HOUR_S


def test_a_job_goes_back_to_the_cheaper_pool_once_that_gives_again() -> None:
    """Ten hours of work; spot is back after two."""
    told = scenario(
        rented(SPOT, capacity=0.0), rented(SURE), incidents=(MarketChange(2 * HOUR_S, SPOT.pool_id, capacity=4.0),)
    )
    result = run(told, [job(1, 10.0, 5.0)])
    assert max(completion_s(result)) <= 10.2 * HOUR_S
    assert result.bills[SURE.pool_id] <= 3.0 * 3.0
    assert result.bills[SPOT.pool_id] >= 1.0 * 6.5
