"""AlloX: minimises the mean completion time by matching jobs to accelerators and to positions in their queues.

Symbols: R[m] steps left of job m, T[m,p] its steps/s on pool p, k the position counted from the end of a queue.

    minimise  sum k R[m]/T[m,p] y[m,p,k]   each job has one position, each position has at most one job

The objective is the sum of the remaining times of all jobs, provided that no job arrives. The job at the head of each
queue starts. The certificate compares the sum with the squashed-area bound (`optimizer.assignment.list_schedule`), a
lower bound for every schedule of the same jobs.

A queue is a set of accelerators that serves one job after another. The job that is k-th from the end of its queue
delays itself and the k - 1 behind it, so it adds k times its own length to the sum (Bruno, Coffman and Sethi 1974;
Horn 1973): a minimum-cost assignment of jobs to (queue, k). Queues of one kind are alike, so k-th positions of a kind
are one level with as many places as there are queues; a level is used only when the level below is full. So levels are
added while the last one is full: as soon as a place of it stays empty, its dual value is 0, and no place farther from
the end can be worth its cost.
"""

import dataclasses
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from optimizer.assignment.list_schedule import completion_bound_s
from optimizer.classes.class_problem import constraint_violation, relative_gap
from optimizer.classes.segments import max_by
from optimizer.decision import Certificate, Memory, Quote, Shares, Status
from optimizer.policies.share_answers import unpriced_shares
from optimizer.policy import Newcomer
from optimizer.problem import BoolArray, Columns, FloatArray, IntArray, Problem
from optimizer.utility.fair_share import usable_columns

#: Slack for comparing counts that were computed in floating point.
_WHOLE = 1e-9


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Allox:
    """Minimises the sum of completion times: assigns jobs to accelerator types and to positions in their queues.

    A job that was placed keeps its accelerators until it ends; a job that only backfills free accelerators can be
    preempted. Source: Le et al., AlloX, EuroSys 2020, section 4, as Gavel's simulator has it. The treatment of gangs
    is ours: the free accelerators of a pool are divided into queues, one per gang size that waits for the pool, in
    proportion to the waiting work of each size. A gang that is larger than the free part of the pool waits. The
    remaining time of a job of unknown length is estimated as the time that it has run.
    """

    checked_by: ClassVar[str] = "optimizer.check.certificate:ALLOX"
    #: It takes no gang over several pools.
    makes_own_mixes: ClassVar[bool] = True

    unknown_s: Annotated[
        float,
        Field(gt=0, description="Assumed remaining time, in seconds, of a job of unknown length (a lower bound)."),
    ] = 3600.0

    def decide(self, problem: Problem, memory: Memory) -> tuple[Shares, Memory]:
        """Returns shares of 1 for jobs that stay or start; the status is `defined`, or `empty` when no job can run.

        The memory is {"placed": [[job, pool, accelerators], ..], "newest": job}: the jobs placed so far, and the
        newest job known. Newer jobs that run were started on arrival and stay; without a memory, so do all.
        """
        columns = problem.columns
        usable = usable_columns(columns, problem.pools.capacity)
        steps, guessed = self._steps_left(problem)
        length_s = steps[columns.job] / np.maximum(columns.steps_per_s, 1e-300)
        kept = _kept(problem, usable, memory)
        counted = np.zeros(len(problem.jobs), dtype=np.bool_)
        counted[columns.job[kept]] = True
        found = schedule_in_queues(columns, usable & ~counted[columns.job], length_s, _left(problem, kept))
        counted[found.rows] = True
        x = np.zeros(len(columns))
        x[kept] = x[found.starts] = 1.0
        total_s = found.total_s + float(length_s[kept].sum())
        known = replace(problem, jobs=replace(problem.jobs, remaining_steps=steps))
        proof = self._proof(known, usable & counted[columns.job], total_s, x, guessed)
        unplaceable = np.setdiff1d(np.arange(len(problem.jobs)), columns.job[usable])
        return unpriced_shares(problem, x, proof, unplaceable), _remember(problem, x)

    def value(self, newcomer: Newcomer, quote: Quote) -> FloatArray:
        """Returns the relative speeds (c,): an arriving job takes the fastest free configuration."""
        return newcomer.relative_speeds

    def _steps_left(self, problem: Problem) -> tuple[FloatArray, int]:
        """Returns the steps left of each job (n,), estimated where unknown, and how many were estimated."""
        jobs = problem.jobs
        best = max_by(problem.columns.job, problem.columns.steps_per_s, len(jobs))
        unknown = ~np.isfinite(jobs.remaining_steps)
        guess = np.maximum(self.unknown_s, jobs.attained_s / jobs.gang) * best
        return np.where(unknown, guess, jobs.remaining_steps), int(np.count_nonzero(unknown & (best > 0)))

    def _proof(self, problem: Problem, counted: BoolArray, total_s: float, x: FloatArray, guessed: int) -> Certificate:
        path = "assignment; bound: squashed area" + (f"; {guessed} lengths guessed" if guessed else "")
        if not counted.any():
            return Certificate(Status.EMPTY, 0.0, 0.0, 0.0, 0.0, path, maximise=False)
        bound = completion_bound_s(problem, counted)
        gap = relative_gap(total_s, bound)
        return Certificate(Status.DEFINED, total_s, bound, gap, constraint_violation(problem, x), path, maximise=False)


def _kept(problem: Problem, usable: BoolArray, memory: Memory) -> IntArray:
    """Returns the columns of the jobs placed before, in order of job, as long as they fit."""
    columns, pools = problem.columns, problem.pools
    newest = -1 if memory is None else int(memory["newest"])
    let_in = np.flatnonzero(columns.running & usable & (problem.jobs.job_id > newest)[columns.job])
    chosen = let_in[np.unique(columns.job[let_in], return_index=True)[1]].tolist()
    if memory is not None:
        chosen = sorted({*chosen, *_remembered(problem, usable, memory)})
    first = np.searchsorted(columns.use_column, np.arange(len(columns) + 1))
    free = pools.capacity.copy()
    kept = []
    for column in chosen:
        uses = slice(first[column], first[column + 1])
        if np.all(columns.use_count[uses] <= free[columns.use_pool[uses]] + _WHOLE):
            np.subtract.at(free, columns.use_pool[uses], columns.use_count[uses])
            kept.append(column)
    return np.array(kept, dtype=np.int64)


def _remembered(problem: Problem, usable: BoolArray, memory: Any) -> list[int]:
    """Returns the columns that the memory names, of jobs that are still present."""
    columns, pools = problem.columns, problem.pools
    placed = {int(job): (pool, float(count)) for job, pool, count in memory["placed"]}
    job_id = problem.jobs.job_id[columns.job[columns.use_column]]
    chosen: dict[int, int] = {}
    for use in np.flatnonzero(usable[columns.use_column] & np.isin(job_id, list(placed))).tolist():
        here = pools.pool_id[columns.use_pool[use]], float(columns.use_count[use])
        if placed[int(job_id[use])] == here:
            chosen.setdefault(int(job_id[use]), int(columns.use_column[use]))
    return list(chosen.values())


def _remember(problem: Problem, x: FloatArray) -> dict[str, Any]:
    """Returns the memory: the jobs that have a place now, with the first pool of their column."""
    columns = problem.columns
    chosen = np.flatnonzero(x > 0)
    use = np.searchsorted(columns.use_column, chosen)
    placed = zip(
        problem.jobs.job_id[columns.job[chosen]].tolist(),
        (problem.pools.pool_id[pool] for pool in columns.use_pool[use].tolist()),
        columns.use_count[use].tolist(),
        strict=True,
    )
    return {"placed": [list(one) for one in placed], "newest": int(problem.jobs.job_id.max(initial=-1))}


def _left(problem: Problem, kept: IntArray) -> FloatArray:
    """Returns the accelerators that these columns leave free in each pool (p,)."""
    columns = problem.columns
    held = np.isin(columns.use_column, kept)
    taken = np.bincount(columns.use_pool[held], columns.use_count[held], len(problem.pools))
    return np.maximum(problem.pools.capacity - taken, 0.0)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class QueueSchedule:
    """Jobs assigned to queues on the free accelerators."""

    #: The columns on which a job starts, one for each queue that serves any job.
    starts: IntArray
    #: The jobs that have a place in a queue, ascending; and the sum of the seconds until they end.
    rows: IntArray
    total_s: float


def schedule_in_queues(columns: Columns, allowed: BoolArray, length_s: FloatArray, free: FloatArray) -> QueueSchedule:
    """Splits free accelerators into queues and assigns jobs to these, so that the sum of their completion times is
    least.

    Args:
        columns: configurations; none over several pools at once is taken.
        allowed: columns that may be used (c,).
        length_s: seconds that the job of each column takes there (c,).
        free: accelerators of each pool (p,).
    """
    alone = np.bincount(columns.use_column, minlength=len(columns)) == 1
    use = np.flatnonzero((alone & allowed)[columns.use_column])
    use = use[columns.use_count[use] <= free[columns.use_pool[use]] + _WHOLE]
    column, pool, count = columns.use_column[use], columns.use_pool[use], columns.use_count[use]
    kinds, kind = np.unique(np.column_stack([pool.astype(np.float64), count]), axis=0, return_inverse=True)
    kind = kind.reshape(-1)
    work = np.bincount(kind, length_s[column] * count, len(kinds)).astype(np.float64)
    queues = _queue_counts(kinds, work, np.bincount(kind, minlength=len(kinds)), free)
    there = queues[kind] > 0
    if not there.any():
        return QueueSchedule(np.zeros(0, np.int64), np.zeros(0, np.int64), 0.0)
    rows, row = np.unique(columns.job[column[there]], return_inverse=True)
    used, kind = np.unique(kind[there], return_inverse=True)
    slowest_first = np.argsort(-length_s[column[there]], kind="stable")  # the fastest of equal ones is written last
    at, column = (row[slowest_first], kind[slowest_first]), column[there][slowest_first]
    table, column_of = np.full((len(rows), len(used)), np.inf), np.zeros((len(rows), len(used)), np.int64)
    table[at], column_of[at] = length_s[column], column
    seats = assign_positions(table, queues[used])
    first = queue_heads(seats, table, queues[used])
    return QueueSchedule(column_of[first, seats.kind[first]], rows, seats.total_s)


def _queue_counts(kinds: FloatArray, work: FloatArray, jobs: IntArray, free: FloatArray) -> IntArray:
    """Returns the number of queues of each kind (pool, gang size) into which the free accelerators of its pool are
    divided.
    """
    queues = np.zeros(len(kinds), dtype=np.int64)
    for pool in np.unique(kinds[:, 0]).tolist():
        own = np.flatnonzero(kinds[:, 0] == pool)
        queues[own] = split_into_queues(float(free[int(pool)]), kinds[own, 1], work[own], jobs[own])
    return queues


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class QueuePositions:
    """The queue and the position of each job (m,)."""

    kind: IntArray
    #: Position from the end: 1 for the last of its queue.
    from_end: IntArray
    #: The sum of the seconds until all jobs end.
    total_s: float


def assign_positions(length_s: FloatArray, queues: IntArray) -> QueuePositions:
    """Returns the positions with the least sum of completion times (exact).

    Args:
        length_s: time of each job in a queue of each kind, inf where it cannot run; finite somewhere for each (m, l).
        queues: queues of each kind, at least one (l,).
    """
    jobs = len(length_s)
    if not jobs:
        return QueuePositions(np.zeros(0, np.int64), np.zeros(0, np.int64), 0.0)
    most = -(-jobs // queues)  # With so many levels, each kind has a place for every job.
    levels = np.minimum(most, 2 * (-(-jobs // int(queues.sum()))))
    while True:
        kind = np.repeat(np.arange(len(queues)), levels)
        from_end = np.concatenate([np.arange(1, n + 1) for n in levels.tolist()])
        cost = length_s[:, kind] * from_end
        seat = _cheapest_positions(cost, queues[kind])
        last = (from_end == levels[kind]) & (np.bincount(seat, minlength=len(kind) + 1)[:-1] == queues[kind])
        full = np.bincount(kind[last], minlength=len(queues)) > 0
        grow = (full | bool(np.any(seat == len(kind)))) & (levels < most)
        if not grow.any():
            return QueuePositions(kind[seat], from_end[seat], float(cost[np.arange(jobs), seat].sum()))
        levels = np.where(grow, np.minimum(most, 2 * levels), levels)


def _cheapest_positions(cost: FloatArray, places: IntArray) -> IntArray:
    """Returns the level (seat) of each job at least total cost (m,); the number of levels for a job that found none.

    Jobs come one by one, each by the cheapest chain of moves that ends at a free place: the successive shortest paths
    of a transportation problem, where all places of a seat are one node however many there are.
    """
    jobs, seats = cost.shape
    seat = np.full(jobs, seats, np.int64)
    free = places.copy()
    #: The cost of moving the best suited job of one level to another.
    move = np.full((seats, seats), np.inf)
    finite = cost[np.isfinite(cost)]
    slack = 1e-12 * max(1.0, float(finite.max(initial=0.0)))
    for job in range(jobs):
        reached, via = _chains(cost[job], move, slack)
        end = int(np.argmin(np.where(free > 0, reached, np.inf)))
        if free[end] <= 0 or not np.isfinite(reached[end]):
            continue
        free[end] -= 1
        touched = [end]
        while via[end] >= 0:
            start = int(via[end])
            there = np.flatnonzero(seat == start)
            seat[there[np.argmin(cost[there, end] - cost[there, start])]] = end
            end = start
            touched.append(end)
        seat[job] = end
        for row in touched:
            there = np.flatnonzero(seat == row)
            move[row] = (cost[there] - cost[there, row][:, None]).min(axis=0)
            move[row, row] = np.inf
    return seat


def _chains(first: FloatArray, move: FloatArray, slack: float) -> tuple[FloatArray, IntArray]:
    """Returns the least cost of taking one more place of each level, and the level that the last move of that chain
    leaves (-1: none).
    """
    reached, via = first.copy(), np.full(len(first), -1, np.int64)
    for _ in range(len(first)):
        through = reached[:, None] + move
        start = np.argmin(through, axis=0)
        cost = through[start, np.arange(len(first))]
        better = cost < reached - slack
        if not better.any():
            break
        via[better], reached[better] = start[better], cost[better]
    return reached, via


def queue_heads(seats: QueuePositions, length_s: FloatArray, queues: IntArray) -> IntArray:
    """Returns the jobs that are first in their queue, ascending: those farthest from the end, as many as there are
    queues.
    """
    own = length_s[np.arange(len(seats.kind)), seats.kind]
    order = np.lexsort((own, -seats.from_end, seats.kind))
    kind = seats.kind[order]
    place = np.arange(len(order)) - np.searchsorted(kind, kind)
    return np.sort(order[place < queues[kind]])


def split_into_queues(free: float, sizes: FloatArray, work: FloatArray, jobs: IntArray) -> IntArray:
    """Returns the number of queues of each size (s,) made of the free accelerators, in proportion to the work that
    waits for each size.

    No size gets more queues than it has jobs. Accelerators left over go to the size that lost most by rounding, and so
    on, as long as one more of its queues fits.
    """
    part = free * (work / work.sum() if work.sum() > 0 else np.full(len(sizes), 1.0 / len(sizes))) / sizes
    queues = np.minimum(np.floor(part + _WHOLE), jobs)
    rest = free - float(queues @ sizes)
    for size in np.lexsort((-sizes, queues - part)).tolist():
        more = min(np.floor(rest / sizes[size] + _WHOLE), jobs[size] - queues[size])
        queues[size] += more
        rest -= float(more * sizes[size])
    return queues.astype(np.int64)
