"""One iteration of the interior-point method: the scaled program, and a predictor-corrector step (Mehrotra 1992).

Utilities are scaled by the class's best column, rows by their capacity. The classes of a problem meet only in its rows:
eliminating each class's two equations by hand leaves a dense system of (rows + 1). This is the definition;
`optimizer.lp.interior_point.interior_kernels` is the same, compiled.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from optimizer.classes.class_problem import ClassProblem
from optimizer.problem import FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class InteriorPoint:
    """Variables (x, idle, spare, left) in one vector, and their multipliers (reduced cost, mu, y, p).

    The last part of the multipliers over the rows' capacity is the price of each row.
    """

    theta: float
    primal: FloatArray
    dual: FloatArray


class LevelProgram:
    """The program of one problem, scaled. Every class has a column of positive worth; no row has capacity 0."""

    def __init__(self, problem: ClassProblem, worth: FloatArray, floor: FloatArray, rise: FloatArray) -> None:
        """One member of each class is to have the utility `floor` + theta `rise` (k,), (k,)."""
        #: Worth of each class's best column, which utilities are divided by (k,).
        self.best = np.maximum.reduceat(worth, problem.first[:-1])
        self.worth, self.floor, self.rise = worth / self.best[problem.owner], floor / self.best, rise / self.best
        uses = np.diff(problem.use_first)
        load = np.repeat(problem.size[problem.owner], uses) * problem.use_count / problem.capacity[problem.use_row]
        #: The problem with one member per class and rows of capacity 1: a use takes its fraction of the row.
        self.problem = replace(problem, size=np.ones(problem.classes), use_count=load, capacity=np.ones(problem.rows))
        #: Column of each use, and its place in a table of classes and rows (U,).
        self.use_column = np.repeat(np.arange(problem.columns), uses)
        self.cell = problem.owner[self.use_column] * problem.rows + problem.use_row
        #: Where idle, spare and left begin in a vector of variables, and mu, y and p in one of multipliers.
        self.begins = np.cumsum([problem.columns, problem.classes, problem.classes])

        # A starting point far from every boundary: equal shares, scaled so that they use at most half of each row.
        problem, first, theta = self.problem, problem.first[:-1], 0.5
        x = 0.5 / np.diff(problem.first)[problem.owner]
        crowded = np.maximum(1.0, 2 * problem.used(x))
        x /= np.maximum.reduceat(crowded[problem.use_row], problem.use_first[:-1])
        utility = np.add.reduceat(self.worth * x, first)
        spare = np.maximum(utility - self.floor - theta * self.rise, 0.01)
        primal = [x, 1 - np.add.reduceat(x, first), spare, 1 - problem.used(x)]
        y = np.full(problem.classes, 1.0 / max(float(self.rise.sum()), 1e-300))
        p = np.full(problem.rows, 1.0 / problem.rows)
        reduced = problem.cost(p) + y[problem.owner] * (1 - self.worth)
        self.start = InteriorPoint(theta, np.concatenate(primal), np.concatenate([reduced, y, y, p]))

    def cost(self, prices: FloatArray) -> FloatArray:
        """Returns what each column costs at prices of whole rows (C,)."""
        paid = self.problem.use_count * prices[self.problem.use_row]
        return np.bincount(self.use_column, weights=paid, minlength=self.problem.columns).astype(np.float64)


#: Part of the way to the boundary that a step goes.
BOUNDARY = 0.9975


class MehrotraStep:
    """One iteration: residuals of the optimality conditions, and the direction in which they shrink."""

    def __init__(self, program: LevelProgram, point: InteriorPoint) -> None:
        self._program, self._point, problem, worth = program, point, program.problem, program.worth
        self._primal, self._dual = np.split(point.primal, program.begins), np.split(point.dual, program.begins)
        x, idle, spare, left = self._primal
        reduced, mu, y, p = self._dual
        self._slope, self._first, owner = program.rise, problem.first[:-1], problem.owner
        self._short = (
            1.0 - np.add.reduceat(x, self._first) - idle,
            program.floor + point.theta * program.rise - np.add.reduceat(worth * x, self._first) + spare,
            1.0 - problem.used(x) - left,
        )
        self._loss = reduced - (mu[owner] - y[owner] * worth + program.cost(p))
        self._loss_theta = 1.0 - float(self._slope @ y)
        self.gap = float((point.primal * point.dual).sum())  # no BLAS: its threads take longer to start
        primal_error = max(float(np.abs(part).max()) for part in self._short)
        dual_error = max(abs(self._loss_theta), float(np.abs(self._loss).max()))
        self.error = max(self.gap, primal_error, dual_error)

    def taken(self) -> InteriorPoint | None:
        """Returns the next point, by a predictor and a corrector step; None where rounding leaves no finite point.

        The predictor's progress sets how strongly the corrector is centred.
        """
        point = self._point
        with np.errstate(all="ignore"):
            try:
                self._eliminate()
                product = point.primal * point.dual
                _, d_primal, d_dual = self._direction(-product)
                ahead_p, ahead_d = _reach(point.primal, d_primal), _reach(point.dual, d_dual)
                gap = float(((point.primal + ahead_p * d_primal) * (point.dual + ahead_d * d_dual)).sum())
                centre = (gap / self.gap) ** 3 * self.gap / len(product)
                d_theta, d_primal, d_dual = self._direction(centre - product - d_primal * d_dual)
            except np.linalg.LinAlgError:
                return None
            ahead_p = min(1.0, BOUNDARY * _reach(point.primal, d_primal))
            ahead_d = min(1.0, BOUNDARY * _reach(point.dual, d_dual))
            theta, primal = point.theta + ahead_p * d_theta, point.primal + ahead_p * d_primal
            dual = point.dual + ahead_d * d_dual
        finite = np.isfinite(theta) and np.isfinite(primal).all() and np.isfinite(dual).all()
        return InteriorPoint(theta, primal, dual) if finite else None

    def _eliminate(self) -> None:
        """Eliminates each class's two equations, centred against cancellation, and assembles the system of the rows."""
        program, problem = self._program, self._program.problem
        x, idle, spare, left = self._primal
        reduced, mu, y, p = self._dual
        self._stiff = stiff = x / reduced
        self._mass = np.add.reduceat(stiff, self._first)
        self._mean = np.add.reduceat(stiff * program.worth, self._first) / self._mass
        self._off = off = program.worth - self._mean[problem.owner]
        self._rho, pi = idle / mu, spare / y
        spread = np.add.reduceat(stiff * off * off, self._first) + pi
        self._b11, self._b12 = self._mass + self._rho, self._rho * self._mean
        self._b22 = spread + self._rho * self._mean**2
        self._det = self._b11 * spread + self._mass * self._rho * self._mean**2
        weighted = stiff[program.use_column] * problem.use_count
        moved = -weighted * off[program.use_column]
        self._e1, self._e2 = (
            np.bincount(program.cell, weights=values, minlength=problem.classes * problem.rows)
            .reshape(problem.classes, problem.rows)
            .astype(np.float64)
            for values in (weighted, moved)
        )
        f1, f2 = self._solve_classes(self._e1, self._e2)
        if problem.single_use:  # each column loads one row: the matrix of products of loads is diagonal
            own_load = stiff * problem.use_count**2
            crossed = np.diag(np.bincount(problem.use_row, weights=own_load, minlength=problem.rows))
        else:
            loads, scaled = (
                sparse.csr_array((values, problem.use_row, problem.use_first), shape=(problem.columns, problem.rows))
                for values in (problem.use_count, weighted)
            )
            crossed = np.asarray((scaled.T.tocsr() @ loads).toarray())
        rows = crossed - self._e1.T @ f1 - self._e2.T @ f2
        rows[np.diag_indices(problem.rows)] += left / p
        g1, g2 = self._solve_classes(np.zeros((problem.classes, 1)), self._slope[:, None])
        cross = (self._e1.T @ g1 + self._e2.T @ g2)[:, 0]
        own = float(self._slope @ g2[:, 0])
        self._system = np.block([[rows, cross[:, None]], [-cross[None, :], np.array([[own]])]])

    def _solve_classes(self, first: FloatArray, second: FloatArray) -> tuple[FloatArray, FloatArray]:
        b11, b12, b22, det = (part[:, None] for part in (self._b11, self._b12, self._b22, self._det))
        return (b22 * first - b12 * second) / det, (b11 * second - b12 * first) / det

    def _direction(self, product: FloatArray) -> tuple[float, FloatArray, FloatArray]:
        """Returns Newton's direction (of theta, all variables, all multipliers) towards products changed by `product`
        and no residual.
        """
        program, problem, slope = self._program, self._program.problem, self._slope
        c_x, c_idle, c_spare, c_left = np.split(product, program.begins)
        _, idle, spare, left = self._primal
        reduced, mu, y, p = self._dual
        pull = c_x / reduced + self._stiff * self._loss
        time = c_idle / mu - self._short[0]
        h1 = np.add.reduceat(pull, self._first) + time
        h2 = self._short[1] - np.add.reduceat(self._off * pull, self._first) + c_spare / y + self._mean * time
        h3 = problem.used(pull) + c_left / p - self._short[2]
        k1, k2 = self._solve_classes(h1[:, None], h2[:, None])
        k1, k2 = k1[:, 0], k2[:, 0]
        right = np.append(h3 - self._e1.T @ k1 - self._e2.T @ k2, self._loss_theta - slope @ k2)
        solved = np.linalg.solve(self._system, right)
        dp, d_theta = solved[:-1], float(solved[-1])
        k1, k2 = self._solve_classes((h1 - self._e1 @ dp)[:, None], (h2 - self._e2 @ dp + slope * d_theta)[:, None])
        nu, dy = k1[:, 0], k2[:, 0]
        dmu = nu + self._mean * dy
        cheaper = nu[problem.owner] - self._off * dy[problem.owner] + program.cost(dp)
        d_dual = [cheaper - self._loss, dmu, dy, dp]
        d_primal = [
            pull - self._stiff * cheaper,
            (c_idle - idle * dmu) / mu,
            (c_spare - spare * dy) / y,
            (c_left - left * dp) / p,
        ]
        return d_theta, np.concatenate(d_primal), np.concatenate(d_dual)


def _reach(values: FloatArray, direction: FloatArray) -> float:
    """Returns the largest step along the direction that keeps all values nonnegative, at most 1e3."""
    return float(1.0 / max(float((-direction / values).max()), 1e-3))
