"""A tighter bound for a plan: the linear program of its assignments, by the one statement in cvxpy (`money_program`).

    maximise   sum v x
    s.t.       sum_c x_jc <= 1                    each job                                    (u_j)
               sum use x <= capacity              each pool, and each limit of an entity      (l_r, mu_e)
               sum size x >= floor                each guarantee of an entity                 (mu_g)

This is the rental program where nothing can be rented: its rows are pools and, after them, limits of entities, and
guarantees with both sides below 0 (`guarantee_rows`). A plan is made by prices that a subgradient method finds
(`local_search`); their bound lies above the optimum of this program, which is the smallest that any prices prove. Jobs
that take one accelerator each do not need it: their prices are exact.

A plan is decided in a millisecond. This takes some more, and the import of cvxpy before it seconds. So only a caller
with time to spare asks for it: the live server's solver process, once `prepare_relaxation` has run there after the
first answer. The plan, its prices and what follows from them stay as they are.
"""

from dataclasses import replace

import numpy as np

from optimizer.assignment.assignment_problem import AssignmentProblem, Contest
from optimizer.classes.class_problem import ClassProblem, relative_gap
from optimizer.decision import Plan
from optimizer.lp.engine_choice import CVXPY_MONEY_CELLS
from optimizer.problem import FloatArray
from optimizer.renting.rental_limits import RentedTiers, money_cells

#: The suffix of a bound report's name whose bound comes from the program.
RELAXED = "bound: cvxpy/highs"
#: Bounds that agree to this part are left as they are.
_NEAR = 1e-3
#: Dual values of a solver are exact to about this part of the objective.
_ROUNDING = 1e-7


def prepare_relaxation() -> None:
    """Imports cvxpy and solves a first program, so that the next one takes milliseconds."""
    one = np.zeros(1, dtype=np.int64)
    relaxed_optimum(AssignmentProblem(one, np.ones(1), one, one, np.ones(1), np.ones(1)))


def with_relaxed_bound(plan: Plan) -> Plan:
    """Returns the plan with the bound of the linear program, where that is smaller and the program is small enough."""
    yardstick = plan.yardstick
    if yardstick is None or yardstick.gap <= _NEAR:
        return plan
    gained = sum(_gained(contest) for contest in plan.contests)
    if gained <= 0:
        return plan
    bound = max(yardstick.bound - gained, yardstick.objective)
    gap = relative_gap(yardstick.objective, bound)
    return replace(plan, yardstick=replace(yardstick, name=f"{yardstick.name}; {RELAXED}", bound=bound, gap=gap))


def _gained(contest: Contest) -> float:
    """Returns by how much the program's bound is below that of the prices."""
    found = relaxed_optimum(contest.question)
    if found is None:
        return 0.0
    _, prices = found
    return max(contest.bound - contest.bound_at(prices) * (1 + _ROUNDING), 0.0)


def relaxed_optimum(question: AssignmentProblem) -> tuple[float, FloatArray] | None:
    """Returns the optimum of the linear program and the prices of its rows that prove it; None if it is too large, or
    not solved.

    `dual_bound` at these prices checks them: no solver need be trusted.
    """
    classes = _as_classes(question)
    if money_cells(classes) > CVXPY_MONEY_CELLS:
        return None
    from optimizer.renting.money_program import solve_money_program  # imports cvxpy: seconds, once a process

    none = np.zeros(len(question.capacity))
    tiers = RentedTiers(none, none, none, none, none)
    found = solve_money_program(classes, question.value, question.capacity, tiers)
    return None if found is None else (found.net_usd_per_h, found.prices)


def _as_classes(question: AssignmentProblem) -> ClassProblem:
    """Returns the problem with every job as a class of its own."""
    order = np.argsort(question.use_column, kind="stable")
    columns = len(question.job)
    return ClassProblem(
        size=np.ones(question.jobs),
        first=np.append(question.first, columns),
        use_first=np.searchsorted(question.use_column[order], np.arange(columns + 1)),
        use_row=question.use_pool[order].astype(np.int32),
        use_count=question.use_count[order],
        capacity=question.capacity,
    )
