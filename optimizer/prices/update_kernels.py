"""What a few classes do at several points at once, compiled. Importing it imports numba."""

from typing import NamedTuple

import numba

from optimizer.prices.kernels import _block
from optimizer.prices.softened import Supply, Wants
from optimizer.problem import FloatArray


class AtPoints(NamedTuple):
    """Prices and softness of K points (K, r), and by what the goals are multiplied there (K,)."""

    prices: FloatArray
    softness: FloatArray
    times: FloatArray


def run(supply: Supply, wants: Wants, points: AtPoints, out: FloatArray, x: FloatArray) -> None:
    """Add the sums of all classes at each point to `out` (K, width), and put their shares into `x` (K, C)."""
    _at_points(supply, wants, points, out, x)


@numba.njit(cache=True)
def _at_points(supply, wants, points, out, x):  # type: ignore[no-untyped-def]
    for k in range(len(points.times)):
        asked = Wants(wants.kind, wants.worth, wants.value, wants.goal * points.times[k], wants.rise)
        _block(supply, asked, points.prices[k], points.softness[k], (0, len(supply.size)), out[k], x[k])
