"""Limits of projects and users bind what is rented for them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fake_fleet import FakeFleet, job, pool
from problems import Setting, build

from optimizer.lp.exact_solver import solve_exactly
from optimizer.policy import PlanPolicy, PolicySpec
from optimizer.problem import Entities, EntityLimits, Problem
from optimizer.registry import make
from optimizer.renting.machine_rental import Rental, rent_machines
from optimizer.renting.market_plan import plan_in_market
from optimizer.renting.money_program import solve_money_program
from optimizer.renting.rental_limits import RentalLimits, without_forbidden
from optimizer.renting.rental_program import RentalProgram
from scheduler.core import events as ev
from scheduler.core.cycle.solve_requests import run_solve
from scheduler.core.rules import RoundRules
from scheduler.core.share_events import FLEET, EntityShare, ShareLimit, SharesDeclared
from tests.support.money_as_classes import as_class_problem
from walras.cluster import Market


def limited(most: float, pools: tuple[bool, ...] = (True, True), **changes: Any) -> Problem:
    """Four jobs of project 0, worth 5 USD/h each; machines of one accelerator cost 1, of two types."""
    setting = Setting([[1, 1]] * 4, [0, 0], rentable=[8, 8], usd_per_h=[1.0, 1.5], values=[5.0] * 4, **changes)
    entities = Entities(("p", "p/u"), np.ones(2), np.array([-1, 0]))
    problem = build(setting)
    jobs = replace(problem.jobs, entity=np.ones(4, dtype=np.int64))
    limits = EntityLimits(np.zeros(1, dtype=np.int64), np.array([most]), np.array([pools]))
    return replace(problem, jobs=jobs, entities=entities, limits=limits)


def rented(problem: Problem) -> Rental:
    found = rent_machines(problem, 0.0)
    assert found is not None
    return found


def test_no_machine_is_rented_that_a_limit_leaves_unused() -> None:
    """Of the fleet: two machines for four jobs, and what an accelerator more below the limit would gain."""
    assert rented(replace(limited(2.0), limits=None)).machines.tolist() == [4, 0]
    found = rented(limited(2.0))
    assert found.machines.tolist() == [2, 0]
    assert found.limit_prices.tolist() == pytest.approx([5.0 - 1.0])


def test_a_limit_of_one_pool_sends_the_others_elsewhere() -> None:
    """One there, three where it is dearer."""
    assert rented(limited(1.0, (True, False))).machines.tolist() == [1, 3]


def test_a_gang_larger_than_its_limit_has_nothing_rented() -> None:
    """A half of it pays for no machine; nor does the half gang that is left of a limit."""
    gangs: dict[str, Any] = {"gangs": [4.0] * 4, "machine_size": [4.0, 4.0]}
    assert rented(limited(2.0, **gangs)).machines.tolist() == [0, 0]
    assert rented(limited(6.0, **gangs)).machines.tolist() == [1, 0]
    problem = limited(2.0, (True, False), **gangs)
    problem = replace(problem, jobs=replace(problem.jobs, value_usd_per_h=np.full(4, 9.0)))
    assert rented(problem).machines.tolist() == [0, 2]


def test_what_runs_keeps_its_machines_below_a_limit_made_smaller() -> None:
    """Nothing is taken from those who run; nothing more is rented."""
    problem = limited(1.0, rented=[3, 0])
    problem = replace(problem, pools=replace(problem.pools, capacity=np.array([3.0, 0.0])))
    running = np.zeros(len(problem.columns), dtype=np.bool_)
    running[[0, 2, 4]] = True
    problem = replace(problem, columns=replace(problem.columns, running=running))
    assert rented(problem).machines.tolist() == [3, 0]


def test_what_riders_hold_on_owned_places_counts_against_the_limit() -> None:
    """A rider has the only owned place and half of the limit."""
    problem = limited(2.0)
    pools = replace(problem.pools, capacity=np.array([1.0, 0.0]))
    value = np.array([np.nan, 5.0, 5.0, 5.0])
    running = np.zeros(len(problem.columns), dtype=np.bool_)
    running[0] = True
    problem = replace(
        problem,
        pools=pools,
        jobs=replace(problem.jobs, value_usd_per_h=value, pinned=np.array([True, False, False, False])),
        columns=replace(problem.columns, running=running),
    )
    policy = make(PolicySpec("walras"))
    assert isinstance(policy, PlanPolicy)
    _, _, rental = plan_in_market(policy, problem, None, 0.0)
    assert rental is not None
    assert rental.machines.sum() == 1


def test_a_part_of_the_fleet_counts_of_the_largest_that_could_be_rented() -> None:
    """Or nobody could rent the first machine."""
    problem = replace(limited(0.0), limits=None)
    entities = replace(problem.entities, limit=np.array([0.125, 1.0]))
    assert rented(replace(problem, entities=entities)).machines.tolist() == [2, 0]


@pytest.mark.parametrize("seed", range(30))
def test_the_statement_and_the_engines_agree_with_limits(seed: int) -> None:
    """cvxpy, matrices and classes; and no single machine more or less pays."""
    random = np.random.default_rng(seed)
    jobs, pools = int(random.integers(2, 10)), 2
    problem = limited(float(random.integers(0, 9)), tuple(random.random(2) < 0.7))
    setting = Setting(
        random.uniform(0.5, 4.0, (jobs, pools)).round(3).tolist(), random.integers(0, 4, pools).tolist(),
        rentable=[6.0, 6.0], usd_per_h=random.uniform(0.1, 3.0, pools).round(3).tolist(),
        gangs=random.choice([1, 2, 4], jobs).tolist(), values=random.uniform(0.0, 8.0, jobs).round(3).tolist(),
    )  # fmt: skip
    made = build(setting)
    value = made.jobs.value_usd_per_h
    entity = random.integers(0, 2, jobs)
    made = replace(
        made, jobs=replace(made.jobs, entity=entity), entities=Entities(("p", "q"), np.ones(2), np.full(2, -1))
    )
    made = replace(made, limits=problem.limits)
    made = without_forbidden(made)
    most = np.full(pools, 6)
    program = RentalProgram(made, value, most, made.pools.usd_per_h)
    tiers = program.tiers(most)
    matrices = program.between(np.zeros(pools), most.astype(float))
    stated = solve_money_program(program.class_problem, program.gross, program.owned, tiers)
    assert matrices is not None
    assert stated is not None
    assert stated.net_usd_per_h == pytest.approx(matrices.net, abs=1e-6 * max(1.0, matrices.net))
    together, objective, paid = as_class_problem(program.class_problem, program.gross, program.owned, tiers)
    assert solve_exactly(together, objective).objective - paid == pytest.approx(matrices.net, abs=1e-5)
    limits = RentalLimits.of(made, value > 0)
    assert limits is not None
    assert len(matrices.limit_prices) == len(limits.most)


def test_a_core_rents_nothing_for_a_project_that_may_not_have_it() -> None:
    """Limits of the fleet, of a type and of a pool; without them a machine is asked for."""
    for limits in ((), (ShareLimit(FLEET, 1),), (ShareLimit("s", 1),), (ShareLimit("other", 1),)):
        fleet = FakeFleet()
        fleet.tell(ev.PolicyChanged(0.0, PolicySpec("walras"), RoundRules()))
        fleet.tell(ev.PoolDeclared(0.0, pool("s", 2, market=Market.ON_DEMAND, quota=3)))
        fleet.tell(SharesDeclared(0.0, (EntityShare("p", limits=limits),)))
        fleet.tell(ev.JobSubmitted(0.0, job(1, "s", 2, project="p", steps=1e6, value_usd_per_h=9.0)))
        while not fleet.solves:
            fleet.wake()
        question = fleet.solves[-1]
        fleet.tell(ev.Solved(fleet.at, question.request_id, run_solve(question), 0.1))
        asked = sum(each.machines for each in fleet.rents)
        binds = any(limit.scope in (FLEET, "s") for limit in limits)
        assert asked == (0 if binds else 1), limits
