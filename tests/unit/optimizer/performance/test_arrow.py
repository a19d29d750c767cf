"""Least squares with parameters of groups and shared ones, against the whole matrix."""

import numpy as np
import pytest

from optimizer.prediction.affine_law import SlopeRows, invert_arrow

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
