"""A plan in the making: what those hold who cannot be moved, who has what by now, and the plan that comes out of it."""

from dataclasses import dataclass

import numpy as np

from optimizer.decision import Plan, Quote, Yardstick
from optimizer.owners import sum_by
from optimizer.plans.worth import Worth
from optimizer.problem import FloatArray, IntArray, Problem

YARDSTICK = "assignment at prices"
UNIT = "worth of one accelerator"


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


def finish(problem: Problem, worth: Worth, draft: Draft, overdue: list[int]) -> Plan:
    """The plan, with what everybody gains at its prices."""
    columns, n = problem.columns, len(problem.jobs)
    cost = sum_by(columns.use_column, draft.prices[columns.use_pool] * columns.use_count, len(columns))
    surplus, density = np.zeros(n), np.zeros(n)
    np.maximum.at(surplus, columns.job, worth.value - cost)
    np.maximum.at(density, columns.job, worth.value / np.maximum(worth.size, 1.0))
    turn = np.full(n, len(overdue), dtype=np.int64)
    turn[overdue] = np.arange(len(overdue))
    jobs = problem.jobs
    rows = np.lexsort((jobs.job_id, jobs.submitted_at, -density, -jobs.priority_class, turn))
    gap = abs(draft.bound - draft.reached) / max(1e-12, abs(draft.bound)) if draft.bound > 0 else 0.0
    yardstick = Yardstick(YARDSTICK, UNIT, draft.reached, max(draft.bound, draft.reached), gap, maximise=True)
    return Plan(draft.column, rows, Quote(draft.prices, UNIT, 1.0), surplus, yardstick)
