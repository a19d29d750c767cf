"""The tables of the program of money (`money_program`), and the same program as one over classes alone.

In the latter, whoever lets machines is a class too: it earns their price for the part that is not rented. So the
engines of class problems, prices among them, solve it for any number of classes.
"""

from dataclasses import dataclass, replace

import numpy as np

from optimizer.classes.class_problem import ClassProblem, MaxSum
from optimizer.problem import FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class RentedTiers:
    """What may be held rented of each pool, in accelerators, by what it costs (p,)."""

    prepaid: FloatArray
    held: FloatArray
    more: FloatArray
    #: USD per accelerator-hour of those held and of those still to be fetched (p,).
    kept_usd_per_h: FloatArray
    fetched_usd_per_h: FloatArray


def as_class_problem(
    problem: ClassProblem, usd_per_h: FloatArray, owned: FloatArray, tiers: RentedTiers
) -> tuple[ClassProblem, MaxSum, float]:
    """The same program for the engines of class problems, and what to take off its optimum.

    Of each pool, a class for machines held and one for those to fetch: all of them are capacity, and whoever lets them
    earns their price for the part that is not rented. Dear ones are let last, as they should be.
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
    each = np.concatenate((usd_per_h / problem.size[problem.owner()], price[let]))
    objective = MaxSum(each, each, np.zeros(together.classes))
    return together, objective, float(amount[let] @ price[let])


def money_cells(problem: ClassProblem) -> int:
    """Cells of the tables that a problem would fill: classes x configurations x pools, padded."""
    _, shape = table_places(problem)
    return shape[0] * shape[1] * padded(problem.rows)


def table_places(problem: ClassProblem) -> tuple[IntArray, tuple[int, int]]:
    """Which configuration of its class each column is (C,), and the padded shape of the table."""
    owner = problem.owner()
    place = np.arange(problem.columns) - problem.first[owner]
    return place, (padded(problem.classes), padded(int(place.max(initial=0)) + 1))


def padded(size: int) -> int:
    """The next power of two."""
    return 1 << max(size - 1, 0).bit_length()
