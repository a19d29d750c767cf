"""`optimizer.filling.step`, compiled: every class once, instead of every array once. Importing it imports numba.

Vectors hold C shares, k idle times, k spare utilities, r rows' rests, one after the other, as `RisingProgram` splits
them. Sums over classes are added in their order, so results depend on nothing but the problem.
"""

from typing import TYPE_CHECKING, Any

import numba
import numpy as np

from optimizer.filling.step import Point, Step
from optimizer.problem import FloatArray

if TYPE_CHECKING:
    from optimizer.filling.interior import RisingProgram

_FAST: dict[str, Any] = {"error_model": "numpy", "cache": True}


class CompiledStep(Step):
    """The same iteration."""

    def __init__(self, program: "RisingProgram", point: Point) -> None:
        self._program, self._point = program, point
        market = program.market
        self._shape = (market.first, market.use_first, market.use_row, program.load.data, program.worth)
        self._target = (program.floor, program.rise)
        now = (point.theta, point.primal, point.dual)
        self._missing, self._loss_theta, self.gap, self.error = _residuals(self._shape, self._target, now, market.rows)

    def _eliminate(self) -> None:
        point = self._point
        self._solved, self._system = _eliminate(
            self._shape, self._target, (point.primal, point.dual), self._program.market.rows
        )

    def _direction(self, product: FloatArray) -> tuple[float, FloatArray, FloatArray]:
        now = (self._point.primal, self._point.dual)
        pull, free, right = _gathered(
            self._shape, self._target, now, product, (self._missing, self._loss_theta), self._solved
        )
        found = np.linalg.solve(self._system, right)
        d_primal, d_dual = _scattered(
            self._shape, self._target, now, (product, pull, free), self._missing, self._solved, found
        )
        return float(found[-1]), d_primal, d_dual


@numba.njit(**_FAST)
def _residuals(shape, target, now, rows):  # type: ignore[no-untyped-def]
    """What the conditions miss, in the place of the variable whose multiplier or value would mend it: the loss of each
    column, time and utility of each class, each row. And what theta's misses, the gap, the largest error."""
    first, use_first, use_row, load, worth = shape
    floor, rise = target
    theta, primal, dual = now
    classes, columns = len(first) - 1, len(worth)
    idle, spare, left = columns, columns + classes, columns + 2 * classes
    missing = np.empty(left + rows)
    for r in range(rows):
        missing[left + r] = 1.0 - primal[left + r]
    loss_theta, gap, error = 1.0, 0.0, 0.0
    for k in range(classes):
        mu, y = dual[idle + k], dual[spare + k]
        time, utility = 0.0, 0.0
        for c in range(first[k], first[k + 1]):
            x, cost = primal[c], 0.0
            for use in range(use_first[c], use_first[c + 1]):
                cost += load[use] * dual[left + use_row[use]]
                missing[left + use_row[use]] -= load[use] * x
            time += x
            utility += worth[c] * x
            missing[c] = dual[c] - (mu - y * worth[c] + cost)
            gap += x * dual[c]
            error = max(error, abs(missing[c]))
        missing[idle + k] = 1.0 - time - primal[idle + k]
        missing[spare + k] = floor[k] + theta * rise[k] - utility + primal[spare + k]
        gap += primal[idle + k] * mu + primal[spare + k] * y
        error = max(error, abs(missing[idle + k]), abs(missing[spare + k]))
        loss_theta -= rise[k] * y
    for r in range(rows):
        gap += primal[left + r] * dual[left + r]
        error = max(error, abs(missing[left + r]))
    return missing, loss_theta, gap, max(gap, error, abs(loss_theta))


@numba.njit(**_FAST)
def _eliminate(shape, target, now, rows):  # type: ignore[no-untyped-def]
    """Of each class mean worth, and its two equations' matrix (b11, b12, b22, determinant); of both its equations what
    each row enters with; and the system that is left."""
    first, use_first, use_row, load, worth = shape
    rise = target[1]
    primal, dual = now
    classes, columns = len(first) - 1, len(worth)
    idle, spare, left = columns, columns + classes, columns + 2 * classes
    own, entering, stiffness = np.empty((classes, 5)), np.zeros((classes, 2, rows)), np.empty(columns)
    system = np.zeros((rows + 1, rows + 1))
    f1, f2 = np.empty(rows), np.empty(rows)
    for k in range(classes):
        mass, mean, spread = 0.0, 0.0, 0.0
        for c in range(first[k], first[k + 1]):
            stiff = primal[c] / dual[c]
            stiffness[c] = stiff
            mass += stiff
            mean += stiff * worth[c]
        mean /= mass
        e1, e2 = entering[k, 0], entering[k, 1]
        for c in range(first[k], first[k + 1]):
            stiff, off = stiffness[c], worth[c] - mean
            spread += stiff * off * off
            for use in range(use_first[c], use_first[c + 1]):
                weighted = stiff * load[use]
                e1[use_row[use]] += weighted
                e2[use_row[use]] -= weighted * off
                for other in range(use_first[c], use + 1):
                    one, two = use_row[use], use_row[other]
                    twice = 2.0 if one == two and use != other else 1.0
                    system[max(one, two), min(one, two)] += twice * weighted * load[other]
        rho = primal[idle + k] / dual[idle + k]
        spread += primal[spare + k] / dual[spare + k]
        b11, b12, b22 = mass + rho, rho * mean, spread + rho * mean * mean
        det = b11 * spread + mass * rho * mean * mean
        own[k, 0], own[k, 1], own[k, 2], own[k, 3], own[k, 4] = mean, b11, b12, b22, det
        part = 1.0 / det
        g1, g2 = -b12 * rise[k] * part, b11 * rise[k] * part
        for r in range(rows):
            f1[r], f2[r] = (b22 * e1[r] - b12 * e2[r]) * part, (b11 * e2[r] - b12 * e1[r]) * part
            system[rows, r] -= e1[r] * g1 + e2[r] * g2
            for s in range(r + 1):
                system[r, s] -= e1[r] * f1[s] + e2[r] * f2[s]
        system[rows, rows] += rise[k] * g2
    for r in range(rows):
        system[r, r] += primal[left + r] / dual[left + r]
        system[r, rows] = -system[rows, r]
        for s in range(r):
            system[s, r] = system[r, s]
    return (own, entering, stiffness), system


@numba.njit(**_FAST)
def _gathered(shape, target, now, product, missed, solved):  # type: ignore[no-untyped-def]
    """The pull on each column, the right sides of each class's two equations, and those of the system that is left."""
    first, use_first, use_row, load, worth = shape
    rise = target[1]
    dual = now[1]
    missing, loss_theta = missed
    own, entering, stiffness = solved
    classes, columns, rows = len(first) - 1, len(worth), entering.shape[2]
    idle, spare, left = columns, columns + classes, columns + 2 * classes
    pull, free, right = np.empty(columns), np.empty((classes, 2)), np.empty(rows + 1)
    for r in range(rows):
        right[r] = product[left + r] / dual[left + r] - missing[left + r]
    right[rows] = loss_theta
    for k in range(classes):
        mean, b11, b12, b22, det = own[k, 0], own[k, 1], own[k, 2], own[k, 3], own[k, 4]
        time, utility = 0.0, 0.0
        for c in range(first[k], first[k + 1]):
            pull[c] = product[c] / dual[c] + stiffness[c] * missing[c]
            time += pull[c]
            utility += (worth[c] - mean) * pull[c]
            for use in range(use_first[c], use_first[c + 1]):
                right[use_row[use]] += load[use] * pull[c]
        rest = product[idle + k] / dual[idle + k] - missing[idle + k]
        h1 = time + rest
        h2 = missing[spare + k] - utility + product[spare + k] / dual[spare + k] + mean * rest
        k1, k2 = (b22 * h1 - b12 * h2) / det, (b11 * h2 - b12 * h1) / det
        for r in range(rows):
            right[r] -= entering[k, 0, r] * k1 + entering[k, 1, r] * k2
        right[rows] -= rise[k] * k2
        free[k, 0], free[k, 1] = h1, h2
    return pull, free, right


@numba.njit(**_FAST)
def _scattered(shape, target, now, gathered, missing, solved, found):  # type: ignore[no-untyped-def]
    """The direction of all variables and of all multipliers, from that of the rows' prices and of theta."""
    first, use_first, use_row, load, worth = shape
    rise = target[1]
    primal, dual = now
    product, pull, free = gathered
    own, entering, stiffness = solved
    classes, columns, rows = len(first) - 1, len(worth), entering.shape[2]
    idle, spare, left = columns, columns + classes, columns + 2 * classes
    d_primal, d_dual = np.empty(len(primal)), np.empty(len(primal))
    for k in range(classes):
        mean, b11, b12, b22, det = own[k, 0], own[k, 1], own[k, 2], own[k, 3], own[k, 4]
        h1, h2 = free[k, 0], free[k, 1] + rise[k] * found[rows]
        for r in range(rows):
            h1 -= entering[k, 0, r] * found[r]
            h2 -= entering[k, 1, r] * found[r]
        nu, dy = (b22 * h1 - b12 * h2) / det, (b11 * h2 - b12 * h1) / det
        for c in range(first[k], first[k + 1]):
            cheaper = nu - (worth[c] - mean) * dy
            for use in range(use_first[c], use_first[c + 1]):
                cheaper += load[use] * found[use_row[use]]
            d_dual[c] = cheaper - missing[c]
            d_primal[c] = pull[c] - stiffness[c] * cheaper
        dmu = nu + mean * dy
        d_dual[idle + k], d_dual[spare + k] = dmu, dy
        d_primal[idle + k] = (product[idle + k] - primal[idle + k] * dmu) / dual[idle + k]
        d_primal[spare + k] = (product[spare + k] - primal[spare + k] * dy) / dual[spare + k]
    for r in range(rows):
        d_dual[left + r] = found[r]
        d_primal[left + r] = (product[left + r] - primal[left + r] * found[r]) / dual[left + r]
    return d_primal, d_dual
