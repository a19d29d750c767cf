"""Lexicographic solves: their input, their outcome, and the mapping of a class solution to jobs.

`stage_over_jobs` maps one solution over classes to a stage over jobs. Where jobs are co-located, two of them share one
gang: `shares_per_column` adds up what such pairs give to each job and what they hold of a pool.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.classes.aggregation import AggregatedProblem
from optimizer.classes.class_problem import FULL, ClassProblem, ClassSolution, MaxMin, MaxSum, NashWelfare, Objective
from optimizer.classes.segments import max_by, sum_by
from optimizer.decision import NO_COLOCATED_JOBS, ColocatedJobs, SolveStage, StageKind, Status
from optimizer.problem import BoolArray, FloatArray, IntArray, Problem
from optimizer.utility.fair_share import Utility, pool_columns


def colocated_columns(problem: Problem, usable: BoolArray, packed: ColocatedJobs) -> IntArray:
    """Returns the column whose speed and accelerators stand for each pair's first and second job in the pair's pool
    (2, q).

    Args:
        problem: n jobs, c columns, with pairs if any are co-located.
        usable: columns that can run (c,).
        packed: q pairs.
    """
    if problem.pairs is None or not len(packed):
        return np.zeros((2, 0), dtype=np.int64)
    own, pools = pool_columns(problem.columns, usable), len(problem.pools)
    key = problem.columns.job[own.column] * pools + own.pool
    order = np.argsort(key)
    wanted = np.stack((packed.first, packed.second)) * pools + problem.pairs.pool[packed.pair]
    columns: IntArray = own.column[order][np.searchsorted(key[order], wanted)]
    return columns


def shares_per_column(
    problem: Problem, usable: BoolArray, x: FloatArray, packed: ColocatedJobs
) -> tuple[FloatArray, FloatArray]:
    """Returns the shares per column, pairs included: by the progress that they give, and by the accelerators that they
    hold.

    A pair's share counts for each of its jobs times the factor of speed that the job keeps, and holds half the gang.
    """
    if problem.pairs is None or not len(packed):
        return x, x
    column, c = colocated_columns(problem, usable, packed), len(problem.columns)
    keeps = np.stack((problem.pairs.first_factor[packed.pair], problem.pairs.second_factor[packed.pair]))
    gives = x + sum_by(column.ravel(), (keeps * packed.share).ravel(), c)
    return gives, x + sum_by(column.ravel(), np.tile(packed.share / 2, 2), c)


def colocated_violation(problem: Problem, usable: BoolArray, x: FloatArray, packed: ColocatedJobs) -> float:
    """Returns the largest violation of any constraint, relative to its right-hand side (1 where that is 0)."""
    columns, capacity = problem.columns, problem.pools.capacity
    _, holds = shares_per_column(problem, usable, x, packed)
    time = sum_by(columns.job, x, len(problem.jobs))
    for job in (packed.first, packed.second):
        time += sum_by(job, packed.share, len(problem.jobs))
    holds = holds * problem.jobs.counts[columns.job]
    used = sum_by(columns.use_pool, columns.use_count * holds[columns.use_column], len(capacity))
    over = (used - capacity) / np.where(capacity > 0, capacity, 1.0)
    least = min(float(x.min(initial=0.0)), float(packed.share.min(initial=0.0)))
    return max(0.0, -least, float(time.max(initial=0.0) - 1.0), float(over.max(initial=0.0)))


#: A pool whose price makes up less than this part of all that is paid is not scarce.
SCARCE = 1e-9


def scarce_pools(prices: FloatArray, capacity: FloatArray) -> BoolArray:
    """Returns the pools whose price is more than rounding (p,)."""
    paid = prices * capacity
    binding: BoolArray = paid > SCARCE * max(float(paid.sum()), 1e-300)
    return binding


def can_add(class_problem: ClassProblem, objective: Objective, kept: FloatArray, prices: FloatArray) -> bool:
    """Returns whether some class below its best has a column that uses no scarce row.

    `kept`: the utility that a stage gives one member of each class (k,); `prices`: of its rows (r,).
    """
    taken = scarce_pools(prices, class_problem.capacity).astype(np.float64)
    best = max_by(class_problem.owner, objective.worth, class_problem.classes)
    below_best = kept < best * (1 - FULL)
    if isinstance(objective, NashWelfare):
        below_best &= objective.weight == 0  # The others have taken what is free already.
    return bool(np.any(below_best[class_problem.owner] & (class_problem.cost(taken) == 0) & (objective.worth > 0)))


@dataclass(frozen=True, slots=True, eq=False)
class SolveInput:
    """The input of a solve: a problem of n jobs and c columns, its utilities, and its k classes with C columns."""

    problem: Problem
    utility: Utility
    classes: AggregatedProblem
    #: Whether jobs may be co-located in pairs; all jobs of a class are then of one kind.
    packed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class StagedSolution:
    """Outcome of a lexicographic solve: shares per column of the problem (c,), and the stages per job."""

    request: SolveInput
    status: Status
    path: str
    x: FloatArray
    stages: tuple[SolveStage, ...]
    #: Shares of co-located pairs of jobs, which `x` does not contain.
    packed: ColocatedJobs = NO_COLOCATED_JOBS

    def worth_of(self, worth: FloatArray) -> FloatArray:
        """Returns the worth of the shares to each job (n,), from the worth of each column run all the time (c,)."""
        problem = self.request.problem
        gives, _ = shares_per_column(problem, self.request.utility.usable, self.x, self.packed)
        return sum_by(problem.columns.job, worth * gives, len(problem.jobs))

    def first(self) -> tuple[float, float]:
        """Objective and bound of the first stage; zeros when there was no stage."""
        return (self.stages[0].objective, self.stages[0].bound) if self.stages else (0.0, 0.0)


def stage_over_jobs(
    classes: AggregatedProblem, found: ClassSolution, objective: Objective, active: BoolArray | None = None
) -> SolveStage:
    """Returns a solution over classes as a stage over jobs.

    Args:
        active: classes that the stage raises (k,); by default all for which the objective does something.
    """
    class_problem = classes.problem
    raised = rising_classes(class_problem, objective) if active is None else active
    kind, floor = StageKind.LOG, np.zeros(class_problem.classes)
    cap = max_by(class_problem.owner, objective.worth, class_problem.classes)
    if isinstance(objective, MaxMin):
        targets = objective.targets
        kind, floor, cap = StageKind.LEVEL, targets.at(0.0)[0], targets.at(targets.highest)[0]
    elif isinstance(objective, MaxSum):
        kind, floor = StageKind.SUM, objective.floor
    return SolveStage(
        kind=kind,
        active=classes.to_jobs(raised.astype(np.float64)) > 0,
        floor=classes.to_jobs(floor),
        cap=classes.to_jobs(cap),
        prices=found.prices,
        objective=found.objective,
        bound=found.bound,
    )


def rising_classes(class_problem: ClassProblem, objective: Objective) -> BoolArray:
    """Returns the classes whose utility the objective raises (k,)."""
    if isinstance(objective, MaxMin):
        targets = objective.targets
        return np.asarray(targets.at(targets.highest)[0] > targets.at(0.0)[0])
    if isinstance(objective, NashWelfare):
        return np.asarray(objective.weight > 0)
    return np.ones(class_problem.classes, dtype=bool)
