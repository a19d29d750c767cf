"""The assignment of gangs, where no exact answer is quick: prices, greedy fills at them, then local search.

Prices move with the excess of demand, each step smaller than the last (a subgradient method), and every few steps the
jobs are placed by what they gain at them; so they are beside who runs now. The best of these fills is improved: a job
is put somewhere or moved, whoever stands in its way is taken out (cheapest first, by value or by what moving them
loses), needless ones are put back, the others where they still fit; only a strict gain is kept. Any prices bound what
an assignment can be worth (weak duality); those with the smallest bound are the ones quoted.

Loops are compiled where numba is installed and the work is enough for it (`compiled_loops`).
"""

from typing import Any

import numpy as np

from optimizer.assignment.assignment_problem import Assignment, AssignmentProblem
from optimizer.classes.compiled_loops import INTERPRETED, CompiledLoops, interpreted_floats
from optimizer.problem import FloatArray, IntArray

_loops = CompiledLoops(globals())

PRICE_STEPS = 40
FILL_EVERY = 4
SEARCH_PASSES = 4
#: Places looked at in the local search, all told: it ends there.
WORK_MAX = 40_000_000
#: Gains below this part of the largest value are rounding.
_STRICT = 1e-9


def assign_gangs(question: AssignmentProblem) -> Assignment:
    """Assign jobs to columns within the capacity so that the values sum up to much."""
    if not question.jobs:
        return Assignment(np.zeros(0, dtype=np.int64), np.zeros(len(question.capacity)), 0.0, 0.0)
    table = _arrays(question)
    column, prices, bound, order = _priced(question, table)
    strict = _STRICT * float(question.value.max())
    slack = bound - question.value_of(column)
    if slack > strict:
        lag = _loops.run("_lag", len(question.use_count), *table, prices)
        column = _improved(column, *table, question.capacity, order, lag, slack, strict)
    return Assignment(column, prices, question.value_of(column), float(bound))


def prices_of_gangs(question: AssignmentProblem) -> FloatArray:
    """The prices that `assign_gangs` finds, of the smallest bound (p,)."""
    return _priced(question, _arrays(question))[1] if question.jobs else np.zeros(len(question.capacity))


def _priced(
    question: AssignmentProblem, table: tuple[IntArray, FloatArray, IntArray, IntArray, FloatArray]
) -> tuple[IntArray, FloatArray, float, IntArray]:
    """The best fill at prices, the prices of the smallest bound, that bound, and the jobs by density."""
    size, running = question.size, _running_column(question)
    density = np.maximum.reduceat(question.value / size, question.first)
    order = np.argsort(-density, kind="stable")
    steps = (PRICE_STEPS + 1) * len(question.use_count)
    column, prices, bound = _loops.run(
        "_at_prices", steps, *table, question.capacity, running, order, float(density.max()), size
    )
    return column, prices, bound, order


def _improved(column: IntArray, *told: Any) -> IntArray:
    """The columns after local search: as written while that takes few steps, and if not, compiled from the start."""
    *tables, order, lag, slack, strict = told
    if INTERPRETED.steps_left > 0:
        found, most = column.copy(), int(INTERPRETED.steps_left)
        with interpreted_floats():
            steps = _search(*tables, found, order, lag, slack, strict, SEARCH_PASSES, most)
        INTERPRETED.spent += steps
        if steps <= most:
            return found
        INTERPRETED.end()
    _loops.compiled("_search")(*tables, column, order, lag, slack, strict, SEARCH_PASSES, WORK_MAX)
    return column


def _arrays(question: AssignmentProblem) -> tuple[IntArray, FloatArray, IntArray, IntArray, FloatArray]:
    """First column of each job (n + 1,), values (c,), first use of each column (c + 1,), pool and count of each use."""
    columns = len(question.job)
    order = np.argsort(question.use_column, kind="stable")
    use_first = np.searchsorted(question.use_column[order], np.arange(columns + 1))
    first = np.append(question.first, columns)
    return first, question.value, use_first, question.use_pool[order], question.use_count[order]


def _running_column(question: AssignmentProblem) -> IntArray:
    """Column in which each job runs, -1: it does not (n,)."""
    running = np.full(question.jobs, -1, dtype=np.int64)
    runs = np.flatnonzero(question.running)
    running[question.job[runs]] = runs
    return running


@_loops
def _fits(c, use_first, use_pool, use_count, free):  # type: ignore[no-untyped-def]
    possible = True
    for u in range(use_first[c], use_first[c + 1]):
        possible = possible and use_count[u] <= free[use_pool[u]] + 1e-9
    return possible


@_loops
def _take(c, sign, use_first, use_pool, use_count, free):  # type: ignore[no-untyped-def]
    for u in range(use_first[c], use_first[c + 1]):
        free[use_pool[u]] -= sign * use_count[u]


@_loops
def _cost(c, use_first, use_pool, use_count, prices):  # type: ignore[no-untyped-def]
    cost = 0.0
    for u in range(use_first[c], use_first[c + 1]):
        cost += use_count[u] * prices[use_pool[u]]
    return cost


@_loops
def _fill(first, value, use_first, use_pool, use_count, free, order, prices, column):  # type: ignore[no-untyped-def]
    """Place the jobs that have no place in this order, each where it gains most of what fits; their value."""
    total = 0.0
    for j in order:
        if column[j] >= 0:
            continue
        best, chosen = -np.inf, -1
        for c in range(first[j], first[j + 1]):
            net = value[c] - _cost(c, use_first, use_pool, use_count, prices)
            if net > best and _fits(c, use_first, use_pool, use_count, free):
                best, chosen = net, c
        if chosen >= 0:
            column[j] = chosen
            _take(chosen, 1.0, use_first, use_pool, use_count, free)
            total += value[chosen]
    return total


@_loops
def _demand(first, value, use_first, use_pool, use_count, size, prices, load, rank):  # type: ignore[no-untyped-def]
    """What all jobs want at these prices, and what they gain in all; `rank` receives the net density of each."""
    load[:] = 0.0
    gained = 0.0
    for j in range(len(first) - 1):
        best, chosen, top = 0.0, -1, -np.inf
        for c in range(first[j], first[j + 1]):
            net = value[c] - _cost(c, use_first, use_pool, use_count, prices)
            top = max(top, net / size[c])
            if net > best:
                best, chosen = net, c
        rank[j] = -top
        if chosen >= 0:
            gained += best
            _take(chosen, -1.0, use_first, use_pool, use_count, load)
    return gained


@_loops
def _at_prices(  # type: ignore[no-untyped-def]
    first, value, use_first, use_pool, use_count, capacity, running, order, top, size
):
    """The best fill found while prices look for demand = capacity; the prices of the smallest bound; that bound."""
    n, pools = len(first) - 1, len(capacity)
    prices, load, rank = np.zeros(pools), np.zeros(pools), np.zeros(n)
    free = capacity.copy()
    best = np.full(n, -1, np.int64)
    best_total = 0.0
    for j in order:  # those who run stay, most valuable first; the others fill up
        c = running[j]
        if c >= 0 and value[c] > 0.0 and _fits(c, use_first, use_pool, use_count, free):
            best[j] = c
            best_total += value[c]
            _take(c, 1.0, use_first, use_pool, use_count, free)
    best_total += _fill(first, value, use_first, use_pool, use_count, free, order, prices, best)
    bound, quoted = np.inf, prices.copy()
    for step in range(PRICE_STEPS + 1):
        gained = _demand(first, value, use_first, use_pool, use_count, size, prices, load, rank)
        for r in range(pools):
            gained += capacity[r] * prices[r]
        if gained < bound:
            bound = gained
            quoted[:] = prices
        if step % FILL_EVERY == 0 or step == PRICE_STEPS:
            free[:] = capacity
            column = np.full(n, -1, np.int64)
            by_gain = np.argsort(rank, kind="mergesort")
            total = _fill(first, value, use_first, use_pool, use_count, free, by_gain, prices, column)
            if total > best_total * (1.0 + 1e-9):
                best_total, best = total, column
        for r in range(pools):
            excess = (load[r] - capacity[r]) / capacity[r] if capacity[r] > 0 else 1.0
            excess = min(1.0, max(-1.0, excess))
            prices[r] = min(top, max(0.0, prices[r] + excess * top / 4.0 / (1.0 + step / 2.0)))
    return best, quoted, bound


@_loops
def _lag(first, value, use_first, use_pool, use_count, prices):  # type: ignore[no-untyped-def]
    """How much less each job gains in each of its columns than at best, at these prices (c,)."""
    lag = np.zeros(len(value))
    for j in range(len(first) - 1):
        best = 0.0
        for c in range(first[j], first[j + 1]):
            lag[c] = value[c] - _cost(c, use_first, use_pool, use_count, prices)
            best = max(best, lag[c])
        for c in range(first[j], first[j + 1]):
            lag[c] = best - lag[c]
    return lag


# ------------------------------------------------------------------------------------------------ local search


@_loops
def _new_home(k, without, first, value, use_first, use_pool, use_count, free):  # type: ignore[no-untyped-def]
    """The best free column of job k that does not use pool `without` (-1: any); -1: none."""
    best, chosen = 0.0, -1
    for c in range(first[k], first[k + 1]):
        avoids = True
        for u in range(use_first[c], use_first[c + 1]):
            avoids = avoids and use_pool[u] != without
        if avoids and value[c] > best and _fits(c, use_first, use_pool, use_count, free):
            best, chosen = value[c], c
    return chosen


@_loops
def _displaced(  # type: ignore[no-untyped-def]
    j, r, missing, by_move, first, value, use_first, use_pool, use_count, free, column, members, load, victims, losses
):
    """Jobs whose leaving pool r frees `missing` places, cheapest per place first, needless ones spared; how many."""
    count, freed = 0, 0.0
    for i in range(load[r]):
        k = members[r, i]
        losses[i] = np.inf
        if k == j:
            continue
        c = column[k]
        loss = value[c]
        if by_move:
            home = _new_home(k, r, first, value, use_first, use_pool, use_count, free)
            loss -= value[home] if home >= 0 else 0.0
        losses[i] = loss / use_count[use_first[c]]
    while freed < missing - 1e-9:
        best, at = np.inf, -1
        for i in range(load[r]):
            if losses[i] < best:
                best, at = losses[i], i
        if at < 0:
            return 0
        losses[at] = np.inf
        victims[count] = members[r, at]
        freed += use_count[use_first[column[members[r, at]]]]
        count += 1
    kept = 0
    for i in range(count):  # the later ones may have made the earlier ones needless
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
    """What is gained by putting job j into column c and the victims where they still fit; `homes` receives where."""
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
    """Accelerators as they were before `_change`."""
    for i in range(count):
        if homes[i] >= 0:
            _take(homes[i], -1.0, use_first, use_pool, use_count, free)
        _take(column[victims[i]], 1.0, use_first, use_pool, use_count, free)
    _take(c, -1.0, use_first, use_pool, use_count, free)
    if column[j] >= 0:
        _take(column[j], 1.0, use_first, use_pool, use_count, free)


@_loops
def _file(j, c, use_first, use_pool, column, members, load):  # type: ignore[no-untyped-def]
    """Job j goes to column c (-1: it waits). Jobs that use one pool are listed there: others are not displaced."""
    old = column[j]
    if old >= 0 and use_first[old + 1] - use_first[old] == 1:
        r = use_pool[use_first[old]]
        for i in range(load[r]):
            if members[r, i] == j:
                members[r, i] = members[r, load[r] - 1]
                load[r] -= 1
                break
    column[j] = c
    if c >= 0 and use_first[c + 1] - use_first[c] == 1:
        r = use_pool[use_first[c]]
        members[r, load[r]] = j
        load[r] += 1


@_loops
def _try(  # type: ignore[no-untyped-def]
    j, c, by_move, first, value, use_first, use_pool, use_count, free, column, members, load, victims, losses, homes
):
    """(gain, displaced) of putting job j into column c; -inf where that cannot be."""
    if column[j] >= 0:
        _take(column[j], -1.0, use_first, use_pool, use_count, free)
    u, count, possible = use_first[c], 0, _fits(c, use_first, use_pool, use_count, free)
    if not possible and use_first[c + 1] - u == 1:
        missing = use_count[u] - free[use_pool[u]]
        count = _displaced(
            j, use_pool[u], missing, by_move, first, value, use_first, use_pool, use_count, free, column, members,
            load, victims, losses,
        )  # fmt: skip
        possible = count > 0
    if column[j] >= 0:
        _take(column[j], 1.0, use_first, use_pool, use_count, free)
    if not possible:
        return -np.inf, 0
    gain = _change(j, c, victims, count, first, value, use_first, use_pool, use_count, free, column, homes)
    _undo(j, c, victims, count, use_first, use_pool, use_count, free, column, homes)
    return gain, count


@_loops
def _search(  # type: ignore[no-untyped-def]
    first, value, use_first, use_pool, use_count, capacity, column, order, lag, slack, strict, passes, work_max
):
    """Improve `column` in place, and count the places looked at. `slack`: how far its value is below the bound.

    No assignment with a job in a column can come closer to the bound than by the column's lag: such are not tried.
    """
    n, pools = len(first) - 1, len(capacity)
    free = capacity.copy()
    placed = column.copy()
    column[:] = -1
    # No more jobs can be in a pool than its accelerators, or than there are.
    most = int(min(float(n), capacity.max() + 1.0)) + 1
    members, load = np.zeros((pools, most), np.int64), np.zeros(pools, np.int64)
    victims, homes, losses = np.zeros(most, np.int64), np.zeros(most, np.int64), np.zeros(most)
    for j in range(n):
        if placed[j] >= 0:
            _file(j, placed[j], use_first, use_pool, column, members, load)
            _take(placed[j], 1.0, use_first, use_pool, use_count, free)
    work = 0
    for _ in range(passes):
        improved = False
        for j in order:
            best, chosen, way = strict, -1, False
            for c in range(first[j], first[j + 1]):
                is_worse = column[j] >= 0 and value[c] <= value[column[j]] + strict
                if c == column[j] or is_worse or lag[c] >= slack:
                    continue
                for by_move in (False, True):
                    gain, count = _try(
                        j, c, by_move, first, value, use_first, use_pool, use_count, free, column, members, load,
                        victims, losses, homes,
                    )  # fmt: skip
                    work += 1 + load[use_pool[use_first[c]]] * (1 + by_move * (first[j + 1] - first[j]))
                    if gain > best:
                        best, chosen, way = gain, c, by_move
                    if count == 0:
                        break
            if chosen >= 0:
                improved = True
                slack -= best
                gain, count = _try(
                    j, chosen, way, first, value, use_first, use_pool, use_count, free, column, members, load,
                    victims, losses, homes,
                )  # fmt: skip
                _change(j, chosen, victims, count, first, value, use_first, use_pool, use_count, free, column, homes)
                for i in range(count):
                    _file(victims[i], homes[i], use_first, use_pool, column, members, load)
                _file(j, chosen, use_first, use_pool, column, members, load)
            if work > work_max:
                return work
        if not improved:
            break
    return work
