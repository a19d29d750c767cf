"""Protection against starvation: a job that is late becomes overdue until it ends, and overdue jobs are placed first.

A job is overdue once (waited + left) / length, its predicted slowdown, exceeds max(`slowdown`, `margin` x the mean of
all active jobs). Overdue jobs are placed in the order in which they became so, each on its fastest column with room in
a reserve of ceil(`reserve` x capacity) accelerators of every pool. Later ones cannot delay earlier ones, so

    time to completion <= slowdown' x length + B / (reserve - gang + 1) + restarts

where slowdown' is the limit when it became overdue and B is what those before it then still need on its best pool, in
accelerator-seconds there (`docs/walras-policy.md`). Jobs of unknown length have no predicted slowdown.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.assignment.local_search import compiled
from optimizer.assignment.remaining_time import JobLengths
from optimizer.classes.deduplication import job_offsets
from optimizer.decision import Memory
from optimizer.problem import FloatArray, IntArray, Problem

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
    remembered = np.array([] if memory is None else memory.get("overdue", []), dtype=np.int64)
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
