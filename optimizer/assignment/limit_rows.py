"""Limits of projects and users as rows: what an entity may hold is capacity like a pool's.

Two parts: rows of an assignment, and rows of the rental program. Without limits each problem is the same to the bit.
Shapes: n jobs, c columns, p pools, m limits. The assignment:

    maximise  sum_c v_c y_c
    s.t.      sum_{c of j} y_c <= 1                               each job j           (u_j)
              sum_c use[c, r] y_c <= N[r]                         each pool r          (l_r)
              sum_{c of jobs below e} held[c, m] y_c <= most[m]   each limit m of e    (mu_m)

held[c, m] are the accelerators of c that count against m: of the fleet, of a type, or of one pool. most[m] is what
entity e may hold of them, less what its jobs hold already that do not compete. So every method of assignment keeps
limits without code for them, and the bound that prices prove holds with mu among them: a job pays the prices of its
pool and of every limit above it.

The rental program rents nothing for work that a limit would stop:

    sum_{c of jobs below e} use[c in the scope of l] x_c  <=  m_l          each limit l of an entity e     (mu_l)

The scope of a limit is the fleet, a type of accelerator, or a pool. m_l is what the entity may hold there, less what
riders hold already, and at least what runs there: lowering a limit takes nothing from running jobs. Gangs are whole,
so m_l is rounded down to a multiple of the largest number that divides all gangs below e: with gangs of 4 and a limit
of 6, half of a second gang pays for no machine. A configuration larger than a limit above its job does not count.

A limit given as a part of the fleet counts of the largest fleet that could be rented, since the fleet is what is being
decided.
"""

from dataclasses import dataclass, replace

import numpy as np

from optimizer.assignment.assignment_problem import AssignmentProblem
from optimizer.classes.aggregation import JobPartition
from optimizer.classes.class_problem import ClassProblem, with_class_rows
from optimizer.classes.segments import Uses, merged_uses, sum_by
from optimizer.problem import BoolArray, Entities, EntityLimits, FloatArray, IntArray, Problem

#: Slack for comparing counts that were computed in floating point.
_WHOLE = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class LimitedEntities:
    """The entities with limits on the accelerators that they may hold."""

    #: Rows of `Entities` (m,), and the accelerators that each may hold (m,).
    entity: IntArray
    most: FloatArray
    #: Whether each job belongs to each of these entities (m, n).
    inside: BoolArray
    #: Accelerators of each column that count against the limit; 0 for columns of jobs outside the entity (m, c).
    use: FloatArray
    #: Whether the accelerators of each pool count (m, p).
    pools: BoolArray

    def __len__(self) -> int:
        return len(self.entity)

    def left(self, column: IntArray) -> FloatArray:
        """Returns the accelerators that each entity may still hold (m,) when jobs have these columns (n,), -1: none."""
        held: FloatArray = self.use[:, column[column >= 0]].sum(axis=1)
        return np.maximum(self.most - held, 0.0)

    def charges(self, prices: FloatArray) -> FloatArray:
        """Returns what an accelerator of each pool costs each job (n, p) because of limits above it, at the prices of
        these (m,).
        """
        return np.asarray((self.inside * prices[:, None]).T @ self.pools, dtype=np.float64)

    def rows_beside(self, question: AssignmentProblem, left: FloatArray, kept: IntArray) -> AssignmentProblem:
        """Returns the problem with one more row for each limit, after those of the pools.

        Args:
            question: over pools alone.
            left: accelerators that each entity may still hold (m,).
            kept: column of the problem that each column of the question is (c,).
        """
        row, column = np.nonzero(self.use[:, kept] > 0)
        return with_rows(question, (column, row, self.use[row, kept[column]]), left)


def with_rows(question: AssignmentProblem, uses: Uses, capacity: FloatArray) -> AssignmentProblem:
    """Returns the problem with these rows appended; `uses` count rows from 0, `capacity` is theirs (m,)."""
    known, (column, row, count) = (question.use_column, question.use_pool, question.use_count), uses
    use_column, use_pool, use_count = merged_uses(known, (column, len(question.capacity) + row, count))
    return replace(
        question,
        use_column=use_column,
        use_pool=use_pool,
        use_count=use_count,
        capacity=np.concatenate((question.capacity, capacity)),
        limits=question.limits + len(capacity),
        use_first=np.zeros(0, dtype=np.int64),
    )


def limited_entities(problem: Problem) -> LimitedEntities | None:
    """Returns the entities whose limit (of the fleet, of a type, or of a pool) can bind; None where no limit can."""
    of_fleet, of_parts = _fleet_limits(problem), _limits_of_parts(problem)
    if of_fleet is None and of_parts is None:
        return None
    found = [each for each in (of_fleet, of_parts) if each is not None]
    limits = EntityLimits(
        np.concatenate([each.entity for each in found]),
        np.concatenate([each.accelerators for each in found]),
        np.concatenate([each.pools for each in found]),
    )
    inside = jobs_below(problem, limits.entity)
    use = counted_use(problem, limits) * inside[:, problem.columns.job]
    return LimitedEntities(limits.entity, limits.accelerators, inside, use, limits.pools)


def _fleet_limits(problem: Problem) -> EntityLimits | None:
    entities = problem.entities
    if not len(entities.limit) or not np.any(entities.limit < 1):
        return None
    entity, pools = np.flatnonzero(entities.limit < 1), problem.pools
    most = entities.limit[entity] * float(pools.capacity.sum())
    return EntityLimits(entity, most, np.ones((len(entity), len(pools)), dtype=np.bool_))


def _limits_of_parts(problem: Problem) -> EntityLimits | None:
    """Returns the limits of a type or pool that are below its capacity and below the entity's limit of the fleet; None
    where there are none.
    """
    limits, capacity = problem.limits, problem.pools.capacity
    if limits is None or not len(limits):
        return None
    part = problem.entities.limit
    of_fleet = part[limits.entity] * float(capacity.sum()) if len(part) else np.full(len(limits), np.inf)
    binds = np.flatnonzero(limits.accelerators < np.minimum(limits.pools @ capacity, of_fleet) - _WHOLE)
    return EntityLimits(limits.entity[binds], limits.accelerators[binds], limits.pools[binds]) if len(binds) else None


def counted_use(problem: Problem, limits: EntityLimits) -> FloatArray:
    """Returns the accelerators of each column that count against each limit (m, c), whether or not its job is below
    the limit's entity.
    """
    columns = problem.columns
    counted = limits.pools[:, columns.use_pool] * columns.use_count
    return np.array([sum_by(columns.use_column, each, len(columns)) for each in counted]).reshape(len(limits), -1)


def jobs_below(problem: Problem, entity: IntArray) -> BoolArray:
    """Returns whether each job belongs to each of these entities (rows of `Entities`, (m,)): (m, n)."""
    found = [entities_below(problem.entities, row)[problem.jobs.entity] for row in entity.tolist()]
    return np.array(found, dtype=np.bool_).reshape(len(entity), len(problem.jobs))


def entities_below(entities: Entities, row: int) -> BoolArray:
    """Returns which entities are this one or below it (k,)."""
    below = np.zeros(len(entities), dtype=np.bool_)
    below[row] = True
    if len(entities.parent):
        for child in range(row + 1, len(entities)):  # parents come first
            parent = int(entities.parent[child])
            below[child] = parent >= 0 and below[parent]
    return below


def limits_of_rest(problem: Problem, column: IntArray, capacity: FloatArray) -> Problem:
    """Returns the problem of what is left, with limits and guarantees less what jobs hold already.

    Args:
        problem: the whole one.
        column: the column that jobs keep which are not assigned again, -1: none (n,).
        capacity: of the pools, as the rest is asked about it (p,).
    """
    entities, limits, there = problem.entities, problem.limits, max(float(capacity.sum()), 1.0)
    whole, held = float(problem.pools.capacity.sum()), column[column >= 0]
    everywhere = np.ones((len(entities), len(problem.pools)), dtype=np.bool_)
    of_all = EntityLimits(np.arange(len(entities)), np.zeros(len(entities)), everywhere)
    if limits is not None and len(limits):
        limits = less_what_is_held(problem, limits, held)
    part, guaranteed = entities.limit, entities.guaranteed
    if (part < 1).any():
        left = less_what_is_held(problem, replace(of_all, accelerators=part * whole), held).accelerators
        part = np.where(part < 1, np.minimum(left / there, 1.0), part)
    if guaranteed.any():
        left = less_what_is_held(problem, replace(of_all, accelerators=guaranteed * whole), held).accelerators
        guaranteed = np.minimum(left / there, part if len(part) else 1.0)
    entities = replace(entities, limit=part, guaranteed=guaranteed)
    return replace(problem, pools=replace(problem.pools, capacity=capacity), entities=entities, limits=limits)


def less_what_is_held(problem: Problem, limits: EntityLimits, column: IntArray) -> EntityLimits:
    """Returns the limits less what these columns (any number) take of them."""
    use = counted_use(problem, limits) * jobs_below(problem, limits.entity)[:, problem.columns.job]
    return replace(limits, accelerators=np.maximum(limits.accelerators - use[:, column].sum(axis=1), 0.0))


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
        return with_class_rows(problem, (column, row, self.use[row, classes.column[column]]), self.most)


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
