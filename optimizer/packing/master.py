"""The linear program of a packed market over some of its sides, handed to HiGHS as matrices.

    maximise  value.x + side values.v + gain theta
    s.t.      time of one member, pool rows, and for each class   utility of one member >= floor + rise theta
              both sides of a meeting, all members together, run for the same time
              of a segment that meets itself no job runs for more than all the others together

with x the share of time of one member in each column alone, and v that beside somebody of a segment. That is all there
is to say of pairs: two lines of equal length can be laid side by side, and a line of which nobody holds more than half
can be folded (`optimizer.packing.spread`), so such v can always be told as pairs of different jobs. The last row is
there only for the jobs named: it is rarely broken.

Rows are scaled so that right-hand sides are about 1. Work limits, no clock. Decides which algorithm runs.
"""

from dataclasses import dataclass

import highspy
import numpy as np
from scipy import sparse

from optimizer.arrays.owners import best_by
from optimizer.decision import Status
from optimizer.market.market import Market
from optimizer.market.objective import Level, Total
from optimizer.packing.blocks import Spelled
from optimizer.packing.pricing import Duals
from optimizer.problem import FloatArray, IntArray
from optimizer.programs.linear import ENDINGS

#: Columns up to which the dual simplex is the faster one; above, the interior point method without crossover.
_SIMPLEX_COLUMNS = 6_000
_SIMPLEX_TOLERANCE = 1e-10
_IPM_TOLERANCE = 1e-7
_SIMPLEX_ITERATIONS = 200_000
_IPM_ITERATIONS = 300


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
    #: Time of one member in each side (q,).
    beside: FloatArray
    duals: Duals


class Master:
    """The programs of one market and one objective; the sides and what is asked vary from call to call."""

    def __init__(self, market: Market, objective: Level | Total) -> None:
        self._market, self._worth = market, objective.worth
        self._value = objective.value if isinstance(objective, Total) else np.zeros(market.columns)
        best = best_by(market.owner(), objective.worth, market.classes)
        self._best = np.where(best > 0, best, 1.0)
        self._capacity = np.where(market.capacity > 0, market.capacity, 1.0)
        self._highs = highspy.Highs()

    def solve(self, sides: Spelled, greedy: IntArray, ask: Ask, *, vertex: bool) -> MasterSolution:
        """Solve with these sides.

        Args:
            sides: q of them.
            greedy: sides of a segment beside itself that are to be held to half (ascending).
            ask: what is maximised.
            vertex: False: near the middle of the optima will do, which is quicker where there are many columns.
        """
        market, columns = self._market, self._market.columns
        tied, open_rows = _ties(sides, market.size)
        halves = self._rows + sides.meetings + np.arange(len(greedy))
        rows = np.concatenate((np.arange(self._rows), self._rows + open_rows, halves))
        beside = sparse.vstack((self._beside(sides), self._meetings(sides), self._halves(sides, greedy)), format="csr")
        beside = beside[rows] @ tied
        more = len(rows) - self._rows
        alone = sparse.vstack((self._alone(), sparse.csr_array((more, columns))))
        matrix = sparse.hstack((alone, beside, self._theta(ask, more)), format="csc")
        members = market.size[sides.member]
        gains = (members * sides.keeps * self._value[sides.column]) @ tied
        cost = np.concatenate((self._values(), gains, [ask.gain]))
        scale = float(np.abs(cost).max(initial=0.0)) or 1.0
        solver = self._options(matrix.shape[1], vertex)
        self._highs.passModel(self._model(matrix, cost / scale, ask, len(open_rows)))
        self._highs.run()
        if solver == "ipm" and self._highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            solver = "simplex"
            self._highs.setOptionValue("solver", solver)
            self._highs.run()
        status = ENDINGS.get(self._highs.getModelStatus(), Status.FAILED)
        solution, info = self._highs.getSolution(), self._highs.getInfo()
        work = max(int(info.simplex_iteration_count), 0) + max(int(info.ipm_iteration_count), 0)
        if status is not Status.OPTIMAL or not solution.dual_valid:
            none = np.zeros(0)
            failed = Status.FAILED if status is Status.OPTIMAL else status
            return MasterSolution(failed, solver, work, none, none, Duals(none, none, none))
        value = np.array(solution.col_value)
        k, r = market.classes, market.rows
        dual = np.maximum(np.array(solution.row_dual)[: self._rows] * -scale, 0.0)
        duals = Duals(
            prices=dual[k : k + r] / self._capacity,
            multiplier=dual[k + r :] / (self._best * market.size),
            time=dual[:k] / market.size,
        )
        return MasterSolution(status, solver, work, value[:columns], tied @ value[columns:-1], duals)

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

    def _beside(self, sides: Spelled) -> sparse.csc_array:
        market, k, q = self._market, self._market.classes, len(sides.member)
        load = market.size[sides.member] * sides.count / 2 / self._capacity[sides.pool]
        utility = -sides.keeps * self._worth[sides.column] / self._best[sides.member]
        values = np.concatenate((np.ones(q), load, utility))
        rows = np.concatenate((sides.member, k + sides.pool, k + market.rows + sides.member))
        return sparse.csc_array((values, (rows, np.tile(np.arange(q), 3))), shape=(self._rows, q))

    def _meetings(self, sides: Spelled) -> sparse.csc_array:
        """One row for each meeting of two segments, an empty one for a segment with itself."""
        column = np.flatnonzero(sides.sign)
        values = (sides.sign * self._market.size[sides.member])[column]
        return sparse.csc_array((values, (sides.meeting[column], column)), shape=(sides.meetings, len(sides.member)))

    def _halves(self, sides: Spelled, greedy: IntArray) -> sparse.csc_array:
        """Twice its own time less everybody's, for each side named; they are of one job each."""
        row, column = np.nonzero(sides.meeting[greedy][:, None] == sides.meeting[None, :])
        values = -self._market.size[sides.member[column]]
        shape = (len(greedy), len(sides.member))
        twice = sparse.csc_array((np.full(len(greedy), 2.0), (np.arange(len(greedy)), greedy)), shape=shape)
        return twice + sparse.csc_array((values, (row, column)), shape=shape)

    def _theta(self, ask: Ask, more: int) -> sparse.csc_array:
        rising = np.flatnonzero(ask.rise)
        rows = self._market.classes + self._market.rows + rising
        values = (ask.rise / self._best)[rising]
        place = (rows, np.zeros(len(rising), dtype=np.int64))
        return sparse.csc_array((values, place), shape=(self._rows + more, 1))

    @property
    def _rows(self) -> int:
        return 2 * self._market.classes + self._market.rows

    def _model(self, matrix: sparse.csc_array, cost: FloatArray, ask: Ask, equal: int) -> highspy.HighsLp:
        lp = highspy.HighsLp()
        lp.num_row_, lp.num_col_ = matrix.shape
        lp.col_cost_ = -cost
        lp.col_lower_ = np.zeros(lp.num_col_)
        lp.col_upper_ = np.full(lp.num_col_, highspy.kHighsInf)
        if not ask.gain:
            lp.col_upper_ = np.append(np.full(lp.num_col_ - 1, highspy.kHighsInf), 0.0)
        market, more = self._market, lp.num_row_ - self._rows
        lower = np.full(lp.num_row_, -highspy.kHighsInf)
        lower[self._rows : self._rows + equal] = 0.0
        lp.row_lower_ = lower
        lp.row_upper_ = np.concatenate((np.ones(market.classes + market.rows), -ask.floor / self._best, np.zeros(more)))
        lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        lp.a_matrix_.start_ = matrix.indptr.astype(np.int32)
        lp.a_matrix_.index_ = matrix.indices.astype(np.int32)
        lp.a_matrix_.value_ = matrix.data
        return lp

    def _options(self, columns: int, vertex: bool) -> str:
        small = vertex and columns <= _SIMPLEX_COLUMNS
        options = {
            "output_flag": False,
            "solver": "simplex" if small else "ipm",
            "run_crossover": "on" if vertex else "off",
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


def _ties(sides: Spelled, size: FloatArray) -> tuple[sparse.csr_array, IntArray]:
    """Columns of the program, and the meetings that need a row.

    A meeting with one column on either side is one column, of as many members of both. One that nobody is there for on
    one side has none. The matrix tells sides of columns (q, columns); the rows are numbers of meetings (ascending).
    """
    ahead = np.bincount(sides.meeting[sides.sign > 0], minlength=sides.meetings)
    behind = np.bincount(sides.meeting[sides.sign < 0], minlength=sides.meetings)
    one = (ahead == 1) & (behind == 1)
    there = (sides.sign == 0) | ((ahead > 0) & (behind > 0))[sides.meeting]
    first = there & ~(one[sides.meeting] & (sides.sign < 0))
    number = np.cumsum(first) - 1
    columns = int(first.sum())
    of_meeting = np.zeros(sides.meetings, dtype=np.int64)
    of_meeting[sides.meeting[first]] = number[first]
    tied = np.where(one, 1.0, 0.0)[sides.meeting]
    column = np.where(tied > 0, of_meeting[sides.meeting], number)
    weight = np.where(tied > 0, 1 / size[sides.member], 1.0)
    row = np.flatnonzero(there)
    matrix = sparse.csr_array((weight[row], (row, column[row])), shape=(len(there), columns))
    return matrix, np.flatnonzero((ahead > 0) & (behind > 0) & ~one)
