"""The entry to the solvers: one objective over classes of jobs, and lexicographic solves in two stages.

    1.  the policy's own objective, over classes of equal jobs
    2.  maximise sum u   s.t.  every job keeps what the first stage promised it

`solve_class_problem` chooses the engine by size: exactly where that is quick, by prices where the problem is large.
Both return the same certificate; they differ in time and in the gap that they leave.

What the first stage's prices bind is the same in all its optima (complementary slackness: a pool with a price is used
up, by jobs that reach their target and no more). So the second stage can add something only where a job that is not
full could run on pools that cost nothing; mostly there is none, and it is skipped.
"""

from dataclasses import replace

import numpy as np

from optimizer.classes.class_problem import (
    FULL,
    ClassProblem,
    ClassSolution,
    MaxMin,
    MaxSum,
    NashWelfare,
    Objective,
    objective_value,
)
from optimizer.classes.segments import max_by, sum_by
from optimizer.decision import Status
from optimizer.lp.dual_newton.dual_bound import dual_bound
from optimizer.lp.staged_solution import (
    SolveInput,
    StagedSolution,
    rising_classes,
    scarce_pools,
    stage_over_jobs,
)
from optimizer.problem import FloatArray
from optimizer.utility.fair_share import equal_shares

#: Columns up to which the exact program is the quicker way: one linear program; several, or one with logarithms.
_ONE_PROGRAM = 8_000
_SEVERAL_PROGRAMS = 2_000
#: Columns up to which a stalled price path is followed by the exact program: its matrices still fit, in minutes.
_FALLBACK = 500_000
#: A floor missed by less than this part is held.
_HELD = 1e-7


def solve_class_problem(market: ClassProblem, objective: Objective) -> ClassSolution:
    """The largest value of an objective over a market of at least one class, with prices that bound it."""
    if market.columns <= (_ONE_PROGRAM if isinstance(objective, MaxSum) else _SEVERAL_PROGRAMS):
        return _solve_exactly(market, objective)
    from optimizer.lp.dual_newton.price_solver import solve_by_prices  # imports numba: only where the market is large

    found = solve_by_prices(market, objective)
    if _is_answer(market, objective, found) or market.columns > _FALLBACK:
        return found
    exact = _solve_exactly(market, objective, found.prices)
    return exact if exact.status in (Status.OPTIMAL, Status.INFEASIBLE) else found


def _is_answer(market: ClassProblem, objective: Objective, found: ClassSolution) -> bool:
    """Within the gap, and no floor is missed for it."""
    if found.status is not Status.OPTIMAL or not isinstance(objective, MaxSum):
        return found.status in (Status.OPTIMAL, Status.INFEASIBLE)
    utility = sum_by(market.owner(), objective.worth * found.x, market.classes)
    return bool(np.all(utility >= objective.floor * (1 - _HELD)))


def _solve_exactly(market: ClassProblem, objective: Objective, near: FloatArray | None = None) -> ClassSolution:
    from optimizer.lp.exact_solver import solve_exactly  # imports cvxpy: only where something is to be solved

    return solve_exactly(market, objective, near)


#: Floors are held with this slack, so that rounding cannot make the next program infeasible.
_SLACK = 1e-10
#: A stage that takes more than this part of what it was to keep is not used.
_KEPT = 1e-7


def solve_in_stages(asked: SolveInput, objective: Objective, *, leftover: bool = True) -> StagedSolution:
    """The objective's optimum, then (if `leftover`) the largest sum of utilities that takes nothing of it from anybody.

    Args:
        asked: the problem and its classes.
        objective: of the first stage; its worth is the fair-share utility if something is to follow.
        leftover: False: the first stage's shares as they are.
    """
    if asked.packed and not isinstance(objective, NashWelfare):
        from optimizer.lp.column_generation.colocated_stages import (
            solve_colocated_in_stages,  # imports highspy: only where something is to be solved
        )

        packed = solve_colocated_in_stages(asked, objective, leftover=leftover)
        if packed is not None:
            return packed
        asked = replace(asked, packed=False)
    market = asked.classes.market
    stages, x, kept = [], np.zeros(market.columns), np.zeros(market.classes)
    status, path = Status.OPTIMAL, "nobody is entitled"
    if rising_classes(market, objective).any():
        found = _or_equal_shares(asked, objective, solve_class_problem(market, objective))
        x, status, path = found.x, found.status, found.path
        kept = _promised_utility(market, objective, found)
        stages.append(stage_over_jobs(asked.classes, found, objective))
    if leftover and status is not Status.FAILED and (not stages or _can_add(market, objective, kept, stages[0].prices)):
        total = MaxSum(objective.worth, objective.worth, kept * (1 - _SLACK))
        more = _or_equal_shares(asked, total, solve_class_problem(market, total))
        if not stages:
            status, path = more.status, more.path
        if np.all(_utility(market, objective.worth, more.x) >= kept * (1 - _KEPT)):
            x = more.x
            stages.append(stage_over_jobs(asked.classes, more, total))
    return StagedSolution(asked, status, path, asked.classes.to_columns(x), tuple(stages))


def single_stage(asked: SolveInput, objective: Objective, found: ClassSolution) -> StagedSolution:
    """A solution as it is; equal shares if there is none."""
    found = _or_equal_shares(asked, objective, found)
    stage = stage_over_jobs(asked.classes, found, objective)
    return StagedSolution(asked, found.status, found.path, asked.classes.to_columns(found.x), (stage,))


def _or_equal_shares(asked: SolveInput, objective: Objective, found: ClassSolution) -> ClassSolution:
    """Where no solver answers, equal shares (fair to everybody, and the status says so) with a weak bound."""
    market, nothing = asked.classes.market, np.zeros(asked.classes.market.rows)
    if found.status in (Status.OPTIMAL, Status.WORK_LIMIT) and np.isfinite([found.objective, found.bound]).all():
        return found
    x = asked.classes.per_column(equal_shares(asked.problem, asked.classes.classes.class_column >= 0))
    value, bound = objective_value(market, objective, x), dual_bound(market, objective, nothing)
    return ClassSolution(Status.FAILED, x, nothing, value, bound, "equal shares; no solver answered", found.work)


def _utility(market: ClassProblem, worth: FloatArray, x: FloatArray) -> FloatArray:
    return sum_by(market.owner(), worth * x, market.classes)


def _promised_utility(market: ClassProblem, objective: Objective, found: ClassSolution) -> FloatArray:
    """Utility of one member that every optimum of the stage gives, at least (k,)."""
    utility = _utility(market, objective.worth, found.x)
    if isinstance(objective, MaxMin):
        return np.minimum(objective.targets.at(found.objective)[0], utility)
    if isinstance(objective, NashWelfare):
        return np.where(objective.weight > 0, utility, 0.0)  # what the weightless got there is chance
    return utility


def _can_add(market: ClassProblem, objective: Objective, kept: FloatArray, prices: FloatArray) -> bool:
    """A class that is not full has a column that uses nothing scarce."""
    taken = scarce_pools(prices, market.capacity).astype(np.float64)
    best = max_by(market.owner(), objective.worth, market.classes)
    hungry = kept < best * (1 - FULL)
    if isinstance(objective, NashWelfare):
        hungry &= objective.weight == 0  # the others have taken what is free already
    return bool(np.any(hungry[market.owner()] & (market.cost(taken) == 0) & (objective.worth > 0)))
