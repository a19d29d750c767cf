"""Prices for an assignment of gangs, and greedy fills at them: what local search begins with, and what bounds it.

Prices move with the excess of demand, each step smaller than the last (a subgradient method), and every few steps the
jobs are placed greedily in the order of what they gain at them. A first fill begins with the running jobs. Any prices
bound what an assignment can be worth (weak duality); those with the smallest bound are the ones quoted.

Most of many jobs want nothing at the prices that clear a crowded fleet, and few come early enough to find a place. What
a job can gain more than when it was last looked at is bounded by how far prices have moved since, times what it takes;
so it is evaluated again only when that bound allows a gain, or a rank before others that still find room. A fill ends
when no free place is large enough for any job. All of this only saves time: the results are the same to the bit.

Loops are compiled where numba is installed and the work is enough for it (`compiled_loops`).
"""

import numpy as np

from optimizer.assignment.assignment_problem import AssignmentProblem
from optimizer.classes.compiled_loops import CompiledLoops
from optimizer.problem import FloatArray, IntArray

_loops = CompiledLoops(globals())

PRICE_STEPS = 40
FILL_EVERY = 4
#: Of more jobs than this, those that can want nothing are sought; fewer are all looked at.
CROWD = 160


def prices_of_gangs(question: AssignmentProblem) -> tuple[FloatArray, float]:
    """Returns prices of all rows of a problem, floors included (`guarantee_rows`), and the upper bound that they
    prove.
    """
    if not question.jobs:
        return np.zeros(len(question.capacity)), 0.0
    _, prices, bound, _ = _searched(question, is_filled=False)
    return prices, bound


def fill_at_prices(question: AssignmentProblem) -> tuple[IntArray, FloatArray, float, IntArray]:
    """Returns the columns of the best fill (n,), the prices with the smallest bound, that bound, and the jobs by
    density.
    """
    return _searched(question, is_filled=True)


def _searched(question: AssignmentProblem, *, is_filled: bool) -> tuple[IntArray, FloatArray, float, IntArray]:
    """Returns what `fill_at_prices` does; prices and their bound alone are right unless it `is_filled`."""
    steps = (PRICE_STEPS + 1) * len(question.use_count)
    start = question.start if len(question.start) else np.zeros(len(question.capacity))
    pools = len(question.capacity) - question.limits
    told = question.capacity, pools, running_column(question), is_filled, start, question.step
    column, prices, bound, order = _loops.run("_at_prices", steps, *question.table, *told)
    return column, prices, float(bound), order


def lag_behind_best(question: AssignmentProblem, prices: FloatArray) -> FloatArray:
    """Returns how much less each job gains in each of its columns than in its best one (or by waiting), at these
    prices (c,).
    """
    lag: FloatArray = _loops.run("_lag", len(question.use_count), *question.table, prices)
    return lag


def running_column(question: AssignmentProblem) -> IntArray:
    """Returns the column in which each job runs, -1 for a job that waits (n,)."""
    running = np.full(question.jobs, -1, dtype=np.int64)
    runs = np.flatnonzero(question.running)
    running[question.job[runs]] = runs
    return running


# Numba's cache of a module does not see that another has changed, so modules share no loops.


@_loops
def _fits(c, use_first, use_pool, use_count, free):  # type: ignore[no-untyped-def]
    possible = True
    for u in range(use_first[c], use_first[c + 1]):
        possible = possible and use_count[u] <= free[use_pool[u]] + 1e-9
    return possible


@_loops
def _take(c, use_first, use_pool, use_count, pools, free):  # type: ignore[no-untyped-def]
    """Takes the column's accelerators from `free`; returns the largest free count of any pool after that."""
    for u in range(use_first[c], use_first[c + 1]):
        free[use_pool[u]] -= use_count[u]
    return free[:pools].max()


@_loops
def _cost(c, use_first, use_pool, use_count, prices):  # type: ignore[no-untyped-def]
    cost = 0.0
    for u in range(use_first[c], use_first[c + 1]):
        cost += use_count[u] * prices[use_pool[u]]
    return cost


@_loops
def _fill(  # type: ignore[no-untyped-def]
    first, value, use_first, use_pool, use_count, pools, least, free, order, prices, column, total
):
    """Places the jobs without a place in this order, each in the fitting column with the largest net value; returns
    `total` plus their value.

    `least`: the fewest accelerators of a pool that each job takes; a job that needs more than any pool has left is
    skipped.
    """
    room = free[:pools].max()
    for j in order:
        if column[j] >= 0 or least[j] > room + 1e-9:
            continue
        best, chosen = -np.inf, -1
        for c in range(first[j], first[j + 1]):
            net = value[c] - _cost(c, use_first, use_pool, use_count, prices)
            if net > best and _fits(c, use_first, use_pool, use_count, free):
                best, chosen = net, c
        if chosen >= 0:
            column[j] = chosen
            room = _take(chosen, use_first, use_pool, use_count, pools, free)
            total += value[chosen]
    return total


@_loops
def _sizes(use_first, use_pool, use_count, pools):  # type: ignore[no-untyped-def]
    """Returns the accelerators of each column over all pools (c,)."""
    size = np.zeros(len(use_first) - 1)
    for c in range(len(size)):
        for u in range(use_first[c], use_first[c + 1]):
            if use_pool[u] < pools:
                size[c] += use_count[u]
    return size


@_loops
def _extents(  # type: ignore[no-untyped-def]
    first, value, use_first, use_pool, use_count, size, pools, density, least, reach, beyond, share
):
    """Writes for each job the most that it is worth for each accelerator (`density`), the fewest that it takes of its
    first pool (`least`), the most of all pools (`reach`) and of all other rows (`beyond`), and the most of these for
    each accelerator (`share`).
    """
    for j in range(len(first) - 1):
        density[j], least[j], reach[j], beyond[j], share[j] = -np.inf, np.inf, 0.0, 0.0, 0.0
        for c in range(first[j], first[j + 1]):
            other = 0.0
            for u in range(use_first[c], use_first[c + 1]):
                if use_pool[u] >= pools:
                    other += abs(use_count[u])
            density[j] = max(density[j], value[c] / size[c])
            least[j] = min(least[j], use_count[use_first[c]])
            reach[j] = max(reach[j], size[c])
            beyond[j] = max(beyond[j], other)
            share[j] = max(share[j], other / size[c])


@_loops
def _falls(prices, before, looks, pools, capacity, fall, away):  # type: ignore[no-untyped-def]
    """Writes for each earlier look by how much the price of any pool is lower now (`fall`, negative: all are higher by
    that), and that of any other row (`away`, not negative).

    A floor (a row whose capacity is 0 or negative) is used in negative counts: a higher price of it is a gain.
    """
    for s in range(looks):
        fall[s], away[s] = -np.inf, 0.0
        for r in range(pools):
            fall[s] = max(fall[s], before[s, r] - prices[r])
        for r in range(pools, len(prices)):
            lower = before[s, r] - prices[r]
            away[s] = max(away[s], lower if capacity[r] > 0 else abs(lower))


@_loops
def _density(j, first, value, use_first, use_pool, use_count, size, prices):  # type: ignore[no-untyped-def]
    """Returns the most that job j gains for each accelerator at these prices."""
    top = -np.inf
    for c in range(first[j], first[j + 1]):
        top = max(top, (value[c] - _cost(c, use_first, use_pool, use_count, prices)) / size[c])
    return top


@_loops
def _fill_by_density(  # type: ignore[no-untyped-def]
    first, value, use_first, use_pool, use_count, size, pools, least, free, prices, hope, is_exact, column
):
    """Does what `_fill` does in the order of density at these prices, the first of equals first; sorts no further than
    room lasts.

    `hope`: an upper bound on the density of each job; becomes the density itself where that was needed, `is_exact`.
    """
    n, smallest, total, above = len(hope), least.min(), 0.0, np.inf
    likely = 64 + int(2.0 * free[:pools].sum() / max(smallest, 1e-3))
    while above > -np.inf and smallest <= free[:pools].max() + 1e-9:
        border = np.partition(hope, n - likely)[n - likely] if likely < n else -np.inf
        for j in range(n):
            if hope[j] >= border and not is_exact[j]:
                hope[j] = _density(j, first, value, use_first, use_pool, use_count, size, prices)
                is_exact[j] = True
        ahead = np.flatnonzero((hope >= border) & (hope < above))
        order = ahead[np.argsort(-hope[ahead], kind="mergesort")]
        total = _fill(first, value, use_first, use_pool, use_count, pools, least, free, order, prices, column, total)
        above, likely = border, 2 * likely
    return total


@_loops
def _demand(  # type: ignore[no-untyped-def]
    first, value, use_first, use_pool, use_count, prices, load, look, fall, away, least, reach, beyond, best_at, seen,
    unsure,
):  # fmt: skip
    """Writes what all jobs want at these prices into `load`; returns their total gain.

    `best_at[j]` is what job j could gain at look `seen[j]` (-1: it was not looked at). A job that cannot gain more than
    `unsure` by that wants nothing, whatever the rounding.
    """
    load[:] = 0.0
    gained = 0.0
    for j in range(len(first) - 1):
        s = seen[j]
        if s >= 0:
            taken = reach[j] if fall[s] > 0.0 else least[j]
            if best_at[j] + taken * fall[s] + beyond[j] * away[s] < unsure:
                continue
        best, chosen, u = -np.inf, -1, use_first[first[j]]
        for c in range(first[j], first[j + 1]):  # `_cost` written out: most of the time of a decision is spent here.
            cost = use_count[u] * prices[use_pool[u]]
            u += 1
            while u < use_first[c + 1]:
                cost += use_count[u] * prices[use_pool[u]]
                u += 1
            net = value[c] - cost
            if net > best:
                best, chosen = net, c
        best_at[j], seen[j] = best, look
        if best > 0.0:
            gained += best
            for u in range(use_first[chosen], use_first[chosen + 1]):
                load[use_pool[u]] += use_count[u]
    return gained


@_loops
def _at_prices(  # type: ignore[no-untyped-def]
    first, value, use_first, use_pool, use_count, capacity, pools, running, is_filled, start, widest
):
    """Searches prices at which demand equals capacity, with steps of up to `widest` (0: the largest density); returns
    the best fill found (if anything `is_filled`), the prices with the smallest bound, that bound, and the jobs by
    density.
    """
    n, rows = len(first) - 1, len(capacity)
    use_row = use_pool.astype(np.uint32)  # An index without a sign takes a step less to look up.
    prices, load, is_crowd = start.copy(), np.zeros(rows), n > CROWD
    density, least, reach, beyond, share = np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n)
    size = _sizes(use_first, use_pool, use_count, pools)
    _extents(first, value, use_first, use_pool, use_count, size, pools, density, least, reach, beyond, share)
    top = density.max()
    if widest <= 0.0:
        widest = top
    order = np.argsort(-density, kind="mergesort") if is_filled else np.zeros(0, np.int64)
    unsure = -1e-9 * (reach + beyond).max() * (top + widest + start.max())
    # Prices at each look: no prices, then those of each step. What each job could gain, and for each accelerator, and
    # at which look; -1: at none yet.
    before, fall, away = np.zeros((PRICE_STEPS + 2, rows)), np.zeros(PRICE_STEPS + 2), np.zeros(PRICE_STEPS + 2)
    best_at, seen, dense_at, ranked = np.zeros(n), np.full(n, -1, np.int64), density.copy(), np.zeros(n, np.int64)
    free = capacity.copy()
    best = np.full(n, -1, np.int64)
    best_total = 0.0
    if is_filled:
        for j in order:  # Running jobs stay, the most valuable first; the others fill up.
            c = running[j]
            if c >= 0 and value[c] > 0.0 and _fits(c, use_first, use_pool, use_count, free):
                best[j] = c
                best_total += value[c]
                _take(c, use_first, use_pool, use_count, pools, free)
        best_total += _fill(first, value, use_first, use_pool, use_count, pools, least, free, order, prices, best, 0.0)
    bound, quoted = np.inf, prices.copy()
    for step in range(PRICE_STEPS + 1):
        look = step + 1
        if is_crowd:
            before[look] = prices
            _falls(prices, before, look, pools, capacity, fall, away)
        else:
            seen[:] = -1
        gained = _demand(
            first, value, use_first, use_row, use_count, prices, load, look, fall, away, least, reach, beyond,
            best_at, seen, unsure,
        )  # fmt: skip
        for r in range(rows):
            gained += capacity[r] * prices[r]
        if gained < bound:
            bound = gained
            quoted[:] = prices
        if is_filled and (step % FILL_EVERY == 0 or step == PRICE_STEPS):
            free[:] = capacity
            column, hope, is_exact = np.full(n, -1, np.int64), np.full(n, np.inf), np.zeros(n, np.bool_)
            for j in range(n if is_crowd else 0):
                hope[j] = dense_at[j] + fall[ranked[j]] + share[j] * away[ranked[j]] - unsure
            total = _fill_by_density(
                first, value, use_first, use_pool, use_count, size, pools, least, free, prices, hope, is_exact, column
            )
            for j in range(n if is_crowd else 0):
                if is_exact[j]:
                    dense_at[j], ranked[j] = hope[j], look
            if total > best_total * (1.0 + 1e-9):
                best_total, best = total, column
        for r in range(rows):
            excess = (load[r] - capacity[r]) / abs(capacity[r]) if capacity[r] != 0 else 1.0
            excess = min(1.0, max(-1.0, excess))
            prices[r] = min(top, max(0.0, prices[r] + excess * widest / 4.0 / (1.0 + step / 2.0)))
    return best, quoted, bound, order


@_loops
def _lag(first, value, use_first, use_pool, use_count, prices):  # type: ignore[no-untyped-def]
    """Returns how much less each job gains in each of its columns than in its best one (or by waiting), at these
    prices (c,).
    """
    lag = np.zeros(len(value))
    for j in range(len(first) - 1):
        best = 0.0
        for c in range(first[j], first[j + 1]):
            lag[c] = value[c] - _cost(c, use_first, use_pool, use_count, prices)
            best = max(best, lag[c])
        for c in range(first[j], first[j + 1]):
            lag[c] = best - lag[c]
    return lag
