"""Which code runs the passes: compiled where numba is installed, numpy otherwise. The answers are the same."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from optimizer.market.market import Market
from optimizer.prices import passes
from optimizer.prices.softened import Sums, Wants, sums_of, supply_of
from optimizer.problem import FloatArray

Run = Callable[[Market, Wants, FloatArray, FloatArray, FloatArray], FloatArray]


@dataclass(frozen=True, slots=True)
class Engine:
    """Something that can walk over all classes."""

    #: "numba" or "numpy".
    name: str
    _run: Run

    def sums(self, market: Market, wants: Wants, prices: FloatArray, softness: FloatArray, x: FloatArray) -> Sums:
        """One pass; `x`, if not empty, receives the softened shares of one member of each class (C,)."""
        return sums_of(self._run(market, wants, prices, softness, x), market.rows)


def numpy_engine() -> Engine:
    """The definition."""
    return Engine("numpy", passes.run)


def best_engine() -> Engine:
    """The fastest there is."""
    if find_spec("numba") is None:
        return numpy_engine()
    from optimizer.prices import kernels

    def run(market: Market, wants: Wants, prices: FloatArray, softness: FloatArray, x: FloatArray) -> FloatArray:
        return kernels.run(supply_of(market), wants, prices, softness, x)

    return Engine("numba", run)
