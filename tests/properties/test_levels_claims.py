"""What water filling promises: 500 random fleets for each claim."""

import numpy as np
import pytest

from optimizer.classes.class_problem import ClassProblem, WeightTierRule
from optimizer.lp.interior_point.progressive_filling import FillingResult, fill_levels
from optimizer.problem import FloatArray

FLEETS = 500


def fleet(seed: int) -> tuple[ClassProblem, FloatArray, FloatArray]:
    """Gangs of one of equal weight on two or three pools, at least as many as accelerators: market, speeds, worth."""
    rng = np.random.default_rng(seed)
    pools = int(rng.integers(2, 4))
    capacity = rng.integers(1, 3, pools).astype(float)
    jobs = int(capacity.sum()) + int(rng.integers(0, 4))
    speeds = rng.integers(1, 9, (jobs, pools)) / 2
    worth = speeds / (speeds @ capacity / capacity.sum())[:, None]
    columns = jobs * pools
    market = ClassProblem(
        np.ones(jobs), np.arange(0, columns + 1, pools), np.arange(columns + 1),
        np.tile(np.arange(pools, dtype=np.int32), jobs), np.ones(columns), capacity,
    )  # fmt: skip
    return market, speeds, worth


def filled(seed: int) -> tuple[ClassProblem, FloatArray, FloatArray, FillingResult]:
    market, speeds, worth = fleet(seed)
    return market, speeds, worth, fill_levels(market, worth.ravel(), WeightTierRule(np.ones(market.classes)))


@pytest.mark.slow
def test_nobody_is_better_off_with_an_equal_part_of_every_pool():
    """Sharing incentive: at least the utility of 1/M of every pool."""
    for seed in range(FLEETS):
        market, _, worth, filling = filled(seed)
        alone = worth @ market.capacity / market.classes
        assert (filling.utility >= alone * (1 - 1e-7)).all(), f"fleet {seed}"


@pytest.mark.slow
def test_nobody_can_rise_but_at_the_cost_of_one_who_has_no_more():
    """Max-min and Pareto: at the prices of the level that settled a job, it pays for all it has, and so do those below.

    A job settles where all that it could gain by is scarce; whoever has more settled later or is full.
    """
    for seed in range(FLEETS):
        market, _, worth, filling = filled(seed)
        best = worth.max(axis=1)
        used = market.used(filling.x)
        hungry = filling.utility < best * (1 - 1e-6)
        free = used < market.capacity * (1 - 1e-6)
        assert not (hungry[:, None] & free & (worth > filling.utility[:, None] * (1 + 1e-6))).any(), f"fleet {seed}"
        for level in filling.levels:
            scarce = level.prices > 0
            assert (used[scarce] >= market.capacity[scarce] * (1 - 1e-7)).all(), f"fleet {seed}"


@pytest.mark.slow
def test_equal_jobs_have_equal_utility():
    """Envy-freeness where it is claimed: jobs of equal speeds and weights, whatever else is there."""
    for seed in range(FLEETS):
        _, speeds, _, filling = filled(seed)
        _, kind = np.unique(speeds, axis=0, return_inverse=True)
        for one in np.unique(kind):
            assert np.ptp(filling.utility[kind == one]) <= 1e-7, f"fleet {seed}"
