"""The program of a plan three ways: by prices and search, stated in cvxpy, and for whole gangs; with limits as rows."""

from dataclasses import replace

import numpy as np
import pytest
from problems import Setting, build

from optimizer.assignment.assignment_problem import AssignmentProblem
from optimizer.assignment.limit_rows import limited_entities
from optimizer.assignment.transportation import assign_by_search
from optimizer.assignment.whole_gang_bound import integral_bound, whole_assignment_bound
from optimizer.classes.segments import sum_by
from optimizer.decision import Plan
from optimizer.lp.dual_newton.price_solver import solve_by_prices
from optimizer.lp.exact_solver import solve_exactly
from optimizer.policies.walras import Walras
from optimizer.policy import PolicySpec
from optimizer.problem import EntityLimits, Problem
from optimizer.renting import rental_program
from optimizer.renting.machine_rental import rent_machines
from optimizer.renting.money_program import solve_money_program
from optimizer.renting.rental_program import RentalProgram
from optimizer.renting.usd_certificate import RELAXED, relaxed_optimum, with_relaxed_bound
from tests.support.money_as_classes import as_class_problem

SAME = 1e-6


def random_problem(seed: int) -> Problem:
    """Jobs of two projects, the second with two users; every other problem has limits, every third has no gangs."""
    random = np.random.default_rng(seed)
    jobs, pools = int(random.integers(2, 24)), int(random.integers(1, 4))
    gangs = np.ones(jobs, dtype=np.int64) if seed % 3 == 0 else random.choice([1, 2, 4], jobs)
    problem = build(
        Setting(
            random.uniform(0.5, 2.0, (jobs, pools)).tolist(), random.integers(4, 9, pools).tolist(),
            gangs=gangs.tolist(), entity=random.choice([0, 2, 3], jobs).tolist(), entity_weights=[1, 1, 1, 1],
            remaining_steps=random.uniform(1e3, 9e3, jobs).tolist(),
        )
    )  # fmt: skip
    limit = np.array([0.3, 0.6, 1.0, 0.25]) if seed % 2 else np.ones(4)
    return replace(problem, entities=replace(problem.entities, parent=np.array([-1, -1, 1, 1]), limit=limit))


def plan_of(problem: Problem) -> Plan:
    return Walras(slowdown=1e9).decide(problem, None)[0]


def question_of(problem: Problem, seed: int) -> AssignmentProblem:
    """The problem's columns at random values, with its limits as rows."""
    columns = problem.columns
    value = np.random.default_rng(seed).uniform(0.2, 3.0, len(columns))
    pools = problem.pools.capacity
    question = AssignmentProblem(columns.job, value, columns.use_column, columns.use_pool, columns.use_count, pools)
    limits = limited_entities(problem)
    nobody = np.full(len(problem.jobs), -1)
    return question if limits is None else limits.rows_beside(question, limits.left(nobody), np.arange(len(columns)))


@pytest.mark.parametrize("seeds", [range(first, first + 25) for first in range(0, 200, 25)], ids=str)
def test_the_statement_lies_within_the_certified_gap_of_the_prices(seeds: range) -> None:
    for seed in seeds:
        question = question_of(random_problem(seed), seed)
        searched, stated = assign_by_search(question), relaxed_optimum(question)
        assert stated is not None
        optimum, prices = stated
        scale = max(1.0, optimum)
        assert searched.value - SAME * scale <= optimum <= searched.bound + SAME * scale, f"seed {seed}"
        assert question.dual_bound(prices) == pytest.approx(optimum, abs=SAME * scale), f"seed {seed}"
        if len(question.use_column) == len(question.job) and np.all(question.use_count == 1):
            assert searched.value == pytest.approx(optimum, abs=SAME * scale), f"seed {seed}: both are exact"
        whole = whole_assignment_bound(question)
        assert searched.value - SAME * scale <= whole <= optimum + SAME * scale, f"seed {seed}"


@pytest.mark.parametrize("seed", range(1, 80, 2))
def test_a_plan_keeps_limits_of_projects_and_users(seed: int) -> None:
    problem = random_problem(seed)
    plan = plan_of(problem)
    held = sum_by(problem.jobs.entity, np.where(plan.column >= 0, problem.jobs.gang, 0.0), 4)
    held[1] += held[2] + held[3]
    assert np.all(held <= problem.entities.limit * problem.pools.capacity.sum() + 1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_a_plan_keeps_limits_of_types_and_pools(seed: int) -> None:
    """Beside those of the fleet; and its bound holds against the integer program with all of them as rows."""
    problem = random_problem(seed)
    random, pools = np.random.default_rng(seed), len(problem.pools)
    limits = EntityLimits(
        random.choice(4, 3, replace=False), random.integers(0, 5, 3).astype(float), random.random((3, pools)) < 0.6
    )
    problem = replace(problem, limits=limits)
    plan = plan_of(problem)
    below = {0: [0], 1: [1, 2, 3], 2: [2], 3: [3]}
    for entity, most, counts in zip(limits.entity, limits.accelerators, limits.pools, strict=True):
        columns = [column for column in plan.column if column >= 0]
        mine = [each for each in columns if problem.jobs.entity[problem.columns.job[each]] in below[int(entity)]]
        held = sum(problem.columns.use_count[each] for each in mine if counts[problem.columns.use_pool[each]])
        assert held <= most + 1e-9
    whole = integral_bound(problem, PolicySpec("walras"), plan)
    assert whole is not None
    assert plan.yardstick.objective <= whole + SAME <= plan.yardstick.bound + 2 * SAME


def test_what_a_project_may_not_have_of_a_type_is_planned_for_others() -> None:
    """Its short jobs would take all of the fast type; with a limit of one there the others have the rest."""
    setting = Setting(
        [[4.0, 1.0]] * 6, [3, 3], entity=[0, 0, 0, 1, 1, 1], entity_weights=[1, 1],
        remaining_steps=[1e3] * 3 + [9e3] * 3,
    )  # fmt: skip
    problem = build(setting)
    assert (plan_of(problem).column[:3] % 2 == 0).all(), "column 2 j is the fast type of job j"
    limits = EntityLimits(np.zeros(1, dtype=np.int64), np.ones(1), np.array([[True, False]]))
    plan = plan_of(replace(problem, limits=limits))
    fast = plan.column % 2 == 0
    assert (plan.column >= 0).all()
    assert (fast[:3].sum(), fast[3:].sum()) == (1, 2)


def test_a_limit_that_binds_has_a_price() -> None:
    """A machine is free, and yet a job of the limited project waits: the price of the limit says why."""
    setting = Setting(
        [[1.0]] * 4, [4], entity=[0, 0, 0, 1], entity_weights=[1, 1], remaining_steps=[1e3, 2e3, 3e3, 4e3]
    )
    problem = build(setting)
    problem = replace(problem, entities=replace(problem.entities, limit=np.array([0.5, 1.0])))
    plan = plan_of(problem)
    assert (plan.column >= 0).tolist() == [True, True, False, True]
    assert plan.quote.prices.tolist() == [0.0], "a machine is free"
    assert plan.surplus[2] <= plan.surplus[1], "who waits gains no more than who runs"
    assert plan.surplus[3] > 0
    (told,) = plan.quote.entities
    assert (told.name, told.guarantee) == (problem.entities.name[0], 0.0)
    assert told.limit > 0
    assert plan.yardstick.gap <= 0.05


def test_a_smaller_bound_names_who_proved_it() -> None:
    names, closer = set[str](), 0
    for seed in range(40):
        problem = random_problem(seed)
        plan = plan_of(problem)
        told = with_relaxed_bound(plan)
        assert told.yardstick.objective == plan.yardstick.objective <= told.yardstick.bound <= plan.yardstick.bound
        assert (RELAXED in told.yardstick.name) == (told.yardstick.bound < plan.yardstick.bound)
        assert told.quote is plan.quote
        names.add(told.yardstick.name)
        closer += told.yardstick.gap < 0.9 * plan.yardstick.gap
        whole = integral_bound(problem, PolicySpec("walras"), plan)
        assert whole is not None
        assert plan.yardstick.objective <= whole <= told.yardstick.bound + SAME
    assert len(names) == 2
    assert closer >= 3


def random_state(seed: int) -> tuple[Problem, np.ndarray, np.ndarray, np.ndarray]:
    """A problem, values of its jobs, most machines of each pool, and what one costs that is still to be fetched."""
    random = np.random.default_rng(seed)
    jobs, pools = int(random.integers(1, 13)), int(random.integers(1, 5))
    rates = np.round(random.uniform(0.0, 4.0, (jobs, pools)) * (random.random((jobs, pools)) < 0.8), 3)
    size = random.choice([1, 2, 4], pools)
    rented = size * random.integers(0, 3, pools)
    price = np.round(random.uniform(0.1, 4.0, pools), 3)
    owned = random.integers(0, 5, pools)
    setting = Setting(
        rates.tolist(), (owned + rented).tolist(), rentable=(size * 4).tolist(), rented=rented.tolist(),
        usd_per_h=price.tolist(), machine_size=size.tolist(), gangs=random.choice([1, 2, 4], jobs).tolist(),
    )  # fmt: skip
    problem = build(setting)
    prepaid = size * (random.random(pools) * (rented / size + 1)).astype(int)
    problem = replace(problem, pools=replace(problem.pools, prepaid=np.minimum(prepaid, rented).astype(float)))
    fetched = price * random.uniform(1.0, 1.4, pools)
    return problem, np.round(random.uniform(0.0, 6.0, jobs), 3), np.full(pools, 4), fetched


@pytest.mark.parametrize("seed", range(40))
def test_the_statement_and_the_engines_agree(seed: int) -> None:
    problem, value, most, fetched = random_state(seed)
    if not np.any((problem.columns.steps_per_s > 0) & (value[problem.columns.job] > 0)):
        return
    program = RentalProgram(problem, value, most, fetched)
    tiers = program.tiers(most)
    by_matrices = program.between(np.zeros(len(most)), most.astype(float))
    stated = solve_money_program(program.class_problem, program.gross, program.owned, tiers)
    scale = max(1.0, abs(by_matrices.net))
    assert stated.net_usd_per_h == pytest.approx(by_matrices.net, abs=SAME * scale)
    # The prices prove it: no plan at any counts is worth more than the dual bound at them.
    assert bound_at(program, stated.prices, tiers) == pytest.approx(by_matrices.net, abs=SAME * scale)
    together, objective, paid = as_class_problem(program.class_problem, program.gross, program.owned, tiers)
    exact = solve_exactly(together, objective)
    assert exact.objective - paid == pytest.approx(by_matrices.net, abs=SAME * scale)
    by_prices = solve_by_prices(together, objective)
    assert by_prices.objective - paid <= by_matrices.net + SAME * scale
    assert by_prices.bound - paid >= by_matrices.net - SAME * scale


def bound_at(program: RentalProgram, prices: np.ndarray, tiers: rental_program.RentedTiers) -> float:
    """What nobody can exceed at these prices: surpluses of classes, and of machines above what they cost."""
    classes = program.class_problem
    paid = classes.size[classes.owner] * classes.cost(prices)
    surplus = np.zeros(classes.classes)
    np.maximum.at(surplus, classes.owner, program.gross - paid)
    gains = tiers.prepaid * prices
    gains += tiers.held * np.maximum(prices - tiers.kept_usd_per_h, 0.0)
    gains += tiers.more * np.maximum(prices - tiers.fetched_usd_per_h, 0.0)
    return float(surplus.sum() + program.owned @ prices + gains.sum())


def test_renting_says_what_solved_it() -> None:
    """Stated by cvxpy up to the stated size, by matrices above."""
    state = build(Setting([[1, 1]] * 4, [1, 0], rentable=[0, 8], usd_per_h=[0, 1]))
    rental = rent_machines(state, 2.0)
    assert rental.path == "cvxpy/highs"
    random = np.random.default_rng(0)
    many = build(Setting(random.uniform(1, 2, (400, 8)).tolist(), [1] * 8, rentable=[0] * 7 + [8], usd_per_h=[1.0] * 8))
    rental = rent_machines(many, 2.0)
    assert rental.path == "highs"
