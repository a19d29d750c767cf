"""Jobs that were given machines which stay, for their deadlines' sake: they end there, if the machines come."""

from dataclasses import replace
from random import Random

import pytest

from optimizer.policy import PolicySpec
from scheduler.core.commands import AttemptTransitioned, Command
from scheduler.core.core import SchedulerCore
from scheduler.core.events import Event
from scheduler.core.rules import RoundRules
from scheduler.providers.simulated_cloud import RentalTerms
from simulator.engine import RunLimits
from simulator.faults import Incident, MarketChange
from simulator.ground_truth import AttemptCosts, GroundTruth, SpeedKey
from simulator.machines import PoolModel
from simulator.simulated_jobs import SimulatedJob
from simulator.simulation import Scenario, Simulation, SimulationResult
from walras.cluster import Market, Pool, PoolId, Shape
from walras.job_request import Demand, JobId, JobRequest, Kind
from walras.states import AttemptState, JobState

KIND = Kind("cnn")
HOUR_S = 3600.0
BOX = Shape("box", "gpu", 1, 8.0, 2**33)
FAST = replace(BOX, name="fast", accelerator="fast")
SPOT = Pool(PoolId("box/spot/z"), BOX, Market.SPOT, "z", 1.0, 3, notice_s=30.0, boot_s=60.0)
SURE = Pool(PoolId("box/on_demand/z"), BOX, Market.ON_DEMAND, "z", 3.0, 8, boot_s=120.0)
DEAR = Pool(PoolId("fast/on_demand/z"), FAST, Market.ON_DEMAND, "z", 30.0, 8, boot_s=120.0)


def scenario(policy: str, incidents: list[Incident], *, sure_machines: float = 100.0) -> Scenario:
    pools = (
        PoolModel(SPOT, terms=RentalTerms(60.0)),
        PoolModel(SURE, terms=RentalTerms(120.0, capacity=sure_machines)),
        PoolModel(DEAR, terms=RentalTerms(120.0)),
    )
    truth = GroundTruth(
        {SpeedKey(KIND, "gpu"): 1.0, SpeedKey(KIND, "fast"): 2.0}, {KIND: AttemptCosts(10.0, 5.0, 300.0)}
    )
    rules = RoundRules(round_s=300.0, resolve_min_s=60.0, restart_default_s=20.0, min_runtime_s=10.0,
                       delay_usd_per_h=2.0, rent_keep_s=120.0, rent_backoff_s=10.0)  # fmt: skip
    return Scenario(pools, truth, PolicySpec(policy), rules, incidents=tuple(incidents),
                    limits=RunLimits(until_at=30 * HOUR_S, max_events=200_000))  # fmt: skip


def wanted(number: int, at: float, hours: float, in_hours: float) -> SimulatedJob:
    request = JobRequest(
        JobId(number), KIND, demands=(Demand("gpu", 1), Demand("fast", 1)), steps=hours * HOUR_S,
        deadline_at=at + in_hours * HOUR_S, grace_s=20.0,
    )  # fmt: skip
    return SimulatedJob(at, request, hours * HOUR_S)


def run(told: Scenario, jobs: list[SimulatedJob]) -> tuple[SimulationResult, set[JobId], list[str]]:
    """What came of it, who was secured, and who was asked to leave machines that stay."""
    core, settled, moved = SchedulerCore(), set[JobId](), list[str]()

    def watch(event: Event, commands: list[Command]) -> None:
        for command in commands:
            stops = isinstance(command, AttemptTransitioned) and command.state is AttemptState.STOPPING
            if stops and command.job_id in settled:
                moved.append(f"{command.job_id} at {event.at:.0f}: {command.reason}")
        ledger = core.ledger
        for job_id in core.cycle.deadlines.secured & ledger.jobs.keys():
            job = ledger.jobs[job_id]
            if job.holds and int(ledger.columns.pool[job.slot]) == job.deadline_pool and job.revoked is None:
                settled.add(job_id)

    result = Simulation(told, core=core).run(jobs, watch)
    assert result.violations == []
    return result, settled, moved


@pytest.mark.parametrize("policy", ["walras", "max_min_fairness"])
@pytest.mark.parametrize("seed", range(4))
def test_whoever_was_moved_to_machines_that_stay_ends_there(seed: int, policy: str) -> None:
    """Spot comes back, prices move, others wait: nothing takes it away again, and every deadline is held."""
    random, at, incidents = Random(seed), 0.0, list[Incident]()
    while at < 12 * HOUR_S:
        at += random.expovariate(1 / (0.3 * HOUR_S))
        pool, low, high = random.choice(((SPOT, 0.2, 2.0), (SURE, 2.0, 4.0), (DEAR, 3.0, 40.0)))
        if pool is SPOT and random.random() < 0.5:
            incidents.append(MarketChange(at, SPOT.pool_id, capacity=random.choice((0.0, 1.0, 3.0))))
        else:
            incidents.append(MarketChange(at, pool.pool_id, usd_per_h=random.uniform(low, high)))
    jobs = []
    for number in range(1, 9):
        hours = random.uniform(0.5, 2.0)
        jobs.append(wanted(number, random.uniform(0.0, 4.0) * HOUR_S, hours, hours * random.uniform(0.8, 2.0) + 0.3))
    result, settled, moved = run(scenario(policy, incidents), sorted(jobs, key=lambda job: job.at))
    assert settled
    assert moved == []
    deadlines = {job.request.job_id: job.request.deadline_at for job in jobs}
    assert all(job.state is JobState.SUCCEEDED and job.ended_at <= deadlines[job.job_id] for job in result.jobs)
    assert len(result.jobs) == len(jobs)


def test_machines_that_do_not_come_are_not_waited_for_until_it_is_too_late() -> None:
    """The cheapest that suffice are not to be had: while others would still be in time, these are rented."""
    told = scenario("walras", [MarketChange(0.0, SPOT.pool_id, capacity=0.0)], sure_machines=0.0)
    told = replace(told, rules=replace(told.rules, delay_usd_per_h=0.0))
    job = wanted(1, 0.0, 1.0, 3.0)
    result, _, _ = run(told, [job])
    assert [each.state for each in result.jobs] == [JobState.SUCCEEDED]
    assert result.jobs[0].ended_at <= job.request.deadline_at
    assert set(result.jobs[0].accelerator_s) == {"fast"}
