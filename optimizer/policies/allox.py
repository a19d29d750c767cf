"""AlloX: minimises the mean completion time by matching jobs to accelerators and to positions in their queues.

Symbols: R[m] steps left of job m, T[m,p] its steps/s on pool p, k the position counted from the end of a queue.

    minimise  sum k R[m]/T[m,p] y[m,p,k]   each job has one position, each position has at most one job

The objective is the sum of the remaining times of all jobs, provided that no job arrives. The job at the head of each
queue starts. The certificate compares the sum with the squashed-area bound (`optimizer.assignment.list_schedule`), a
lower bound for every schedule of the same jobs.
"""

from dataclasses import replace
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from optimizer.assignment.list_schedule import completion_bound_s
from optimizer.assignment.machine_queues import schedule_in_queues
from optimizer.classes.class_problem import constraint_violation, relative_gap
from optimizer.classes.segments import max_by
from optimizer.decision import NO_PRICES, Certificate, Memory, Quote, Shares, Status
from optimizer.policy import Newcomer
from optimizer.problem import BoolArray, FloatArray, IntArray, Problem
from optimizer.utility.fair_share import usable_columns

#: Slack for comparing counts that were computed in floating point.
_WHOLE = 1e-9


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Allox:
    """Minimises the sum of completion times: assigns jobs to accelerator types and to positions in their queues.

    A job that was placed keeps its accelerators until it ends; a job that only backfills free accelerators can be
    preempted. Source: Le et al., AlloX, EuroSys 2020, section 4, as Gavel's simulator has it. The treatment of gangs
    is ours: the free accelerators of a pool are divided into queues, one per gang size that waits for the pool, in
    proportion to the waiting work of each size. A gang that is larger than the free part of the pool waits. The
    remaining time of a job of unknown length is estimated as the time that it has run.
    """

    checked_by: ClassVar[str] = "optimizer.check.policy_checks:ALLOX"

    unknown_s: Annotated[
        float,
        Field(gt=0, description="Assumed remaining time, in seconds, of a job of unknown length (a lower bound)."),
    ] = 3600.0

    def decide(self, problem: Problem, memory: Memory) -> tuple[Shares, Memory]:
        """Returns shares of 1 for jobs that stay or start; the status is `defined`, or `empty` when no job can run.

        The memory is {"placed": [[job, pool, accelerators], ..], "newest": job}: the jobs placed so far, and the
        newest job known. Newer jobs that run were started on arrival and stay; without a memory, so do all.
        """
        columns = problem.columns
        usable = usable_columns(columns, problem.pools.capacity)
        steps, guessed = self._steps_left(problem)
        length_s = steps[columns.job] / np.maximum(columns.steps_per_s, 1e-300)
        kept = _kept(problem, usable, memory)
        counted = np.zeros(len(problem.jobs), dtype=np.bool_)
        counted[columns.job[kept]] = True
        found = schedule_in_queues(columns, usable & ~counted[columns.job], length_s, _left(problem, kept))
        counted[found.rows] = True
        x = np.zeros(len(columns))
        x[kept] = x[found.starts] = 1.0
        total_s = found.total_s + float(length_s[kept].sum())
        proof = self._proof(problem, usable & counted[columns.job], steps, total_s, x, guessed)
        return _shares(problem, usable, x, proof), _remember(problem, x)

    def value(self, newcomer: Newcomer, quote: Quote) -> FloatArray:
        """Returns the speed of each configuration, relative to the fastest (c,): an arriving job takes the best free
        one.
        """
        fastest = float(newcomer.steps_per_s.max(initial=0.0))
        return newcomer.steps_per_s / fastest if fastest > 0 else np.zeros(len(newcomer.steps_per_s))

    def _steps_left(self, problem: Problem) -> tuple[FloatArray, int]:
        """Returns the steps left of each job (n,), estimated where unknown, and how many were estimated."""
        jobs = problem.jobs
        best = max_by(problem.columns.job, problem.columns.steps_per_s, len(jobs))
        unknown = ~np.isfinite(jobs.remaining_steps)
        guess = np.maximum(self.unknown_s, jobs.attained_s / jobs.gang) * best
        return np.where(unknown, guess, jobs.remaining_steps), int(np.count_nonzero(unknown & (best > 0)))

    def _proof(
        self, problem: Problem, counted: BoolArray, steps: FloatArray, total_s: float, x: FloatArray, guessed: int
    ) -> Certificate:
        path = "assignment; bound: squashed area" + (f"; {guessed} lengths guessed" if guessed else "")
        if not counted.any():
            return Certificate(Status.EMPTY, 0.0, 0.0, 0.0, 0.0, path, maximise=False)
        known = replace(problem, jobs=replace(problem.jobs, remaining_steps=steps))
        bound = completion_bound_s(known, counted)
        gap = relative_gap(total_s, bound)
        return Certificate(Status.DEFINED, total_s, bound, gap, constraint_violation(problem, x), path, maximise=False)


def _kept(problem: Problem, usable: BoolArray, memory: Memory) -> IntArray:
    """Returns the columns of the jobs placed before, in order of job, as long as they fit."""
    columns, pools = problem.columns, problem.pools
    newest = -1 if memory is None else int(memory["newest"])
    let_in = np.flatnonzero(columns.running & usable & (problem.jobs.job_id > newest)[columns.job])
    chosen = let_in[np.unique(columns.job[let_in], return_index=True)[1]].tolist()
    if memory is not None:
        chosen = sorted({*chosen, *_remembered(problem, usable, memory)})
    first = np.searchsorted(columns.use_column, np.arange(len(columns) + 1))
    free = pools.capacity.copy()
    kept = []
    for column in chosen:
        uses = slice(first[column], first[column + 1])
        if np.all(columns.use_count[uses] <= free[columns.use_pool[uses]] + _WHOLE):
            np.subtract.at(free, columns.use_pool[uses], columns.use_count[uses])
            kept.append(column)
    return np.array(kept, dtype=np.int64)


def _remembered(problem: Problem, usable: BoolArray, memory: Any) -> list[int]:
    """Returns the columns that the memory names, of jobs that are still present."""
    columns, pools = problem.columns, problem.pools
    placed = {int(job): (pool, float(count)) for job, pool, count in memory["placed"]}
    job_id = problem.jobs.job_id[columns.job[columns.use_column]]
    chosen: dict[int, int] = {}
    for use in np.flatnonzero(usable[columns.use_column] & np.isin(job_id, list(placed))).tolist():
        here = pools.pool_id[columns.use_pool[use]], float(columns.use_count[use])
        if placed[int(job_id[use])] == here:
            chosen.setdefault(int(job_id[use]), int(columns.use_column[use]))
    return list(chosen.values())


def _remember(problem: Problem, x: FloatArray) -> dict[str, Any]:
    """Returns the memory: the jobs that have a place now, with the first pool of their column."""
    columns = problem.columns
    chosen = np.flatnonzero(x > 0)
    use = np.searchsorted(columns.use_column, chosen)
    placed = zip(
        problem.jobs.job_id[columns.job[chosen]].tolist(),
        (problem.pools.pool_id[pool] for pool in columns.use_pool[use].tolist()),
        columns.use_count[use].tolist(),
        strict=True,
    )
    return {"placed": [list(one) for one in placed], "newest": int(problem.jobs.job_id.max(initial=-1))}


def _left(problem: Problem, kept: IntArray) -> FloatArray:
    """Returns the accelerators that these columns leave free in each pool (p,)."""
    columns = problem.columns
    held = np.isin(columns.use_column, kept)
    taken = np.bincount(columns.use_pool[held], columns.use_count[held], len(problem.pools))
    return np.maximum(problem.pools.capacity - taken, 0.0)


def _shares(problem: Problem, usable: BoolArray, x: FloatArray, proof: Certificate) -> Shares:
    """Returns the decision; no pool has a price."""
    free = Quote(np.zeros(len(problem.pools)), NO_PRICES, 1.0)
    placeable = np.zeros(len(problem.jobs), dtype=np.bool_)
    placeable[problem.columns.job[usable]] = True
    unplaceable = np.flatnonzero(~placeable)
    return Shares(x, problem.pools.held, free, np.zeros(len(problem.jobs)), proof, unplaceable=unplaceable)
