"""Classes of jobs that a policy cannot tell apart, and the way back from class shares to job shares.

The aggregation lemma: jobs with equal columns, utilities and weights can be exchanged, every objective here is concave
and symmetric in them, so averaging an optimum over such a class is again an optimum. One row per class, each member at
the class average, therefore loses nothing. Decides nothing about utilities: what makes jobs equal is the caller's keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from optimizer.groups import bits, group_rows, quantise
from optimizer.problem import BoolArray, Columns, FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Classes:
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

    def expand_columns(self, per_class_column: FloatArray) -> FloatArray:
        """Give every column the value of its class column; 0 where a column was not kept (C,) -> (c,)."""
        return _take(per_class_column, self.class_column)

    def expand_jobs(self, per_class: FloatArray) -> FloatArray:
        """Give every job the value of its class; 0 for jobs without one (k,) -> (n,)."""
        return _take(per_class, self.member)


@dataclass(frozen=True, slots=True, eq=False)
class ClassUses:
    """Uses of the class columns by one member: parallel arrays as in `Columns`."""

    use_column: IntArray
    use_pool: IntArray
    use_count: FloatArray


def aggregate(
    columns: Columns, keep: BoolArray, column_keys: Sequence[FloatArray], job_keys: Sequence[FloatArray]
) -> Classes:
    """Group the jobs whose kept columns (in any order) and keys agree to a relative 1e-9.

    Args:
        columns: of n jobs; n is the length of every job key.
        keep: columns that take part (c,).
        column_keys: what makes two columns equal besides the pools and counts they use, each (c,).
        job_keys: what makes two jobs equal besides their columns, each (n,). At least one.
    """
    n, kept = len(job_keys[0]), np.flatnonzero(keep)
    column_kind = group_rows(_column_records(columns, kept, column_keys)).member
    jobs, first, count = np.unique(columns.job[kept], return_index=True, return_counts=True)
    order = np.lexsort((column_kind, columns.job[kept]))  # each job's columns in an order that only content decides
    place = np.arange(len(kept)) - np.repeat(first, count)

    table = np.full((len(jobs), int(count.max(initial=0))), -1, dtype=np.int64)
    table[np.repeat(np.arange(len(jobs)), count), place] = column_kind[order]
    keys = [bits(quantise(np.asarray(key, dtype=np.float64)[jobs]))[:, None] for key in job_keys]
    groups = group_rows(np.hstack([table, *keys]))

    member = np.full(n, -1, dtype=np.int64)
    member[jobs] = groups.member
    width = count[groups.representative]
    class_first = np.concatenate(([0], np.cumsum(width)))[:-1]
    column_class = np.repeat(np.arange(len(width)), width)
    within = np.arange(len(column_class)) - np.repeat(class_first, width)
    sorted_kept = kept[order]
    class_column = np.full(len(columns), -1, dtype=np.int64)
    class_column[sorted_kept] = np.repeat(class_first[groups.member], count) + place
    return Classes(
        size=np.bincount(groups.member, minlength=len(width)).astype(np.int64),
        member=member,
        representative=jobs[groups.representative],
        column_class=column_class,
        column=sorted_kept[np.repeat(first[groups.representative], width) + within],
        class_column=class_column,
    )


def class_uses(columns: Columns, classes: Classes) -> ClassUses:
    """What one member of each class takes of the pools, over the class columns."""
    position = np.full(len(columns), -1, dtype=np.int64)
    position[classes.column] = np.arange(len(classes.column))
    use_column = position[columns.use_column]
    chosen = np.flatnonzero(use_column >= 0)
    return ClassUses(use_column[chosen], columns.use_pool[chosen], columns.use_count[chosen])


def _column_records(columns: Columns, kept: IntArray, keys: Sequence[FloatArray]) -> IntArray:
    """One integer row per kept column: its keys, then its uses in order of pool, padded with -1."""
    position = np.full(len(columns), -1, dtype=np.int64)
    position[kept] = np.arange(len(kept))
    use_column = position[columns.use_column]
    chosen = np.flatnonzero(use_column >= 0)
    chosen = chosen[np.lexsort((columns.use_count[chosen], columns.use_pool[chosen], use_column[chosen]))]
    uses = np.bincount(use_column[chosen], minlength=len(kept))
    start = np.repeat(np.cumsum(uses) - uses, uses)
    place = np.arange(len(chosen)) - start
    records = np.full((len(kept), len(keys) + 2 * int(uses.max(initial=0))), -1, dtype=np.int64)
    for index, key in enumerate(keys):
        records[:, index] = bits(quantise(np.asarray(key, dtype=np.float64)[kept]))
    records[use_column[chosen], len(keys) + 2 * place] = columns.use_pool[chosen]
    records[use_column[chosen], len(keys) + 2 * place + 1] = bits(quantise(columns.use_count[chosen]))
    return records


def _take(values: FloatArray, index: IntArray) -> FloatArray:
    taken = np.zeros(len(index))
    taken[index >= 0] = values[index[index >= 0]]
    return taken
