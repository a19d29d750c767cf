"""Limits of projects and users as rows of the rental program: nothing is rented for work that a limit would stop.

    sum_{c of jobs below e} use[c in the scope of l] x_c  <=  m_l          each limit l of an entity e     (mu_l)

The scope of a limit is the fleet, a type of accelerator, or a pool. m_l is what the entity may hold there, less what
riders hold already, and at least what runs there: lowering a limit takes nothing from running jobs. Gangs are whole,
so m_l is rounded down to a multiple of the largest number that divides all gangs below e: with gangs of 4 and a limit
of 6, half of a second gang pays for no machine. A configuration larger than a limit above its job does not count.

A limit given as a part of the fleet counts of the largest fleet that could be rented, since the fleet is what is being
decided. Without limits the program is the same to the bit.
"""

from dataclasses import dataclass, replace

import numpy as np

from optimizer.assignment.limit_rows import counted_use, jobs_below, less_what_is_held
from optimizer.classes.aggregation import JobPartition
from optimizer.classes.class_problem import ClassProblem
from optimizer.problem import BoolArray, EntityLimits, FloatArray, IntArray, Problem

#: Slack for comparing counts that were computed in floating point.
_WHOLE = 1e-9


def entity_limits(problem: Problem) -> EntityLimits | None:
    """Returns the limits that bind what is rented, in accelerators; None where there are none."""
    if problem.limits is not None:
        return problem.limits if len(problem.limits) else None
    limit, pools = problem.entities.limit, problem.pools
    entity = np.flatnonzero(limit < 1)
    if not len(entity):
        return None
    largest = float((pools.capacity - pools.held + np.maximum(pools.rentable, pools.held)).sum())
    return EntityLimits(entity, limit[entity] * largest, np.ones((len(entity), len(pools)), dtype=np.bool_))


@dataclass(frozen=True, slots=True, eq=False)
class RentalLimits:
    """The m limits on rented accelerators, over c columns of n jobs."""

    #: The accelerators that may be held (m,).
    most: FloatArray
    #: Whether each job is below each limit (m, n), and the accelerators of each column that count (m, c); 0 for other
    #: jobs' columns.
    inside: BoolArray
    use: FloatArray

    @classmethod
    def of(cls, problem: Problem, competes: BoolArray) -> "RentalLimits | None":
        """Returns the limits on the jobs that compete for rented machines (`competes`, (n,)); None where no limit
        applies.
        """
        limits = entity_limits(problem)
        if limits is None:
            return None
        columns = problem.columns
        inside = jobs_below(problem, limits.entity)
        use = counted_use(problem, limits) * (inside & competes)[:, columns.job]
        running = use @ columns.running
        whole = [_largest_divisor(each[each > 0]) for each in use]
        most = np.floor(limits.accelerators / whole + _WHOLE) * whole
        return cls(np.maximum(most, running), inside, use)

    @property
    def signature(self) -> FloatArray:
        """Returns a number for each job that is equal for jobs below the same limits (n,)."""
        return np.asarray(np.unique(self.inside, axis=1, return_inverse=True)[1].ravel(), dtype=np.float64)

    def rows_beside(self, problem: ClassProblem, classes: JobPartition) -> ClassProblem:
        """Returns the class problem with one more row for each limit, after those of the pools."""
        row, column = np.nonzero(self.use[:, classes.column] > 0)
        known = np.repeat(np.arange(problem.columns), np.diff(problem.use_first))
        owner = np.concatenate((known, column))
        order = np.argsort(owner, kind="stable")
        counts = np.concatenate((problem.use_count, self.use[row, classes.column[column]]))
        rows = np.concatenate((problem.use_row, problem.rows + row))
        return replace(
            problem,
            use_first=np.searchsorted(owner[order], np.arange(problem.columns + 1)),
            use_row=rows[order].astype(np.int32),
            use_count=counts[order],
            capacity=np.concatenate((problem.capacity, self.most)),
        )


def without_forbidden(problem: Problem) -> Problem:
    """Returns the problem in which configurations larger than a limit above their job have speed 0."""
    limits = entity_limits(problem)
    if limits is None:
        return problem
    columns = problem.columns
    found = RentalLimits.of(problem, np.ones(len(problem.jobs), dtype=np.bool_))
    assert found is not None
    larger = (found.use > limits.accelerators[:, None] + _WHOLE).any(axis=0) & ~columns.running
    if not larger.any():
        return problem
    return replace(problem, columns=replace(columns, steps_per_s=np.where(larger, 0.0, columns.steps_per_s)))


def limits_beside(problem: Problem, column: IntArray) -> EntityLimits | None:
    """Returns the limits less what these columns (any number), whose jobs do not compete, take of them."""
    limits = entity_limits(problem)
    return None if limits is None else less_what_is_held(problem, limits, column)


def _largest_divisor(counts: FloatArray) -> float:
    """Returns the greatest common divisor of whole counts; 1 where there are none, or they are not whole."""
    whole = np.unique(np.round(counts)).astype(np.int64)
    if not len(whole) or np.any(np.abs(counts - np.round(counts)) > _WHOLE):
        return 1.0
    return float(np.gcd.reduce(whole))


@dataclass(frozen=True, slots=True, eq=False)
class RentedTiers:
    """What can be rented of each pool, in accelerators, by its cost (p,)."""

    prepaid: FloatArray
    held: FloatArray
    more: FloatArray
    #: The price in USD per accelerator-hour of those held, and of those that would have to be fetched (p,).
    kept_usd_per_h: FloatArray
    fetched_usd_per_h: FloatArray


def money_cells(problem: ClassProblem) -> int:
    """Returns the number of cells of the tables that a problem fills: classes x configurations x pools, padded."""
    _, shape = table_places(problem)
    return shape[0] * shape[1] * padded(problem.rows)


def table_places(problem: ClassProblem) -> tuple[IntArray, tuple[int, int]]:
    """Returns the index of each column among the configurations of its class (C,), and the padded shape
    of the table.
    """
    owner = problem.owner
    place = np.arange(problem.columns) - problem.first[owner]
    return place, (padded(problem.classes), padded(int(place.max(initial=0)) + 1))


def padded(size: int) -> int:
    """Returns the smallest power of two that is not below `size`."""
    return 1 << max(size - 1, 0).bit_length()
