"""How far utilities can rise together in a market, by an interior point method that knows the shape of a market.

    maximise theta    s.t.  sum_C x + idle = 1                              time of one member          mu[k]
                            worth.x - spare = floor + rise theta            utility of one member       y[k]
                            sum_C size use x + left = capacity              each row                    p[r]

Mehrotra's predictor and corrector (`optimizer.filling.step`). An iteration is a few passes over the columns, and their
number (15 to 30) hardly grows with the market. The solution is interior to the set of optima: a column that some
optimum uses has a share, one that none uses has none, and ties do no harm.

Inside, everything is scaled: utilities by the class's best column, rows by their capacity.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
from scipy import sparse

from optimizer.filling.step import Point, Step
from optimizer.market.market import Market
from optimizer.problem import FloatArray

#: Iterations of one level; 20 to 40 are used.
MOST_ITERATIONS = 100
#: Duality gap and residuals, in parts of the level, at which the method has converged.
CONVERGED = 1e-11
#: Columns above which compiled code pays for being loaded.
_COMPILED_FROM = 10_000
#: Iterations without a better iterate after which rounding has won.
_PATIENCE = 6


@dataclass(frozen=True, slots=True, eq=False)
class Interior:
    """A nearly optimal pair of shares and prices. Neither is quite feasible: callers repair and prove."""

    theta: float
    #: Shares of one member (C,).
    x: FloatArray
    #: Price of each row, what theta is worth being 1 (r,).
    prices: FloatArray
    iterations: int
    #: Duality gap or residual, whatever is largest.
    error: float


#: Called with prices and theta after each iteration: the floors and rises to go on with, or None to stop.
Watch = Callable[[FloatArray, float], "tuple[FloatArray, FloatArray] | None"]


class RisingProgram:
    """The program of one market, scaled. Every class has a column of positive worth; no row has capacity 0.

    `columns`: how many the market has that this one is a sample of.
    """

    def __init__(self, market: Market, worth: FloatArray, columns: int = 0) -> None:
        self.market, self._columns = market, max(columns, market.columns)
        self._start_of, self.owner = market.first[:-1], market.owner()
        self._best = np.maximum.reduceat(worth, self._start_of)
        self.worth = worth / self._best[self.owner]
        uses = np.diff(market.use_first)
        load = np.repeat(market.size[self.owner], uses) * market.use_count / market.capacity[market.use_row]
        shape = (market.columns, market.rows)
        self.load = sparse.csr_array((load, market.use_row, market.use_first), shape=shape)
        self.load_by_row = self.load.T.tocsr()
        self.use_column = np.repeat(np.arange(market.columns), uses)
        self.use_cell = self.owner[self.use_column] * market.rows + market.use_row
        self.floor, self.rise = np.zeros(market.classes), np.zeros(market.classes)
        ends = np.cumsum([market.columns, market.classes, market.classes, market.rows])
        self._parts = [slice(a, b) for a, b in zip([0, *ends[:-1]], ends, strict=True)]

    def solve(
        self, floor: FloatArray, rise: FloatArray, *, most: int = MOST_ITERATIONS, watch: Watch | None = None
    ) -> Interior:
        """Iterate until gap and residuals have vanished, the work is used up, or rounding has won.

        Args:
            floor, rise: what one member of each class is to have, of which theta decides (k,), (k,).
            most: iterations at most.
            watch: may change floors and rises between iterations, or stop.
        """
        self._aim(floor, rise)
        point, step_of = self._start(), _steps_for(self._columns)
        best, best_error, since, done = point, np.inf, 0, 0
        while done < most:
            step = step_of(self, point)
            following = step.taken()
            since = 0 if step.error < best_error else since + 1
            if since == 0:
                best, best_error = point, step.error
            if best_error <= CONVERGED or since >= _PATIENCE or following is None:
                break
            point = following
            done += 1
            if watch is not None:
                best, best_error, since = point, np.inf, 0
                changed = watch(self._prices(point), point.theta)
                if changed is None:
                    break
                self._aim(*changed)
        return Interior(best.theta, self.split(best.primal)[0], self._prices(best), done, best_error)

    def _aim(self, floor: FloatArray, rise: FloatArray) -> None:
        self.floor, self.rise = floor / self._best, rise / self._best

    def _prices(self, point: Point) -> FloatArray:
        return np.asarray(self.split(point.dual)[3] / self.market.capacity)

    def split(self, vector: FloatArray) -> list[FloatArray]:
        """The parts of a vector of variables or multipliers, as views."""
        return [vector[part] for part in self._parts]

    def per_class(self, values: FloatArray) -> FloatArray:
        """Sums over the columns of each class, of one array or of several in rows."""
        return np.add.reduceat(values, self._start_of, axis=-1)

    def crossed(self, weight: FloatArray) -> FloatArray:
        """Sum over the columns of weight times load by load (r, r): a diagonal where each uses one row."""
        if self.market.single_use:
            own = np.bincount(self.market.use_row, weights=weight * self.load.data**2, minlength=self.market.rows)
            return np.diag(own)
        scaled = self.load_by_row.copy()
        scaled.data = scaled.data * weight[scaled.indices]
        return np.asarray((scaled @ self.load).toarray())

    def _start(self) -> Point:
        """An equal part of each column, brought down to half of every row: feasible, far from every boundary."""
        market = self.market
        width = np.diff(market.first)
        x = 0.5 / width[self.owner]
        crowded = np.maximum(1.0, 2 * (self.load_by_row @ x))
        x /= np.maximum.reduceat(crowded[market.use_row], market.use_first[:-1])
        utility = self.per_class(self.worth * x)
        theta = 0.5
        spare = np.maximum(utility - self.floor - theta * self.rise, 0.01)
        primal = [x, 1 - self.per_class(x), spare, 1 - self.load_by_row @ x]
        y = np.full(market.classes, 1.0 / max(float(self.rise.sum()), 1e-300))
        p = np.full(market.rows, 1.0 / market.rows)
        reduced = self.load @ p + y[self.owner] * (1 - self.worth)
        return Point(theta, np.concatenate(primal), np.concatenate([reduced, y, y, p]))


def _steps_for(columns: int) -> Callable[[RisingProgram, Point], Step]:
    """Compiled steps where numba is installed and there is enough to do to pay for loading it."""
    if columns < _COMPILED_FROM or find_spec("numba") is None:
        return Step
    from optimizer.filling.step_kernels import CompiledStep

    return CompiledStep
