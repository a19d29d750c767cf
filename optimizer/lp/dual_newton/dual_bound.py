"""Upper bounds from prices alone, by weak duality. A bound holds for any prices >= 0.

With y the prices of the rows and N the members of each class (c(t): the least cost to worth t):

    MaxSum        sum N max[(value - cost).x : worth.x >= floor]  +  y.capacity
    NashWelfare   sum N max[weight log(worth.x) - cost.x]         +  y.capacity
    MaxMin        the largest z with  sum N c(target(z)) <= y.capacity: what is reached has to be paid for

The last does not change when all prices are multiplied. Where nothing at all is feasible (floors that no column
reaches, or that cost more than there is) the bound is -inf.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from optimizer.classes.class_problem import ClassProblem, MaxMin, MaxSum, NashWelfare, Objective, TargetFunction
from optimizer.lp.dual_newton.best_responses import REACH, cheapest_choice, largest_worth, logarithmic_choice
from optimizer.lp.dual_newton.dual_task import TARGET, PassGoals, PassSums, pass_arrays, unpack_sums
from optimizer.lp.engine_choice import bound_is_compiled
from optimizer.problem import FloatArray

#: Steps of the search for a level. Each halves what is left at least every other time; the upper end is always valid.
_STEPS = 60
#: The search ends when the level is known to this part of it.
_CLOSE = 1e-12
#: Costs are sums with rounding: only what is dearer by more than this part is called too dear.
_ROUNDING = 1e-12
_NONE = np.zeros(0)


Run = Callable[[ClassProblem, PassGoals, FloatArray, FloatArray, FloatArray], FloatArray]


@dataclass(frozen=True, slots=True)
class PassEngine:
    """What runs a pass over all classes. The product has one; tests compare it with a pass in numpy."""

    #: "numba".
    name: str
    _run: Run

    def sums(
        self, problem: ClassProblem, goals: PassGoals, prices: FloatArray, softness: FloatArray, x: FloatArray
    ) -> PassSums:
        """One pass; `x`, if not empty, receives the softened shares of one member of each class (C,)."""
        return unpack_sums(self._run(problem, goals, prices, softness, x), problem.rows)


def compiled_engine() -> PassEngine:
    """The compiled pass. Loading it imports numba."""
    from optimizer.lp.dual_newton import pass_kernels

    def run(
        problem: ClassProblem, goals: PassGoals, prices: FloatArray, softness: FloatArray, x: FloatArray
    ) -> FloatArray:
        return pass_kernels.run_pass(pass_arrays(problem), goals, prices, softness, x)

    return PassEngine("numba", run)


def dual_bound(problem: ClassProblem, objective: Objective, prices: FloatArray) -> float:
    """What no shares can exceed, as these prices prove it; -inf where nothing is feasible.

    Args:
        prices: of each row, in any unit for a Level, else in the objective's unit; negative ones count as 0 (r,).
    """
    prices = np.maximum(prices, 0.0)
    if isinstance(objective, MaxMin) and prices.any():
        prices = prices / prices.max()  # the unit means nothing, and digits would be lost in tiny ones
    income = float(problem.capacity @ prices)
    match objective:
        case MaxSum():
            return _total_bound(problem, objective, prices, income)
        case NashWelfare():
            choice = logarithmic_choice(problem, objective.worth, problem.cost(prices), objective.weight)
            return income + float(problem.size @ _net_logarithm(objective, choice.cost, choice.slope))
        case MaxMin():
            return _level_bound(problem, objective, prices, income)


def worth_multipliers(problem: ClassProblem, objective: Objective, prices: FloatArray, z: float) -> FloatArray:
    """What a little more worth costs one member of each class at these prices (k,).

    For a Level at level z; for a Total at its floors; for a Nash what the worth is worth to the class: weight / worth.
    """
    cost = problem.cost(prices)
    match objective:
        case MaxSum():
            return cheapest_choice(problem, objective.worth, cost - objective.value, objective.floor).slope
        case NashWelfare():
            return logarithmic_choice(problem, objective.worth, cost, objective.weight).slope
        case MaxMin():
            return cheapest_choice(problem, objective.worth, cost, objective.targets.at(z)[0]).slope


def reachable_level(worth_most: FloatArray, targets: TargetFunction) -> float:
    """A level that no class passes whatever it is given: the highest at which each has a column good enough.

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
    """weight log(worth) - cost of one member: worth is weight / slope at the best response (k,)."""
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
    """Of all members: least net cost of what they want, its rise with the level; and classes that cannot have it."""

    cost: float
    rise: float
    unreached: float


def _costs(problem: ClassProblem, goals: PassGoals, prices: FloatArray) -> _Costs:
    """What the classes want at its cheapest; by compiled code where there is much to do."""
    if bound_is_compiled(problem.columns):
        sums = compiled_engine().sums(problem, goals, prices, prices, _NONE)
        return _Costs(sums.exact_cost, sums.exact_slope, sums.unreached)
    cost = problem.cost(prices) - (goals.value if len(goals.value) else 0.0)
    choice = cheapest_choice(problem, goals.worth, cost, goals.goal)
    rise = float(problem.size @ (choice.slope * goals.rise))
    return _Costs(float(problem.size @ choice.cost), rise, float(np.count_nonzero(~choice.reached)))


def _level_bound(problem: ClassProblem, objective: MaxMin, prices: FloatArray, income: float) -> float:
    """The level where the targets cost all there is: Newton steps from above, kept inside a bracket.

    Costs never fall as the level rises, so the upper end of the bracket is a bound however far the search gets.
    """
    targets = objective.targets
    top = reachable_level(largest_worth(problem, objective.worth), targets)
    if top == -np.inf:
        return top
    enough = income * (1 + _ROUNDING)

    def excess(z: float) -> tuple[float, float]:
        """How much more the targets cost than there is, and how fast that rises."""
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
        # Newton's step ends above the answer where costs are convex; elsewhere chords and halves close the bracket.
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
