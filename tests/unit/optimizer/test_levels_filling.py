"""Levels that are filled: the lexicographic max-min, from any start, and step by step."""

import json
from dataclasses import replace

import numpy as np
import pytest
from problems import Setting, build
from scipy.optimize import linprog
from small_markets import market_and_worth

from optimizer.classes.class_problem import CappedTargets, ClassProblem, MaxMin, WeightTierRule, level_reached
from optimizer.decision import Status
from optimizer.lp.dual_newton.dual_bound import dual_bound
from optimizer.lp.engine_choice import COMPILED_FILLING_COLUMNS
from optimizer.lp.exact_solver import solve_exactly
from optimizer.lp.interior_point import progressive_filling
from optimizer.lp.interior_point.interior_kernels import LevelProgram, MehrotraStep
from optimizer.lp.interior_point.progressive_filling import (
    FillingStart,
    fill_levels,
    filling_start,
    find_max_level,
)
from optimizer.policies.fairness import MaxMinFairness
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
        np.array([1.0, 1.0]), np.array([0, 1, 2]), np.arange(3), np.zeros(2, np.int32), np.array([1.0, 4.0]),
        np.array([4.0]),
    )  # fmt: skip
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


step_kernels = pytest.importorskip("optimizer.lp.interior_point.interior_kernels")


@pytest.mark.parametrize("seed", range(30))
def test_a_compiled_step_is_the_same_step(seed: int):
    """Residuals, gap and the next point agree to rounding, on markets with ties and columns of two rows."""
    market, worth = market_and_worth(seed)
    rng = np.random.default_rng(seed)
    floor, rise = rng.uniform(0, 0.1, market.classes), rng.uniform(0.1, 1, market.classes)
    program = LevelProgram(market, worth, floor, rise)
    point = program.start
    for _ in range(6):
        plain, compiled = MehrotraStep(program, point), step_kernels.CompiledStep(program, point)
        assert compiled.error == pytest.approx(plain.error, rel=1e-9, abs=1e-12)
        assert compiled.gap == pytest.approx(plain.gap, rel=1e-9)
        if plain.error < 1e-4:  # close to the end the system is nearly singular, and rounding shows
            break
        following, same = plain.taken(), compiled.taken()
        assert same.theta == pytest.approx(following.theta, rel=1e-9, abs=1e-12)
        assert np.allclose(same.primal, following.primal, rtol=1e-7, atol=1e-10)
        assert np.allclose(same.dual, following.dual, rtol=1e-7, atol=1e-10)
        point = following


def test_a_row_used_twice_by_a_column_counts_twice():
    """Two uses of one row are one use of as much."""
    market, worth = market_and_worth(0)
    halved = replace(
        market, use_first=2 * market.use_first, use_row=np.repeat(market.use_row, 2),
        use_count=np.repeat(market.use_count, 2) / 2,
    )  # fmt: skip
    rise = np.ones(market.classes)
    steps = []
    for one in (market, halved):
        program = LevelProgram(one, worth, 0 * rise, rise)
        steps.append(step_kernels.CompiledStep(program, program.start).taken())
    assert np.allclose(steps[0].primal, steps[1].primal, rtol=1e-9)


@pytest.mark.parametrize("seed", range(5, 35))
@pytest.mark.parametrize("start", ["compiled", "its own prices", "prices of nearby", "prices of nowhere near"])
def test_a_start_changes_nothing(seed: int, start: str):
    """A filling that is one of many ends at the same levels and utilities as alone, wherever the last one ended."""
    market, worth = market_and_worth(seed)
    rule = WeightTierRule(np.ones(market.classes))
    alone = fill_levels(market, worth, rule)
    prices, rng = alone.levels[0].prices, np.random.default_rng(seed)
    known = {
        "compiled": None, "its own prices": prices, "prices of nearby": prices * rng.uniform(0.9, 1.1, len(prices)),
        "prices of nowhere near": rng.uniform(0, 1, len(prices)) ** 4,
    }[start]  # fmt: skip
    late = fill_levels(market, worth, rule, FillingStart(COMPILED_FILLING_COLUMNS if start == "compiled" else 0, known))
    assert len(late.levels) == len(alone.levels)
    assert late.status is alone.status
    assert late.utility == pytest.approx(alone.utility, rel=1e-7, abs=1e-8)
    assert [level.z for level in late.levels] == pytest.approx([level.z for level in alone.levels], rel=1e-7)
    assert [level.bound for level in late.levels] == pytest.approx([level.bound for level in alone.levels], rel=1e-7)


def test_a_solve_starts_where_the_last_one_ended():
    """Prices find their pools again; a pool that is new has none; another policy's memory says nothing."""
    problem = build(Setting([[1, 2], [2, 1], [3, 1]], [1, 1]))
    shares, memory = MaxMinFairness().decide(problem, None)
    memory = json.loads(json.dumps(MaxMinFairness().decide(problem, memory)[1]))
    pools, start = problem.pools, filling_start(memory, problem.pools)
    assert start.columns == 12
    first = shares.stages[0].prices
    assert start.prices / start.prices.sum() == pytest.approx(first / first.sum())
    other = replace(pools, pool_id=("new", pools.pool_id[1]))
    assert filling_start(memory, other).prices.tolist() == [0, start.prices[1]]
    assert filling_start(memory, replace(pools, pool_id=("new", "newer"))).prices is None
    for foreign in (None, [1], {"of": "another policy"}, {"columns": "many"}):
        assert filling_start(foreign, pools).columns == 0


def test_a_series_loads_compiled_code_once_it_has_had_enough_columns(monkeypatch: pytest.MonkeyPatch):
    """One column fewer than the threshold, this problem's included, runs as numpy."""
    ways = set()

    def noted(*problem, compiled):
        ways.add(compiled)
        return find_max_level(*problem, compiled=compiled)

    monkeypatch.setattr(progressive_filling, "find_max_level", noted)
    market, worth = market_and_worth(0)
    for missing in (1, 0):
        ways.clear()
        columns_before = COMPILED_FILLING_COLUMNS - market.columns - missing
        fill_levels(market, worth, WeightTierRule(np.ones(market.classes)), FillingStart(columns_before))
        assert ways == {not missing}
