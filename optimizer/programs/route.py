"""Which way a market is solved: exactly where that is quick, by prices where it is large. Decides nothing else.

Both ways answer the same question with the same certificate; they differ in time and in the gap that they leave.
"""

import numpy as np

from optimizer.arrays.owners import sum_by
from optimizer.decision import Status
from optimizer.market.market import Market
from optimizer.market.objective import Objective, Solution, Total
from optimizer.problem import FloatArray

#: Columns up to which the exact program is the quicker way: one linear program; several, or one with logarithms.
_ONE_PROGRAM = 8_000
_SEVERAL_PROGRAMS = 2_000
#: Columns up to which a stalled price path is followed by the exact program: its matrices still fit, in minutes.
_FALLBACK = 500_000
#: A floor missed by less than this part is held.
_HELD = 1e-7


def solve(market: Market, objective: Objective) -> Solution:
    """The largest value of an objective over a market of at least one class, with prices that bound it."""
    if market.columns <= (_ONE_PROGRAM if isinstance(objective, Total) else _SEVERAL_PROGRAMS):
        return _exactly(market, objective)
    from optimizer.prices.solve import solve_by_prices  # imports numba: only where the market is large

    found = solve_by_prices(market, objective)
    if _is_answer(market, objective, found) or market.columns > _FALLBACK:
        return found
    exact = _exactly(market, objective, found.prices)
    return exact if exact.status in (Status.OPTIMAL, Status.INFEASIBLE) else found


def _is_answer(market: Market, objective: Objective, found: Solution) -> bool:
    """Within the gap, and no floor is missed for it."""
    if found.status is not Status.OPTIMAL or not isinstance(objective, Total):
        return found.status in (Status.OPTIMAL, Status.INFEASIBLE)
    utility = sum_by(market.owner(), objective.worth * found.x, market.classes)
    return bool(np.all(utility >= objective.floor * (1 - _HELD)))


def _exactly(market: Market, objective: Objective, near: FloatArray | None = None) -> Solution:
    from optimizer.programs.definition import solve_definition  # imports cvxpy: only where something is to be solved

    return solve_definition(market, objective, near)
