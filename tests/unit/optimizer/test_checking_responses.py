import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from optimizer.check.jobwise_problem import (
    ResponseMenu,
    cheapest_mixture,
    cheapest_mixture_at_least,
    largest_log_surplus,
)

_WORTH = st.integers(0, 20).map(float)


@st.composite
def menus(draw: st.DrawFn, least_cost: int = -10) -> ResponseMenu:
    """One job with up to five configurations."""
    size = draw(st.integers(1, 5))
    worth = [0.0, *(draw(_WORTH) for _ in range(size))]
    cost = [0.0, *(draw(st.integers(least_cost, 20).map(float)) for _ in range(size))]
    return ResponseMenu(np.array([worth]), np.array([cost]))


def by_linprog(menu: ResponseMenu, target: float, *, exactly: bool) -> float:
    row = menu.worth[:, 1:]
    limits = {"A_eq": row, "b_eq": [target]} if exactly else {}
    rows = np.vstack([np.ones_like(row), *([] if exactly else [-row])])
    bounds = [1.0, *([] if exactly else [-target])]
    found = linprog(menu.cost[0, 1:], A_ub=rows, b_ub=bounds, method="highs", **limits)
    return float(found.fun) if found.status == 0 else np.inf


@given(menus(), st.integers(0, 22).map(float))
@settings(deadline=None)
def test_the_cheapest_way_to_a_target_is_the_linear_programs(menu: ResponseMenu, target: float):
    """Exactly the target, and at least the target; out of reach is infinite."""
    np.testing.assert_allclose(
        cheapest_mixture(menu, np.array([target]))[0], by_linprog(menu, target, exactly=True), atol=1e-9
    )
    np.testing.assert_allclose(
        cheapest_mixture_at_least(menu, np.array([target]))[0], by_linprog(menu, target, exactly=False), atol=1e-9
    )


@given(menus(least_cost=0), st.sampled_from([0.0, 0.5, 1.0, 7.0]))
@settings(deadline=None)
def test_the_best_logarithm_is_that_of_a_fine_search(menu: ResponseMenu, weight: float):
    """Over every utility that the job can reach, at its cheapest cost."""
    most = float(menu.most[0])
    found = largest_log_surplus(menu, np.array([weight]))[0]
    if weight == 0 or most == 0:
        assert found == (0.0 if weight == 0 else -np.inf)
        return

    grid = np.unique(np.concatenate([np.linspace(most / 20_000, most, 20_000), menu.worth[0][menu.worth[0] > 0]]))
    table = ResponseMenu(np.repeat(menu.worth, len(grid), axis=0), np.repeat(menu.cost, len(grid), axis=0))
    searched = float((weight * np.log(grid) - cheapest_mixture(table, grid)).max())
    assert searched - 1e-9 <= found <= searched + 1e-3
