"""The linear program of a packed market over some of its pairs, handed to HiGHS as matrices.

    maximise  value.x + pair values.X + gain theta
    s.t.      time of one member, pool rows, and for each class   utility of one member >= floor + rise theta

with x the shares of one member in its columns alone and X the pairs of two classes that run at a time, on average.
Rows are scaled so that right-hand sides are about 1. Work limits, no clock. Decides which algorithm runs.
"""

from dataclasses import dataclass

import highspy
import numpy as np
from scipy import sparse

from optimizer.decision import Status
from optimizer.market import Market
from optimizer.objective import Level, Total
from optimizer.owners import best_by
from optimizer.packing.pricing import Duals, PairUses
from optimizer.problem import FloatArray

#: Columns up to which the dual simplex is the faster one; above, the interior point method without crossover.
_SIMPLEX_COLUMNS = 6_000
_SIMPLEX_TOLERANCE = 1e-10
_IPM_TOLERANCE = 1e-7
_SIMPLEX_ITERATIONS = 200_000
_IPM_ITERATIONS = 300

_STATUS = {
    highspy.HighsModelStatus.kOptimal: Status.OPTIMAL,
    highspy.HighsModelStatus.kInfeasible: Status.INFEASIBLE,
    highspy.HighsModelStatus.kUnboundedOrInfeasible: Status.INFEASIBLE,
    highspy.HighsModelStatus.kIterationLimit: Status.WORK_LIMIT,
}


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """What a program maximises: gain theta, plus the objective's values where it is a `Total`."""

    gain: float
    rise: FloatArray
    floor: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class MasterSolution:
    """How a program ended. Everything but `status`, `solver` and `work` means something only where it is `OPTIMAL`."""

    status: Status
    solver: str
    work: int
    x: FloatArray
    #: Pairs that run at a time, and what they lack to be worth running (<= 0, about 0 for those that do) (q,), (q,).
    pairs: FloatArray
    lacking: FloatArray
    duals: Duals


class Master:
    """The programs of one market and one objective; the pairs and what is asked vary from call to call."""

    def __init__(self, market: Market, objective: Level | Total) -> None:
        self._market, self._worth = market, objective.worth
        self._value = objective.value if isinstance(objective, Total) else np.zeros(market.columns)
        best = best_by(market.owner(), objective.worth, market.classes)
        self._best = np.where(best > 0, best, 1.0)
        self._capacity = np.where(market.capacity > 0, market.capacity, 1.0)
        self._highs = highspy.Highs()

    def solve(self, pairs: PairUses, ask: Ask) -> MasterSolution:
        """Solve with these pairs."""
        market, columns = self._market, self._market.columns
        matrix = sparse.hstack((self._alone(), self._paired(pairs), self._theta(ask)), format="csc")
        cost = np.concatenate((self._values(), (pairs.keeps * self._value[pairs.column]).sum(axis=0), [ask.gain]))
        scale = float(np.abs(cost).max(initial=0.0)) or 1.0
        solver = self._options(matrix.shape[1])
        self._highs.passModel(self._model(matrix, cost / scale, ask))
        self._highs.run()
        status = _STATUS.get(self._highs.getModelStatus(), Status.FAILED)
        solution, info = self._highs.getSolution(), self._highs.getInfo()
        work = max(int(info.simplex_iteration_count), 0) + max(int(info.ipm_iteration_count), 0)
        if status is not Status.OPTIMAL or not solution.dual_valid:
            none = np.zeros(0)
            failed = Status.FAILED if status is Status.OPTIMAL else status
            return MasterSolution(failed, solver, work, none, none, none, Duals(none, none, none))
        value = np.array(solution.col_value)
        dual, reduced = np.array(solution.row_dual) * -scale, np.array(solution.col_dual) * -scale
        k, r = market.classes, market.rows
        dual = np.maximum(dual, 0.0)
        duals = Duals(
            prices=dual[k : k + r] / self._capacity,
            multiplier=dual[k + r :] / (self._best * market.size),
            time=dual[:k] / market.size,
        )
        return MasterSolution(status, solver, work, value[:columns], value[columns:-1], reduced[columns:-1], duals)

    def _values(self) -> FloatArray:
        """Value of each column for all members of its class (C,)."""
        values: FloatArray = self._market.size[self._market.owner()] * self._value
        return values

    def _alone(self) -> sparse.csc_array:
        market, k = self._market, self._market.classes
        owner, uses, column = market.owner(), np.diff(market.use_first), np.arange(market.columns)
        load = market.use_count * np.repeat(market.size[owner], uses) / self._capacity[market.use_row]
        values = np.concatenate((np.ones(market.columns), load, -self._worth / self._best[owner]))
        rows = np.concatenate((owner, k + market.use_row, k + market.rows + owner))
        columns = np.concatenate((column, np.repeat(column, uses), column))
        return sparse.csc_array((values, (rows, columns)), shape=(self._rows, market.columns))

    def _paired(self, pairs: PairUses) -> sparse.csc_array:
        """Of a class beside itself the entries of both members add up."""
        market, k = self._market, self._market.classes
        share = 1.0 / market.size[pairs.member]
        utility = -pairs.keeps * self._worth[pairs.column] * share / self._best[pairs.member]
        load = pairs.count / self._capacity[pairs.pool]
        values = np.concatenate((share.ravel(), load, utility.ravel()))
        rows = np.concatenate((pairs.member.ravel(), k + pairs.pool, (k + market.rows + pairs.member).ravel()))
        column = np.arange(len(pairs.count))
        columns = np.concatenate((column, column, column, column, column))
        return sparse.csc_array((values, (rows, columns)), shape=(self._rows, len(column)))

    def _theta(self, ask: Ask) -> sparse.csc_array:
        rising = np.flatnonzero(ask.rise)
        rows = self._market.classes + self._market.rows + rising
        values = (ask.rise / self._best)[rising]
        return sparse.csc_array((values, (rows, np.zeros(len(rising), dtype=np.int64))), shape=(self._rows, 1))

    @property
    def _rows(self) -> int:
        return 2 * self._market.classes + self._market.rows

    def _model(self, matrix: sparse.csc_array, cost: FloatArray, ask: Ask) -> highspy.HighsLp:
        lp = highspy.HighsLp()
        lp.num_row_, lp.num_col_ = matrix.shape
        lp.col_cost_ = -cost
        lp.col_lower_ = np.zeros(lp.num_col_)
        lp.col_upper_ = np.full(lp.num_col_, highspy.kHighsInf)
        if not ask.gain:
            lp.col_upper_ = np.append(np.full(lp.num_col_ - 1, highspy.kHighsInf), 0.0)
        lp.row_lower_ = np.full(lp.num_row_, -highspy.kHighsInf)
        lp.row_upper_ = np.concatenate((np.ones(self._market.classes + self._market.rows), -ask.floor / self._best))
        lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        lp.a_matrix_.start_ = matrix.indptr.astype(np.int32)
        lp.a_matrix_.index_ = matrix.indices.astype(np.int32)
        lp.a_matrix_.value_ = matrix.data
        return lp

    def _options(self, columns: int) -> str:
        small = columns <= _SIMPLEX_COLUMNS
        options = {
            "output_flag": False,
            "solver": "simplex" if small else "ipm",
            "run_crossover": "off",
            "simplex_iteration_limit": _SIMPLEX_ITERATIONS,
            "ipm_iteration_limit": _IPM_ITERATIONS,
            "ipm_optimality_tolerance": _IPM_TOLERANCE,
            "primal_feasibility_tolerance": _SIMPLEX_TOLERANCE if small else _IPM_TOLERANCE,
            "dual_feasibility_tolerance": _SIMPLEX_TOLERANCE if small else _IPM_TOLERANCE,
            "threads": 1,
        }
        for name, value in options.items():
            self._highs.setOptionValue(name, value)
        return "simplex" if small else "ipm"
