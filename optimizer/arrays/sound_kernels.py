"""Do millions of columns hold together? One pass, compiled. Says yes or no: what is wrong is `validate`'s to find."""

import numba
import numpy as np

from optimizer.arrays.threads import threads_for
from optimizer.problem import Columns

_BLOCKS = 64


def sound(columns: Columns, jobs: int, pools: int) -> bool:
    """Whether indices are in range and ascend, numbers are finite and not negative, and every column uses a pool.

    The arrays have the lengths that they should have.
    """
    with threads_for(len(columns)):
        fine = _owned(columns.job, jobs, columns.steps_per_s)
        return bool(fine and _used(columns.use_column, len(columns), columns.use_pool, pools, columns.use_count))


@numba.njit(parallel=True, cache=True)
def _owned(job, jobs, steps):  # type: ignore[no-untyped-def]
    entries, wrong = len(job), np.zeros(_BLOCKS, dtype=np.int64)
    part = (entries + _BLOCKS - 1) // _BLOCKS
    for block in numba.prange(_BLOCKS):
        begin, end, missed = block * part, min(entries, (block + 1) * part), 0
        for i in range(max(begin, 1), end):
            missed += job[i] < job[i - 1]
        for i in range(begin, end):
            missed += not (steps[i] >= 0.0 and steps[i] < np.inf)
        wrong[block] = missed
    return wrong.sum() == 0 and (entries == 0 or (job[0] >= 0 and job[-1] < jobs))


@numba.njit(parallel=True, cache=True)
def _used(column, columns, pool, pools, count):  # type: ignore[no-untyped-def]
    entries, wrong = len(column), np.zeros(_BLOCKS, dtype=np.int64)
    part = (entries + _BLOCKS - 1) // _BLOCKS
    for block in numba.prange(_BLOCKS):
        begin, end, missed = block * part, min(entries, (block + 1) * part), 0
        for i in range(max(begin, 1), end):
            missed += column[i] < column[i - 1] or column[i] > column[i - 1] + 1
        for i in range(begin, end):
            missed += pool[i] < 0 or pool[i] >= pools
            missed += not (count[i] > 0.0 and count[i] < np.inf)
        wrong[block] = missed
    whole = column[0] == 0 and column[-1] == columns - 1 if entries > 0 else columns == 0
    return wrong.sum() == 0 and whole
