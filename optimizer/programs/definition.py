"""The three objectives over a market as cvxpy programs, and their solution: exact, for markets that are not large.

    Level     largest theta   s.t.  worth.x >= floor + rise theta      again with other targets, until it is reached
    Total     largest size value.x  s.t.  worth.x >= floor
    Nash      largest size weight log(worth.x)

with  sum_C x[C] <= 1  for each class and  sum_C size use[C, r] x[C] <= capacity[r]  for each row. The linear ones are
solved by HiGHS straight from the matrices (`optimizer.programs.linear`); what HiGHS does not solve, and Nash, by
Clarabel from the program as it stands here. Decides how an objective is solved exactly, not which objective.
"""

from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
from scipy import sparse

from optimizer.arrays.owners import best_by, sum_by
from optimizer.decision import Status
from optimizer.market.feasible import make_feasible
from optimizer.market.market import Market
from optimizer.market.objective import Level, Nash, Objective, Solution, Total
from optimizer.market.reached import reached
from optimizer.prices.bound import bound_at, in_levels
from optimizer.problem import FloatArray, IntArray
from optimizer.programs.linear import NOTHING, LinearProgram, LinearSolution
from optimizer.programs.solver import solve_by_clarabel, solve_program

#: A level within this part of the proved one is reached.
_REACHED = 1e-8
#: Linear programs per level: one where targets are linear, two to six elsewhere.
_MAX_PASSES = 40
#: Of all that is paid, the part below which an interior point method's price is none.
_ROUNDING = 1e-7
#: Floors found to be attainable are held with this slack.
_SLACK = 1e-9


def solve_definition(market: Market, objective: Objective, near: FloatArray | None = None) -> Solution:
    """Solve exactly, up to the solver's rounding. Never raises where there is no optimum: the status says so.

    Args:
        market: at least one class and one column.
        objective: what is sought.
        near: prices that are known to be near those of the optimum (r,): a level is then sought from what they prove.
    """
    if isinstance(objective, Level):
        return _solve_level(market, objective, near)
    if isinstance(objective, Total):
        return _solve_total(market, objective)
    return _solve_nash(market, objective)


def solve_centrally(market: Market, objective: Level) -> Solution:
    """A level whose targets are in proportion to z, by one program and an interior point method.

    Such a method ends near the centre of all optimal shares, where the simplex method ends at a corner.
    """
    program, targets = MarketProgram(market, objective.worth), objective.targets
    floor = targets.at(0.0)[0]
    ended = solve_by_clarabel(program.level(targets.at(targets.highest)[0] - floor, floor))
    if not ended.solved:
        return _nothing(market, ended.status, "cvxpy/clarabel", ended.work)
    x, prices = make_feasible(market, program.x.value), program.prices()
    bound = min(bound_at(market, objective, prices), targets.highest)
    level = min(reached(market, objective, x), bound)
    prices = in_levels(market, objective, prices, bound)
    return Solution(Status.OPTIMAL, x, prices, level, bound, "cvxpy/clarabel", ended.work)


def attainable(market: Market, worth: FloatArray, floor: FloatArray) -> FloatArray:
    """Floors that can be held at once, where the given ones cannot: the largest sum of kept parts of them (k,).

    An optimum at a corner relaxes few classes and leaves the others whole. Where no solver answers, nothing is kept.
    """
    program = MarketProgram(market, worth)
    asks = np.flatnonzero(floor)
    if not solve_program(program.kept(asks, floor[asks]), rows=0).solved:
        return np.zeros(len(floor))
    x = make_feasible(market, program.x.value)
    return np.minimum(floor, sum_by(market.owner(), worth * x, market.classes)) * (1 - _SLACK)


def by_class(market: Market, values: FloatArray) -> Any:
    """The matrix that sums what the columns of each class are worth to one member: values (C,) -> (k, C)."""
    place = (market.owner(), np.arange(market.columns))
    return sparse.csr_array((values, place), shape=(market.classes, market.columns))


def by_row(market: Market) -> Any:
    """The matrix from shares to how much all members take of each row (r, C)."""
    column = np.repeat(np.arange(market.columns), np.diff(market.use_first))
    taken = market.use_count * market.size[market.owner()[column]]
    return sparse.csr_array((taken, (market.use_row, column)), shape=(market.rows, market.columns))


class MarketProgram:
    """The objectives in cvxpy. Rows of pools are divided by their capacity, utilities by the best of the class."""

    def __init__(self, market: Market, worth: FloatArray) -> None:
        owner = market.owner()
        best = best_by(owner, worth, market.classes)
        self._size, self._best = market.size, np.where(best > 0, best, 1.0)
        self._members = market.size[owner]
        self._capacity = np.where(market.capacity > 0, market.capacity, 1.0)
        self.x = cp.Variable(market.columns, nonneg=True)
        self.theta = cp.Variable(nonneg=True)
        self.utility = by_class(market, worth / self._best[owner]) @ self.x  # as part of the best of the class
        self.pools = sparse.diags_array(1 / self._capacity) @ by_row(market) @ self.x <= 1
        self.rows = [by_class(market, np.ones(market.columns)) @ self.x <= 1, self.pools]

    def level(self, rise: FloatArray, floor: FloatArray) -> Any:
        """All targets raised together."""
        enough = self.utility >= floor / self._best + cp.multiply(rise / self._best, self.theta)
        return cp.Problem(cp.Maximize(self.theta), [*self.rows, enough])

    def total(self, value: FloatArray, floor: FloatArray) -> Any:
        """The sum of values, floors kept."""
        enough = self.utility >= floor / self._best
        return cp.Problem(cp.Maximize((self._members * value) @ self.x), [*self.rows, enough])

    def kept(self, asks: IntArray, floor: FloatArray) -> Any:
        """How much of their floors the classes that ask for any can have in total, each as a part of its own."""
        part = cp.multiply(self._best[asks] / floor, self.utility[asks])
        return cp.Problem(cp.Maximize(self._size[asks] @ cp.minimum(part, 1)), self.rows)

    def nash(self, weight: FloatArray) -> Any:
        """The sum of logarithms (but for the constant that the division by the best makes)."""
        rising = np.flatnonzero(weight)
        size = self._size[rising] * weight[rising]
        return cp.Problem(cp.Maximize(size @ cp.log(self.utility[rising])), self.rows)

    def prices(self) -> FloatArray:
        """Dual values of the rows in the objective's unit, per unit of capacity (r,)."""
        return np.asarray(np.maximum(np.nan_to_num(self.pools.dual_value), 0.0) / self._capacity)


class _Linear:
    """HiGHS first; where it gives up, the same program by Clarabel."""

    def __init__(self, market: Market, worth: FloatArray) -> None:
        self._market, self._worth = market, worth
        self._highs = LinearProgram(market, worth)
        self.solver, self.work = "highs", 0

    def level(self, rise: FloatArray, floor: FloatArray) -> LinearSolution:
        found = self._highs.solve(np.zeros(self._market.columns), 1.0, rise, floor)
        self.work += found.work
        return found if _ended(found) else self._clarabel(lambda program: program.level(rise, floor))

    def total(self, value: FloatArray, floor: FloatArray) -> LinearSolution:
        members = self._market.size[self._market.owner()]
        found = self._highs.solve(members * value, 0.0, np.zeros(self._market.classes), floor)
        self.work += found.work
        return found if _ended(found) else self._clarabel(lambda program: program.total(value, floor))

    def _clarabel(self, state: Any) -> LinearSolution:
        program = MarketProgram(self._market, self._worth)
        ended = solve_by_clarabel(state(program))
        self.solver, self.work = "clarabel", self.work + ended.work
        if not ended.solved:
            return LinearSolution(ended.status, NOTHING, 0.0, NOTHING, ended.work)
        theta = 0.0 if program.theta.value is None else float(program.theta.value)
        return LinearSolution(ended.status, program.x.value, theta, program.prices(), ended.work)


def _ended(found: LinearSolution) -> bool:
    return found.status in (Status.OPTIMAL, Status.INFEASIBLE)


@dataclass(slots=True)
class _Proof:
    """The lowest level that prices proved to be out of reach."""

    level: float
    prices: FloatArray


def _solve_level(market: Market, objective: Level, near: FloatArray | None) -> Solution:
    """Fall to the optimum from above: each program's prices prove a level, until shares reach it."""
    targets = objective.targets
    floor = targets.at(0.0)[0]
    guesses = [_typical_prices(market, objective)] if near is None else [near, _typical_prices(market, objective)]
    proof = _first_proof(market, objective, guesses)
    program, z = _Linear(market, objective.worth), proof.level
    for _ in range(_MAX_PASSES):
        found = program.level(targets.at(z)[0] - floor, floor)
        if found.status is not Status.OPTIMAL:
            return _nothing(market, found.status, f"cvxpy/{program.solver}", program.work)
        bound = bound_at(market, objective, found.prices)
        if bound <= z * (1 + _REACHED) and bound < targets.highest:
            proof = _Proof(bound, found.prices)  # the solver's prices rather than a guess
        x = make_feasible(market, found.x)
        level = reached(market, objective, x)
        if level >= z * (1 - _REACHED) or bound >= z * (1 - 1e-14):
            break
        z = bound
    bound = min(proof.level, targets.highest)
    prices = in_levels(market, objective, proof.prices, proof.level)
    return Solution(Status.OPTIMAL, x, prices, min(level, bound), bound, f"cvxpy/{program.solver}", program.work)


def _first_proof(market: Market, objective: Level, guesses: list[FloatArray]) -> _Proof:
    """The lowest level that guessed prices prove; where none proves anything, nothing is known to be scarce."""
    proof = _Proof(objective.targets.highest, np.zeros(market.rows))
    for prices in guesses:
        bound = bound_at(market, objective, prices)
        if bound < proof.level:
            proof = _Proof(bound, prices)
    return proof


def _typical_prices(market: Market, objective: Level) -> FloatArray:
    """An accelerator is worth what it gives the mean member that can use it (r,)."""
    members = market.size[market.owner()] * (objective.worth > 0)
    per_unit = members * objective.worth / np.maximum(market.cost(np.ones(market.rows)), 1e-300)
    uses = np.diff(market.use_first)
    users = np.bincount(market.use_row, weights=np.repeat(members, uses), minlength=market.rows)
    total = np.bincount(market.use_row, weights=np.repeat(per_unit, uses), minlength=market.rows)
    return np.asarray(np.divide(total, users, out=np.zeros(market.rows), where=users > 0))


def _solve_total(market: Market, objective: Total) -> Solution:
    program = _Linear(market, objective.worth)
    found = program.total(objective.value, objective.floor)
    path = f"cvxpy/{program.solver}"
    if found.status is not Status.OPTIMAL:
        return _nothing(market, found.status, path, program.work)
    x = make_feasible(market, found.x)
    bound = bound_at(market, objective, found.prices)
    return Solution(Status.OPTIMAL, x, found.prices, reached(market, objective, x), bound, path, program.work)


def _solve_nash(market: Market, objective: Nash) -> Solution:
    program = MarketProgram(market, objective.worth)
    ended = solve_by_clarabel(program.nash(objective.weight))
    if not ended.solved:
        return _nothing(market, ended.status, "cvxpy/clarabel", ended.work)
    x, prices = make_feasible(market, program.x.value), program.prices()
    # All that is paid is at most the sum of the weights: what is next to nothing of that is the solver's rounding.
    prices = np.where(prices * market.capacity > _ROUNDING * float(market.size @ objective.weight), prices, 0.0)
    bound = bound_at(market, objective, prices)
    return Solution(Status.OPTIMAL, x, prices, reached(market, objective, x), bound, "cvxpy/clarabel", ended.work)


def _nothing(market: Market, status: Status, path: str, work: int) -> Solution:
    """No shares; nothing is proved."""
    return Solution(status, np.zeros(market.columns), np.zeros(market.rows), 0.0, np.inf, path, work)
