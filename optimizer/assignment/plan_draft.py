"""A plan under construction: the configuration that each job has so far, what is free, and the plan that results.

Elastic policies also see here which configurations a job may have, and what it has now. Growth and restarts are
counted from one decision to the next, in the policy's memory. A move inside one pool that keeps the size is not seen.

Shapes: n jobs, c columns, p pools.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from optimizer.classes.aggregation import job_offsets
from optimizer.classes.class_problem import relative_gap
from optimizer.classes.segments import sum_by
from optimizer.decision import BoundReport, EntityPrice, Memory, Plan, Quote
from optimizer.problem import BoolArray, Columns, FloatArray, IntArray, Problem
from optimizer.utility.fair_share import column_accelerators, usable_columns

if TYPE_CHECKING:
    from optimizer.assignment.assignment_problem import Contest


@dataclass(slots=True, eq=False)
class PlanDraft:
    """A plan under construction."""

    #: The column of each job so far, -1: none (n,).
    column: IntArray
    #: The accelerators of each pool that no job has yet (p,).
    free: FloatArray
    #: The prices (p,), the value reached and its bound, summed over the jobs that competed.
    prices: FloatArray
    reached: float = 0.0
    bound: float = 0.0
    #: What an accelerator of each pool costs each job besides its price (n, p), or one 0 for all: prices of limits of
    #: its project and user, less those of guarantees.
    charges: FloatArray = field(default_factory=lambda: np.zeros((1, 1)))
    #: The prices of limits and of guarantees that bind, by row of `Entities`; the highest of all priority classes.
    limit_prices: dict[int, float] = field(default_factory=dict)
    guarantee_prices: dict[int, float] = field(default_factory=dict)
    #: Assignments decided by prices whose prices do not prove them optimal.
    contests: "list[Contest]" = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PlanMeasure:
    """The objective in words, its unit, and the unit of the prices where that is another."""

    name: str
    unit: str
    price_unit: str = ""


def begin_plan(problem: Problem) -> PlanDraft:
    """Returns a draft in which jobs that cannot be moved have their places."""
    columns, jobs, pools = problem.columns, problem.jobs, problem.pools
    column = np.full(len(jobs), -1, dtype=np.int64)
    free = pools.capacity.copy()
    if len(jobs.pinned):
        stay = np.flatnonzero(columns.running & jobs.pinned[columns.job])
        column[columns.job[stay]] = stay
        free -= accelerators_held(problem, stay)
    return PlanDraft(column, np.maximum(free, 0.0), np.zeros(len(pools)))


def count_fixed(draft: PlanDraft, value: FloatArray, jobs: BoolArray | None = None) -> None:
    """Adds the value of places given before jobs compete to both the value reached and its bound.

    Every plan that could be made now contains them: without them a plan of jobs that cannot be moved would prove
    nothing. `value`: of each column (c,). `jobs`: whose places are counted (n,); None: all that have one.
    """
    given = draft.column >= 0 if jobs is None else jobs
    worth = float(value[draft.column[given]].sum())
    draft.reached += worth
    draft.bound += worth


def charged_costs(columns: Columns, charges: FloatArray) -> FloatArray:
    """Returns what the accelerators of each column cost its job (c,), at charges by job and pool (n, p), or one for
    all (1, 1).
    """
    rows = columns.job[columns.use_column] if len(charges) > 1 else 0
    pools = columns.use_pool if charges.shape[1] > 1 else 0
    return sum_by(columns.use_column, charges[rows, pools] * columns.use_count, len(columns))


def accelerators_held(problem: Problem, chosen: IntArray) -> FloatArray:
    """Returns the accelerators of each pool that these columns take (p,)."""
    columns = problem.columns
    flag = np.zeros(len(columns), dtype=np.bool_)
    flag[chosen] = True
    held = flag[columns.use_column]
    return sum_by(columns.use_pool[held], columns.use_count[held], len(problem.pools))


def finish_plan(
    problem: Problem, value: FloatArray, draft: PlanDraft, measure: PlanMeasure, first: Sequence[int] = ()
) -> Plan:
    """Returns the plan, with each job's surplus at its prices; the jobs with most value per accelerator come first, one
    priority class after another.

    Args:
        problem: n jobs, c columns.
        value: of each column (c,).
        draft: the column of each job.
        measure: the objective and its units.
        first: rows of the jobs that come before all others of their class, in their order.
    """
    columns, jobs, n = problem.columns, problem.jobs, len(problem.jobs)
    cost = sum_by(columns.use_column, draft.prices[columns.use_pool] * columns.use_count, len(columns))
    if draft.charges.any():
        cost += charged_costs(columns, draft.charges)
    surplus, density = np.zeros(n), np.zeros(n)
    np.maximum.at(surplus, columns.job, value - cost)
    np.maximum.at(density, columns.job, value / np.maximum(column_accelerators(columns), 1.0))
    rank = np.full(n, len(first), dtype=np.int64)
    rank[list(first)] = np.arange(len(first))
    rows = np.lexsort((jobs.job_id, jobs.submitted_at, -density, rank, -jobs.priority_class))
    bound = max(draft.bound, draft.reached)
    yardstick = BoundReport(
        measure.name, measure.unit, draft.reached, bound, relative_gap(draft.reached, bound), maximise=True
    )
    quote = Quote(draft.prices, measure.price_unit or measure.unit, 1.0, _entity_prices(problem, draft))
    return Plan(draft.column, rows, quote, surplus, yardstick, contests=tuple(draft.contests))


def note_entity_prices(known: dict[int, float], entity: IntArray, prices: FloatArray) -> None:
    """Records the prices of rows of entities (m,): several rows of one entity add up, of several priority classes the
    highest counts.
    """
    summed: dict[int, float] = {}
    for row, price in zip(entity.tolist(), prices.tolist(), strict=True):
        summed[row] = summed.get(row, 0.0) + price
    for row, price in summed.items():
        if price > 0:
            known[row] = max(price, known.get(row, 0.0))


def _entity_prices(problem: Problem, draft: PlanDraft) -> tuple[EntityPrice, ...]:
    limits, guarantees = draft.limit_prices, draft.guarantee_prices
    return tuple(
        EntityPrice(problem.entities.name[row], limits.get(row, 0.0), guarantees.get(row, 0.0))
        for row in sorted(limits.keys() | guarantees.keys())
    )


@dataclass(frozen=True, slots=True, eq=False)
class ElasticJobs:
    """The facts of jobs and columns that elastic policies use, one row per job or column, in the problem's order."""

    #: Whether the empty fleet could hold the column; for a job that cannot be moved, whether it runs in it (c,).
    usable: BoolArray
    #: Accelerators of a column over all pools (c,), and the pool of its first use (c,).
    size: FloatArray
    pool: IntArray
    #: Column in which the job runs, -1: none (n,).
    running: IntArray
    #: Jobs that run and cannot be stopped (n,).
    pinned: BoolArray
    #: Seconds since the job's submission, and the seconds that a start costs it (n,).
    age_s: FloatArray
    restart_s: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class ElasticHistory:
    """The growth and the restarts of each job so far (n,)."""

    #: The most accelerators that the job ran on, 0 before its first start.
    largest: FloatArray
    #: The number of starts after the first.
    restarts: FloatArray


def elastic_jobs_of(problem: Problem) -> ElasticJobs:
    """Returns the facts of every job and column."""
    jobs, columns = problem.jobs, problem.columns
    n = len(jobs)
    running = np.full(n, -1, dtype=np.int64)
    runs = np.flatnonzero(columns.running)
    running[columns.job[runs]] = runs
    pinned = (running >= 0) & jobs.stays
    first = job_offsets(columns.use_column, len(columns))[:-1]
    return ElasticJobs(
        usable=usable_columns(columns, problem.pools.capacity) & (~pinned[columns.job] | columns.running),
        size=column_accelerators(columns),
        pool=columns.use_pool[first],
        running=running,
        pinned=pinned,
        age_s=np.maximum(problem.at - jobs.submitted_at, 0.0),
        restart_s=jobs.start_s,
    )


def recall_history(
    problem: Problem, facts: ElasticJobs, memory: Memory, jobs: BoolArray | None = None
) -> tuple[ElasticHistory, dict[str, object]]:
    """Returns the history of these jobs (n,) up to now, None: of all, and the memory for the next decision."""
    before = {entry[0]: entry[1:] for entry in (memory or {}).get("jobs", [])}
    n = len(problem.jobs)
    largest, starts = np.zeros(n), np.zeros(n)
    kept = []
    for row in range(n) if jobs is None else np.flatnonzero(jobs).tolist():
        job_id = int(problem.jobs.job_id[row])
        most, started, place = before.get(job_id, (0.0, 0, None))
        column = int(facts.running[row])
        now = None
        if column >= 0:
            now = [problem.pools.pool_id[facts.pool[column]], float(facts.size[column])]
            started += now != place
            most = max(most, now[1])
        largest[row], starts[row] = most, started
        if started:
            kept.append([job_id, most, started, now])
    return ElasticHistory(largest, np.maximum(starts - 1.0, 0.0)), {"jobs": kept}


def growth_allowed(problem: Problem, facts: ElasticJobs, history: ElasticHistory, growth: float) -> BoolArray:
    """Returns the columns with at most `growth` times the most accelerators that their job ran on (c,); before its
    first start, only its smallest.
    """
    job = problem.columns.job
    smallest = np.full(len(problem.jobs), np.inf)
    np.minimum.at(smallest, job[facts.usable], facts.size[facts.usable])
    most = np.maximum(growth * history.largest, smallest)
    allowed: BoolArray = facts.usable & ((facts.size <= most[job] + 1e-9) | problem.columns.running)
    return allowed


def restart_factor(problem: Problem, facts: ElasticJobs, history: ElasticHistory) -> FloatArray:
    """Returns the part of each column's goodput that counts (c,), as in Sia and Pollux: 1 unless a running job would
    change to it, else the part of its age that restarts have left and would leave.
    """
    job = problem.columns.job
    paid_s = history.restarts * facts.restart_s
    part = np.maximum(facts.age_s - paid_s, 0.0) / np.maximum(facts.age_s + facts.restart_s, 1e-9)
    part = np.where(facts.age_s <= facts.restart_s, 1.0, part)
    return np.where((facts.running[job] >= 0) & ~problem.columns.running, part[job], 1.0)
