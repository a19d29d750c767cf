"""A pass over all classes, compiled: see `softened` for what it computes. Importing it imports numba.

Classes are cut into a fixed number of blocks whose sums are added in order, so results do not depend on how many cores
there are. Small markets run the blocks one after another: waking threads would cost more than it saves.
"""

import numba
import numpy as np

from optimizer.prices.softened import LOG, PLAIN, TARGET, Supply, Wants, width_of
from optimizer.problem import FloatArray

_BLOCKS = 64
#: Classes from which on threads pay.
_PARALLEL_FROM = 30_000
#: A goal may be missed by this part of itself, and by so much of what rounding costs in its computation.
_CLOSE = 1e-14
_DIGIT = 5e-16
_BELOW = 1e-13
_REACH = 1e-12
_ROOT_STEPS = 60
#: Goals so close to the most that a class can have are met by the most.
_NEAR = 1e-9


def run(supply: Supply, wants: Wants, prices: FloatArray, softness: FloatArray, x: FloatArray) -> FloatArray:
    """Sums over all classes (see `softened.sums_of`); `x`, if not empty, receives the shares (C,)."""
    out = np.zeros((_BLOCKS, width_of(len(prices))))
    walk = _parallel if len(supply.size) >= _PARALLEL_FROM else _serial
    walk(supply, wants, prices, softness, out, x)
    total: FloatArray = out.sum(axis=0)
    return total


@numba.njit(parallel=True, cache=True)
def _parallel(supply, wants, prices, softness, out, x):  # type: ignore[no-untyped-def]
    classes = len(supply.size)
    for block in numba.prange(_BLOCKS):
        _block(
            supply,
            wants,
            prices,
            softness,
            (block * classes // _BLOCKS, (block + 1) * classes // _BLOCKS),
            out[block],
            x,
        )


@numba.njit(cache=True)
def _serial(supply, wants, prices, softness, out, x):  # type: ignore[no-untyped-def]
    classes = len(supply.size)
    for block in range(_BLOCKS):
        _block(
            supply,
            wants,
            prices,
            softness,
            (block * classes // _BLOCKS, (block + 1) * classes // _BLOCKS),
            out[block],
            x,
        )


@numba.njit(cache=True)
def _block(supply, wants, prices, softness, span, out, x):  # type: ignore[no-untyped-def]
    """Add the classes start:stop to `out`."""
    rows, widest = len(prices), 0
    for i in range(span[0], span[1]):
        widest = max(widest, supply.first[i + 1] - supply.first[i])
    a, n, y = np.empty(widest), np.empty(widest), np.empty(widest)
    used, w = np.empty(widest, dtype=np.int64), np.empty(widest)
    scalars = out[3 * rows + rows * rows :]
    for i in range(span[0], span[1]):
        first = supply.first[i]
        width = supply.first[i + 1] - first
        goal, size, rise = wants.goal[i], supply.size[i], wants.rise[i]
        if width == 0:
            scalars[4] += goal > 0.0
            continue
        m = _offer(supply, wants, prices, softness, first, width, a, n)
        if m <= 0.0:
            m = 1e-300
        if wants.kind == PLAIN:
            low = _lowest(a, n, width)
            scalars[0] += size * n[low] if low >= 0 else 0.0
            lam = 0.0
            u, count, s1, s2, full = _project(a, n, width, 0.0, m, y)
        elif wants.kind == TARGET:
            top = a[:width].max()
            if goal > top:
                scalars[4] += goal > top * (1.0 + _REACH)
                goal = top
            if goal <= 0.0 and len(wants.value) == 0:
                continue
            low, high, slope, theta, cost = _edge(a, n, width, goal)
            scalars[0] += size * cost
            scalars[1] += size * slope * rise
            lam = 0.0
            u, count, s1, s2, full = _project(a, n, width, lam, m, y)
            if u < goal and goal >= top * (1.0 - _NEAR):
                lam = _ceiling(a, n, width, m)
                u, count, s1, s2, full = _project(a, n, width, lam, m, y)
            elif u < goal:
                guess = _edge_multiplier(a, n, low, high, theta, m)
                lam, u, count, s1, s2, full = _root(False, a, n, width, guess, goal, m, y)
        else:
            if goal <= 0.0:
                continue
            if a[:width].max() <= 0.0:
                scalars[4] += 1.0
                continue
            low, high, slope, exact, cost = _walk(a, n, width, goal)
            scalars[0] += size * (cost - goal * np.log(exact))
            guess = _walk_multiplier(a, n, low, high, goal, m)
            lam, u, count, s1, s2, full = _root(True, a, n, width, guess, goal, m, y)
            scalars[2] += size * goal * np.log(u)
            scalars[3] -= size * goal * np.log(u)
        mean = s1 / count if full and count > 0 else 0.0
        spread = s2 - s1 * mean
        if spread < 1e-12 * s2:
            spread = 0.0
        k = 0
        for c in range(width):
            if y[c] > 0.0:
                used[k], w[k] = c, a[c] - mean
                k += 1
        _add_shares(supply, wants, first, size, m, n, y, used, k, out, scalars, x)
        kappa = 0.0
        if wants.kind == TARGET and lam > 0.0 and spread > 0.0:
            kappa = 1.0 / spread
            if rise > 0.0:
                for j in range(k):
                    _add_uses(supply, first + used[j], size * rise * w[j] / spread, out, rows)
        elif wants.kind == LOG:
            kappa = lam / (m * u + lam * spread)
        fixed = k - (1 if full else 0) - (1 if wants.kind == TARGET and kappa > 0.0 else 0) <= 0
        if not fixed:
            _add_slopes(supply, first, size / m, (lam, a, n), used, w, k, full, kappa, out, rows)


@numba.njit(cache=True)
def _offer(supply, wants, prices, softness, first, width, a, n):  # type: ignore[no-untyped-def]
    """Worths and net costs of a class; returns its softness."""
    m = 0.0
    if supply.single:
        for c in range(width):
            count, row = supply.use_count[first + c], supply.use_row[first + c]
            n[c] = count * prices[row]
            m += count * softness[row]
    else:
        for c in range(width):
            cost = 0.0
            for use in range(supply.use_first[first + c], supply.use_first[first + c + 1]):
                cost += supply.use_count[use] * prices[supply.use_row[use]]
                m += supply.use_count[use] * softness[supply.use_row[use]]
            n[c] = cost
    if wants.kind == PLAIN:
        for c in range(width):
            a[c] = 0.0
    else:
        for c in range(width):
            a[c] = wants.worth[first + c]
    if len(wants.value) > 0:
        for c in range(width):
            n[c] -= wants.value[first + c]
    return m / width


@numba.njit(cache=True)
def _lowest(a, n, width):  # type: ignore[no-untyped-def]
    """Where a member goes that needs nothing: the column that earns most, of equals the worthiest; -1: idle."""
    low, n_low, a_low = -1, 0.0, 0.0
    for c in range(width):
        if n[c] < n_low or (n[c] == n_low and a[c] > a_low):
            low, n_low, a_low = c, n[c], a[c]
    return low


@numba.njit(cache=True)
def _rise(a, n, width, a_low, n_low, least):  # type: ignore[no-untyped-def]
    """The column of more worth, and at least `least`, at the smallest slope from a point; the farthest of equals."""
    high, slope, a_high = -1, np.inf, 0.0
    for c in range(width):
        if a[c] > a_low and a[c] >= least:
            s = (n[c] - n_low) / (a[c] - a_low)
            if s < slope or (s == slope and a[c] > a_high):
                high, slope, a_high = c, s, a[c]
    return high, slope


@numba.njit(cache=True)
def _edge(a, n, width, goal):  # type: ignore[no-untyped-def]
    """The edge of the lower hull above the goal: its ends (-1: idle, or none), slope, share of the upper, cost."""
    low = _lowest(a, n, width)
    a_low, n_low = (a[low], n[low]) if low >= 0 else (0.0, 0.0)
    if a_low >= goal:
        return low, -1, 0.0, 0.0, n_low
    high, slope = -1, 0.0
    for _ in range(width + 1):
        high, slope = _rise(a, n, width, a_low, n_low, goal)
        better, deepest = -1, -_BELOW * (abs(n_low) + abs(n[high]))
        for c in range(width):
            if a_low < a[c] < goal:
                over = n[c] - n_low - slope * (a[c] - a_low)
                if over < deepest:
                    better, deepest = c, over
        if better < 0:
            break
        low, a_low, n_low = better, a[better], n[better]
    theta = (goal - a_low) / (a[high] - a_low)
    return low, high, slope, theta, n_low + theta * (n[high] - n_low)


@numba.njit(cache=True)
def _edge_multiplier(a, n, low, high, theta, m):  # type: ignore[no-untyped-def]
    """Multiplier of the softened choice if it uses the columns of the edge alone."""
    if high < 0:
        return 0.0
    if low < 0:
        return max(0.0, (n[high] + m * theta) / a[high])
    return max(0.0, (n[high] - n[low] + m * (2.0 * theta - 1.0)) / (a[high] - a[low]))


@numba.njit(cache=True)
def _walk(a, n, width, weight):  # type: ignore[no-untyped-def]
    """Up the lower hull while the marginal logarithm pays: ends of the edge, slope, worth, cost."""
    low = _lowest(a, n, width)
    a_low, n_low = (a[low], n[low]) if low >= 0 else (0.0, 0.0)
    for _ in range(width + 1):
        high, slope = _rise(a, n, width, a_low, n_low, 0.0)
        if high < 0 or weight <= slope * a_low:
            break
        if weight < slope * a[high]:
            worth = weight / slope
            return low, high, slope, worth, n_low + slope * (worth - a_low)
        low, a_low, n_low = high, a[high], n[high]
    return low, -1, 0.0, a_low, n_low


@numba.njit(cache=True)
def _walk_multiplier(a, n, low, high, weight, m):  # type: ignore[no-untyped-def]
    """Multiplier of the softened choice if it uses the columns of the edge alone: lam a.x = weight, a quadratic."""
    if high < 0:
        return weight / a[low]
    if low < 0:
        theta = 2.0 * weight / (n[high] + np.sqrt(n[high] ** 2 + 4.0 * m * weight))
        return weight / (a[high] * min(theta, 1.0))
    rise, base = a[high] - a[low], n[high] - n[low] - m
    b, c = base * rise + 2.0 * m * a[low], base * a[low] - weight * rise
    theta = (np.sqrt(max(b * b - 8.0 * m * rise * c, 0.0)) - b) / (4.0 * m * rise)
    return weight / (a[low] + min(max(theta, 0.0), 1.0) * rise)


@numba.njit(cache=True)
def _project(a, n, width, lam, m, y):  # type: ignore[no-untyped-def]
    """Shares at a multiplier into y; their worth, number, sums of worths and squares, and whether all time is used."""
    total, most = 0.0, 0.0
    for c in range(width):
        y[c] = lam * a[c] - n[c]
        if y[c] > 0.0:
            total += y[c]
            most = max(most, y[c])
    nu, full = 0.0, total > m
    if full:
        # Measured from the largest, so that no digits are lost; what is more than m below it gets nothing.
        nu, count = -m, width + 1
        for c in range(width):
            y[c] -= most
        while True:
            total, left = 0.0, 0
            for c in range(width):
                if y[c] > nu:
                    total += y[c]
                    left += 1
            if left >= count:  # columns only ever leave: rounding must not bring one back
                break
            count, nu = left, (total - m) / left
    u, s1, s2, count = 0.0, 0.0, 0.0, 0
    for c in range(width):
        if y[c] > nu:
            y[c] = (y[c] - nu) / m
            u += a[c] * y[c]
            s1 += a[c]
            s2 += a[c] * a[c]
            count += 1
        else:
            y[c] = 0.0
    return u, count, s1, s2, full


@numba.njit(cache=True)
def _ceiling(a, n, width, m):  # type: ignore[no-untyped-def]
    """A multiplier at which only the columns of most worth are used."""
    top = 0
    for c in range(width):
        if a[c] > a[top] or (a[c] == a[top] and n[c] < n[top]):
            top = c
    lam = max(0.0, (n[top] + m) / a[top])
    for c in range(width):
        if a[c] < a[top]:
            lam = max(lam, (n[top] - n[c] + m) / (a[top] - a[c]))
    return lam * (1.0 + 1e-9)


@numba.njit(cache=True)
def _off_plateau(a, n, width, y, lam, off, m):  # type: ignore[no-untyped-def]
    """Only one column is used, all the time: the multiplier at which it and the next one to join meet the goal."""
    now = 0
    for c in range(width):
        if y[c] > 0.0:
            now = c
    if off > 0.0:  # worth too much: down to where a lesser column, or idling, joins
        at, gap, half = (n[now] + m) / a[now], a[now], 1.0
        for c in range(width):
            if a[c] < a[now]:
                joins = (n[now] - n[c] + m) / (a[now] - a[c])
                if joins > at:
                    at, gap, half = joins, a[now] - a[c], 0.5
    else:
        at, gap, half = np.inf, 1.0, 0.5
        for c in range(width):
            if a[c] > a[now]:
                joins = (n[c] - n[now] - m) / (a[c] - a[now])
                if joins < at:
                    at, gap = joins, a[c] - a[now]
    return at - m * off / (half * gap * gap)


@numba.njit(cache=True)
def _root(logarithm, a, n, width, guess, goal, m, y):  # type: ignore[no-untyped-def]
    """The multiplier at which the goal is met, and the shares there: Newton steps in a bracket.

    Worth rises with the multiplier, piecewise linearly, so the steps end exactly on the right piece.
    """
    low, high, lam, top = 0.0, -1.0, guess, a[:width].max()
    u, count, s1, s2, full = _project(a, n, width, lam, m, y)
    for _ in range(_ROOT_STEPS):
        off = (lam * u if logarithm else u) - goal
        noise = _DIGIT * lam * top * top / m
        if abs(off) <= _CLOSE * goal + (lam * noise if logarithm else noise):
            break
        spread = s2 - s1 * s1 / count if full and count > 0 else s2
        flat = spread <= 1e-12 * s2
        if off > 0.0:
            high = lam
        else:
            low = lam
        if logarithm:
            step = lam - off / (u + (0.0 if flat else lam * spread / m)) if u > 0.0 else np.inf
        elif flat:
            step = _off_plateau(a, n, width, y, lam, off, m) if count == 1 else np.inf
        else:
            step = lam - m * off / spread
        if high < 0.0 and not low < step < np.inf:
            high = max(_ceiling(a, n, width, m), goal / top if logarithm else 0.0, 2.0 * lam)
        if high >= 0.0 and not low < step < high:
            step = 0.5 * (low + high)
        if high >= 0.0 and high - low <= 1e-15 * high:
            break
        lam = step
        u, count, s1, s2, full = _project(a, n, width, lam, m, y)
    return lam, u, count, s1, s2, full


@numba.njit(cache=True)
def _add_uses(supply, column, amount, out, at):  # type: ignore[no-untyped-def]
    """Add what one column takes of the rows, so many times, to out[at:]."""
    if supply.single:
        out[at + supply.use_row[column]] += amount * supply.use_count[column]
    else:
        for use in range(supply.use_first[column], supply.use_first[column + 1]):
            out[at + supply.use_row[use]] += amount * supply.use_count[use]


@numba.njit(cache=True)
def _add_shares(supply, wants, first, size, m, n, y, used, k, out, scalars, x):  # type: ignore[no-untyped-def]
    """Demand, what is earned, and the shares themselves if asked for."""
    for j in range(k):
        c = used[j]
        scalars[3] += size * y[c] * (n[c] + 0.5 * m * y[c])
        if len(wants.value) > 0:
            scalars[2] += size * wants.value[first + c] * y[c]
        _add_uses(supply, first + c, size * y[c], out, 0)
        if len(x) > 0:
            x[first + c] = y[c]


@numba.njit(cache=True)
def _add_slopes(supply, first, scale, gain, used, w, k, full, kappa, out, rows):  # type: ignore[no-untyped-def]
    """Derivatives of the demand by the prices and by the softness."""
    inverse = 1.0 / k if full else 0.0
    lam, a, n = gain
    for j in range(k):
        along = 0.0
        for h in range(k):
            slope = scale * (inverse + kappa * w[j] * w[h] - (1.0 if j == h else 0.0))
            along += slope * (n[used[h]] - lam * a[used[h]])
            if supply.single:
                one, other = first + used[j], first + used[h]
                amount = slope * supply.use_count[one] * supply.use_count[other]
                out[3 * rows + supply.use_row[one] * rows + supply.use_row[other]] += amount
            else:
                for use in range(supply.use_first[first + used[j]], supply.use_first[first + used[j] + 1]):
                    at = 3 * rows + supply.use_row[use] * rows
                    _add_uses(supply, first + used[h], slope * supply.use_count[use], out, at)
        _add_uses(supply, first + used[j], -along, out, 2 * rows)
