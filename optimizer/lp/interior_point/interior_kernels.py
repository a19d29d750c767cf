"""The interior-point method, compiled: cost hulls and level proofs, and the predictor-corrector iterations.

The loops run over classes, instead of over one array after another. Vectors hold C shares, k idle times, k spare
utilities, and r spare capacities, in the order of `InteriorPoint`. Sums over classes are added in their order, so
results depend on nothing but the problem. Importing this module imports numba.
"""

from typing import Any

import numpy as np

from optimizer.classes.compiled_loops import njit
from optimizer.lp.interior_point.mehrotra_step import BOUNDARY, InteriorPoint, LevelProgram, MehrotraStep

_FAST: dict[str, Any] = {"error_model": "numpy", "cache": True}


@njit(**_FAST)
def hull_vertices(first, worth, cost, collinear):  # type: ignore[no-untyped-def]
    """Returns the vertices of the lower hull of the origin and the columns of each class; the last one is repeated
    (worth and cost: (k, v) each).
    """
    classes, widest = len(first) - 1, 1
    for k in range(classes):
        widest = max(widest, first[k + 1] - first[k])
    corner_worth, corner_cost = np.zeros((classes, widest + 1)), np.zeros((classes, widest + 1))
    for k in range(classes):
        at_worth, at_cost = 0.0, 0.0
        for vertex in range(1, widest + 1):
            lowest = np.inf
            for c in range(first[k], first[k + 1]):
                if worth[c] > at_worth:
                    lowest = min(lowest, (cost[c] - at_cost) / (worth[c] - at_worth))
            furthest, most = at_worth, lowest + collinear * abs(lowest)
            for c in range(first[k], first[k + 1]):
                if worth[c] > furthest and (cost[c] - at_cost) / (worth[c] - at_worth) <= most:
                    furthest = worth[c]
            if furthest > at_worth:
                at_cost += lowest * (furthest - at_worth)
                at_worth = furthest
            corner_worth[k, vertex], corner_cost[k, vertex] = at_worth, at_cost
    return corner_worth, corner_cost


@njit(**_FAST)
def cost_of_targets(size, worth, cost, target):  # type: ignore[no-untyped-def]
    """Returns the cost of all members when each reaches its target in the cheapest way; classes that cannot count with
    their last vertex.
    """
    total = 0.0
    for k in range(len(size)):
        total += size[k] * _cost_of_target(worth[k], cost[k], target[k])
    return total


@njit(**_FAST)
def cost_of_level(size, worth, cost, capped, z):  # type: ignore[no-untyped-def]
    """Returns that cost for targets min(slope z, cap), or a floor where there is no slope."""
    slope, cap, floor = capped
    total = 0.0
    for k in range(len(size)):
        target = min(slope[k] * z, cap[k]) if slope[k] > 0 else floor[k]
        total += size[k] * _cost_of_target(worth[k], cost[k], target)
    return total


@njit(**_FAST)
def _cost_of_target(worth, cost, target):  # type: ignore[no-untyped-def]
    edge, last = 0, len(worth) - 2
    while edge < last and worth[edge + 1] < target:
        edge += 1
    low, high = worth[edge], worth[edge + 1]
    part = (target - low) / (high - low) if high > low else 0.0
    return cost[edge] + min(max(part, 0.0), 1.0) * (cost[edge + 1] - cost[edge])


@njit(**_FAST)
def cheapest_level(hull, income, capped, ends, limits):  # type: ignore[no-untyped-def]
    """Returns what `CostHulls.bound` returns, for such targets: the smallest level whose targets cost more than the
    income.
    """
    size, worth, cost = hull
    low, high = ends
    close, most_steps = limits
    above = cost_of_level(size, worth, cost, capped, high) - income
    below = cost_of_level(size, worth, cost, capped, low) - income
    if above <= 0:
        return high
    if below > 0:
        return min(high, low * (1 + close))
    guess, moved = low * (1 + 10 * close), 0
    for _ in range(most_steps):
        least = 0.5 * close * high
        if high - low <= 2 * least:
            break
        guess = min(max(guess, low + least), high - least)
        excess = cost_of_level(size, worth, cost, capped, guess) - income
        if excess > 0:
            if moved > 0:
                below /= 2
            high, above, moved = guess, excess, 1
        else:
            if moved < 0:
                above /= 2
            low, below, moved = guess, excess, -1
        guess = high - above * (high - low) / (above - below)
    return high


class CompiledStep(MehrotraStep):
    """The compiled form of `MehrotraStep`."""

    def __init__(self, program: LevelProgram, point: InteriorPoint) -> None:
        self._point = point
        self._shape, self._target, self._rows = _program_arrays(program)
        now = (point.theta, point.primal, point.dual)
        self._missing, self._loss_theta, self.gap, self.error = _residuals(self._shape, self._target, now, self._rows)

    def taken(self) -> InteriorPoint | None:
        now = (self._point.theta, self._point.primal, self._point.dual)
        missed = (self._missing, self._loss_theta, self.gap)
        fine, theta, primal, dual = _taken(self._shape, self._target, now, missed, self._rows)
        return InteriorPoint(theta, primal, dual) if fine else None


def iterate_compiled(
    program: LevelProgram, point: InteriorPoint, most: int, converged: float, patience: int
) -> tuple[InteriorPoint, int, float]:
    """Iterates until a point has converged or rounding prevents progress; returns the best point, the number of
    iterations, and its error.
    """
    shape, target, rows = _program_arrays(program)
    start = (point.theta, point.primal, point.dual)
    theta, primal, dual, done, error = _iterated(shape, target, start, rows, (most, converged, patience))
    return InteriorPoint(theta, primal, dual), done, error


def _program_arrays(program: LevelProgram) -> tuple[Any, Any, int]:
    problem = program.problem
    shape = (problem.first, problem.use_first, problem.use_row, problem.use_count, program.worth)
    return shape, (program.floor, program.rise), problem.rows


@njit(**_FAST)
def _iterated(shape, target, start, rows, limits):  # type: ignore[no-untyped-def]
    theta, primal, dual = start
    most, converged, patience = limits
    best_theta, best_primal, best_dual, best_error = theta, primal, dual, np.inf
    since, done = 0, 0
    while done < most:
        now = (theta, primal, dual)
        missing, loss_theta, gap, error = _residuals(shape, target, now, rows)
        if error < best_error:
            since = 0
            best_theta, best_primal, best_dual, best_error = theta, primal, dual, error
        else:
            since += 1
        if best_error <= converged or since >= patience:
            break
        fine, theta, primal, dual = _taken(shape, target, now, (missing, loss_theta, gap), rows)
        if not fine:
            break
        done += 1
    return best_theta, best_primal, best_dual, done, best_error


@njit(**_FAST)
def _taken(shape, target, now, missed, rows):  # type: ignore[no-untyped-def]
    """Takes a predictor and a corrector step; returns whether all resulting numbers are finite."""
    theta, primal, dual = now
    missing, loss_theta, gap = missed
    solved, system = _eliminate(shape, target, (primal, dual), rows)
    product = primal * dual
    left_over = (missing, loss_theta)
    _, d_primal, d_dual = _direction(shape, target, (primal, dual), -product, left_over, solved, system)
    ahead_p, ahead_d = _reach(primal, d_primal), _reach(dual, d_dual)
    ahead = 0.0
    for i in range(len(primal)):
        ahead += (primal[i] + ahead_p * d_primal[i]) * (dual[i] + ahead_d * d_dual[i])
    centre = (ahead / gap) ** 3 * gap / len(product)
    for i in range(len(primal)):
        product[i] = centre - product[i] - d_primal[i] * d_dual[i]
    d_theta, d_primal, d_dual = _direction(shape, target, (primal, dual), product, left_over, solved, system)
    ahead_p = min(1.0, BOUNDARY * _reach(primal, d_primal))
    ahead_d = min(1.0, BOUNDARY * _reach(dual, d_dual))
    theta += ahead_p * d_theta
    fine = np.isfinite(theta)
    for i in range(len(primal)):
        d_primal[i] = primal[i] + ahead_p * d_primal[i]
        d_dual[i] = dual[i] + ahead_d * d_dual[i]
        fine = fine and np.isfinite(d_primal[i]) and np.isfinite(d_dual[i])
    return fine, theta, d_primal, d_dual


@njit(**_FAST)
def _direction(shape, target, now, product, left_over, solved, system):  # type: ignore[no-untyped-def]
    pull, free, right = _gathered(shape, target, now, product, left_over, solved)
    found = _solved(system, right)
    d_primal, d_dual = _scattered(shape, target, now, (product, pull, free), left_over[0], solved, found)
    return found[-1], d_primal, d_dual


@njit(**_FAST)
def _reach(values, direction):  # type: ignore[no-untyped-def]
    """Returns the largest step before a value turns negative, at most 1e3."""
    steepest = 1e-3
    for i in range(len(values)):
        steepest = max(steepest, -direction[i] / values[i])
    return 1.0 / steepest


@njit(**_FAST)
def _solved(system, right):  # type: ignore[no-untyped-def]
    """Solves by Gaussian elimination with row pivots, faster for such small systems than a library; NaN where the
    system is singular.
    """
    a, b = system.copy(), right.copy()
    n = len(b)
    for i in range(n):
        pivot = i
        for j in range(i + 1, n):
            if abs(a[j, i]) > abs(a[pivot, i]):
                pivot = j
        if pivot != i:
            for j in range(n):
                a[i, j], a[pivot, j] = a[pivot, j], a[i, j]
            b[i], b[pivot] = b[pivot], b[i]
        for j in range(i + 1, n):
            factor = a[j, i] / a[i, i]
            if factor != 0.0:
                for m in range(i + 1, n):
                    a[j, m] -= factor * a[i, m]
                b[j] -= factor * b[i]
    for i in range(n - 1, -1, -1):
        for j in range(i + 1, n):
            b[i] -= a[i, j] * b[j]
        b[i] /= a[i, i]
    return b


@njit(**_FAST)
def _residuals(shape, target, now, rows):  # type: ignore[no-untyped-def]
    """Computes the residuals of the optimality conditions, each in the place of the variable or multiplier that would
    correct it: the loss of each column, time and utility of each class, each row; and theta's residual, the gap, the
    largest error.
    """
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


@njit(**_FAST)
def _eliminate(shape, target, now, rows):  # type: ignore[no-untyped-def]
    """Computes for each class its mean worth, the matrix of its two equations (b11, b12, b22, determinant) and the
    coefficients with which rows enter them; and the system of rows that is left.
    """
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


@njit(**_FAST)
def _gathered(shape, target, now, product, missed, solved):  # type: ignore[no-untyped-def]
    """Computes the right-hand sides: of each column, of the two equations of each class, and of the system of rows
    that is left.
    """
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


@njit(**_FAST)
def _scattered(shape, target, now, gathered, missing, solved, found):  # type: ignore[no-untyped-def]
    """Computes the direction of all variables and multipliers from that of the rows' prices and of theta."""
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
