"""Array arithmetic by owner: columns of a job, uses of a column, rows of equal content.

Sums and maxima by owner take an array of owners in any order. Where the entries of each owner are contiguous, `first`
has one entry more than there are owners: the entries of owner i are first[i]:first[i + 1] (as `indptr` of a sparse
matrix). Equal rows of a matrix are grouped by a 64-bit hash and then compared in full, so groups are exact.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from optimizer.problem import FloatArray, IntArray


def sum_by(owner: IntArray, values: FloatArray, owners: int) -> FloatArray:
    """Returns the sum of the values of each owner, 0 for an owner without any (owners,)."""
    if 0 < len(owner) == owners and owner[0] == 0 and np.all(owner[1:] - owner[:-1] == 1):
        return values + 0.0  # One value each, in order; adding 0.0 turns -0.0 into 0.0.
    return np.asarray(np.bincount(owner, weights=values, minlength=owners), dtype=np.float64)


#: The column (owner), the row and the amount of each use, as parallel arrays.
Uses = tuple[IntArray, IntArray, FloatArray]


def merged_uses(first: Uses, second: Uses) -> Uses:
    """Returns all uses by column, those of `first` before those of `second`."""
    column = np.concatenate((first[0], second[0]))
    order = np.argsort(column, kind="stable")
    return column[order], np.concatenate((first[1], second[1]))[order], np.concatenate((first[2], second[2]))[order]


def max_by(owner: IntArray, values: FloatArray, owners: int) -> FloatArray:
    """Returns the largest value of each owner, at least 0 (owners,)."""
    best = np.zeros(owners)
    np.maximum.at(best, owner, values)
    return best


def offsets_of_widths(width: IntArray) -> IntArray:
    """Returns the offset of each owner's first entry, from the numbers of entries (owners,), and the total (owners +
    1,).
    """
    first = np.zeros(len(width) + 1, dtype=np.int64)
    np.cumsum(width, out=first[1:])
    return first


def positions_within_owner(first: IntArray) -> IntArray:
    """Returns the position of each entry among the entries of its owner, from 0."""
    return np.arange(first[-1]) - np.repeat(first[:-1], np.diff(first))


def concatenated_ranges(begin: IntArray, end: IntArray) -> IntArray:
    """Returns begin[0]..end[0]-1, begin[1]..end[1]-1, ... one after the other."""
    length = end - begin
    start = np.cumsum(length) - length
    return np.repeat(begin - start, length) + np.arange(int(length.sum()))


def wrapping_sums_by_owner(values: NDArray[np.uint64], first: IntArray) -> NDArray[np.uint64]:
    """Returns the sum of each owner's values modulo 2**64 (owners,)."""
    total = np.zeros(len(values) + 1, dtype=np.uint64)
    np.cumsum(values, out=total[1:])
    return total[first[1:]] - total[first[:-1]]


#: Bits of a float's mantissa that are ignored. The 31 others count: floats that agree to a relative 5e-10 are equal.
_DROPPED_BITS = 22


def quantised_bits(values: FloatArray) -> IntArray:
    """Returns the bits of floats rounded to a relative 5e-10, half to even: a quantity computed twice gets the same
    bits.
    """
    rounded: IntArray = (values + 0.0).view(np.int64)  # -0.0 and 0.0 are one value but two bit patterns
    rounded += ((rounded >> _DROPPED_BITS) & 1) + ((1 << (_DROPPED_BITS - 1)) - 1)  # carries into the exponent
    rounded &= -(1 << _DROPPED_BITS)
    return rounded


def as_bits(values: NDArray[Any]) -> IntArray:
    """Returns a float or integer array as 64-bit integers, equal exactly where the values are equal."""
    if values.dtype == np.float64:
        return np.ascontiguousarray(values).view(np.int64)
    return values.astype(np.int64, copy=False)


def mix_bits(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Returns 64-bit words with their bits mixed (the finaliser of splitmix64); overflow wraps on purpose."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state ^= state >> np.uint64(30)
    state *= np.uint64(0xBF58476D1CE4E5B9)
    state ^= state >> np.uint64(27)
    state *= np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    return state
