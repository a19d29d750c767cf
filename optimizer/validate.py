"""Validation of a problem: names the first array that is malformed."""

import numpy as np

from optimizer.problem import (
    BoolArray,
    Columns,
    Entities,
    EntityLimits,
    FloatArray,
    IntArray,
    Jobs,
    Pairs,
    Pools,
    Problem,
)
from walras.errors import UserError

#: Sums of fractions are compared with this slack.
_ROUNDING = 1e-9
#: Columns above which compiled code pays for being loaded.
_COMPILED_FROM = 50_000


class ProblemError(UserError):
    """The problem is malformed: a number is not finite or negative, or the arrays do not fit together."""


def validate_problem(problem: Problem, *, walked: bool = False) -> None:
    """Check shapes, ranges and order of a problem.

    Args:
        problem: any.
        walked: `optimizer.classes.aggregation.distinct_jobs_if_sound` has checked the columns and their uses.

    Raises:
        ProblemError: names the array in `field`.
    """
    _check_jobs(problem.jobs, len(problem.entities))
    if walked:
        _length("columns.running", problem.columns.running, len(problem.columns))
    else:
        _check_columns(problem.columns, len(problem.jobs), len(problem.pools))
    _check_pools(problem.pools)
    check_entities(problem.entities)
    if problem.limits is not None:
        _check_limits(problem.limits, len(problem.entities), len(problem.pools))
    if len(problem.entities):
        inner = np.zeros(len(problem.entities), dtype=bool)
        inner[problem.entities.parent[problem.entities.parent >= 0]] = True
        if inner[problem.jobs.entity].any():
            wrong = np.flatnonzero(inner[problem.jobs.entity])
            raise _error("jobs.entity", "must be an entity without others below it", wrong)
    if problem.pairs is not None:
        _check_pairs(problem.pairs, len(problem.jobs), len(problem.pools))


def _check_jobs(jobs: Jobs, entities: int) -> None:
    n = len(jobs)
    for name in ("weight", "gang", "remaining_steps", "submitted_at", "attained_s", "deadline_at"):
        _length(f"jobs.{name}", getattr(jobs, name), n)
    for name in ("value_usd_per_h", "priority_class", "entity"):
        _length(f"jobs.{name}", getattr(jobs, name), n)
    _check_range("jobs.weight", jobs.weight)
    _check_range("jobs.gang", jobs.gang)
    if np.any(jobs.gang <= 0):
        raise _error("jobs.gang", "must be positive", np.flatnonzero(jobs.gang <= 0))
    value = jobs.value_usd_per_h
    wrong = ~np.isnan(value) & ~(np.isfinite(value) & (value >= 0))
    if wrong.any():
        raise _error("jobs.value_usd_per_h", "must be nan (unknown) or a finite amount >= 0", np.flatnonzero(wrong))
    if entities:
        _check_range("jobs.entity", jobs.entity, entities)


def check_entities(entities: Entities) -> None:
    """Check that entities are a tree, parents first, and that what they are promised can be promised.

    Raises:
        ProblemError: names the array in `field`.
    """
    k = len(entities)
    _length("entities.weight", entities.weight, k)
    _check_range("entities.weight", entities.weight)
    for name in ("parent", "guaranteed", "limit", "borrows", "fifo"):
        if len(getattr(entities, name)):
            _length(f"entities.{name}", getattr(entities, name), k)
    if len(set(entities.name)) < k:
        twice = [row for row, name in enumerate(entities.name) if name in entities.name[:row]]
        raise _error("entities.name", "must not occur twice", np.array(twice))
    parent = entities.parent if len(entities.parent) else np.full(k, -1)
    wrong = (parent < -1) | (parent >= np.arange(k))
    if wrong.any():
        raise _error("entities.parent", "must be -1 or an earlier row", np.flatnonzero(wrong))
    for name in ("guaranteed", "limit"):
        array = getattr(entities, name)
        if not np.all((array >= 0) & (array <= 1)):
            raise _error(f"entities.{name}", "must be in 0..1", np.flatnonzero(~((array >= 0) & (array <= 1))))
    if len(entities.guaranteed):
        _check_guarantees(entities.guaranteed, entities.limit if len(entities.limit) else np.ones(k), parent)


def _check_guarantees(guaranteed: FloatArray, limit: FloatArray, parent: IntArray) -> None:
    above = np.flatnonzero(guaranteed > limit * (1 + _ROUNDING))
    if len(above):
        raise _error("entities.guaranteed", "must not be above the limit", above)
    promised = np.bincount(parent + 1, weights=guaranteed, minlength=len(parent) + 1)
    there = np.concatenate(([1.0], guaranteed))
    over = np.flatnonzero(promised > there + _ROUNDING)
    if len(over):
        whose = "the whole fleet" if over[0] == 0 else f"that of entities[{over[0] - 1}]"
        first = np.flatnonzero(parent == over[0] - 1)
        raise _error("entities.guaranteed", f"must not add up to more than {whose} among siblings", first)


def _check_columns(columns: Columns, n: int, pools: int) -> None:
    c = len(columns)
    for name in ("steps_per_s", "running"):
        _length(f"columns.{name}", getattr(columns, name), c)
    u = len(columns.use_column)
    _length("columns.use_pool", columns.use_pool, u)
    _length("columns.use_count", columns.use_count, u)
    if c >= _COMPILED_FROM:
        from optimizer.classes.check_kernels import columns_are_sound

        if columns_are_sound(columns, n, pools):
            return
    for name, array, size in (("columns.job", columns.job, n), ("columns.use_column", columns.use_column, c)):
        _check_range(name, array, size)
        descends = array[1:] < array[:-1]
        if descends.any():
            raise _error(name, "must ascend", np.flatnonzero(descends) + 1)
    _check_range("columns.use_pool", columns.use_pool, pools)
    _check_range("columns.steps_per_s", columns.steps_per_s)
    _check_range("columns.use_count", columns.use_count)
    if u and columns.use_count.min() <= 0:
        raise _error("columns.use_count", "must be positive", np.flatnonzero(columns.use_count <= 0))
    unused = np.bincount(columns.use_column, minlength=c) == 0
    if unused.any():
        raise _error("columns.use_column", "every column must use a pool", np.flatnonzero(unused))


def _check_pools(pools: Pools) -> None:
    for name in ("capacity", "rentable", "machine_size", "usd_per_h"):
        _length(f"pools.{name}", getattr(pools, name), len(pools))
        _check_range(f"pools.{name}", getattr(pools, name))
    if len(pools.rented):
        _length("pools.rented", pools.rented, len(pools))
        _check_range("pools.rented", pools.rented)
        if np.any(pools.rented > pools.capacity):
            raise _error("pools.rented", "is part of the capacity", np.flatnonzero(pools.rented > pools.capacity))
    for name in ("coming", "boot_s", "minimum_billing_s", "prepaid"):
        if len(getattr(pools, name)):
            _length(f"pools.{name}", getattr(pools, name), len(pools))
            _check_range(f"pools.{name}", getattr(pools, name))


def _check_limits(limits: EntityLimits, entities: int, pools: int) -> None:
    _check_range("limits.entity", limits.entity, entities)
    _length("limits.accelerators", limits.accelerators, len(limits))
    _check_range("limits.accelerators", limits.accelerators)
    if limits.pools.shape != (len(limits), pools):
        raise ProblemError(
            f"limits.pools has the shape {limits.pools.shape}, expected {(len(limits), pools)}", field="limits.pools"
        )


def _check_pairs(pairs: Pairs, n: int, pools: int) -> None:
    q = len(pairs)
    _length("pairs.kind", pairs.kind, n)
    for name in ("second", "pool", "first_factor", "second_factor"):
        _length(f"pairs.{name}", getattr(pairs, name), q)
    if np.any(pairs.kind < -1):
        raise _error("pairs.kind", "must be -1 or a kind", np.flatnonzero(pairs.kind < -1))
    for name in ("first", "second"):
        if np.any(getattr(pairs, name) < 0):
            raise _error(f"pairs.{name}", "must be a kind", np.flatnonzero(getattr(pairs, name) < 0))
    _check_range("pairs.pool", pairs.pool, pools)
    for name in ("first_factor", "second_factor"):
        factor = getattr(pairs, name)
        _check_range(f"pairs.{name}", factor)
        if np.any(factor > 1):
            raise _error(f"pairs.{name}", "must be at most 1", np.flatnonzero(factor > 1))
    unequal = (pairs.first == pairs.second) & (pairs.first_factor != pairs.second_factor)
    if unequal.any():
        raise _error("pairs.second_factor", "must equal the first of a kind beside itself", np.flatnonzero(unequal))
    low, high = np.minimum(pairs.first, pairs.second), np.maximum(pairs.first, pairs.second)
    order = np.lexsort((high, low, pairs.pool))
    same = np.ones(max(q - 1, 0), dtype=bool)
    for array in (pairs.pool, low, high):
        same &= np.diff(array[order]) == 0
    if same.any():
        raise _error("pairs.first", "lists two kinds and a pool that were listed before", np.sort(order[1:][same]))


def _length(name: str, array: FloatArray | IntArray | BoolArray, expected: int) -> None:
    if len(array) != expected:
        raise ProblemError(f"{name} has {len(array)} entries, expected {expected}", field=name)


def _check_range(name: str, array: FloatArray | IntArray, size: float = np.inf) -> None:
    """Checks amounts (finite, not negative), or the rows of an array of `size` entries."""
    if not len(array) or (array.min() >= 0 and array.max() < size):  # not so where anything is nan
        return
    must = "must be finite and not negative" if size == np.inf else f"must be in 0..{size - 1}"
    raise _error(name, must, np.flatnonzero(~((array >= 0) & (array < size))))


def _error(name: str, what: str, rows: IntArray) -> ProblemError:
    return ProblemError(f"{name}[{rows[0]}] {what} ({len(rows)} such)", field=f"{name}[{rows[0]}]")
