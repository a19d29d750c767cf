"""Accelerators given one after the other to whoever gains most by them. Where it ends nobody can have more.

A job that runs in a plan grows inside its pool; one that waits may begin anywhere. A step may be more than one
accelerator where a job has no configuration in between, or where two more help and one does not: what counts is the
gain per accelerator.
"""

from collections.abc import Callable

import numpy as np

from optimizer.arrays.owners import sum_by
from optimizer.elastic.facts import Facts
from optimizer.plans.draft import Draft
from optimizer.problem import BoolArray, FloatArray, IntArray, Problem

#: From the column of each job, -1 where it waits (n,), to what each column gains over it (c,).
Gain = Callable[[IntArray], FloatArray]


def grow(problem: Problem, facts: Facts, draft: Draft, gain: Gain, jobs: BoolArray) -> None:
    """Give what is free to these jobs, most gain per accelerator first, then by column, while anybody gains.

    Leaves as prices the most that one accelerator more would have gained in each pool.
    """
    job, size = problem.columns.job, facts.size
    while True:
        now = draft.column[job]
        larger = np.where(now >= 0, (facts.pool == facts.pool[now]) & (size > size[now]), True)
        extra = size - np.where(now >= 0, size[now], 0.0)
        able = facts.usable & larger & jobs[job] & ~facts.pinned[job]
        rate = np.where(able, gain(draft.column), 0.0) / np.maximum(extra, 1.0)
        fits = able & _fits(problem, draft, now)
        if not fits.any() or rate[fits].max() <= 0:
            break
        best = int(np.argmax(np.where(fits, rate, -np.inf)))
        place(problem, draft, best)
    refused = np.maximum(np.where(able, rate, 0.0), 0.0)
    np.maximum.at(draft.prices, facts.pool, refused)


def place(problem: Problem, draft: Draft, column: int) -> None:
    """Put the job of a column into it, out of the one it had."""
    columns, pools = problem.columns, len(problem.pools)
    row = columns.job[column]
    for each, sign in ((draft.column[row], 1.0), (column, -1.0)):
        ours = columns.use_column == each
        draft.free += sign * sum_by(columns.use_pool[ours], columns.use_count[ours], pools)
    draft.column[row] = column


def _fits(problem: Problem, draft: Draft, now: IntArray) -> BoolArray:
    """Whether what a column takes beyond what its job has in that pool is free (c,)."""
    columns, pools = problem.columns, len(problem.pools)
    has = np.zeros((len(problem.jobs), pools))
    held = draft.column[columns.job[columns.use_column]] == columns.use_column
    rows = columns.job[columns.use_column[held]]
    has[rows, columns.use_pool[held]] = columns.use_count[held]
    extra = columns.use_count - has[columns.job[columns.use_column], columns.use_pool]
    short = extra > draft.free[columns.use_pool] + 1e-9
    free: BoolArray = sum_by(columns.use_column, short.astype(np.float64), len(now)) == 0
    return free


def gain_in(problem: Problem, value: FloatArray) -> Gain:
    """Gains where every column has a value, and waiting has none."""
    padded = np.append(value, 0.0)
    return lambda column: value - padded[column[problem.columns.job]]
