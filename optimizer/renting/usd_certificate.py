"""What a plan is worth in USD per hour: its value, upper bounds on any plan, and the value of one more accelerator.

    reached  =  sum of V e over all jobs that have a place
    bound    =  sum of V e over pinned jobs  +  min over prices of  sum_j max(0, max_c V e_c - l.use_c)  +  l.N

The policy's own measure is a worth without a unit, in which short jobs count more; this is money. V is what an hour of
a job at its best is worth, e how fast the configuration is against that. Pinned jobs, which no plan could move, are in
both sums; whoever else has a place could have another, so the bound holds for every plan. What machines cost that are
here is owed either way and is in neither. Limits of entities are rows, as in the plan, and guarantees floors: the
bound is then that of plans which keep as much of each.

Prices come from the same methods as those of a plan, in the unit USD; any prices bound (weak duality).

The value of one more accelerator of each pool to the jobs of a plan, in USD per hour, is

    gain(p) = max( 0,  V e / a  of a waiting job that fits p,
                   (V e_p - V e_q) / a + gain(q)  of a job that runs in q and fits p )

where `a` is the number of its accelerators. The price of a plan lies between this value of one *more* and the value of
the last one present, and on small fleets the two are far apart. Where no job waits, one more accelerator of the slowest
type is worth nothing, and one of a faster type what moving a job there gains. Jobs that cannot be moved stay, and what
a pool's free accelerators could take already is not due to one more. Chains have `_LONGEST_CHAIN` moves at most, and
moves cost nothing: plans keep running jobs in place for less than a restart.

A tighter bound than that of a plan's own prices is the optimum of the linear program of its assignments, by the one
statement in cvxpy (`money_program`):

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
from functools import partial

import numpy as np

from optimizer.assignment.assignment_problem import AssignmentProblem, Contest
from optimizer.assignment.column_assignment import assignment_problem_of, unlisted_gain
from optimizer.assignment.guarantee_rows import guaranteed_entities, rows_of_floors
from optimizer.assignment.limit_rows import RentedTiers, limited_entities, money_cells
from optimizer.assignment.local_search import prices_of_gangs
from optimizer.assignment.mixed_gangs import UnlistedGangs
from optimizer.assignment.plan_draft import accelerators_held
from optimizer.assignment.transportation import assign_single_accelerators, takes_single_accelerators
from optimizer.classes.class_problem import ClassProblem, relative_gap
from optimizer.classes.segments import max_by, sum_by
from optimizer.decision import Plan
from optimizer.lp.engine_choice import CVXPY_MONEY_CELLS
from optimizer.problem import FloatArray, IntArray, Problem

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


def usd_certificate(problem: Problem, column: IntArray, value: FloatArray, *, stated: bool) -> tuple[float, float]:
    """Returns the value of the plan and an upper bound on the value of any plan, in USD per hour.

    Args:
        problem: of the present machines.
        column: the column of each job, -1: it waits (n,).
        value: of an hour of each job at its best, USD (n,).
        stated: also ask the program that is stated in cvxpy, where it is small enough and its bound is smaller.
    """
    columns, jobs = problem.columns, problem.jobs
    earned = _earned(problem, value)
    reached = float(earned[column[column >= 0]].sum())
    stays = columns.running & jobs.stays[columns.job]
    fixed = np.full(len(jobs), -1, dtype=np.int64)
    fixed[columns.job[stays]] = np.flatnonzero(stays)
    held = fixed[fixed >= 0]
    free = np.maximum(problem.pools.capacity - accelerators_held(problem, held), 0.0)
    question, kept = assignment_problem_of(problem, earned, fixed < 0, free)
    unlisted = UnlistedGangs(problem, partial(_earned, value=value)) if jobs.mixes.any() else None
    if not len(kept):
        none, known = np.zeros(len(free)), np.where(fixed < 0, 0.0, np.inf)
        more = 0.0 if unlisted is None else unlisted.gain(none, np.zeros((1, 1)), free, known)
        return reached, max(float(earned[held].sum()) + more, reached)
    limits = limited_entities(problem)
    if limits is not None:
        question = limits.rows_beside(question, limits.left(fixed), kept)
    guarantees, competing = guaranteed_entities(problem), (columns.job[kept], fixed < 0)

    def bound_of(asked: AssignmentProblem) -> float:
        beyond = None
        if unlisted is not None:
            beyond = partial(unlisted_gain, unlisted, asked, competing, (limits, guarantees))
        return _bound(Contest(asked, np.inf, beyond), stated=stated)

    bound = bound_of(question)
    if guarantees is not None:
        floor = np.minimum(guarantees.held(np.where(fixed < 0, column, -1)), guarantees.left(fixed))
        bound = min(bound, bound_of(rows_of_floors(question, guarantees.inside_of(kept), floor)))
    return reached, max(float(earned[held].sum()) + bound, reached)


def _earned(problem: Problem, value: FloatArray) -> FloatArray:
    """Returns what an hour of each column is worth, in USD (c,)."""
    columns = problem.columns
    best = max_by(columns.job, columns.steps_per_s, len(problem.jobs))[columns.job]
    return np.divide(value[columns.job] * columns.steps_per_s, best, out=np.zeros(len(columns)), where=best > 0)


def _bound(contest: Contest, *, stated: bool) -> float:
    question = contest.question
    if takes_single_accelerators(question):
        return contest.bound_at(assign_single_accelerators(question).prices)
    bound = contest.bound_at(prices_of_gangs(question)[0])
    found = relaxed_optimum(question) if stated else None
    return bound if found is None else min(bound, contest.bound_at(found[1]) * (1 + _ROUNDING))


#: The most jobs that move up, one after the other, behind one more accelerator.
_LONGEST_CHAIN = 3


def worth_of_one_more(problem: Problem, column: IntArray, value_usd_per_h: FloatArray) -> FloatArray:
    """Returns the value of one more accelerator of each pool, in USD per hour (p,); 0 where no job would gain.

    Args:
        problem: n jobs, c columns, p pools.
        column: the column of each job in the plan, -1: it waits (n,).
        value_usd_per_h: the value of an hour of each job at its best speed (n,).
    """
    columns, n, p = problem.columns, len(problem.jobs), len(problem.pools)
    if not n or not len(columns):
        return np.zeros(p)
    uses = np.bincount(columns.use_column, minlength=len(columns))
    size = sum_by(columns.use_column, columns.use_count, len(columns))
    pool = np.zeros(len(columns), dtype=np.int64)
    pool[columns.use_column] = columns.use_pool
    speed = np.nan_to_num(columns.steps_per_s, nan=0.0, posinf=0.0)
    best = max_by(columns.job, speed, n)
    gained = value_usd_per_h[columns.job] * speed / np.maximum(best[columns.job], 1e-300)
    placed = column >= 0
    held = np.zeros(n)
    held[placed] = gained[column[placed]]
    had, at = np.zeros(n), np.full(n, -1, dtype=np.int64)
    had[placed] = size[column[placed]]
    at[placed] = np.where(uses[column[placed]] == 1, pool[column[placed]], -1)
    chosen = np.zeros(len(columns), dtype=np.bool_)
    chosen[column[placed]] = True
    taken = chosen[columns.use_column]
    free = problem.pools.capacity - sum_by(columns.use_pool[taken], columns.use_count[taken], p)
    # Only configurations of one pool count: one more accelerator of one pool does not seat a gang over several.
    tried = np.flatnonzero((uses == 1) & (size > 0) & (gained > 0) & (size > free[pool] + 1e-9))
    job, into = columns.job[tried], pool[tried]
    more = (gained[tried] - held[job]) / size[tried]
    gain = np.zeros(p)
    waits = ~placed[job]
    np.maximum.at(gain, into[waits], more[waits])
    moves = placed[job] & (at[job] >= 0) & (at[job] != into) & (size[tried] == had[job]) & ~problem.jobs.stays[job]
    edge = np.full((p, p), -np.inf)
    np.maximum.at(edge, (at[job[moves]], into[moves]), more[moves])
    for _ in range(min(p, _LONGEST_CHAIN)):
        # Row q: the gain when a job leaves q for each pool, plus what its place in q is then worth.
        gain = np.maximum(gain, (edge + gain[:, None]).max(axis=0))
    return gain
