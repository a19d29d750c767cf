"""Places for elastic jobs, from what configurations are worth: by greedy growth, or over a window of rounds.

Greedy growth gives accelerators one after the other to the job that gains most per accelerator: a job that runs in a
plan grows inside its pool, one that waits may begin anywhere; a step may be more than one accelerator where a job has
no configuration in between. It ends when no job can have more. A window shares out T equal rounds: a round is worth
what it adds for a job that has had the rounds before, so values rise with the number of rounds, ever less; only the
number of rounds matters, not which ones they are, so the window is one choice of (column, rounds) for each job, with T
times the accelerators of every pool.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from optimizer.assignment.assignment_problem import Assignment, AssignmentProblem
from optimizer.assignment.column_assignment import assignment_problem_of, fitting_columns
from optimizer.assignment.multiple_choice_knapsack import solve_knapsack
from optimizer.assignment.plan_draft import ElasticJobs, PlanDraft
from optimizer.classes.segments import sum_by
from optimizer.problem import BoolArray, FloatArray, IntArray, Problem

#: A function from the column of each job (n,), -1 where it waits, to the gain of each column over it (c,).
ColumnGain = Callable[[IntArray], FloatArray]


def grow_greedily(problem: Problem, facts: ElasticJobs, draft: PlanDraft, gain: ColumnGain, jobs: BoolArray) -> None:
    """Gives free accelerators to these jobs, the largest gain per accelerator first (ties by column), while any job
    gains.

    Sets as price of each pool the most that one more accelerator of it would have gained.
    """
    job, size = problem.columns.job, facts.size
    while True:
        now = draft.column[job]
        larger = np.where(now >= 0, (facts.pool == facts.pool[now]) & (size > size[now]), True)
        extra = size - np.where(now >= 0, size[now], 0.0)
        able = facts.usable & larger & jobs[job] & ~facts.pinned[job]
        rate = np.where(able, gain(draft.column), 0.0) / np.maximum(extra, 1.0)
        fits = able & _extra_fits(problem, draft, now)
        if not fits.any() or rate[fits].max() <= 0:
            break
        best = int(np.argmax(np.where(fits, rate, -np.inf)))
        place_in_column(problem, draft, best)
    refused = np.maximum(np.where(able, rate, 0.0), 0.0)
    np.maximum.at(draft.prices, facts.pool, refused)


def place_in_column(problem: Problem, draft: PlanDraft, column: int) -> None:
    """Moves the job of a column into that column, out of the one that it had."""
    columns, pools = problem.columns, len(problem.pools)
    row = columns.job[column]
    for each, sign in ((draft.column[row], 1.0), (column, -1.0)):
        ours = columns.use_column == each
        draft.free += sign * sum_by(columns.use_pool[ours], columns.use_count[ours], pools)
    draft.column[row] = column


def _extra_fits(problem: Problem, draft: PlanDraft, now: IntArray) -> BoolArray:
    """Returns whether each column's additional accelerators, beyond those that its job has in that pool, are free
    (c,).
    """
    columns, pools = problem.columns, len(problem.pools)
    has = np.zeros((len(problem.jobs), pools))
    held = draft.column[columns.job[columns.use_column]] == columns.use_column
    rows = columns.job[columns.use_column[held]]
    has[rows, columns.use_pool[held]] = columns.use_count[held]
    extra = columns.use_count - has[columns.job[columns.use_column], columns.use_pool]
    short = extra > draft.free[columns.use_pool] + 1e-9
    free: BoolArray = sum_by(columns.use_column, short.astype(np.float64), len(now)) == 0
    return free


def gain_by_value(problem: Problem, value: FloatArray) -> ColumnGain:
    """Returns a gain function for columns with fixed values, where waiting is worth 0."""
    padded = np.append(value, 0.0)
    return lambda column: value - padded[column[problem.columns.job]]


#: Relative gap to its bound at which a choice of rounds is good enough: the values of rounds are predictions.
_WINDOW_TOLERANCE = 1e-3
#: Number of jobs that compete at first in the integer program; each of them has many columns.
_WINDOW_CORE = 12


@dataclass(frozen=True, slots=True, eq=False)
class WindowShares:
    """How many rounds of the window each job gets, and in which column (n,)."""

    #: Row of `Columns`, -1: none; and the number of rounds.
    column: IntArray
    rounds: IntArray


def share_window(problem: Problem, value: FloatArray, draft: PlanDraft, competing: BoolArray) -> WindowShares:
    """Divides the free accelerators of every round among the competing jobs.

    Args:
        problem: the jobs and their columns.
        value: of 1, 2, ... T rounds in every column (c, T); where it is <= 0 no job takes that.
        draft: says what is free; receives prices per accelerator and round, the value reached, and its bound.
        competing: jobs that take part (n,).
    """
    n, rounds = len(problem.jobs), value.shape[1]
    base, kept = assignment_problem_of(problem, value.max(axis=1, initial=0.0), competing, draft.free)
    found, cell = _choose_rounds(base, value[kept], draft.free * rounds)
    column, count = np.full(n, -1, dtype=np.int64), np.zeros(n, dtype=np.int64)
    chosen = cell[found.column[found.column >= 0]]
    columns = kept[chosen // rounds]
    column[problem.columns.job[columns]], count[problem.columns.job[columns]] = columns, chosen % rounds + 1
    draft.reached += found.value
    draft.bound += found.bound
    draft.prices = np.maximum(draft.prices, found.prices)
    return WindowShares(column, count)


def _choose_rounds(base: AssignmentProblem, value: FloatArray, capacity: FloatArray) -> tuple[Assignment, IntArray]:
    """Returns the assignment over pairs (column, rounds), and the cell column x T + rounds - 1 of each pair that was
    offered.
    """
    rounds = value.shape[1]
    cell = np.flatnonzero(value.ravel() > 0)
    number = np.full(value.size, -1, dtype=np.int64)
    number[cell] = np.arange(len(cell))
    uses = (base.use_column[:, None] * rounds + np.arange(rounds)).ravel()
    count = (base.use_count[:, None] * np.arange(1, rounds + 1)).ravel()
    there = number[uses] >= 0
    expanded = AssignmentProblem(
        job=base.job[cell // rounds],
        value=value.ravel()[cell],
        use_column=number[uses[there]],
        use_pool=np.repeat(base.use_pool, rounds)[there],
        use_count=count[there],
        capacity=capacity,
    )
    return solve_knapsack(expanded, _WINDOW_TOLERANCE, _WINDOW_CORE), cell


def place_jobs_first(problem: Problem, draft: PlanDraft, rows: IntArray, once: FloatArray) -> None:
    """Places these jobs before all others, in their order, each in the column where one round adds most (`once`,
    (c,)).
    """
    job = problem.columns.job
    for row in rows.tolist():
        able = np.where((job == row) & (once > 0) & fitting_columns(problem, draft.free), once, 0.0)
        if able.max(initial=0.0) > 0:
            place_in_column(problem, draft, int(np.argmax(able)))


def place_window_round(
    problem: Problem, facts: ElasticJobs, draft: PlanDraft, shares: WindowShares, value: FloatArray
) -> None:
    """Places the jobs whose rounds are worth most per accelerator into the current round; ties go to running jobs.

    Args:
        problem: the jobs and their columns.
        facts: where the jobs run now.
        draft: receives the places.
        shares: what each job gets of the window.
        value: of 1, 2, ... T rounds in every column (c, T).
    """
    rows = np.flatnonzero(shares.rounds > 0)
    column, rounds = shares.column[rows], shares.rounds[rows]
    density = value[column, rounds - 1] / (rounds * facts.size[column])
    jobs, stays = problem.jobs, column == facts.running[rows]
    order = np.lexsort((jobs.job_id[rows], jobs.submitted_at[rows], ~stays, -density))
    for at in order.tolist():
        if fitting_columns(problem, draft.free)[column[at]]:
            place_in_column(problem, draft, int(column[at]))
