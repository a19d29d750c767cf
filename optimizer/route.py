"""Which way a market is solved: exactly where that is quick, by prices where it is large. Decides nothing else.

Both ways answer the same question with the same certificate; they differ in time and in the gap that they leave.
"""

from optimizer.decision import Status
from optimizer.market import Market
from optimizer.objective import Level, Nash, Objective, Solution
from optimizer.problem import FloatArray

#: Columns up to which the exact program is the quicker way: one linear program; several, or one with logarithms.
_ONE_PROGRAM = 2_000
_SEVERAL_PROGRAMS = 1_000
#: Columns up to which a stalled price path is followed by the exact program: its matrices still fit, in minutes.
_FALLBACK = 500_000


def solve(market: Market, objective: Objective, start: FloatArray | None = None) -> Solution:
    """The largest value of an objective over a market, with prices that bound it.

    Args:
        market: at least one class and one column.
        start: prices to begin with, those of an earlier solve (r,). None: guessed.
    """
    if market.columns <= (_SEVERAL_PROGRAMS if isinstance(objective, Level | Nash) else _ONE_PROGRAM):
        return _exactly(market, objective)
    from optimizer.prices.solve import solve_by_prices  # imports numba: only where the market is large

    found = solve_by_prices(market, objective, start=start)
    if found.status is Status.OPTIMAL or market.columns > _FALLBACK:
        return found
    exact = _exactly(market, objective)
    return exact if exact.status in (Status.OPTIMAL, Status.INFEASIBLE) else found


def _exactly(market: Market, objective: Objective) -> Solution:
    from optimizer.definition import solve_definition  # imports cvxpy: only where something is to be solved

    return solve_definition(market, objective)
