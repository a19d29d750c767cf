"""One market, in virtual time: who is served where, what is rented for whom, and who pays."""

from dataclasses import replace
from math import inf
from random import Random

import pytest

from scheduler.core.commands import Command, Start
from scheduler.core.core import SchedulerCore
from scheduler.core.events import Event, JobSubmitted, Proposal, Solved
from scheduler.core.rules import RoundRules, StatedValue
from scheduler.world.attempts import AttemptCosts, SimulatedJob
from scheduler.world.machines import PoolModel
from simulator.faults import MarketChange
from simulator.ground_truth import SpeedKey
from simulator.simulation import Scenario, SimulationResult
from tests.simulation import rented_market
from tests.simulation.rented_market import BOX, HOUR_S, SPOT, SURE, rented
from walras.cluster import Market, Pool, PoolId
from walras.states import JobState

OWNED = Pool(PoolId("own/owned/z"), replace(BOX, name="own"), Market.OWNED, "z", 0.0, 0)
RULES = RoundRules(round_s=300.0, resolve_min_s=5.0, restart_default_s=5.0, rent_keep_s=300.0)


def job(number: int, hours: float, value: float | None = None, at: float = 0.0) -> SimulatedJob:
    project = "payer" if value else "rider"
    return rented_market.job(number, hours, at, value_usd_per_h=value, project=project)


def scenario(*pools: PoolModel, rules: RoundRules = RULES, incidents: tuple[MarketChange, ...] = ()) -> Scenario:
    return rented_market.scenario(*pools, rules=rules, incidents=incidents, costs=AttemptCosts(2.0, 1.0, 600.0))


def run(told: Scenario, jobs: list[SimulatedJob], until_h: float = 0.0) -> SimulationResult:
    """`until_h`: stop then, though jobs wait; 0: all jobs must end."""
    if until_h:
        told = replace(told, limits=replace(told.limits, until_at=until_h * HOUR_S))
    result = rented_market.run(told, jobs)
    assert all(each.state is JobState.SUCCEEDED for each in result.jobs)
    assert until_h or len(result.jobs) == len(jobs)
    return result


def completion_s(result: SimulationResult, first: int = 1, last: float = inf) -> list[float]:
    return [each.ended_at - each.submitted_at for each in result.jobs if first <= each.job_id <= last]


# ------------------------------------------------------------------------------------------------ fallback


def without_spot(hours: float, *jobs: SimulatedJob) -> SimulationResult:
    """Spot has nothing for so long."""
    back = MarketChange(hours * HOUR_S, SPOT.pool_id, capacity=4.0)
    return run(scenario(rented(SPOT, capacity=0.0), rented(SURE), incidents=(back,)), list(jobs))


def test_a_pool_that_cannot_give_is_left_for_the_next_best_whose_price_is_below_the_value() -> None:
    """Jobs worth 5 USD/h run on demand at 3 meanwhile, at once; one worth 2 waits; a long one goes back to spot."""
    result = without_spot(12.0, job(1, 1.0, 5.0), job(2, 1.0, 5.0))
    assert max(completion_s(result)) <= 1.2 * HOUR_S
    assert result.bills[SURE.pool_id] > 0
    result = without_spot(2.0, job(1, 1.0, 2.0))
    assert result.bills.get(SURE.pool_id, 0.0) == 0.0
    assert min(completion_s(result)) >= 2 * HOUR_S
    result = without_spot(2.0, job(1, 10.0, 5.0))
    assert max(completion_s(result)) <= 10.2 * HOUR_S
    assert result.bills[SURE.pool_id] <= 3.0 * 3.0
    assert result.bills[SPOT.pool_id] >= 1.0 * 6.5


# ------------------------------------------------------------------------------------------------ riders


def test_who_states_no_value_takes_no_machine_that_a_payer_rents() -> None:
    """A job worth 5 USD/h has a machine rented at 3; three jobs without value were there before it."""
    told = scenario(rented(replace(SURE, quota=1)))
    alone = run(told, [job(1, 2.0, 5.0)], until_h=5.0)
    result = run(told, [job(1, 2.0, 5.0), *(job(number, 1.0) for number in (2, 3, 4))], until_h=5.0)
    assert completion_s(result, 1, 1)[0] <= 1.05 * completion_s(alone, 1, 1)[0]
    assert result.bills[SURE.pool_id] <= 1.1 * alone.bills[SURE.pool_id]  # nobody else is a reason to keep it


def test_sixty_riders_delay_payers_by_a_twentieth_at_most() -> None:
    """Payers of all lengths, four machines to rent and two that are owned, on which everybody has a right."""
    for seed in range(2):
        random = Random(seed)
        payers = [job(n, random.uniform(0.2, 1.5), 5.0, random.uniform(0, 4 * HOUR_S)) for n in range(1, 13)]
        riders = [job(n, random.uniform(0.2, 1.5), None, random.uniform(0, 2 * HOUR_S)) for n in range(101, 161)]
        told = scenario(rented(replace(SURE, quota=12)))
        alone = completion_s(run(told, payers, until_h=20.0), last=100)
        beside = completion_s(run(told, payers + riders, until_h=20.0), last=100)
        assert sum(beside) <= 1.05 * sum(alone)


def test_riders_use_what_is_paid_for_and_not_wanted_and_hold_nothing_up() -> None:
    """An hour is paid for, the payer needs a third of it: riders have the rest, then the machine goes."""
    told = scenario(rented(replace(SURE, quota=1, billing_step_s=HOUR_S)))
    result = run(told, [job(1, 0.4, 5.0), job(2, 0.2), job(3, 3.0)], until_h=5.0)
    ended = {each.job_id: each.ended_at for each in result.jobs}
    assert set(ended) == {1, 2}
    assert ended[2] <= 0.75 * HOUR_S
    assert result.bills[SURE.pool_id] == pytest.approx(3.0)


def test_an_elastic_job_pays_for_what_it_gains_with_so_few() -> None:
    """Its hour is worth 6 USD with four accelerators, which are owned and taken: with one it gains a quarter of that,
    and rides for it on a machine at 3 that is paid for until the hour is over.
    """
    four = Pool(PoolId("own/owned/z"), replace(BOX, name="own", accelerators=4), Market.OWNED, "z")
    speeds = {SpeedKey(rented_market.KIND, "gpu", count): float(count) for count in (1, 2, 4)}
    pools = PoolModel(four, 1), rented(replace(SURE, quota=1, billing_step_s=HOUR_S))
    told = rented_market.scenario(*pools, rules=RULES, speeds=speeds)
    all_four = rented_market.job(1, 4.0, gang=4, preemptible=False)
    elastic = rented_market.job(3, 0.3, 60.0, value_usd_per_h=6.0, sizes=(1, 2, 4))
    result = run(told, [all_four, job(2, 0.3, 5.0), elastic], until_h=5.0)
    usd = {each.job_id: each.usd for each in result.jobs}
    assert 0.3 <= usd[3] <= 1.5 * 0.35


def test_an_elastic_job_that_is_late_takes_a_smaller_place_beside_a_full_quota() -> None:
    """It was promised four rented accelerators, which a payer keeps for ten hours; an owned one is free at 1 h."""
    four = replace(SPOT, shape=replace(BOX, accelerators=4), quota=1)
    speeds = {SpeedKey(rented_market.KIND, "gpu", count): float(count) for count in (1, 2, 4)}
    told = rented_market.scenario(PoolModel(OWNED, 1), rented(four), rules=RULES, speeds=speeds)
    payer = rented_market.job(1, 40.0, gang=4, value_usd_per_h=100.0, preemptible=False)
    elastic = rented_market.job(2, 1.0, 600.0, due_h=0.5, value_usd_per_h=6.0, gang=4, sizes=(1, 2, 4))
    result = run(told, [payer, rented_market.job(3, 1.0, preemptible=False), elastic])
    assert completion_s(result, 2, 2)[0] <= 2.1 * HOUR_S


def test_no_paid_machine_idles_while_a_job_that_fits_it_waits() -> None:
    """A gang of eight works on an hourly machine until a quarter past; a job of two hours without value follows."""
    told = scenario(rented(replace(SURE, quota=1, billing_step_s=HOUR_S)))
    result = run(told, [job(1, 0.25, 5.0), job(2, 2.0, at=60.0)], until_h=3.0)
    held = sum(meter.held_s for meter in result.pools if meter.pool.pool_id == SURE.pool_id)
    assert held >= 0.9 * (HOUR_S - SURE.boot_s)


def test_who_states_no_value_is_billed_the_spare_rate_and_no_more() -> None:
    """Nothing by default; what the policy file says; never more than the market price."""
    pool, jobs = replace(SURE, quota=1, billing_step_s=HOUR_S), [job(1, 0.4, 5.0), job(2, 0.2)]
    for spare, usd_per_h in ((0.0, 0.0), (0.5, 0.5), (9.0, 3.0)):
        result = run(scenario(rented(pool), rules=replace(RULES, spare_usd_per_h=spare)), jobs, until_h=5.0)
        rider = next(each for each in result.jobs if each.job_id == 2)
        assert rider.usd == pytest.approx(usd_per_h * rider.accelerator_s["gpu"] / HOUR_S)
        assert next(each for each in result.jobs if each.job_id == 1).usd >= 3.0 * 0.4


# ------------------------------------------------------------------------------------------------ stated values


def test_a_machine_is_rented_for_the_value_that_a_project_states() -> None:
    """Nobody says what a job is worth, then its project does, then one of its users does not."""
    rules = (
        RULES,
        replace(RULES, values=(StatedValue("rider", 5.0),)),
        replace(RULES, values=(StatedValue("rider", 5.0), StatedValue("rider", 0.0, user="ada"))),
    )
    ended = [len(run(scenario(rented(SURE), rules=each), [job(1, 1.0)], until_h=5.0).jobs) for each in rules]
    assert ended == [0, 1, 1]
    theirs = SimulatedJob(0.0, replace(job(1, 1.0).request, user="ada"), HOUR_S)
    assert run(scenario(rented(SURE), rules=rules[2]), [theirs], until_h=5.0).jobs == []


# ------------------------------------------------------------------------------------------------ certificates


def test_no_plan_of_jobs_that_run_is_certified_as_nothing() -> None:
    """Jobs that start, or may not be stopped, are in the certificate: its objective and bound are above 0."""
    told = scenario(PoolModel(replace(OWNED, quota=0), machines=3), rented(SURE))
    jobs = [job(number, 0.2 + 0.1 * number, 5.0, 600.0 * number) for number in range(1, 8)]
    jobs = [replace(each, request=replace(each.request, preemptible=each.request.job_id % 2 == 0)) for each in jobs]
    seen: list[Proposal] = []

    def watch(event: Event, commands: list[Command]) -> None:
        if isinstance(event, Solved) and event.proposal.job_ids:
            seen.append(event.proposal)

    assert len(rented_market.run(told, jobs, watch).jobs) == len(jobs)
    assert len(seen) >= 20
    assert min(proposal.objective for proposal in seen) > 0
    assert all(proposal.objective <= proposal.bound * (1 + 1e-9) for proposal in seen)


# ------------------------------------------------------------------------------------------------ arrivals


def test_who_arrives_where_there_is_room_starts_in_the_same_step() -> None:
    """Half of them at least; before, all waited for the next plan, which is never further than a restart."""
    random, at, jobs = Random(1), 0.0, list[SimulatedJob]()
    for number in range(1, 41):
        at += random.expovariate(1 / 700.0)
        jobs.append(job(number, random.uniform(0.1, 0.8), at=at))
    core, room, admitted = SchedulerCore(), 0, 0

    def watch(event: Event, commands: list[Command]) -> None:
        nonlocal room, admitted
        if isinstance(event, JobSubmitted):
            starts = any(isinstance(each, Start) for each in commands)
            room += starts or core.ledger.fleet.pools[0].free > 0
            admitted += starts

    result = rented_market.run(scenario(PoolModel(OWNED, machines=3)), jobs, watch, core)
    assert len(result.jobs) == len(jobs)
    assert room >= 20
    assert admitted >= 0.5 * room


@pytest.mark.slow
@pytest.mark.parametrize("step_s", [0.0, HOUR_S])
def test_a_machine_that_riders_took_over_from_a_payer_is_given_back(step_s: float) -> None:
    """Payers and riders by chance on one owned and many rented machines: all payers end, and nothing is rented then."""
    for seed in range(3):
        random = Random(seed)
        payers = [job(n, random.uniform(0.2, 1.5), 5.0, random.uniform(0, 6 * HOUR_S)) for n in range(1, 13)]
        riders = [job(n, random.uniform(0.2, 1.5), None, random.uniform(0, 3 * HOUR_S)) for n in range(101, 141)]
        pool = replace(SURE, quota=12, billing_step_s=step_s)
        result = rented_market.run(scenario(PoolModel(OWNED, machines=1), rented(pool)), [*payers, *riders])
        assert {each.job_id for each in result.jobs} >= set(range(1, 13))
        assert sum(each.usd for each in result.jobs if each.job_id > 100) == 0.0
        assert result.bills[pool.pool_id] <= 3.0 * (2 * sum(each.request.steps or 0 for each in payers) / HOUR_S + 12)


def test_a_rider_that_cannot_be_stopped_has_no_paid_machine() -> None:
    """It would hold up who pays, and keep the machine. One that can be stopped rides."""
    told = scenario(rented(replace(SURE, quota=1, billing_step_s=HOUR_S)))
    for preemptible, ended in ((False, {1}), (True, {1, 2})):
        rider = job(2, 0.2)
        rider = replace(rider, request=replace(rider.request, preemptible=preemptible))
        result = run(told, [job(1, 0.4, 5.0), rider], until_h=5.0)
        assert {each.job_id for each in result.jobs} == ended
