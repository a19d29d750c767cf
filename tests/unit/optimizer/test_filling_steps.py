"""Steps of the interior point method, compiled and not."""

from dataclasses import replace

import numpy as np
import pytest
from small_markets import market_and_worth

from optimizer.filling import interior
from optimizer.filling.interior import RisingProgram
from optimizer.filling.step import Step

step_kernels = pytest.importorskip("optimizer.filling.step_kernels")


@pytest.mark.parametrize("seed", range(30))
def test_a_compiled_step_is_the_same_step(seed: int):
    """Residuals, gap and the next point agree to rounding, on markets with ties and columns of two rows."""
    market, worth = market_and_worth(seed)
    program = RisingProgram(market, worth)
    rng = np.random.default_rng(seed)
    floor, rise = rng.uniform(0, 0.1, market.classes), rng.uniform(0.1, 1, market.classes)
    program.solve(floor, rise, most=0)
    point = program._start()
    for _ in range(6):
        plain, compiled = Step(program, point), step_kernels.CompiledStep(program, point)
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
        program = RisingProgram(one, worth)
        program.solve(0 * rise, rise, most=0)
        steps.append(step_kernels.CompiledStep(program, program._start()).taken())
    assert np.allclose(steps[0].primal, steps[1].primal, rtol=1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_the_level_is_the_same(seed: int, monkeypatch):
    """Either way the program ends at the same level, to 1e-9."""
    market, worth = market_and_worth(seed)
    rise = np.ones(market.classes)
    levels = []
    for columns in (0, 10**9):
        monkeypatch.setattr(interior, "_COMPILED_FROM", columns)
        levels.append(RisingProgram(market, worth).solve(0 * rise, rise).theta)
    assert levels[0] == pytest.approx(levels[1], rel=1e-9)
