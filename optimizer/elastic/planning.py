"""From what configurations are worth to places: class by class the best choice."""

import numpy as np

from optimizer.arrays.owners import sum_by
from optimizer.elastic.choice import TOLERANCE, Choice, choose
from optimizer.plans.draft import Draft, used_by
from optimizer.problem import BoolArray, FloatArray, IntArray, Problem


def choose_all(problem: Problem, value: FloatArray, draft: Draft, tolerance: float = TOLERANCE) -> None:
    """The best choice for the jobs without a place, the higher classes before the lower; value <= 0: not that (c,)."""
    classes = problem.jobs.priority_class
    for priority_class in np.unique(classes)[::-1].tolist():
        competing = (classes == priority_class) & (draft.column < 0)
        _choose(problem, value, draft, competing, tolerance)


def choice_of(problem: Problem, value: FloatArray, competing: BoolArray, free: FloatArray) -> tuple[Choice, IntArray]:
    """The columns of value of these jobs as a choice, and which columns of the problem they are."""
    columns = problem.columns
    kept = np.flatnonzero(competing[columns.job] & (value > 0) & fitting(problem, free))
    place = np.full(len(columns), -1, dtype=np.int64)
    place[kept] = np.arange(len(kept))
    uses = place[columns.use_column] >= 0
    choice = Choice(
        job=np.unique(columns.job[kept], return_inverse=True)[1].astype(np.int64),
        value=value[kept],
        use_column=place[columns.use_column[uses]],
        use_pool=columns.use_pool[uses],
        use_count=columns.use_count[uses],
        capacity=free,
    )
    return choice, kept


def fitting(problem: Problem, free: FloatArray) -> BoolArray:
    """Columns for which there is room (c,)."""
    columns = problem.columns
    short = columns.use_count > free[columns.use_pool] + 1e-9
    fits: BoolArray = sum_by(columns.use_column, short.astype(np.float64), len(columns)) == 0
    return fits


def _choose(problem: Problem, value: FloatArray, draft: Draft, competing: BoolArray, tolerance: float) -> None:
    choice, kept = choice_of(problem, value, competing, draft.free)
    found = choose(choice, tolerance)
    placed = kept[found.column[found.column >= 0]]
    draft.column[problem.columns.job[placed]] = placed
    draft.free = np.maximum(draft.free - used_by(problem, placed), 0.0)
    draft.prices = np.maximum(draft.prices, found.prices)
    draft.reached += found.value
    draft.bound += found.bound
