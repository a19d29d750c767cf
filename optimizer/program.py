"""The constraints that every linear policy shares, as sparse matrices over classes; and shares made feasible.

Symbols: x[C] share of time of one member of a class in a class column, size[k] members of class k.

    sum_C x <= 1                                    time of each member
    sum_C size use[C,p] x[C] / capacity[p] <= 1     each pool
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from optimizer.aggregate import Classes, class_uses
from optimizer.problem import Columns, FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class ClassProgram:
    """Constraint matrices of k classes with C columns on p pools. Rows are scaled so that right-hand sides are 1."""

    #: Members of each class (k,), class of each column (C,), accelerators of each pool (p,).
    size: FloatArray
    owner: IntArray
    capacity: FloatArray
    #: Sum of the shares of a class (k, C).
    time: Any
    #: Accelerators that one member's column takes of each pool (p, C).
    use: Any
    #: Part of each pool that all members of a column's class take (p, C).
    load: Any

    @property
    def rows(self) -> int:
        """Constraints, utilities included."""
        return 2 * len(self.size) + len(self.capacity)

    def utility(self, worth: FloatArray) -> Any:
        """Matrix from shares to the utility of one member of each class (k, C)."""
        return sparse.csr_array((worth, (self.owner, np.arange(len(self.owner)))), shape=self.time.shape)

    def cost(self, prices: FloatArray) -> FloatArray:
        """Price of each class column for one member (C,)."""
        cost: FloatArray = self.use.T @ prices
        return cost


def class_program(columns: Columns, classes: Classes, capacity: FloatArray) -> ClassProgram:
    """Constraints of the classes. Pools without capacity have no usable column and so an empty row."""
    uses = class_uses(columns, classes)
    shape = (len(capacity), len(classes.column))
    size = classes.size.astype(np.float64)
    members = size[classes.column_class[uses.use_column]]
    part = members * uses.use_count / np.where(capacity > 0, capacity, 1.0)[uses.use_pool]
    index = (uses.use_pool, uses.use_column)
    ones = np.ones(len(classes.column))
    time = sparse.csr_array(
        (ones, (classes.column_class, np.arange(len(ones)))), shape=(len(classes), len(classes.column))
    )
    return ClassProgram(
        size=size,
        owner=classes.column_class,
        capacity=capacity,
        time=time,
        use=sparse.csr_array((uses.use_count, index), shape=shape),
        load=sparse.csr_array((part, index), shape=shape),
    )


def make_feasible(program: ClassProgram, x: FloatArray) -> FloatArray:
    """Clip what a solver left outside and scale down every column that touches an overfull row.

    After it no constraint is violated beyond rounding, at the price of at most the violation found (1e-9, typically).
    """
    x = np.clip(np.nan_to_num(x), 0.0, 1.0)
    x = x / np.maximum(program.time @ x, 1.0)[program.owner]
    overfull = np.maximum(program.load @ x, 1.0)
    worst = program.load.copy()
    worst.data = overfull[_row_of(worst)]
    return np.asarray(x / np.maximum(worst.max(axis=0).toarray().reshape(-1), 1.0))


def _row_of(matrix: Any) -> IntArray:
    """Row of each stored entry of a CSR matrix."""
    return np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
