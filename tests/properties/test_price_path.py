"""The price path against general solvers, on any small market."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markets import exact, levels, markets, nashes, prices_of, totals

from benchmarks.instances import optimality_gap
from optimizer.classes.class_problem import ClassProblem, ClassSolution, MaxMin, MaxSum, NashWelfare, Objective
from optimizer.decision import Status
from optimizer.lp.dual_newton.dual_bound import dual_bound
from optimizer.lp.dual_newton.dual_task import class_worth
from optimizer.lp.dual_newton.price_solver import SolveLimits, solve_by_prices

_SETTINGS = settings(max_examples=40, deadline=None)
_GAP = 1e-4


def _held(market: ClassProblem, objective: Objective, solution: ClassSolution) -> None:
    """Everything that a solution claims about itself, recomputed."""
    x = solution.x
    assert (x >= 0).all()
    assert (np.bincount(market.owner, weights=x, minlength=market.classes) <= 1 + 1e-12).all()
    assert (market.used(x) <= market.capacity * (1 + 1e-12)).all()
    assert (solution.prices >= 0).all()
    assert solution.bound >= dual_bound(market, objective, solution.prices) - 1e-9 * max(1.0, abs(solution.bound))
    worth = class_worth(market, objective.worth, x)
    match objective:
        case MaxSum():
            assert (worth >= objective.floor * (1 - 1e-9)).all()
            assert np.isclose((objective.value * market.size[market.owner]) @ x, solution.objective, atol=1e-9)
        case MaxMin():
            assert (worth >= objective.targets.at(solution.objective)[0] * (1 - 1e-9) - 1e-12).all()
        case NashWelfare():
            heavy = objective.weight > 0
            total = (market.size * objective.weight)[heavy] @ np.log(worth[heavy])
            assert np.isclose(total, solution.objective, atol=1e-8)


def _agrees(market: ClassProblem, objective: Objective) -> None:
    found = exact(market, objective)
    solution = solve_by_prices(market, objective)
    if solution.status is Status.EMPTY:
        return
    if found.objective is None:
        assert solution.status is Status.INFEASIBLE
        return
    slack = 1e-6 * max(1.0, abs(found.objective))
    assert solution.bound >= found.objective - slack
    if solution.status is Status.WORK_LIMIT:  # a few classes leave no smooth path; such markets are solved exactly
        assert solution.objective <= found.objective + slack
        return
    assert solution.status is Status.OPTIMAL
    _held(market, objective, solution)
    assert optimality_gap(market, objective, solution.objective, found.objective) <= _GAP + 1e-6


@given(st.data())
@_SETTINGS
def test_totals_agree_with_a_linear_program(data: st.DataObject) -> None:
    """The best total is found within the gap, floors or not; floors that do not fit together are called infeasible."""
    market, worth = data.draw(markets())
    _agrees(market, data.draw(totals(market, worth, floors=data.draw(st.booleans()))))


@pytest.mark.slow
@given(st.data())
@_SETTINGS
def test_levels_agree_with_linear_programs(data: st.DataObject) -> None:
    """The highest level is found within the gap, whether targets are linear, convex or capped."""
    market, worth = data.draw(markets())
    _agrees(market, data.draw(levels(market, worth)))


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_nash_agrees_with_an_exponential_cone_program(data: st.DataObject) -> None:
    """The best product of utilities is found within the gap."""
    market, worth = data.draw(markets(filled=True))
    _agrees(market, data.draw(nashes(market, worth)))


def _any_objective(data: st.DataObject, market: ClassProblem, worth: np.ndarray) -> Objective:
    kind = data.draw(st.sampled_from(["total", "level", "nash"]))
    if kind == "total":
        return data.draw(totals(market, worth, floors=data.draw(st.booleans())))
    return data.draw(levels(market, worth) if kind == "level" else nashes(market, worth))


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_the_same_market_gives_the_same_bits(data: st.DataObject) -> None:
    """A solve is a function of its arguments."""
    market, worth = data.draw(markets(filled=True))
    objective = _any_objective(data, market, worth)
    once, again = solve_by_prices(market, objective), solve_by_prices(market, objective)
    assert (once.objective, once.bound, once.work) == (again.objective, again.bound, again.work)
    assert np.array_equal(once.x, again.x)
    assert np.array_equal(once.prices, again.prices)


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_splitting_a_class_changes_nothing(data: st.DataObject) -> None:
    """A class of n members and two classes of n/2 alike are worth the same, within the gap."""
    market, worth = data.draw(markets(filled=True))
    value = np.array([data.draw(st.integers(0, 40)) / 4 for _ in worth])
    whole = solve_by_prices(market, MaxSum(value, worth, np.zeros(market.classes)))
    uses = len(market.use_row)
    twice = ClassProblem(
        size=np.tile(market.size / 2, 2), first=np.concatenate([market.first, market.first[1:] + market.columns]),
        use_first=np.concatenate([market.use_first, market.use_first[1:] + uses]), use_row=np.tile(market.use_row, 2),
        use_count=np.tile(market.use_count, 2), capacity=market.capacity,
    )  # fmt: skip
    split = solve_by_prices(twice, MaxSum(np.tile(value, 2), np.tile(worth, 2), np.zeros(2 * market.classes)))
    if Status.WORK_LIMIT in (whole.status, split.status):
        return
    assert abs(whole.objective - split.objective) <= _GAP * max(abs(whole.bound), 1e-12) * 2


def test_a_work_limit_is_an_outcome() -> None:
    """With hardly any passes the answer is feasible, and its gap is stated."""
    rng = np.random.default_rng(0)
    jobs, pools = 200, 4
    market = ClassProblem(
        size=np.ones(jobs), first=np.arange(jobs + 1) * pools, use_first=np.arange(jobs * pools + 1),
        use_row=np.tile(np.arange(pools, dtype=np.int32), jobs), use_count=np.ones(jobs * pools),
        capacity=np.full(pools, 10.0),
    )  # fmt: skip
    value = rng.lognormal(0, 1, jobs * pools)
    objective = MaxSum(value, value, np.zeros(jobs))
    solution = solve_by_prices(market, objective, SolveLimits(passes=2))
    assert solution.status is Status.WORK_LIMIT
    assert solution.objective < solution.bound < np.inf
    _held(market, objective, solution)


_BOUND_SETTINGS = settings(max_examples=150, deadline=None)


def _above(bound: float, optimum: float, tolerance: float = 1e-7) -> bool:
    return bound >= optimum - tolerance * max(1.0, abs(optimum))


def _close(bound: float, optimum: float, tolerance: float) -> bool:
    return abs(bound - optimum) <= tolerance * max(1.0, abs(optimum))


@pytest.mark.parametrize(
    ("objectives", "tolerance"),
    [(partial(totals, floors=True), 1e-6), pytest.param(levels, 1e-5, marks=pytest.mark.slow)],
)
@given(st.data())
@_BOUND_SETTINGS
def test_nothing_exceeds_a_bound_and_the_best_prices_prove_the_optimum(
    objectives: Callable[..., st.SearchStrategy[Objective]], tolerance: float, data: st.DataObject
) -> None:
    """At any prices the bound holds, at the dual prices it is the optimum: of a total, and of levels with linear,
    convex and capped targets.
    """
    market, worth = data.draw(markets())
    objective = data.draw(objectives(market, worth))
    found = exact(market, objective)
    bound = dual_bound(market, objective, data.draw(prices_of(market)))
    if found.objective is not None:
        assert _above(bound, found.objective)
        assert _close(dual_bound(market, objective, found.prices), found.objective, tolerance)


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
@_BOUND_SETTINGS
def test_a_levels_bound_does_not_depend_on_the_unit_of_prices(data: st.DataObject) -> None:
    """Ten times the prices prove the same."""
    market, worth = data.draw(markets())
    objective, prices = data.draw(levels(market, worth)), data.draw(prices_of(market))
    assert np.isclose(dual_bound(market, objective, prices), dual_bound(market, objective, 10 * prices), rtol=1e-9)
