"""What packed policies' formulas are written in: all columns alone and all pairs of two jobs, in cvxpy.

The counterpart of `optimizer.programs.formula` with space sharing, for people to read and for tests to compare with: as
many variables as there are pairs of jobs, no classes, no sides, no pair left out. Importing this module imports cvxpy.

    x[c] >= 0   share of time of a column alone            X[i, j, r] >= 0   share of time of a pair in pool r
    sum of the shares in which a job takes part <= 1       a pair holds its gang's accelerators once
    u[i] = sum worth[c] x[c]  +  sum f[i, j, r] worth[i, r] X[i, j, r]
"""

from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
from scipy import sparse

from optimizer.fairness.utility import pool_columns
from optimizer.problem import BoolArray, FloatArray, IntArray, Problem
from optimizer.programs.formula import by_job, shares_in


@dataclass(frozen=True, slots=True, eq=False)
class AllPairs:
    """Every two jobs that may share, in every pool where they may: columns and kept speeds of both (2, q)."""

    column: IntArray
    keeps: FloatArray
    pool: IntArray
    count: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class PackedFormula:
    """Shares as cvxpy variables, and what always holds of them."""

    problem: Problem
    pairs: AllPairs
    x: Any
    #: None without any pair.
    shared: Any
    rows: list[Any]

    def by_job(self, worth: FloatArray) -> Any:
        """What the shares are worth to each job, at so much for each column run alone all the time: (c,) -> (n,)."""
        alone = by_job(self.problem, worth) @ self.x
        if self.shared is None:
            return alone
        return alone + _of_jobs(self.problem, self.pairs, worth, len(self.problem.jobs)) @ self.shared


def packed_shares_in(problem: Problem, usable: BoolArray, *, packed: bool) -> PackedFormula:
    """Shares alone and in pairs, and their constraints.

    Args:
        problem: n jobs, c columns, p pools.
        usable: columns that may have a share at all (c,).
        packed: False: no pairs.
    """
    n, p = len(problem.jobs), len(problem.pools)
    pairs = every_pair(problem, usable if packed else np.zeros_like(usable))
    q = len(pairs.pool)
    x, alone = shares_in(problem, usable)
    if not q:
        return PackedFormula(problem, pairs, x, None, alone)
    shared = cp.Variable(q, nonneg=True)
    both = np.concatenate((problem.columns.job[pairs.column[0]], problem.columns.job[pairs.column[1]]))
    time = sparse.csr_array((np.ones(2 * q), (both, np.tile(np.arange(q), 2))), shape=(n, q))
    held = sparse.csr_array((pairs.count, (pairs.pool, np.arange(q))), shape=(p, q))
    columns = problem.columns
    use = (columns.use_count, (columns.use_pool, columns.use_column))
    used = sparse.csr_array(use, shape=(p, len(columns)))
    rows = [
        by_job(problem, np.ones(len(columns))) @ x + time @ shared <= 1,
        used @ x + held @ shared <= problem.pools.capacity,
        alone[-1],
    ]
    return PackedFormula(problem, pairs, x, shared, rows)


def every_pair(problem: Problem, usable: BoolArray) -> AllPairs:
    """Every two jobs that may share, by row of `Pairs`."""
    pairs, columns = problem.pairs, problem.columns
    own = pool_columns(columns, usable)
    listed: list[tuple[IntArray, IntArray, int]] = []
    for number in range(0 if pairs is None else len(pairs)):
        assert pairs is not None
        there = own.pool == pairs.pool[number]
        kind = pairs.kind[columns.job[own.column]]
        ends = (np.flatnonzero(there & (kind == end)) for end in (pairs.first[number], pairs.second[number]))
        one, other = (index.ravel() for index in np.meshgrid(*ends, indexing="ij"))
        fits = own.count[one] == own.count[other]
        fits &= (one < other) if pairs.first[number] == pairs.second[number] else True
        listed.append((one[fits], other[fits], number))
    none = np.zeros(0, dtype=np.int64)
    i = np.concatenate([none, *(first for first, _, _ in listed)])
    j = np.concatenate([none, *(second for _, second, _ in listed)])
    row = np.concatenate([none, *(np.full(len(first), number) for first, _, number in listed)])
    keeps = np.zeros((2, 0)) if pairs is None else np.stack((pairs.first_factor[row], pairs.second_factor[row]))
    return AllPairs(np.stack((own.column[i], own.column[j])), keeps, own.pool[i], own.count[i])


def _of_jobs(problem: Problem, pairs: AllPairs, worth: FloatArray, n: int) -> Any:
    """The matrix from shares of pairs to what they are worth to each job (n, q)."""
    values = (pairs.keeps * worth[pairs.column]).ravel()
    place = (problem.columns.job[pairs.column].ravel(), np.tile(np.arange(len(pairs.pool)), 2))
    return sparse.csr_array((values, place), shape=(n, len(pairs.pool)))
