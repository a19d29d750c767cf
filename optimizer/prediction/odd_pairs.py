"""Outliers among (kind, accelerator) pairs, which must not shift the predictions for other kinds on the accelerator.

A normal model explains one cell that is ten times slower than expected by a slow accelerator. Real tables have such
pairs for other reasons: a slow host, or a library without a kernel for that chip. A pair whose cells lie too far from
their prediction by all other cells gets a variance of its own, as if its deviation had a distribution with heavy tails.
Its own cells are then predicted as measured, and it has almost no influence on other kinds. The most extreme pair is
treated first and the others are tested again, so that an outlier does not make its neighbours look odd. Two kinds that
agree that an accelerator is slow are no outliers.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
#: A kind and an accelerator.
Pair = tuple[str, str]

#: Standard deviations of its common shift from which on a pair is odd; by chance about 1 pair in 500 is.
_ODD = 3.0
#: Largest share of pairs treated as odd: more indicate that the model itself does not fit.
_MOST = 0.2


def odd_pairs(kinds: NDArray[Any], accelerators: NDArray[Any], covariance: Floats, values: Floats) -> dict[Pair, float]:
    """The additional variance of each odd pair.

    `covariance` (n, n) is that of `values` (n,), their noise in it; `kinds` and `accelerators` name each value's pair.
    """
    rows: dict[Pair, list[int]] = {}
    for row, pair in enumerate(zip(kinds.tolist(), accelerators.tolist(), strict=True)):
        rows.setdefault(pair, []).append(row)
    if len(rows) < 3:
        return {}
    inverse: Floats = np.linalg.inv(covariance).astype(np.float64)
    found: dict[Pair, float] = {}
    for _ in range(int(_MOST * len(rows)) + 1):
        pulls = inverse @ values
        pair, stands_out, shift = _oddest(rows, inverse, pulls)
        if stands_out <= _ODD:
            break
        variance = shift**2
        found[pair] = found.get(pair, 0.0) + variance
        inverse = _with_own_variance(inverse, np.array(rows[pair]), variance)
    return found


def own_variances(kinds: NDArray[Any], accelerators: NDArray[Any], odd: Mapping[Pair, float]) -> Floats:
    """The additional variance of each point's pair, 0 where the pair is not odd (n,)."""
    if not odd:
        return np.zeros(len(kinds))
    pairs = zip(kinds.tolist(), accelerators.tolist(), strict=True)
    return np.array([odd.get(pair, 0.0) for pair in pairs])


def _oddest(rows: Mapping[Pair, list[int]], inverse: Floats, pulls: Floats) -> tuple[Pair, float, float]:
    """The pair furthest from its prediction by the others, with its deviation in standard deviations and absolutely.

    With the precision matrix Q and the values y, all values but a block's leave it the precision Q_bb and the
    deviation Q_bb^-1 (Q y)_b (conditioning of a normal distribution); its common shift is their mean by generalised
    least squares.
    """
    best, most, shift = next(iter(rows)), -1.0, 0.0
    for pair, own in rows.items():
        precision = float(inverse[np.ix_(own, own)].sum())
        if precision <= 0.0:
            continue
        pull = float(pulls[own].sum())
        stands_out = abs(pull) / precision**0.5
        if stands_out > most:
            best, most, shift = pair, stands_out, pull / precision
    return best, most, shift


def _with_own_variance(inverse: Floats, own: NDArray[np.signedinteger[Any]], variance: float) -> Floats:
    """The precision matrix after adding a common variance to the block (Sherman and Morrison)."""
    column = inverse[:, own].sum(axis=1)
    return np.asarray(inverse - np.outer(column, column) * (variance / (1.0 + variance * float(column[own].sum()))))
