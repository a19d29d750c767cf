"""The program that `optimizer.filling.interior` solves: one market, scaled, and a point between its constraints.

Inside, everything is scaled: utilities by the class's best column, rows by their capacity. Decides nothing: what an
iteration is stands in `optimizer.filling.step`.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse

from optimizer.market.market import Market
from optimizer.problem import FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """Variables (x, idle, spare, left) in one vector, and their multipliers (reduced cost, mu, y, p)."""

    theta: float
    primal: FloatArray
    dual: FloatArray


class RisingProgram:
    """The program of one market, scaled. Every class has a column of positive worth; no row has capacity 0."""

    def __init__(self, market: Market, worth: FloatArray) -> None:
        self.market = market
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

    def aim(self, floor: FloatArray, rise: FloatArray) -> None:
        """What one member of each class is to have, of which theta decides (k,), (k,)."""
        self.floor, self.rise = floor / self._best, rise / self._best

    def prices(self, point: Point) -> FloatArray:
        """Price of each row, unscaled (r,)."""
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

    def start(self) -> Point:
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
