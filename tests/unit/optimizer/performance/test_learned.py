"""The learned predictor on made-up worlds where the truth is known."""

from functools import cache
from math import exp, log, sin
from zlib import crc32

import numpy as np
import pytest

from benchmarks.performance_scores import score_model
from optimizer.prediction.gaussian_process import (
    NOISE_AT,
    START_WEIGHTS,
    Array,
    GaussianProcess,
    GaussianProcessModel,
    cell_features,
    shared_features,
    start_samples,
)
from optimizer.prediction.predictor import AcceleratorSpecs, CannotPredict, KindFacts, Layout, Observation, SpeedCell

TYPES = tuple(AcceleratorSpecs(f"type-{n}", 1e12 * 2.0**n, 1e11 * 2.0**n) for n in range(5))
BATCHES = (8, 16, 32, 64)


def truth(kind: int, accelerator: AcceleratorSpecs, batch: float) -> Observation:
    """Time is a start plus a part by sample; each kind likes some types more; 3 % of noise that repeats."""
    taste = 0.1 * sin(3.0 * kind + accelerator.flops_per_s / 1e12)
    noise = 0.03 * sin(997.0 * kind + 31.0 * batch + accelerator.flops_per_s / 1e11)
    time_s = exp(kind / 3.0 + taste + noise) * (0.01 + 0.002 * batch) * 1e12 / accelerator.flops_per_s
    return Observation(SpeedCell(KindFacts(f"kind-{kind}"), accelerator, Layout(batch)), 1.0 / time_s)


WORLD = [truth(kind, accelerator, batch) for kind in range(8) for accelerator in TYPES for batch in BATCHES]


@cache
def fitted(*slowed: tuple[int, float]) -> GaussianProcessModel:
    """The model of the world, with a new type where these kinds ran on one; fitted once for all tests."""
    return GaussianProcess().fit(seen_on_a_new_type(*slowed)[0])


def test_cells_between_measured_ones_are_told() -> None:
    """A third of the world unseen: a few percent of error, and intervals that mean what they say."""
    held = [crc32(str(n).encode()) % 10 < 3 for n in range(len(WORLD))]
    known = [o for o, out in zip(WORLD, held, strict=True) if not out]
    found = score_model(GaussianProcess().fit(known), [o for o, out in zip(WORLD, held, strict=True) if out])
    assert found.refused == 0
    assert found.median_error < 0.05
    assert found.coverage >= 0.7


def test_what_is_known_of_a_kind_counts_as_if_all_were_conditioned_on() -> None:
    """With few for all kinds, and the rest only where their kind is asked about, answers stay nearly as good."""
    held = [crc32(str(n).encode()) % 10 < 3 for n in range(len(WORLD))]
    known = [o for o, out in zip(WORLD, held, strict=True) if not out]
    asked = [o for o, out in zip(WORLD, held, strict=True) if out]
    whole, parts = (score_model(GaussianProcess(condition_on=most).fit(known), asked) for most in (1000, 60))
    assert parts.median_error < min(0.05, 1.3 * whole.median_error)
    assert parts.coverage >= 0.6


def test_the_same_observations_give_the_same_model() -> None:
    """No chance is drawn."""
    cell = WORLD[7].cell
    assert GaussianProcess().fit(WORLD[::2]).predict(cell) == GaussianProcess().fit(WORLD[::2]).predict(cell)


def test_what_is_less_known_has_wider_intervals() -> None:
    """Measured cell < new batch far away < new kind."""
    model = fitted()
    near = model.predict(WORLD[0].cell).log_sd
    far = model.predict(truth(0, TYPES[0], 4096.0).cell).log_sd
    new = model.predict(truth(99, TYPES[0], 8.0).cell).log_sd
    assert near < far < new


def test_a_new_accelerator_is_expected_by_its_facts() -> None:
    """Twice the data sheet is about twice the speed, with an interval that knows that nobody tried."""
    twice = AcceleratorSpecs("new", 3.2e13, 3.2e12)
    model = fitted()
    told, asked = model.predict(truth(2, twice, 16.0).cell), truth(2, twice, 16.0)
    assert abs(log(told.steps_per_s / asked.steps_per_s)) < 0.3
    assert told.holds(asked.steps_per_s)


def seen_on_a_new_type(*slowed: tuple[int, float]) -> tuple[list[Observation], list[Observation]]:
    """The world, with one cell of each of these kinds on another accelerator, so much slower; the others' truths."""
    other = AcceleratorSpecs("other", 6e12, 6e11)
    cells = [truth(kind, other, 16.0) for kind in range(8)]
    seen = [Observation(cells[kind].cell, cells[kind].steps_per_s / factor) for kind, factor in slowed]
    return [*WORLD, *seen], [cell for kind, cell in enumerate(cells) if kind not in dict(slowed)]


def test_one_odd_kind_does_not_speak_for_a_whole_accelerator() -> None:
    """Ten times slower than expected: it is believed of that kind, and other kinds are told as if nobody had run it."""
    (known, asked), before, model = seen_on_a_new_type((3, 10.0)), fitted(), fitted((3, 10.0))
    for cell in (cell for cell in asked if cell.cell.kind.name != "kind-3"):
        assert abs(log(model.predict(cell.cell).steps_per_s / cell.steps_per_s)) < 0.35
        assert abs(log(model.predict(cell.cell).steps_per_s / before.predict(cell.cell).steps_per_s)) < 0.2
    odd = known[-1]
    assert abs(log(model.predict(odd.cell).steps_per_s / odd.steps_per_s)) < 0.2


def test_kinds_that_agree_do_speak_for_it() -> None:
    """Three kinds at a third of the expected speed: the accelerator is slow."""
    slowed = (1, 3.0), (4, 3.0), (6, 3.0)
    model = fitted(*slowed)
    for cell in seen_on_a_new_type(*slowed)[1]:
        assert abs(log(3.0 * model.predict(cell.cell).steps_per_s / cell.steps_per_s)) < 0.5


def test_kinds_that_ran_on_an_accelerator_narrow_the_intervals_of_others() -> None:
    """However many did: for a kind that never ran there less is known before the first."""
    widths = []
    for kinds in ((), (1,), (1, 4), (1, 4, 6, 2, 3)):
        slowed = tuple((kind, 1.0) for kind in kinds)
        widths.append(fitted(*slowed).predict(seen_on_a_new_type(*slowed)[1][-1].cell).log_sd)
    assert all(width < widths[0] for width in widths[1:])


def test_too_few_observations_are_refused() -> None:
    """Two points teach nothing."""
    with pytest.raises(CannotPredict, match="too few"):
        GaussianProcess().fit(WORLD[:2])


def test_slopes_of_the_covariance_are_its_differences() -> None:
    """Each derivative against a small step, for a matrix of any entries."""
    points = cell_features([o.cell for o in WORLD[::7]], start_samples(WORLD))
    shared = shared_features(points, points, {})
    by = np.cos(np.arange(shared.kind.size, dtype=float)).reshape(shared.kind.shape)

    def total(parameters: Array) -> float:
        own = np.exp(2.0 * parameters[NOISE_AT]) * np.eye(len(by))
        return float((by * (shared.covariance(parameters) + own)).sum())

    steps = 1e-5 * np.eye(len(START_WEIGHTS))
    differences = [(total(START_WEIGHTS + step) - total(START_WEIGHTS - step)) / 2e-5 for step in steps]
    assert shared.slopes(START_WEIGHTS, by) == pytest.approx(differences, rel=1e-5, abs=1e-6)
