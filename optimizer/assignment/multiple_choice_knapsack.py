"""One configuration at most for each job, worth as much as possible together: a multiple-choice knapsack at prices.

    maximise  sum_c v_c y_c     s.t.  sum_{c of j} y_c <= 1,   sum_c use[c,r] y_c <= N[r]  (price l_r),   y in {0, 1}

At good prices nearly every job clearly prefers one configuration, and gets that one. The rest, whose best and second
best are closest, are the core: they compete for what is left in a small integer program (HiGHS), and the prices are
sharpened by the duals of its relaxation. Any prices l >= 0 bound every choice by  sum_j max(0, max_c v_c - l.use_c) +
l.N  (weak duality), so the answer states its distance from the optimum; where that is too large, more jobs compete,
and in the end all of them. HiGHS is loaded where jobs compete.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optimizer.assignment.assignment_problem import Assignment, AssignmentProblem
from optimizer.problem import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    import highspy

#: Relative gap to its bound at which a choice is accepted.
KNAPSACK_TOLERANCE = 1e-4
#: Steps of the first search for prices.
_STEPS = 80
#: The number of jobs that compete at first; the factor by which it grows each time they are not enough.
_CORE, _GROWTH = 24, 4
#: Up to so many columns the linear relaxation over all jobs is cheaper than a search for prices.
_FLUID_COLUMNS = 8_000
#: A fraction of a column this close to 0 or 1 counts as 0 or 1.
_ROUNDING = 1e-6
#: How often prices are sharpened for each set of competing jobs.
_SHARPENED = 2


@dataclass(frozen=True, slots=True, eq=False)
class _Responses:
    """The best response of every job to given prices."""

    #: The best column, -1 where none is worth its price (n,); and by how much it is better than the next best choice
    #: (n,).
    column: IntArray
    margin: FloatArray
    #: The bound that the prices prove.
    bound: float


def solve_knapsack(choice: AssignmentProblem, tolerance: float = KNAPSACK_TOLERANCE, core: int = _CORE) -> Assignment:
    """Returns the best choice, within the tolerance of its bound unless the solver's work limit came first.

    At first `core` jobs compete, more where that is not enough. No program is solved where every job can have its best
    column, and no integer program where the rounded linear relaxation is within the tolerance already.
    """
    free = np.zeros(len(choice.capacity))
    if not choice.jobs:
        return Assignment(np.full(0, -1, dtype=np.int64), free, 0.0, 0.0)
    wishes = _responses(choice, free)
    if (choice.used(wishes.column) <= choice.capacity + 1e-9).all():
        return Assignment(wishes.column, free, wishes.bound, wishes.bound)
    best = _rounded_relaxation(choice) if len(choice.job) <= _FLUID_COLUMNS else None
    prices, bound = search_prices(choice) if best is None else (best.prices, best.bound)
    size = min(core, choice.jobs)
    while best is None or (best.gap > tolerance and size < choice.jobs * _GROWTH):
        for _ in range(_SHARPENED if best is None or size < choice.jobs else 0):
            prices, bound = _sharpened(choice, prices, bound, size)
        column, proved = _solve_core(choice, prices, size, tolerance, best)
        bound = min(bound, proved)
        value = choice.value_of(column)
        if best is not None and best.value >= value:
            column, value = best.column, best.value
        best = Assignment(column, prices, value, max(bound, value))
        size *= _GROWTH
    return best


def _rounded_relaxation(choice: AssignmentProblem) -> Assignment | None:
    """Returns the linear relaxation over all jobs, rounded: a job with all its share in one column keeps that column,
    the others fill what is left. None where HiGHS finds no optimum.
    """
    everybody = np.ones(choice.jobs, dtype=np.bool_)
    found = solve_relaxation(_program(choice, np.arange(len(choice.job)), everybody, choice.capacity))
    if found is None:
        return None
    column = np.full(choice.jobs, -1, dtype=np.int64)
    whole = np.flatnonzero(found.part > 1.0 - _ROUNDING)
    column[choice.job[whole]] = whole
    split = np.zeros(choice.jobs, dtype=np.bool_)
    split[choice.job[(found.part > _ROUNDING) & (found.part <= 1.0 - _ROUNDING)]] = True
    column = _one_by_one(choice, found.prices, column, np.flatnonzero(split[choice.job]))
    value, bound = choice.value_of(column), _responses(choice, found.prices).bound
    return Assignment(column, found.prices, value, max(bound, value))


def search_prices(choice: AssignmentProblem) -> tuple[FloatArray, float]:
    """Returns the prices with the smallest bound that steps found, and that bound (0 where there are no jobs).

    A price rises while demand exceeds capacity, and falls while it is below; its step grows while the direction stays,
    and is halved where it changes.
    """
    if not choice.jobs:
        return np.zeros(len(choice.capacity)), 0.0
    top = float((choice.value / np.maximum(choice.size, 1e-12)).max())
    prices, before = np.zeros(len(choice.capacity)), np.zeros(len(choice.capacity))
    stride = np.full(len(prices), top / 4.0)
    quoted, bound = prices, np.inf
    for _ in range(_STEPS):
        found = _responses(choice, prices)
        if found.bound < bound:
            quoted, bound = prices, found.bound
        way = np.sign(choice.used(found.column) - choice.capacity)
        stride = np.minimum(stride * np.select([way * before < 0, way * before > 0], [0.5, 1.2], 1.0), top / 4.0)
        prices, before = np.clip(prices + way * stride, 0.0, top), way
    return quoted, bound


def _responses(choice: AssignmentProblem, prices: FloatArray) -> _Responses:
    net = choice.net(prices)
    best = choice.best_net(net)
    at = np.flatnonzero(net >= best[choice.job])
    column = at[np.searchsorted(choice.job[at], np.arange(choice.jobs))]  # the first of equals
    net[column] = -np.inf
    second = np.maximum(choice.best_net(net), 0.0)
    margin = np.where(best > 0, best - second, -best)
    return _Responses(np.where(best > 0, column, -1), margin, choice.bound_by(best, prices))


def _core_jobs(choice: AssignmentProblem, prices: FloatArray, size: int) -> tuple[BoolArray, IntArray, FloatArray]:
    """Returns which jobs compete, the columns of the others, and the capacity that those leave.

    The `size` least decided jobs compete, or as many more as it takes until the others fit.
    """
    found = _responses(choice, prices)
    order = np.argsort(found.margin, kind="stable")
    while True:
        core = np.zeros(choice.jobs, dtype=np.bool_)
        core[order[:size]] = True
        fixed = np.where(core, -1, found.column)
        rest = choice.capacity - choice.used(fixed)
        if rest.min(initial=0.0) >= -1e-9:
            return core, fixed, np.maximum(rest, 0.0)
        size *= 2


def _program(choice: AssignmentProblem, kept: IntArray, core: BoolArray, rest: FloatArray) -> AssignmentProblem:
    """Returns the program over these columns, all of competing jobs."""
    place = np.full(len(choice.job), -1, dtype=np.int64)
    place[kept] = np.arange(len(kept))
    uses = place[choice.use_column] >= 0
    return AssignmentProblem(
        (np.cumsum(core) - 1)[choice.job[kept]],
        choice.value[kept],
        place[choice.use_column[uses]],
        choice.use_pool[uses],
        choice.use_count[uses],
        rest,
    )


def _sharpened(choice: AssignmentProblem, prices: FloatArray, bound: float, size: int) -> tuple[FloatArray, float]:
    """Returns the prices from the relaxation of what the competing jobs share, if they prove a smaller bound than the
    given ones; else the given prices and bound.
    """
    core, _, rest = _core_jobs(choice, prices, size)
    found = solve_relaxation(_program(choice, np.flatnonzero(core[choice.job]), core, rest))
    if found is None:
        return prices, bound
    proved = _responses(choice, found.prices).bound
    return (found.prices, proved) if proved < bound else (prices, bound)


def _solve_core(
    choice: AssignmentProblem, prices: FloatArray, size: int, tolerance: float, known: Assignment | None
) -> tuple[IntArray, float]:
    """Returns the column of each job, and an upper bound on all choices: inf unless all jobs compete."""
    core, column, rest = _core_jobs(choice, prices, size)
    kept, all_compete = np.flatnonzero(core[choice.job]), bool(core.all())
    if known is not None:
        kept = kept[_promising(choice, prices, known)[kept]]
        core = np.zeros(choice.jobs, dtype=np.bool_)
        core[choice.job[kept]] = True
        if not len(kept):
            return column, known.value if all_compete else np.inf
    picked, proved = solve_integer(_program(choice, kept, core, rest), tolerance / 2.0)
    proved = max(proved, known.value if known is not None else 0.0) if all_compete else np.inf
    if picked is None:
        everybody = np.full(choice.jobs, -1, dtype=np.int64)
        return _one_by_one(choice, prices, everybody, np.arange(len(choice.job))), np.inf
    column = column.copy()
    column[choice.job[kept[picked]]] = kept[picked]
    return column, proved


def _promising(choice: AssignmentProblem, prices: FloatArray, known: Assignment) -> BoolArray:
    """Returns the columns that a better choice may contain (c,): those whose reduced cost is at most the gap between
    bound and value.
    """
    found, net = _responses(choice, prices), choice.net(prices)
    best = np.maximum(choice.best_net(net), 0.0)
    promising: BoolArray = best[choice.job] - net <= (found.bound - known.value) * (1.0 + 1e-9) + 1e-12 * found.bound
    return promising


def _one_by_one(choice: AssignmentProblem, prices: FloatArray, column: IntArray, candidates: IntArray) -> IntArray:
    """Returns the columns of jobs after adding those candidates that still fit, one by one, the largest gain at the
    prices first.
    """
    net = choice.net(prices)
    column, free = column.copy(), choice.capacity - choice.used(column)
    for candidate in candidates[np.argsort(-net[candidates], kind="stable")].tolist():
        uses = choice.use_column == candidate
        pool, count = choice.use_pool[uses], choice.use_count[uses]
        if column[choice.job[candidate]] < 0 and np.all(count <= free[pool] + 1e-9):
            column[choice.job[candidate]] = candidate
            free[pool] -= count
    return column


#: Branch and bound stops after so many nodes, with the gap that is left then.
_NODES = 50_000
_WHOLE = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class KnapsackRelaxation:
    """The optimum of the linear relaxation: prices of the pools (p,) and the fraction of each column (c,)."""

    prices: FloatArray
    part: FloatArray


def solve_relaxation(program: AssignmentProblem) -> KnapsackRelaxation | None:
    """Returns the optimum of the linear relaxation; None where HiGHS finds none."""
    import highspy

    from optimizer.lp.highs import highs_solver

    highs = highs_solver()
    highs.passModel(_model(program))
    highs.run()
    solution = highs.getSolution()
    if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal or not solution.dual_valid:
        return None
    duals = np.array(solution.row_dual)[-len(program.capacity) :]
    return KnapsackRelaxation(np.maximum(-duals, 0.0) * _scale(program), np.array(solution.col_value))


def solve_integer(program: AssignmentProblem, tolerance: float) -> tuple[IntArray | None, float]:
    """Returns the columns of the best integer choice within the tolerance, None without one, and an upper bound on any
    choice.
    """
    import highspy

    from optimizer.lp.highs import highs_solver, set_options

    highs, model = highs_solver(), _model(program)
    model.integrality_ = [highspy.HighsVarType.kInteger] * len(program.job)
    set_options(highs, mip_rel_gap=tolerance, mip_max_nodes=_NODES)
    highs.passModel(model)
    highs.run()
    info, solution = highs.getInfo(), highs.getSolution()
    bound = -float(info.mip_dual_bound) * _scale(program) if np.isfinite(info.mip_dual_bound) else np.inf
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return None, bound
    return np.flatnonzero(np.array(solution.col_value) > _WHOLE), bound


def _scale(program: AssignmentProblem) -> float:
    """Returns the largest value: the program states its objective as a multiple of it."""
    return float(program.value.max())


def _model(program: AssignmentProblem) -> "highspy.HighsLp":
    """Returns the program for HiGHS, with one row per job, then one per pool."""
    from optimizer.lp.highs import ColumnMatrix, highs_model

    jobs, columns = program.jobs, len(program.job)
    column = np.concatenate([np.arange(columns), program.use_column])
    order = np.argsort(column, kind="stable")
    matrix = ColumnMatrix(
        np.searchsorted(column[order], np.arange(columns + 1)),
        np.concatenate([program.job, jobs + program.use_pool])[order],
        np.concatenate([np.ones(columns), program.use_count])[order],
    )
    right = np.concatenate([np.ones(jobs), program.capacity])
    return highs_model(-program.value / _scale(program), matrix, right, upper=np.ones(columns))
