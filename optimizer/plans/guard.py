"""Nobody starves: who is late is overdue until it ends, and overdue jobs are placed first.

A job is overdue once (waited + left) / length, its predicted slowdown, exceeds max(`slowdown`, `margin` x the mean of
all active jobs). Overdue jobs are placed in the order in which they became so, each on its fastest column with room in
a reserve of ceil(`reserve` x capacity) accelerators of every pool. Later ones cannot delay earlier ones, so

    time to completion <= slowdown' x length + B / (reserve - gang + 1) + restarts

where slowdown' is the limit when it became overdue and B is what those before it then still need on its best pool, in
accelerator-seconds there (`docs/walras-policy.md`). Jobs whose length nobody knows have no predicted slowdown.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from optimizer.decision import Memory
from optimizer.plans.lengths import Lengths
from optimizer.plans.worth import Worth
from optimizer.problem import FloatArray, IntArray, Problem

_WHOLE = 1e-9


@dataclass(frozen=True, slots=True)
class Guard:
    """When jobs are overdue, and how much is kept for them."""

    slowdown: float = 2.5
    margin: float = 1.5
    reserve: float = 0.5


def overdue_of(problem: Problem, lengths: Lengths, memory: Memory, guard: Guard) -> list[int]:
    """Rows of the overdue jobs, in the order in which they became so."""
    jobs = problem.jobs
    rows = {job_id: row for row, job_id in enumerate(jobs.job_id.tolist())}
    remembered: list[Any] = [] if memory is None else memory["overdue"]
    known = [rows[job_id] for job_id in remembered if job_id in rows]
    predicted = (np.maximum(problem.at - jobs.submitted_at, 0.0) + lengths.left_s) / lengths.total_s
    judged = lengths.known & np.isfinite(predicted)
    if not judged.any():
        return known
    limit = max(guard.slowdown, guard.margin * float(predicted[judged].mean()))
    late = judged & (predicted > limit)
    late[known] = False
    new = np.flatnonzero(late)
    return known + new[np.lexsort((jobs.job_id[new], jobs.submitted_at[new]))].tolist()


def place_overdue(
    problem: Problem, worth: Worth, overdue: list[int], free: FloatArray, column: IntArray, guard: Guard
) -> None:
    """Give overdue jobs their places: changes `column` and `free`. Those that cannot be moved count too."""
    columns, capacity = problem.columns, problem.pools.capacity
    left = np.ceil(guard.reserve * capacity - _WHOLE)
    untouched = np.ones(len(capacity), dtype=np.bool_)
    first = np.searchsorted(columns.job, np.arange(len(problem.jobs) + 1))
    use_first = np.searchsorted(columns.use_column, np.arange(len(columns) + 1))
    for row in overdue:
        if column[row] < 0:
            candidates = np.arange(first[row], first[row + 1])
            for c in candidates[np.argsort(worth.ends_s[candidates], kind="stable")].tolist():
                uses = slice(use_first[c], use_first[c + 1])
                pool, count = columns.use_pool[uses], columns.use_count[uses]
                large = untouched[pool] & (count > left[pool])  # larger than the whole reserve
                in_reserve = (count <= left[pool] + _WHOLE) | large
                if worth.ends_s[c] < np.inf and np.all(in_reserve & (count <= free[pool] + _WHOLE)):
                    column[row] = c
                    np.subtract.at(free, pool, count)
                    break
        if column[row] >= 0:
            uses = slice(use_first[column[row]], use_first[column[row] + 1])
            pool = columns.use_pool[uses]
            np.subtract.at(left, pool, columns.use_count[uses])
            untouched[pool] = False
