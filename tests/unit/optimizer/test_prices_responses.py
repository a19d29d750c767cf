"""What classes do at given prices, on examples that can be worked out by hand."""

import numpy as np
import pytest
from markets import CappedTargets, LinearTargets, market_of

from optimizer.market.objective import Level, Nash, Total
from optimizer.prices.bound import bound_at, multipliers
from optimizer.prices.responses import cheapest, demand, logarithmic, unreachable

#: One class of two members with a slow column on row 0 and a fast one on row 1.
MARKET, _ = market_of([2.0], [[[(0, 1.0)], [(1, 2.0)]]], [4.0, 4.0])
WORTH = np.array([1.0, 3.0])


def test_a_cheap_column_serves_up_to_its_worth_and_then_mixes() -> None:
    """At prices 1 and 2 worth 2 costs 2.5: half the time slow, half the time fast."""
    choice = cheapest(MARKET, WORTH, MARKET.cost(np.array([1.0, 2.0])), np.array([2.0]))
    assert choice.cost == pytest.approx([2.5])
    assert choice.slope == pytest.approx([1.5])
    assert demand(MARKET, choice) == pytest.approx([1.0, 2.0])


def test_a_dear_column_is_left_out() -> None:
    """At prices 3 and 1 the slow column lies above the line from idling to the fast one."""
    choice = cheapest(MARKET, WORTH, MARKET.cost(np.array([3.0, 1.0])), np.array([1.5]))
    assert demand(MARKET, choice) == pytest.approx([0.0, 2.0])
    assert choice.slope == pytest.approx([2 / 3])


def test_what_earns_runs_without_being_asked() -> None:
    """A column whose value is above its cost runs all the time, although the floor is 0."""
    choice = cheapest(MARKET, WORTH, np.array([-1.0, -0.5]), np.zeros(1))
    assert choice.cost == pytest.approx([-1.0])
    assert demand(MARKET, choice) == pytest.approx([2.0, 0.0])


def test_a_target_above_every_column_is_told_by_class() -> None:
    """The class is named; its choice is the best that there is."""
    choice = cheapest(MARKET, WORTH, MARKET.cost(np.ones(2)), np.array([3.5]))
    assert not choice.reached[0]
    assert unreachable(MARKET, WORTH, np.array([3.5])).tolist() == [0]


def test_a_logarithm_stops_where_its_margin_meets_the_price() -> None:
    """Weight 1 at slope 2/3 wants worth 1.5; free rows: the best column all the time."""
    dear = logarithmic(MARKET, WORTH, MARKET.cost(np.array([3.0, 1.0])), np.ones(1))
    assert dear.slope == pytest.approx([2 / 3])
    assert dear.share[0].sum() == pytest.approx(0.5)
    free = logarithmic(MARKET, WORTH, np.zeros(2), np.ones(1))
    assert demand(MARKET, free) == pytest.approx([0.0, 4.0])


def test_weight_0_wants_nothing() -> None:
    """A class without weight takes nothing and adds nothing to the bound."""
    assert bound_at(MARKET, Nash(WORTH, np.zeros(1)), np.ones(2)) == pytest.approx(8.0)


def test_free_rows_bound_by_what_everybody_would_take() -> None:
    """At zero prices a bound is the sum of what each could have alone."""
    assert bound_at(MARKET, Total(WORTH, WORTH, np.zeros(1)), np.zeros(2)) == pytest.approx(6.0)
    assert bound_at(MARKET, Level(WORTH, LinearTargets(np.ones(1), 3.0)), np.zeros(2)) == 3.0


def test_floors_out_of_reach_bound_by_minus_infinity() -> None:
    """Alone, or together where the prices show it: 2 members cannot both have 3 with one unit of the fast row."""
    assert bound_at(MARKET, Total(WORTH, WORTH, np.array([4.0])), np.ones(2)) == -np.inf
    scarce, _ = market_of([2.0], [[[(0, 1.0)], [(1, 2.0)]]], [4.0, 1.0])
    assert bound_at(scarce, Total(WORTH, WORTH, np.array([3.0])), np.array([0.0, 1.0])) == -np.inf
    held = CappedTargets(np.zeros(1), np.zeros(1), np.array([3.0]), 1.0)
    assert bound_at(scarce, Level(WORTH, held), np.array([0.0, 1.0])) == -np.inf


def test_multipliers_price_a_little_more_worth() -> None:
    """They are the slopes at the target, at the floor, and weight over worth."""
    prices = np.array([1.0, 2.0])
    assert multipliers(MARKET, Level(WORTH, LinearTargets(np.ones(1), 3.0)), prices, 2.0) == pytest.approx([1.5])
    assert multipliers(MARKET, Total(0 * WORTH, WORTH, np.array([2.0])), prices, 0.0) == pytest.approx([1.5])
    assert multipliers(MARKET, Nash(WORTH, np.array([3.0])), prices, 0.0) == pytest.approx([1.5])


def test_a_class_without_columns_does_nothing() -> None:
    """It takes nothing, and reaches only what asks for nothing."""
    market, _ = market_of([1.0, 1.0], [[], [[(0, 1.0)]]], [1.0])
    choice = cheapest(market, np.ones(1), market.cost(np.ones(1)), np.array([0.0, 1.0]))
    assert choice.reached.all()
    assert demand(market, choice) == pytest.approx([1.0])
    assert unreachable(market, np.ones(1), np.array([0.5, 1.0])).tolist() == [0]
