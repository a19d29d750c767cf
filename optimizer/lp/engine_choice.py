"""Chooses the engine that solves a class problem, by one table of thresholds.

    engine               what it solves                             where it is used
    -------------------  -----------------------------------------  ------------------------------------------
    exact_solver         MaxMin, MaxSum, NashWelfare                up to a few thousand columns
    dual_newton          the same, by Newton's method on prices     above; any number of classes
    interior_point       Lexicographic: MaxMin level by level       always; compiled where there is much to do
    pair_program         MaxMin, MaxSum with co-located pairs       wherever jobs may be co-located

A threshold counts columns of a class problem (configurations of classes of equal jobs), unless its name says
otherwise. Answers on both sides of one carry the same certificate. They differ in time, in rounding and, where the
price method runs, in the gap that it leaves (1e-4 by default). The thresholds were measured on one core
(docs/results.md); why there are several engines is in docs/decisions/0009-several-lp-engines.md.
"""

from enum import Enum

from optimizer.classes.class_problem import MaxSum, Objective

#: Up to here the exact solver is faster: for one linear program (a sum); for several programs, or one with logarithms.
EXACT_ONE_PROGRAM_COLUMNS = 8_000
EXACT_SEVERAL_PROGRAMS_COLUMNS = 2_000
#: Up to here a price solve that ended short of its gap is repeated exactly: the matrices still fit in memory, and it
#: takes minutes.
EXACT_FALLBACK_COLUMNS = 500_000

#: HiGHS: up to here the dual simplex is faster than the interior point method without crossover.
SIMPLEX_COLUMNS = 12_000

#: Cells (classes x configurations x pools, each padded to a power of two) up to which the program of rented machines is
#: stated in cvxpy anew for each state; above, HiGHS receives matrices.
CVXPY_MONEY_CELLS = 4_096

#: Columns of this problem and of those solved before it, from which loading the compiled interior point method pays.
COMPILED_FILLING_COLUMNS = 10_000
#: Columns from which loading compiled passes pays for one dual bound.
COMPILED_BOUND_COLUMNS = 200_000

#: The most pairs of different jobs, by pool, that may share accelerators in one problem: more are refused.
PAIR_COLUMNS_MOST = 30_000


class LpEngine(Enum):
    """The engine for a single objective without co-location."""

    EXACT = "exact"
    PRICES = "prices"


def engine_for(objective: Objective, columns: int) -> LpEngine:
    """Returns the faster engine for an objective and a number of columns."""
    one_program = isinstance(objective, MaxSum)
    most = EXACT_ONE_PROGRAM_COLUMNS if one_program else EXACT_SEVERAL_PROGRAMS_COLUMNS
    return LpEngine.EXACT if columns <= most else LpEngine.PRICES
