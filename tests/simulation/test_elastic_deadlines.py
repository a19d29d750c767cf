"""Elastic jobs with a deadline on made-up markets, in virtual time: always in time, and cheaper than a kept size."""

from random import Random

import pytest

from optimizer.policy import PolicySpec
from scheduler.core.rules import RoundRules
from scheduler.providers.simulated_cloud import RentalTerms
from simulator.engine import RunLimits
from simulator.faults import Incident, MarketChange
from simulator.ground_truth import AttemptCosts, GroundTruth, SpeedKey
from simulator.machines import PoolModel
from simulator.simulated_jobs import SimulatedJob
from simulator.simulation import Scenario, simulate
from walras.cluster import Market, Pool, PoolId, Shape
from walras.job_request import Demand, JobId, JobRequest, Kind
from walras.states import JobState

KIND, HOUR_S = Kind("cnn"), 3600.0
BOX = Shape("box", "gpu", 1, 8.0, 2**33)
SPEEDS = {1: 1.0, 2: 1.75, 4: 3.0}
SURE = Pool(PoolId("sure"), BOX, Market.ON_DEMAND, "z", 3.0, 4, boot_s=60.0)


def run(seed: int, sizes: tuple[int, ...], notice_s: float = 30.0) -> float:
    """USD of two hours of work on one machine in two hours and a half, and as long again where it is late."""
    random, at, incidents = Random(seed), 0.0, list[Incident]()
    spot = Pool(PoolId("spot"), BOX, Market.SPOT, "z", 1.0, 4, notice_s=notice_s, boot_s=60.0)
    while at < 3 * HOUR_S:
        price = random.choice((0.5, 1.0, 2.0))
        incidents.append(MarketChange(at, spot.pool_id, price, capacity=random.choice((0.0, 1.0, 2.0, 4.0))))
        at += random.expovariate(1 / (0.3 * HOUR_S))
    scenario = Scenario(
        (PoolModel(spot, terms=RentalTerms(60.0)), PoolModel(SURE, terms=RentalTerms(60.0))),
        GroundTruth(
            {SpeedKey(KIND, "gpu", size): speed for size, speed in SPEEDS.items()},
            {KIND: AttemptCosts(10.0, 5.0, 300.0)},
        ),
        PolicySpec("walras"),
        RoundRules(round_s=300.0, resolve_min_s=60.0, restart_default_s=20.0, rent_keep_s=60.0, delay_usd_per_h=0.0),
        incidents=tuple(incidents),
        limits=RunLimits(until_at=6 * HOUR_S),
    )
    request = JobRequest(
        JobId(1), KIND, demands=(Demand("gpu", sizes[0]),), sizes=sizes if len(sizes) > 1 else (),
        steps=2 * HOUR_S, deadline_at=2.5 * HOUR_S, grace_s=20.0,
    )  # fmt: skip
    found = simulate([SimulatedJob(0.0, request, 2 * HOUR_S)], scenario)
    assert found.violations == []
    assert [job.state is JobState.SUCCEEDED and job.ended_at <= 2.5 * HOUR_S for job in found.jobs] == [True]
    return sum(found.bills.values())


@pytest.mark.parametrize("notice_s", [30.0, 0.0])
def test_no_deadline_is_missed_however_prices_and_numbers_of_machines_change(notice_s: float) -> None:
    for seed in range(2):
        assert run(seed, (1, 2, 4), notice_s) > 0


@pytest.mark.slow
def test_the_planned_size_is_cheaper_than_any_that_is_kept() -> None:
    """In the mean over seeds: each size is right on some markets only."""
    seeds = range(10, 14)
    planned = sum(run(seed, (1, 2, 4)) for seed in seeds)
    assert planned < 0.95 * min(sum(run(seed, (size,)) for seed in seeds) for size in (1, 2, 4))
