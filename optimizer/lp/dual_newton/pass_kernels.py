"""A pass over all classes, compiled, at one point or at several at once (formulas: `dual_task`).

Classes are cut into a fixed number of blocks whose sums are added in order, so results do not depend on how many cores
there are. Small problems run the blocks one after another: waking threads would cost more than it saves. Importing this
module imports numba.
"""

import numba
import numpy as np

from optimizer.classes.compiled_loops import njit
from optimizer.lp.dual_newton.class_kernels import (
    FOR_EACH,
    SHARE,
    A,
    N,
    W,
    Y,
    hull_edge,
    project_shares,
    single_column,
    softened_edge,
    top_multiplier,
    two_cheapest_columns,
    worth_of_shares,
    worth_spread,
)
from optimizer.lp.dual_newton.dual_task import LOG, PLAIN, TARGET, PassArrays, PassGoals, pass_width
from optimizer.problem import FloatArray

_BLOCKS = 64
#: The number of classes from which on threads pay.
_PARALLEL_FROM = 30_000
_REACH = 1e-12
#: Goals this close to the most that a class can have count as that most.
_NEAR = 1e-9


def run_pass(
    supply: PassArrays, goals: PassGoals, prices: FloatArray, softness: FloatArray, x: FloatArray
) -> FloatArray:
    """Returns the sums over all classes (see `dual_task.unpack_sums`); `x`, if not empty, receives the shares (C,)."""
    out = np.zeros((_BLOCKS, pass_width(len(prices))))
    walk = _parallel if len(supply.size) >= _PARALLEL_FROM else _serial
    walk(supply, goals, prices, softness, out, x)
    total: FloatArray = out.sum(axis=0)
    return total


@njit(parallel=True, cache=True)
def _parallel(supply, goals, prices, softness, out, x):  # type: ignore[no-untyped-def]
    classes = len(supply.size)
    for block in numba.prange(_BLOCKS):
        _block(
            supply,
            goals,
            prices,
            softness,
            (block * classes // _BLOCKS, (block + 1) * classes // _BLOCKS),
            out[block],
            x,
        )


@njit(error_model="numpy", cache=True)
def _serial(supply, goals, prices, softness, out, x):  # type: ignore[no-untyped-def]
    classes = len(supply.size)
    for block in range(_BLOCKS):
        _block(
            supply,
            goals,
            prices,
            softness,
            (block * classes // _BLOCKS, (block + 1) * classes // _BLOCKS),
            out[block],
            x,
        )


@njit(error_model="numpy", cache=True)
def _block(supply, goals, prices, softness, span, out, x):  # type: ignore[no-untyped-def]
    """Allocates work space for the widest class of a span, and adds all of its classes to `out`."""
    widest = 0
    for i in range(span[0], span[1]):
        widest = max(widest, supply.first[i + 1] - supply.first[i])
    table, used = np.zeros((5, widest)), np.zeros(widest, dtype=np.int64)
    _classes(supply, goals, prices, softness, span, table, used, out, x)


@njit(**FOR_EACH)
def _classes(supply, goals, prices, softness, span, table, used, out, x):  # type: ignore[no-untyped-def]
    """Adds the classes of a span to `out`."""
    rows = len(prices)
    scalars = 3 * rows + rows * rows
    for i in range(span[0], span[1]):
        first = supply.first[i]
        width = supply.first[i + 1] - first
        goal, size, rise = goals.goal[i], supply.size[i], goals.rise[i]
        if width == 0:
            out[scalars + 4] += goal > 0.0
            continue
        if goal <= 0.0 and (goals.kind == LOG or (goals.kind == TARGET and len(goals.value) == 0)):
            continue
        m = max(_net_costs(supply, goals, prices, softness, first, width, table), 1e-300)
        k, lam, full, cost, slope = _respond(goals.kind, table, used, width, goal, m, out)
        if k < 0:
            continue
        out[scalars] += size * cost
        out[scalars + 1] += size * slope * rise
        _add_class(supply, goals, (first, size, goal, rise), (k, lam, full, m), table, used, out, rows, x)


@njit(**FOR_EACH, inline="always")
def _net_costs(supply, goals, prices, softness, first, width, table):  # type: ignore[no-untyped-def]
    """Writes worths and net costs of a class into its table; returns its softness."""
    m = 0.0
    if supply.single:
        for c in range(width):
            count, row = supply.use_count[first + c], np.uint32(supply.use_row[first + c])
            table[N, c] = count * prices[row]
            table[Y, c] = count * softness[row]
        for c in range(width):
            m += table[Y, c]
    else:
        for c in range(width):
            cost = 0.0
            for use in range(supply.use_first[first + c], supply.use_first[first + c + 1]):
                count, row = supply.use_count[use], np.uint32(supply.use_row[use])
                cost += count * prices[row]
                m += count * softness[row]
            table[N, c] = cost
    if goals.kind != PLAIN:
        for c in range(width):
            table[A, c] = goals.worth[first + c]
    if len(goals.value) > 0:
        for c in range(width):
            table[N, c] -= goals.value[first + c]
    return m / width


@njit(**FOR_EACH)
def _respond(kind, table, used, width, goal, m, out):  # type: ignore[no-untyped-def]
    """Writes the softened choice into the table; returns how many columns it has, its multiplier, whether all time is
    used, and the cost (for LOG: less the logarithm) and slope of the exact choice. A negative number of columns:
    nothing is wanted.
    """
    low, n_low, second = two_cheapest_columns(table, width)
    if kind == PLAIN:
        if low >= 0 and n_low <= -m and second - n_low >= m:
            return single_column(table, used, low), 0.0, True, n_low, 0.0
        k, full = project_shares(table, width, 0.0, m, used)
        return k, 0.0, full, n_low, 0.0
    top, most, n_top = 0, table[A, 0], table[N, 0]
    for c in range(1, width):
        worth, n = table[A, c], table[N, c]
        more = worth > most or (worth == most and n < n_top)
        top, most, n_top = (c if more else top), (worth if more else most), (n if more else n_top)
    if kind == TARGET:
        if goal > table[A, top]:
            out[len(out) - 1] += goal > table[A, top] * (1.0 + _REACH)
            goal = table[A, top]
        k, full = 0, False
        if n_low < 0.0 or goal <= 0.0:
            k, full = project_shares(table, width, 0.0, m, used)
        cost, slope, low, high, theta = n_low, 0.0, low, -1, 0.0
        if goal > (table[A, low] if low >= 0 else 0.0):
            low, high, slope = hull_edge(False, table, width, goal, low, top)
            a_low, n_low = (table[A, low], table[N, low]) if low >= 0 else (0.0, 0.0)
            theta = (goal - a_low) / (table[A, high] - a_low)
            cost = n_low + theta * (table[N, high] - n_low)
        if worth_of_shares(table, used, k) >= goal:
            return k, 0.0, full, cost, slope
        if goal >= table[A, top] * (1.0 - _NEAR):
            lam = top_multiplier(table, width, m, top)
            k, full = project_shares(table, width, lam, m, used)
            return k, lam, full, cost, slope
        if high < 0:  # A column that earns a little reaches the goal alone; its softened share does not.
            low, high, theta = -1, low, goal / table[A, low]
        k, lam, full = softened_edge(False, table, used, width, (low, high, theta), goal, m, top)
        return k, lam, full, cost, slope
    if table[A, top] <= 0.0:
        out[len(out) - 1] += 1.0
        return -1, 0.0, False, 0.0, 0.0
    low, high, slope = hull_edge(True, table, width, goal, low, top)
    worth = goal / slope
    if high < 0:
        cost = table[N, low]
    else:
        n_low = table[N, low] if low >= 0 else 0.0
        cost = n_low + slope * (worth - (table[A, low] if low >= 0 else 0.0))
    k, lam, full = softened_edge(True, table, used, width, (low, high, 0.0), goal, m, top)
    return k, lam, full, cost - goal * np.log(worth), slope


@njit(**FOR_EACH, inline="always")
def _add_uses(supply, column, amount, out, at):  # type: ignore[no-untyped-def]
    """Adds `amount` times what one column takes of the rows to out[at:]."""
    if supply.single:
        out[at + supply.use_row[column]] += amount * supply.use_count[column]
    else:
        for use in range(supply.use_first[column], supply.use_first[column + 1]):
            out[at + supply.use_row[use]] += amount * supply.use_count[use]


@njit(**FOR_EACH, inline="always")
def _add_class(supply, goals, job, answer, table, used, out, rows, x):  # type: ignore[no-untyped-def]
    """Adds demand, earnings and derivatives of one class; writes its shares if `x` is not empty."""
    (first, size, goal, rise), (k, lam, full, m) = job, answer
    scalars = 3 * rows + rows * rows
    for j in range(k):
        c, part = used[j], table[SHARE, j]
        out[scalars + 3] += size * part * (table[N, c] + 0.5 * m * part)
        if len(goals.value) > 0:
            out[scalars + 2] += size * goals.value[first + c] * part
        _add_uses(supply, first + c, size * part, out, 0)
        if len(x) > 0:
            x[first + c] = part
    spread = worth_spread(table, used, k, full)
    kappa = 0.0
    if goals.kind == TARGET and lam > 0.0 and spread > 0.0:
        kappa = 1.0 / spread
        for j in range(k if rise > 0.0 else 0):
            _add_uses(supply, first + used[j], size * rise * table[W, j] / spread, out, rows)
    elif goals.kind == LOG:
        u = worth_of_shares(table, used, k)
        kappa = lam / (m * u + lam * spread)
        earned = size * goal * np.log(u)
        out[scalars + 2] += earned
        out[scalars + 3] -= earned
    if k - (1 if full else 0) - (1 if goals.kind == TARGET and kappa > 0.0 else 0) > 0:
        _add_slopes(supply, first, size / m, lam, table, used, k, full, kappa, out, rows)


@njit(**FOR_EACH)
def _add_slopes(supply, first, scale, lam, table, used, k, full, kappa, out, rows):  # type: ignore[no-untyped-def]
    """Adds the derivatives of the demand by the prices and by the softness."""
    inverse = 1.0 / k if full else 0.0
    for j in range(k):
        along = 0.0
        for h in range(k):
            slope = scale * (inverse + kappa * table[W, j] * table[W, h] - (1.0 if j == h else 0.0))
            along += slope * (table[N, used[h]] - lam * table[A, used[h]])
            if supply.single:
                one, other = first + used[j], first + used[h]
                amount = slope * supply.use_count[one] * supply.use_count[other]
                out[3 * rows + supply.use_row[one] * rows + supply.use_row[other]] += amount
            else:
                for use in range(supply.use_first[first + used[j]], supply.use_first[first + used[j] + 1]):
                    at = 3 * rows + supply.use_row[use] * rows
                    _add_uses(supply, first + used[h], slope * supply.use_count[use], out, at)
        _add_uses(supply, first + used[j], -along, out, 2 * rows)
