"""Bounds from prices hold at any prices, and are tight at the right ones."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markets import exact, levels, markets, nashes, prices_of, totals

from optimizer.lp.dual_newton.dual_bound import dual_bound

_SETTINGS = settings(max_examples=150, deadline=None)


def _above(bound: float, optimum: float, tolerance: float = 1e-7) -> bool:
    return bound >= optimum - tolerance * max(1.0, abs(optimum))


def _close(bound: float, optimum: float, tolerance: float = 1e-6) -> bool:
    return abs(bound - optimum) <= tolerance * max(1.0, abs(optimum))


@given(st.data())
@_SETTINGS
def test_no_total_exceeds_a_bound_and_the_best_prices_prove_the_optimum(data: st.DataObject) -> None:
    """At any prices the bound of a total holds; at the dual prices it is the optimum."""
    market, worth = data.draw(markets())
    objective = data.draw(totals(market, worth, floors=True))
    found = exact(market, objective)
    bound = dual_bound(market, objective, data.draw(prices_of(market)))
    if found.objective is not None:
        assert _above(bound, found.objective)
        assert _close(dual_bound(market, objective, found.prices), found.objective)


@pytest.mark.slow
@given(st.data())
@_SETTINGS
def test_no_level_exceeds_a_bound_and_the_best_prices_prove_the_optimum(data: st.DataObject) -> None:
    """The same for levels with linear, convex and capped targets."""
    market, worth = data.draw(markets())
    objective = data.draw(levels(market, worth))
    found = exact(market, objective)
    bound = dual_bound(market, objective, data.draw(prices_of(market)))
    if found.objective is not None:
        assert _above(bound, found.objective)
        assert _close(dual_bound(market, objective, found.prices), found.objective, 1e-5)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_no_nash_exceeds_a_bound_and_the_best_prices_prove_the_optimum(data: st.DataObject) -> None:
    """The same for weighted sums of logarithms."""
    market, worth = data.draw(markets(filled=True))
    objective = data.draw(nashes(market, worth))
    found = exact(market, objective)
    assert found.objective is not None
    assert _above(dual_bound(market, objective, data.draw(prices_of(market))), found.objective, 1e-6)
    assert _close(dual_bound(market, objective, found.prices), found.objective, 1e-5)


@given(st.data())
@_SETTINGS
def test_a_levels_bound_does_not_depend_on_the_unit_of_prices(data: st.DataObject) -> None:
    """Ten times the prices prove the same."""
    market, worth = data.draw(markets())
    objective, prices = data.draw(levels(market, worth)), data.draw(prices_of(market))
    assert np.isclose(dual_bound(market, objective, prices), dual_bound(market, objective, 10 * prices), rtol=1e-9)
