"""Filling finds what brute force finds, flat and over trees with every kind of term."""

import numpy as np
import pytest
from filling_reference import reference

from optimizer.classes.class_problem import ClassProblem, TierRule, WeightTierRule
from optimizer.decision import Status
from optimizer.lp.interior_point.progressive_filling import fill_levels
from optimizer.utility.entity_targets import EntityTierRule, EntityTree

pytestmark = pytest.mark.slow


def a_market(rng: np.random.Generator) -> tuple[ClassProblem, np.ndarray]:
    """Up to seven classes on up to three pools: scarce or plenty, ties, gaps, several members."""
    rows, k = int(rng.integers(1, 4)), int(rng.integers(2, 8))
    there = rng.random((k, rows)) < 0.8
    there[np.arange(k), rng.integers(0, rows, k)] = True
    owner, row = np.nonzero(there)
    gang = rng.choice([1.0, 1.0, 2.0], k)
    worth = rng.integers(1, 9, len(owner)) / 4.0 * gang[owner]
    market = ClassProblem(
        size=rng.integers(1, 4, k).astype(float), first=np.concatenate([[0], np.cumsum(there.sum(axis=1))]),
        use_first=np.arange(len(owner) + 1), use_row=row.astype(np.int32), use_count=gang[owner],
        capacity=rng.integers(2, 9, rows).astype(float),
    )  # fmt: skip
    return market, worth


def a_tree(rng: np.random.Generator, market: ClassProblem) -> EntityTree:
    """Two or three projects with up to two users each; guarantees, own parts only, orders, weight 0."""
    projects = int(rng.integers(2, 4))
    users = [int(rng.integers(1, 3)) for _ in range(projects)]
    parent = np.concatenate([np.full(projects, -1), np.repeat(np.arange(projects), users)])
    entities, k, fleet = len(parent), market.classes, float(market.capacity.sum())
    weight = rng.choice([0.0, 1.0, 1.0, 2.0, 3.0], entities)
    guaranteed = np.zeros(entities)
    guaranteed[:projects] = rng.choice([0.0, 0.0, 0.2], projects) * fleet
    most = np.full(entities, np.inf)
    closed = rng.random(projects) < 0.25
    most[:projects][closed] = np.maximum(fleet / projects, guaranteed[:projects])[closed]
    fifo = np.zeros(entities, dtype=bool)
    fifo[projects:] = rng.random(entities - projects) < 0.3
    return EntityTree(
        entities=entities,
        parent=np.concatenate([parent, rng.integers(projects, entities, k)]),
        weight=np.concatenate([weight, rng.choice([0.5, 1.0, 1.0, 2.0], k) * market.size]),
        guaranteed=np.concatenate([guaranteed, np.zeros(k)]),
        most=np.concatenate([most, np.full(k, np.inf)]),
        fifo=fifo,
        rank=np.concatenate([np.zeros(entities), rng.permutation(k).astype(float)]),
        size=market.size,
    )


def agrees(seed: int, market: ClassProblem, worth: np.ndarray, rule: TierRule) -> None:
    filling, expected = fill_levels(market, worth, rule), reference(market, worth, rule)
    if filling.status is not Status.OPTIMAL:
        # It gave up, and says so: then nobody has less than by the levels before.
        assert np.all(filling.utility >= filling.levels[-1].kept * (1 - 1e-5)), seed
        return
    assert market.used(filling.x) == pytest.approx(np.minimum(market.used(filling.x), market.capacity)), seed
    assert filling.utility == pytest.approx(expected, rel=1e-4, abs=2e-3), seed


@pytest.mark.parametrize("block", range(4))
def test_flat_filling_is_what_brute_force_finds(block: int):
    """By weight, weights of 0 included: sixty small markets."""
    for seed in range(15 * block, 15 * block + 15):
        rng = np.random.default_rng(seed)
        market, worth = a_market(rng)
        agrees(seed, market, worth, WeightTierRule(rng.choice([0.0, 1.0, 1.0, 2.0], market.classes)))


@pytest.mark.parametrize("block", range(8))
def test_filling_a_tree_is_what_brute_force_finds(block: int):
    """Guarantees, borrowing or not, orders inside, weight 0: 120 small trees."""
    for seed in range(15 * block, 15 * block + 15):
        rng = np.random.default_rng(1000 + seed)
        market, worth = a_market(rng)
        agrees(seed, market, worth, EntityTierRule(a_tree(rng, market)))
