"""The value of a fleet as a function of the machines rented: the linear program of `optimizer.renting.machines`.

Importing this module imports cvxpy.
"""

from dataclasses import dataclass

import cvxpy as cp
import numpy as np
from scipy import sparse

from optimizer.arrays.owners import best_by
from optimizer.fairness.utility import usable_columns
from optimizer.market.class_market import market_of
from optimizer.problem import FloatArray, IntArray, Problem
from optimizer.programs.definition import by_class, by_row
from optimizer.programs.solver import solve_program


@dataclass(frozen=True, slots=True, eq=False)
class Fluid:
    """An optimum in which machines may be divided: how many (p,), prices in USD per accelerator-hour (p,), USD/h."""

    machines: FloatArray
    prices: FloatArray
    net: float


class RentProgram:
    """Best value less rent for any range of machine counts. Compiled once per problem."""

    def __init__(self, problem: Problem, value: FloatArray, most: IntArray, fetched_usd_per_h: FloatArray) -> None:
        """Take the jobs' values in USD per hour at best speed (n,), the largest counts of machines (p,), and what an
        accelerator costs that is not there yet (p,).
        """
        pools = problem.pools
        self.size = np.maximum(pools.machine_size, 1.0)
        base = pools.capacity - pools.held
        largest = base + most * self.size
        self._paid = pools.paid / self.size
        self._usd_kept = pools.usd_per_h * self.size
        self._usd_fetched = fetched_usd_per_h * self.size
        worth = _worth(problem, value, largest)
        classes = market_of(problem, worth > 0, [worth], [value])
        market = classes.market
        self._scale = np.maximum(largest, 1.0)
        self._rows = 2 * market.classes + market.rows
        self._known: dict[tuple[int, ...], float] = {}
        self._x = cp.Variable(market.columns, nonneg=True)
        self._rent = cp.Variable(len(pools), nonneg=True)
        self._low = cp.Parameter(len(pools), nonneg=True)
        self._high = cp.Parameter(len(pools), nonneg=True)
        gross = (classes.per_column(worth) * market.size[market.owner()]) @ self._x
        used = sparse.diags_array(1.0 / self._scale) @ by_row(market) @ self._x
        there = base / self._scale + sparse.diags_array(self.size / self._scale) @ self._rent
        self._capacity = used <= there
        time = by_class(market, np.ones(market.columns)) @ self._x <= 1
        rows = [self._capacity, time, self._rent >= self._low, self._rent <= self._high]
        cost = self._usd_kept @ self._rent
        if np.any(self._usd_fetched > self._usd_kept):
            cost += (self._usd_fetched - self._usd_kept) @ cp.pos(self._rent - self._paid)
        self._cvxpy = cp.Problem(cp.Maximize(gross - cost), rows)

    def usd_of(self, counts: IntArray) -> FloatArray:
        """Price of the last machine of each pool's count, USD/h: there, on its way, or still to be fetched (p,)."""
        return np.where(counts > self._paid + 1e-9, self._usd_fetched, self._usd_kept)

    def between(self, low: FloatArray, high: FloatArray) -> Fluid | None:
        """The optimum with counts between `low` and `high`; None if no solver answers."""
        self._low.value, self._high.value = low, high
        if not solve_program(self._cvxpy, self._rows).solved:
            return None
        prices = np.maximum(self._capacity.dual_value, 0.0) / self._scale
        machines = np.clip(np.asarray(self._rent.value), low, high)
        return Fluid(machines, prices, float(self._cvxpy.value))

    def net_between(self, low: FloatArray, high: FloatArray) -> float:
        """Best value less rent with counts between the two, USD/h; -inf if no solver answers."""
        fluid = self.between(low, high)
        return -np.inf if fluid is None else fluid.net

    def net(self, counts: IntArray) -> float:
        """Best value less rent at whole counts, USD/h. Remembered."""
        key = tuple(counts.tolist())
        if key not in self._known:
            self._known[key] = self.net_between(counts.astype(np.float64), counts.astype(np.float64))
        return self._known[key]


def _worth(problem: Problem, value: FloatArray, capacity: FloatArray) -> FloatArray:
    """USD per hour that each column earns when it runs all the time (c,)."""
    columns = problem.columns
    rate = np.where(usable_columns(columns, capacity), columns.steps_per_s, 0.0)
    best = best_by(columns.job, rate, len(problem.jobs))[columns.job]
    return np.divide(rate * value[columns.job], best, out=np.zeros(len(columns)), where=best > 0)
