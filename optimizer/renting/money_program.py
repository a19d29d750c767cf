"""The rental program, stated in cvxpy: which payers run where, and which machines are rented for them.

    maximise   sum v[m, c] x[m, c]  -  kept . k  -  fetched . f
    s.t.       sum_c x[m, c] <= 1                                                each class m        (u)
               sum use[r, m, c] x[m, c]  <=  owned[r] + h[r] + k[r] + f[r]       each pool r         (price[r])
               0 <= h <= prepaid,   0 <= k <= held,   0 <= f <= more

x is the share of time of class m in its c-th configuration, v what all its members earn there, USD per hour, use what
they take of a pool. h, k and f are accelerators that are rented: paid for already, to be paid from now on, and still
to be fetched. `machine_rental` says what each costs; its whole counts are found beside this optimum, which bounds
them.

The tables are parameters, so one compiled program serves all states of a shape, padded to powers of two; a process
compiles each shape once. Up to `engine_choice.CVXPY_MONEY_CELLS` this is how renting is decided; above, HiGHS is
handed the matrices of the same program (`rental_program`). The same program over classes alone, for the price engine,
stands in the tests. A test holds all three to 1e-6. Importing this module imports cvxpy (seconds).
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import cvxpy as cp
import numpy as np

from optimizer.assignment.limit_rows import RentedTiers, padded, table_places
from optimizer.classes.class_problem import ClassProblem
from optimizer.lp.exact_solver import solve_by_highs
from optimizer.problem import FloatArray

_TOLERANCE = 1e-9
#: The most compiled shapes that a process keeps.
_KEPT_SHAPES = 16


@dataclass(frozen=True, slots=True, eq=False)
class MoneyOptimum:
    """An optimum: accelerators rented and prices of each pool (p,), and the earnings less rent in USD per hour."""

    rented: FloatArray
    prices: FloatArray
    net_usd_per_h: float


@dataclass(frozen=True, slots=True, eq=False)
class _CompiledProgram:
    """The program of one shape: classes x configurations, and pools."""

    problem: Any
    value: Any
    use: list[Any]
    owned: Any
    tiers: dict[str, Any]
    rented: list[Any]
    pool_rows: list[Any]


def solve_money_program(
    problem: ClassProblem, usd_per_h: FloatArray, owned: FloatArray, tiers: RentedTiers
) -> MoneyOptimum | None:
    """Returns the optimum; None if HiGHS finds none.

    Args:
        problem: k classes facing p pools; its capacity is not read.
        usd_per_h: what all members of a class earn in each configuration (C,).
        owned: accelerators that are not rented (p,).
        tiers: what may be rented.
    """
    place, shape = table_places(problem)
    compiled = _compiled(*shape, padded(problem.rows))
    value = np.zeros(shape)
    value[problem.owner, place] = usd_per_h
    compiled.value.value = value
    tables = np.zeros((len(compiled.use), *shape))
    column = np.repeat(np.arange(problem.columns), np.diff(problem.use_first))
    taken = problem.use_count * problem.size[problem.owner[column]]
    np.add.at(tables, (problem.use_row, problem.owner[column], place[column]), taken)
    for table, told in zip(compiled.use, tables, strict=True):
        table.value = told
    compiled.owned.value = _filled(owned, len(tables))
    for name, parameter in compiled.tiers.items():
        parameter.value = _filled(getattr(tiers, name), len(tables))
    ended = solve_by_highs(compiled.problem, _TOLERANCE)
    if not ended.solved or compiled.problem.status != cp.OPTIMAL:
        return None
    p = problem.rows
    rented = sum((np.maximum(each.value[:p], 0.0) for each in compiled.rented), np.zeros(p))
    prices = np.array([max(float(row.dual_value), 0.0) for row in compiled.pool_rows[:p]])
    return MoneyOptimum(rented, prices, float(compiled.problem.value))


# ------------------------------------------------------------------------------------------------ one shape


def _filled(amounts: FloatArray, size: int) -> FloatArray:
    return np.concatenate((amounts, np.zeros(size - len(amounts))))


@lru_cache(maxsize=_KEPT_SHAPES)
def _compiled(classes: int, configurations: int, pools: int) -> _CompiledProgram:
    x = cp.Variable((classes, configurations), nonneg=True)
    h, k, f = (cp.Variable(pools, nonneg=True) for _ in range(3))
    value = cp.Parameter((classes, configurations), nonneg=True)
    use = [cp.Parameter((classes, configurations)) for _ in range(pools)]
    owned = cp.Parameter(pools)
    names = ("prepaid", "held", "more", "kept_usd_per_h", "fetched_usd_per_h")
    tiers = {name: cp.Parameter(pools, nonneg=True) for name in names}
    there = owned + h + k + f
    pool_rows = [cp.sum(cp.multiply(table, x)) <= there[row] for row, table in enumerate(use)]
    rows = [cp.sum(x, axis=1) <= 1, *pool_rows, h <= tiers["prepaid"], k <= tiers["held"], f <= tiers["more"]]
    earned = cp.sum(cp.multiply(value, x)) - tiers["kept_usd_per_h"] @ k - tiers["fetched_usd_per_h"] @ f
    return _CompiledProgram(cp.Problem(cp.Maximize(earned), rows), value, use, owned, tiers, [h, k, f], pool_rows)
