"""The exact assignment of jobs that take one accelerator each: a transportation problem, by successive augmentation.

Jobs are inserted one after the other. A newcomer takes a place and may push another job along to another pool, which
pushes one on, until a free place is found or a job is left out: of all such chains the one that gains most. Between
two pools only the job that loses least by the move matters, so a chain is a path over the pools. Inserting by best
paths keeps the assignment optimal, and the cost of freeing a place in each pool is its price: at these prices every
job has the place that it would choose, so the prices prove the optimum.

Where some jobs take more accelerators, no exact answer is quick: `assign_by_search` hands them to `local_search`.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from optimizer.assignment.assignment_problem import Assignment, AssignmentProblem
from optimizer.assignment.local_search import assign_gangs
from optimizer.classes.compiled_loops import CompiledLoops
from optimizer.problem import FloatArray, IntArray

_loops = CompiledLoops(globals())

#: Slack for comparing counts that were computed in floating point.
_WHOLE = 1e-9
#: Gains below this part of the largest value count as rounding.
_STRICT = 1e-12


def assign_by_search(question: AssignmentProblem) -> Assignment:
    """Returns the exact optimum where every column takes one accelerator of one pool, else the assignment of local
    search.
    """
    return assign_single_accelerators(question) if takes_single_accelerators(question) else assign_gangs(question)


def takes_single_accelerators(question: AssignmentProblem) -> bool:
    """Returns whether each column takes one accelerator of one pool, and no limit counts it."""
    return len(question.use_column) == len(question.job) and bool(np.all(question.use_count == 1))


def assign_single_accelerators(question: AssignmentProblem) -> Assignment:
    """Returns the exact optimum of a problem in which each column takes one accelerator of one pool."""
    n, pools = question.jobs, len(question.capacity)
    pool = question.use_pool[np.argsort(question.use_column, kind="stable")]
    cell = question.job * pools + pool
    table, column = np.zeros(n * pools), np.full(n * pools, -1, dtype=np.int64)
    np.maximum.at(table, cell, question.value)  # Several columns of a job may be on one pool: the best counts.
    best = np.flatnonzero(question.value == table[cell])
    column[cell[best]] = best
    places = np.floor(question.capacity + _WHOLE).astype(np.int64)
    place, prices = solve_transportation(table.reshape(n, pools), places)
    chosen = np.where(place >= 0, column[np.arange(n) * pools + place], -1)
    bound = replace(question, capacity=places.astype(np.float64)).dual_bound(prices)
    return Assignment(chosen, prices, question.value_of(chosen), bound)


def solve_transportation(value: FloatArray, capacity: IntArray) -> tuple[IntArray, FloatArray]:
    """Assigns jobs to pools so that the sum of their values is largest.

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
    told = np.ascontiguousarray(value), capacity, order, _STRICT * float(value.max())
    place, prices = _loops.run("_insert_by_best_paths", n * pools**3, *told)
    return place, prices


class Leavers(NamedTuple):
    """The job of each pool that loses least by leaving it, and by moving from it to each other pool.

    inf and -1 where nobody can, and in pools that were never full: there it does not matter.
    """

    #: What is lost by leaving, and whose it is (p,).
    leave: FloatArray
    leaver: IntArray
    #: What is lost by a move, and whose it is (p, p).
    move: FloatArray
    mover: IntArray


@_loops
def _free_cost(leavers, load, capacity, cost, onward):  # type: ignore[no-untyped-def]
    """Computes what freeing one place of each pool costs (`cost`), and where the job that leaves goes (`onward`, -1:
    out).
    """
    pools, leave, move = len(load), leavers.leave, leavers.move
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


@_loops
def _note(value, leavers, j, r):  # type: ignore[no-untyped-def]
    """Records job j of pool r where it loses least of the pool by leaving it, or by moving to another pool."""
    leave, leaver, move, mover = leavers
    if value[j, r] < leave[r]:
        leave[r], leaver[r] = value[j, r], j
    for q in range(len(leave)):
        if value[j, q] > 0.0 and value[j, r] - value[j, q] < move[r, q]:
            move[r, q], mover[r, q] = value[j, r] - value[j, q], j


@_loops
def _least(loss, jobs):  # type: ignore[no-untyped-def]
    """Returns the smallest of these losses and whose it is, of equals the first; inf and -1 where nobody can."""
    if len(loss) == 0:
        return np.inf, -1
    i = np.argmin(loss)
    return loss[i], jobs[i] if loss[i] < np.inf else -1


@_loops
def _least_move(q, jobs, worth, value):  # type: ignore[no-untyped-def]
    """Returns the least that any of these jobs loses by moving to pool q from where it has this worth, and whose it
    is.
    """
    there = value[jobs, q]
    return _least(np.where(there > 0.0, worth - there, np.inf), jobs)


@_loops
def _note_all(value, leavers, jobs, r):  # type: ignore[no-untyped-def]
    """Does what `_note` does for all jobs of a pool that has just become full, in their order."""
    leave, leaver, move, mover = leavers
    worth = value[jobs, r]
    leave[r], leaver[r] = _least(worth, jobs)
    for q in range(len(leave)):
        move[r, q], mover[r, q] = _least_move(q, jobs, worth, value)


@_loops
def _forget(value, leavers, jobs, k, r):  # type: ignore[no-untyped-def]
    """Removes job k from the jobs of pool r, the last of which takes its place, and finds the job that now loses least
    by leaving or moving in its stead.
    """
    leave, leaver, move, mover = leavers
    last = len(jobs) - 1
    for i in range(last):
        if jobs[i] == k:
            jobs[i] = jobs[last]
            break
    others = jobs[:last]
    worth = value[others, r]
    if leaver[r] == k:
        leave[r], leaver[r] = _least(worth, others)
    for q in range(len(leave)):
        if mover[r, q] == k:
            move[r, q], mover[r, q] = _least_move(q, others, worth, value)


@_loops
def _insert_by_best_paths(value, capacity, order, strict):  # type: ignore[no-untyped-def]
    n, pools = value.shape
    place = np.full(n, -1, np.int64)
    members = np.zeros((pools, max(1, min(n, capacity.max()) + 1)), np.int64)
    load = np.zeros(pools, np.int64)
    leavers = Leavers(
        np.full(pools, np.inf), np.full(pools, -1, np.int64),
        np.full((pools, pools), np.inf), np.full((pools, pools), -1, np.int64),
    )  # fmt: skip
    cost, onward = np.zeros(pools), np.full(pools, -1, np.int64)
    _free_cost(leavers, load, capacity, cost, onward)
    for j in order:
        best, r = strict, -1
        for q in range(pools):
            if value[j, q] > 0.0 and value[j, q] - cost[q] > best:
                best, r = value[j, q] - cost[q], q
        if r < 0:
            continue
        incoming, is_dearer = j, False
        while True:
            full, q = load[r] >= capacity[r], onward[r]
            outgoing = -1
            if full:
                outgoing = leavers.leaver[r] if q < 0 else leavers.mover[r, q]
                _forget(value, leavers, members[r, : load[r]], outgoing, r)
                load[r] -= 1
            members[r, load[r]] = incoming
            load[r] += 1
            place[incoming] = r
            if full:
                _note(value, leavers, incoming, r)
            is_dearer = is_dearer or load[r] >= capacity[r]
            if not full:
                if load[r] >= capacity[r]:  # Who loses least by leaving a pool matters only once it is full.
                    _note_all(value, leavers, members[r, : load[r]], r)
                break
            if q < 0:
                place[outgoing] = -1
                break
            incoming, r = outgoing, q
        if is_dearer:  # A place in a pool with room costs what it did.
            _free_cost(leavers, load, capacity, cost, onward)
    for r in range(pools):
        if cost[r] == np.inf:
            cost[r] = 0.0
            for j in range(n):
                cost[r] = max(cost[r], value[j, r])
    return place, cost
