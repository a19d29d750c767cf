"""Upper bounds from prices alone, by weak duality. A bound holds for any prices >= 0.

With y the prices of the rows and N the members of each class (c(t): the least cost to worth t):

    MaxSum        sum N max[(value - cost).x : worth.x >= floor]  +  y.capacity
    NashWelfare   sum N max[weight log(worth.x) - cost.x]         +  y.capacity
    MaxMin        the largest z with  sum N c(target(z)) <= y.capacity: what is reached has to be paid for

The bound of a MaxMin does not change when all prices are multiplied by a number. Where nothing at all is feasible
(floors that no column reaches, or that cost more than there is) the bound is -inf.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from optimizer.classes.class_problem import ClassProblem, MaxMin, MaxSum, NashWelfare, Objective, TargetFunction
from optimizer.lp.dual_newton.dual_task import (
    REACH,
    TARGET,
    PassGoals,
    PassSums,
    cheapest_choice,
    largest_worth,
    logarithmic_choice,
    pass_arrays,
    unpack_sums,
)
from optimizer.lp.engine_choice import COMPILED_BOUND_COLUMNS
from optimizer.problem import FloatArray

#: The most steps in the search for a level. At least every second step halves the bracket; its upper end is always a
#: valid bound.
_STEPS = 60
#: The relative accuracy at which the search for a level ends.
_CLOSE = 1e-12
#: Costs are sums with rounding: a cost counts as above the income only if it exceeds it by more than this part.
_ROUNDING = 1e-12
_NONE = np.zeros(0)


Run = Callable[[ClassProblem, PassGoals, FloatArray, FloatArray, FloatArray], FloatArray]


@dataclass(frozen=True, slots=True)
class PassEngine:
    """The engine that runs a pass over all classes."""

    #: The engine's name: "numba".
    name: str
    _run: Run

    def sums(
        self, problem: ClassProblem, goals: PassGoals, prices: FloatArray, softness: FloatArray, x: FloatArray
    ) -> PassSums:
        """Runs one pass and returns its sums; `x`, if not empty, receives the softened shares of one member of each
        class (C,).
        """
        return unpack_sums(self._run(problem, goals, prices, softness, x), problem.rows)


def compiled_engine() -> PassEngine:
    """Returns the compiled pass. Loading it imports numba."""
    from optimizer.lp.dual_newton import pass_kernels

    def run(
        problem: ClassProblem, goals: PassGoals, prices: FloatArray, softness: FloatArray, x: FloatArray
    ) -> FloatArray:
        return pass_kernels.run_pass(pass_arrays(problem), goals, prices, softness, x)

    return PassEngine("numba", run)


def dual_bound(problem: ClassProblem, objective: Objective, prices: FloatArray) -> float:
    """Returns the upper bound on the objective that these prices prove; -inf where they prove that nothing is
    feasible.

    Args:
        prices: of each row, in any unit for a MaxMin, else in the objective's unit; negative ones count as 0 (r,).
    """
    prices = np.maximum(prices, 0.0)
    if isinstance(objective, MaxMin) and prices.any():
        prices = prices / prices.max()  # The unit means nothing, and tiny prices would lose digits.
    income = float(problem.capacity @ prices)
    match objective:
        case MaxSum():
            return _total_bound(problem, objective, prices, income)
        case NashWelfare():
            choice = logarithmic_choice(problem, objective.worth, problem.cost(prices), objective.weight)
            return income + float(problem.size @ _net_logarithm(objective, choice.cost, choice.slope))
        case MaxMin():
            return _level_bound(problem, objective, prices, income)


def reachable_level(worth_most: FloatArray, targets: TargetFunction) -> float:
    """Returns the highest level at which every class has a column worth its target: a bound without regard to
    capacity.

    Exact to rounding, on the safe side; -inf where the floors at level 0 are out of reach already.

    Args:
        worth_most: the largest worth of each class (k,).
    """
    limit = worth_most * (1 + REACH)
    low, high = 0.0, targets.highest
    if (targets.at(high)[0] <= limit).all():
        return high
    if (targets.at(low)[0] > limit).any():
        return -np.inf
    while high - low > _CLOSE * high:
        middle = 0.5 * (low + high)
        if (targets.at(middle)[0] <= limit).all():
            low = middle
        else:
            high = middle
    return high


def _net_logarithm(objective: NashWelfare, cost: FloatArray, slope: FloatArray) -> FloatArray:
    """Returns weight log(worth) - cost of one member (k,); at the best response the worth is weight / slope."""
    weight = objective.weight
    with np.errstate(divide="ignore", invalid="ignore"):
        gained = np.where(slope > 0, weight * np.log(weight / slope), -np.inf)
    return np.where(weight > 0, gained, 0.0) - cost


def _total_bound(problem: ClassProblem, objective: MaxSum, prices: FloatArray, income: float) -> float:
    if objective.floor.any():
        floors = _costs(problem, PassGoals(TARGET, objective.worth, _NONE, objective.floor, objective.floor), prices)
        if floors.unreached or floors.cost > income * (1 + _ROUNDING):
            return -np.inf
    goals = PassGoals(TARGET, objective.worth, objective.value, objective.floor, objective.floor)
    return income - _costs(problem, goals, prices).cost


@dataclass(frozen=True, slots=True)
class _Costs:
    """The sums over all members: the least net cost of their goals, its derivative by the level, and the number of
    classes that cannot reach theirs.
    """

    cost: float
    rise: float
    unreached: float


def _costs(problem: ClassProblem, goals: PassGoals, prices: FloatArray) -> _Costs:
    """Returns the least costs of the classes' goals, by compiled code where there is much to do."""
    if problem.columns >= COMPILED_BOUND_COLUMNS:
        sums = compiled_engine().sums(problem, goals, prices, prices, _NONE)
        return _Costs(sums.exact_cost, sums.exact_slope, sums.unreached)
    cost = problem.cost(prices) - (goals.value if len(goals.value) else 0.0)
    choice = cheapest_choice(problem, goals.worth, cost, goals.goal)
    rise = float(problem.size @ (choice.slope * goals.rise))
    return _Costs(float(problem.size @ choice.cost), rise, float(np.count_nonzero(~choice.reached)))


def _level_bound(problem: ClassProblem, objective: MaxMin, prices: FloatArray, income: float) -> float:
    """Returns the level at which the targets cost the whole income, by Newton's method from above inside a bracket.

    Costs never fall as the level rises, so the upper end of the bracket is a bound however far the search gets.
    """
    targets = objective.targets
    top = reachable_level(largest_worth(problem, objective.worth), targets)
    if top == -np.inf:
        return top
    enough = income * (1 + _ROUNDING)

    def excess(z: float) -> tuple[float, float]:
        """Returns by how much the cost of the targets exceeds the income, and its derivative by the level."""
        found = _costs(problem, PassGoals(TARGET, objective.worth, _NONE, *targets.at(z)), prices)
        return found.cost - enough, found.rise

    over, rate = excess(top)
    if over <= 0:
        return top
    under, _ = excess(0.0)
    if under > 0:
        return -np.inf
    low, high = 0.0, top
    for step in range(_STEPS):
        least = 0.5 * _CLOSE * high
        if high - low <= 2 * least:
            break
        # Newton's step ends above the answer where costs are convex; elsewhere secants and bisection close the bracket.
        z = high - over / rate if rate > 0 else low
        if z <= low:
            z = low - under * (high - low) / (over - under) if step % 2 else 0.5 * (low + high)
        z = min(max(z, low + least), high - least)
        value, slope = excess(z)
        if value > 0:
            high, over, rate = z, value, slope
        else:
            low, under = z, value
    return high
