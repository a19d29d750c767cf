"""From what configurations are worth to a plan: whoever cannot be moved, then class by class the best choice."""

from dataclasses import dataclass

import numpy as np

from optimizer.decision import Plan, Quote, Yardstick
from optimizer.elastic.choice import TOLERANCE, Choice, choose
from optimizer.elastic.facts import Facts
from optimizer.feasible import relative_gap
from optimizer.owners import sum_by
from optimizer.problem import BoolArray, FloatArray, IntArray, Problem


@dataclass(slots=True, eq=False)
class Draft:
    """A plan in the making."""

    #: Column of each job so far, -1: none (n,).
    column: IntArray
    #: Accelerators of each pool that nobody has yet (p,).
    free: FloatArray
    prices: FloatArray
    #: What was reached of how much, over the jobs that competed.
    reached: float = 0.0
    bound: float = 0.0


@dataclass(frozen=True, slots=True)
class Measure:
    """What the values add up to, in words, and their unit; and the unit of the prices where that is another."""

    name: str
    unit: str
    price_unit: str = ""


def begin(problem: Problem, facts: Facts) -> Draft:
    """Jobs that cannot be moved have their places."""
    column = np.where(facts.pinned, facts.running, -1)
    free = problem.pools.capacity - used_by(problem, column[column >= 0])
    return Draft(column, np.maximum(free, 0.0), np.zeros(len(problem.pools)))


def used_by(problem: Problem, chosen: IntArray) -> FloatArray:
    """Accelerators of each pool that these columns take (p,)."""
    columns = problem.columns
    flag = np.zeros(len(columns), dtype=np.bool_)
    flag[chosen] = True
    ours = flag[columns.use_column]
    return sum_by(columns.use_pool[ours], columns.use_count[ours], len(problem.pools))


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


def finish(problem: Problem, facts: Facts, value: FloatArray, draft: Draft, measure: Measure) -> Plan:
    """The plan, with what everybody gains at its prices; most value per accelerator first."""
    columns, jobs, n = problem.columns, problem.jobs, len(problem.jobs)
    cost = sum_by(columns.use_column, draft.prices[columns.use_pool] * columns.use_count, len(columns))
    surplus, density = np.zeros(n), np.zeros(n)
    np.maximum.at(surplus, columns.job, value - cost)
    np.maximum.at(density, columns.job, value / np.maximum(facts.size, 1.0))
    rows = np.lexsort((jobs.job_id, jobs.submitted_at, -density, -jobs.priority_class))
    bound = max(draft.bound, draft.reached)
    yardstick = Yardstick(
        measure.name, measure.unit, draft.reached, bound, relative_gap(draft.reached, bound), maximise=True
    )
    return Plan(draft.column, rows, Quote(draft.prices, measure.price_unit or measure.unit, 1.0), surplus, yardstick)
