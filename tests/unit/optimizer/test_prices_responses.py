"""What classes do at given prices, on examples that can be worked out by hand."""

import numpy as np
import pytest
from markets import CappedTargets, LinearTargets, market_of

from optimizer.classes.class_problem import ClassProblem, MaxMin, MaxSum, NashWelfare, Objective
from optimizer.lp.dual_newton.best_responses import (
    ClassChoice,
    cheapest_choice,
    logarithmic_choice,
    unreachable_classes,
)
from optimizer.lp.dual_newton.dual_bound import dual_bound

#: One class of two members with a slow column on row 0 and a fast one on row 1.
MARKET, _ = market_of([2.0], [[[(0, 1.0)], [(1, 2.0)]]], [4.0, 4.0])
WORTH = np.array([1.0, 3.0])


def choice_demand(problem: ClassProblem, choice: ClassChoice) -> np.ndarray:
    """How much of each row the choices of all members take (r,)."""
    chosen = choice.column >= 0
    x = np.bincount(choice.column[chosen], weights=choice.share[chosen], minlength=problem.columns)
    return problem.used(x.astype(np.float64))


def worth_multipliers(problem: ClassProblem, objective: Objective, prices: np.ndarray, z: float) -> np.ndarray:
    """What a little more worth costs one member of each class at these prices (k,)."""
    cost = problem.cost(prices)
    match objective:
        case MaxSum():
            return cheapest_choice(problem, objective.worth, cost - objective.value, objective.floor).slope
        case NashWelfare():
            return logarithmic_choice(problem, objective.worth, cost, objective.weight).slope
        case MaxMin():
            return cheapest_choice(problem, objective.worth, cost, objective.targets.at(z)[0]).slope


def test_a_cheap_column_serves_up_to_its_worth_and_then_mixes() -> None:
    """At prices 1 and 2 worth 2 costs 2.5: half the time slow, half the time fast."""
    choice = cheapest_choice(MARKET, WORTH, MARKET.cost(np.array([1.0, 2.0])), np.array([2.0]))
    assert choice.cost == pytest.approx([2.5])
    assert choice.slope == pytest.approx([1.5])
    assert choice_demand(MARKET, choice) == pytest.approx([1.0, 2.0])


def test_a_dear_column_is_left_out() -> None:
    """At prices 3 and 1 the slow column lies above the line from idling to the fast one."""
    choice = cheapest_choice(MARKET, WORTH, MARKET.cost(np.array([3.0, 1.0])), np.array([1.5]))
    assert choice_demand(MARKET, choice) == pytest.approx([0.0, 2.0])
    assert choice.slope == pytest.approx([2 / 3])


def test_what_earns_runs_without_being_asked() -> None:
    """A column whose value is above its cost runs all the time, although the floor is 0."""
    choice = cheapest_choice(MARKET, WORTH, np.array([-1.0, -0.5]), np.zeros(1))
    assert choice.cost == pytest.approx([-1.0])
    assert choice_demand(MARKET, choice) == pytest.approx([2.0, 0.0])


def test_a_target_above_every_column_is_told_by_class() -> None:
    """The class is named; its choice is the best that there is."""
    choice = cheapest_choice(MARKET, WORTH, MARKET.cost(np.ones(2)), np.array([3.5]))
    assert not choice.reached[0]
    assert unreachable_classes(MARKET, WORTH, np.array([3.5])).tolist() == [0]


def test_a_logarithm_stops_where_its_margin_meets_the_price() -> None:
    """Weight 1 at slope 2/3 wants worth 1.5; free rows: the best column all the time."""
    dear = logarithmic_choice(MARKET, WORTH, MARKET.cost(np.array([3.0, 1.0])), np.ones(1))
    assert dear.slope == pytest.approx([2 / 3])
    assert dear.share[0].sum() == pytest.approx(0.5)
    free = logarithmic_choice(MARKET, WORTH, np.zeros(2), np.ones(1))
    assert choice_demand(MARKET, free) == pytest.approx([0.0, 4.0])


def test_weight_0_wants_nothing() -> None:
    """A class without weight takes nothing and adds nothing to the bound."""
    assert dual_bound(MARKET, NashWelfare(WORTH, np.zeros(1)), np.ones(2)) == pytest.approx(8.0)


def test_free_rows_bound_by_what_everybody_would_take() -> None:
    """At zero prices a bound is the sum of what each could have alone."""
    assert dual_bound(MARKET, MaxSum(WORTH, WORTH, np.zeros(1)), np.zeros(2)) == pytest.approx(6.0)
    assert dual_bound(MARKET, MaxMin(WORTH, LinearTargets(np.ones(1), 3.0)), np.zeros(2)) == 3.0


def test_floors_out_of_reach_bound_by_minus_infinity() -> None:
    """Alone, or together where the prices show it: 2 members cannot both have 3 with one unit of the fast row."""
    assert dual_bound(MARKET, MaxSum(WORTH, WORTH, np.array([4.0])), np.ones(2)) == -np.inf
    scarce, _ = market_of([2.0], [[[(0, 1.0)], [(1, 2.0)]]], [4.0, 1.0])
    assert dual_bound(scarce, MaxSum(WORTH, WORTH, np.array([3.0])), np.array([0.0, 1.0])) == -np.inf
    held = CappedTargets(np.zeros(1), np.zeros(1), np.array([3.0]), 1.0)
    assert dual_bound(scarce, MaxMin(WORTH, held), np.array([0.0, 1.0])) == -np.inf


def test_multipliers_price_a_little_more_worth() -> None:
    """They are the slopes at the target, at the floor, and weight over worth."""
    prices = np.array([1.0, 2.0])
    assert worth_multipliers(MARKET, MaxMin(WORTH, LinearTargets(np.ones(1), 3.0)), prices, 2.0) == pytest.approx([1.5])
    assert worth_multipliers(MARKET, MaxSum(0 * WORTH, WORTH, np.array([2.0])), prices, 0.0) == pytest.approx([1.5])
    assert worth_multipliers(MARKET, NashWelfare(WORTH, np.array([3.0])), prices, 0.0) == pytest.approx([1.5])


def test_a_class_without_columns_does_nothing() -> None:
    """It takes nothing, and reaches only what asks for nothing."""
    market, _ = market_of([1.0, 1.0], [[], [[(0, 1.0)]]], [1.0])
    choice = cheapest_choice(market, np.ones(1), market.cost(np.ones(1)), np.array([0.0, 1.0]))
    assert choice.reached.all()
    assert choice_demand(market, choice) == pytest.approx([1.0])
    assert unreachable_classes(market, np.ones(1), np.array([0.5, 1.0])).tolist() == [0]
