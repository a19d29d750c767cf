"""A pass over all classes, compiled, at one point or at several at once (formulas: `dual_task`).

The response of one class at given prices is its exact choice and the softened one. A class is a table whose rows are
worth, net cost and work space of its columns; and, of the columns in use, share and worth less its mean.

Classes are cut into a fixed number of blocks whose sums are added in order, so results do not depend on how many cores
there are. Small problems run the blocks one after another: waking threads would cost more than it saves. Importing this
module imports numba.
"""

from typing import Any

import numba
import numpy as np

from optimizer.classes.compiled_loops import njit
from optimizer.lp.dual_newton.dual_task import LOG, PLAIN, TARGET, PassArrays, PassGoals, pass_width
from optimizer.problem import FloatArray

#: Options with which all code is compiled that runs once per class. Such code allocates no arrays but works in those of
#: its caller, so it need not count references: counting would take three times as long as the work itself.
FOR_EACH: dict[str, Any] = {"error_model": "numpy", "cache": True, "_nrt": False}

A, N, Y, SHARE, W = 0, 1, 2, 3, 4
#: A goal may be missed by this part of itself, and by this multiple of the rounding error of its computation.
_CLOSE = 1e-14
_DIGIT = 5e-16
_BELOW = 1e-13
_ROOT_STEPS = 60


@njit(**FOR_EACH, inline="always")
def two_cheapest_columns(table, width):  # type: ignore[no-untyped-def]
    """Returns the column that earns most for a member with goal 0 (-1: idle), its net cost, and the least net cost of
    any other column. The loop has no branches: the processor cannot predict which column is lowest.
    """
    low, n_low, second = -1, 0.0, np.inf
    for c in range(width):
        n = table[N, c]
        lower = n < n_low
        other = n_low if lower and low >= 0 else n
        other = np.inf if lower and low < 0 else other
        second = other if other < second else second
        low = c if lower else low
        n_low = n if lower else n_low
    return low, n_low, second


@njit(**FOR_EACH, inline="always")
def single_column(table, used, column):  # type: ignore[no-untyped-def]
    """Gives the job one column for its whole time; returns the number of columns used, 1."""
    used[0], table[SHARE, 0] = column, 1.0
    return 1


@njit(**FOR_EACH, inline="always")
def worth_of_shares(table, used, k):  # type: ignore[no-untyped-def]
    u = 0.0
    for j in range(k):
        u += table[A, used[j]] * table[SHARE, j]
    return u


@njit(**FOR_EACH)
def hull_edge(logarithm, table, width, goal, low, high):  # type: ignore[no-untyped-def]
    """Returns the edge of the lower hull on which the goal lies: its ends (low -1: idle) and slope.

    For logarithms the goal is a weight, and lies where slope times worth is the weight; at a corner of the hull `high`
    is -1 and the slope is what the weight makes it. The edge starts as the widest; what is most below it replaces one
    of its ends.
    """
    while True:
        a_low, n_low = (table[A, low], table[N, low]) if low >= 0 else (0.0, 0.0)
        if logarithm and table[A, high] <= a_low:
            return high, -1, goal / table[A, high]
        slope = (table[N, high] - n_low) / (table[A, high] - a_low)
        base, below, deepest = n_low - slope * a_low, -1, -_BELOW * (abs(n_low) + abs(table[N, high]))
        for c in range(width):
            over = table[N, c] - slope * table[A, c] - base
            if over < deepest and a_low < table[A, c] < table[A, high]:
                below, deepest = c, over
        if below >= 0:
            if slope * table[A, below] < goal if logarithm else table[A, below] < goal:
                low = below
            else:
                high = below
        elif not logarithm or slope * a_low < goal < slope * table[A, high]:
            return low, high, slope
        elif goal <= slope * a_low:
            return low, -1, goal / a_low
        else:
            return high, -1, goal / table[A, high]


@njit(**FOR_EACH)
def softened_edge(logarithm, table, used, width, edge, goal, m, top):  # type: ignore[no-untyped-def]
    """Returns the softened choice: over the exact choice's columns alone if no other column would join, else by a
    search.
    """
    low, high, theta = edge
    a_low, n_low, rest = 0.0, 0.0, 0.0
    if high < 0:
        lam = goal / table[A, low]
        nu, a_high = lam * table[A, low] - table[N, low] - m, table[A, low]
    else:
        a_high = table[A, high]
        if low >= 0:
            a_low, n_low = table[A, low], table[N, low]
        gap = a_high - a_low
        if logarithm and low >= 0:  # lam a.x = goal, lam = (n_high - n_low + m (2 theta - 1)) / gap: a quadratic
            base = table[N, high] - n_low - m
            b, c = base * gap + 2.0 * m * a_low, base * a_low - goal * gap
            root = np.sqrt(max(b * b - 8.0 * m * gap * c, 0.0))
            theta = -2.0 * c / (b + root) if b > 0.0 else (root - b) / (4.0 * m * gap)
        elif logarithm:
            theta = 2.0 * goal / (table[N, high] + np.sqrt(table[N, high] ** 2 + 4.0 * m * goal))
        theta = min(max(theta, 0.0), 1.0)
        if low >= 0:
            lam = max(0.0, (table[N, high] - n_low + m * (2.0 * theta - 1.0)) / gap)
            nu, rest = lam * a_low - n_low - m * (1.0 - theta), 1.0 - theta
        else:
            lam, nu = max(0.0, (table[N, high] + m * theta) / a_high), 0.0
        if logarithm:
            lam = goal / (a_low + theta * gap)
    alone = nu >= 0.0 and (not logarithm or high < 0 or 0.0 < theta < 1.0)
    if alone:
        for c in range(width):
            if lam * table[A, c] - table[N, c] > nu and c != low and c != high:
                alone = False
    if not alone:
        return _root(logarithm, table, used, width, lam, goal, m, top)
    if high < 0:
        return single_column(table, used, low), lam, True
    k = 0
    if rest > 0.0:
        used[0], table[SHARE, 0], k = low, rest, 1
    if theta > 0.0:
        used[k], table[SHARE, k] = high, theta
        k += 1
    return k, lam, low >= 0


@njit(**FOR_EACH)
def project_shares(table, width, lam, m, used):  # type: ignore[no-untyped-def]
    """Writes the shares at a multiplier into `chosen`; returns how many columns have a share, and whether all time is
    used.
    """
    total, most = 0.0, 0.0
    for c in range(width):
        table[Y, c] = lam * table[A, c] - table[N, c]
        if table[Y, c] > 0.0:
            total += table[Y, c]
            most = max(most, table[Y, c])
    nu, full = 0.0, total > m
    if full:
        # Values are measured from the largest, so that no digits are lost; a column more than m below it gets no share.
        nu, count = -m, width + 1
        for c in range(width):
            table[Y, c] -= most
        while True:
            total, left = 0.0, 0
            for c in range(width):
                if table[Y, c] > nu:
                    total += table[Y, c]
                    left += 1
            if left >= count:  # Columns only ever leave: rounding must not bring one back.
                break
            count, nu = left, (total - m) / left
    k = 0
    for c in range(width):
        if table[Y, c] > nu:
            used[k], table[SHARE, k] = c, (table[Y, c] - nu) / m
            k += 1
    return k, full


@njit(**FOR_EACH)
def top_multiplier(table, width, m, top):  # type: ignore[no-untyped-def]
    """Returns a multiplier at which only the columns of most worth are used."""
    lam = max(0.0, (table[N, top] + m) / table[A, top])
    for c in range(width):
        if table[A, c] < table[A, top]:
            lam = max(lam, (table[N, top] - table[N, c] + m) / (table[A, top] - table[A, c]))
    return lam * (1.0 + 1e-9)


@njit(**FOR_EACH, inline="always")
def worth_spread(table, used, k, full):  # type: ignore[no-untyped-def]
    """Returns the derivative of the worth by the multiplier over the columns in use, times the softness; stores their
    worths less the mean.
    """
    if k == 1 and full:
        table[W, 0] = 0.0
        return 0.0
    s1, s2 = 0.0, 0.0
    for j in range(k):
        a = table[A, used[j]]
        s1 += a
        s2 += a * a
    mean = s1 / k if full and k > 0 else 0.0
    for j in range(k):
        table[W, j] = table[A, used[j]] - mean
    spread = s2 - s1 * mean
    return spread if spread >= 1e-12 * s2 else 0.0


@njit(**FOR_EACH)
def _off_plateau(table, width, now, off, m):  # type: ignore[no-untyped-def]
    """Returns, where one column is used all the time, the multiplier at which it and the next column to join meet the
    goal.
    """
    if off > 0.0:  # The worth is too large: lower the multiplier to where a lesser column, or idling, joins.
        at, gap, half = (table[N, now] + m) / table[A, now], table[A, now], 1.0
        for c in range(width):
            if table[A, c] < table[A, now]:
                joins = (table[N, now] - table[N, c] + m) / (table[A, now] - table[A, c])
                if joins > at:
                    at, gap, half = joins, table[A, now] - table[A, c], 0.5
    else:
        at, gap, half = np.inf, 1.0, 0.5
        for c in range(width):
            if table[A, c] > table[A, now]:
                joins = (table[N, c] - table[N, now] - m) / (table[A, c] - table[A, now])
                if joins < at:
                    at, gap = joins, table[A, c] - table[A, now]
    return at - m * off / (half * gap * gap)


@njit(**FOR_EACH)
def _root(logarithm, table, used, width, guess, goal, m, top):  # type: ignore[no-untyped-def]
    """Finds the multiplier at which the goal is met, and the shares there, by Newton steps in a bracket.

    Worth rises with the multiplier, piecewise linearly, so the steps end exactly on the right piece.
    """
    low, high, lam = 0.0, -1.0, guess
    k, full = project_shares(table, width, lam, m, used)
    for _ in range(_ROOT_STEPS):
        u = worth_of_shares(table, used, k)
        off = (lam * u if logarithm else u) - goal
        noise = _DIGIT * lam * table[A, top] ** 2 / m
        if abs(off) <= _CLOSE * goal + (lam * noise if logarithm else noise):
            break
        spread = worth_spread(table, used, k, full)
        if off > 0.0:
            high = lam
        else:
            low = lam
        if logarithm:
            step = lam - off / (u + lam * spread / m) if u > 0.0 else np.inf
        elif spread > 0.0:
            step = lam - m * off / spread
        else:
            step = _off_plateau(table, width, used[0], off, m) if k == 1 else np.inf
        if high < 0.0 and not low < step < np.inf:
            high = max(top_multiplier(table, width, m, top), goal / table[A, top] if logarithm else 0.0, 2.0 * lam)
        if high >= 0.0 and not low < step < high:
            step = 0.5 * (low + high)
        if high >= 0.0 and high - low <= 1e-15 * high:
            break
        lam = step
        k, full = project_shares(table, width, lam, m, used)
    return k, lam, full


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
