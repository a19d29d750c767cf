"""The tables of the rental program (`money_program`)."""

from dataclasses import dataclass

import numpy as np

from optimizer.classes.class_problem import ClassProblem
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
