"""The tables of the rental program (`money_program`), and the same program as a class problem.

In the class problem, the owner of rentable machines is a class, too: it earns their price for the part that is not
rented. So the engines of class problems, prices among them, solve it for any number of classes.
"""

from dataclasses import dataclass, replace

import numpy as np

from optimizer.classes.class_problem import ClassProblem, MaxSum
from optimizer.problem import FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class RentedTiers:
    """What can be rented of each pool, in accelerators, by its cost (p,)."""

    prepaid: FloatArray
    held: FloatArray
    more: FloatArray
    #: The price in USD per accelerator-hour of those held, and of those that would have to be fetched (p,).
    kept_usd_per_h: FloatArray
    fetched_usd_per_h: FloatArray


def as_class_problem(
    problem: ClassProblem, usd_per_h: FloatArray, owned: FloatArray, tiers: RentedTiers
) -> tuple[ClassProblem, MaxSum, float]:
    """Returns the same program as a class problem, and the constant to subtract from its optimum.

    Each pool adds a class for machines held and one for machines to fetch: all of them are capacity, and their owner
    earns the price of the part that is not rented. The most expensive machines are therefore rented last.
    """
    amount = np.concatenate((tiers.held, tiers.more))
    price = np.concatenate((tiers.kept_usd_per_h, tiers.fetched_usd_per_h))
    pool = np.tile(np.arange(problem.rows), 2)
    let = np.flatnonzero((amount > 0) & (price > 0))
    size = np.concatenate((problem.size, amount[let]))
    capacity = owned + tiers.prepaid + tiers.held + tiers.more
    together = replace(
        problem,
        size=size,
        capacity=capacity,
        first=np.concatenate((problem.first, problem.first[-1] + 1 + np.arange(len(let)))),
        use_first=np.concatenate((problem.use_first, problem.use_first[-1] + 1 + np.arange(len(let)))),
        use_row=np.concatenate((problem.use_row, pool[let])),
        use_count=np.concatenate((problem.use_count, np.ones(len(let)))),
    )
    each = np.concatenate((usd_per_h / problem.size[problem.owner], price[let]))
    objective = MaxSum(each, each, np.zeros(together.classes))
    return together, objective, float(amount[let] @ price[let])


def money_cells(problem: ClassProblem) -> int:
    """Returns the number of cells of the tables that a problem fills: classes x configurations x pools, padded."""
    _, shape = table_places(problem)
    return shape[0] * shape[1] * padded(problem.rows)


def table_places(problem: ClassProblem) -> tuple[IntArray, tuple[int, int]]:
    """Returns the index of each column among the configurations of its class (C,), and the padded shape
    of the table.
    """
    owner = problem.owner
    place = np.arange(problem.columns) - problem.first[owner]
    return place, (padded(problem.classes), padded(int(place.max(initial=0)) + 1))


def padded(size: int) -> int:
    """Returns the smallest power of two that is not below `size`."""
    return 1 << max(size - 1, 0).bit_length()
