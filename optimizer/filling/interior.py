"""The largest level that a market can reach, by an interior point method that knows the shape of a market.

    maximise z    s.t.  sum_C x + idle = 1                        time of one member          mu[k]
                        worth.x - spare = target(z)               utility of one member       y[k]
                        sum_C size use x + left = capacity        each row                    p[r]
                        z + below = highest                                                   eta

Mehrotra's predictor and corrector on the optimality conditions, with the targets taken afresh at the z of each iterate:
they rise piecewise linearly, so near the solution this is the linear program of one piece. The classes of a market meet
only in its rows. Eliminating each class's two equations by hand leaves a dense system of (rows + 1): an iteration is a
few passes over the columns, and their number (20 to 40) hardly grows with the market. The solution is interior to the
set of optima: a column that some optimum uses has a share, one that none uses has none, and ties do no harm.

Inside, everything is scaled: utilities by the class's best column, rows by capacity, levels by one that is reachable.
"""

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from optimizer.market import Market
from optimizer.objective import Targets
from optimizer.problem import FloatArray
from optimizer.filling.response import responses

#: Iterations of one level; 20 to 40 are used.
MOST_ITERATIONS = 100
#: Duality gap and residuals, in parts of a reachable level, at which the method has converged.
CONVERGED = 1e-11
#: Iterations without a better iterate after which rounding has won.
_PATIENCE = 6
#: Part of the way to the boundary that a step goes.
_BOUNDARY = 0.9975


@dataclass(frozen=True, slots=True, eq=False)
class Interior:
    """A nearly optimal pair of shares and prices. Neither is quite feasible: callers repair and prove."""

    z: float
    #: Shares of one member (C,).
    x: FloatArray
    #: Price of each row in units of the level (r,).
    prices: FloatArray
    iterations: int
    #: Duality gap or residual, in parts of a reachable level.
    error: float


@dataclass(frozen=True, slots=True, eq=False)
class _Point:
    """Variables (x, idle, spare, left, below) in one vector, and their multipliers (reduced cost, mu, y, p, eta)."""

    z: float
    primal: FloatArray
    dual: FloatArray


class LevelProgram:
    """One level's program, scaled. Every class has a column of positive worth; no row has capacity 0."""

    def __init__(self, market: Market, worth: FloatArray, targets: Targets) -> None:
        self.market, self._targets = market, targets
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
        self.highest = 1.0
        ends = np.cumsum([market.columns, market.classes, market.classes, market.rows, 1])
        self._parts = [slice(a, b) for a, b in zip([0, *ends[:-1]], ends, strict=True)]
        self._unit = 1.0

    def solve(self) -> Interior:
        """Iterate until gap and residuals have vanished, the work is used up, or rounding has won."""
        point = self._start()
        best, best_error, since, iterations = point, np.inf, 0, 0
        for iterations in range(1, MOST_ITERATIONS + 1):
            step = _Step(self, point)
            since = 0 if step.error < best_error else since + 1
            if since == 0:
                best, best_error = point, step.error
            if best_error <= CONVERGED or since >= _PATIENCE or not np.isfinite(step.error):
                break
            point = step.taken()
        x, *_ = self.split(best.primal)
        *_, p, _ = self.split(best.dual)
        return Interior(best.z * self._unit, x, p / self.market.capacity * self._unit, iterations, best_error)

    def split(self, vector: FloatArray) -> list[FloatArray]:
        """The parts of a vector of variables or multipliers, as views."""
        return [vector[part] for part in self._parts]

    def at(self, z: float) -> tuple[FloatArray, FloatArray]:
        """Targets and slopes in the scaled units."""
        target, slope = self._targets.at(z * self._unit)
        return target / self._best, slope * (self._unit / self._best)

    def per_class(self, values: FloatArray) -> FloatArray:
        """Sums over the columns of each class, of one array or of several in rows."""
        return np.add.reduceat(values, self._start_of, axis=-1)

    def _start(self) -> _Point:
        """An equal part of each column, brought down to half of every row: feasible, far from every boundary."""
        market = self.market
        width = np.diff(market.first)
        x = 0.5 / width[self.owner]
        crowded = np.maximum(1.0, 2 * (self.load_by_row @ x))
        x /= np.maximum.reduceat(crowded[market.use_row], market.use_first[:-1])
        utility = self.per_class(self.worth * x)
        self._unit = self._plausible()
        self.highest, z = self._targets.highest / self._unit, 0.5
        target, slope = self.at(z)
        eta = min(0.5, 0.5 / (self.highest - z))
        primal = [x, 1 - self.per_class(x), np.maximum(utility - target, 0.01), 1 - self.load_by_row @ x, [self.highest - z]]
        y = np.full(market.classes, (1 - eta) / max(float(slope.sum()), 1e-300))
        p = np.full(market.rows, 1.0 / market.rows)
        reduced = self.load @ p + y[self.owner] * (1 - self.worth)
        return _Point(z, np.concatenate(primal), np.concatenate([reduced, y, y, p, [eta]]))

    def _plausible(self) -> float:
        """A level of the right size: where the targets cost all there is if every row has the same price."""
        market = self.market
        hulls = responses(market, self.worth * self._best[self.owner], np.ones(market.rows) / market.rows)
        income, low, high = float(market.capacity.mean()), 0.0, self._targets.highest
        for _ in range(30):
            middle = (low + high) / 2
            dear = float(market.size @ hulls.spent(self._targets.at(middle)[0])) > income
            low, high = (low, middle) if dear else (middle, high)
        return high


class _Step:
    """One iteration: residuals of the optimality conditions, and the direction in which they shrink."""

    def __init__(self, program: LevelProgram, point: _Point) -> None:
        self._program, self._point = program, point
        x, idle, spare, left, below = program.split(point.primal)
        reduced, mu, y, p, eta = program.split(point.dual)
        target, self._slope = program.at(point.z)
        owner, worth = program.owner, program.worth
        self._short = (
            1.0 - program.per_class(x) - idle,
            target - program.per_class(worth * x) + spare,
            1.0 - program.load_by_row @ x - left,
            program.highest - point.z - below[0],
        )
        self._loss = reduced - (mu[owner] - y[owner] * worth + program.load @ p)
        self._loss_z = 1.0 - float(self._slope @ y) - eta[0]
        self.gap = float(point.primal @ point.dual)
        primal_error = max(float(np.abs(part).max()) for part in self._short)
        dual_error = max(abs(self._loss_z), float(np.abs(self._loss).max()))
        self.error = max(self.gap, primal_error, dual_error)
        self.errors = (self.gap, primal_error, dual_error)

    def taken(self) -> _Point:
        """The next point: a predictor tells how much to aim at the centre, a corrector goes there."""
        point = self._point
        self._eliminate()
        product = point.primal * point.dual
        _, d_primal, d_dual = self._direction(-product)
        ahead_p, ahead_d = _reach(point.primal, d_primal), _reach(point.dual, d_dual)
        gap = float((point.primal + ahead_p * d_primal) @ (point.dual + ahead_d * d_dual))
        centre = (gap / self.gap) ** 3 * self.gap / len(product)
        dz, d_primal, d_dual = self._direction(centre - product - d_primal * d_dual)
        ahead_p = min(1.0, _BOUNDARY * _reach(point.primal, d_primal))
        ahead_d = min(1.0, _BOUNDARY * _reach(point.dual, d_dual))
        return _Point(point.z + ahead_p * dz, point.primal + ahead_p * d_primal, point.dual + ahead_d * d_dual)

    def _eliminate(self) -> None:
        """Each class's two equations solved for time and utility values, centred so that nothing cancels."""
        program, market = self._program, self._program.market
        x, idle, spare, left, below = program.split(self._point.primal)
        reduced, mu, y, p, eta = program.split(self._point.dual)
        self._stiff = stiff = x / reduced
        self._mass = program.per_class(stiff)
        self._mean = program.per_class(stiff * program.worth) / self._mass
        self._off = off = program.worth - self._mean[program.owner]
        self._rho, pi = idle / mu, spare / y
        spread = program.per_class(stiff * off * off) + pi
        self._b11, self._b12 = self._mass + self._rho, self._rho * self._mean
        self._b22 = spread + self._rho * self._mean**2
        self._det = self._b11 * spread + self._mass * self._rho * self._mean**2
        weighted = stiff[program.use_column] * program.load.data
        shape, cells = (market.classes, market.rows), market.classes * market.rows
        self._e1 = np.bincount(program.use_cell, weights=weighted, minlength=cells).reshape(shape)
        moved = -weighted * off[program.use_column]
        self._e2 = np.bincount(program.use_cell, weights=moved, minlength=cells).reshape(shape)
        f1, f2 = self._solve_classes(self._e1, self._e2)
        scaled = program.load_by_row.copy()
        scaled.data = scaled.data * stiff[scaled.indices]
        rows = (scaled @ program.load).toarray() - self._e1.T @ f1 - self._e2.T @ f2
        rows[np.diag_indices(market.rows)] += left / p
        g1, g2 = self._solve_classes(np.zeros((market.classes, 1)), self._slope[:, None])
        cross = (self._e1.T @ g1 + self._e2.T @ g2)[:, 0]
        own = float(self._slope @ g2[:, 0]) + eta[0] / below[0]
        self._system = np.block([[rows, cross[:, None]], [-cross[None, :], np.array([[own]])]])

    def _solve_classes(self, first: FloatArray, second: FloatArray) -> tuple[FloatArray, FloatArray]:
        b11, b12, b22, det = (part[:, None] for part in (self._b11, self._b12, self._b22, self._det))
        return (b22 * first - b12 * second) / det, (b11 * second - b12 * first) / det

    def _direction(self, product: FloatArray) -> tuple[float, FloatArray, FloatArray]:
        """Newton's direction towards products changed by `product` and no residual."""
        program, slope = self._program, self._slope
        c_x, c_idle, c_spare, c_left, c_below = program.split(product)
        x, idle, spare, left, below = program.split(self._point.primal)
        reduced, mu, y, p, eta = program.split(self._point.dual)
        pull = c_x / reduced + self._stiff * self._loss
        time = c_idle / mu - self._short[0]
        h1 = program.per_class(pull) + time
        h2 = self._short[1] - program.per_class(self._off * pull) + c_spare / y + self._mean * time
        h3 = program.load_by_row @ pull + c_left / p - self._short[2]
        h4 = self._loss_z + eta[0] / below[0] * self._short[3] - c_below[0] / below[0]
        k1, k2 = self._solve_classes(h1[:, None], h2[:, None])
        k1, k2 = k1[:, 0], k2[:, 0]
        right = np.append(h3 - self._e1.T @ k1 - self._e2.T @ k2, h4 - slope @ k2)
        solved = np.linalg.solve(self._system, right)
        dp, dz = solved[:-1], float(solved[-1])
        k1, k2 = self._solve_classes((h1 - self._e1 @ dp)[:, None], (h2 - self._e2 @ dp + slope * dz)[:, None])
        nu, dy = k1[:, 0], k2[:, 0]
        dmu = nu + self._mean * dy
        cheaper = nu[program.owner] - self._off * dy[program.owner] + program.load @ dp
        d_eta = self._loss_z - float(slope @ dy)
        d_dual = [cheaper - self._loss, dmu, dy, dp, [d_eta]]
        d_primal = [
            pull - self._stiff * cheaper,
            (c_idle - idle * dmu) / mu,
            (c_spare - spare * dy) / y,
            (c_left - left * dp) / p,
            [self._short[3] - dz],
        ]
        return dz, np.concatenate(d_primal), np.concatenate(d_dual)


def _reach(values: FloatArray, direction: FloatArray) -> float:
    """How far one can go before a value turns negative, at most 1e3."""
    return float(1.0 / max(float((-direction / values).max()), 1e-3))
