"""The jobs of a problem as an elastic policy sees them: which configurations they may have, and what they have now.

Growth and restarts are counted from one decision to the next, in the policy's memory. A move inside one pool that
keeps the size is not seen here. Shapes: n jobs, c columns.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.decision import Memory
from optimizer.fairness.utility import accelerators_of, usable_columns
from optimizer.market.distinct import offsets
from optimizer.problem import BoolArray, FloatArray, IntArray, Problem


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """One row per job, one per column, in the problem's order."""

    #: The empty fleet could hold the column; of a job that cannot be moved, the one in which it runs (c,).
    usable: BoolArray
    #: Accelerators of a column over all pools (c,), and the pool of its first use (c,).
    size: FloatArray
    pool: IntArray
    #: Column in which the job runs, -1: none (n,).
    running: IntArray
    #: Running, and cannot be stopped (n,).
    pinned: BoolArray
    #: Seconds since its submission, and what a start costs it (n,).
    age_s: FloatArray
    restart_s: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """What jobs have been through (n,)."""

    #: The most accelerators that it ran on, 0 before its first start.
    largest: FloatArray
    #: Starts after the first.
    restarts: FloatArray


def facts_of(problem: Problem) -> Facts:
    """The facts of every job and column."""
    jobs, columns = problem.jobs, problem.columns
    n = len(jobs)
    running = np.full(n, -1, dtype=np.int64)
    runs = np.flatnonzero(columns.running)
    running[columns.job[runs]] = runs
    pinned = (running >= 0) & jobs.pinned if len(jobs.pinned) else np.zeros(n, dtype=np.bool_)
    first = offsets(columns.use_column, len(columns))[:-1]
    return Facts(
        usable=usable_columns(columns, problem.pools.capacity) & (~pinned[columns.job] | columns.running),
        size=accelerators_of(columns),
        pool=columns.use_pool[first],
        running=running,
        pinned=pinned,
        age_s=np.maximum(problem.at - jobs.submitted_at, 0.0),
        restart_s=jobs.restart_s if len(jobs.restart_s) else np.zeros(n),
    )


def remembered(problem: Problem, facts: Facts, memory: Memory) -> tuple[History, Memory]:
    """The history up to now, and what to remember of it until the next decision."""
    before = {entry[0]: entry[1:] for entry in memory["jobs"]} if memory else {}
    n = len(problem.jobs)
    largest, starts = np.zeros(n), np.zeros(n)
    kept = []
    for row, job_id in enumerate(problem.jobs.job_id.tolist()):
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
    return History(largest, np.maximum(starts - 1.0, 0.0)), {"jobs": kept}


def may_grow(problem: Problem, facts: Facts, history: History, growth: float) -> BoolArray:
    """Columns of at most `growth` times the most that a job ran on; before its first start, its smallest (c,)."""
    job = problem.columns.job
    smallest = np.full(len(problem.jobs), np.inf)
    np.minimum.at(smallest, job[facts.usable], facts.size[facts.usable])
    most = np.maximum(growth * history.largest, smallest)
    allowed: BoolArray = facts.usable & ((facts.size <= most[job] + 1e-9) | problem.columns.running)
    return allowed


def patience(facts: Facts, history: History) -> FloatArray:
    """Part of a goodput that counts after a change (n,)."""
    paid_s = history.restarts * facts.restart_s
    part = np.maximum(facts.age_s - paid_s, 0.0) / np.maximum(facts.age_s + facts.restart_s, 1e-9)
    return np.where(facts.age_s <= facts.restart_s, 1.0, part)
