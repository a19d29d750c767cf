"""What is maximised over a market: three forms that every linear and logarithmic policy takes. Decides nothing.

    Level     maximise z      s.t.  worth.x >= target_i(z)           max-min, finish-time fairness, makespan, trees
    Total     maximise sum size value.x   s.t.  worth.x >= floor_i   throughput, throughput per dollar, cost with SLOs
    Nash      maximise sum size weight log(worth.x)                  proportional fairness

(all for one member of class i; the market's time and capacity rows always hold). A price on every row is enough to
bound each of them: at given prices the classes decide alone, each by a linear program with two rows. So a solution is
shares (what is reached) and prices (what cannot be exceeded), however they were found.
"""

from dataclasses import dataclass
from typing import Protocol

from optimizer.decision import Status
from optimizer.problem import FloatArray


class Targets(Protocol):
    """How much each class must have at level z: continuous, never falling, 0 or its floor at z = 0."""

    @property
    def highest(self) -> float:
        """The largest level that is of interest: there every class that rises with z has what it can use at most."""
        ...

    def at(self, z: float) -> tuple[FloatArray, FloatArray]:
        """Target of each class, and by how much it rises with z just below z (k,), (k,)."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """The largest z at which every class reaches its target."""

    #: Utility of each column, run all the time by one member (C,).
    worth: FloatArray
    targets: Targets


@dataclass(frozen=True, slots=True, eq=False)
class Total:
    """The largest sum of values while every class keeps its floor."""

    #: What one member gains by running each column all the time; may be negative (C,).
    value: FloatArray
    #: Utility of each column, and how much of it each class keeps; floors of 0 ask for nothing (C,), (k,).
    worth: FloatArray
    floor: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Nash:
    """The largest weighted sum of logarithms of utilities. Every class has a column of positive worth."""

    worth: FloatArray
    #: Of one member (k,), >= 0; a class with weight 0 gets nothing.
    weight: FloatArray


Objective = Level | Total | Nash


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """Shares and prices of one objective over one market."""

    status: Status
    #: Share of time of one member in each class column, feasible to 1e-12 (C,).
    x: FloatArray
    #: Price of each row in units of the objective, >= 0 (r,).
    prices: FloatArray
    #: What the shares reach, and what the prices prove that none can exceed.
    objective: float
    bound: float
    #: "cvxpy/highs", "price/numba", ...
    path: str
    #: Passes over all classes, or solver iterations: the work that it took.
    work: int = 0
