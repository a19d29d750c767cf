"""Classes and distinct jobs: problems with one row for many equal jobs, and the expansion of their answers.

Two parts: aggregation and deduplication. Aggregation merges jobs that differ only in what the policy ignores. The
aggregation lemma: jobs with equal columns, utilities and weights can be exchanged, every objective here is concave and
symmetric in them, so averaging an optimum over such a class is again an optimum. One row per class, each member at the
class average, therefore loses nothing. The caller's keys say what makes two jobs equal, and `keep` which columns take
part.

Deduplication counts jobs that are equal in all that the policy reads: their columns agree bit by bit and in order, and
so do the fields of `Jobs`. Thousands of active jobs are of a few hundred kinds, so policies compute per distinct job
what they would compute per job.

Shapes: n jobs, c columns; k classes, C class columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from optimizer.classes.class_problem import ClassProblem
from optimizer.classes.segments import (
    as_bits,
    concatenated_ranges,
    mix_bits,
    offsets_of_widths,
    positions_within_owner,
    quantised_bits,
    sum_by,
    wrapping_sums_by_owner,
)
from optimizer.decision import Shares
from optimizer.problem import BoolArray, Columns, FloatArray, IntArray, Jobs, Problem


@dataclass(frozen=True, slots=True, eq=False)
class JobPartition:
    """k classes of n jobs, with C class columns for c columns."""

    #: Jobs in each class (k,).
    size: IntArray
    #: Class of each job, -1 for a job without kept columns (n,).
    member: IntArray
    #: One job of each class (k,).
    representative: IntArray
    #: Class of each class column (C,), ascending, and the column of the representative that it stands for (C,).
    column_class: IntArray
    column: IntArray
    #: Class column of each column, -1 for columns not kept (c,).
    class_column: IntArray

    def __len__(self) -> int:
        return len(self.size)


def group_into_classes(
    columns: Columns, keep: BoolArray, column_keys: Sequence[FloatArray], job_keys: Sequence[FloatArray]
) -> JobPartition:
    """Returns classes of the jobs whose kept columns (in any order) and keys agree to a relative 1e-9.

    Classes are numbered, and their columns ordered, by content, so the result does not depend on the order of the
    jobs.

    Args:
        columns: of n jobs; n is the length of every job key.
        keep: columns that take part (c,).
        column_keys: values in which equal columns agree, besides pools and counts, each (c,).
        job_keys: values in which equal jobs agree, besides their columns, each (n,). At least one.
    """
    n, kept = len(job_keys[0]), np.flatnonzero(keep)
    width = np.bincount(columns.job[kept], minlength=n)
    jobs = np.flatnonzero(width)
    first = offsets_of_widths(width[jobs])
    contents = _column_contents(columns, kept, column_keys)
    # A 64-bit hash of each column's content; sums wrap on purpose.
    code = mix_bits(mix_bits(contents.pool.view(np.uint64)) + contents.count.view(np.uint64))
    if len(code) > len(kept):  # of several uses
        code = np.add.reduceat(code, contents.first[:-1])
    for bits in contents.keys:
        code = mix_bits(code + bits.view(np.uint64))
    # Columns sorted by job, then first pool, then as many leading bits of the hash as fit; usually they are already.
    lead = contents.pool[contents.first[:-1]]
    pools = int(lead.max(initial=0)) + 1
    free_bits = max(1, 64 - (len(jobs) * pools).bit_length())
    place = (np.repeat(np.arange(len(jobs)), width[jobs]) * pools + lead).astype(np.uint64)
    rank = place << np.uint64(free_bits) | code >> np.uint64(64 - free_bits)
    is_sorted = np.all(rank[1:] >= rank[:-1])
    order = np.arange(len(kept)) if is_sorted else np.argsort(rank, kind="stable")
    keys = np.stack([quantised_bits(np.asarray(key, dtype=np.float64)[jobs]) for key in job_keys])
    job_code = np.add.reduceat(mix_bits(code), first[:-1])  # a hash of columns and keys
    for key in keys:
        job_code = mix_bits(job_code + key.view(np.uint64))
    _, representatives, group = np.unique(job_code, return_index=True, return_inverse=True)
    group, representatives = group.reshape(-1).astype(np.int64), representatives.astype(np.int64)
    if len(representatives) < len(jobs) and not _equals_representative(
        contents.take(order), first, keys, representatives[group]
    ):
        group, representatives = np.arange(len(jobs)), np.arange(len(jobs))  # two jobs share a hash: merge none

    member = np.full(n, -1, dtype=np.int64)
    member[jobs] = group
    class_width = width[jobs[representatives]]
    class_first = offsets_of_widths(class_width)
    class_column, sorted_kept = np.full(len(columns), -1, dtype=np.int64), kept[order]
    class_column[sorted_kept] = concatenated_ranges(class_first[group], class_first[group + 1])
    return JobPartition(
        size=np.bincount(group, minlength=len(representatives)),
        member=member,
        representative=jobs[representatives],
        column_class=np.repeat(np.arange(len(representatives)), class_width),
        column=sorted_kept[concatenated_ranges(first[representatives], first[representatives + 1])],
        class_column=class_column,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _ColumnContents:
    """The content of K columns as integers: their keys, each (K,), and their uses sorted by pool, each (u,)."""

    keys: list[IntArray]
    first: IntArray
    pool: IntArray
    count: IntArray

    def take(self, chosen: IntArray) -> "_ColumnContents":
        """Returns the contents of the chosen columns, in the order given."""
        uses = concatenated_ranges(self.first[chosen], self.first[chosen + 1])
        width = np.diff(self.first)[chosen]
        return _ColumnContents(
            [key[chosen] for key in self.keys], offsets_of_widths(width), self.pool[uses], self.count[uses]
        )


def _column_contents(columns: Columns, kept: IntArray, keys: Sequence[FloatArray]) -> _ColumnContents:
    uses_of_column = np.bincount(columns.use_column, minlength=len(columns))
    use_first, width = offsets_of_widths(uses_of_column), uses_of_column[kept]
    uses = concatenated_ranges(use_first[kept], use_first[kept + 1])
    pool, count = columns.use_pool[uses], quantised_bits(columns.use_count[uses])
    if len(uses) > len(kept):
        by_pool = np.lexsort((count, pool, np.repeat(np.arange(len(kept)), width)))
        pool, count = pool[by_pool], count[by_pool]
    key_bits = [quantised_bits(np.asarray(key, dtype=np.float64)[kept]) for key in keys]
    return _ColumnContents(key_bits, offsets_of_widths(width), pool.astype(np.int64), count)


def _equals_representative(contents: _ColumnContents, first: IntArray, keys: IntArray, like: IntArray) -> bool:
    """Returns whether every job agrees with the job `like[job]` in its columns (in content order) and
    its keys (f, m).
    """
    if not (np.array_equal(keys, keys[:, like]) and np.array_equal(np.diff(first), np.diff(first)[like])):
        return False
    other = contents.take(concatenated_ranges(first[like], first[like + 1]))
    same_uses = np.array_equal(contents.pool, other.pool) and np.array_equal(contents.count, other.count)
    same_keys = all(np.array_equal(one, two) for one, two in zip(contents.keys, other.keys, strict=True))
    return same_uses and same_keys and np.array_equal(contents.first, other.first)


@dataclass(frozen=True, slots=True, eq=False)
class AggregatedProblem:
    """The class problem of a problem, and maps in both directions: n jobs, c columns; k classes, C class columns."""

    classes: JobPartition
    problem: ClassProblem

    def per_column(self, values: FloatArray) -> FloatArray:
        """Returns the values of columns for the class columns: (c,) -> (C,)."""
        return values[self.classes.column]

    def per_class(self, values: FloatArray) -> FloatArray:
        """Returns the values of jobs for the classes: (n,) -> (k,)."""
        return values[self.classes.representative]

    def to_columns(self, values: FloatArray) -> FloatArray:
        """Returns for every column the value of its class column, 0 for columns that were not kept: (C,) -> (c,)."""
        return np.append(values, 0.0)[self.classes.class_column]  # -1 takes the last one

    def to_jobs(self, values: FloatArray) -> FloatArray:
        """Returns for every job the value of its class, 0 for jobs without kept columns: (k,) -> (n,)."""
        return np.append(values, 0.0)[self.classes.member]  # -1 takes the last one


def aggregate_problem(
    problem: Problem, keep: BoolArray, column_keys: Sequence[FloatArray], job_keys: Sequence[FloatArray]
) -> AggregatedProblem:
    """Returns the class problem of the jobs that have kept columns. Its rows are the problem's pools.

    Args:
        problem: n jobs, c columns, p pools.
        keep: columns that take part; each fits the pools that it uses (c,).
        column_keys: values in which columns of one class agree, besides pools and counts: worth, value; each (c,).
        job_keys: values in which jobs of one class agree: weight, target, floor; at least one, each (n,).
    """
    columns = problem.columns
    classes = group_into_classes(columns, keep, column_keys, job_keys)
    use_first = offsets_of_widths(np.bincount(columns.use_column, minlength=len(columns)))
    begin, end = use_first[classes.column], use_first[classes.column + 1]
    uses, in_class = concatenated_ranges(begin, end), classes.member >= 0
    class_problem = ClassProblem(
        size=sum_by(classes.member[in_class], problem.jobs.counts[in_class], len(classes.size)),
        first=offsets_of_widths(np.bincount(classes.column_class, minlength=len(classes.size))),
        use_first=offsets_of_widths(end - begin),
        use_row=columns.use_pool[uses].astype(np.int32),
        use_count=columns.use_count[uses],
        capacity=problem.pools.capacity,
    )
    return AggregatedProblem(classes, class_problem)


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

    The arrays must fit together and ascend (`optimizer.problem`); their values may be anything.
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
