"""The program of money three ways: stated in cvxpy, as matrices for HiGHS, and over classes, by prices."""

from dataclasses import replace

import numpy as np
import pytest
from problems import Setting, build

from optimizer.lp.dual_newton.price_solver import solve_by_prices
from optimizer.lp.exact_solver import solve_exactly
from optimizer.problem import Problem
from optimizer.renting import rental_program
from optimizer.renting.machine_rental import rent_machines
from optimizer.renting.money_program import solve_money_program
from optimizer.renting.rental_program import RentalProgram
from tests.support.money_as_classes import as_class_problem

SAME = 1e-6


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
    assert by_matrices is not None
    stated = solve_money_program(program.class_problem, program.gross, program.owned, tiers)
    assert stated is not None
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
    assert rental is not None
    assert rental.path == "cvxpy/highs"
    random = np.random.default_rng(0)
    many = build(Setting(random.uniform(1, 2, (400, 8)).tolist(), [1] * 8, rentable=[0] * 7 + [8], usd_per_h=[1.0] * 8))
    rental = rent_machines(many, 2.0)
    assert rental is not None
    assert rental.path == "highs"
