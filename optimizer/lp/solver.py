"""The one entry to the solvers: an objective over classes of jobs, in stages.

    1.  the policy's own objective, over classes of equal jobs
    2.  maximise sum u   s.t.  every job keeps what the first stage promised it

`optimizer.lp.engine_choice` says which engine solves what. Every engine returns shares and prices, and the prices
alone prove a bound.

What the first stage's prices bind is the same in all its optima (complementary slackness: a pool with a price is used
up, by jobs that reach their target and no more). So the second stage can add something only where a job that is not
full could run on pools that cost nothing; usually there is none, and the stage is skipped.
"""

from dataclasses import replace

import numpy as np

from optimizer.classes.class_problem import (
    ClassProblem,
    ClassSolution,
    Lexicographic,
    MaxMin,
    MaxSum,
    NashWelfare,
    Objective,
    objective_value,
)
from optimizer.classes.segments import sum_by
from optimizer.decision import Memory, Status
from optimizer.lp.dual_newton.dual_bound import dual_bound
from optimizer.lp.engine_choice import EXACT_FALLBACK_COLUMNS, LpEngine, engine_for
from optimizer.lp.staged_solution import (
    SolveInput,
    StagedSolution,
    can_add,
    rising_classes,
    stage_over_jobs,
)
from optimizer.problem import FloatArray
from optimizer.utility.fair_share import equal_shares

#: A floor missed by less than this part counts as held.
_HELD = 1e-7


def solve_class_problem(class_problem: ClassProblem, objective: Objective) -> ClassSolution:
    """Returns the largest value of an objective over a problem of at least one class, with prices that bound it."""
    if engine_for(objective, class_problem.columns) is LpEngine.EXACT:
        return _solve_exactly(class_problem, objective)
    from optimizer.lp.dual_newton.price_solver import solve_by_prices  # imports numba: only where the problem is large

    found = solve_by_prices(class_problem, objective)
    if _is_answer(class_problem, objective, found) or class_problem.columns > EXACT_FALLBACK_COLUMNS:
        return found
    exact = _solve_exactly(class_problem, objective, found.prices)
    return exact if exact.status in (Status.OPTIMAL, Status.INFEASIBLE) else found


def _is_answer(class_problem: ClassProblem, objective: Objective, found: ClassSolution) -> bool:
    """Returns whether the solution is within its gap and violates no floor."""
    if found.status is not Status.OPTIMAL or not isinstance(objective, MaxSum):
        return found.status in (Status.OPTIMAL, Status.INFEASIBLE)
    utility = sum_by(class_problem.owner, objective.worth * found.x, class_problem.classes)
    return bool(np.all(utility >= objective.floor * (1 - _HELD)))


def _solve_exactly(class_problem: ClassProblem, objective: Objective, near: FloatArray | None = None) -> ClassSolution:
    from optimizer.lp.exact_solver import solve_exactly  # imports cvxpy: only where something is to be solved

    return solve_exactly(class_problem, objective, near)


#: Floors are lowered by this part, so that rounding cannot make the next program infeasible.
_SLACK = 1e-10
#: A stage is dropped if it takes more than this part of what it had to keep.
_KEPT = 1e-7


def solve(
    request: SolveInput,
    objective: Objective | Lexicographic,
    memory: Memory = None,
    *,
    leftover: bool = True,
    central: bool = False,
) -> tuple[StagedSolution, Memory]:
    """Solves one objective in one or two stages; the only entry to the engines.

    Args:
        request: the problem and its classes; `packed` where jobs may be co-located.
        objective: of the first stage; its worth is the fair-share utility if something is to follow.
        memory: where the last solve of a series ended, for `Lexicographic` (warm start); others pass it through.
        leftover: whether the largest sum of utilities follows that takes nothing of the first stage from any job.
            `Lexicographic` leaves nothing.
        central: for MaxMin: end near the centre of all optimal shares instead of at a corner.

    Returns:
        The stages, and the memory for the next solve. `Lexicographic` has no stage where no method found its first
        level. Otherwise, where no solver answers, the shares are equal parts with a weak bound, and the status FAILED.
    """
    if isinstance(objective, Lexicographic):
        from optimizer.lp.interior_point.progressive_filling import fill_in_stages  # imports scipy

        return fill_in_stages(request, objective.rule, memory)
    if request.packed and not isinstance(objective, NashWelfare):
        from optimizer.lp.pair_program import solve_colocated_in_stages  # imports highspy

        packed = solve_colocated_in_stages(request, objective, leftover=leftover)
        if packed is not None:
            return packed, memory
        request = replace(request, packed=False)
    return _solve_in_stages(request, objective, leftover, central), memory


def _solve_in_stages(request: SolveInput, objective: Objective, leftover: bool, central: bool) -> StagedSolution:
    class_problem = request.classes.problem
    stages, x, kept = [], np.zeros(class_problem.columns), np.zeros(class_problem.classes)
    status, path = Status.OPTIMAL, "nobody is entitled"
    if rising_classes(class_problem, objective).any():
        objective, found = _first_stage(request, objective, central)
        x, status, path = found.x, found.status, found.path
        kept = _promised_utility(class_problem, objective, found)
        stages.append(stage_over_jobs(request.classes, found, objective))
    if (
        leftover
        and status is not Status.FAILED
        and (not stages or can_add(class_problem, objective, kept, stages[0].prices))
    ):
        total = MaxSum(objective.worth, objective.worth, kept * (1 - _SLACK))
        more = _or_equal_shares(request, total, solve_class_problem(class_problem, total))
        if not stages:
            status, path = more.status, more.path
        if np.all(_utility(class_problem, objective.worth, more.x) >= kept * (1 - _KEPT)):
            x = more.x
            stages.append(stage_over_jobs(request.classes, more, total))
    return StagedSolution(request, status, path, request.classes.to_columns(x), tuple(stages))


def _first_stage(request: SolveInput, objective: Objective, central: bool) -> tuple[Objective, ClassSolution]:
    """Returns the first stage, and the objective that it solved: floors that cannot all be held are lowered to what
    can be.
    """
    class_problem = request.classes.problem
    if central and isinstance(objective, MaxMin):
        from optimizer.lp.exact_solver import solve_to_centre  # imports cvxpy

        return objective, _or_equal_shares(request, objective, solve_to_centre(class_problem, objective))
    found = solve_class_problem(class_problem, objective)
    if isinstance(objective, MaxSum) and found.status is Status.INFEASIBLE and objective.floor.any():
        from optimizer.lp.exact_solver import attainable_floors  # imports cvxpy

        floor = attainable_floors(class_problem, objective.worth, objective.floor)
        objective = MaxSum(objective.value, objective.worth, floor)
        found = solve_class_problem(class_problem, objective)
    return objective, _or_equal_shares(request, objective, found)


def _or_equal_shares(request: SolveInput, objective: Objective, found: ClassSolution) -> ClassSolution:
    """Returns equal shares with status FAILED and a weak bound when no solver answered."""
    class_problem, nothing = request.classes.problem, np.zeros(request.classes.problem.rows)
    if found.status in (Status.OPTIMAL, Status.WORK_LIMIT) and np.isfinite([found.objective, found.bound]).all():
        return found
    x = request.classes.per_column(equal_shares(request.problem, request.classes.classes.class_column >= 0))
    value, bound = objective_value(class_problem, objective, x), dual_bound(class_problem, objective, nothing)
    return ClassSolution(Status.FAILED, x, nothing, value, bound, "equal shares; no solver answered", found.work)


def _utility(class_problem: ClassProblem, worth: FloatArray, x: FloatArray) -> FloatArray:
    return sum_by(class_problem.owner, worth * x, class_problem.classes)


def _promised_utility(class_problem: ClassProblem, objective: Objective, found: ClassSolution) -> FloatArray:
    """Returns the utility of one member that every optimum of the stage gives, at least (k,)."""
    utility = _utility(class_problem, objective.worth, found.x)
    if isinstance(objective, MaxMin):
        return np.minimum(objective.targets.at(found.objective)[0], utility)
    if isinstance(objective, NashWelfare):
        return np.where(objective.weight > 0, utility, 0.0)  # What members without a weight got there is arbitrary.
    return utility
