"""The assignment of gangs, where no exact answer is quick: prices, greedy fills at them, then local search.

The best fill at prices is improved: a job is placed or moved, the jobs in its way are displaced
(cheapest first, by value or by what moving them loses), jobs displaced without need are put back, the others go where
they still fit; only a strict gain is kept. Between two gains little changes: the jobs of a pool are sorted once by
what it costs to displace them, columns that take the same cost a waiting job the same, and a job that was tried in
vain is not tried again.

Prices for an assignment of gangs, and greedy fills at them: what local search begins with, and what bounds it.

Prices move with the excess of demand, each step smaller than the last (a subgradient method), and every few steps the
jobs are placed greedily in the order of what they gain at them. A first fill begins with the running jobs. Any prices
bound what an assignment can be worth (weak duality); those with the smallest bound are the ones quoted.

Most of many jobs want nothing at the prices that clear a crowded fleet, and few come early enough to find a place. What
a job can gain more than when it was last looked at is bounded by how far prices have moved since, times what it takes;
so it is evaluated again only when that bound allows a gain, or a rank before others that still find room. A fill ends
when no free place is large enough for any job. All of this only saves time: the results are the same to the bit.

Loops are compiled where the work is enough for it (`compiled_loops`).
"""

from typing import Any

import numpy as np

from optimizer.assignment.assignment_problem import Assignment, AssignmentProblem
from optimizer.classes.compiled_loops import INTERPRETED, CompiledLoops, interpreted_floats
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
def _take_room(c, use_first, use_pool, use_count, pools, free):  # type: ignore[no-untyped-def]
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
            room = _take_room(chosen, use_first, use_pool, use_count, pools, free)
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
                _take_room(c, use_first, use_pool, use_count, pools, free)
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


SEARCH_PASSES = 4
#: The search ends after it has looked at so many places in all.
WORK_MAX = 40_000_000
#: Gains below this part of the largest value count as rounding.
_STRICT = 1e-9
#: Chains in the table of columns with the same uses.
_CHAINS = 4096


def assign_gangs(question: AssignmentProblem) -> Assignment:
    """Returns an assignment of gangs within the capacity with a large total value, and the prices that bound it."""
    if not question.jobs:
        return Assignment(np.zeros(0, dtype=np.int64), np.zeros(len(question.capacity)), 0.0, 0.0)
    column, prices, bound, order = fill_at_prices(question)
    strict = _STRICT * float(question.value.max())
    slack = bound - question.value_of(column)
    if slack > strict:
        lag = lag_behind_best(question, prices)
        pools = len(question.capacity) - question.limits
        order = order[np.logical_or.reduceat(lag < slack, question.first)[order]]
        column = _improved(column, *question.table, question.capacity, pools, order, lag, slack, strict)
    return Assignment(column, prices, question.value_of(column), bound)


def _improved(column: IntArray, *told: Any) -> IntArray:
    """Returns the columns after local search (n,): interpreted code does the first steps, and compiled code starts
    anew where those are not enough.
    """
    *tables, order, lag, slack, strict = told
    while _loops.interprets(1.0):
        found, most = column.copy(), int(INTERPRETED.steps_left)
        with interpreted_floats():
            steps = _search(*tables, found, order, lag, slack, strict, SEARCH_PASSES, most)
        INTERPRETED.spent += steps
        if steps <= most:
            return found
        _loops.exceed()
    _loops.compiled("_search")(*tables, column, order, lag, slack, strict, SEARCH_PASSES, WORK_MAX)
    return column


# Numba's cache of a module does not see that another has changed, so modules share no loops.


@_loops
def _take(c, sign, use_first, use_pool, use_count, free):  # type: ignore[no-untyped-def]
    for u in range(use_first[c], use_first[c + 1]):
        free[use_pool[u]] -= sign * use_count[u]


@_loops
def _in_one_pool(c, use_first, use_pool, pools):  # type: ignore[no-untyped-def]
    """Returns whether column c takes accelerators of one pool only; rows beyond the pools belong to entities."""
    u = use_first[c]
    return use_first[c + 1] - u == 1 or use_pool[u + 1] >= pools


@_loops
def _new_home(k, without, first, value, use_first, use_pool, use_count, free):  # type: ignore[no-untyped-def]
    """Returns the most valuable column of job k that fits and does not use pool `without` (-1: any may be used); -1:
    none.
    """
    best, chosen = 0.0, -1
    for c in range(first[k], first[k + 1]):
        avoids = True
        for u in range(use_first[c], use_first[c + 1]):
            avoids = avoids and use_pool[u] != without
        if avoids and value[c] > best and _fits(c, use_first, use_pool, use_count, free):
            best, chosen = value[c], c
    return chosen


@_loops
def _cheapest(  # type: ignore[no-untyped-def]
    j, r, by_move, first, value, use_first, use_pool, use_count, free, column, members, load, losses, queue
):
    """Writes into `queue` the places in pool r's list of all jobs but j, those that are cheapest to displace first."""
    for i in range(load[r]):
        k = members[r, i]
        c = column[k]
        loss = value[c]
        if by_move:
            home = _new_home(k, r, first, value, use_first, use_pool, use_count, free)
            loss -= value[home] if home >= 0 else 0.0
        losses[i] = np.inf if k == j else loss / use_count[use_first[c]]
    queue[: load[r]] = np.argsort(losses[: load[r]], kind="mergesort")


@_loops
def _takes_of(c, row, use_first, use_pool):  # type: ignore[no-untyped-def]
    """Returns whether column c uses this row of an entity."""
    takes = False
    for v in range(use_first[c] + 1, use_first[c + 1]):
        takes = takes or use_pool[v] == row
    return takes


@_loops
def _displaced(  # type: ignore[no-untyped-def]
    j, r, missing, scarce, queue, use_first, use_pool, use_count, column, members, load, victims
):
    """Writes into `victims` the jobs to displace from pool r so that `missing` accelerators are free, and returns how
    many.

    Takes jobs in the order of `queue` and spares those without need; only jobs that also use the row `scarce` (-1:
    any).
    """
    count, freed = 0, 0.0
    for i in queue[: load[r]]:
        if freed >= missing - 1e-9:
            break
        k = members[r, i]
        if k == j or (scarce >= 0 and not _takes_of(column[k], scarce, use_first, use_pool)):
            continue
        victims[count] = k
        freed += use_count[use_first[column[k]]]
        count += 1
    if freed < missing - 1e-9:
        return 0
    kept = 0
    for i in range(count):  # Jobs displaced later may have made earlier ones unnecessary.
        held = use_count[use_first[column[victims[i]]]]
        if freed - held >= missing - 1e-9:
            freed -= held
        else:
            victims[kept] = victims[i]
            kept += 1
    return kept


@_loops
def _change(  # type: ignore[no-untyped-def]
    j, c, victims, count, first, value, use_first, use_pool, use_count, free, column, homes
):
    """Puts job j into column c and the victims where they still fit (`homes` receives where); returns the gain in
    value.
    """
    gain = value[c]
    if column[j] >= 0:
        gain -= value[column[j]]
        _take(column[j], -1.0, use_first, use_pool, use_count, free)
    for i in range(count):
        gain -= value[column[victims[i]]]
        _take(column[victims[i]], -1.0, use_first, use_pool, use_count, free)
    _take(c, 1.0, use_first, use_pool, use_count, free)
    for i in range(count):
        homes[i] = _new_home(victims[i], -1, first, value, use_first, use_pool, use_count, free)
        if homes[i] >= 0:
            gain += value[homes[i]]
            _take(homes[i], 1.0, use_first, use_pool, use_count, free)
    return gain


@_loops
def _undo(j, c, victims, count, use_first, use_pool, use_count, free, column, homes):  # type: ignore[no-untyped-def]
    """Restores the free accelerators as they were before `_change`."""
    for i in range(count):
        if homes[i] >= 0:
            _take(homes[i], -1.0, use_first, use_pool, use_count, free)
        _take(column[victims[i]], 1.0, use_first, use_pool, use_count, free)
    _take(c, -1.0, use_first, use_pool, use_count, free)
    if column[j] >= 0:
        _take(column[j], 1.0, use_first, use_pool, use_count, free)


@_loops
def _file(j, c, use_first, use_pool, pools, column, members, load):  # type: ignore[no-untyped-def]
    """Moves job j to column c (-1: it waits). Lists of pools hold the jobs that use one pool only: no others are
    displaced.
    """
    old = column[j]
    if old >= 0 and _in_one_pool(old, use_first, use_pool, pools):
        r = use_pool[use_first[old]]
        for i in range(load[r]):
            if members[r, i] == j:
                members[r, i] = members[r, load[r] - 1]
                load[r] -= 1
                break
    column[j] = c
    if c >= 0 and _in_one_pool(c, use_first, use_pool, pools):
        r = use_pool[use_first[c]]
        members[r, load[r]] = j
        load[r] += 1


@_loops
def _file_all(placed, use_first, use_pool, use_count, pools, column, members, load, free):  # type: ignore[no-untyped-def]
    """Puts all jobs into these columns, starting from an empty fleet."""
    for j in range(len(placed)):
        if placed[j] >= 0:
            _file(j, placed[j], use_first, use_pool, pools, column, members, load)
            _take(placed[j], 1.0, use_first, use_pool, use_count, free)


@_loops
def _make_room(  # type: ignore[no-untyped-def]
    j, c, by_move, way, first, value, use_first, use_pool, use_count, pools, free, column, members, load, victims,
    losses, queues, is_sorted
):  # fmt: skip
    """Writes into `victims` the jobs to displace so that column c fits, pool by pool, and returns how many; 0: they
    would not do. `way`: which order of displacement.
    """
    begin, end, count = use_first[c], use_first[c + 1], 0
    is_alone = _in_one_pool(c, use_first, use_pool, pools)
    for u in range(begin, begin + 1 if is_alone else end):
        r = use_pool[u]
        if r >= pools:
            break
        missing, scarce = use_count[u] - free[r], -1
        if not is_alone and missing <= 1e-9:
            continue
        for v in range(u + 1, end if is_alone else u + 1):
            lack = use_count[v] - free[use_pool[v]]
            if lack > 1e-9 and (scarce < 0 or lack > missing):
                scarce, missing = use_pool[v], max(missing, lack)
        if way == 2 or not is_sorted[r, way]:
            _cheapest(
                j if way == 2 else -1, r, by_move, first, value, use_first, use_pool, use_count, free, column, members,
                load, losses, queues[r, way],
            )  # fmt: skip
            is_sorted[r, way] = way < 2
        found = _displaced(
            j, r, missing, scarce, queues[r, way], use_first, use_pool, use_count, column, members, load,
            victims[count:],
        )  # fmt: skip
        if found == 0:
            return 0
        count += found
    return count


@_loops
def _try(  # type: ignore[no-untyped-def]
    j, c, by_move, first, value, use_first, use_pool, use_count, pools, free, column, members, load, victims, losses,
    homes, queues, is_sorted
):  # fmt: skip
    """Returns the gain of putting job j into column c, -inf where that is impossible, and how many jobs it displaces.

    The order in which jobs of a pool are displaced (`queues`) is kept until `is_sorted` is reset; where j leaves a
    place to which others might move, it is sorted again.
    """
    if column[j] >= 0:
        _take(column[j], -1.0, use_first, use_pool, use_count, free)
    count, possible = 0, _fits(c, use_first, use_pool, use_count, free)
    if not possible:
        way = 2 if by_move and column[j] >= 0 else int(by_move)
        count = _make_room(
            j, c, by_move, way, first, value, use_first, use_pool, use_count, pools, free, column, members, load,
            victims, losses, queues, is_sorted,
        )  # fmt: skip
        possible = count > 0
        if possible and use_first[c + 1] - use_first[c] > 1:
            for i in range(count):
                _take(column[victims[i]], -1.0, use_first, use_pool, use_count, free)
            possible = _fits(c, use_first, use_pool, use_count, free)
            for i in range(count):
                _take(column[victims[i]], 1.0, use_first, use_pool, use_count, free)
    if column[j] >= 0:
        _take(column[j], 1.0, use_first, use_pool, use_count, free)
    if not possible:
        return -np.inf, 0
    gain = _change(j, c, victims, count, first, value, use_first, use_pool, use_count, free, column, homes)
    _undo(j, c, victims, count, use_first, use_pool, use_count, free, column, homes)
    return gain, count


@_loops
def _are_alike(c, d, use_first, use_pool, use_count):  # type: ignore[no-untyped-def]
    """Returns whether columns c and d take the same counts of the same rows."""
    wide = use_first[c + 1] - use_first[c]
    alike = wide == use_first[d + 1] - use_first[d]
    for i in range(wide if alike else 0):
        u, v = use_first[c] + i, use_first[d] + i
        alike = alike and use_pool[u] == use_pool[v] and use_count[u] == use_count[v]
    return alike


@_loops
def _kinds(use_first, use_pool, use_count, lag, slack):  # type: ignore[no-untyped-def]
    """Returns a number for each column that may be tried, the same for columns with the same uses (c,), and how many
    numbers there are.
    """
    kind, tried, kinds = np.zeros(len(lag), np.int64), np.flatnonzero(lag < slack), 0
    # Kinds with the same hash are a chain: its newest, and the one before each.
    newest, before, member = np.full(_CHAINS, -1), np.empty(len(tried), np.int64), np.empty(len(tried), np.int64)
    for c in tried:
        at = 0
        for u in range(use_first[c], use_first[c + 1]):
            at = ((at * 31 + use_pool[u]) * 31 + int(8.0 * use_count[u])) % _CHAINS
        k = newest[at]
        while k >= 0 and not _are_alike(c, member[k], use_first, use_pool, use_count):
            k = before[k]
        if k < 0:
            k = kinds
            member[k], before[k], newest[at] = c, newest[at], k
            kinds += 1
        kind[c] = k
    return kind, kinds


@_loops
def _search(  # type: ignore[no-untyped-def]
    first, value, use_first, use_pool, use_count, capacity, pools, column, order, lag, slack, strict, passes, work_max
):
    """Improves `column` in place; returns how many places it looked at. `slack`: how far its value is below the bound.

    No assignment with a job in a column comes closer to the bound than by the column's lag: those are not tried.
    """
    n = len(first) - 1
    free = capacity.copy()
    placed = column.copy()
    column[:] = -1
    # A pool holds no more jobs than its accelerators, and no more than there are.
    most = int(min(float(n), capacity.max() + 1.0)) + 1
    members, load = np.zeros((pools, most), np.int64), np.zeros(pools, np.int64)
    losses, victims, homes = np.zeros(most), np.zeros(most * pools, np.int64), np.zeros(most * pools, np.int64)
    queues, is_sorted = np.zeros((pools, 3, most), np.int64), np.zeros((pools, 3), np.bool_)
    _file_all(placed, use_first, use_pool, use_count, pools, column, members, load, free)
    # The number of gains so far; for each job that number at its last vain trial, and the work of that trial.
    work, gains, tried, tried_work = 0, 0, np.full(n, -1, np.int64), np.zeros(n, np.int64)
    # A waiting job displaces the same with each column of a kind, but for rounding, until the next gain.
    kind, kinds = _kinds(use_first, use_pool, use_count, lag, slack)
    loss, taken, known = np.zeros((kinds, 2)), np.zeros((kinds, 2), np.int64), np.full((kinds, 2), -1, np.int64)
    for _ in range(passes):
        before = gains
        for j in order:
            if tried[j] == gains:
                work += tried_work[j]
                if work > work_max:
                    return work
                continue
            best, chosen, best_way, begun = strict, -1, False, work
            for c in range(first[j], first[j + 1]):
                is_worse = column[j] >= 0 and value[c] <= value[column[j]] + strict
                if c == column[j] or is_worse or lag[c] >= slack:
                    continue
                k, waits = kind[c], column[j] < 0
                for by_move in (False, True):
                    way = int(by_move)
                    work += 1 + load[use_pool[use_first[c]]] * (1 + by_move * (first[j + 1] - first[j]))
                    if waits and known[k, way] == gains and value[c] - loss[k, way] < best - strict:
                        gain, count = -np.inf, taken[k, way]
                    else:
                        gain, count = _try(
                            j, c, by_move, first, value, use_first, use_pool, use_count, pools, free, column, members,
                            load, victims, losses, homes, queues, is_sorted,
                        )  # fmt: skip
                        if waits:
                            loss[k, way], taken[k, way], known[k, way] = value[c] - gain, count, gains
                    if gain > best:
                        best, chosen, best_way = gain, c, by_move
                    if count == 0:
                        break
            tried[j], tried_work[j] = gains, work - begun
            if chosen >= 0:
                gains += 1
                slack -= best
                gain, count = _try(
                    j, chosen, best_way, first, value, use_first, use_pool, use_count, pools, free, column, members,
                    load, victims, losses, homes, queues, is_sorted,
                )  # fmt: skip
                _change(j, chosen, victims, count, first, value, use_first, use_pool, use_count, free, column, homes)
                for i in range(count):
                    _file(victims[i], homes[i], use_first, use_pool, pools, column, members, load)
                _file(j, chosen, use_first, use_pool, pools, column, members, load)
                is_sorted[:] = False
            if work > work_max:
                return work
        if gains == before:
            break
    return work
