"""What a place is worth to a job: a concave priority times the relative efficiency of the place.

    p_c = left on c + restart [c is another place than now];  divided by (1 + stay) where it runs now
    p*  = min_c p_c
    D   = s p* / (w (1 + waited / length / patience)^aging)      accelerator-seconds still needed, discounted
    v_c = s^(1 - size) D^-gamma (p* / p_c)^eta                   s: accelerators of the best configuration
    on rented machines, for a job worth V USD per hour:  v_c (1 - price of c / (V e_c)),  e_c its relative speed

For an elastic job p* and s are those of its reference, the configuration of most steps per accelerator-second
(`remaining_time.reference_configurations`), so that larger gangs are worth more than that: v grows with the root of
the speed. At prices a job grows to where the next accelerators add less than they cost; arrivals raise prices, and it
shrinks.

gamma = eta = 1 is the greedy rate of completion. Small exponents favour short jobs without letting them take the
places on which others are far more productive. In money, what a place costs is subtracted.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.assignment.remaining_time import JobLengths, ReferenceConfigurations
from optimizer.classes.segments import max_by, sum_by
from optimizer.problem import BoolArray, FloatArray, IntArray, Problem
from optimizer.utility.fair_share import usable_columns

#: The time left counts as at least this many seconds, so that the value of a job close to its end stays bounded.
LEAST_S = 1.0


@dataclass(frozen=True, slots=True)
class ValueTerms:
    """The exponents and factors in the value of a column (the formula is at the top of this module)."""

    gamma: float = 0.15
    eta: float = 0.5
    patience: float = 1.0
    aging: float = 1.0
    stay: float = 0.05
    #: What one USD per hour is worth, in the unit of the values.
    usd: float = 0.0
    #: Exponent by which a gang is worth less the more accelerators it takes.
    size: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class ColumnValues:
    """The values of all columns, with the times from which they follow."""

    #: Worth of each column, 0 where it cannot be used (c,).
    value: FloatArray
    #: Seconds until the job would end there, its restart included; inf where it cannot be used (c,).
    ends_s: FloatArray
    #: Accelerators that each column takes, over all pools (c,).
    size: FloatArray


def column_values_of(
    problem: Problem, lengths: JobLengths, reference: ReferenceConfigurations, terms: ValueTerms
) -> ColumnValues:
    """Returns the value of every column of every job (the formula above), with its time and its accelerators."""
    jobs, columns = problem.jobs, problem.columns
    n, c = len(jobs), len(columns)
    size = sum_by(columns.use_column, columns.use_count, c)
    usable = _allowed(problem)
    at = slice(None) if usable.all() else usable
    ends_s = np.full(c, np.inf)
    ratio = np.zeros(c)
    np.divide(reference.rate[columns.job], columns.steps_per_s, out=ratio, where=usable)
    restart_s = (jobs.restart_s if len(jobs.restart_s) else np.zeros(n))[columns.job]
    ends_s[at] = np.maximum((lengths.left_s[columns.job] * ratio)[at], LEAST_S)
    ends_s += np.where(columns.running, 0.0, restart_s)
    felt_s = np.where(columns.running, ends_s / (1.0 + terms.stay), ends_s)
    least_s = _least_by(columns.job, felt_s, n)
    best_size = _size_of_best(columns.job, felt_s, least_s, size, n)
    if reference.elastic.any():
        least_s = np.where(reference.elastic, np.maximum(lengths.left_s, LEAST_S), least_s)
        best_size = np.where(reference.elastic, reference.size, best_size)
    waited = np.maximum(problem.at - jobs.submitted_at, 0.0) / lengths.total_s
    age = (1.0 + waited / terms.patience) ** terms.aging
    need = best_size * least_s / (np.maximum(jobs.relative_weight, 1e-12) * age)
    priority = np.zeros(n)
    able = np.isfinite(need) & (need > 0)
    priority[able] = best_size[able] ** (1.0 - terms.size) * need[able] ** -terms.gamma
    value = np.zeros(c)
    job = columns.job[at]
    value[at] = priority[job] * (least_s[job] / felt_s[at]) ** terms.eta
    value *= _surplus_shares(problem)
    if terms.usd > 0:
        cost = problem.pools.usd_per_h[columns.use_pool] * columns.use_count
        value = np.maximum(value - terms.usd * sum_by(columns.use_column, cost, c), 0.0)
    return ColumnValues(value, np.where(usable, ends_s, np.inf), size)


def _surplus_shares(problem: Problem) -> FloatArray:
    """Returns the part of what each column earns a job in USD that its market price leaves (c,).

    It is 1 on owned machines and for jobs whose hour has no value in USD, 0 where the price is not earned.
    """
    columns, pools, stated = problem.columns, problem.pools, problem.jobs.value_usd_per_h
    share = np.ones(len(columns))
    if not (pools.held.any() and np.any(stated > 0)):
        return share
    usd_per_h = np.where(pools.held > 0, pools.usd_per_h, 0.0)
    cost = sum_by(columns.use_column, usd_per_h[columns.use_pool] * columns.use_count, len(columns))
    best = max_by(columns.job, columns.steps_per_s, len(problem.jobs))[columns.job]
    earned = np.nan_to_num(stated)[columns.job] * np.divide(
        columns.steps_per_s, best, out=np.zeros(len(columns)), where=best > 0
    )
    pays = (cost > 0) & (np.nan_to_num(stated) > 0)[columns.job]
    share[pays] = np.maximum(
        1.0 - np.divide(cost[pays], earned[pays], out=np.ones(int(pays.sum())), where=earned[pays] > 0), 0.0
    )
    return share


def _allowed(problem: Problem) -> BoolArray:
    """Returns the columns that fit the empty fleet (c,). A job that cannot be moved has only the column in which it
    runs.
    """
    usable = usable_columns(problem.columns, problem.pools.capacity)
    if len(problem.jobs.pinned):
        usable &= ~problem.jobs.pinned[problem.columns.job] | problem.columns.running
    return usable


def _least_by(owner: IntArray, amount: FloatArray, n: int) -> FloatArray:
    """Returns the smallest amount of each owner (n,); inf for an owner without any."""
    least = np.full(n, np.inf)
    np.minimum.at(least, owner, amount)
    return least


def _size_of_best(
    owner: IntArray,
    felt_s: FloatArray,
    least_s: FloatArray,
    size: FloatArray,
    n: int,
) -> FloatArray:
    """Returns the accelerators of each job's best column (n,), the fewest among equals; 1 for a job
    without a column.
    """
    smallest = np.full(n, np.inf)
    best = felt_s <= least_s[owner]
    np.minimum.at(smallest, owner[best], size[best])
    return np.where(np.isfinite(smallest), smallest, 1.0)
