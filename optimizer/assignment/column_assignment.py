"""At most one column per job within capacity: the problem, the entry to its methods, and greedy plans of elastic jobs.

    maximise  sum_c v_c y_c     s.t.  sum_{c of j} y_c <= 1,   sum_c use[c,r] y_c <= N[r]  (price l_r),   y in {0, 1}

A column is one configuration of a job: accelerators of one pool, or of several. Any prices l >= 0 bound every
assignment (weak duality, `assignment_problem`), so each method returns prices, and an assignment states how far it can
be from the best one. A plan policy states what its columns are worth and calls `assign_jobs` with a method:

    transportation.assign_by_search              exact where every job takes one accelerator, local search for gangs;
                                                 compiled, for tens of thousands of jobs within milliseconds
    multiple_choice_knapsack.solve_knapsack      prices and an integer program over the contested jobs; within a
                                                 tolerance of the bound, for elastic jobs with many columns each

Hadar's round (`plan_hadar_round`) is no such method: it makes columns while it places jobs, at rising prices.

Elastic jobs are placed by greedy growth or over a window of rounds. Greedy growth gives accelerators one after the
other to the job that gains most per accelerator: a job that runs in a plan grows inside its pool, one that waits may
begin anywhere; a step may be more than one accelerator where a job has no configuration in between. It ends when no job
can have more. A window shares out T equal rounds: a round is worth what it adds for a job that has had the rounds
before, so values rise with the number of rounds, ever less; only the number of rounds matters, not which ones they are,
so the window is one choice of (column, rounds) for each job, with T times the accelerators of every pool.

Shapes: n jobs that compete, c columns, p pools.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from optimizer.assignment.assignment_problem import Assignment, AssignmentProblem, Contest
from optimizer.assignment.guarantee_rows import GuaranteedEntities, GuaranteeQuestion, assign_with_guarantees
from optimizer.assignment.limit_rows import LimitedEntities
from optimizer.assignment.multiple_choice_knapsack import solve_knapsack
from optimizer.assignment.plan_draft import ElasticJobs, PlanDraft, accelerators_held, note_entity_prices
from optimizer.classes.segments import sum_by
from optimizer.problem import BoolArray, FloatArray, IntArray, Problem

#: Slack for comparing counts that were computed in floating point.
_WHOLE = 1e-9

if TYPE_CHECKING:
    from optimizer.assignment.mixed_gangs import UnlistedGangs

AssignmentMethod = Callable[[AssignmentProblem], Assignment]


def assign_jobs(
    problem: Problem,
    value: FloatArray,
    draft: PlanDraft,
    method: AssignmentMethod,
    *,
    only_fitting: bool = True,
    limits: LimitedEntities | None = None,
    guarantees: GuaranteedEntities | None = None,
    unlisted: "UnlistedGangs | None" = None,
    begin_class: Callable[[int], None] = lambda priority_class: None,
) -> None:
    """Assigns the free accelerators to jobs that have no place yet, one priority class after another, the highest
    first.

    Args:
        problem: the jobs, their columns and the pools.
        value: of each column; a column with a value <= 0 is never taken (c,).
        draft: names the column that each job has already; receives the new places, the prices, the value reached and
            its bound.
        method: assigns the jobs of one priority class.
        only_fitting: leave out columns that do not fit even before any job is placed. No job can take them, but they
            tell a method that moves prices how much is wanted.
        limits: limits of entities, which become rows after those of the pools; None: there are none.
        guarantees: guarantees of entities, kept among the jobs of one priority class; None: there are none.
        unlisted: gangs over several pools that jobs may have besides their columns, for the bound to cover.
        begin_class: called with each priority class before its jobs compete; it may give some of them places.
    """
    classes, columns, p = problem.jobs.priority_class, problem.columns, len(problem.pools)
    for priority_class in np.unique(classes)[::-1].tolist():
        begin_class(priority_class)
        competing = (classes == priority_class) & (draft.column < 0)
        question, kept = assignment_problem_of(problem, value, competing, draft.free, only_fitting=only_fitting)
        if not len(kept):
            continue
        if limits is not None:
            question = limits.rows_beside(question, limits.left(draft.column), kept)
        rows, free, charges = len(question.capacity), draft.free, np.zeros((1, 1))
        if guarantees is None:
            found = method(question)
        else:
            asked = GuaranteeQuestion.of(guarantees, question, draft.column, kept)
            found, question, credit = assign_with_guarantees(asked, method)
            charges = charges - guarantees.credits(credit)[:, None]
            note_entity_prices(draft.guarantee_prices, guarantees.entity, credit)
        placed = kept[found.column[found.column >= 0]]
        draft.column[columns.job[placed]] = placed
        draft.free = np.maximum(free - accelerators_held(problem, placed), 0.0)
        draft.prices = np.maximum(draft.prices, found.prices[:p])
        if limits is not None:
            charges = charges + limits.charges(found.prices[p:rows])
            note_entity_prices(draft.limit_prices, limits.entity, found.prices[p:rows])
        if charges.any():
            draft.charges = draft.charges + charges * competing[:, None]
        draft.reached += found.value
        beyond = None
        if unlisted is not None:
            beyond = partial(unlisted_gain, unlisted, question, (columns.job[kept], competing), (limits, guarantees))
            prices = found.prices if len(question.capacity) == rows else np.concatenate((found.prices, credit))
        bound = found.bound if beyond is None else found.bound + beyond(prices)
        draft.bound += bound
        if bound > found.value:
            draft.contests.append(Contest(question, bound, beyond))


def unlisted_gain(
    unlisted: "UnlistedGangs",
    question: AssignmentProblem,
    jobs: tuple[IntArray, BoolArray],
    entities: tuple[LimitedEntities | None, GuaranteedEntities | None],
    prices: FloatArray,
) -> float:
    """Returns by how much gangs that are not listed could raise the bound at these prices of a problem's rows.

    `jobs`: the row in `problem` of the job of each column of the question, and whether each job competes (n,).
    """
    rows, competing = jobs
    known = np.where(competing, 0.0, np.inf)
    known[np.unique(rows)] = np.maximum(question.best_net(question.net(prices)), 0.0)
    pools, (limits, guarantees) = len(question.capacity) - question.limits, entities
    charges, after = np.zeros((len(competing), pools)), pools
    if limits is not None:
        after += len(limits)
        charges += limits.charges(prices[pools:after])
    if guarantees is not None and len(prices) > after:
        charges -= guarantees.credits(prices[after:])[:, None]
    return unlisted.gain(prices[:pools], charges, question.capacity[:pools], known)


def assignment_problem_of(
    problem: Problem, value: FloatArray, competing: BoolArray, free: FloatArray, *, only_fitting: bool = True
) -> tuple[AssignmentProblem, IntArray]:
    """Returns the assignment problem over the competing jobs' columns with a value above 0, and the index of each of
    these columns in `problem` (c,).
    """
    columns = problem.columns
    wanted = competing[columns.job] & (value > 0)
    if only_fitting:
        wanted &= fitting_columns(problem, free)
    kept = np.flatnonzero(wanted)
    if 0 < len(kept) == len(columns) and columns.job[0] == 0 and np.all(np.diff(columns.job) <= 1):
        return AssignmentProblem(
            columns.job, value, columns.use_column, columns.use_pool, columns.use_count, free, columns.running
        ), kept
    present = np.zeros(len(competing), dtype=np.bool_)
    present[columns.job[kept]] = True
    place = np.full(len(columns), -1, dtype=np.int64)
    place[kept] = np.arange(len(kept))
    uses = place[columns.use_column] >= 0
    question = AssignmentProblem(
        job=(np.cumsum(present) - 1)[columns.job[kept]],
        value=value[kept],
        use_column=place[columns.use_column[uses]],
        use_pool=columns.use_pool[uses],
        use_count=columns.use_count[uses],
        capacity=free,
        running=columns.running[kept],
    )
    return question, kept


def fitting_columns(problem: Problem, free: FloatArray) -> BoolArray:
    """Returns whether each column fits into the free accelerators (c,)."""
    columns = problem.columns
    fits: BoolArray = np.ones(len(columns), dtype=np.bool_)
    fits[columns.use_column[columns.use_count > free[columns.use_pool] + _WHOLE]] = False
    return fits


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
