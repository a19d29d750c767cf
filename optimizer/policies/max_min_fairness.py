"""Max-min fairness over unlike accelerators (least attained service, heterogeneity-aware).

    maximise  min_m u[m] / w[m]        u[m] = s[m] thr[m](x) / thr[m](equal split)

after Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads" (OSDI 2020), with
three declared additions: a job that is already as fast as it can be does not hold back the others; what a level leaves
is levelled again among those who can use it (`optimizer.levels`); and projects divide their weight among their jobs
(`optimizer.utility`). Agnostic: the same with all speeds taken for equal.

The certificate speaks of the first level: the utility, per unit of weight, of the jobs that are not already full.
"""

from typing import TYPE_CHECKING

import numpy as np
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from optimizer.decision import Certificate, Memory, Quote, Shares, Stage, StageKind, Status
from optimizer.equal_shares import equal_shares
from optimizer.feasible import relative_gap, violation_of
from optimizer.owners import sum_by
from optimizer.policy import Newcomer
from optimizer.problem import FloatArray, Problem
from optimizer.quoting import quote_of, surplus_of
from optimizer.utility import Utility, fair_share_utility, level_of, newcomer_worth
from optimizer.validate import validate

if TYPE_CHECKING:
    from optimizer.aggregate import Classes
    from optimizer.levels import ClassStage, Solution

#: A gap up to this is called optimal. It is 1e-8 or less, except where a job is full and another pool is almost as good
#: for it: the solver's rounding of that job's share is then magnified by how close the two are.
OPTIMAL_GAP = 1e-4


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class MaxMinFairness:
    """Equal utility for equal weight, as high as the fleet allows."""

    #: True: the speeds of each job on each pool count. False: an accelerator is an accelerator.
    aware: bool = True

    def decide(self, problem: Problem, memory: Memory) -> tuple[Shares, Memory]:
        """Shares of time with prices and certificate. The policy keeps no memory.

        Raises:
            ProblemError: the problem is malformed. Anything else is told by the certificate's status.
        """
        validate(problem)
        utility = fair_share_utility(problem, aware=self.aware)
        if not utility.usable.any():
            return _nothing(problem, utility), None
        return _solve(problem, utility), None

    def value(self, newcomer: Newcomer, quote: Quote) -> FloatArray:
        """Worth of each configuration: what its utility would fetch if the newcomer competed like the mean job.

        value[c] = exchange * w * worth[c], in the quote's unit: the reduced cost of its column, before the price, at
        the mean dual of the jobs that compete, times its weight against their mean. 0 for what it cannot run.
        """
        worth: FloatArray = quote.exchange * newcomer.weight * newcomer_worth(newcomer, aware=self.aware)
        return worth


def _solve(problem: Problem, utility: Utility) -> Shares:
    from optimizer.aggregate import aggregate
    from optimizer.levels import LevelProgram  # imports cvxpy: only where something is to be solved
    from optimizer.program import class_program, make_feasible

    classes = aggregate(problem.columns, utility.usable, [utility.worth], [utility.weight])
    program = class_program(problem.columns, classes, problem.pools.capacity)
    levels = LevelProgram(program, utility.worth[classes.column], utility.weight[classes.representative])
    solution = levels.solve(max_levels=len(problem.pools) + 1)
    if solution.stages:
        x = classes.expand_columns(make_feasible(program, solution.x))
    else:
        x = equal_shares(problem, utility.usable)  # the solvers gave up: fair to everybody, and it says so
    gained = sum_by(problem.columns.job, utility.worth * x, len(problem.jobs))
    stages = tuple(_of_jobs(stage, classes, utility, gained) for stage in solution.stages)
    return _shares(problem, utility, x, stages, solution)


def _of_jobs(stage: "ClassStage", classes: "Classes", utility: Utility, gained: FloatArray) -> Stage:
    """A stage told per job, its objective as the final shares reach it."""
    active = classes.expand_jobs(stage.active.astype(np.float64)) > 0
    cap = classes.expand_jobs(stage.cap)
    if stage.kind is StageKind.LEVEL:
        objective = level_of(gained, np.where(active, utility.weight, 0.0), cap)
    else:
        objective = float(gained.sum())
    return Stage(
        kind=stage.kind,
        active=active,
        floor=classes.expand_jobs(stage.floor),
        cap=cap,
        prices=stage.prices,
        multiplier=classes.expand_jobs(stage.multiplier),
        objective=objective,
        bound=stage.bound,
    )


def _shares(
    problem: Problem, utility: Utility, x: FloatArray, stages: tuple[Stage, ...], solution: "Solution"
) -> Shares:
    quote = quote_of(problem, stages, utility.best > 0)
    return Shares(
        x=x,
        rent=problem.pools.held,
        quote=quote,
        surplus=surplus_of(problem.columns, problem.jobs.weight, utility, quote),
        certificate=_certificate(problem, utility, x, stages, solution),
        stages=stages,
        unplaceable=np.flatnonzero(utility.best == 0),
    )


def _certificate(
    problem: Problem, utility: Utility, x: FloatArray, stages: tuple[Stage, ...], solution: "Solution"
) -> Certificate:
    if stages:
        objective, bound = stages[0].objective, stages[0].bound
    else:
        gained = sum_by(problem.columns.job, utility.worth * x, len(problem.jobs))
        objective = level_of(gained, utility.weight, utility.best)
        bound = level_of(utility.best, utility.weight, utility.best)
    gap = relative_gap(objective, bound)
    status = solution.outcome.status
    if status is Status.OPTIMAL and gap > OPTIMAL_GAP:
        status = Status.WORK_LIMIT
    path = f"classes+cvxpy/{solution.outcome.solver}" if stages else "equal shares; no solver answered"
    return Certificate(status, objective, bound, gap, violation_of(problem, x), path)


def _nothing(problem: Problem, utility: Utility) -> Shares:
    """No job has a configuration that fits the fleet."""
    return Shares(
        x=np.zeros(len(problem.columns)),
        rent=problem.pools.held,
        quote=quote_of(problem, (), utility.best > 0),
        surplus=np.zeros(len(problem.jobs)),
        certificate=Certificate(Status.EMPTY, 0.0, 0.0, 0.0, 0.0, "nothing to solve"),
        unplaceable=np.arange(len(problem.jobs)),
    )
