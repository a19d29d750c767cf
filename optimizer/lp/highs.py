"""HiGHS without a modelling language: models from matrices, options, and the linear programs of a class problem.

`highs_model` and `highs_solver` are the one place where a model is assembled and options are set. `LinearProgram` is

    maximise  cost.x + gain theta   s.t.  time and pool rows;   worth.x >= floor + rise theta   each class

Every row is divided by what it is compared with (capacity, the best utility of the class), so that right-hand sides are
about 1. Solved again with other floors and rises, HiGHS starts from the last basis (warm start). Limits count
iterations, never seconds.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import highspy
import numpy as np
from scipy import sparse

from optimizer.classes.class_problem import ClassProblem
from optimizer.classes.segments import max_by
from optimizer.decision import Status
from optimizer.lp.engine_choice import SIMPLEX_COLUMNS
from optimizer.problem import FloatArray, IntArray

#: Tolerance of the simplex method: a full job must not look short of its best by rounding. The interior point method
#: has its own.
_SIMPLEX_TOLERANCE = 1e-10
_IPM_TOLERANCE = 1e-9
_SIMPLEX_ITERATIONS = 200_000
_IPM_ITERATIONS = 500

#: The status for each way in which HiGHS can end; any other way is a failure.
STATUS_OF_HIGHS = {
    highspy.HighsModelStatus.kOptimal: Status.OPTIMAL,
    highspy.HighsModelStatus.kInfeasible: Status.INFEASIBLE,
    highspy.HighsModelStatus.kUnboundedOrInfeasible: Status.INFEASIBLE,
    highspy.HighsModelStatus.kIterationLimit: Status.WORK_LIMIT,
}
NO_VALUES: FloatArray = np.zeros(0)


def highs_solver(**options: str | int | float) -> highspy.Highs:
    """Returns a HiGHS solver, silent and on one thread, with these options."""
    solver = highspy.Highs()
    set_options(solver, output_flag=False, threads=1, **options)
    return solver


def simplex_solver(iterations: int, tolerance: float) -> highspy.Highs:
    """Returns a solver by the simplex method, with a limit of iterations and one tolerance for both feasibilities."""
    return highs_solver(
        solver="simplex",
        simplex_iteration_limit=iterations,
        primal_feasibility_tolerance=tolerance,
        dual_feasibility_tolerance=tolerance,
    )


def set_options(highs: highspy.Highs, /, **options: str | int | float) -> None:
    """Sets options by their HiGHS names."""
    for name, value in options.items():
        highs.setOptionValue(name, value)


def highs_model(
    cost: FloatArray,
    matrix: Any,
    row_upper: FloatArray,
    *,
    row_lower: FloatArray | None = None,
    upper: FloatArray | None = None,
) -> highspy.HighsLp:
    """Returns the model: minimise cost.x under row_lower <= matrix x <= row_upper, 0 <= x <= upper.

    Args:
        matrix: by columns, with `indptr`, `indices` and `data` (a scipy CSC array, or `ColumnMatrix`).
        row_lower: -inf by default (m,).
        upper: +inf by default (c,).
    """
    columns, rows = len(cost), len(row_upper)
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = columns, rows
    lp.col_cost_ = cost
    lp.col_lower_ = np.zeros(columns)
    lp.col_upper_ = np.full(columns, highspy.kHighsInf) if upper is None else upper
    lp.row_lower_ = np.full(rows, -highspy.kHighsInf) if row_lower is None else row_lower
    lp.row_upper_ = row_upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = matrix.indptr.astype(np.int32)
    lp.a_matrix_.index_ = matrix.indices.astype(np.int32)
    lp.a_matrix_.value_ = matrix.data
    return lp


class ColumnMatrix(NamedTuple):
    """A sparse matrix by columns: the entries of column c are indptr[c]:indptr[c + 1]."""

    indptr: IntArray
    indices: IntArray
    data: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class LinearSolution:
    """How one program ended. Arrays mean something only where the status is `OPTIMAL`."""

    status: Status
    x: FloatArray
    theta: float
    #: Dual values of the rows in the objective's unit, per unit of capacity, >= 0 (r,).
    prices: FloatArray
    work: int


class LinearProgram:
    """One problem and one utility; objectives, floors and rises vary from call to call."""

    def __init__(self, problem: ClassProblem, worth: FloatArray) -> None:
        self._problem = problem
        owner = problem.owner
        best = max_by(owner, worth, problem.classes)
        self._best = np.where(best > 0, best, 1.0)
        self._capacity = np.where(problem.capacity > 0, problem.capacity, 1.0)
        self._rows = 2 * problem.classes + problem.rows
        self._matrix = self._columns(owner, worth / self._best[owner])
        small = problem.columns <= SIMPLEX_COLUMNS
        tolerance = _SIMPLEX_TOLERANCE if small else _IPM_TOLERANCE
        self._highs = highs_solver(
            solver="simplex" if small else "ipm",
            run_crossover="off",
            simplex_iteration_limit=_SIMPLEX_ITERATIONS,
            ipm_iteration_limit=_IPM_ITERATIONS,
            primal_feasibility_tolerance=tolerance,
            dual_feasibility_tolerance=tolerance,
        )

    def solve(self, cost: FloatArray, gain: float, rise: FloatArray, floor: FloatArray) -> LinearSolution:
        """Maximises cost.x + gain theta under worth.x >= floor + rise theta; arrays are (C,) and (k,)."""
        model = self._model(cost, gain, rise / self._best, floor / self._best)
        basis = self._highs.getBasis()
        self._highs.passModel(model)
        if basis.valid:
            self._highs.setBasis(basis)
        self._highs.run()
        status = STATUS_OF_HIGHS.get(self._highs.getModelStatus(), Status.FAILED)
        solution, info = self._highs.getSolution(), self._highs.getInfo()
        work = max(int(info.simplex_iteration_count), 0) + max(int(info.ipm_iteration_count), 0)
        if status is not Status.OPTIMAL or not solution.dual_valid:
            return LinearSolution(
                Status.FAILED if status is Status.OPTIMAL else status, NO_VALUES, 0.0, NO_VALUES, work
            )
        value, k = np.array(solution.col_value), self._problem.classes
        dual = np.maximum(-np.array(solution.row_dual)[k : k + self._problem.rows], 0.0)
        return LinearSolution(status, value[:-1], float(value[-1]), dual / self._capacity, work)

    def _columns(self, owner: np.ndarray, relative: FloatArray) -> sparse.csc_array:
        """Returns the rows of time, pools and utilities over the C shares; each call adds the column of theta."""
        problem, k = self._problem, self._problem.classes
        uses = np.diff(problem.use_first)
        column = np.arange(problem.columns)
        load = problem.use_count * np.repeat(problem.size[owner], uses) / self._capacity[problem.use_row]
        values = np.concatenate((np.ones(problem.columns), load, -relative))
        rows = np.concatenate((owner, k + problem.use_row, k + problem.rows + owner))
        columns = np.concatenate((column, np.repeat(column, uses), column))
        return sparse.csc_array((values, (rows, columns)), shape=(self._rows, problem.columns))

    def _model(self, cost: FloatArray, gain: float, rise: FloatArray, floor: FloatArray) -> highspy.HighsLp:
        matrix, problem = self._matrix, self._problem
        rising = np.flatnonzero(rise)
        with_theta = ColumnMatrix(
            np.append(matrix.indptr, matrix.nnz + len(rising)),
            np.concatenate((matrix.indices, problem.classes + problem.rows + rising)),
            np.concatenate((matrix.data, rise[rising])),
        )
        return highs_model(
            -np.append(cost, gain),
            with_theta,
            np.concatenate((np.ones(problem.classes + problem.rows), -floor)),
            upper=np.append(np.full(problem.columns, highspy.kHighsInf), highspy.kHighsInf if gain else 0.0),
        )
