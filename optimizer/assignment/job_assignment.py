"""From values to places: overdue jobs first, then priority class by priority class the assignment at prices.

Nobody starves. A job is overdue once (waited + left) / length, its predicted slowdown, exceeds max(`slowdown`, `margin`
x the mean of all active jobs); it stays so until it ends. Overdue jobs are placed in the order in which they became so,
each on its fastest column with room in a reserve of ceil(`reserve` x capacity) accelerators of every pool. Later ones
cannot delay earlier ones, so

    time to completion <= slowdown' x length + B / (reserve - gang + 1) + restarts

where slowdown' is the limit when it became overdue and B is what those before it then still need on its best pool, in
accelerator-seconds there (`docs/walras-policy.md`). Jobs whose length nobody knows have no predicted slowdown.

Jobs that take one accelerator each are assigned exactly, a transportation problem solved by successive augmentation
over the pools: jobs are let in one after the other. A newcomer takes a place and may push somebody along to another
pool, who pushes somebody on, until a free place is found or somebody is left out: of all such chains the one that gains
most. Between two pools only the job that loses least by the move matters, so a chain is a path over the pools.
Inserting by best paths keeps the assignment optimal, and the cost of freeing a place in each pool is its price: at
these prices every job has the place that it would choose, so the prices prove the optimum. Larger gangs go to
`local_search`.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.assignment.column_values import ColumnValues
from optimizer.assignment.local_search import GangProblem, assign_gangs, compiled
from optimizer.assignment.plan_draft import PlanDraft, accelerators_held
from optimizer.assignment.remaining_time import JobLengths
from optimizer.classes.deduplication import job_offsets
from optimizer.decision import Memory
from optimizer.problem import BoolArray, FloatArray, IntArray, Problem

#: Gains below this part of the largest value are rounding.
_STRICT = 1e-12


def solve_transportation(value: FloatArray, capacity: IntArray) -> tuple[IntArray, FloatArray]:
    """Assign jobs to pools so that the values sum up to most.

    Args:
        value: worth of each pool to each job, 0 where it cannot run (n, p).
        capacity: places of each pool (p,).

    Returns:
        Pool of each job, -1: none (n,); price of a place of each pool, 0 where one is free (p,).
    """
    n, pools = value.shape
    if n == 0 or pools == 0:
        return np.full(n, -1, dtype=np.int64), np.zeros(pools)
    order = np.argsort(-value.max(axis=1), kind="stable")
    place, prices = _insert_by_best_paths(np.ascontiguousarray(value), capacity, order, _STRICT * float(value.max()))
    return place, prices


@compiled
def _free_cost(pools, load, capacity, leave, move, cost, onward):  # type: ignore[no-untyped-def]
    """What freeing a place costs in each pool, and where who leaves goes (-1: nowhere)."""
    for r in range(pools):
        onward[r] = -1
        cost[r] = 0.0 if load[r] < capacity[r] else leave[r]
    for _ in range(pools):
        changed = False
        for r in range(pools):
            if load[r] < capacity[r]:
                continue
            for q in range(pools):
                if q != r and move[r, q] + cost[q] < cost[r] - 1e-15 * abs(cost[r]):
                    cost[r] = move[r, q] + cost[q]
                    onward[r] = q
                    changed = True
        if not changed:
            return


@compiled
def _note(j, r, pools, value, leave, leaver, move, mover):  # type: ignore[no-untyped-def]
    """Job j is in pool r: is it the one that loses least by leaving, or by going to another pool?"""
    if value[j, r] < leave[r]:
        leave[r], leaver[r] = value[j, r], j
    for q in range(pools):
        if value[j, q] > 0.0 and value[j, r] - value[j, q] < move[r, q]:
            move[r, q], mover[r, q] = value[j, r] - value[j, q], j


@compiled
def _forget(k, r, pools, value, members, load, leave, leaver, move, mover):  # type: ignore[no-untyped-def]
    """Job k has left pool r: whoever is next takes its part."""
    for i in range(load[r]):
        if members[r, i] == k:
            members[r, i] = members[r, load[r] - 1]
            break
    load[r] -= 1
    if leaver[r] == k:
        leave[r], leaver[r] = np.inf, -1
        for i in range(load[r]):
            j = members[r, i]
            if value[j, r] < leave[r]:
                leave[r], leaver[r] = value[j, r], j
    for q in range(pools):
        if mover[r, q] == k:
            move[r, q], mover[r, q] = np.inf, -1
            for i in range(load[r]):
                j = members[r, i]
                if value[j, q] > 0.0 and value[j, r] - value[j, q] < move[r, q]:
                    move[r, q], mover[r, q] = value[j, r] - value[j, q], j


@compiled
def _insert_by_best_paths(value, capacity, order, strict):  # type: ignore[no-untyped-def]
    n, pools = value.shape
    place = np.full(n, -1, np.int64)
    members = np.zeros((pools, max(1, min(n, capacity.max()) + 1)), np.int64)
    load = np.zeros(pools, np.int64)
    leave, leaver = np.full(pools, np.inf), np.full(pools, -1, np.int64)
    move, mover = np.full((pools, pools), np.inf), np.full((pools, pools), -1, np.int64)
    cost, onward = np.zeros(pools), np.full(pools, -1, np.int64)
    _free_cost(pools, load, capacity, leave, move, cost, onward)
    for j in order:
        best, r = strict, -1
        for q in range(pools):
            if value[j, q] > 0.0 and value[j, q] - cost[q] > best:
                best, r = value[j, q] - cost[q], q
        if r < 0:
            continue
        incoming = j
        while True:
            full, q = load[r] >= capacity[r], onward[r]
            outgoing = -1
            if full:
                outgoing = leaver[r] if q < 0 else mover[r, q]
                _forget(outgoing, r, pools, value, members, load, leave, leaver, move, mover)
            members[r, load[r]] = incoming
            load[r] += 1
            place[incoming] = r
            _note(incoming, r, pools, value, leave, leaver, move, mover)
            if not full:
                break
            if q < 0:
                place[outgoing] = -1
                break
            incoming, r = outgoing, q
        _free_cost(pools, load, capacity, leave, move, cost, onward)
    for r in range(pools):
        if cost[r] == np.inf:
            cost[r] = 0.0
            for j in range(n):
                cost[r] = max(cost[r], value[j, r])
    return place, cost


_WHOLE = 1e-9


@dataclass(frozen=True, slots=True)
class StarvationGuard:
    """When jobs are overdue, and how much is kept for them."""

    slowdown: float = 2.5
    margin: float = 1.5
    reserve: float = 0.5


def overdue_jobs(problem: Problem, lengths: JobLengths, memory: Memory, guard: StarvationGuard) -> list[int]:
    """Rows of the overdue jobs, in the order in which they became so."""
    jobs = problem.jobs
    remembered = np.array([] if memory is None else memory["overdue"], dtype=np.int64)
    known = _rows_of(jobs.job_id, remembered)
    predicted = (np.maximum(problem.at - jobs.submitted_at, 0.0) + lengths.left_s) / lengths.total_s
    judged = lengths.known & np.isfinite(predicted)
    if not judged.any():
        return known
    limit = max(guard.slowdown, guard.margin * float(predicted[judged].mean()))
    late = judged & (predicted > limit)
    late[known] = False
    new = np.flatnonzero(late)
    order: list[int] = new[np.lexsort((jobs.job_id[new], jobs.submitted_at[new]))].tolist()
    return known + order


def _rows_of(job_id: IntArray, wanted: IntArray) -> list[int]:
    """Rows of those of the wanted ids that are there, in the order wanted."""
    order = np.argsort(job_id, kind="stable")
    at = np.minimum(np.searchsorted(job_id[order], wanted), max(len(job_id) - 1, 0))
    rows = order[at] if len(order) else at[:0]
    found: list[int] = rows[job_id[rows] == wanted[: len(rows)]].tolist()
    return found


def place_overdue(
    problem: Problem, ends_s: FloatArray, overdue: list[int], free: FloatArray, column: IntArray, guard: StarvationGuard
) -> None:
    """Give overdue jobs their places: changes `column` and `free`. Those that cannot be moved count too.

    `ends_s`: seconds until the job would end in each column; inf where it may not have it (c,).
    """
    if not overdue:
        return
    columns = problem.columns
    left = np.ceil(guard.reserve * problem.pools.capacity - _WHOLE)
    first = job_offsets(columns.job, len(problem.jobs))
    use_first = job_offsets(columns.use_column, len(columns))
    uses = (use_first, columns.use_pool, columns.use_count)
    _place_in_order(np.array(overdue, dtype=np.int64), first, ends_s, *uses, left, left.copy(), free, column)


@compiled
def _in_reserve(c, use_first, use_pool, use_count, left, whole, free):  # type: ignore[no-untyped-def]
    """Whether column c has room in what is left of the reserves; a gang larger than one needs it untouched."""
    possible = True
    for u in range(use_first[c], use_first[c + 1]):
        r, count = use_pool[u], use_count[u]
        large = count > whole[r] and left[r] == whole[r]
        possible = possible and (count <= left[r] + _WHOLE or large) and count <= free[r] + _WHOLE
    return possible


@compiled
def _place_in_order(overdue, first, ends_s, use_first, use_pool, use_count, left, whole, free, column):  # type: ignore[no-untyped-def]
    """In their order, each where it ends soonest."""
    for row in overdue:
        best, chosen = np.inf, column[row]
        if chosen < 0:
            for c in range(first[row], first[row + 1]):
                if ends_s[c] < best and _in_reserve(c, use_first, use_pool, use_count, left, whole, free):
                    best, chosen = ends_s[c], c
        if chosen < 0:
            continue
        for u in range(use_first[chosen], use_first[chosen + 1]):
            left[use_pool[u]] -= use_count[u]
            if column[row] < 0:
                free[use_pool[u]] -= use_count[u]
        column[row] = chosen


def assign_jobs(problem: Problem, worth: ColumnValues, draft: PlanDraft) -> None:
    """Let the jobs without a place compete for what is free, the higher classes before the lower."""
    classes = problem.jobs.priority_class
    for priority_class in np.unique(classes)[::-1].tolist():
        competing = (classes == priority_class) & (draft.column < 0)
        if competing.any():
            _assign_class(problem, worth, draft, competing)


def _assign_class(problem: Problem, worth: ColumnValues, draft: PlanDraft, competing: BoolArray) -> None:
    columns = problem.columns
    kept = np.flatnonzero(competing[columns.job] & (worth.value > 0))
    if not len(kept):
        return
    present = np.zeros(len(competing), dtype=np.bool_)
    present[columns.job[kept]] = True
    rows, job = np.flatnonzero(present), (np.cumsum(present) - 1)[columns.job[kept]]
    use_first = job_offsets(columns.use_column, len(columns))
    simple = np.all((worth.size[kept] == 1) & (use_first[kept + 1] - use_first[kept] == 1))
    solve = _by_transport if simple else _by_gangs
    chosen, prices, bound = solve(problem, worth, draft.free, kept, job, len(rows), use_first)
    draft.column[rows] = chosen
    placed = chosen[chosen >= 0]
    draft.free = np.maximum(draft.free - accelerators_held(problem, placed), 0.0)
    draft.prices = np.maximum(draft.prices, prices)
    draft.reached += float(worth.value[placed].sum())
    draft.bound += bound


def _by_transport(
    problem: Problem, worth: ColumnValues, free: FloatArray, kept: IntArray, job: IntArray, n: int, use_first: IntArray
) -> tuple[IntArray, FloatArray, float]:
    """(column of each of n jobs, prices, bound) where everybody takes one accelerator."""
    pools = len(free)
    pool = problem.columns.use_pool[use_first[kept]]
    values, cell = worth.value[kept], job * pools + pool
    table, column = np.zeros(n * pools), np.full(n * pools, -1, dtype=np.int64)
    np.maximum.at(table, cell, values)  # several columns of a job may be on one pool
    best = values == table[cell]
    column[cell[best]] = kept[best]
    value = table.reshape(n, pools)
    places = np.floor(free + _WHOLE).astype(np.int64)
    place, prices = solve_transportation(value, places)
    chosen = np.where(place >= 0, column[np.arange(n) * pools + place], -1)
    gained = np.maximum((value - prices).max(axis=1), 0.0).sum()
    return chosen, prices, float(gained + prices @ places)


def _by_gangs(
    problem: Problem, worth: ColumnValues, free: FloatArray, kept: IntArray, job: IntArray, n: int, use_first: IntArray
) -> tuple[IntArray, FloatArray, float]:
    """The same where some take more."""
    columns = problem.columns
    length = use_first[kept + 1] - use_first[kept]
    starts = np.concatenate(([0], np.cumsum(length)))
    uses = np.repeat(use_first[kept] - starts[:-1], length) + np.arange(int(starts[-1]))
    running = np.full(n, -1, dtype=np.int64)
    runs = np.flatnonzero(columns.running[kept])
    running[job[runs]] = runs
    found = assign_gangs(
        GangProblem(
            first=job_offsets(job, n),
            value=worth.value[kept],
            size=worth.size[kept],
            use_first=starts,
            use_pool=columns.use_pool[uses],
            use_count=columns.use_count[uses],
            capacity=free,
            running=running,
        )
    )
    return np.where(found.column >= 0, kept[found.column], -1), found.prices, found.bound
