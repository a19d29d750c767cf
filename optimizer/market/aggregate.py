"""Classes of jobs that a policy cannot tell apart, and the way back from class shares to job shares.

The aggregation lemma: jobs with equal columns, utilities and weights can be exchanged, every objective here is concave
and symmetric in them, so averaging an optimum over such a class is again an optimum. One row per class, each member at
the class average, therefore loses nothing. Decides nothing about utilities: what makes jobs equal is the caller's keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optimizer.arrays.groups import bits, mix, quantise
from optimizer.arrays.spans import begins, offsets_of, ranges, twins, wrapping_sums
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


def aggregate(
    columns: Columns, keep: BoolArray, column_keys: Sequence[FloatArray], job_keys: Sequence[FloatArray]
) -> Classes:
    """Group the jobs whose kept columns (in any order) and keys agree to a relative 1e-9.

    Classes are numbered and their columns ordered by what they say, so that the order of the jobs does not matter.

    Args:
        columns: of n jobs; n is the length of every job key.
        keep: columns that take part (c,).
        column_keys: what makes two columns equal besides the pools and counts they use, each (c,).
        job_keys: what makes two jobs equal besides their columns, each (n,). At least one.
    """
    n, kept = len(job_keys[0]), np.flatnonzero(keep)
    width = np.bincount(columns.job[kept], minlength=n)
    jobs = np.flatnonzero(width)
    first = begins(width[jobs])
    said = _said(columns, kept, column_keys)
    code = said.codes()
    order = _content_order(first, said.lead, code)
    keys = np.stack([bits(quantise(np.asarray(key, dtype=np.float64)[jobs])) for key in job_keys])
    group, shown = _numbered(code, first, keys)
    if len(shown) < len(jobs) and not _agree(said.take(order), first, keys, shown[group]):
        group, shown = np.arange(len(jobs)), np.arange(len(jobs))  # two hashes clash: nothing is put together

    member = np.full(n, -1, dtype=np.int64)
    member[jobs] = group
    class_width = width[jobs[shown]]
    class_column, sorted_kept = np.full(len(columns), -1, dtype=np.int64), kept[order]
    class_column[sorted_kept] = twins(group, first, begins(class_width))
    return Classes(
        size=np.bincount(group, minlength=len(shown)),
        member=member,
        representative=jobs[shown],
        column_class=np.repeat(np.arange(len(shown)), class_width),
        column=sorted_kept[ranges(first[shown], first[shown + 1])],
        class_column=class_column,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Said:
    """What K columns say, as integers: their keys, each (K,), and their uses by pool, each (u,)."""

    keys: list[IntArray]
    first: IntArray
    pool: IntArray
    count: IntArray

    @property
    def lead(self) -> IntArray:
        """First pool of each column (K,)."""
        return self.pool[self.first[:-1]]

    def codes(self) -> NDArray[np.uint64]:
        """All that each column says, mixed into 64 bits (K,); overflow wraps on purpose."""
        use = mix(mix(self.pool.view(np.uint64)) + self.count.view(np.uint64))
        code = use if len(use) == len(self.first) - 1 else wrapping_sums(use, self.first)
        for key in self.keys:
            code = mix(code + key.view(np.uint64))
        return code

    def take(self, chosen: IntArray) -> "_Said":
        """Some of the columns, in this order."""
        uses = ranges(self.first[chosen], self.first[chosen + 1])
        width = np.diff(self.first)[chosen]
        return _Said([key[chosen] for key in self.keys], begins(width), self.pool[uses], self.count[uses])


def _said(columns: Columns, kept: IntArray, keys: Sequence[FloatArray]) -> _Said:
    use_first = offsets_of(columns.use_column, len(columns))
    width = np.diff(use_first)[kept]
    uses = ranges(use_first[kept], use_first[kept + 1])
    pool, count = columns.use_pool[uses], bits(quantise(columns.use_count[uses]))
    if len(uses) > len(kept):
        by_pool = np.lexsort((count, pool, np.repeat(np.arange(len(kept)), width)))
        pool, count = pool[by_pool], count[by_pool]
    told = [bits(quantise(np.asarray(key, dtype=np.float64)[kept])) for key in keys]
    return _Said(told, begins(width), pool.astype(np.int64), count)


def _content_order(first: IntArray, lead: IntArray, code: NDArray[np.uint64]) -> IntArray:
    """The columns by job, then by first pool, then by code as far as its bits have room beside those: mostly as is."""
    pools = int(lead.max(initial=0)) + 1
    room = max(1, 64 - ((len(first) - 1) * pools).bit_length())
    owner = np.repeat(np.arange(len(first) - 1), np.diff(first))
    key = (owner * pools + lead).astype(np.uint64) << np.uint64(room) | code >> np.uint64(64 - room)
    if np.all(key[1:] >= key[:-1]):
        return np.arange(len(key))
    return np.argsort(key, kind="stable")


def _numbered(code: NDArray[np.uint64], first: IntArray, keys: IntArray) -> tuple[IntArray, IntArray]:
    """Group of each job by all that it says, and one job of each group: (m,), (k,)."""
    said = wrapping_sums(mix(code), first)
    for key in keys:
        said = mix(said + key.view(np.uint64))
    _, shown, group = np.unique(said, return_index=True, return_inverse=True)
    return group.reshape(-1).astype(np.int64), shown.astype(np.int64)


def _agree(said: _Said, first: IntArray, keys: IntArray, like: IntArray) -> bool:
    """Whether every job says what the job `like[job]` says: columns in content order, then its own keys (f, m)."""
    if not (np.array_equal(keys, keys[:, like]) and np.array_equal(np.diff(first), np.diff(first)[like])):
        return False
    other = said.take(twins(like, first, first))
    same_uses = np.array_equal(said.pool, other.pool) and np.array_equal(said.count, other.count)
    same_keys = all(np.array_equal(one, two) for one, two in zip(said.keys, other.keys, strict=True))
    return same_uses and same_keys and np.array_equal(said.first, other.first)


def _take(values: FloatArray, index: IntArray) -> FloatArray:
    if not len(index) or index.min() >= 0:
        return values[index]
    taken = np.zeros(len(index))
    there = index >= 0
    taken[there] = values[index[there]]
    return taken
