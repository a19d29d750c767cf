"""The value of one more accelerator of each pool to the jobs of a plan, in USD per hour.

    gain(p) = max( 0,  V e / a  of a waiting job that fits p,
                   (V e_p - V e_q) / a + gain(q)  of a job that runs in q and fits p )

`V` is what an hour of a job at its best is worth, `e` how fast a configuration is against the job's best, `a` its
accelerators. It is the value of one *more*: the price of a plan lies between it and the value of the last one present,
and on small fleets the two are far apart. Where no job waits, one more accelerator of the slowest type is worth
nothing, and one of a faster type what moving a job there gains.

Jobs that cannot be moved stay, and what a pool's free accelerators could take already is not due to one more. Chains
have `_LONGEST_CHAIN` moves at most, and moves cost nothing: plans keep running jobs in place for less than a restart.
"""

import numpy as np

from optimizer.classes.segments import max_by, sum_by
from optimizer.problem import FloatArray, IntArray, Problem

#: The most jobs that move up, one after the other, behind one more accelerator.
_LONGEST_CHAIN = 3


def worth_of_one_more(problem: Problem, column: IntArray, value_usd_per_h: FloatArray) -> FloatArray:
    """Returns the value of one more accelerator of each pool, in USD per hour (p,); 0 where no job would gain.

    Args:
        problem: n jobs, c columns, p pools.
        column: the column of each job in the plan, -1: it waits (n,).
        value_usd_per_h: the value of an hour of each job at its best speed (n,).
    """
    columns, n, p = problem.columns, len(problem.jobs), len(problem.pools)
    if not n or not len(columns):
        return np.zeros(p)
    uses = np.bincount(columns.use_column, minlength=len(columns))
    size = sum_by(columns.use_column, columns.use_count, len(columns))
    pool = np.zeros(len(columns), dtype=np.int64)
    pool[columns.use_column] = columns.use_pool
    speed = np.nan_to_num(columns.steps_per_s, nan=0.0, posinf=0.0)
    best = max_by(columns.job, speed, n)
    gained = value_usd_per_h[columns.job] * speed / np.maximum(best[columns.job], 1e-300)
    placed = column >= 0
    held = np.zeros(n)
    held[placed] = gained[column[placed]]
    had, at = np.zeros(n), np.full(n, -1, dtype=np.int64)
    had[placed] = size[column[placed]]
    at[placed] = np.where(uses[column[placed]] == 1, pool[column[placed]], -1)
    chosen = np.zeros(len(columns), dtype=np.bool_)
    chosen[column[placed]] = True
    taken = chosen[columns.use_column]
    free = problem.pools.capacity - sum_by(columns.use_pool[taken], columns.use_count[taken], p)
    # Only configurations of one pool count: one more accelerator of one pool does not seat a gang over several.
    tried = np.flatnonzero((uses == 1) & (size > 0) & (gained > 0) & (size > free[pool] + 1e-9))
    job, into = columns.job[tried], pool[tried]
    more = (gained[tried] - held[job]) / size[tried]
    gain = np.zeros(p)
    waits = ~placed[job]
    np.maximum.at(gain, into[waits], more[waits])
    moves = placed[job] & (at[job] >= 0) & (at[job] != into) & (size[tried] == had[job]) & ~_pinned(problem)[job]
    edge = np.full((p, p), -np.inf)
    np.maximum.at(edge, (at[job[moves]], into[moves]), more[moves])
    for _ in range(min(p, _LONGEST_CHAIN)):
        # Row q: the gain when a job leaves q for each pool, plus what its place in q is then worth.
        gain = np.maximum(gain, (edge + gain[:, None]).max(axis=0))
    return gain


def _pinned(problem: Problem) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    pinned = problem.jobs.pinned
    return pinned if len(pinned) else np.zeros(len(problem.jobs), dtype=np.bool_)
