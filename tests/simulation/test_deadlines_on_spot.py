"""Deadlines in virtual time: on spot while there is time, on demand when there is no more, and ended in time.

Jobs that were given machines which stay, for their deadlines' sake, end there, if the machines come. Elastic jobs are
in time as well, and cheaper than at any size that is kept.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from random import Random

import pytest

from scheduler.core.commands import AttemptTransitioned, Command, Rent
from scheduler.core.core import SchedulerCore
from scheduler.core.events import Event, Woke
from scheduler.core.explain.job_conditions import AT_RISK, job_conditions
from scheduler.core.rules import RoundRules
from scheduler.world.attempts import SimulatedJob
from scheduler.world.machines import PoolModel
from simulator.faults import Incident, MarketChange
from simulator.ground_truth import SpeedKey
from simulator.simulation import Scenario, SimulationResult
from tests.simulation.rented_market import BOX, HOUR_S, KIND, SPOT, SURE, job, rented, run, scenario
from walras.cluster import Market, Pool, PoolId
from walras.job_request import JobId
from walras.states import AttemptState, JobState

FAST = replace(BOX, name="fast", accelerator="fast")
DEAR = Pool(PoolId("fast/on_demand/z"), FAST, Market.ON_DEMAND, "z", 30.0, 8, boot_s=120.0)
SPEEDS = {SpeedKey(KIND, "gpu"): 1.0, SpeedKey(KIND, "fast"): 2.0}
#: An hour of waiting costs nothing, unless a test says otherwise: the deadline alone rents a machine.
RULES = RoundRules(
    round_s=300.0, resolve_min_s=60.0, restart_default_s=20.0, min_runtime_s=10.0, delay_usd_per_h=0.0,
    rent_keep_s=120.0, rent_backoff_s=10.0,
)  # fmt: skip
NONE = (MarketChange(0.0, SPOT.pool_id, capacity=0.0),)


def markets(
    incidents: Sequence[Incident] = (),
    spot: Sequence[Pool] = (SPOT,),
    *more: PoolModel,
    policy: str = "walras",
    worth: float = 0.0,
) -> Scenario:
    """Spot, and machines on demand that stay; `worth`: of an hour of waiting."""
    rules = replace(RULES, delay_usd_per_h=worth)
    pools = [*map(rented, spot), *(more or [rented(SURE)])]
    return scenario(*pools, rules=rules, incidents=incidents, policy=policy, speeds=SPEEDS)


def in_time(result: SimulationResult, jobs: Sequence[SimulatedJob]) -> bool:
    due = {each.request.job_id: each.request.deadline_at for each in jobs}
    ended = {each.job_id: each.ended_at for each in result.jobs if each.state is JobState.SUCCEEDED}
    return all(ended.get(job_id, inf) <= at for job_id, at in due.items())


def placed(told: Scenario, hours: float, due_h: float) -> tuple[float, list[tuple[float, str]], list[str]]:
    """When a job ended, in time; where its attempts were; and its conditions on the way."""
    core, where, said = SchedulerCore(), list[tuple[float, str]](), list[str]()

    def watch(event: Event, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, AttemptTransitioned) and command.state is AttemptState.LEASED:
                assert command.placement is not None
                where.append((event.at, str(command.placement.pool_id)))
        if commands:
            said.extend(each.detail for each in job_conditions(core, JobId(1)) if each.type == AT_RISK)

    one = job(1, hours, due_h=due_h, grace_s=20.0)
    result = run(told, [one], watch, core)
    assert in_time(result, [one])
    return result.jobs[0].ended_at, where, said


def test_spot_that_disappears_is_left_for_on_demand_in_time() -> None:
    """Two hours of work, three and a half to do them; spot is gone after half an hour and never comes back."""
    gone = [MarketChange(0.5 * HOUR_S, SPOT.pool_id, capacity=0.0)]
    _, where, said = placed(markets(gone, worth=2.0), 2.0, 3.5)
    assert where[0][1] == SPOT.pool_id
    assert where[-1][1] == SURE.pool_id
    if said:
        assert f"on gpu ({SURE.pool_id})" in said[0]
        assert said[0].endswith(" left")


def test_a_job_that_nobody_rents_for_is_on_spot_while_there_is_any_or_moved_at_the_last_moment() -> None:
    ended_at, where, _ = placed(markets(), 1.0, 4.0)
    assert [pool for _, pool in where] == [SPOT.pool_id]
    assert where[0][0] < 300.0
    assert ended_at <= 1.2 * HOUR_S
    _, where, _ = placed(markets(NONE), 1.0, 4.0)
    assert [pool for _, pool in where] == [SURE.pool_id]
    assert 2.0 * HOUR_S <= where[0][0] <= 3.0 * HOUR_S


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
    placed(
        markets(incidents, [replace(SPOT, notice_s=notice_s)], worth=worth),
        hours,
        hours * random.uniform(1.2, 2.0) + 0.3,
    )


def billed(seed: int, *spot: Pool) -> float:
    """The whole bill of eight hours of work in eleven, ended in time, as a part of its hours on demand.

    Each spot pool has machines, or none, for an hour in the mean.
    """
    random, incidents = Random(seed), list[Incident]()
    for each in spot:
        at, has = 0.0, random.random() < 0.5
        while at < 20 * HOUR_S:
            incidents.append(MarketChange(at, each.pool_id, capacity=2.0 if has else 0.0))
            at, has = at + random.expovariate(1 / HOUR_S), not has
    jobs = [job(1, 8.0, due_h=11.0, grace_s=20.0)]
    result = run(markets(incidents, spot), jobs)
    assert in_time(result, jobs)
    return sum(result.bills.values()) / (8.0 * SURE.usd_per_h)


@pytest.mark.slow
@pytest.mark.parametrize("notice_s", [30.0, 0.0])
def test_slack_saves_money_where_spot_comes_and_goes(notice_s: float) -> None:
    """In time from every seed, and far cheaper than on demand alone in the mean."""
    parts = [billed(seed, replace(SPOT, notice_s=notice_s)) for seed in range(8)]
    assert sum(parts) / len(parts) < 0.75
    assert max(parts) < 1.1


@pytest.mark.slow
def test_two_zones_are_cheaper_than_one() -> None:
    other = replace(SPOT, pool_id=PoolId("box/spot/y"), zone="y")
    assert sum(billed(seed, SPOT, other) for seed in range(6)) < 0.95 * sum(billed(seed, SPOT) for seed in range(6))


def rents(told: Scenario, jobs: list[SimulatedJob]) -> list[Rent]:
    """What was rented until all had ended in time."""
    found: list[Rent] = []
    result = run(told, jobs, lambda _, commands: found.extend(each for each in commands if isinstance(each, Rent)))
    assert in_time(result, jobs)
    return found


def test_gangs_over_several_machines_are_rented_for_once() -> None:
    """Two gangs of three single machines reach their last moment at one instant: six machines come, and both start.

    Machines that are there already are not asked for again as the others come, and no request has the name of another.
    """
    jobs = [job(number, 1.0, due_h=3.0, gang=3, grace_s=20.0) for number in (1, 2)]
    rented_for = rents(markets((), (), rented(replace(SURE, quota=20))), jobs)
    assert sum(rent.machines for rent in rented_for) == 6
    assert len({rent.token for rent in rented_for}) == len(rented_for)


def test_the_cheapest_machines_that_suffice_are_rented_and_others_if_they_do_not_come() -> None:
    """Not the fastest ones: these are for when nothing else is in time any more, and rented while they still are."""
    pools = [rented(SURE), rented(DEAR)]
    one = [job(1, 1.0, due_h=4.0, types="gpu fast", grace_s=20.0)]
    assert [rent.pool_id for rent in rents(markets((), (), *pools), one)] == [SURE.pool_id]
    one = [job(1, 1.0, due_h=3.0, types="gpu fast", grace_s=20.0)]
    result = run(markets(NONE, (SPOT,), rented(SURE, capacity=0.0), rented(DEAR)), one)
    assert in_time(result, one)
    assert set(result.jobs[0].accelerator_s) == {"fast"}


def test_asking_often_whether_machines_are_idle_leaves_one_timer_for_each_pool() -> None:
    """A rented machine that is not worth its price, but works: every solve says so, and wakes nobody more often."""
    told = markets()
    told = replace(told, rules=replace(told.rules, resolve_min_s=1.0))
    woke: list[Event] = []
    jobs = [job(row + 1, 1.0, 60.0 * row, due_h=2.0) for row in range(2)]
    result = run(told, jobs, lambda event, _: woke.append(event) if isinstance(event, Woke) else None)
    assert len(result.jobs) == 2
    assert len(woke) < 10 * result.ended_at / told.rules.rent_keep_s


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
        hours, at = random.uniform(0.5, 2.0), random.uniform(0.0, 4.0) * HOUR_S
        jobs.append(
            job(number, hours, at, due_h=hours * random.uniform(0.8, 2.0) + 0.3, types="gpu fast", grace_s=20.0)
        )
    core, settled, moved = SchedulerCore(), set[JobId](), list[str]()

    def watch(event: Event, commands: list[Command]) -> None:
        for command in commands:
            stops = isinstance(command, AttemptTransitioned) and command.state is AttemptState.STOPPING
            if stops and command.job_id in settled:
                moved.append(f"{command.job_id} at {event.at:.0f}: {command.reason}")
        ledger = core.ledger
        for job_id in core.cycle.deadlines.secured & ledger.jobs.keys():
            held = ledger.jobs[job_id]
            if held.holds and int(ledger.columns.pool[held.slot]) == held.deadline_pool and held.revoked is None:
                settled.add(job_id)

    stays = [rented(replace(SURE, quota=8)), rented(DEAR)]
    result = run(markets(incidents, [replace(SPOT, quota=3)], *stays, policy=policy, worth=2.0), jobs, watch, core)
    assert settled
    assert moved == []
    assert in_time(result, jobs)


def elastic_usd(seed: int, sizes: tuple[int, ...], notice_s: float = 30.0) -> float:
    """USD of two hours of work on one machine in two hours and a half, in time, on a market that comes and goes."""
    random, at, incidents = Random(seed), 0.0, list[Incident]()
    while at < 3 * HOUR_S:
        price = random.choice((0.5, 1.0, 2.0))
        incidents.append(MarketChange(at, SPOT.pool_id, price, capacity=random.choice((0.0, 1.0, 2.0, 4.0))))
        at += random.expovariate(1 / (0.3 * HOUR_S))
    told = markets(incidents, [replace(SPOT, notice_s=notice_s)])
    truth = replace(told.truth, speeds={SpeedKey(KIND, "gpu", size): v for size, v in ((1, 1.0), (2, 1.75), (4, 3.0))})
    told = replace(told, truth=truth, rules=replace(told.rules, rent_keep_s=60.0))
    jobs = [job(1, 2.0, due_h=2.5, gang=sizes[0], sizes=sizes if len(sizes) > 1 else (), grace_s=20.0)]
    result = run(told, jobs)
    assert in_time(result, jobs)
    return sum(result.bills.values())


@pytest.mark.parametrize("notice_s", [30.0, 0.0])
def test_no_deadline_is_missed_however_prices_and_numbers_of_machines_change(notice_s: float) -> None:
    for seed in range(2):
        assert elastic_usd(seed, (1, 2, 4), notice_s) > 0


@pytest.mark.slow
def test_the_planned_size_is_cheaper_than_any_that_is_kept() -> None:
    """In the mean over seeds: each size is right on some markets only."""
    seeds = range(10, 50)
    planned = sum(elastic_usd(seed, (1, 2, 4)) for seed in seeds)
    assert planned < 0.95 * min(sum(elastic_usd(seed, (size,)) for seed in seeds) for size in (1, 2, 4))
