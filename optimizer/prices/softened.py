"""What is asked of one pass over all classes, and what it answers. Decides nothing.

At given prices the exact best response jumps when two columns become equally good, so demand has no derivative and no
single response fits the capacities. A pass therefore computes two things for every class. The exact response proves the
bound. The softened one is what the shares are made of: the same choice with a small cost on concentration,

    + softness / 2 * sum x^2        softness of a class: the mean cost of its columns at the softness prices,

whose shares move continuously with the prices. It is feasible for its class and reaches the same worth; what it gives
away is at most the softness of the classes that are about to change their mind, and the certificate measures it.

Symbols of one class: a worth, n net cost (less the value), lam the multiplier of the worth, nu that of the time:

    x = max(0, lam a - n - nu) / softness       nu >= 0 keeps sum x <= 1       lam by kind:

    PLAIN   lam = 0                         TARGET  a.x = goal, or lam = 0 if more is earned anyway
    LOG     lam a.x = goal (the weight)

On the set of columns in use x is linear in the costs, with derivative (-P + kappa w w')/softness, P = I - 11'/|set| if
sum x = 1 (else I), w = P a. Summed over the classes this is the derivative of the demand by the prices, exactly.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optimizer.market.market import Market
from optimizer.problem import FloatArray, IntArray

PLAIN, TARGET, LOG = 0, 1, 2


class Wants(NamedTuple):
    """The classes' side of an objective. A named tuple because compiled code takes it as it is."""

    kind: int
    #: Of each column (C,); values may be empty: nothing is earned.
    worth: FloatArray
    value: FloatArray
    #: Of one member of each class: worth that it must have, or weight of its logarithm (k,); and by how much the
    #: goal rises with the level (k,).
    goal: FloatArray
    rise: FloatArray


class Supply(NamedTuple):
    """The market's arrays, as compiled code takes them."""

    size: FloatArray
    first: IntArray
    use_first: IntArray
    use_row: NDArray[np.int32]
    use_count: FloatArray
    single: bool


def supply_of(market: Market) -> Supply:
    """The arrays of a market."""
    return Supply(market.size, market.first, market.use_first, market.use_row, market.use_count, market.single_use)


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """What one pass found, all members together."""

    #: Softened demand per row (r,), and how it falls with the prices: minus its derivative (r, r).
    demand: FloatArray
    stiffness: FloatArray
    #: Its derivative by the level (r,), and by the softness: change per relative change of it (r,).
    by_level: FloatArray
    by_softness: FloatArray
    #: Net cost of the exact responses (for LOG: less the logarithms), and how it rises with the level.
    exact_cost: float
    exact_slope: float
    #: What the softened shares earn: values, or weighted logarithms.
    value: float
    #: Net cost of the softened responses with their concentration (for LOG: less the logarithms).
    soft_cost: float
    #: Classes of which no column reaches the goal.
    unreached: float


#: Numbers beside the row vectors in a pass's answer.
SCALARS = 5


def width_of(rows: int) -> int:
    """Numbers that one block of classes answers."""
    return 3 * rows + rows * rows + SCALARS


def sums_of(total: FloatArray, rows: int) -> Sums:
    """A pass's answer, taken apart."""
    square, scalars = 3 * rows, 3 * rows + rows * rows
    exact_cost, exact_slope, value, soft_cost, unreached = (float(number) for number in total[scalars:])
    return Sums(
        demand=total[:rows],
        by_level=total[rows : 2 * rows],
        by_softness=total[2 * rows : square],
        stiffness=-total[square:scalars].reshape(rows, rows),
        exact_cost=exact_cost,
        exact_slope=exact_slope,
        value=value,
        soft_cost=soft_cost,
        unreached=unreached,
    )
