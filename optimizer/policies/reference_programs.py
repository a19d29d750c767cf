"""Building blocks of the policies' published formulas in cvxpy, column by column, job by job, pair by pair.

Every policy of the linear family states itself once as such a program (`definition`): people can read it, and tests
compare every faster method with it. It has no classes, no scaling and no stages. Importing this module imports cvxpy.

With co-location there are as many variables as there are pairs of jobs, and no pair is left out:

    x[c] >= 0   share of time of a column alone            X[i, j, r] >= 0   share of time of a pair in pool r
    sum of the shares in which a job takes part <= 1       a pair holds its gang's accelerators once
    u[i] = sum worth[c] x[c]  +  sum f[i, j, r] worth[i, r] X[i, j, r]

`level_items` writes one level over a tree of entities out over entities and jobs: what
`optimizer.utility.entity_targets` says of classes between two breakpoints, without floors and caps.
"""

from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
from scipy import sparse

from optimizer.problem import BoolArray, FloatArray, IntArray, Problem
from optimizer.utility.entity_targets import EntityHoldings
from optimizer.utility.fair_share import pool_columns


def share_variables(problem: Problem, usable: BoolArray) -> tuple[Any, list[Any]]:
    """Returns the shares of time x (c,) and their constraints: no job runs more than all the time, no pool exceeds its
    capacity.

    Args:
        problem: n jobs, c columns, p pools.
        usable: columns that may have a share at all (c,).
    """
    columns, capacity = problem.columns, problem.pools.capacity
    use = (columns.use_count, (columns.use_pool, columns.use_column))
    used = sparse.csr_array(use, shape=(len(capacity), len(columns)))
    x = cp.Variable(len(columns), nonneg=True)
    return x, [
        job_sum_matrix(problem, np.ones(len(columns))) @ x <= 1,
        used @ x <= capacity,
        x <= usable.astype(np.float64),
    ]


def job_sum_matrix(problem: Problem, values: FloatArray) -> Any:
    """Returns the matrix that sums what each job's columns are worth: values (c,) -> (n, c)."""
    columns = problem.columns
    place = (columns.job, np.arange(len(columns)))
    return sparse.csr_array((values, place), shape=(len(problem.jobs), len(columns)))


@dataclass(frozen=True, slots=True, eq=False)
class JobPairs:
    """Every two jobs that may share, in every pool where they may: columns and kept speeds of both (2, q)."""

    column: IntArray
    keeps: FloatArray
    pool: IntArray
    count: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class ColocationProgram:
    """The shares of time as cvxpy variables, and the constraints that always hold."""

    problem: Problem
    pairs: JobPairs
    x: Any
    #: None where there are no pairs.
    shared: Any
    rows: list[Any]

    def by_job(self, worth: FloatArray) -> Any:
        """Returns what the shares are worth to each job (n,), given the worth of each column run alone all the time
        (c,).
        """
        alone = job_sum_matrix(self.problem, worth) @ self.x
        if self.shared is None:
            return alone
        return alone + _pair_worth_matrix(self.problem, self.pairs, worth, len(self.problem.jobs)) @ self.shared


def colocated_share_variables(problem: Problem, usable: BoolArray, *, packed: bool) -> ColocationProgram:
    """Returns the shares of jobs alone and in pairs, with their constraints.

    Args:
        problem: n jobs, c columns, p pools.
        usable: columns that may have a share at all (c,).
        packed: if False, there are no pairs.
    """
    n, p = len(problem.jobs), len(problem.pools)
    pairs = all_job_pairs(problem, usable if packed else np.zeros_like(usable))
    q = len(pairs.pool)
    x, alone = share_variables(problem, usable)
    if not q:
        return ColocationProgram(problem, pairs, x, None, alone)
    shared = cp.Variable(q, nonneg=True)
    both = np.concatenate((problem.columns.job[pairs.column[0]], problem.columns.job[pairs.column[1]]))
    time = sparse.csr_array((np.ones(2 * q), (both, np.tile(np.arange(q), 2))), shape=(n, q))
    held = sparse.csr_array((pairs.count, (pairs.pool, np.arange(q))), shape=(p, q))
    columns = problem.columns
    use = (columns.use_count, (columns.use_pool, columns.use_column))
    used = sparse.csr_array(use, shape=(p, len(columns)))
    rows = [
        job_sum_matrix(problem, np.ones(len(columns))) @ x + time @ shared <= 1,
        used @ x + held @ shared <= problem.pools.capacity,
        alone[-1],
    ]
    return ColocationProgram(problem, pairs, x, shared, rows)


def all_job_pairs(problem: Problem, usable: BoolArray) -> JobPairs:
    """Returns every two jobs that may share an accelerator, by row of `Pairs`."""
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
    return JobPairs(np.stack((own.column[i], own.column[j])), keeps, own.pool[i], own.count[i])


def _pair_worth_matrix(problem: Problem, pairs: JobPairs, worth: FloatArray, n: int) -> Any:
    """Returns the matrix from shares of pairs to what they are worth to each job (n, q)."""
    values = (pairs.keeps * worth[pairs.column]).ravel()
    place = (problem.columns.job[pairs.column].ravel(), np.tile(np.arange(len(pairs.pool)), 2))
    return sparse.csr_array((values, place), shape=(n, len(pairs.pool)))


@dataclass(frozen=True, slots=True, eq=False)
class LevelItems:
    """K entities, then n jobs, as items (arrays (K + n,))."""

    #: The entity to which an item belongs; K for the top.
    parent: IntArray
    #: The weight against its siblings; 1 for a job in an entity that serves its jobs in order.
    weight: FloatArray
    #: Whether the item is a job that rises, or an entity that contains one.
    rising: BoolArray
    #: The matrix that sums the items of each entity (K, K + n).
    sums: Any


def level_items(held: EntityHoldings, weight: FloatArray, rises: BoolArray) -> LevelItems:
    """Returns the tree of entities and jobs in which one level rises.

    Args:
        held: the entity of each job, and all entities.
        weight: of each job against its siblings (n,).
        rises: jobs that have not settled yet (n,).
    """
    entities, k, n = held.entities, len(held.entities), len(weight)
    in_order = np.concatenate((entities.fifo, [False]))[held.place]
    rises = rises & (in_order | (weight > 0))
    for entity in np.flatnonzero(entities.fifo):
        waiting = np.flatnonzero(rises & (held.place == entity))
        rises[waiting] = held.rank[waiting] == held.rank[waiting].min(initial=np.inf)
    above = np.concatenate((entities.parent, held.place))
    parent = np.where(above >= 0, above, k)
    rising = np.concatenate((np.zeros(k, dtype=bool), rises))
    for row in reversed(range(k)):  # Parents come before their children.
        rising[row] = entities.weight[row] > 0 and rising[parent == row].any()
    inside = np.flatnonzero(above >= 0)
    return LevelItems(
        parent=parent,
        weight=np.concatenate((entities.weight, np.where(in_order, 1.0, weight))),
        rising=rising,
        sums=sparse.csr_array((np.ones(len(inside)), (above[inside], inside)), shape=(k, k + n)),
    )
