"""Exact solutions of the three objectives, for class problems that are not large: HiGHS, else cvxpy with Clarabel.

    MaxMin        largest theta   s.t.  worth.x >= floor + rise theta      again with other targets, until it is reached
    MaxSum        largest size value.x  s.t.  worth.x >= floor
    NashWelfare   largest size weight log(worth.x)

with  sum_C x[C] <= 1  for each class and  sum_C size use[C, r] x[C] <= capacity[r]  for each row. The linear ones are
solved by HiGHS straight from the matrices (`optimizer.lp.highs`); Clarabel solves NashWelfare, and whatever HiGHS does
not, from the cvxpy program stated here. Importing this module imports cvxpy (seconds): only code that is about to solve
does so.
"""

import warnings
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
from scipy import sparse

from optimizer.classes.class_problem import (
    ClassProblem,
    ClassSolution,
    MaxMin,
    MaxSum,
    NashWelfare,
    Objective,
    make_feasible,
    objective_value,
)
from optimizer.classes.segments import max_by, sum_by
from optimizer.decision import Status
from optimizer.lp.dual_newton.dual_bound import dual_bound
from optimizer.lp.dual_newton.dual_task import prices_per_level
from optimizer.lp.highs import NO_VALUES, LinearProgram, LinearSolution
from optimizer.problem import FloatArray, IntArray

#: HiGHS's smallest tolerance: a full job must not look short of its best by rounding.
_TOLERANCE = 1e-10
#: Clarabel's tolerance, tighter than its default: shares are accurate to about the root of the gap.
_CLARABEL_TOLERANCES = {"tol_gap_abs": 1e-12, "tol_gap_rel": 1e-12, "tol_feas": 1e-10}
#: Limits on the work of one program, in iterations: no clock is read here.
_SIMPLEX_ITERATIONS = 200_000
_IPM_ITERATIONS = 500


@dataclass(frozen=True, slots=True)
class ProgramOutcome:
    """How one program ended. Values sit in the program's variables only where `solved`."""

    status: Status
    solver: str
    #: Iterations of the solver.
    work: int = 0

    @property
    def solved(self) -> bool:
        """Whether the variables hold an optimum of the program as the solver understood it."""
        return self.status is Status.OPTIMAL


def solve_linear(program: Any) -> ProgramOutcome:
    """Solves a linear program of cvxpy by HiGHS (a vertex, exact duals); where that fails, by Clarabel."""
    outcome = solve_by_highs(program)
    if outcome.status in (Status.OPTIMAL, Status.INFEASIBLE):
        return outcome
    fallback = solve_by_clarabel(program)
    return fallback if fallback.solved else outcome


def solve_by_clarabel(program: Any) -> ProgramOutcome:
    """Solves a program by an interior point method, for logarithms and for the middle of the optimal face."""
    options = {"solver": cp.CLARABEL, "max_iter": _IPM_ITERATIONS, **_CLARABEL_TOLERANCES}
    return _solve_with(program, "clarabel", options)


def solve_by_highs(program: Any, tolerance: float = _TOLERANCE) -> ProgramOutcome:
    """Solves a linear program by the simplex method."""
    options = {
        "solver": "simplex",
        "simplex_iteration_limit": _SIMPLEX_ITERATIONS,
        "primal_feasibility_tolerance": tolerance,
        "dual_feasibility_tolerance": tolerance,
        "threads": 1,
    }
    return _solve_with(program, "highs", {"solver": cp.HIGHS, "highs_options": options})


def _solve_with(program: Any, name: str, options: dict[str, Any]) -> ProgramOutcome:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "may be inaccurate": the certificate measures that
            program.solve(**options)
    except cp.SolverError:
        return ProgramOutcome(Status.FAILED, name)
    stats = program.solver_stats
    return ProgramOutcome(_STATUS.get(program.status, Status.FAILED), name, int(stats.num_iters or 0) if stats else 0)


_STATUS = {
    cp.OPTIMAL: Status.OPTIMAL,
    cp.OPTIMAL_INACCURATE: Status.OPTIMAL,
    cp.INFEASIBLE: Status.INFEASIBLE,
    cp.INFEASIBLE_INACCURATE: Status.INFEASIBLE,
    cp.USER_LIMIT: Status.WORK_LIMIT,
}

#: A level within this part of the proved one counts as reached.
_REACHED = 1e-8
#: Linear programs per level: one where targets are linear, two to six elsewhere.
_MAX_PASSES = 40
#: A price of the interior point method that makes up less than this part of all that is paid counts as 0.
_ROUNDING = 1e-7
#: Attainable floors are lowered by this part.
_SLACK = 1e-9


def solve_exactly(problem: ClassProblem, objective: Objective, near: FloatArray | None = None) -> ClassSolution:
    """Returns the exact solution, up to the solver's rounding. Where there is no optimum the status says so; it never
    raises.

    Args:
        problem: at least one class and one column.
        objective: what is maximised.
        near: prices that are known to be near those of the optimum (r,): a level is then sought from what they prove.
    """
    if isinstance(objective, MaxMin):
        return _solve_level(problem, objective, near)
    if isinstance(objective, MaxSum):
        return _solve_total(problem, objective)
    return _solve_nash(problem, objective)


def solve_to_centre(problem: ClassProblem, objective: MaxMin) -> ClassSolution:
    """Returns a level whose targets are in proportion to z, by one program and an interior point method.

    Such a method ends near the centre of all optimal shares, where the simplex method ends at a corner.
    """
    program, targets = ClassProgram(problem, objective.worth), objective.targets
    floor = targets.at(0.0)[0]
    ended = solve_by_clarabel(program.level(targets.at(targets.highest)[0] - floor, floor))
    if not ended.solved:
        return _no_solution(problem, ended.status, "cvxpy/clarabel", ended.work)
    x, prices = make_feasible(problem, program.x.value), program.prices()
    bound = min(dual_bound(problem, objective, prices), targets.highest)
    level = min(objective_value(problem, objective, x), bound)
    prices = prices_per_level(problem, objective, prices, bound)
    return ClassSolution(Status.OPTIMAL, x, prices, level, bound, "cvxpy/clarabel", ended.work)


def attainable_floors(problem: ClassProblem, worth: FloatArray, floor: FloatArray) -> FloatArray:
    """Returns floors that can be held at once (k,), where the given ones cannot: those with the largest sum of kept
    parts.

    An optimum at a corner relaxes few classes and leaves the others whole. Where no solver answers, all floors are 0.
    """
    program = ClassProgram(problem, worth)
    asks = np.flatnonzero(floor)
    if not solve_linear(program.kept(asks, floor[asks])).solved:
        return np.zeros(len(floor))
    x = make_feasible(problem, program.x.value)
    return np.minimum(floor, sum_by(problem.owner, worth * x, problem.classes)) * (1 - _SLACK)


def class_sum_matrix(problem: ClassProblem, values: FloatArray) -> Any:
    """Returns the matrix (k, C) that sums columns by class, each times its value (C,)."""
    place = (problem.owner, np.arange(problem.columns))
    return sparse.csr_array((values, place), shape=(problem.classes, problem.columns))


def row_use_matrix(problem: ClassProblem) -> Any:
    """Returns the matrix from shares to the use of each row by all members (r, C)."""
    column = np.repeat(np.arange(problem.columns), np.diff(problem.use_first))
    taken = problem.use_count * problem.size[problem.owner[column]]
    return sparse.csr_array((taken, (problem.use_row, column)), shape=(problem.rows, problem.columns))


class ClassProgram:
    """The objectives in cvxpy. Rows of pools are divided by their capacity, utilities by the best of the class."""

    def __init__(self, problem: ClassProblem, worth: FloatArray) -> None:
        owner = problem.owner
        best = max_by(owner, worth, problem.classes)
        self._size, self._best = problem.size, np.where(best > 0, best, 1.0)
        self._members = problem.size[owner]
        self._capacity = np.where(problem.capacity > 0, problem.capacity, 1.0)
        self.x = cp.Variable(problem.columns, nonneg=True)
        self.theta = cp.Variable(nonneg=True)
        self.utility = class_sum_matrix(problem, worth / self._best[owner]) @ self.x  # as part of the best of the class
        self.pools = sparse.diags_array(1 / self._capacity) @ row_use_matrix(problem) @ self.x <= 1
        self.rows = [class_sum_matrix(problem, np.ones(problem.columns)) @ self.x <= 1, self.pools]

    def level(self, rise: FloatArray, floor: FloatArray) -> Any:
        """Returns the program that raises all targets together."""
        enough = self.utility >= floor / self._best + cp.multiply(rise / self._best, self.theta)
        return cp.Problem(cp.Maximize(self.theta), [*self.rows, enough])

    def total(self, value: FloatArray, floor: FloatArray) -> Any:
        """Returns the program that maximises the sum of values above the floors."""
        enough = self.utility >= floor / self._best
        return cp.Problem(cp.Maximize((self._members * value) @ self.x), [*self.rows, enough])

    def kept(self, asks: IntArray, floor: FloatArray) -> Any:
        """Returns the program that maximises the sum over the classes with a floor of the part of it that they have."""
        part = cp.multiply(self._best[asks] / floor, self.utility[asks])
        return cp.Problem(cp.Maximize(self._size[asks] @ cp.minimum(part, 1)), self.rows)

    def nash(self, weight: FloatArray) -> Any:
        """Returns the program that maximises the sum of logarithms (less the constant that the scaling by the best
        adds).
        """
        rising = np.flatnonzero(weight)
        size = self._size[rising] * weight[rising]
        return cp.Problem(cp.Maximize(size @ cp.log(self.utility[rising])), self.rows)

    def prices(self) -> FloatArray:
        """Returns the dual values of the rows in the objective's unit, per unit of capacity (r,)."""
        return np.asarray(np.maximum(np.nan_to_num(self.pools.dual_value), 0.0) / self._capacity)


class _LinearSolver:
    """Solves by HiGHS; where that fails, solves the same program by Clarabel."""

    def __init__(self, problem: ClassProblem, worth: FloatArray) -> None:
        self._problem, self._worth = problem, worth
        self._highs = LinearProgram(problem, worth)
        #: Which solver answered last: HiGHS from matrices, or Clarabel from a program stated in cvxpy.
        self.path, self.work = "highs", 0

    def level(self, rise: FloatArray, floor: FloatArray) -> LinearSolution:
        asked = np.zeros(self._problem.columns), 1.0, rise, floor
        return self._solved(asked, lambda program: program.level(rise, floor))

    def total(self, value: FloatArray, floor: FloatArray) -> LinearSolution:
        members = self._problem.size[self._problem.owner]
        asked = members * value, 0.0, np.zeros(self._problem.classes), floor
        return self._solved(asked, lambda program: program.total(value, floor))

    def _solved(self, asked: tuple[FloatArray, float, FloatArray, FloatArray], stated: Any) -> LinearSolution:
        found = self._highs.solve(*asked)
        self.work += found.work
        if found.status in (Status.OPTIMAL, Status.INFEASIBLE):
            return found
        program = ClassProgram(self._problem, self._worth)
        ended = solve_by_clarabel(stated(program))
        self.path, self.work = "cvxpy/clarabel", self.work + ended.work
        if not ended.solved:
            return LinearSolution(ended.status, NO_VALUES, 0.0, NO_VALUES, ended.work)
        theta = 0.0 if program.theta.value is None else float(program.theta.value)
        return LinearSolution(ended.status, program.x.value, theta, program.prices(), ended.work)


@dataclass(slots=True)
class _LevelBound:
    """The lowest level that prices proved to be out of reach, and these prices."""

    level: float
    prices: FloatArray


def _solve_level(problem: ClassProblem, objective: MaxMin, near: FloatArray | None) -> ClassSolution:
    """Lowers the level from above: the prices of each program prove a level, until shares reach it."""
    targets = objective.targets
    floor = targets.at(0.0)[0]
    guesses = [_typical_prices(problem, objective)] if near is None else [near, _typical_prices(problem, objective)]
    proof = _first_proof(problem, objective, guesses)
    program, z = _LinearSolver(problem, objective.worth), proof.level
    for _ in range(_MAX_PASSES):
        if z == -np.inf:  # prices prove that the floors alone, kept from earlier levels, cost too much
            return _no_solution(problem, Status.INFEASIBLE, program.path, program.work)
        found = program.level(targets.at(z)[0] - floor, floor)
        if found.status is not Status.OPTIMAL:
            return _no_solution(problem, found.status, program.path, program.work)
        bound = dual_bound(problem, objective, found.prices)
        if bound <= z * (1 + _REACHED) and bound < targets.highest:
            proof = _LevelBound(bound, found.prices)  # The solver's prices replace the guess.
        x = make_feasible(problem, found.x)
        level = objective_value(problem, objective, x)
        if level >= z * (1 - _REACHED) or bound >= z * (1 - 1e-14):
            break
        z = bound
    bound = min(proof.level, targets.highest)
    prices = prices_per_level(problem, objective, proof.prices, proof.level)
    return ClassSolution(Status.OPTIMAL, x, prices, min(level, bound), bound, program.path, program.work)


def _first_proof(problem: ClassProblem, objective: MaxMin, guesses: list[FloatArray]) -> _LevelBound:
    """Returns the lowest level that guessed prices prove; without such a proof, the highest level with prices of 0."""
    proof = _LevelBound(objective.targets.highest, np.zeros(problem.rows))
    for prices in guesses:
        bound = dual_bound(problem, objective, prices)
        if bound < proof.level:
            proof = _LevelBound(bound, prices)
    return proof


def _typical_prices(problem: ClassProblem, objective: MaxMin) -> FloatArray:
    """Returns prices at which an accelerator costs what it gives the mean member that can use it (r,)."""
    members = problem.size[problem.owner] * (objective.worth > 0)
    per_unit = members * objective.worth / np.maximum(problem.cost(np.ones(problem.rows)), 1e-300)
    uses = np.diff(problem.use_first)
    users = np.bincount(problem.use_row, weights=np.repeat(members, uses), minlength=problem.rows)
    total = np.bincount(problem.use_row, weights=np.repeat(per_unit, uses), minlength=problem.rows)
    return np.asarray(np.divide(total, users, out=np.zeros(problem.rows), where=users > 0))


def _solve_total(problem: ClassProblem, objective: MaxSum) -> ClassSolution:
    program = _LinearSolver(problem, objective.worth)
    found = program.total(objective.value, objective.floor)
    path = program.path
    if found.status is not Status.OPTIMAL:
        return _no_solution(problem, found.status, path, program.work)
    x = make_feasible(problem, found.x)
    bound = dual_bound(problem, objective, found.prices)
    return ClassSolution(
        Status.OPTIMAL, x, found.prices, objective_value(problem, objective, x), bound, path, program.work
    )


def _solve_nash(problem: ClassProblem, objective: NashWelfare) -> ClassSolution:
    program = ClassProgram(problem, objective.worth)
    ended = solve_by_clarabel(program.nash(objective.weight))
    if not ended.solved:
        return _no_solution(problem, ended.status, "cvxpy/clarabel", ended.work)
    x, prices = make_feasible(problem, program.x.value), program.prices()
    # All that is paid is at most the sum of the weights: a price that is a tiny part of it is the solver's rounding.
    prices = np.where(prices * problem.capacity > _ROUNDING * float(problem.size @ objective.weight), prices, 0.0)
    bound = dual_bound(problem, objective, prices)
    return ClassSolution(
        Status.OPTIMAL, x, prices, objective_value(problem, objective, x), bound, "cvxpy/clarabel", ended.work
    )


def _no_solution(problem: ClassProblem, status: Status, path: str, work: int) -> ClassSolution:
    """Returns shares of 0, with a status that says why, and no bound."""
    return ClassSolution(status, np.zeros(problem.columns), np.zeros(problem.rows), 0.0, np.inf, path, work)
