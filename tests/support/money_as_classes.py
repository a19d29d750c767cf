"""The rental program stated once more, as a class problem, for tests to compare with.

The owner of rentable machines is a class, too: it earns their price for the part that is not rented.
"""

from dataclasses import replace

import numpy as np

from optimizer.assignment.limit_rows import RentedTiers
from optimizer.classes.class_problem import ClassProblem, MaxSum
from optimizer.problem import FloatArray


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
