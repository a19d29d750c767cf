"""What whole gangs can reach: a bound for small fleets, where the fluid shares promise more than any schedule keeps.

At one instant a job runs as a whole gang or not at all, so what jobs get over time is a mixture of *packings*: whole
numbers of members in each column, within the rows' capacity. Any weights on the classes' utilities bound such mixtures
by the best single packing under these weights (weak duality); the weights that price the fluid optimum are used, so one
integer program per question suffices:

    Level   sum size y target(z) <= max_packing sum y worth n     solved for z
    Total   max_packing sum (value + y worth) n - sum size y floor
    Nash    V(u) + max_packing sum (weight / u) worth n - sum size weight, the tangent at the fluid utilities u

Importing this module imports scipy's solver.
"""

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from optimizer.market import Market
from optimizer.objective import Level, Nash, Objective, Solution, Total
from optimizer.owners import sum_by
from optimizer.problem import FloatArray, IntArray

#: Fleets up to this many accelerators: above, whole gangs lose little, and the program is large.
LARGEST_FLEET = 64
#: Branch-and-bound nodes; the bound proved by then is valid whether or not the search has ended.
_NODES = 2_000
_BISECTIONS = 100


def whole_bound(market: Market, objective: Objective, solution: Solution, multiplier: FloatArray) -> float:
    """The best objective that whole gangs can reach over time, at most the fluid bound.

    Args:
        market: with a fleet of at most `LARGEST_FLEET` accelerators, or a long search.
        objective: as solved.
        solution: the fluid optimum.
        multiplier: worth of one more unit of utility of one member of each class, in units of the objective (k,) >= 0;
            the bound is valid for any, and tight only for good ones. Nash has its own.

    Returns:
        the bound, in the objective's unit.
    """
    owner = market.owner()
    paid = multiplier[owner] * objective.worth
    if isinstance(objective, Nash):
        return min(solution.bound, _nash(market, objective, solution, owner))
    if isinstance(objective, Total):
        kept = float((market.size * multiplier) @ objective.floor)
        return min(solution.bound, best_packing(market, objective.value + paid) - kept)
    return min(solution.bound, _level(market, objective, multiplier, best_packing(market, paid), solution.bound))


def best_packing(market: Market, gain: FloatArray) -> float:
    """The largest sum of gains of one packing: gain of one member in each column (C,)."""
    useful = np.flatnonzero(gain > 0)
    if not len(useful):
        return 0.0
    owner = market.owner()
    time = sparse.csr_array((np.ones(market.columns), (owner, np.arange(market.columns))))
    uses = np.repeat(np.arange(market.columns), np.diff(market.use_first))
    load = sparse.csr_array((market.use_count, (market.use_row, uses)), shape=(market.rows, market.columns))
    rows = sparse.vstack([time, load]).tocsc()[:, useful]
    limits = np.concatenate([market.size, market.capacity])
    scale = float(gain.max())  # the solver's tolerances are absolute
    found = milp(
        -gain[useful] / scale,
        constraints=LinearConstraint(rows, ub=limits[: rows.shape[0]]),
        integrality=np.ones(len(useful)),
        bounds=Bounds(0, market.size[owner[useful]]),
        options={"node_limit": _NODES},
    )
    return float(-found.mip_dual_bound) * scale if found.mip_dual_bound is not None else float("inf")


def _nash(market: Market, objective: Nash, solution: Solution, owner: IntArray) -> float:
    utility = sum_by(owner, objective.worth * solution.x, market.classes)
    weight = market.size * objective.weight
    counted = (weight > 0) & (utility > 0)
    slope = np.divide(objective.weight, utility, out=np.zeros(market.classes), where=counted)
    fluid = float(weight[counted] @ np.log(utility[counted]))
    return fluid + best_packing(market, slope[owner] * objective.worth) - float(weight[counted].sum())


def _level(market: Market, objective: Level, multiplier: FloatArray, most: float, fluid: float) -> float:
    """The largest level up to the fluid bound whose targets are worth at most the best packing."""
    paid = market.size * multiplier

    def asked(z: float) -> float:
        return float(paid @ objective.targets.at(z)[0])

    if asked(fluid) <= most:
        return fluid
    low, high = 0.0, fluid
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if asked(middle) <= most else (low, middle)
    return high
