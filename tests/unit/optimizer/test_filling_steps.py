"""Filling levels, compiled and not."""

import json
from dataclasses import replace

import numpy as np
import pytest
from problems import Setting, build
from small_markets import market_and_worth

from optimizer.classes.class_problem import CappedTargets, WeightTierRule
from optimizer.lp.engine_choice import COMPILED_FILLING_COLUMNS
from optimizer.lp.interior_point import progressive_filling
from optimizer.lp.interior_point.level_proofs import RestrictedTargets, cost_hulls
from optimizer.lp.interior_point.max_level import find_max_level, solve_interior
from optimizer.lp.interior_point.mehrotra_step import LevelProgram, MehrotraStep
from optimizer.lp.interior_point.progressive_filling import (
    FillingStart,
    fill_levels,
    filling_start,
)
from optimizer.policies.max_min_fairness import MaxMinFairness

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
        assert following is not None
        assert same is not None
        assert same.theta == pytest.approx(following.theta, rel=1e-9, abs=1e-12)
        assert np.allclose(same.primal, following.primal, rtol=1e-7, atol=1e-10)
        assert np.allclose(same.dual, following.dual, rtol=1e-7, atol=1e-10)
        point = following


def test_a_row_used_twice_by_a_column_counts_twice():
    """Two uses of one row are one use of as much."""
    market, worth = market_and_worth(0)
    halved = replace(
        market,
        use_first=2 * market.use_first,
        use_row=np.repeat(market.use_row, 2),
        use_count=np.repeat(market.use_count, 2) / 2,
    )
    rise = np.ones(market.classes)
    steps = []
    for one in (market, halved):
        program = LevelProgram(one, worth, 0 * rise, rise)
        steps.append(step_kernels.CompiledStep(program, program.start).taken())
    assert np.allclose(steps[0].primal, steps[1].primal, rtol=1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_the_level_is_the_same(seed: int):
    """Either way the program ends at the same level, to 1e-9."""
    market, worth = market_and_worth(seed)
    rise = np.ones(market.classes)
    program = LevelProgram(market, worth, 0 * rise, rise)
    plain, compiled = (solve_interior(program, compiled=which) for which in (False, True))
    assert compiled.theta == pytest.approx(plain.theta, rel=1e-9)
    assert max(plain.error, compiled.error) <= 1e-8


@pytest.mark.parametrize("seed", range(30))
def test_compiled_responses_are_the_same(seed: int):
    """Hulls have the same corners, and targets on, between and above them cost the same."""
    market, worth = market_and_worth(seed)
    rng = np.random.default_rng(seed)
    prices = rng.uniform(0, 1, market.rows) * (rng.random(market.rows) < 0.8)
    plain, compiled = (cost_hulls(market, worth, prices, compiled=which) for which in (False, True))
    best = np.maximum.reduceat(worth, market.first[:-1])
    for target in (0 * best, *(rng.uniform(0, 1.1, (8, market.classes)) * best), best, plain.worth[:, 1]):
        assert compiled.spent(target) == pytest.approx(plain.spent(target), rel=1e-12, abs=1e-14)
        assert compiled.excess(target) == pytest.approx(plain.excess(target), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("seed", range(30))
def test_compiled_proofs_are_the_same(seed: int):
    """Prices prove the same level out of reach, for targets with caps and floors, of all classes and of some."""
    market, worth = market_and_worth(seed)
    rng = np.random.default_rng(seed)
    prices, best = rng.uniform(0.1, 1, market.rows), np.maximum.reduceat(worth, market.first[:-1])
    slope = rng.uniform(0.5, 1, market.classes) * (rng.random(market.classes) < 0.8)
    targets = CappedTargets(slope, best, 0.1 * best)
    some = RestrictedTargets(targets, np.arange(market.classes), 0.9 * targets.highest)
    for asked in (targets, some):
        bounds = [cost_hulls(market, worth, prices, compiled=which).bound(asked, 0.0) for which in (False, True)]
        assert bounds[1] == pytest.approx(bounds[0], rel=1e-11, abs=1e-12)


@pytest.mark.parametrize("seed", range(5, 35))
@pytest.mark.parametrize("start", ["compiled", "its own prices", "prices of nearby", "prices of nowhere near"])
def test_a_start_changes_nothing(seed: int, start: str):
    """A filling that is one of many ends at the same levels and utilities as alone, wherever the last one ended."""
    market, worth = market_and_worth(seed)
    rule = WeightTierRule(np.ones(market.classes))
    alone = fill_levels(market, worth, rule)
    prices, rng = alone.levels[0].prices, np.random.default_rng(seed)
    known = {
        "compiled": None,
        "its own prices": prices,
        "prices of nearby": prices * rng.uniform(0.9, 1.1, len(prices)),
        "prices of nowhere near": rng.uniform(0, 1, len(prices)) ** 4,
    }[start]
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
    assert start.prices is not None
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
