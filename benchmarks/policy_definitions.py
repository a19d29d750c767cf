"""The policies' published formulas as programs in cvxpy: column by column, job by job, pair by pair.

Every policy of the linear family is stated here once more (`definition`), as its formula reads, without classes,
scaling and stages: tests compare every faster method with it, and `bench_policies` its time.

With co-location there are as many variables as there are pairs of jobs, and no pair is left out:

    x[c] >= 0   share of time of a column alone            X[i, j, r] >= 0   share of time of a pair in pool r
    sum of the shares in which a job takes part <= 1       a pair holds its gang's accelerators once
    u[i] = sum worth[c] x[c]  +  sum f[i, j, r] worth[i, r] X[i, j, r]

`level_items` writes one level over a tree of entities out over entities and jobs: what
`optimizer.utility.entity_targets` says of classes between two breakpoints, without floors and caps.
"""

from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import cvxpy as cp
import numpy as np
from scipy import sparse

from optimizer.decision import Memory
from optimizer.policies.fairness import MaxMinFairness, ProportionalFairness
from optimizer.policies.finish_times import FinishTimeFairness, Makespan, equal_split_seconds_left
from optimizer.policies.hierarchical import Hierarchical, within_limits
from optimizer.policies.throughput import CostWithSlos, Throughput, ThroughputPerDollar, deadline_rates
from optimizer.problem import BoolArray, FloatArray, IntArray, Problem
from optimizer.utility.entity_targets import EntityHoldings, entity_holdings, non_borrowing_caps
from optimizer.utility.fair_share import column_accelerators, fair_share_utility, finish_time_facts, pool_columns


@singledispatch
def definition(policy: object, problem: Problem, told: Any = None) -> Any:
    """Returns a policy as one program over the problem's own columns (a cvxpy problem).

    `told`: what a policy needs besides: utilities that jobs keep (n,), or a memory.
    """
    raise TypeError(f"{policy} is not stated as a program")


@definition.register
def _max_min_fairness(policy: MaxMinFairness, problem: Problem) -> Any:
    """The published program: full jobs hold back the others."""
    utility = fair_share_utility(problem, aware=policy.aware)
    entitled = np.flatnonzero(utility.weight)
    shares = colocated_share_variables(problem, utility.usable, packed=policy.packed)
    u = shares.by_job(utility.worth)[entitled]
    return cp.Problem(cp.Maximize(cp.min(cp.multiply(1 / utility.weight[entitled], u))), shares.rows)


@definition.register
def _throughput(policy: Throughput, problem: Problem) -> Any:
    utility = fair_share_utility(problem, aware=policy.aware)
    shares = colocated_share_variables(problem, utility.usable, packed=policy.packed)
    u = shares.by_job(utility.worth if policy.normalised else utility.rate)
    return cp.Problem(cp.Maximize(problem.jobs.weight @ u), shares.rows)


@definition.register
def _throughput_per_dollar(policy: ThroughputPerDollar, problem: Problem) -> Any:
    utility = fair_share_utility(problem, aware=policy.aware)
    x, rows = share_variables(problem, utility.usable)
    return cp.Problem(cp.Maximize(policy.worth_per_usd(problem, utility) @ x), rows)


@definition.register
def _cost_with_slos(policy: CostWithSlos, problem: Problem) -> Any:
    """If all deadlines can be held."""
    utility = fair_share_utility(problem, aware=policy.aware)
    needed, _ = deadline_rates(problem, utility)
    held = np.flatnonzero(needed)
    x, rows = share_variables(problem, utility.usable)
    thr = (job_sum_matrix(problem, utility.rate) @ x)[held]
    rows.append(cp.multiply(1 / needed[held], thr) >= 1)
    return cp.Problem(cp.Maximize(policy.sum_objective(problem, utility, needed).value @ x), rows)


@definition.register
def _makespan(policy: Makespan, problem: Problem) -> Any:
    """Its value is 1 / T."""
    utility = fair_share_utility(problem, aware=policy.aware)
    alone_s = equal_split_seconds_left(problem, utility)
    unit_s = float(alone_s.max(initial=0.0)) or 1.0
    shares = colocated_share_variables(problem, utility.usable, packed=policy.packed)
    z = cp.Variable(nonneg=True)  # unit_s / T: about 1
    left = np.flatnonzero(alone_s)
    thr = shares.by_job(utility.rate)[left]
    enough = cp.multiply(1 / utility.equal[left], thr) >= alone_s[left] / unit_s * z
    return cp.Problem(cp.Maximize(z / unit_s), [*shares.rows, enough])


@definition.register
def _finish_time_fairness(policy: FinishTimeFairness, problem: Problem, memory: Memory = None) -> Any:
    """Its value is the largest rho."""
    utility = fair_share_utility(problem, aware=policy.aware)
    times = finish_time_facts(problem, utility, memory)
    rising = np.flatnonzero(times.rising)
    shares = colocated_share_variables(problem, utility.usable, packed=policy.packed)
    thr = shares.by_job(utility.rate)[rising]
    rho = times.past[rising] + cp.inv_pos(cp.multiply(1 / times.pace[rising], thr))  # (t + R / thr) / D
    return cp.Problem(cp.Minimize(cp.max(rho)), shares.rows)


@definition.register
def _proportional_fairness(policy: ProportionalFairness, problem: Problem) -> Any:
    utility = fair_share_utility(problem, aware=policy.aware)
    entitled = np.flatnonzero(utility.weight)
    x, rows = share_variables(problem, utility.usable)
    u = (job_sum_matrix(problem, utility.worth) @ x)[entitled]
    return cp.Problem(cp.Maximize(utility.weight[entitled] @ cp.log(u)), rows)


@definition.register
def _hierarchical(policy: Hierarchical, problem: Problem, kept: FloatArray | None = None) -> Any:
    """One level; water filling is this, again and again.

        maximise  z      z the water at the top, y[e] inside entity e
        s.t.      Y[i] = w[i] y[e]            each item i that rises inside e: an entity, or a job
                  Y[e] = sum_i Y[i]           each entity
                  u[m] >= Y[m]                each job

    Jobs with a `kept` utility (n,) keep just that (nan, as all do at first: they rise). In an entity that serves
    in order only the first job that is not kept rises. Limits and own parts hold; guarantees come before and are
    not in it, weights of 0 after.
    """
    held = entity_holdings(problem, policy.entities(problem.entities))
    utility = within_limits(fair_share_utility(problem, aware=policy.aware), held, problem)
    rises = utility.best > 0 if kept is None else (utility.best > 0) & np.isnan(kept)
    tree = level_items(held, problem.jobs.weight, rises)
    k, stays = len(held.entities), np.zeros(len(problem.jobs)) if kept is None else np.nan_to_num(kept)
    x, rows = share_variables(problem, utility.usable)
    amount = cp.Variable(len(tree.parent), nonneg=True, name="amount")
    water = cp.Variable(k + 1)  # of the top: the last
    rising, settled = np.flatnonzero(tree.rising), k + np.flatnonzero(~tree.rising[k:])
    rows += [
        amount[rising] == cp.multiply(tree.weight[rising], water[tree.parent[rising]]),
        amount[settled] == stays[settled - k],
        job_sum_matrix(problem, utility.worth) @ x >= amount[k:],
    ]
    if k:
        own = non_borrowing_caps(held.entities, float(problem.pools.capacity.sum()))
        closed, limited = np.flatnonzero(np.isfinite(own)), held.below[:, problem.columns.job]
        rows += [amount[:k] == tree.sums @ amount, amount[closed] <= own[closed]]
        rows += [(column_accelerators(problem.columns) * limited) @ x <= held.allowed]
    return cp.Problem(cp.Maximize(water[k]), rows)


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
