"""The linear programs of a class problem, handed to HiGHS as matrices, without a modelling language.

    maximise  cost.x + gain theta   s.t.  time and pool rows;   worth.x >= floor + rise theta   each class

Every row is divided by what it is compared with (capacity, the best utility of the class), so that right-hand sides are
about 1. Solved again with other floors and rises, HiGHS starts from the last basis (warm start). Limits count
iterations, never seconds.
"""

from dataclasses import dataclass

import highspy
import numpy as np
from scipy import sparse

from optimizer.classes.class_problem import ClassProblem
from optimizer.classes.segments import max_by
from optimizer.decision import Status
from optimizer.problem import FloatArray

#: Columns up to which the dual simplex is the faster one; above, the interior point method without crossover.
_SIMPLEX_COLUMNS = 12_000
#: Of the simplex: a full job must not look short of its best by rounding. The interior point method ends at its own.
_SIMPLEX_TOLERANCE = 1e-10
_IPM_TOLERANCE = 1e-9
_SIMPLEX_ITERATIONS = 200_000
_IPM_ITERATIONS = 500

#: How a run of HiGHS ended; whatever is not here has failed.
STATUS_OF_HIGHS = {
    highspy.HighsModelStatus.kOptimal: Status.OPTIMAL,
    highspy.HighsModelStatus.kInfeasible: Status.INFEASIBLE,
    highspy.HighsModelStatus.kUnboundedOrInfeasible: Status.INFEASIBLE,
    highspy.HighsModelStatus.kIterationLimit: Status.WORK_LIMIT,
}
NO_VALUES: FloatArray = np.zeros(0)


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
    """One market and one utility; objectives, floors and rises vary from call to call."""

    def __init__(self, market: ClassProblem, worth: FloatArray) -> None:
        self._market = market
        owner = market.owner()
        best = max_by(owner, worth, market.classes)
        self._best = np.where(best > 0, best, 1.0)
        self._capacity = np.where(market.capacity > 0, market.capacity, 1.0)
        self._rows = 2 * market.classes + market.rows
        self._matrix = self._columns(owner, worth / self._best[owner])
        self._highs = highspy.Highs()
        self._options()

    def solve(self, cost: FloatArray, gain: float, rise: FloatArray, floor: FloatArray) -> LinearSolution:
        """Maximise cost.x + gain theta under worth.x >= floor + rise theta (arrays (C,) and (k,))."""
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
        value, k = np.array(solution.col_value), self._market.classes
        dual = np.maximum(-np.array(solution.row_dual)[k : k + self._market.rows], 0.0)
        return LinearSolution(status, value[:-1], float(value[-1]), dual / self._capacity, work)

    def _columns(self, owner: np.ndarray, relative: FloatArray) -> sparse.csc_array:
        """Rows of time, pools and utilities over the C shares; the column of theta comes with each call."""
        market, k = self._market, self._market.classes
        uses = np.diff(market.use_first)
        column = np.arange(market.columns)
        load = market.use_count * np.repeat(market.size[owner], uses) / self._capacity[market.use_row]
        values = np.concatenate((np.ones(market.columns), load, -relative))
        rows = np.concatenate((owner, k + market.use_row, k + market.rows + owner))
        columns = np.concatenate((column, np.repeat(column, uses), column))
        return sparse.csc_array((values, (rows, columns)), shape=(self._rows, market.columns))

    def _model(self, cost: FloatArray, gain: float, rise: FloatArray, floor: FloatArray) -> highspy.HighsLp:
        matrix, market = self._matrix, self._market
        rising = np.flatnonzero(rise)
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = market.columns + 1, self._rows
        lp.col_cost_ = -np.append(cost, gain)
        lp.col_lower_ = np.zeros(market.columns + 1)
        lp.col_upper_ = np.append(np.full(market.columns, highspy.kHighsInf), highspy.kHighsInf if gain else 0.0)
        lp.row_lower_ = np.full(self._rows, -highspy.kHighsInf)
        lp.row_upper_ = np.concatenate((np.ones(market.classes + market.rows), -floor))
        lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        lp.a_matrix_.start_ = np.append(matrix.indptr, matrix.nnz + len(rising)).astype(np.int32)
        lp.a_matrix_.index_ = np.concatenate((matrix.indices, market.classes + market.rows + rising)).astype(np.int32)
        lp.a_matrix_.value_ = np.concatenate((matrix.data, rise[rising]))
        return lp

    def _options(self) -> None:
        small = self._market.columns <= _SIMPLEX_COLUMNS
        tolerance = _SIMPLEX_TOLERANCE if small else _IPM_TOLERANCE
        options = {
            "output_flag": False,
            "solver": "simplex" if small else "ipm",
            "run_crossover": "off",
            "simplex_iteration_limit": _SIMPLEX_ITERATIONS,
            "ipm_iteration_limit": _IPM_ITERATIONS,
            "primal_feasibility_tolerance": tolerance,
            "dual_feasibility_tolerance": tolerance,
            "threads": 1,
        }
        for name, value in options.items():
            self._highs.setOptionValue(name, value)
