"""Deduplication: a problem of distinct jobs with counts, and the expansion of its answer to all jobs.

Thousands of active jobs are of a few hundred kinds, so policies compute per distinct job what they would compute per
job. Two jobs are equal if their columns agree bit by bit and in order, and the fields of `Jobs` that the policy reads
agree too. (`optimizer.classes.aggregation` goes further: it merges jobs that differ only in what the policy ignores.)
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from optimizer.classes.segments import (
    as_bits,
    concatenated_ranges,
    mix_bits,
    offsets_of_widths,
    positions_within_owner,
    sum_by,
    wrapping_sums_by_owner,
)
from optimizer.decision import Shares
from optimizer.problem import Columns, FloatArray, IntArray, Jobs, Problem

#: From this number of columns, loading compiled code pays.
COMPILED_COLUMNS = 50_000


@dataclass(frozen=True, slots=True, eq=False)
class DistinctJobs:
    """k distinct jobs with C columns that represent n jobs with c columns."""

    #: The problem of the distinct jobs.
    problem: Problem
    #: The number of jobs that each distinct job stands for (k,).
    count: FloatArray
    #: Distinct job of each job (n,), and the job that represents each distinct one, ascending (k,).
    member: IntArray
    representative: IntArray
    #: First column of each job, and of each distinct one, each with one more entry at the end (n + 1,), (k + 1,).
    first: IntArray
    distinct_first: IntArray

    def expand_jobs(self, values: FloatArray) -> FloatArray:
        """Returns for every job the value of its distinct job: (k,) -> (n,)."""
        return values[self.member]

    def expand_columns(self, values: FloatArray) -> FloatArray:
        """Returns for every column the value of its distinct column: (C,) -> (c,)."""
        if len(values) == self.first[-1]:
            return values
        if self.first[-1] >= COMPILED_COLUMNS:
            from optimizer.classes import deduplication_kernels

            return deduplication_kernels.expand_to_columns(values, self.member, self.first, self.distinct_first)
        return values[concatenated_ranges(self.distinct_first[self.member], self.distinct_first[self.member + 1])]

    def tell(self, shares: Shares) -> Shares:
        """Returns the decision about distinct jobs expanded to all jobs. The decision must not co-locate jobs."""
        if len(self.representative) == len(self.member):
            return shares
        return replace(
            shares,
            x=self.expand_columns(shares.x),
            surplus=self.expand_jobs(shares.surplus),
            stages=tuple(
                replace(
                    stage,
                    active=stage.active[self.member],
                    floor=self.expand_jobs(stage.floor),
                    cap=self.expand_jobs(stage.cap),
                )
                for stage in shares.stages
            ),
            unplaceable=self._rows(shares.unplaceable),
            relaxed=self._rows(shares.relaxed),
        )

    def _rows(self, distinct: IntArray) -> IntArray:
        """Returns the rows of the jobs that these distinct jobs represent."""
        return np.flatnonzero(np.isin(self.member, distinct)) if len(distinct) else distinct


def distinct_jobs(problem: Problem, job_fields: Sequence[str]) -> DistinctJobs:
    """Returns the problem of distinct jobs: jobs that agree in all their columns and in the named fields of `Jobs`
    become one.

    The arrays must fit together and ascend (`optimizer.validate`); their values may be anything.
    """
    columns, n = problem.columns, len(problem.jobs)
    if len(columns) < COMPILED_COLUMNS and len(np.unique(sum_by(columns.job, columns.steps_per_s, n))) == n:
        # Equal jobs have speeds of equal sums. Where no two sums are equal, as mostly with few jobs, no two jobs are.
        first = offsets_of_widths(np.bincount(columns.job, minlength=n))
        return DistinctJobs(problem, np.ones(n), np.arange(n), np.arange(n), first, first)
    first = job_offsets(columns.job, n)
    single = len(columns.use_column) == len(columns)  # Every column has at least one use: so each has exactly one.
    use_first = np.zeros(0, dtype=np.int64) if single else job_offsets(columns.use_column, len(columns))
    key = _job_keys(problem.jobs, job_fields)
    if len(columns) >= COMPILED_COLUMNS:
        from optimizer.classes import deduplication_kernels

        member, representative = deduplication_kernels.group_equal_jobs(columns, first, use_first, key)
    else:
        spans = np.arange(len(columns) + 1) if single else use_first
        member, representative = _group(columns, first, spans, key)
    return _distinct_of_groups(problem, first, use_first, member, representative)


def _distinct_of_groups(
    problem: Problem, first: IntArray, use_first: IntArray, member: IntArray, representative: IntArray
) -> DistinctJobs:
    n = len(member)
    if len(representative) == n:
        return DistinctJobs(problem, np.ones(n), np.arange(n), np.arange(n), first, first)
    count = np.bincount(member, minlength=len(representative)).astype(np.float64)
    small = _problem_of_rows(problem, representative, count, first, use_first)
    return DistinctJobs(
        small, count, member, representative, first, job_offsets(small.columns.job, len(representative))
    )


def distinct_jobs_if_sound(problem: Problem, job_fields: Sequence[str]) -> DistinctJobs | None:
    """Checks the columns of a large problem and groups its jobs, in one pass.

    Returns None where a column has several uses, or a check failed: the caller then runs `validate_problem` and
    `distinct_jobs`. A result proves that the arrays of columns and uses are well formed.
    """
    columns, jobs = problem.columns, problem.jobs
    arrays = (columns.steps_per_s, columns.use_column, columns.use_pool, columns.use_count)
    if not len(columns) or any(len(array) != len(columns) for array in arrays):
        return None
    if any(len(getattr(jobs, name)) != len(jobs) for name in job_fields):
        return None
    from optimizer.classes.check_kernels import check_and_group

    found = check_and_group(columns, len(problem.pools), _job_keys(jobs, job_fields))
    if found is None:
        return None
    return _distinct_of_groups(problem, found.first, np.zeros(0, dtype=np.int64), found.member, found.representative)


def job_offsets(owner: IntArray, owners: int) -> IntArray:
    """Returns where each owner's entries begin in an ascending array of owners, and the end (owners + 1,)."""
    if len(owner) >= COMPILED_COLUMNS:
        from optimizer.classes import deduplication_kernels

        return deduplication_kernels.compiled_offsets(owner, owners)
    return offsets_of_widths(np.bincount(owner, minlength=owners))


def _job_keys(jobs: Jobs, names: Sequence[str]) -> IntArray:
    """Returns the bits of the named fields, one row per field (f, n)."""
    return np.stack([as_bits(np.asarray(getattr(jobs, name))) for name in names])


def _group(columns: Columns, first: IntArray, use_first: IntArray, key: IntArray) -> tuple[IntArray, IntArray]:
    """Groups jobs by a 64-bit hash of their columns and keys, then compares them in full.

    Defines what `deduplication_kernels.group_equal_jobs` computes: the group of each job (n,), and the first job of
    each group, ascending (k,). Where two different jobs have one hash, no jobs are grouped.
    """
    use = mix_bits(mix_bits(columns.use_pool.view(np.uint64)) + as_bits(columns.use_count).view(np.uint64))
    use = mix_bits(use + positions_within_owner(use_first).view(np.uint64))
    column = mix_bits(wrapping_sums_by_owner(use, use_first) + as_bits(columns.steps_per_s).view(np.uint64))
    column = mix_bits(column + positions_within_owner(first).view(np.uint64))
    code = wrapping_sums_by_owner(column, first)
    for field_bits in key:
        code = mix_bits(code + field_bits.view(np.uint64))
    code = mix_bits(code + np.diff(first).view(np.uint64)) if len(code) else code
    _, representative, member = np.unique(code, return_index=True, return_inverse=True)
    order = np.argsort(representative)  # the first job of each group, in the order of the jobs
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    representative, member = representative[order], rank[member.reshape(-1)]
    alone = len(representative) == len(code)
    if alone or not _equal(columns, first, use_first, key, representative[member]):
        return np.arange(len(code)), np.arange(len(code))
    return member, representative


def _equal(columns: Columns, first: IntArray, use_first: IntArray, key: IntArray, like: IntArray) -> bool:
    """Returns whether every job has the columns and keys of the job `like[job]`."""
    if not (np.array_equal(key, key[:, like]) and np.array_equal(np.diff(first), np.diff(first)[like])):
        return False
    twin = concatenated_ranges(first[like], first[like + 1])
    if not np.array_equal(as_bits(columns.steps_per_s), as_bits(columns.steps_per_s)[twin]):
        return False
    if not np.array_equal(np.diff(use_first), np.diff(use_first)[twin]):
        return False
    use = concatenated_ranges(use_first[twin], use_first[twin + 1])
    same_pool = np.array_equal(columns.use_pool, columns.use_pool[use])
    return same_pool and np.array_equal(columns.use_count, columns.use_count[use])


def _problem_of_rows(
    problem: Problem, rows: IntArray, count: FloatArray, first: IntArray, use_first: IntArray
) -> Problem:
    """Returns the problem of these jobs alone, in this order, each with the number of jobs that it represents."""
    columns = problem.columns
    kept = concatenated_ranges(first[rows], first[rows + 1])
    single = not len(use_first)
    uses = kept if single else concatenated_ranges(use_first[kept], use_first[kept + 1])
    width = np.ones(len(kept), dtype=np.int64) if single else use_first[kept + 1] - use_first[kept]
    present = [field.name for field in fields(Jobs) if len(getattr(problem.jobs, field.name))]
    named = [name for name in present if name != "count"]
    return replace(
        problem,
        jobs=Jobs(**{name: getattr(problem.jobs, name)[rows] for name in named}, count=count),
        columns=Columns(
            job=np.repeat(np.arange(len(rows)), first[rows + 1] - first[rows]),
            steps_per_s=columns.steps_per_s[kept],
            use_column=np.repeat(np.arange(len(kept)), width),
            use_pool=columns.use_pool[uses],
            use_count=columns.use_count[uses],
            running=columns.running[kept],
        ),
    )
