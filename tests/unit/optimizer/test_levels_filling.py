"""Levels over markets of classes against brute force: one program per level and per class."""

import numpy as np
import pytest
from scipy.optimize import linprog
from small_markets import market_and_worth

from optimizer.classes.class_problem import CappedTargets, ClassProblem, MaxMin, WeightTierRule, level_reached
from optimizer.decision import Status
from optimizer.lp.dual_newton.dual_bound import dual_bound
from optimizer.lp.exact_solver import solve_exactly
from optimizer.lp.interior_point.progressive_filling import fill_levels
from optimizer.problem import FloatArray


def brute(market: ClassProblem, worth: FloatArray, weight: FloatArray) -> FloatArray:
    """Utilities of the lexicographic max-min."""
    k, c, owner = market.classes, market.columns, market.owner
    utility, rows = np.zeros((k, c)), np.zeros((k + market.rows, c))
    utility[owner, np.arange(c)] = worth
    rows[owner, np.arange(c)] = 1
    column = np.repeat(np.arange(c), np.diff(market.use_first))
    np.add.at(rows, (k + market.use_row, column), market.use_count * market.size[owner[column]])

    def best(objective: FloatArray, slope: FloatArray, floor: FloatArray) -> float:
        reach = np.hstack((-utility, slope[:, None]))
        A = np.vstack((reach, np.hstack((rows, np.zeros((len(rows), 1))))))
        limits = np.concatenate((-floor, np.ones(k), market.capacity))
        return float(-linprog(-objective, A, limits, bounds=(0, None), method="highs").fun)

    fixed, active = np.zeros(k), weight > 0
    while active.any():
        z = best(np.append(np.zeros(c), 1.0), np.where(active, weight, 0.0), fixed * (1 - 1e-9))
        floor = np.where(active, weight * z, fixed) * (1 - 1e-9)
        for j in np.flatnonzero(active):
            if best(np.append(utility[j], 0.0), np.zeros(k), floor) <= weight[j] * z * (1 + 1e-6) + 1e-7:
                fixed[j], active[j] = weight[j] * z, False
    return fixed


@pytest.mark.parametrize("seed", range(40))
def test_filled_levels_are_the_lexicographic_max_min(seed: int):
    """Utilities agree with brute force to 1e-6, rows hold, and the first level is proved by its prices."""
    market, worth = market_and_worth(seed)
    weight = np.random.default_rng(seed).choice([1.0, 2.0, 4.0], market.classes)
    filling = fill_levels(market, worth, WeightTierRule(weight))
    expected = brute(market, worth, weight)
    assert filling.status is Status.OPTIMAL
    assert filling.utility == pytest.approx(expected, rel=1e-6, abs=1e-6 * max(1.0, expected.max()))
    assert (market.used(filling.x) <= market.capacity * (1 + 1e-12)).all()
    first = filling.levels[0]
    reached = level_reached(first.targets, np.where(first.active, filling.utility, np.inf), first.z)
    assert first.bound <= reached * (1 + 1e-8)
    assert dual_bound(market, MaxMin(worth, first.targets), first.prices) == pytest.approx(first.bound, rel=1e-8)


def test_a_job_that_fills_up_on_the_way_does_not_stop_the_level():
    """The first class is full at 1; the level goes on to 3 for the other one on the same row."""
    market = ClassProblem(
        np.array([1.0, 1.0]),
        np.array([0, 1, 2]),
        np.arange(3),
        np.zeros(2, np.int32),
        np.array([1.0, 4.0]),
        np.array([4.0]),
    )
    filling = fill_levels(market, np.array([1.0, 4.0]), WeightTierRule(np.ones(2)))
    assert filling.utility == pytest.approx([1, 3])


def test_weightless_classes_rise_equally_on_what_is_left():
    """The class with a weight takes 1 of 2; two without share the other."""
    market = ClassProblem(
        np.array([1.0, 2.0]), np.array([0, 1, 2]), np.arange(3), np.zeros(2, np.int32), np.ones(2), np.array([2.0])
    )
    assert fill_levels(market, np.ones(2), WeightTierRule(np.array([1.0, 0.0]))).utility == pytest.approx([1, 0.5])


def test_floors_that_cost_more_than_there_is_are_infeasible():
    """A program whose floors alone are out of reach ends with a status, and not with an error of the solver."""
    first, use_row = np.arange(3), np.zeros(2, dtype=np.int32)
    market = ClassProblem(np.ones(2), first, first, use_row, np.ones(2), np.array([1.0]))
    targets = CappedTargets(np.array([1.0, 0.0]), np.ones(2), np.array([0.0, 1.5]))
    assert solve_exactly(market, MaxMin(np.ones(2), targets)).status is Status.INFEASIBLE
