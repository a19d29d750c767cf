"""A plan in the making: what those hold who cannot be moved, who has what by now, and the plan that comes out of it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from optimizer.arrays.owners import sum_by
from optimizer.decision import Plan, Quote, Yardstick
from optimizer.market.feasible import relative_gap
from optimizer.problem import FloatArray, IntArray, Problem


@dataclass(slots=True, eq=False)
class Draft:
    """A plan in the making."""

    #: Column of each job so far, -1: none (n,).
    column: IntArray
    #: Accelerators of each pool that nobody has yet (p,).
    free: FloatArray
    #: Prices, and what was reached of how much, over the jobs that competed.
    prices: FloatArray
    reached: float = 0.0
    bound: float = 0.0


@dataclass(frozen=True, slots=True)
class Measure:
    """What the values add up to, in words, and their unit; and the unit of the prices where that is another."""

    name: str
    unit: str
    price_unit: str = ""


def begin(problem: Problem) -> Draft:
    """Jobs that cannot be moved have their places."""
    columns, jobs, pools = problem.columns, problem.jobs, problem.pools
    column = np.full(len(jobs), -1, dtype=np.int64)
    free = pools.capacity.copy()
    if len(jobs.pinned):
        stay = np.flatnonzero(columns.running & jobs.pinned[columns.job])
        column[columns.job[stay]] = stay
        free -= used_by(problem, stay)
    return Draft(column, np.maximum(free, 0.0), np.zeros(len(pools)))


def used_by(problem: Problem, chosen: IntArray) -> FloatArray:
    """Accelerators of each pool that these columns take (p,)."""
    columns = problem.columns
    flag = np.zeros(len(columns), dtype=np.bool_)
    flag[chosen] = True
    held = flag[columns.use_column]
    return sum_by(columns.use_pool[held], columns.use_count[held], len(problem.pools))


def finish(
    problem: Problem, value: FloatArray, size: FloatArray, draft: Draft, measure: Measure, first: Sequence[int] = ()
) -> Plan:
    """The plan, with what everybody gains at its prices; most value per accelerator first.

    Args:
        problem: n jobs, c columns.
        value: of each column (c,).
        size: accelerators of each column (c,).
        draft: who has which column.
        measure: what the values add up to.
        first: rows of the jobs that come before all others, in their order.
    """
    columns, jobs, n = problem.columns, problem.jobs, len(problem.jobs)
    cost = sum_by(columns.use_column, draft.prices[columns.use_pool] * columns.use_count, len(columns))
    surplus, density = np.zeros(n), np.zeros(n)
    np.maximum.at(surplus, columns.job, value - cost)
    np.maximum.at(density, columns.job, value / np.maximum(size, 1.0))
    turn = np.full(n, len(first), dtype=np.int64)
    turn[list(first)] = np.arange(len(first))
    rows = np.lexsort((jobs.job_id, jobs.submitted_at, -density, -jobs.priority_class, turn))
    bound = max(draft.bound, draft.reached)
    yardstick = Yardstick(
        measure.name, measure.unit, draft.reached, bound, relative_gap(draft.reached, bound), maximise=True
    )
    return Plan(draft.column, rows, Quote(draft.prices, measure.price_unit or measure.unit, 1.0), surplus, yardstick)
