"""What a few classes do at several points at once, compiled. Importing it imports numba."""

import numba

from optimizer.prices.kernels import _block
from optimizer.prices.softened import Supply, Wants
from optimizer.problem import FloatArray


def run(
    supply: Supply, wants: Wants, prices: FloatArray, softness: FloatArray, times: FloatArray, out: FloatArray
) -> None:
    """Add the sums of all classes at each point to `out` (K, width); goals are those wanted times `times` (K,)."""
    _at_points(supply, wants, prices, softness, times, out)


@numba.njit(cache=True)
def _at_points(supply, wants, prices, softness, times, out):  # type: ignore[no-untyped-def]
    none = wants.worth[:0]
    for k in range(len(times)):
        asked = Wants(wants.kind, wants.worth, wants.value, wants.goal * times[k], wants.rise)
        _block(supply, asked, prices[k], softness[k], (0, len(supply.size)), out[k], none)
