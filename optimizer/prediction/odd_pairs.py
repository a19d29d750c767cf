"""Kinds that run on one accelerator as nothing else says they should, so that they do not speak for all of it.

A normal model of speeds takes one cell that is ten times slower than expected for news of the whole accelerator: it
knows no other way to explain it. Real tables have such pairs of a kind and an accelerator: a slow host, a library
without a kernel for that chip. Here a pair whose cells lie too far from what all others say of them is given a variance
of its own, as if its deviation were drawn from a distribution with heavy tails: it is believed where it was measured,
and tells next to nothing of other kinds there. The pair that stands out most is taken first and the rest is looked at
again, so that a pair is not held for odd because of an odd neighbour. Two kinds that agree that an accelerator is slow
are not odd.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
#: A kind and an accelerator.
Pair = tuple[str, str]

#: A pair is odd from so many standard deviations of its common shift on: some 1 in 500 of them by chance.
_ODD = 3.0
#: So many pairs at most, as a share of all: a model that nothing fits is not mended here.
_MOST = 0.2


def odd_pairs(kinds: NDArray[Any], accelerators: NDArray[Any], covariance: Floats, values: Floats) -> dict[Pair, float]:
    """Variances of the pairs' own, for those that stand out.

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
    """(n,) Of each point's pair; 0 where it is not odd."""
    if not odd:
        return np.zeros(len(kinds))
    pairs = zip(kinds.tolist(), accelerators.tolist(), strict=True)
    return np.array([odd.get(pair, 0.0) for pair in pairs])


def _oddest(rows: Mapping[Pair, list[int]], inverse: Floats, pulls: Floats) -> tuple[Pair, float, float]:
    """The pair that lies furthest from what the others say: by how many standard deviations, and how far it lies.

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
    """The inverse after the block has got a common variance more (Sherman and Morrison)."""
    column = inverse[:, own].sum(axis=1)
    return np.asarray(inverse - np.outer(column, column) * (variance / (1.0 + variance * float(column[own].sum()))))
