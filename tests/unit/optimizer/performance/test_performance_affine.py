"""Lines in the batch, across places; their least squares, with parameters of groups and shared ones."""

from math import log
from random import Random

import numpy as np
import pytest

from benchmarks.performance_scores import score_model
from optimizer.prediction.affine_law import AffinePredictor, SlopeRows, _AffineLaw, invert_arrow
from optimizer.prediction.predictor import AcceleratorSpecs, CannotPredict, KindFacts, Layout, Observation, SpeedCell

SLOW, FAST = AcceleratorSpecs("cpu-1", 5e10, 1e10), AcceleratorSpecs("cpu-2", 1e11, 2e10)
KINDS = [KindFacts(f"net-{n}", gradient_bytes=4e5 * (n + 1), layers=3 + n) for n in range(8)]


def cell(kind: KindFacts, accelerator: AcceleratorSpecs, batch: int, ranks: int) -> SpeedCell:
    return SpeedCell(kind, accelerator, Layout(batch * ranks, ranks))


def step_s(cell: SpeedCell) -> float:
    """The truth: fixed and sample costs by kind, fewer for two threads, more for two ranks, and exchange."""
    n, ranks, fast = KINDS.index(cell.kind), cell.layout.accelerators, cell.accelerator is FAST
    fixed, sample = 1e-3 * (1 + n % 3), 5e-5 * (1 + n)
    step = fixed * (1.1 if fast else 1.0) + sample * cell.layout.local * (0.6 if fast else 1.0)
    return step * (1.3 if ranks == 2 else 1.0) + (ranks - 1) * (3e-4 + 1e-4 * (cell.kind.layers or 0))


def observed(cell: SpeedCell, random: Random) -> Observation:
    return Observation(cell, 1.0 / (step_s(cell) * random.gauss(1.0, 0.02)))


def test_cells_between_and_across_are_told() -> None:
    """From the ends of the batches at one place and one cell at each other, all others follow within the noise."""
    random = Random(3)
    known, asked = [], []
    for n, kind in enumerate(KINDS):
        profiled = {(1, 8, 1), (1, 64, 1), (2, (8, 64)[n % 2], 1), (1, (64, 8)[n % 2], 2), (2, (16, 32)[n % 2], 2)}
        for threads, accelerator in ((1, SLOW), (2, FAST)):
            for batch in (8, 16, 32, 64):
                for ranks in (1, 2):
                    group = known if (threads, batch, ranks) in profiled else asked
                    group.append(observed(cell(kind, accelerator, batch, ranks), random))
    found = score_model(AffinePredictor().fit(known), asked)
    assert found.refused == 0
    assert found.median_error <= 0.05
    assert 0.65 <= found.coverage <= 1.0


def test_an_interval_is_wider_where_less_is_known() -> None:
    """A batch far outside those measured is told less surely than one between them."""
    random = Random(1)
    known = [observed(cell(kind, SLOW, batch, 1), random) for kind in KINDS for batch in (16, 32)]
    model = AffinePredictor().fit(known)
    near, far = (model.predict(cell(KINDS[0], SLOW, batch, 1)) for batch in (24, 512))
    assert log(far.high / far.low) > log(near.high / near.low)


def test_what_was_never_measured_is_refused() -> None:
    """Unknown kinds and places are named; so is a fit to almost nothing."""
    random = Random(1)
    known = [observed(cell(kind, SLOW, batch, 1), random) for kind in KINDS[:4] for batch in (8, 64)]
    model = AffinePredictor().fit(known)
    with pytest.raises(CannotPredict, match="unknown"):
        model.predict(cell(KINDS[5], SLOW, 8, 1))
    with pytest.raises(CannotPredict, match="unknown"):
        model.predict(cell(KINDS[0], SLOW, 8, 2))
    with pytest.raises(CannotPredict, match="too few"):
        AffinePredictor().fit(known[:3])


def test_costs_of_kinds_that_standard_deviations_were_not_chosen_on_are_found() -> None:
    """With more kinds than choices are tried on, all are told, each by its own line."""
    random = Random(5)
    kinds = [KindFacts(f"many-{n:03}") for n in range(90)]

    def truth(kind: KindFacts, batch: int) -> Observation:
        step_s = 1e-3 * (1 + kinds.index(kind) % 7) + 1e-5 * batch * (1 + kinds.index(kind) % 5)
        return Observation(cell(kind, SLOW, batch, 1), 1.0 / (step_s * random.gauss(1.0, 0.01)))

    model = AffinePredictor().fit([truth(kind, batch) for kind in kinds for batch in (8, 64)])
    found = score_model(model, [truth(kind, 32) for kind in kinds])
    assert found.refused == 0
    assert found.median_error <= 0.06


def test_slopes_are_those_of_the_times() -> None:
    """Every derivative that the fit and the intervals use is the one that differences give."""
    random = Random(2)
    cells = [cell(kind, place, 16, ranks) for kind in KINDS[:3] for place in (SLOW, FAST) for ranks in (1, 2)]
    law = _AffineLaw.of([observed(each, random) for each in cells], 0.05, 0.2)
    columns = law.columns(cells)
    (own, shared), _ = law.prior(columns, np.array([log(step_s(each)) for each in cells]))
    log_times, rows = law.log_times_and_slopes((own, shared), columns)
    by_own, by_shared = np.zeros((len(cells), *own.shape)), np.zeros((len(cells), len(shared)))
    each = np.arange(len(cells))[:, None]
    by_own[each, rows.groups[:, None], rows.own_at] = rows.own
    by_shared[each, rows.shared_at] = rows.shared
    for at in np.ndindex(own.shape):
        moved = own.copy()
        moved[at] += 1e-6
        differences = (law.log_times_and_slopes((moved, shared), columns)[0] - log_times) / 1e-6
        assert by_own[(slice(None), *at)] == pytest.approx(differences, abs=1e-4)
    for place in range(len(shared)):
        moved = shared.copy()
        moved[place] += 1e-6
        differences = (law.log_times_and_slopes((own, moved), columns)[0] - log_times) / 1e-6
        assert by_shared[:, place] == pytest.approx(differences, abs=1e-4)


GROUPS, OWN, SHARED, MANY = 4, 3, 5, 30


def rows() -> SlopeRows:
    random = np.random.default_rng(7)
    own_at = np.array([random.permutation(OWN)[:2] for _ in range(MANY)])
    shared_at = np.array([random.permutation(SHARED)[:3] for _ in range(MANY)])
    groups = random.integers(0, GROUPS, MANY)
    return SlopeRows(groups, own_at, random.normal(size=(MANY, 2)), shared_at, random.normal(size=(MANY, 3)))


def dense(rows: SlopeRows) -> np.ndarray:
    whole = np.zeros((MANY, GROUPS * OWN + SHARED))
    each = np.arange(MANY)[:, None]
    whole[each, rows.groups[:, None] * OWN + rows.own_at] = rows.own
    whole[each, GROUPS * OWN + rows.shared_at] = rows.shared
    return whole


def test_parts_are_those_of_the_whole_inverse() -> None:
    """Solving and variances agree with the inverse of the whole normal matrix, priors included."""
    given = rows()
    own_precision, shared_precision = np.full((GROUPS, OWN), 0.5), np.arange(1.0, SHARED + 1.0)
    slopes = dense(given)
    inverse = np.linalg.inv(slopes.T @ slopes + np.diag([*own_precision.ravel(), *shared_precision]))
    found = invert_arrow(given, own_precision, shared_precision)
    weights = np.cos(np.arange(MANY, dtype=float))
    own, shared = found.solve(*given.times(weights, GROUPS, OWN, SHARED))
    assert [*own.ravel(), *shared] == pytest.approx(inverse @ slopes.T @ weights)
    assert found.variances(given) == pytest.approx(np.einsum("ni,ij,nj->n", slopes, inverse, slopes))
