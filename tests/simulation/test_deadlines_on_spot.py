"""Deadlines in virtual time: on spot while there is time, on demand when there is no more, and ended in time."""

from dataclasses import replace
from random import Random

import pytest

from optimizer.policy import PolicySpec
from scheduler.core.commands import AttemptTransitioned, Command, Rent
from scheduler.core.core import SchedulerCore
from scheduler.core.events import Event, Woke
from scheduler.core.explain.job_conditions import AT_RISK, job_conditions
from scheduler.core.rules import RoundRules
from scheduler.providers.simulated_cloud import RentalTerms
from simulator.engine import RunLimits
from simulator.faults import Incident, MarketChange
from simulator.ground_truth import AttemptCosts, GroundTruth, SpeedKey
from simulator.machines import PoolModel
from simulator.simulated_jobs import SimulatedJob
from simulator.simulation import Scenario, Simulation
from walras.cluster import Market, Pool, PoolId, Shape
from walras.job_request import Demand, JobId, JobRequest, Kind
from walras.states import AttemptState, JobState

KIND = Kind("cnn")
BOX = Shape("box", "gpu", 1, 8.0, 2**33)
SPOT = Pool(PoolId("box/spot/z"), BOX, Market.SPOT, "z", 1.0, 2, notice_s=30.0, boot_s=60.0)
SURE = Pool(PoolId("box/on_demand/z"), BOX, Market.ON_DEMAND, "z", 3.0, 2, boot_s=120.0)
HOUR_S = 3600.0


def scenario(policy: PolicySpec, incidents: list[Incident], *, seed: int = 0, notice_s: float = 30.0) -> Scenario:
    spot = replace(SPOT, notice_s=notice_s)
    pools = (PoolModel(spot, terms=RentalTerms(60.0)), PoolModel(SURE, terms=RentalTerms(120.0)))
    truth = GroundTruth({SpeedKey(KIND, "gpu"): 1.0}, {KIND: AttemptCosts(10.0, 5.0, 300.0)})
    rules = RoundRules(round_s=300.0, resolve_min_s=60.0, restart_default_s=20.0, min_runtime_s=10.0,
                       delay_usd_per_h=2.0, rent_keep_s=120.0, rent_backoff_s=10.0)  # fmt: skip
    return Scenario(pools, truth, policy, rules, incidents=tuple(incidents), seed=seed,
                    limits=RunLimits(until_at=20 * HOUR_S, max_events=100_000))  # fmt: skip


def run(told: Scenario, hours: float, deadline_h: float) -> tuple[float, list[tuple[float, str]], list[str]]:
    """When the job ended (inf: not), where its attempts were, and its conditions on the way."""
    core = SchedulerCore()
    where: list[tuple[float, str]] = []
    said: list[str] = []

    def watch(event: Event, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, AttemptTransitioned) and command.state is AttemptState.LEASED:
                assert command.placement is not None
                where.append((event.at, str(command.placement.pool_id)))
        if commands:
            said.extend(each.detail for each in job_conditions(core, JobId(1)) if each.type == AT_RISK)

    request = JobRequest(
        JobId(1), KIND, demands=(Demand("gpu", 1),), steps=hours * HOUR_S, deadline_at=deadline_h * HOUR_S, grace_s=20.0
    )
    result = Simulation(told, core=core).run([SimulatedJob(0.0, request, hours * HOUR_S)], watch)
    assert result.violations == []
    ended = [job.ended_at for job in result.jobs if job.state is JobState.SUCCEEDED]
    return (ended[0] if ended else float("inf")), where, said


def test_spot_that_disappears_is_left_for_on_demand_in_time() -> None:
    """Two hours of work, three and a half to do them; spot is gone after half an hour and never comes back."""
    gone = [MarketChange(0.5 * HOUR_S, SPOT.pool_id, capacity=0.0)]
    ended_at, where, said = run(scenario(PolicySpec("walras"), gone), 2.0, 3.5)
    assert where[0][1] == SPOT.pool_id
    assert where[-1][1] == SURE.pool_id
    assert ended_at <= 3.5 * HOUR_S
    if said:
        assert f"on {SURE.pool_id}" in said[0]
        assert "h left" in said[0]


def without_worth(incidents: list[Incident], *, seed: int = 0, notice_s: float = 30.0) -> Scenario:
    """The policy sees no worth in a machine (an hour of waiting costs nothing): the deadline alone rents one."""
    told = scenario(PolicySpec("walras"), incidents, seed=seed, notice_s=notice_s)
    return replace(told, rules=replace(told.rules, delay_usd_per_h=0.0))


def test_a_job_that_nobody_rents_for_is_on_spot_while_there_is_any() -> None:
    ended_at, where, _ = run(without_worth([]), 1.0, 4.0)
    assert [pool for _, pool in where] == [SPOT.pool_id]
    assert where[0][0] < 300.0
    assert ended_at <= 1.2 * HOUR_S


def test_without_spot_it_is_moved_at_the_last_moment() -> None:
    told = without_worth([MarketChange(0.0, SPOT.pool_id, capacity=0.0)])
    ended_at, where, _ = run(told, 1.0, 4.0)
    assert [pool for _, pool in where] == [SURE.pool_id]
    assert 2.0 * HOUR_S <= where[0][0] <= 3.0 * HOUR_S
    assert ended_at <= 4.0 * HOUR_S


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("notice_s", [30.0, 0.0])
@pytest.mark.parametrize("worth", [2.0, 0.0])
def test_no_deadline_is_missed_however_spot_comes_and_goes(seed: int, notice_s: float, worth: float) -> None:
    """Random capacity of the spot market, with notice and without, an hour worth something or not: always in time."""
    random, at, incidents = Random(seed), 0.0, list[Incident]()
    while at < 6 * HOUR_S:
        at += random.expovariate(1 / (0.4 * HOUR_S))
        incidents.append(MarketChange(at, SPOT.pool_id, capacity=random.choice((0.0, 0.0, 2.0))))
    hours = random.uniform(1.0, 3.0)
    deadline_h = hours * random.uniform(1.2, 2.0) + 0.3
    told = scenario(PolicySpec("walras"), incidents, seed=seed, notice_s=notice_s)
    told = replace(told, rules=replace(told.rules, delay_usd_per_h=worth))
    ended_at, _, _ = run(told, hours, deadline_h)
    assert ended_at <= deadline_h * HOUR_S


def comes_and_goes(seed: int, pools: tuple[Pool, ...] = (SPOT,), mean_h: float = 1.0) -> list[Incident]:
    """Each pool has machines, or none, for an hour in the mean."""
    random, found = Random(seed), list[Incident]()
    for each in pools:
        at, has = 0.0, random.random() < 0.5
        while at < 20 * HOUR_S:
            found.append(MarketChange(at, each.pool_id, capacity=2.0 if has else 0.0))
            at, has = at + random.expovariate(1 / (mean_h * HOUR_S)), not has
    return found


def billed(told: Scenario, hours: float, deadline_h: float) -> float:
    """The whole bill of a job that ends in time, as a part of its hours on demand."""
    request = JobRequest(
        JobId(1), KIND, demands=(Demand("gpu", 1),), steps=hours * HOUR_S, deadline_at=deadline_h * HOUR_S, grace_s=20.0
    )
    result = Simulation(told).run([SimulatedJob(0.0, request, hours * HOUR_S)])
    assert result.violations == []
    assert [job.ended_at <= deadline_h * HOUR_S for job in result.jobs] == [True]
    return sum(result.bills.values()) / (hours * SURE.usd_per_h)


@pytest.mark.slow
@pytest.mark.parametrize("notice_s", [30.0, 0.0])
def test_slack_saves_money_where_spot_comes_and_goes(notice_s: float) -> None:
    """Eight hours of work in eleven: in time from every seed, and far cheaper than on demand alone in the mean."""
    parts = [billed(without_worth(comes_and_goes(seed), notice_s=notice_s), 8.0, 11.0) for seed in range(8)]
    assert sum(parts) / len(parts) < 0.75
    assert max(parts) < 1.1


@pytest.mark.slow
def test_two_zones_are_cheaper_than_one() -> None:
    other = replace(SPOT, pool_id=PoolId("box/spot/y"), zone="y")
    one, two = [], []
    for seed in range(6):
        told = without_worth(comes_and_goes(seed, (SPOT, other)))
        two.append(billed(replace(told, pools=(*told.pools, PoolModel(other, terms=RentalTerms(60.0)))), 8.0, 11.0))
        one.append(billed(without_worth(comes_and_goes(seed, (SPOT,))), 8.0, 11.0))
    assert sum(two) < 0.95 * sum(one)


def test_gangs_over_several_machines_are_rented_for_once() -> None:
    """Two gangs of three single machines reach their last moment at one instant: six machines come, and both start.

    Machines that are there already are not asked for again as the others come, and no request has the name of another.
    """
    told = scenario(PolicySpec("walras"), [])
    sure = replace(SURE, quota=20)
    told = replace(
        told,
        pools=(PoolModel(sure, terms=RentalTerms(120.0)),),
        rules=replace(told.rules, delay_usd_per_h=0.0),
    )
    rented: list[Rent] = []
    jobs = [
        SimulatedJob(
            0.0,
            JobRequest(
                JobId(row), KIND, demands=(Demand("gpu", 3),), steps=HOUR_S, deadline_at=3 * HOUR_S, grace_s=20.0
            ),
            HOUR_S,
        )
        for row in (1, 2)
    ]
    result = Simulation(told).run(jobs, lambda _, commands: rented.extend(c for c in commands if isinstance(c, Rent)))
    assert sum(rent.machines for rent in rented) == 6
    assert len({rent.token for rent in rented}) == len(rented)
    assert all(job.state is JobState.SUCCEEDED and job.ended_at <= 3 * HOUR_S for job in result.jobs)
    assert len(result.jobs) == 2


def test_the_cheapest_machines_that_suffice_are_rented() -> None:
    """Not the fastest ones: these are for when nothing else is in time any more."""
    fast = Pool(
        PoolId("fast/on_demand/z"), replace(BOX, name="fast", accelerator="fast"), Market.ON_DEMAND, "z", 30.0, 2
    )
    told = scenario(PolicySpec("walras"), [])
    truth = GroundTruth(
        {SpeedKey(KIND, "gpu"): 1.0, SpeedKey(KIND, "fast"): 2.0}, {KIND: AttemptCosts(10.0, 5.0, 300.0)}
    )
    told = replace(
        told,
        pools=(PoolModel(SURE, terms=RentalTerms(120.0)), PoolModel(fast, terms=RentalTerms(120.0))),
        truth=truth,
        rules=replace(told.rules, delay_usd_per_h=0.0),
    )
    core, rented = SchedulerCore(), list[Rent]()
    request = JobRequest(
        JobId(1),
        KIND,
        demands=(Demand("gpu", 1), Demand("fast", 1)),
        steps=HOUR_S,
        deadline_at=4 * HOUR_S,
        grace_s=20.0,
    )
    result = Simulation(told, core=core).run(
        [SimulatedJob(0.0, request, HOUR_S)],
        lambda _, commands: rented.extend(c for c in commands if isinstance(c, Rent)),
    )
    assert [rent.pool_id for rent in rented] == [SURE.pool_id]
    assert [job.ended_at <= 4 * HOUR_S for job in result.jobs] == [True]


def test_asking_often_whether_machines_are_idle_leaves_one_timer_for_each_pool() -> None:
    """A rented machine that is not worth its price, but works: every solve says so, and wakes nobody more often."""
    told = scenario(PolicySpec("walras"), [])
    told = replace(told, rules=replace(told.rules, delay_usd_per_h=0.0, resolve_min_s=1.0))
    jobs = [
        SimulatedJob(
            60.0 * row,
            JobRequest(JobId(row + 1), KIND, demands=(Demand("gpu", 1),), steps=HOUR_S, deadline_at=2 * HOUR_S),
            HOUR_S,
        )
        for row in range(2)
    ]
    woke: list[Event] = []
    result = Simulation(told).run(jobs, lambda event, _: woke.append(event) if isinstance(event, Woke) else None)
    assert len(result.jobs) == 2
    assert len(woke) < 10 * result.ended_at / told.rules.rent_keep_s
