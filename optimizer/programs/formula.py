"""What the policies' formulas are written in: a problem's shares and constraints in cvxpy, column by column.

Every policy of the linear family states itself once as such a program (`definition`): for people to read, and for tests
to compare every faster way with. No classes, no scaling, no stages. Importing this module imports cvxpy.
"""

from typing import Any

import cvxpy as cp
import numpy as np
from scipy import sparse

from optimizer.problem import BoolArray, FloatArray, Problem


def shares_in(problem: Problem, usable: BoolArray) -> tuple[Any, list[Any]]:
    """Shares of time x (c,), and what always holds of them: nobody runs more than all the time, no pool is overfull.

    Args:
        problem: n jobs, c columns, p pools.
        usable: columns that may have a share at all (c,).
    """
    columns, capacity = problem.columns, problem.pools.capacity
    use = (columns.use_count, (columns.use_pool, columns.use_column))
    used = sparse.csr_array(use, shape=(len(capacity), len(columns)))
    x = cp.Variable(len(columns), nonneg=True)
    return x, [by_job(problem, np.ones(len(columns))) @ x <= 1, used @ x <= capacity, x <= usable.astype(np.float64)]


def by_job(problem: Problem, values: FloatArray) -> Any:
    """The matrix that sums what each job's columns are worth: values (c,) -> (n, c)."""
    columns = problem.columns
    place = (columns.job, np.arange(len(columns)))
    return sparse.csr_array((values, place), shape=(len(problem.jobs), len(columns)))
