"""Linear and integer programs over the configurations of contested jobs, as HiGHS solves them.

maximise  v.y    s.t.  one column a job,  use.y <= capacity,  0 <= y <= 1  (and whole, in `solve_integer`)

Importing this module imports highspy.
"""

from dataclasses import dataclass

import highspy
import numpy as np

from optimizer.assignment.assignment_problem import AssignmentProblem
from optimizer.lp.highs import ColumnMatrix, highs_model, highs_solver, set_options
from optimizer.problem import FloatArray, IntArray

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


def _model(program: AssignmentProblem) -> highspy.HighsLp:
    """Returns the program for HiGHS, with one row per job, then one per pool."""
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
