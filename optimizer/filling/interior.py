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
from functools import cached_property

import numpy as np
from scipy import sparse

from optimizer.filling.step import Point, Step
from optimizer.market.market import Market
from optimizer.problem import FloatArray, IntArray

#: Iterations of one level; 20 to 40 are used.
MOST_ITERATIONS = 100
#: Duality gap and residuals, in parts of the level, at which the method has converged.
CONVERGED = 1e-11
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

    `compiled`: whether iterations are to be so.
    """

    def __init__(self, market: Market, worth: FloatArray, *, compiled: bool = False) -> None:
        self.market, self._compiled = market, compiled
        self._start_of, self.owner = market.first[:-1], market.owner()
        self._best = np.maximum.reduceat(worth, self._start_of)
        self.worth = worth / self._best[self.owner]
        uses = np.diff(market.use_first)
        #: Part of its row that each use takes, all members together (U,); and the column it is of.
        self.load_of_use = np.repeat(market.size[self.owner], uses) * market.use_count / market.capacity[market.use_row]
        self.use_column = np.repeat(np.arange(market.columns), uses)
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
        point, step_of = self._start(), Step
        best, best_error, since, done = point, np.inf, 0, 0
        if self._compiled:
            from optimizer.filling import step_kernels

            if watch is None:
                best, done, best_error = step_kernels.iterated(self, point, most, CONVERGED, _PATIENCE)
                most = done
            step_of = step_kernels.CompiledStep
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

    @cached_property
    def load(self) -> sparse.csr_array:
        """What each column takes of each row (C, r)."""
        market = self.market
        shape = (market.columns, market.rows)
        return sparse.csr_array((self.load_of_use, market.use_row, market.use_first), shape=shape)

    @cached_property
    def load_by_row(self) -> sparse.csr_array:
        """The same, row by row (r, C)."""
        return self.load.T.tocsr()

    @cached_property
    def use_cell(self) -> IntArray:
        """Place of each use in a table of classes and rows (U,)."""
        cell: IntArray = self.owner[self.use_column] * self.market.rows + self.market.use_row
        return cell

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
            own = np.bincount(self.market.use_row, weights=weight * self.load_of_use**2, minlength=self.market.rows)
            return np.diag(own)
        scaled = self.load_by_row.copy()
        scaled.data = scaled.data * weight[scaled.indices]
        return np.asarray((scaled @ self.load).toarray())

    def _taken(self, x: FloatArray) -> FloatArray:
        """What shares take of each row (r,)."""
        load = self.load_of_use * x[self.use_column]
        return np.bincount(self.market.use_row, weights=load, minlength=self.market.rows).astype(np.float64)

    def _start(self) -> Point:
        """An equal part of each column, brought down to half of every row: feasible, far from every boundary."""
        market = self.market
        width = np.diff(market.first)
        x = 0.5 / width[self.owner]
        crowded = np.maximum(1.0, 2 * self._taken(x))
        x /= np.maximum.reduceat(crowded[market.use_row], market.use_first[:-1])
        utility = self.per_class(self.worth * x)
        theta = 0.5
        spare = np.maximum(utility - self.floor - theta * self.rise, 0.01)
        primal = [x, 1 - self.per_class(x), spare, 1 - self._taken(x)]
        y = np.full(market.classes, 1.0 / max(float(self.rise.sum()), 1e-300))
        p = np.full(market.rows, 1.0 / market.rows)
        reduced = np.add.reduceat(self.load_of_use * p[market.use_row], market.use_first[:-1]) + y[self.owner] * (
            1 - self.worth
        )
        return Point(theta, np.concatenate(primal), np.concatenate([reduced, y, y, p]))
