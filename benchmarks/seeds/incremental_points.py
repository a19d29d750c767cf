"""Dual points whose sums over all members are kept up to date, and the best mixture of their shares.

At a point every class decides alone, so when one member arrives or leaves the sums change by what it does: no other
class is evaluated. Any mixture of the points' shares is feasible for every class, and takes and yields the same mixture
of the sums:

    maximise  gain.w     s.t.  demand'w <= capacity,  sum w <= 1,  w >= 0      (a linear program with r + 1 rows)

which fits the pools without another pass. Every point proves a bound, and the least of them counts.

    MaxMin        targets are proportional to the level, so the mixture reaches the mixture of the levels
    MaxSum        values add up; floors hold where sum w = 1
    NashWelfare   a mixture earns at least the mixture of the logarithms; dividing all shares by 1 + s costs at most s W
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from optimizer.decision import Status
from optimizer.lp.dual_newton.dual_task import SCALARS
from optimizer.lp.dual_newton.newton import DualEvaluation
from optimizer.problem import BoolArray, FloatArray, IntArray

#: Part of each capacity that is left free, for the rounding of the solver and of the sums.
_SLACK = 1e-9
_COST, _SLOPE, _VALUE, _UNREACHED = 0, 1, 2, 4


@dataclass(frozen=True, slots=True, eq=False)
class StoredPoints:
    """K points (prices, levels, softness), with the sums over all members at each."""

    prices: FloatArray
    #: Levels; 1 for objectives without a level (K,).
    z: FloatArray
    softness: FloatArray
    #: Demand of each row, then the scalars of a pass (K, r + SCALARS). Changed in place by `add`.
    sums: FloatArray
    #: Whether a job that arrived misses its goal at the point (K,). Changed in place.
    spoiled: BoolArray

    def __len__(self) -> int:
        return len(self.z)

    @property
    def demand(self) -> FloatArray:
        """Demand of all members for each row (K, r)."""
        return self.sums[:, : self.prices.shape[1]]

    def scalar(self, which: int) -> FloatArray:
        """Returns one of the scalars of a pass, at each point (K,)."""
        return self.sums[:, self.prices.shape[1] + which]

    def take(self, chosen: IntArray | slice) -> "StoredPoints":
        """Returns a subset of the points, with copies of their sums."""
        return StoredPoints(
            self.prices[chosen],
            self.z[chosen],
            self.softness[chosen],
            self.sums[chosen].copy(),
            self.spoiled[chosen].copy(),
        )


def no_points(rows: int) -> StoredPoints:
    """Returns an empty set of points."""
    return StoredPoints(
        np.zeros((0, rows)), np.zeros(0), np.zeros((0, rows)), np.zeros((0, rows + SCALARS)), np.zeros(0, dtype=bool)
    )


def idle_point(capacity: FloatArray) -> StoredPoints:
    """Returns a point of price 0 with empty sums, for a problem without jobs."""
    rows = len(capacity)
    softness = 1.0 / np.maximum(capacity, 1.0)
    return StoredPoints(
        np.zeros((1, rows)), np.ones(1), softness[None, :], np.zeros((1, rows + SCALARS)), np.zeros(1, dtype=bool)
    )


def stored_points(passes: Sequence[DualEvaluation], rows: int, *, level: bool) -> StoredPoints:
    """Returns the points at which all classes were evaluated."""
    points = no_points(rows)
    if not passes:
        return points
    sums, at = np.zeros((len(passes), rows + SCALARS)), [each.at for each in passes]
    for k, found in enumerate(each.sums for each in passes):
        sums[k, :rows] = found.demand
        sums[k, rows:] = found.exact_cost, found.exact_slope, found.value, 0.0, found.unreached
    return StoredPoints(
        np.array([point.prices for point in at]),
        np.array([point.z if level else 1.0 for point in at]),
        np.array([point.softness * point.reference for point in at]),
        sums,
        np.zeros(len(passes), dtype=bool),
    )


def join_points(some: StoredPoints, others: StoredPoints) -> StoredPoints:
    """Returns the points of both sets."""
    return StoredPoints(
        np.vstack([some.prices, others.prices]),
        np.concatenate([some.z, others.z]),
        np.vstack([some.softness, others.softness]),
        np.vstack([some.sums, others.sums]),
        np.concatenate([some.spoiled, others.spoiled]),
    )


@dataclass(frozen=True, slots=True, eq=False)
class PointCriteria:
    """The criteria for a mixture of points: what it has to fit, and what is maximised."""

    capacity: FloatArray
    level: bool
    #: The level at which the first class has all that it can have; used for a MaxMin only.
    highest: float
    #: The sum of all members' weights for a NashWelfare; None for other objectives.
    weight: float | None
    #: Whether some class has a floor.
    floors: bool


@dataclass(frozen=True, slots=True, eq=False)
class PointMixture:
    """The weight of each point (K,), and the objective that the mixture reaches; -inf where no shares are known."""

    weight: FloatArray
    reached: float


def points_bound(points: StoredPoints, criteria: PointCriteria) -> float:
    """Returns the smallest upper bound that one of the points proves."""
    left = points.prices @ criteria.capacity - points.scalar(_COST)
    if not criteria.level:
        return float(left.min(initial=np.inf))
    slope = points.scalar(_SLOPE)
    # Costs are convex in the level, so their tangent reaches the income at a level no lower than they do.
    rising = slope > 0
    bounds = points.z[rising] + left[rising] / slope[rising]
    return float(max(bounds.min(initial=criteria.highest), 0.0))


class MixtureProgram:
    """The linear program over the points, with its solver kept between calls."""

    def __init__(self) -> None:
        from optimizer.lp import highs  # imports highspy and scipy: only where one problem is kept

        self._highs: Any = highs
        self._solver: Any = highs.highs_solver(
            presolve="off", solver="simplex", primal_feasibility_tolerance=1e-10, dual_feasibility_tolerance=1e-9
        )

    def mix(self, points: StoredPoints, criteria: PointCriteria) -> PointMixture:
        """Returns the feasible mixture with the largest objective; of weight 0 where there is none."""
        # A class that misses a level at a point has all that it can have there: `highest` limits the level.
        usable = np.flatnonzero(~points.spoiled & (criteria.level | (points.scalar(_UNREACHED) < 0.5)))
        none = PointMixture(np.zeros(len(points)), -np.inf)
        if not len(usable):
            return none
        with np.errstate(divide="ignore", invalid="ignore"):
            part = points.demand[usable] / criteria.capacity
        part = np.where(points.demand[usable] > 0, part, 0.0)
        gain = np.minimum(points.z, criteria.highest)[usable] if criteria.level else points.scalar(_VALUE)[usable]
        whole = criteria.floors or criteria.weight is not None
        found = self._solved(gain, part, whole, criteria.weight)
        if found is None:
            return none
        total = float(found.sum())
        found = found / total if whole else found / max(total, 1.0)
        over = max(float((found @ part).max(initial=0.0)), 1.0)
        if over > 1.0 and criteria.floors:
            return none
        reached = float(gain @ found)
        reached = reached / over if criteria.weight is None else reached - criteria.weight * float(np.log(over))
        weight = np.zeros(len(points))
        weight[usable] = found / over
        return PointMixture(weight, reached)

    def _solved(self, gain: FloatArray, part: FloatArray, whole: bool, divide: float | None) -> FloatArray | None:
        """Returns the weights of the points, None without an optimum; `divide`: the cost per unit of dividing all
        shares by more than 1.
        """
        count, rows = part.shape
        gain = gain - gain.max() if whole else gain
        table = np.hstack([part, np.ones((count, 1))])
        if divide is not None:
            gain = np.append(gain, -divide)
            table = np.vstack([table, np.append(np.full(rows, -1.0), 0.0)])
        count_of_columns = len(gain)
        matrix = self._highs.ColumnMatrix(
            np.arange(count_of_columns + 1) * (rows + 1), np.tile(np.arange(rows + 1), count_of_columns), table.ravel()
        )
        program = self._highs.highs_model(
            -gain / max(float(np.abs(gain).max()), 1e-300),
            matrix,
            np.append(np.full(rows, 1.0 - _SLACK), 1.0),
            row_lower=np.append(np.full(rows, -np.inf), 1.0 if whole else -np.inf),
        )
        self._solver.passModel(program)
        self._solver.run()
        if self._highs.STATUS_OF_HIGHS.get(self._solver.getModelStatus()) is not Status.OPTIMAL:
            return None
        found = np.maximum(np.array(self._solver.getSolution().col_value[:count]), 0.0)
        return found if found.sum() > 0 or not whole else None
