"""At most one column per job within capacity: the problem, the entry to its methods, and the bound that prices prove.

    maximise  sum_c v_c y_c     s.t.  sum_{c of j} y_c <= 1,   sum_c use[c,r] y_c <= N[r]  (price l_r),   y in {0, 1}

A column is one configuration of a job: accelerators of one pool, or of several. Any prices l >= 0 bound every
assignment (weak duality):

    sum_c v_c y_c  <=  sum_j max(0, max_{c of j} v_c - l.use_c)  +  l.N

so each method returns prices, and an assignment states how far it can be from the best one. A plan policy states what
its columns are worth and calls `assign_jobs` with a method:

    transportation.assign_by_search              exact where every job takes one accelerator, local search for gangs;
                                                 compiled, for tens of thousands of jobs within milliseconds
    multiple_choice_knapsack.solve_knapsack      prices and an integer program over the contested jobs; within a
                                                 tolerance of the bound, for elastic jobs with many columns each

Hadar's round (`plan_hadar_round`) is no such method: it makes columns while it places jobs, at rising prices.

Shapes: n jobs that compete, c columns, p pools.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from optimizer.assignment.assignment_problem import Assignment, AssignmentProblem, Contest
from optimizer.assignment.guarantee_rows import GuaranteedEntities, GuaranteeQuestion, assign_with_guarantees
from optimizer.assignment.limit_rows import LimitedEntities
from optimizer.assignment.plan_draft import PlanDraft, accelerators_held, note_entity_prices
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
            beyond = partial(
                unlisted_gain, unlisted, question, (columns.job[kept], competing), free, (limits, guarantees)
            )
            prices = found.prices if len(question.capacity) == rows else np.concatenate((found.prices, credit))
        bound = found.bound if beyond is None else found.bound + beyond(prices)
        draft.bound += bound
        if bound > found.value:
            draft.contests.append(Contest(question, bound, beyond))


def unlisted_gain(
    unlisted: "UnlistedGangs",
    question: AssignmentProblem,
    jobs: tuple[IntArray, BoolArray],
    free: FloatArray,
    entities: tuple[LimitedEntities | None, GuaranteedEntities | None],
    prices: FloatArray,
) -> float:
    """Returns by how much gangs that are not listed could raise the bound at these prices of a problem's rows.

    `jobs`: the row in `problem` of the job of each column of the question, and whether each job competes (n,).
    """
    rows, competing = jobs
    known = np.where(competing, 0.0, np.inf)
    known[np.unique(rows)] = np.maximum(question.best_net(question.net(prices)), 0.0)
    pools, (limits, guarantees) = len(free), entities
    charges, after = np.zeros((len(competing), pools)), pools
    if limits is not None:
        after += len(limits)
        charges += limits.charges(prices[pools:after])
    if guarantees is not None and len(prices) > after:
        charges -= guarantees.credits(prices[after:])[:, None]
    return unlisted.gain(prices[:pools], charges, free, known)


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
