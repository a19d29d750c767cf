"""Aggregation of jobs that are equal to a policy into classes, and the expansion of class shares to jobs.

The aggregation lemma: jobs with equal columns, utilities and weights can be exchanged, every objective here is concave
and symmetric in them, so averaging an optimum over such a class is again an optimum. One row per class, each member at
the class average, therefore loses nothing. The caller's keys say what makes two jobs equal, and `keep` which columns
take part. Shapes: n jobs, c columns; k classes, C class columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from optimizer.classes.class_problem import ClassProblem
from optimizer.classes.segments import (
    concatenated_ranges,
    mix_bits,
    offsets_of_widths,
    quantised_bits,
    sum_by,
)
from optimizer.problem import BoolArray, Columns, FloatArray, IntArray, Problem


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
