"""Protection against starvation: a job that is late becomes overdue until it ends, and overdue jobs are placed first.

A job is overdue once (waited + left) / length, its predicted slowdown, exceeds rho = max(`slowdown`, `margin` x the
mean of all active jobs), and urgent once it exceeds 1.2 rho. Within a priority class urgent jobs are placed first, in
the order in which they became so, then the other overdue jobs, the shortest first: a short job behind a long one would
end many of its own lengths late, while a long job that lets a short one pass ends hardly later. Each has its fastest
column with room: gangs of s accelerators up to b = ceil(`reserve` x N) share b accelerators of every pool, larger ones
have what the earlier leave of all N. Later urgent jobs cannot delay earlier ones, so with M = b for the former and
M = N for the latter

    time to completion <= 1.2 rho x length + B / (M - s + 1) + restarts

where rho is the limit when it became urgent and B is what those before it then still need on its best pool, in
accelerator-seconds there (`docs/walras-policy.md`). Jobs of unknown length have no predicted slowdown.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.assignment.remaining_time import JobLengths
from optimizer.classes.compiled_loops import CompiledLoops
from optimizer.classes.deduplication import job_offsets
from optimizer.decision import Memory
from optimizer.problem import BoolArray, FloatArray, IntArray, Problem

_loops = CompiledLoops(globals())

_WHOLE = 1e-9
#: An overdue job is urgent beyond this multiple of the limit.
_URGENT = 1.2


@dataclass(frozen=True, slots=True)
class StarvationGuard:
    """The limits beyond which jobs are overdue, and the part of the fleet reserved for them."""

    slowdown: float = 2.5
    margin: float = 1.5
    reserve: float = 0.5

    def limit(self, predicted: FloatArray) -> float:
        """Returns the slowdown beyond which a job is overdue, given those predicted (any number, at least one)."""
        return max(self.slowdown, self.margin * float(predicted.mean()))

    def reserved(self, capacity: FloatArray) -> FloatArray:
        """Returns the accelerators of each pool that overdue jobs may take (p,)."""
        return np.ceil(self.reserve * capacity - _WHOLE)


@dataclass(frozen=True, slots=True)
class LateJobs:
    """Rows of the jobs that come before all others; no row is in both lists."""

    #: Urgent jobs, in the order in which they became urgent.
    urgent: list[int]
    #: Overdue jobs that are not urgent, in the order in which they became overdue.
    overdue: list[int]

    def in_order(self, lengths: JobLengths) -> list[int]:
        """Returns the rows in the order of placement: urgent jobs in their order, then the other overdue jobs, the
        shortest first.
        """
        return self.urgent + sorted(self.overdue, key=lambda row: float(lengths.total_s[row]))

    def remembered(self, job_id: IntArray) -> dict[str, object]:
        """Returns the memory for the next decision: the ids of both lists."""
        told: dict[str, object] = {"overdue": job_id[self.urgent + self.overdue].tolist()}
        if self.urgent:
            told["urgent"] = job_id[self.urgent].tolist()
        return told


def late_jobs(problem: Problem, lengths: JobLengths, memory: Memory, guard: StarvationGuard) -> LateJobs:
    """Returns the overdue and urgent jobs: those that the memory lists, and those that have become so now."""
    jobs = problem.jobs
    overdue, urgent = (_remembered_rows(jobs.job_id, memory, name) for name in ("overdue", "urgent"))
    predicted, judged = _predicted_slowdowns(problem, lengths)
    if judged.any():
        limit = guard.limit(predicted[judged])
        for rows, most in ((overdue, limit), (urgent, _URGENT * limit)):
            late = judged & (predicted > most)
            late[rows] = False
            new = np.flatnonzero(late)
            rows += new[np.lexsort((jobs.job_id[new], jobs.submitted_at[new]))].tolist()
    first = set(urgent)
    return LateJobs(urgent, [row for row in overdue if row not in first])


def seconds_until_late(problem: Problem, lengths: JobLengths, late: LateJobs, guard: StarvationGuard) -> float:
    """Returns seconds within which no job becomes overdue or urgent that is not, if all jobs run, none faster than it
    is measured by; inf if none can. `late`: what `late_jobs` found now.
    """
    predicted, judged = _predicted_slowdowns(problem, lengths)
    if not judged.any():
        return np.inf
    most = np.full(len(predicted), guard.limit(predicted[judged]))
    most[late.overdue] *= _URGENT
    judged[late.urgent] = False
    return float(((most - predicted) * lengths.total_s)[judged].min(initial=np.inf))


def _predicted_slowdowns(problem: Problem, lengths: JobLengths) -> tuple[FloatArray, BoolArray]:
    """Returns the slowdown with which each job would end if it ran from now on, and whether that is known (n,)."""
    predicted = (np.maximum(problem.at - problem.jobs.submitted_at, 0.0) + lengths.left_s) / lengths.total_s
    return predicted, lengths.known & np.isfinite(predicted)


def _remembered_rows(job_id: IntArray, memory: Memory, name: str) -> list[int]:
    """Returns the rows of the present jobs that the memory lists under this name."""
    return _rows_of(job_id, np.array([] if memory is None else memory.get(name, []), dtype=np.int64))


def _rows_of(job_id: IntArray, wanted: IntArray) -> list[int]:
    """Returns the rows of those wanted ids that are present, in the order wanted."""
    if not len(wanted):
        return []
    order = np.argsort(job_id, kind="stable")
    at = np.minimum(np.searchsorted(job_id[order], wanted), max(len(job_id) - 1, 0))
    rows = order[at] if len(order) else at[:0]
    found: list[int] = rows[job_id[rows] == wanted[: len(rows)]].tolist()
    return found


def place_overdue(
    problem: Problem, ends_s: FloatArray, overdue: list[int], free: FloatArray, column: IntArray, guard: StarvationGuard
) -> None:
    """Places overdue jobs: changes `column` (n,) and `free` (p,). Overdue jobs that cannot be moved count against the
    reserve too.

    `ends_s`: seconds until the job would end in each column (c,); inf where it may not take it.
    """
    if not overdue:
        return
    columns = problem.columns
    left = guard.reserved(problem.pools.capacity)
    first = job_offsets(columns.job, len(problem.jobs))
    use_first = job_offsets(columns.use_column, len(columns))
    uses = (use_first, columns.use_pool, columns.use_count)
    told = np.array(overdue, dtype=np.int64), first, ends_s, *uses, left, left.copy(), free, column
    _loops.run("_place_in_order", len(columns.use_count), *told)


@_loops
def _in_reserve(c, use_first, use_pool, use_count, left, whole, free):  # type: ignore[no-untyped-def]
    """Returns whether column c fits what is left of the reserves, or of the pool where it is larger than a reserve."""
    possible = True
    for u in range(use_first[c], use_first[c + 1]):
        r, count = use_pool[u], use_count[u]
        large = count > whole[r]
        possible = possible and (count <= left[r] + _WHOLE or large) and count <= free[r] + _WHOLE
    return possible


@_loops
def _place_in_order(overdue, first, ends_s, use_first, use_pool, use_count, left, whole, free, column):  # type: ignore[no-untyped-def]
    """Places these jobs in their order, each in the fitting column in which it ends soonest."""
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
