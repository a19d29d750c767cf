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

Hadar's round (`hadar_round`) is no such method: it makes columns while it places jobs, at prices that rise with each.

Shapes: n jobs that compete, c columns, p pools.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from optimizer.assignment.plan_draft import PlanDraft, accelerators_held
from optimizer.classes.segments import sum_by
from optimizer.problem import BoolArray, FloatArray, IntArray, Problem

#: Slack for counts that went through float arithmetic.
_WHOLE = 1e-9


@dataclass(frozen=True)
class AssignmentProblem:
    """Jobs 0..n-1, each with at least one column; columns are grouped by job, and all values are above 0."""

    #: Job of each column, ascending, and what the column is worth (c,).
    job: IntArray
    value: FloatArray
    #: Parallel arrays of uses: accelerators of a pool that a column takes.
    use_column: IntArray
    use_pool: IntArray
    use_count: FloatArray
    #: Accelerators of each pool that are free (p,).
    capacity: FloatArray
    #: Whether the job runs in the column now (c,); empty: no job runs.
    running: BoolArray = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))

    @property
    def jobs(self) -> int:
        """n."""
        return int(self.job[-1]) + 1 if len(self.job) else 0

    @cached_property
    def first(self) -> IntArray:
        """First column of each job (n,)."""
        return np.searchsorted(self.job, np.arange(self.jobs))

    @property
    def size(self) -> FloatArray:
        """Accelerators of each column over all pools (c,)."""
        return sum_by(self.use_column, self.use_count, len(self.job))

    def net(self, prices: FloatArray) -> FloatArray:
        """Value minus price of each column (c,)."""
        return self.value - sum_by(self.use_column, prices[self.use_pool] * self.use_count, len(self.job))

    def used(self, column: IntArray) -> FloatArray:
        """Accelerators of each pool that the columns of jobs take; -1 among them is ignored (p,)."""
        held = np.zeros(len(self.job), dtype=np.bool_)
        held[column[column >= 0]] = True
        ours = held[self.use_column]
        return sum_by(self.use_pool[ours], self.use_count[ours], len(self.capacity))

    def value_of(self, column: IntArray) -> float:
        """Sum of the values of the columns of jobs, -1 for a job that waits (n,)."""
        return float(self.value[column[column >= 0]].sum())

    def best_net(self, net: FloatArray) -> FloatArray:
        """The largest net value of each job's columns (n,)."""
        return np.asarray(np.maximum.reduceat(net, self.first))

    def dual_bound(self, prices: FloatArray) -> float:
        """What no assignment is worth more than, by weak duality at these prices (p,)."""
        return self.bound_by(self.best_net(self.net(prices)), prices)

    def bound_by(self, best_net: FloatArray, prices: FloatArray) -> float:
        """`dual_bound` where the largest net values (n,) at these prices are known."""
        return float(np.maximum(best_net, 0.0).sum() + prices @ self.capacity)


@dataclass(frozen=True, slots=True, eq=False)
class Assignment:
    """An assignment, with the prices that explain it."""

    #: Column of each job, -1: the job waits (n,).
    column: IntArray
    #: Price of an accelerator of each pool (p,).
    prices: FloatArray
    value: float
    #: No assignment is worth more.
    bound: float

    @property
    def gap(self) -> float:
        """Distance to the bound, relative to it."""
        return (self.bound - self.value) / max(self.bound, 1e-12)


AssignmentMethod = Callable[[AssignmentProblem], Assignment]


def assign_jobs(
    problem: Problem, value: FloatArray, draft: PlanDraft, method: AssignmentMethod, *, only_fitting: bool = True
) -> None:
    """Let the jobs without a place compete for what is free, the higher priority classes before the lower.

    Args:
        problem: the jobs, their columns and the pools.
        value: of each column; a column with a value <= 0 is never taken (c,).
        draft: who has a place already; receives the places, the prices, and what was reached of which bound.
        method: assigns the jobs of one priority class.
        only_fitting: leave out columns for which there is no room even before anybody is placed. They cannot be taken,
            but they tell a method that moves prices how much is wanted.
    """
    classes = problem.jobs.priority_class
    for priority_class in np.unique(classes)[::-1].tolist():
        competing = (classes == priority_class) & (draft.column < 0)
        question, kept = assignment_problem_of(problem, value, competing, draft.free, only_fitting=only_fitting)
        if not len(kept):
            continue
        found = method(question)
        placed = kept[found.column[found.column >= 0]]
        draft.column[problem.columns.job[placed]] = placed
        draft.free = np.maximum(draft.free - accelerators_held(problem, placed), 0.0)
        draft.prices = np.maximum(draft.prices, found.prices)
        draft.reached += found.value
        draft.bound += found.bound


def assignment_problem_of(
    problem: Problem, value: FloatArray, competing: BoolArray, free: FloatArray, *, only_fitting: bool = True
) -> tuple[AssignmentProblem, IntArray]:
    """The competing jobs' columns with a value above 0, and which columns of the problem they are (c,)."""
    columns = problem.columns
    wanted = competing[columns.job] & (value > 0)
    kept = np.flatnonzero(wanted & fitting_columns(problem, free) if only_fitting else wanted)
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
    """Whether what is free holds each column (c,)."""
    columns = problem.columns
    short = columns.use_count > free[columns.use_pool] + _WHOLE
    fits: BoolArray = sum_by(columns.use_column, short.astype(np.float64), len(columns)) == 0
    return fits
