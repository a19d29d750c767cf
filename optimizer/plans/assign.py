"""From values to a plan: fixed jobs, overdue jobs, then class by class the assignment at prices."""

from dataclasses import dataclass

import numpy as np

from optimizer.decision import Plan, Quote, Yardstick
from optimizer.distinct import offsets
from optimizer.owners import sum_by
from optimizer.plans.gangs import Gangs, assign_gangs
from optimizer.plans.transport import transport
from optimizer.plans.worth import Worth
from optimizer.problem import BoolArray, FloatArray, IntArray, Problem

YARDSTICK = "assignment at prices"
UNIT = "worth of one accelerator"
_WHOLE = 1e-9


@dataclass(slots=True, eq=False)
class Draft:
    """A plan in the making."""

    #: Column of each job so far, -1: none (n,).
    column: IntArray
    #: Accelerators of each pool that nobody has yet (p,).
    free: FloatArray
    #: Prices, and what was reached of how much, over the jobs that competed.
    prices: FloatArray
    reached: float = 0.0
    bound: float = 0.0


def begin(problem: Problem) -> Draft:
    """Jobs that cannot be moved have their places."""
    columns, jobs, pools = problem.columns, problem.jobs, problem.pools
    column = np.full(len(jobs), -1, dtype=np.int64)
    free = pools.capacity.copy()
    if len(jobs.pinned):
        stay = np.flatnonzero(columns.running & jobs.pinned[columns.job])
        column[columns.job[stay]] = stay
        free -= _used_by(problem, stay)
    return Draft(column, np.maximum(free, 0.0), np.zeros(len(pools)))


def _used_by(problem: Problem, chosen: IntArray) -> FloatArray:
    """Accelerators of each pool that these columns take (p,)."""
    columns = problem.columns
    flag = np.zeros(len(columns), dtype=np.bool_)
    flag[chosen] = True
    held = flag[columns.use_column]
    return sum_by(columns.use_pool[held], columns.use_count[held], len(problem.pools))


def assign(problem: Problem, worth: Worth, draft: Draft) -> None:
    """Let the jobs without a place compete for what is free, the higher classes before the lower."""
    classes = problem.jobs.priority_class
    for priority_class in np.unique(classes)[::-1].tolist():
        competing = (classes == priority_class) & (draft.column < 0)
        if competing.any():
            _assign_class(problem, worth, draft, competing)


def _assign_class(problem: Problem, worth: Worth, draft: Draft, competing: BoolArray) -> None:
    columns = problem.columns
    kept = np.flatnonzero(competing[columns.job] & (worth.value > 0))
    if not len(kept):
        return
    present = np.zeros(len(competing), dtype=np.bool_)
    present[columns.job[kept]] = True
    rows, job = np.flatnonzero(present), (np.cumsum(present) - 1)[columns.job[kept]]
    use_first = offsets(columns.use_column, len(columns))
    simple = np.all((worth.size[kept] == 1) & (use_first[kept + 1] - use_first[kept] == 1))
    solve = _by_transport if simple else _by_gangs
    chosen, prices, bound = solve(problem, worth, draft.free, kept, job, len(rows), use_first)
    draft.column[rows] = chosen
    placed = chosen[chosen >= 0]
    draft.free = np.maximum(draft.free - _used_by(problem, placed), 0.0)
    draft.prices = np.maximum(draft.prices, prices)
    draft.reached += float(worth.value[placed].sum())
    draft.bound += bound


def _by_transport(
    problem: Problem, worth: Worth, free: FloatArray, kept: IntArray, job: IntArray, n: int, use_first: IntArray
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
    place, prices = transport(value, places)
    chosen = np.where(place >= 0, column[np.arange(n) * pools + place], -1)
    gained = np.maximum((value - prices).max(axis=1), 0.0).sum()
    return chosen, prices, float(gained + prices @ places)


def _by_gangs(
    problem: Problem, worth: Worth, free: FloatArray, kept: IntArray, job: IntArray, n: int, use_first: IntArray
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
        Gangs(
            first=offsets(job, n),
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


def finish(problem: Problem, worth: Worth, draft: Draft, overdue: list[int]) -> Plan:
    """The plan, with what everybody gains at its prices."""
    columns, n = problem.columns, len(problem.jobs)
    cost = sum_by(columns.use_column, draft.prices[columns.use_pool] * columns.use_count, len(columns))
    surplus, density = np.zeros(n), np.zeros(n)
    np.maximum.at(surplus, columns.job, worth.value - cost)
    np.maximum.at(density, columns.job, worth.value / np.maximum(worth.size, 1.0))
    turn = np.full(n, len(overdue), dtype=np.int64)
    turn[overdue] = np.arange(len(overdue))
    jobs = problem.jobs
    rows = np.lexsort((jobs.job_id, jobs.submitted_at, -density, -jobs.priority_class, turn))
    gap = abs(draft.bound - draft.reached) / max(1e-12, abs(draft.bound)) if draft.bound > 0 else 0.0
    yardstick = Yardstick(YARDSTICK, UNIT, draft.reached, max(draft.bound, draft.reached), gap, maximise=True)
    return Plan(draft.column, rows, Quote(draft.prices, UNIT, 1.0), surplus, yardstick)
