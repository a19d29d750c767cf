"""Classes of jobs facing pools: the arrays that every solve path takes. Decides nothing.

A *row* is something scarce with a price: a pool, or a limit that some jobs share (of a project, of a budget). Shapes:
k classes, C class columns, U uses, r rows; the first p rows are the pools. What a class says holds for each member.

    x[C] >= 0                                       share of time of one member
    sum_C x[C] <= 1                                 each class
    sum_C size[class] use[C, r] x[C] <= capacity[r] each row
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optimizer.problem import FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Market:
    """Who wants what. Uses are grouped by column, columns by class, both as offsets."""

    #: Members of each class (k,).
    size: FloatArray
    #: Columns of class i are first[i]:first[i + 1] (k + 1,).
    first: IntArray
    #: Uses of column c are use_first[c]:use_first[c + 1], at least one (C + 1,).
    use_first: IntArray
    #: Row of each use, and how much of it one member takes who runs the column all the time (U,).
    use_row: NDArray[np.int32]
    use_count: FloatArray
    #: How much there is of each row, > 0 for every row that is used (r,).
    capacity: FloatArray

    @property
    def classes(self) -> int:
        """k."""
        return len(self.size)

    @property
    def columns(self) -> int:
        """C."""
        return len(self.use_first) - 1

    @property
    def rows(self) -> int:
        """r."""
        return len(self.capacity)

    @property
    def single_use(self) -> bool:
        """True: every column uses exactly one row, so use c belongs to column c."""
        return len(self.use_row) == self.columns and self.use_first[-1] == self.columns

    def owner(self) -> IntArray:
        """Class of each column (C,)."""
        return np.repeat(np.arange(self.classes), np.diff(self.first))

    def cost(self, prices: FloatArray) -> FloatArray:
        """What one member pays for running each column all the time (C,)."""
        paid = self.use_count * prices[self.use_row]
        if self.single_use:
            return paid
        return np.add.reduceat(paid, self.use_first[:-1]) if len(paid) else np.zeros(0)

    def used(self, x: FloatArray) -> FloatArray:
        """How much of each row the shares take, all members together (r,)."""
        taken = np.repeat(self.size, np.diff(self.first)) * x
        per_use = self.use_count * (taken if self.single_use else np.repeat(taken, np.diff(self.use_first)))
        return np.bincount(self.use_row, weights=per_use, minlength=self.rows).astype(np.float64)
