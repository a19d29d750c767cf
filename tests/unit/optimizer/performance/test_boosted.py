"""Boosted trees: told cells between measured ones, refused cells beyond them, the same trees each time."""

from math import sin
from zlib import crc32

import pytest

from benchmarks.performance_scores import score_model
from optimizer.prediction.boosted_trees import BoostedTrees
from optimizer.prediction.predictor import AcceleratorSpecs, CannotPredict, KindFacts, Layout, Observation, SpeedCell

TYPES = tuple(AcceleratorSpecs(f"type-{n}", 1e12 * 2.0**n, 1e11 * 2.0**n) for n in range(4))
FEW = BoostedTrees(trees=200)


def truth(kind: int, column: int, batch: float) -> Observation:
    noise = 1.0 + 0.02 * sin(97.0 * kind + 31.0 * column + 7.0 * batch)
    time_s = noise * (1.0 + kind) * (0.01 + 0.002 * batch) / 2.0**column
    return Observation(SpeedCell(KindFacts(f"kind-{kind}"), TYPES[column], Layout(batch)), 1.0 / time_s)


WORLD = [truth(kind, column, batch) for kind in range(6) for column in range(4) for batch in (8, 16, 32, 64, 128)]


def test_unseen_cells_are_told_with_intervals_that_hold() -> None:
    """A quarter unseen: a tenth of error at most, and at least 70 % of truths inside."""
    held = [crc32(str(n).encode()) % 4 == 0 for n in range(len(WORLD))]
    model = FEW.fit([o for o, out in zip(WORLD, held, strict=True) if not out])
    found = score_model(model, [o for o, out in zip(WORLD, held, strict=True) if out])
    assert found.refused == 0
    assert found.median_error < 0.1
    assert found.coverage >= 0.7


def test_the_same_observations_grow_the_same_trees() -> None:
    """The seed is fixed and rows are not sampled."""
    assert FEW.fit(WORLD).predict(WORLD[0].cell) == FEW.fit(WORLD).predict(WORLD[0].cell)


def test_what_was_never_measured_is_refused() -> None:
    """Trees do not reach to new kinds and new accelerators, and do not grow from a handful."""
    model = FEW.fit(WORLD)
    with pytest.raises(CannotPredict, match="kind-77"):
        model.predict(truth(77, 0, 8).cell)
    with pytest.raises(CannotPredict, match="unheard"):
        model.predict(SpeedCell(KindFacts("kind-0"), AcceleratorSpecs("unheard", 1e12, 1e11), Layout(8)))
    with pytest.raises(CannotPredict, match="too few"):
        FEW.fit(WORLD[:10])
