"""What the cheapest way to a target costs each class at given prices. Decides nothing.

At prices p a class reaches utility t at the least cost by mixing two points of the lower hull of the origin and its
columns (worth, price). The cost is convex and piecewise linear in t; it alone turns prices into a proof.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.market.market import Market
from optimizer.problem import FloatArray, IntArray

#: Slopes that agree to this part belong to one edge of the hull.
_COLLINEAR = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Responses:
    """Hull vertices of k classes, the origin first, the last one repeated as padding (k, v)."""

    worth: FloatArray
    cost: FloatArray

    def spent(self, target: FloatArray) -> FloatArray:
        """Least cost at which one member of each class reaches its target; the last vertex where none does (k,)."""
        row, edge = np.arange(len(target)), self._edge(target)
        low, high = self.worth[row, edge], self.worth[row, edge + 1]
        part = np.divide(target - low, high - low, out=np.zeros(len(target)), where=high > low)
        spent = self.cost[row, edge] + np.clip(part, 0.0, 1.0) * (self.cost[row, edge + 1] - self.cost[row, edge])
        return np.asarray(spent)

    def edge_of(self, target: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Worth and cost of the two vertices between which each target lies (k,) four times."""
        row, edge = np.arange(len(target)), self._edge(target)
        return self.worth[row, edge], self.cost[row, edge], self.worth[row, edge + 1], self.cost[row, edge + 1]

    def marginal(self, target: FloatArray) -> FloatArray:
        """Cost of one more unit of utility just below the target (k,)."""
        row, edge = np.arange(len(target)), self._edge(target)
        rise = self.worth[row, edge + 1] - self.worth[row, edge]
        more = self.cost[row, edge + 1] - self.cost[row, edge]
        slope: FloatArray = np.divide(more, rise, out=np.zeros(len(target)), where=rise > 0)
        return slope

    def _edge(self, target: FloatArray) -> IntArray:
        """Index of the vertex at the left end of the edge on which each target lies."""
        edge: IntArray = np.minimum((self.worth[:, 1:] < target[:, None]).sum(axis=1), self.worth.shape[1] - 2)
        return edge


def responses(market: Market, worth: FloatArray, prices: FloatArray, *, compiled: bool = False) -> Responses:
    """The hulls of all classes at these prices."""
    cost = market.cost(prices)
    if compiled:
        from optimizer.filling import response_kernels

        return Responses(*response_kernels.hulls(market.first, worth, cost, _COLLINEAR))
    owner = market.owner()
    corner_worth, corner_cost = np.zeros(market.classes), np.zeros(market.classes)
    vertices = [(corner_worth, corner_cost)]
    ahead = np.flatnonzero(worth > 0)
    while len(ahead):
        mine = owner[ahead]
        start = np.flatnonzero(np.diff(mine, prepend=-1))
        slope = (cost[ahead] - corner_cost[mine]) / (worth[ahead] - corner_worth[mine])
        lowest = np.minimum.reduceat(slope, start)
        per_column = np.repeat(lowest, np.diff(start, append=len(mine)))
        on_edge = slope <= per_column + _COLLINEAR * np.abs(per_column)
        furthest = np.maximum.reduceat(np.where(on_edge, worth[ahead], 0.0), start)
        corner_worth, corner_cost, rising = corner_worth.copy(), corner_cost.copy(), mine[start]
        corner_cost[rising] += lowest * (furthest - corner_worth[rising])
        corner_worth[rising] = furthest
        vertices.append((corner_worth, corner_cost))
        ahead = ahead[worth[ahead] > corner_worth[mine]]
    if len(vertices) == 1:
        vertices *= 2
    return Responses(np.stack([w for w, _ in vertices], axis=1), np.stack([c for _, c in vertices], axis=1))
