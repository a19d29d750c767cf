"""How long one decision of `walras` takes, problem to plan, in processor time.

    python -m benchmarks grounds_deciding

Random jobs of one accelerator each, and gangs of 1/2/4/8; some hold half of the fleet. The fleet has three hundred
accelerators however many wait. Last, gangs of eight projects, of which four are guaranteed a tenth of the fleet each
and two of these have but little weight, so that a guarantee binds.
"""

from dataclasses import dataclass, replace
from statistics import median
from time import process_time

import numpy as np

from benchmarks.problems import Size, random_problem
from benchmarks.tables import Measured
from optimizer.answer import answer_problem
from optimizer.decision import Plan
from optimizer.policy import PolicySpec
from optimizer.problem import Entities, Problem
from optimizer.registry import make

_REPEATS = 5
_ACCELERATORS = 300


@dataclass(frozen=True, slots=True)
class Case:
    """So many jobs and pools, columns of each job, and the milliseconds that a decision may take."""

    jobs: int
    pools: int
    columns: int
    most_ms: float


CASES = (Case(200, 3, 3, 2.0), Case(1000, 3, 3, 100.0), Case(10_000, 16, 20, 50.0))
_GUARANTEED = (Case(2000, 3, 3, 50.0), Case(10_000, 16, 20, 50.0))
_PROJECTS = 8


def measure(scale: float) -> list[Measured]:
    """Both sorts of jobs at every size; targets hold for the whole size and the smaller ones."""
    measured = Measured("one decision of walras", f"{_ACCELERATORS} accelerators, median of {_REPEATS}, processor time")
    for case in CASES:
        jobs = max(50, round(case.jobs * scale))
        for gangs in (False, True):
            what = f"{jobs:,} jobs of {case.columns} configurations, {'gangs' if gangs else 'one accelerator each'}"
            measured.add(what, _decided_ms(problem_of(replace(case, jobs=jobs), gangs)), "ms", at_most=case.most_ms)
    for case in _GUARANTEED:
        jobs = max(50, round(case.jobs * scale))
        what = f"{jobs:,} jobs of {case.columns} configurations, gangs, guarantees that bind"
        measured.add(what, _decided_ms(with_guarantees(replace(case, jobs=jobs))), "ms", at_most=case.most_ms)
    return [measured]


def with_guarantees(case: Case) -> Problem:
    """Gangs of projects of which some have a part of the fleet before others have more."""
    problem = problem_of(case, gangs=True)
    project = np.random.default_rng(0).integers(0, _PROJECTS, case.jobs)
    row = np.arange(_PROJECTS)
    entities = Entities(
        name=tuple(f"project-{k}" for k in range(_PROJECTS)),
        weight=np.where(row < 2, 0.01, 1.0),
        guaranteed=np.where(row < 4, 0.1, 0.0),
        limit=np.ones(_PROJECTS),
    )
    return replace(problem, jobs=replace(problem.jobs, entity=project), entities=entities)


def problem_of(case: Case, gangs: bool) -> Problem:
    """Some of them have places already."""
    problem = random_problem(Size(case.jobs, case.pools, columns=case.columns), seed=1)
    columns, pools, jobs = problem.columns, problem.pools, problem.jobs
    capacity = np.full(case.pools, float(_ACCELERATORS // case.pools))
    if not gangs:
        ones = np.ones(len(columns.use_count))
        columns, jobs = replace(columns, use_count=ones), replace(jobs, gang=np.ones(len(jobs)))
    first = np.searchsorted(columns.job, np.arange(len(jobs)))
    running, left = np.zeros(len(columns), dtype=np.bool_), capacity / 2
    for row in first[:: max(1, len(jobs) // 200)].tolist():
        pool, count = columns.use_pool[row], columns.use_count[row]
        if left[pool] >= count:
            left[pool] -= count
            running[row] = True
    return replace(
        problem,
        jobs=replace(jobs, restart_s=np.full(len(jobs), 30.0), done_steps=0.1 * jobs.remaining_steps),
        columns=replace(columns, running=running),
        pools=replace(pools, capacity=capacity),
    )


def _decided_ms(problem: Problem) -> float:
    policy, taken = make(PolicySpec("walras")), []
    answer_problem(policy, problem, None, 0.0)  # loads compiled code
    for _ in range(_REPEATS):
        began = process_time()
        plan, _, _ = answer_problem(policy, problem, None, 0.0)
        taken.append(1e3 * (process_time() - began))
        assert isinstance(plan, Plan)
    return median(taken)
