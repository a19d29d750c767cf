"""Equal rows of a matrix, found fast and exactly. Knows nothing of jobs."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optimizer.problem import FloatArray, IntArray

#: Bits of a float's mantissa that do not count. The 31 others do: floats that agree to a relative 5e-10 are equal.
_DROPPED_BITS = 22


@dataclass(frozen=True, slots=True)
class Groups:
    """Equal rows. Groups are numbered by content, so that the order of the rows does not matter."""

    #: Group of each row (r,).
    member: IntArray
    #: One row of each group (g,).
    representative: IntArray


def quantise(values: FloatArray) -> FloatArray:
    """Round to a relative 5e-10, half to even, so that the same quantity computed twice is the same number."""
    rounded = bits(values + 0.0)  # -0.0 and 0.0 are one value but two bit patterns
    rounded += ((rounded >> _DROPPED_BITS) & 1) + ((1 << (_DROPPED_BITS - 1)) - 1)  # carries into the exponent
    rounded &= -(1 << _DROPPED_BITS)
    return rounded.view(np.float64)


def bits(values: NDArray[Any]) -> IntArray:
    """A float or integer array as 64-bit integers, equal exactly where the values are equal."""
    if values.dtype == np.float64:
        return np.ascontiguousarray(values).view(np.int64)
    return values.astype(np.int64, copy=False)


def mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scatter 64 bits (the finaliser of splitmix64); overflow wraps on purpose."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state ^= state >> np.uint64(30)
    state *= np.uint64(0xBF58476D1CE4E5B9)
    state ^= state >> np.uint64(27)
    state *= np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    return state


def group_rows(rows: IntArray) -> Groups:
    """Group the equal rows of an integer matrix (r, k). Exact: a clash of hashes falls back to sorting whole rows."""
    if not len(rows):
        return Groups(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    _, representative, member = np.unique(_hash(rows), return_index=True, return_inverse=True)
    if not np.array_equal(rows, rows[representative[member]]):
        _, representative, member = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return Groups(member.reshape(-1).astype(np.int64), representative.astype(np.int64))


def _hash(rows: IntArray) -> NDArray[np.uint64]:
    """Mix each row into 64 bits."""
    state = np.zeros(len(rows), dtype=np.uint64)
    for column in np.ascontiguousarray(rows.T).view(np.uint64):
        state = mix(state + column)
    return state
