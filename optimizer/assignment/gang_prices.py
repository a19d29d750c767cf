"""Prices for an assignment of gangs, and greedy fills at them: what local search begins with, and what bounds it.

Prices move with the excess of demand, each step smaller than the last (a subgradient method), and every few steps the
jobs are placed greedily in the order of what they gain at them. A first fill begins with the running jobs. Any prices
bound what an assignment can be worth (weak duality); those with the smallest bound are the ones quoted.

Most of many jobs want nothing at the prices that clear a crowded fleet. How much a job can gain more than when it was
last looked at is bounded by how far prices have moved since, times what it takes, so the job is evaluated again only
when that bound allows a gain. A fill ends when no free place is large enough for any job. Both only save time: the
results are the same to the bit.

Loops are compiled where numba is installed and the work is enough for it (`compiled_loops`).
"""

import numpy as np

from optimizer.assignment.assignment_problem import AssignmentProblem
from optimizer.classes.compiled_loops import CompiledLoops
from optimizer.problem import FloatArray, IntArray

_loops = CompiledLoops(globals())

PRICE_STEPS = 40
FILL_EVERY = 4

#: First column of each job (n + 1,), values (c,), first use of each column (c + 1,), pool and count of each use.
GangTable = tuple[IntArray, FloatArray, IntArray, IntArray, FloatArray]


def gang_table(question: AssignmentProblem) -> GangTable:
    """Returns the columns of a problem by job, and their uses by column, in the form in which the loops read them."""
    columns = len(question.job)
    pool, count = question.use_pool, question.use_count
    first = np.append(question.first, columns)
    if len(question.use_column) == columns and np.array_equal(question.use_column, np.arange(columns)):
        return first, question.value, np.arange(columns + 1), pool, count
    if np.any(question.use_column[1:] < question.use_column[:-1]):
        order = np.argsort(question.use_column, kind="stable")
        pool, count = pool[order], count[order]
    width = np.bincount(question.use_column, minlength=columns)
    return first, question.value, np.append(0, np.cumsum(width)), pool, count


def prices_of_gangs(question: AssignmentProblem) -> tuple[FloatArray, float]:
    """Returns prices of all rows of a problem, floors included (`guarantee_rows`), and the upper bound that they
    prove.
    """
    if not question.jobs:
        return np.zeros(len(question.capacity)), 0.0
    _, prices, bound, _ = fill_at_prices(question, gang_table(question))
    return prices, bound


def fill_at_prices(question: AssignmentProblem, table: GangTable) -> tuple[IntArray, FloatArray, float, IntArray]:
    """Returns the columns of the best fill (n,), the prices with the smallest bound, that bound, and the jobs by
    density.
    """
    size, running = question.size, running_column(question)
    density = np.maximum.reduceat(question.value / size, question.first)
    order = np.argsort(-density, kind="stable")
    steps = (PRICE_STEPS + 1) * len(question.use_count)
    top = float(density.max())
    start = question.start if len(question.start) else np.zeros(len(question.capacity))
    pools = len(question.capacity) - question.limits
    told = *table, question.capacity, pools, running, order, start, question.step or top, top, size
    column, prices, bound = _loops.run("_at_prices", steps, *told)
    return column, prices, float(bound), order


def lag_behind_best(question: AssignmentProblem, table: GangTable, prices: FloatArray) -> FloatArray:
    """Returns how much less each job gains in each of its columns than in its best one (or by waiting), at these
    prices (c,).
    """
    lag: FloatArray = _loops.run("_lag", len(question.use_count), *table, prices)
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
def _fill_by_rank(  # type: ignore[no-untyped-def]
    first, value, use_first, use_pool, use_count, pools, least, free, rank, prices, column
):
    """Does what `_fill` does in ascending order of rank; sorts jobs that will hardly find room only if room is left."""
    smallest = least.min()
    likely = 64 + int(2.0 * free[:pools].sum() / max(smallest, 1e-3))
    if likely >= len(rank):
        order = np.argsort(rank, kind="mergesort")
        return _fill(first, value, use_first, use_pool, use_count, pools, least, free, order, prices, column, 0.0)
    border = np.partition(rank, likely)[likely]
    ahead = np.flatnonzero(rank <= border)
    order = ahead[np.argsort(rank[ahead], kind="mergesort")]
    total = _fill(first, value, use_first, use_pool, use_count, pools, least, free, order, prices, column, 0.0)
    if smallest <= free[:pools].max() + 1e-9:
        behind = np.flatnonzero(rank > border)
        order = behind[np.argsort(rank[behind], kind="mergesort")]
        total = _fill(first, value, use_first, use_pool, use_count, pools, least, free, order, prices, column, total)
    return total


@_loops
def _extents(first, use_first, use_count, least, reach):  # type: ignore[no-untyped-def]
    """Writes into `least` the fewest accelerators that each job takes of its first pool, and into `reach` the most
    that it takes of all rows.
    """
    for j in range(len(first) - 1):
        least[j], reach[j] = np.inf, 0.0
        for c in range(first[j], first[j + 1]):
            taken = 0.0
            for u in range(use_first[c], use_first[c + 1]):
                taken += abs(use_count[u])
            reach[j] = max(reach[j], taken)
            least[j] = min(least[j], use_count[use_first[c]])


@_loops
def _demand(  # type: ignore[no-untyped-def]
    first, value, use_first, use_pool, use_count, size, prices, load, rank, is_ranked, reach, most, moved, unsure
):
    """Writes what all jobs want at these prices into `load`, minus the net density of each job into `rank`; returns
    their total gain.

    `most[j] + reach[j] x moved` bounds what job j can gain; below `unsure` the job wants nothing, whatever the
    rounding.
    """
    load[:] = 0.0
    gained = 0.0
    for j in range(len(first) - 1):
        if not is_ranked and most[j] + reach[j] * moved < unsure:
            continue
        best, chosen, top = -np.inf, -1, -np.inf
        for c in range(first[j], first[j + 1]):
            net = value[c] - _cost(c, use_first, use_pool, use_count, prices)
            if is_ranked:
                top = max(top, net / size[c])
            if net > best:
                best, chosen = net, c
        most[j] = best - reach[j] * moved
        rank[j] = -top
        if best > 0.0:
            gained += best
            for u in range(use_first[chosen], use_first[chosen + 1]):
                load[use_pool[u]] += use_count[u]
    return gained


@_loops
def _at_prices(  # type: ignore[no-untyped-def]
    first, value, use_first, use_pool, use_count, capacity, pools, running, order, start, widest, top, size
):
    """Searches prices at which demand equals capacity; returns the best fill found, the prices with the smallest
    bound, and that bound.
    """
    n, rows = len(first) - 1, len(capacity)
    prices, load, rank = start.copy(), np.zeros(rows), np.zeros(n)
    free = capacity.copy()
    least, reach, most, moved = np.zeros(n), np.zeros(n), np.zeros(n), 0.0
    _extents(first, use_first, use_count, least, reach)
    unsure = -1e-9 * reach.max() * (top + widest + start.max())
    best = np.full(n, -1, np.int64)
    best_total = 0.0
    for j in order:  # Running jobs stay, the most valuable first; the others fill up.
        c = running[j]
        if c >= 0 and value[c] > 0.0 and _fits(c, use_first, use_pool, use_count, free):
            best[j] = c
            best_total += value[c]
            _take(c, use_first, use_pool, use_count, pools, free)
    best_total += _fill(first, value, use_first, use_pool, use_count, pools, least, free, order, prices, best, 0.0)
    bound, quoted = np.inf, prices.copy()
    for step in range(PRICE_STEPS + 1):
        is_ranked = step % FILL_EVERY == 0 or step == PRICE_STEPS
        gained = _demand(
            first, value, use_first, use_pool, use_count, size, prices, load, rank, is_ranked, reach, most, moved,
            unsure,
        )  # fmt: skip
        for r in range(rows):
            gained += capacity[r] * prices[r]
        if gained < bound:
            bound = gained
            quoted[:] = prices
        if is_ranked:
            free[:] = capacity
            column = np.full(n, -1, np.int64)
            total = _fill_by_rank(
                first, value, use_first, use_pool, use_count, pools, least, free, rank, prices, column
            )
            if total > best_total * (1.0 + 1e-9):
                best_total, best = total, column
        furthest = 0.0
        for r in range(rows):
            before = prices[r]
            excess = (load[r] - capacity[r]) / abs(capacity[r]) if capacity[r] != 0 else 1.0
            excess = min(1.0, max(-1.0, excess))
            prices[r] = min(top, max(0.0, prices[r] + excess * widest / 4.0 / (1.0 + step / 2.0)))
            # A floor (a row whose capacity is 0 or negative) is used in negative counts: a higher price of it is a
            # gain.
            furthest = max(furthest, before - prices[r] if capacity[r] > 0 else abs(before - prices[r]))
        moved += furthest
    return best, quoted, bound


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
