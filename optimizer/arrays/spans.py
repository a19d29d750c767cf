"""Entries that stand together by owner (columns by job, uses by column), told by where each owner's begin.

`first` has one entry more than there are owners: those of owner i are first[i]:first[i + 1]. Knows nothing of jobs.
"""

import numpy as np
from numpy.typing import NDArray

from optimizer.problem import IntArray


def offsets_of(owner: IntArray, owners: int) -> IntArray:
    """Where each owner's entries begin in an ascending array of owners, and the end (owners + 1,)."""
    return begins(np.bincount(owner, minlength=owners))


def begins(width: IntArray) -> IntArray:
    """Where each owner's entries begin if it has so many, and the end (owners + 1,)."""
    first = np.zeros(len(width) + 1, dtype=np.int64)
    np.cumsum(width, out=first[1:])
    return first


def places(first: IntArray) -> IntArray:
    """Position of each entry among its owner's."""
    return np.arange(first[-1]) - np.repeat(first[:-1], np.diff(first))


def ranges(begin: IntArray, end: IntArray) -> IntArray:
    """begin[0]..end[0]-1, begin[1]..end[1]-1, ... one after the other."""
    length = end - begin
    start = np.cumsum(length) - length
    return np.repeat(begin - start, length) + np.arange(int(length.sum()))


def twins(like: IntArray, first: IntArray, like_first: IntArray) -> IntArray:
    """For each entry of each owner, the entry in the same place of the owner that it is like."""
    return np.repeat(like_first[like] - first[:-1], np.diff(first)) + np.arange(first[-1])


def wrapping_sums(values: NDArray[np.uint64], first: IntArray) -> NDArray[np.uint64]:
    """Sum of each owner's values, wrapping."""
    total = np.zeros(len(values) + 1, dtype=np.uint64)
    np.cumsum(values, out=total[1:])
    return total[first[1:]] - total[first[:-1]]
