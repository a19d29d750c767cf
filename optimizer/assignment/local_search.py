"""The assignment of gangs, where no exact answer is quick: prices, greedy fills at them, then local search.

Prices move with the excess of demand, each step smaller than the last (a subgradient method), and every few steps the
jobs are placed greedily in the order of what they gain at them. A first fill begins with the running jobs. Any prices
bound what an assignment can be worth (weak duality); those with the smallest bound are the ones quoted.

Most of many jobs want nothing at the prices that clear a crowded fleet, and few come early enough to find a place. What
a job can gain more than when it was last looked at is bounded by how far prices have moved since, times what it takes;
so it is evaluated again only when that bound allows a gain, or a rank before others that still find room. A fill ends
when no free place is large enough for any job. All of this only saves time: the results are the same to the bit.

The best fill is improved by local search: a job is placed or moved, the jobs in its way are displaced (cheapest first,
by value or by what moving them loses), jobs displaced without need are put back, the others go where they still fit;
only a strict gain is kept. Between two gains little changes: the jobs of a pool are sorted once by what it costs to
displace them, columns that take the same cost a waiting job the same, and a job that was tried in vain is not tried
again. Loops are compiled where the work is enough for it (`compiled_loops`).
"""

from typing import NamedTuple

import numpy as np

from optimizer.assignment.assignment_problem import Assignment, AssignmentProblem, AssignmentTable, ColumnUses
from optimizer.classes.compiled_loops import INTERPRETED, CompiledLoops, interpreted_floats
from optimizer.problem import BoolArray, FloatArray, IntArray

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
    told = question.table, running_column(question), is_filled, start, question.step
    column, prices, bound, order = _loops.run("_at_prices", steps, *told)
    return column, prices, float(bound), order


def lag_behind_best(question: AssignmentProblem, prices: FloatArray) -> FloatArray:
    """Returns how much less each job gains in each of its columns than in its best one (or by waiting), at these
    prices (c,).
    """
    lag: FloatArray = _loops.run("_lag", len(question.use_count), question.table, prices)
    return lag


def running_column(question: AssignmentProblem) -> IntArray:
    """Returns the column in which each job runs, -1 for a job that waits (n,)."""
    running = np.full(question.jobs, -1, dtype=np.int64)
    runs = np.flatnonzero(question.running)
    running[question.job[runs]] = runs
    return running


class Extents(NamedTuple):
    """What the columns of each job take and are worth, at most and at least (n,)."""

    #: The most that it is worth for each accelerator.
    density: FloatArray
    #: The fewest accelerators that it takes of its first pool, and the most of all pools.
    least: FloatArray
    reach: FloatArray
    #: The most that it takes of all other rows, in all and for each accelerator.
    beyond: FloatArray
    share: FloatArray


class PriceLooks(NamedTuple):
    """The prices of the current look and of those before it; look 0 is at no prices."""

    #: The prices of each look (l, p).
    prices: FloatArray
    #: By how much the price of any pool is lower now than at each look (negative: all are higher by that), and that of
    #: any other row, not negative (l,).
    fall: FloatArray
    away: FloatArray


class Wants(NamedTuple):
    """What the jobs want at prices."""

    #: How much of each row (p,).
    load: FloatArray
    #: What each job could gain when it was last looked at, and at which look; -1: at none yet (n,).
    best_at: FloatArray
    seen: IntArray
    #: A gain below this is none, whatever the rounding.
    unsure: float


class Fill(NamedTuple):
    """A greedy fill under way."""

    #: What is free of each row (p,), and the column of each job, -1: none yet (n,).
    free: FloatArray
    column: IntArray
    #: The fewest accelerators of a pool that each job takes: one that needs more than any pool has left is skipped.
    least: FloatArray


class Densities(NamedTuple):
    """What each job gains for each accelerator at prices: an upper bound, or the density itself where it was needed."""

    hope: FloatArray
    is_exact: BoolArray


# Numba's cache of a module does not see that another has changed, so modules share no loops.


@_loops
def _fits(uses, c, free):  # type: ignore[no-untyped-def]
    use_first, use_pool, use_count = uses
    possible = True
    for u in range(use_first[c], use_first[c + 1]):
        possible = possible and use_count[u] <= free[use_pool[u]] + 1e-9
    return possible


@_loops
def _take(uses, c, sign, free):  # type: ignore[no-untyped-def]
    """Takes the column's accelerators from `free`, or gives them back where the sign is -1."""
    use_first, use_pool, use_count = uses
    for u in range(use_first[c], use_first[c + 1]):
        free[use_pool[u]] -= sign * use_count[u]


@_loops
def _cost(uses, c, prices):  # type: ignore[no-untyped-def]
    use_first, use_pool, use_count = uses
    cost = 0.0
    for u in range(use_first[c], use_first[c + 1]):
        cost += use_count[u] * prices[use_pool[u]]
    return cost


@_loops
def _fill(table, fill, order, prices, total):  # type: ignore[no-untyped-def]
    """Places the jobs without a place in this order, each in the fitting column with the largest net value; returns
    `total` plus their value.
    """
    first, value, uses, pools = table.first, table.value, table.uses, table.pools
    free, column, least = fill.free, fill.column, fill.least
    room = free[:pools].max()
    for j in order:
        if column[j] >= 0 or least[j] > room + 1e-9:
            continue
        best, chosen = -np.inf, -1
        for c in range(first[j], first[j + 1]):
            net = value[c] - _cost(uses, c, prices)
            if net > best and _fits(uses, c, free):
                best, chosen = net, c
        if chosen >= 0:
            column[j] = chosen
            _take(uses, chosen, 1.0, free)
            room = free[:pools].max()
            total += value[chosen]
    return total


@_loops
def _extents(table):  # type: ignore[no-untyped-def]
    first, value, size, (use_first, use_pool, use_count), _, pools = table
    n = len(first) - 1
    density, least, reach, beyond, share = np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n)
    for j in range(n):
        density[j], least[j] = -np.inf, np.inf
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
    return Extents(density, least, reach, beyond, share)


@_loops
def _falls(table, history, look):  # type: ignore[no-untyped-def]
    """Writes for each look before this one by how much prices have fallen since.

    A floor (a row whose capacity is 0 or negative) is used in negative counts: a higher price of it is a gain.
    """
    capacity, pools, before, fall, away = table.capacity, table.pools, history.prices, history.fall, history.away
    for s in range(look):
        fall[s], away[s] = -np.inf, 0.0
        for r in range(pools):
            fall[s] = max(fall[s], before[s, r] - before[look, r])
        for r in range(pools, len(capacity)):
            lower = before[s, r] - before[look, r]
            away[s] = max(away[s], lower if capacity[r] > 0 else abs(lower))


@_loops
def _fill_by_density(table, fill, densities, prices):  # type: ignore[no-untyped-def]
    """Does what `_fill` does in the order of density at these prices, the first of equals first; sorts no further than
    room lasts.
    """
    first, value, size, uses = table.first, table.value, table.size, table.uses
    free, hope, is_exact = fill.free, densities.hope, densities.is_exact
    n, smallest, total, above = len(hope), fill.least.min(), 0.0, np.inf
    likely = 64 + int(2.0 * free[: table.pools].sum() / max(smallest, 1e-3))
    while above > -np.inf and smallest <= free[: table.pools].max() + 1e-9:
        border = np.partition(hope, n - likely)[n - likely] if likely < n else -np.inf
        for j in range(n):
            if hope[j] >= border and not is_exact[j]:
                hope[j], is_exact[j] = -np.inf, True
                for c in range(first[j], first[j + 1]):
                    hope[j] = max(hope[j], (value[c] - _cost(uses, c, prices)) / size[c])
        ahead = np.flatnonzero((hope >= border) & (hope < above))
        order = ahead[np.argsort(-hope[ahead], kind="mergesort")]
        total = _fill(table, fill, order, prices, total)
        above, likely = border, 2 * likely
    return total


@_loops
def _demand(table, extents, history, wants, look):  # type: ignore[no-untyped-def]
    """Writes what all jobs want at the prices of this look; returns their total gain.

    A job that cannot gain anything by what it could gain when it was last looked at wants nothing.
    """
    first, value, _, (use_first, use_pool, use_count), _, _ = table
    (_, least, reach, beyond, _), (load, best_at, seen, unsure) = extents, wants
    prices, fall, away = history.prices[look], history.fall, history.away
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
def _first_fill(table, running, fill, order, prices):  # type: ignore[no-untyped-def]
    """Leaves running jobs where they are, the most valuable first, and fills up with the others; returns the value."""
    kept, uses = 0.0, table.uses
    for j in order:
        c = running[j]
        if c >= 0 and table.value[c] > 0.0 and _fits(uses, c, fill.free):
            fill.column[j] = c
            kept += table.value[c]
            _take(uses, c, 1.0, fill.free)
    return kept + _fill(table, fill, order, prices, 0.0)


@_loops
def _at_prices(table, running, is_filled, start, widest):  # type: ignore[no-untyped-def]
    """Searches prices at which demand equals capacity, with steps of up to `widest` (0: the largest density); returns
    the best fill found (if anything `is_filled`), the prices with the smallest bound, that bound, and the jobs by
    density.
    """
    capacity, n, rows, extents = table.capacity, len(table.first) - 1, len(table.capacity), _extents(table)
    density, least, reach, beyond, share = extents
    # An index without a sign takes a step less to look up.
    uses = ColumnUses(table.uses.first, table.uses.pool.astype(np.uint32), table.uses.amount)
    read = AssignmentTable(table.first, table.value, table.size, uses, capacity, table.pools)
    prices, is_crowd, top = start.copy(), n > CROWD, density.max()
    if widest <= 0.0:
        widest = top
    order = np.argsort(-density, kind="mergesort") if is_filled else np.zeros(0, np.int64)
    unsure = -1e-9 * (reach + beyond).max() * (top + widest + start.max())
    wants = Wants(np.zeros(rows), np.zeros(n), np.full(n, -1, np.int64), unsure)
    looks = PRICE_STEPS + 2
    history = PriceLooks(np.zeros((looks, rows)), np.zeros(looks), np.zeros(looks))
    # The last known density of each job, and at which look.
    dense_at, ranked = density.copy(), np.zeros(n, np.int64)
    free, best = capacity.copy(), np.full(n, -1, np.int64)
    best_total = _first_fill(table, running, Fill(free, best, least), order, prices) if is_filled else 0.0
    bound, quoted = np.inf, prices.copy()
    for step in range(PRICE_STEPS + 1):
        look = step + 1
        history.prices[look] = prices
        if is_crowd:
            _falls(table, history, look)
        else:
            wants.seen[:] = -1
        gained = _demand(read, extents, history, wants, look)
        for r in range(rows):
            gained += capacity[r] * prices[r]
        if gained < bound:
            bound = gained
            quoted[:] = prices
        if is_filled and (step % FILL_EVERY == 0 or step == PRICE_STEPS):
            free[:] = capacity
            column = np.full(n, -1, np.int64)
            now = Densities(np.full(n, np.inf), np.zeros(n, np.bool_))
            for j in range(n if is_crowd else 0):
                now.hope[j] = dense_at[j] + history.fall[ranked[j]] + share[j] * history.away[ranked[j]] - unsure
            total = _fill_by_density(table, Fill(free, column, least), now, prices)
            for j in range(n if is_crowd else 0):
                if now.is_exact[j]:
                    dense_at[j], ranked[j] = now.hope[j], look
            if total > best_total * (1.0 + 1e-9):
                best_total, best = total, column
        for r in range(rows):
            excess = (wants.load[r] - capacity[r]) / abs(capacity[r]) if capacity[r] != 0 else 1.0
            excess = min(1.0, max(-1.0, excess))
            prices[r] = min(top, max(0.0, prices[r] + excess * widest / 4.0 / (1.0 + step / 2.0)))
    return best, quoted, bound, order


@_loops
def _lag(table, prices):  # type: ignore[no-untyped-def]
    """Returns how much less each job gains in each of its columns than in its best one (or by waiting), at these
    prices (c,).
    """
    first, value, uses = table.first, table.value, table.uses
    lag = np.zeros(len(value))
    for j in range(len(first) - 1):
        best = 0.0
        for c in range(first[j], first[j + 1]):
            lag[c] = value[c] - _cost(uses, c, prices)
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
        order = order[np.logical_or.reduceat(lag < slack, question.first)[order]]
        column = _improved(question.table, column, order, Margins(lag, slack, strict))
    return Assignment(column, prices, question.value_of(column), bound)


class Margins(NamedTuple):
    """How far an assignment is from the best that prices allow."""

    #: How much less each job gains in each of its columns than in its best one (c,).
    lag: FloatArray
    #: How far the value of the assignment is below its bound. No assignment with a job in a column comes closer to the
    #: bound than by the column's lag, so columns that lag by more are not tried.
    slack: float
    #: The least gain that is no rounding.
    strict: float


class Effort(NamedTuple):
    """How long a search goes on: passes over the jobs, and places looked at."""

    passes: int
    work: int


class SearchState(NamedTuple):
    """The jobs in their columns as a search exchanges them, and its work space."""

    #: What is free of each row (p,), and the column of each job, -1: it waits (n,).
    free: FloatArray
    column: IntArray
    #: The jobs that use each pool and no other: no others are displaced. Their number is `load`.
    members: IntArray
    load: IntArray
    #: The jobs that a trial displaces, and the columns in which they still fit, -1: none.
    victims: IntArray
    homes: IntArray
    #: Places in `members` of each pool in each order of displacement (by value, by what a move loses, and that once
    #: more without the job which is tried), what displacing each costs, and whether the order is up to date.
    queues: IntArray
    losses: FloatArray
    is_sorted: BoolArray


class Shortage(NamedTuple):
    """What a job lacks in a pool, and the row of an entity whose users have to leave (-1: any may)."""

    job: int
    pool: int
    missing: float
    scarce: int


def _improved(table: AssignmentTable, column: IntArray, order: IntArray, margins: Margins) -> IntArray:
    """Returns the columns after local search (n,): interpreted code does the first steps, and compiled code starts
    anew where those are not enough.
    """
    while _loops.interprets(1.0):
        found, most = column.copy(), int(INTERPRETED.steps_left)
        with interpreted_floats():
            steps = _search(table, found, order, margins, Effort(SEARCH_PASSES, most))
        INTERPRETED.spent += steps
        if steps <= most:
            return found
        _loops.exceed()
    _loops.compiled("_search")(table, column, order, margins, Effort(SEARCH_PASSES, WORK_MAX))
    return column


@_loops
def _in_one_pool(table, c):  # type: ignore[no-untyped-def]
    """Returns whether column c takes accelerators of one pool only; rows beyond the pools belong to entities."""
    u = table.uses.first[c]
    return table.uses.first[c + 1] - u == 1 or table.uses.pool[u + 1] >= table.pools


@_loops
def _new_home(table, k, without, free):  # type: ignore[no-untyped-def]
    """Returns the most valuable column of job k that fits and does not use pool `without` (-1: any may be used); -1:
    none.
    """
    first, value, (use_first, use_pool, use_count) = table.first, table.value, table.uses
    best, chosen = 0.0, -1
    for c in range(first[k], first[k + 1]):
        able = value[c] > best
        for u in range(use_first[c], use_first[c + 1]):  # `_fits` written out: most of the time of a search.
            r = use_pool[u]
            able = able and r != without and use_count[u] <= free[r] + 1e-9
        if able:
            best, chosen = value[c], c
    return chosen


@_loops
def _cheapest(table, state, j, r, way):  # type: ignore[no-untyped-def]
    """Sorts the places in pool r's list of all jobs but j, those that are cheapest to displace first."""
    members, load, losses, uses = state.members, state.load, state.losses, table.uses
    for i in range(load[r]):
        k = members[r, i]
        c = state.column[k]
        loss = table.value[c]
        if way > 0:
            home = _new_home(table, k, r, state.free)
            loss -= table.value[home] if home >= 0 else 0.0
        losses[i] = np.inf if k == j else loss / uses.amount[uses.first[c]]
    state.queues[r, way, : load[r]] = np.argsort(losses[: load[r]], kind="mergesort")


@_loops
def _takes_of(uses, c, row):  # type: ignore[no-untyped-def]
    """Returns whether column c uses this row of an entity."""
    takes = False
    for v in range(uses.first[c] + 1, uses.first[c + 1]):
        takes = takes or uses.pool[v] == row
    return takes


@_loops
def _displaced(uses, state, shortage, queue, victims):  # type: ignore[no-untyped-def]
    """Writes into `victims` the jobs to displace so that nothing is short, and returns how many.

    Takes jobs in the order of `queue` and spares those without need.
    """
    column, load, (j, r, missing, scarce) = state.column, state.load, shortage
    count, freed = 0, 0.0
    for i in queue[: load[r]]:
        if freed >= missing - 1e-9:
            break
        k = state.members[r, i]
        if k == j or (scarce >= 0 and not _takes_of(uses, column[k], scarce)):
            continue
        victims[count] = k
        freed += uses.amount[uses.first[column[k]]]
        count += 1
    if freed < missing - 1e-9:
        return 0
    kept = 0
    for i in range(count):  # Jobs displaced later may have made earlier ones unnecessary.
        held = uses.amount[uses.first[column[victims[i]]]]
        if freed - held >= missing - 1e-9:
            freed -= held
        else:
            victims[kept] = victims[i]
            kept += 1
    return kept


@_loops
def _change(table, state, j, c, count):  # type: ignore[no-untyped-def]
    """Puts job j into column c and the first `count` victims where they still fit; returns the gain in value."""
    value, uses, free, column = table.value, table.uses, state.free, state.column
    victims, homes = state.victims, state.homes
    gain = value[c]
    if column[j] >= 0:
        gain -= value[column[j]]
        _take(uses, column[j], -1.0, free)
    for i in range(count):
        gain -= value[column[victims[i]]]
        _take(uses, column[victims[i]], -1.0, free)
    _take(uses, c, 1.0, free)
    for i in range(count):
        homes[i] = _new_home(table, victims[i], -1, free)
        if homes[i] >= 0:
            gain += value[homes[i]]
            _take(uses, homes[i], 1.0, free)
    return gain


@_loops
def _undo(uses, state, j, c, count):  # type: ignore[no-untyped-def]
    """Restores the free accelerators as they were before `_change`."""
    free, column, victims, homes = state.free, state.column, state.victims, state.homes
    for i in range(count):
        if homes[i] >= 0:
            _take(uses, homes[i], -1.0, free)
        _take(uses, column[victims[i]], 1.0, free)
    _take(uses, c, -1.0, free)
    if column[j] >= 0:
        _take(uses, column[j], 1.0, free)


@_loops
def _file(table, state, j, c):  # type: ignore[no-untyped-def]
    """Moves job j to column c (-1: it waits) in the lists of the pools."""
    column, members, load = state.column, state.members, state.load
    old = column[j]
    if old >= 0 and _in_one_pool(table, old):
        r = table.uses.pool[table.uses.first[old]]
        for i in range(load[r]):
            if members[r, i] == j:
                members[r, i] = members[r, load[r] - 1]
                load[r] -= 1
                break
    column[j] = c
    if c >= 0 and _in_one_pool(table, c):
        r = table.uses.pool[table.uses.first[c]]
        members[r, load[r]] = j
        load[r] += 1


@_loops
def _make_room(table, state, j, c, way):  # type: ignore[no-untyped-def]
    """Writes into the victims the jobs to displace so that column c fits, pool by pool, and returns how many; 0: they
    would not do. `way`: which order of displacement.
    """
    (use_first, use_pool, use_count), free = table.uses, state.free
    begin, end, count = use_first[c], use_first[c + 1], 0
    is_alone = _in_one_pool(table, c)
    for u in range(begin, begin + 1 if is_alone else end):
        r = use_pool[u]
        if r >= table.pools:
            break
        missing, scarce = use_count[u] - free[r], -1
        if not is_alone and missing <= 1e-9:
            continue
        for v in range(u + 1, end if is_alone else u + 1):
            lack = use_count[v] - free[use_pool[v]]
            if lack > 1e-9 and (scarce < 0 or lack > missing):
                scarce, missing = use_pool[v], max(missing, lack)
        if way == 2 or not state.is_sorted[r, way]:
            _cheapest(table, state, j if way == 2 else -1, r, way)
            state.is_sorted[r, way] = way < 2
        shortage = Shortage(j, r, missing, scarce)
        found = _displaced(table.uses, state, shortage, state.queues[r, way], state.victims[count:])
        if found == 0:
            return 0
        count += found
    return count


@_loops
def _try(table, state, j, c, by_move):  # type: ignore[no-untyped-def]
    """Returns the gain of putting job j into column c, -inf where that is impossible, and how many jobs it displaces.

    The order in which jobs of a pool are displaced is kept until `is_sorted` is reset; where j leaves a place to which
    others might move, it is sorted again.
    """
    uses, free, column, victims = table.uses, state.free, state.column, state.victims
    if column[j] >= 0:
        _take(uses, column[j], -1.0, free)
    count, possible = 0, _fits(uses, c, free)
    if not possible:
        way = 2 if by_move and column[j] >= 0 else int(by_move)
        count = _make_room(table, state, j, c, way)
        possible = count > 0
        if possible and uses.first[c + 1] - uses.first[c] > 1:
            for i in range(count):
                _take(uses, column[victims[i]], -1.0, free)
            possible = _fits(uses, c, free)
            for i in range(count):
                _take(uses, column[victims[i]], 1.0, free)
    if column[j] >= 0:
        _take(uses, column[j], 1.0, free)
    if not possible:
        return -np.inf, 0
    gain = _change(table, state, j, c, count)
    _undo(uses, state, j, c, count)
    return gain, count


@_loops
def _are_alike(uses, c, d):  # type: ignore[no-untyped-def]
    """Returns whether columns c and d take the same counts of the same rows."""
    use_first, use_pool, use_count = uses
    wide = use_first[c + 1] - use_first[c]
    alike = wide == use_first[d + 1] - use_first[d]
    for i in range(wide if alike else 0):
        u, v = use_first[c] + i, use_first[d] + i
        alike = alike and use_pool[u] == use_pool[v] and use_count[u] == use_count[v]
    return alike


@_loops
def _kinds(uses, margins):  # type: ignore[no-untyped-def]
    """Returns a number for each column that may be tried, the same for columns with the same uses (c,), and how many
    numbers there are.
    """
    (use_first, use_pool, use_count), lag = uses, margins.lag
    kind, tried, kinds = np.zeros(len(lag), np.int64), np.flatnonzero(lag < margins.slack), 0
    # Kinds with the same hash are a chain: its newest, and the one before each.
    newest, before, member = np.full(_CHAINS, -1), np.empty(len(tried), np.int64), np.empty(len(tried), np.int64)
    for c in tried:
        at = 0
        for u in range(use_first[c], use_first[c + 1]):
            at = ((at * 31 + use_pool[u]) * 31 + int(8.0 * use_count[u])) % _CHAINS
        k = newest[at]
        while k >= 0 and not _are_alike(uses, c, member[k]):
            k = before[k]
        if k < 0:
            k = kinds
            member[k], before[k], newest[at] = c, newest[at], k
            kinds += 1
        kind[c] = k
    return kind, kinds


@_loops
def _begun(table, column):  # type: ignore[no-untyped-def]
    """Returns the state of a search that begins with these columns, which it changes in place."""
    n, pools, placed = len(column), table.pools, column.copy()
    column[:] = -1
    # A pool holds no more jobs than its accelerators, and no more than there are.
    most = int(min(float(n), table.capacity.max() + 1.0)) + 1
    state = SearchState(
        table.capacity.copy(), column, np.zeros((pools, most), np.int64), np.zeros(pools, np.int64),
        np.zeros(most * pools, np.int64), np.zeros(most * pools, np.int64), np.zeros((pools, 3, most), np.int64),
        np.zeros(most), np.zeros((pools, 3), np.bool_),
    )  # fmt: skip
    for j in range(n):
        if placed[j] >= 0:
            _file(table, state, j, placed[j])
            _take(table.uses, placed[j], 1.0, state.free)
    return state


@_loops
def _search(table, column, order, margins, effort):  # type: ignore[no-untyped-def]
    """Improves `column` in place; returns how many places it looked at."""
    n, first, value, (lag, slack, strict) = len(column), table.first, table.value, margins
    state = _begun(table, column)
    load = state.load
    # The number of gains so far; for each job that number at its last vain trial, and the work of that trial.
    work, gains, tried, tried_work = 0, 0, np.full(n, -1, np.int64), np.zeros(n, np.int64)
    # A waiting job displaces the same with each column of a kind, but for rounding, until the next gain.
    kind, kinds = _kinds(table.uses, margins)
    loss, taken, known = np.zeros((kinds, 2)), np.zeros((kinds, 2), np.int64), np.full((kinds, 2), -1, np.int64)
    for _ in range(effort.passes):
        before = gains
        for j in order:
            if tried[j] == gains:
                work += tried_work[j]
                if work > effort.work:
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
                    lookups = load[table.uses.pool[table.uses.first[c]]]
                    work += 1 + lookups * (1 + by_move * (first[j + 1] - first[j]))
                    if waits and known[k, way] == gains and value[c] - loss[k, way] < best - strict:
                        gain, count = -np.inf, taken[k, way]
                    else:
                        gain, count = _try(table, state, j, c, by_move)
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
                gain, count = _try(table, state, j, chosen, best_way)
                _change(table, state, j, chosen, count)
                for i in range(count):
                    _file(table, state, state.victims[i], state.homes[i])
                _file(table, state, j, chosen)
                state.is_sorted[:] = False
            if work > effort.work:
                return work
        if gains == before:
            break
    return work
