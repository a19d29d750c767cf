"""From values to places: class by class, the assignment at prices."""

import numpy as np

from optimizer.market.distinct import offsets
from optimizer.plans.draft import Draft, used_by
from optimizer.plans.gangs import Gangs, assign_gangs
from optimizer.plans.transport import transport
from optimizer.plans.worth import Worth
from optimizer.problem import BoolArray, FloatArray, IntArray, Problem

_WHOLE = 1e-9


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
    draft.free = np.maximum(draft.free - used_by(problem, placed), 0.0)
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
