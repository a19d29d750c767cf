"""An assignment of jobs to columns: the problem with its rows, the answer with its prices, and the bound that prices
prove.

Any prices l >= 0 of the rows bound every assignment (weak duality):

    sum_c v_c y_c  <=  sum_j max(0, max_{c of j} v_c - l.use_c)  +  l.N

Shapes: n jobs that compete, c columns, p rows: pools and, after them, limits and guarantees of entities.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from optimizer.classes.segments import sum_by
from optimizer.problem import BoolArray, FloatArray, IntArray


class ColumnUses(NamedTuple):
    """What columns take, in the form in which compiled loops read it: the first use of each column (c + 1,), and pool
    (row) and amount of each use.

    Code that numba has cached knows fields by place, and a tuple by its name: another order needs another name.
    """

    first: IntArray
    pool: IntArray
    amount: FloatArray


class AssignmentTable(NamedTuple):
    """An assignment problem in the form in which compiled loops read it (another order of fields: another name)."""

    #: First column of each job (n + 1,).
    first: IntArray
    #: The worth of each column, and its accelerators over all pools (c,).
    value: FloatArray
    size: FloatArray
    uses: ColumnUses
    #: What is free of each row (p,), and how many of the rows are pools: the first.
    capacity: FloatArray
    pools: int


@dataclass(frozen=True)
class AssignmentProblem:
    """Jobs 0..n-1, each with at least one column; columns are grouped by job, and all values are above 0."""

    #: Job of each column, ascending, and what the column is worth (c,).
    job: IntArray
    value: FloatArray
    #: Uses as parallel arrays (u,): a column, a pool (row), and how many of its accelerators the column takes.
    use_column: IntArray
    use_pool: IntArray
    use_count: FloatArray
    #: Accelerators of each pool that are free (p,).
    capacity: FloatArray
    #: Whether the job runs in the column now (c,); empty: no job runs.
    running: BoolArray = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    #: How many of the last rows of `capacity` are not pools but limits or guarantees of entities (`limit_rows`,
    #: `guarantee_rows`).
    limits: int = 0
    #: The prices from which a search begins (p,), empty: from 0; and its first step in the unit of the values, 0:
    #: derived from the values.
    start: FloatArray = field(default_factory=lambda: np.zeros(0))
    step: float = 0.0
    #: First use of each column (c + 1,), where the uses are known to ascend by column; empty: it is computed.
    use_first: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def jobs(self) -> int:
        """The number of jobs."""
        return int(self.job[-1]) + 1 if len(self.job) else 0

    @cached_property
    def first(self) -> IntArray:
        """First column of each job (n,)."""
        return np.searchsorted(self.job, np.arange(self.jobs))

    @cached_property
    def table(self) -> AssignmentTable:
        """The columns by job and their uses by column, as compiled loops read them."""
        columns, pool, count, use_first = len(self.job), self.use_pool, self.use_count, self.use_first
        if not len(use_first):
            if len(self.use_column) == columns and np.array_equal(self.use_column, np.arange(columns)):
                use_first = np.arange(columns + 1)
            else:
                if np.any(self.use_column[1:] < self.use_column[:-1]):
                    order = np.argsort(self.use_column, kind="stable")
                    pool, count = pool[order], count[order]
                use_first = np.append(0, np.cumsum(np.bincount(self.use_column, minlength=columns)))
        first, pools = np.append(self.first, columns), len(self.capacity) - self.limits
        return AssignmentTable(first, self.value, self.size, ColumnUses(use_first, pool, count), self.capacity, pools)

    @cached_property
    def size(self) -> FloatArray:
        """Accelerators of each column over all pools (c,)."""
        if not self.limits:
            return sum_by(self.use_column, self.use_count, len(self.job))
        of_pools = self.use_pool < len(self.capacity) - self.limits
        return sum_by(self.use_column[of_pools], self.use_count[of_pools], len(self.job))

    def net(self, prices: FloatArray) -> FloatArray:
        """Returns the value minus price of each column (c,)."""
        return self.value - sum_by(self.use_column, prices[self.use_pool] * self.use_count, len(self.job))

    def used(self, column: IntArray) -> FloatArray:
        """Returns the accelerators of each pool that the columns of jobs take; -1 among them is ignored (p,)."""
        held = np.zeros(len(self.job), dtype=np.bool_)
        held[column[column >= 0]] = True
        ours = held[self.use_column]
        return sum_by(self.use_pool[ours], self.use_count[ours], len(self.capacity))

    def value_of(self, column: IntArray) -> float:
        """Returns the sum of the values of the columns of jobs, -1 for a job that waits (n,)."""
        return float(self.value[column[column >= 0]].sum())

    def best_net(self, net: FloatArray) -> FloatArray:
        """Returns the largest net value of each job's columns (n,)."""
        return np.asarray(np.maximum.reduceat(net, self.first))

    def dual_bound(self, prices: FloatArray) -> float:
        """Returns an upper bound on the value of every assignment, by weak duality at these prices (p,)."""
        return self.bound_by(self.best_net(self.net(prices)), prices)

    def bound_by(self, best_net: FloatArray, prices: FloatArray) -> float:
        """Returns `dual_bound` at these prices (p,), given the largest net value of each job at them (n,)."""
        return float(np.maximum(best_net, 0.0).sum() + prices @ self.capacity)


@dataclass(frozen=True, slots=True, eq=False)
class Assignment:
    """An assignment, with the prices that explain it."""

    #: Column of each job, -1: the job waits (n,).
    column: IntArray
    #: Price of an accelerator of each pool (p,).
    prices: FloatArray
    value: float
    #: An upper bound on the value of every assignment.
    bound: float

    @property
    def gap(self) -> float:
        """The distance between the value and the bound, as a part of the bound."""
        return (self.bound - self.value) / max(self.bound, 1e-12)


@dataclass(frozen=True, slots=True, eq=False)
class Contest:
    """An assignment that was decided, kept with its problem and with the bound that the method's prices prove."""

    question: AssignmentProblem
    bound: float
    #: Returns by how much configurations that the problem does not list raise the bound at prices of its rows (p,).
    #: None: the problem lists all configurations.
    unlisted: Callable[[FloatArray], float] | None = None

    def bound_at(self, prices: FloatArray) -> float:
        """Returns an upper bound at these prices (p,) on every assignment, including those with unlisted
        configurations.
        """
        return self.question.dual_bound(prices) + (0.0 if self.unlisted is None else self.unlisted(prices))
