"""Deadlines in virtual time: on spot while there is time, on demand when there is no more, and ended in time."""

from dataclasses import replace
from random import Random

import pytest

from optimizer.policy import PolicySpec
from scheduler.cloud.simulated import RentalTerms
from scheduler.core.commands import AttemptTransitioned, Command
from scheduler.core.conditions import AT_RISK, conditions
from scheduler.core.core import SchedulerCore
from scheduler.core.events import Event
from scheduler.core.rules import RoundRules
from simulator.engine import Limits
from simulator.faults import Incident, MarketChange
from simulator.job import SimulatedJob
from simulator.machines import PoolModel
from simulator.simulate import Scenario, Simulation
from simulator.truth import Costs, SpeedKey, Truth
from walras.cluster import Market, Pool, Shape
from walras.ids import JobId, Kind, PoolId
from walras.request import Demand, JobRequest
from walras.states import AttemptState, JobState

KIND = Kind("cnn")
BOX = Shape("box", "gpu", 1, 8.0, 2**33)
SPOT = Pool(PoolId("box/spot/z"), BOX, Market.SPOT, "z", 1.0, 2, notice_s=30.0, boot_s=60.0)
SURE = Pool(PoolId("box/on_demand/z"), BOX, Market.ON_DEMAND, "z", 3.0, 2, boot_s=120.0)
HOUR_S = 3600.0


def scenario(policy: PolicySpec, incidents: list[Incident], *, seed: int = 0, notice_s: float = 30.0) -> Scenario:
    spot = replace(SPOT, notice_s=notice_s)
    pools = (PoolModel(spot, terms=RentalTerms(60.0)), PoolModel(SURE, terms=RentalTerms(120.0)))
    truth = Truth({SpeedKey(KIND, "gpu"): 1.0}, {KIND: Costs(10.0, 5.0, 300.0)})
    rules = RoundRules(round_s=300.0, resolve_min_s=60.0, restart_default_s=20.0, min_runtime_s=10.0,
                       delay_usd_per_h=2.0, rent_keep_s=120.0, rent_backoff_s=10.0)  # fmt: skip
    return Scenario(pools, truth, policy, rules, incidents=tuple(incidents), seed=seed,
                    limits=Limits(until_at=20 * HOUR_S, max_events=100_000))  # fmt: skip


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
            said.extend(each.detail for each in conditions(core, JobId(1)) if each.type == AT_RISK)

    request = JobRequest(
        JobId(1), KIND, (Demand("gpu", 1),), steps=hours * HOUR_S, deadline_at=deadline_h * HOUR_S, grace_s=20.0
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


def test_a_job_that_nobody_rents_for_is_moved_at_the_last_moment() -> None:
    """The policy sees no worth in a machine (an hour of waiting costs nothing): the deadline alone rents it."""
    told = scenario(PolicySpec("walras"), [])
    told = replace(told, rules=replace(told.rules, delay_usd_per_h=0.0))
    ended_at, where, said = run(told, 1.0, 4.0)
    assert [pool for _, pool in where] == [SURE.pool_id]
    assert 2.4 * HOUR_S <= where[0][0] <= 3.0 * HOUR_S
    assert 3.5 * HOUR_S <= ended_at <= 4.0 * HOUR_S
    assert said[0].startswith("needs 1.0")


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("notice_s", [30.0, 0.0])
def test_no_deadline_is_missed_however_spot_comes_and_goes(seed: int, notice_s: float) -> None:
    """Random capacity of the spot market, with notice and without: always in time."""
    random, at, incidents = Random(seed), 0.0, list[Incident]()
    while at < 6 * HOUR_S:
        at += random.expovariate(1 / (0.4 * HOUR_S))
        incidents.append(MarketChange(at, SPOT.pool_id, capacity=random.choice((0.0, 0.0, 2.0))))
    hours = random.uniform(1.0, 3.0)
    deadline_h = hours * random.uniform(1.2, 2.0) + 0.3
    ended_at, _, _ = run(scenario(PolicySpec("walras"), incidents, seed=seed, notice_s=notice_s), hours, deadline_h)
    assert ended_at <= deadline_h * HOUR_S
