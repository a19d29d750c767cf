"""The master program of column generation: the linear program over some of the sides of pairs.

    maximise  value.x + side values.v + gain theta
    s.t.      time of one member, pool rows, and for each class   utility of one member >= floor + rise theta
              both sides of a meeting, all members together, run for the same time
              of a segment that meets itself no job runs for more than all the others together

with x the share of time of one member in each column alone, and v that beside a job of a segment. These rows suffice
for pairs: two lines of equal length can be laid side by side, and a line of which no job holds more than half can be
folded (`colocated_stages`), so such v always correspond to pairs of different jobs. The last row exists only for the
jobs named (`greedy`): it is rarely violated. Rows are scaled so that right-hand sides are about 1. Limits count
iterations, never seconds.

HiGHS solves small programs, and sums that must end in a vertex. Large ones go to Clarabel's interior point: such
programs are solved again and again while columns join and leave, and only their dual values count. A few digits of
these suffice, because the bound that they prove is computed anew. A level ends near a vertex by Clarabel, too
(`interior_solver`), and where that finds none by HiGHS.
"""

from dataclasses import dataclass, replace

import highspy
import numpy as np
from scipy import sparse

from optimizer.classes.class_problem import ClassProblem, MaxMin, MaxSum
from optimizer.classes.segments import max_by
from optimizer.decision import Status
from optimizer.lp.column_generation.colocation_blocks import SideDetails
from optimizer.lp.column_generation.interior_solver import BoundedProgram, solve_by_interior_point, solve_near_vertex
from optimizer.lp.column_generation.pair_pricing import PairDuals
from optimizer.lp.engine_choice import MASTER_SIMPLEX_COLUMNS
from optimizer.lp.highs import STATUS_OF_HIGHS, highs_model, highs_solver, set_options
from optimizer.problem import FloatArray, IntArray

_SIMPLEX_TOLERANCE = 1e-10
_IPM_TOLERANCE = 1e-7
_SIMPLEX_ITERATIONS = 200_000
_IPM_ITERATIONS = 300


@dataclass(frozen=True, slots=True, eq=False)
class MasterInput:
    """What a program maximises: gain theta, plus the objective's values where it is a `MaxSum`."""

    gain: float
    rise: FloatArray
    floor: FloatArray
    #: Tolerance of the answer, where a point in the middle of the optima suffices.
    tolerance: float = 1e-5


@dataclass(frozen=True, slots=True, eq=False)
class MasterSolution:
    """How a program ended. Fields other than `status`, `solver` and `work` are valid only where it is `OPTIMAL`."""

    status: Status
    solver: str
    work: int
    x: FloatArray
    #: Share of time of one member in each side (q,).
    beside: FloatArray
    duals: PairDuals


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """How a solver ended: columns, and what one more unit of each row's right-hand side saves."""

    status: Status
    solver: str
    work: int
    x: FloatArray
    saves: FloatArray


class MasterProgram:
    """The programs of one problem and one objective; sides and targets vary from call to call."""

    def __init__(self, problem: ClassProblem, objective: MaxMin | MaxSum) -> None:
        self._problem, self._worth = problem, objective.worth
        self._value = objective.value if isinstance(objective, MaxSum) else np.zeros(problem.columns)
        best = max_by(problem.owner, objective.worth, problem.classes)
        self._best = np.where(best > 0, best, 1.0)
        self._capacity = np.where(problem.capacity > 0, problem.capacity, 1.0)
        self._highs = highs_solver(
            simplex_iteration_limit=_SIMPLEX_ITERATIONS,
            ipm_iteration_limit=_IPM_ITERATIONS,
            ipm_optimality_tolerance=_IPM_TOLERANCE,
        )

    def solve(
        self, sides: SideDetails, greedy: IntArray, ask: MasterInput, *, vertex: bool, exact: bool = False
    ) -> MasterSolution:
        """Solves the program over these sides.

        Args:
            sides: q of them.
            greedy: sides of a segment beside itself that are limited to half of its time (ascending).
            ask: the objective.
            vertex: if False, a point near the middle of the optima suffices, which is faster where there are many
                columns.
            exact: solve with HiGHS, whatever the size.
        """
        problem, columns = self._problem, self._problem.columns
        tied, open_rows = _ties(sides, problem.size)
        halves, totals = self._halves(sides, greedy)
        rows = np.concatenate((np.arange(self._rows), self._rows + open_rows))
        rows = np.concatenate((rows, self._rows + sides.meetings + np.arange(halves.shape[0])))
        beside = sparse.vstack((self._beside(sides), self._meetings(sides), halves), format="csr")[rows] @ tied
        more = len(rows) - self._rows
        alone = sparse.vstack((self._alone(), sparse.csr_array((more, columns))))
        of_all = sparse.vstack((sparse.csr_array((len(rows) - totals.shape[0], totals.shape[1])), totals))
        matrix = sparse.hstack((alone, beside, of_all, self._theta(ask, more)), format="csc")
        members = problem.size[sides.member]
        gains = (members * sides.keeps * self._value[sides.column]) @ tied
        cost = np.concatenate((self._values(), gains, np.zeros(totals.shape[1]), [ask.gain]))
        scale = float(np.abs(cost).max(initial=0.0)) or 1.0
        equal = np.zeros(len(rows), dtype=bool)
        equal[self._rows : self._rows + len(open_rows) + totals.shape[1]] = True
        program = BoundedProgram(matrix, -cost / scale, self._right(ask, more), equal)
        found = None
        if matrix.shape[1] > MASTER_SIMPLEX_COLUMNS and not exact and (ask.gain or not vertex):
            found = self._by_clarabel(program, ask, vertex=vertex)
        found = found or self._by_highs(program, ask, vertex=vertex)
        if found.status is not Status.OPTIMAL:
            none = np.zeros(0)
            return MasterSolution(found.status, found.solver, found.work, none, none, PairDuals(none, none, none))
        dual = np.maximum(found.saves[: self._rows] * scale, 0.0)
        k, r = problem.classes, problem.rows
        duals = PairDuals(
            prices=dual[k : k + r] / self._capacity,
            multiplier=dual[k + r :] / (self._best * problem.size),
            time=dual[:k] / problem.size,
        )
        x, of_sides = found.x[:columns], tied @ found.x[columns : columns + tied.shape[1]]
        return MasterSolution(found.status, found.solver, found.work, x, of_sides, duals)

    def _by_clarabel(self, program: BoundedProgram, ask: MasterInput, *, vertex: bool) -> "_Found | None":
        """Returns the solution by Clarabel, None without an optimum. The price of a level is divided among the
        classes: counted in such parts, dual values are about 1, and the interior point method takes half the
        iterations.
        """

        unit = float(self._problem.classes) if ask.gain else 1.0
        program = replace(program, cost=program.cost * unit)
        if vertex:
            found = solve_near_vertex(program, self._problem.classes)
        else:
            found = solve_by_interior_point(program, ask.tolerance)
        return None if found is None else _Found(Status.OPTIMAL, "clarabel", found.work, found.x, found.saves / unit)

    def _by_highs(self, program: BoundedProgram, ask: MasterInput, *, vertex: bool) -> "_Found":
        solver = self._options(program.matrix.shape[1], vertex)
        self._highs.passModel(_highs_model(program, ask))
        self._highs.run()
        if solver == "ipm" and self._highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            solver = "simplex"
            set_options(self._highs, solver=solver)
            self._highs.run()
        status = STATUS_OF_HIGHS.get(self._highs.getModelStatus(), Status.FAILED)
        solution, info = self._highs.getSolution(), self._highs.getInfo()
        work = max(int(info.simplex_iteration_count), 0) + max(int(info.ipm_iteration_count), 0)
        if status is Status.OPTIMAL and not solution.dual_valid:
            status = Status.FAILED
        return _Found(status, solver, work, np.array(solution.col_value), -np.array(solution.row_dual))

    def _right(self, ask: MasterInput, more: int) -> FloatArray:
        problem = self._problem
        return np.concatenate((np.ones(problem.classes + problem.rows), -ask.floor / self._best, np.zeros(more)))

    def _values(self) -> FloatArray:
        """Returns the value of each column for all members of its class (C,)."""
        values: FloatArray = self._problem.size[self._problem.owner] * self._value
        return values

    def _alone(self) -> sparse.csc_array:
        problem, k = self._problem, self._problem.classes
        owner, uses, column = problem.owner, np.diff(problem.use_first), np.arange(problem.columns)
        load = problem.use_count * np.repeat(problem.size[owner], uses) / self._capacity[problem.use_row]
        values = np.concatenate((np.ones(problem.columns), load, -self._worth / self._best[owner]))
        rows = np.concatenate((owner, k + problem.use_row, k + problem.rows + owner))
        columns = np.concatenate((column, np.repeat(column, uses), column))
        return sparse.csc_array((values, (rows, columns)), shape=(self._rows, problem.columns))

    def _beside(self, sides: SideDetails) -> sparse.csc_array:
        problem, k, q = self._problem, self._problem.classes, len(sides.member)
        load = problem.size[sides.member] * sides.count / 2 / self._capacity[sides.pool]
        utility = -sides.keeps * self._worth[sides.column] / self._best[sides.member]
        values = np.concatenate((np.ones(q), load, utility))
        rows = np.concatenate((sides.member, k + sides.pool, k + problem.rows + sides.member))
        return sparse.csc_array((values, (rows, np.tile(np.arange(q), 3))), shape=(self._rows, q))

    def _meetings(self, sides: SideDetails) -> sparse.csc_array:
        """Returns one row for each meeting of two segments; the row of a segment with itself is empty."""
        column = np.flatnonzero(sides.sign)
        values = (sides.sign * self._problem.size[sides.member])[column]
        return sparse.csc_array((values, (sides.meeting[column], column)), shape=(sides.meetings, len(sides.member)))

    def _halves(self, sides: SideDetails, greedy: IntArray) -> tuple[sparse.csr_array, sparse.csr_array]:
        """Returns the rows "twice its own time less the time of all jobs" for each greedy side (of one job each):
        their coefficients of sides, and of totals.

        The time of all jobs of a meeting is a column of its own, defined by an earlier row; else every row would hold
        a whole meeting.
        """
        meeting, which = np.unique(sides.meeting[greedy], return_inverse=True)
        place = np.searchsorted(meeting, sides.meeting)
        there = np.zeros(len(sides.member), dtype=bool)
        if len(meeting):
            there = meeting[np.minimum(place, len(meeting) - 1)] == sides.meeting
        column, named = np.flatnonzero(there), len(meeting) + np.arange(len(greedy))
        values = np.concatenate((self._problem.size[sides.member[column]], np.full(len(greedy), 2.0)))
        position = (np.concatenate((place[column], named)), np.concatenate((column, greedy)))
        shape = (len(meeting) + len(greedy), len(sides.member))
        of_sides = sparse.csr_array((values, position), shape=shape)
        less = (np.concatenate((np.arange(len(meeting)), named)), np.concatenate((np.arange(len(meeting)), which)))
        return of_sides, sparse.csr_array((np.full(len(less[0]), -1.0), less), shape=(shape[0], len(meeting)))

    def _theta(self, ask: MasterInput, more: int) -> sparse.csc_array:
        rising = np.flatnonzero(ask.rise)
        rows = self._problem.classes + self._problem.rows + rising
        values = (ask.rise / self._best)[rising]
        place = (rows, np.zeros(len(rising), dtype=np.int64))
        return sparse.csc_array((values, place), shape=(self._rows + more, 1))

    @property
    def _rows(self) -> int:
        return 2 * self._problem.classes + self._problem.rows

    def _options(self, columns: int, vertex: bool) -> str:
        small = vertex and columns <= MASTER_SIMPLEX_COLUMNS
        tolerance = _SIMPLEX_TOLERANCE if small else _IPM_TOLERANCE
        set_options(
            self._highs,
            solver="simplex" if small else "ipm",
            run_crossover="on" if vertex else "off",
            primal_feasibility_tolerance=tolerance,
            dual_feasibility_tolerance=tolerance,
        )
        return "simplex" if small else "ipm"


def _highs_model(program: BoundedProgram, ask: MasterInput) -> highspy.HighsLp:
    """Returns the program as a HiGHS model."""
    upper = np.full(len(program.cost), highspy.kHighsInf)
    if not ask.gain:
        upper[-1] = 0.0
    row_lower = np.where(program.equal, 0.0, -highspy.kHighsInf)
    return highs_model(program.cost, program.matrix, program.right, row_lower=row_lower, upper=upper)


def _ties(sides: SideDetails, size: FloatArray) -> tuple[sparse.csr_array, IntArray]:
    """Returns the columns of the program, and the meetings that need a row.

    A meeting with one column on either side becomes one column, of as many members of both. A meeting without any
    column on one side has none. The matrix maps columns to sides (q, columns); the rows are numbers of meetings
    (ascending).
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
