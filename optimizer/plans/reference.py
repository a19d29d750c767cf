"""The configuration by which a job is measured: how long it is, what it needs, what others are worth to it.

A rigid job is measured by its fastest configuration. An elastic one, that may take several counts on one pool, by the
one that makes the most steps per accelerator-second, usually its smallest gang on its best type: the largest gang does
the same work with many times the accelerator time, and would make every job look enormous and short at once.

Shapes: n jobs, c columns.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.arrays.owners import best_by
from optimizer.fairness.utility import accelerators_of, usable_columns
from optimizer.problem import BoolArray, Columns, FloatArray, IntArray, Problem


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """What every job is measured by (n,)."""

    #: Steps per second there; 0: the empty fleet could hold none of its configurations.
    rate: FloatArray
    #: Whether it may take several counts on one pool; and if so, accelerators of the configuration.
    elastic: BoolArray
    size: FloatArray


def best_rates_of(problem: Problem) -> FloatArray:
    """Steps per second of each job's fastest configuration that the empty fleet could hold; 0: none (n,)."""
    usable = usable_columns(problem.columns, problem.pools.capacity)
    columns = problem.columns
    return best_by(columns.job[usable], columns.steps_per_s[usable], len(problem.jobs))


def reference_of(problem: Problem) -> Reference:
    """What every job is measured by, whether it runs or not."""
    columns, jobs = problem.columns, problem.jobs
    rate, size = best_rates_of(problem), accelerators_of(columns)
    elastic, least = np.zeros(len(jobs), dtype=np.bool_), np.ones(len(jobs))
    if np.array_equal(size, jobs.gang[columns.job]):
        return Reference(rate, elastic, least)  # one count a job
    usable = np.flatnonzero(usable_columns(columns, problem.pools.capacity))
    elastic = _has_counts(columns, usable, size, len(jobs), len(problem.pools))
    job = columns.job[usable]
    each = columns.steps_per_s[usable] / size[usable]
    order = np.lexsort((size[usable], -each, job))
    first = order[np.unique(job[order], return_index=True)[1]]
    first = first[elastic[job[first]]]
    rate[job[first]] = columns.steps_per_s[usable[first]]
    least[job[first]] = size[usable[first]]
    return Reference(rate, elastic, least)


def modest_columns(problem: Problem, reference: Reference) -> BoolArray:
    """Columns no larger than the job's reference or an equal part of the fleet; all of a rigid job's (c,)."""
    columns = problem.columns
    if not reference.elastic.any():
        return np.ones(len(columns), dtype=np.bool_)
    part = np.ceil(problem.pools.capacity.sum() / len(problem.jobs))
    most = np.where(reference.elastic, np.maximum(reference.size, part), np.inf)
    modest: BoolArray = accelerators_of(columns) <= most[columns.job]
    return modest


def _has_counts(columns: Columns, usable: IntArray, size: FloatArray, jobs: int, pools: int) -> BoolArray:
    """Whether each job has usable columns of several sizes that begin in the same pool (n,)."""
    pool = columns.use_pool[np.searchsorted(columns.use_column, usable)]
    place = columns.job[usable] * pools + pool
    smallest, largest = np.full(jobs * pools, np.inf), np.zeros(jobs * pools)
    np.minimum.at(smallest, place, size[usable])
    np.maximum.at(largest, place, size[usable])
    several: BoolArray = np.any((largest > smallest).reshape(jobs, pools), axis=1)
    return several
