"""`optimizer.market.distinct`, compiled: the same groups and expansions for millions of columns. Imports numba.

Jobs are cut into a fixed number of blocks, so results do not depend on how many cores there are.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numba
import numpy as np

from optimizer.problem import Columns, FloatArray, IntArray

_BLOCKS = 64
#: Columns from which on threads pay: to wait for one whose core is busy elsewhere takes longer than less work does.
_PARALLEL_FROM = 2_000_000


def group(columns: Columns, first: IntArray, use_first: IntArray, key: IntArray) -> tuple[IntArray, IntArray]:
    """Distinct job of each job (n,), and the first job of each distinct one, ascending (k,)."""
    speed = columns.steps_per_s.view(np.int64)
    count = np.ascontiguousarray(columns.use_count).view(np.int64)
    with _threads(len(columns)):
        code = _codes(first, use_first, speed, columns.use_pool, count, key)
        member, representative = _number(code)
        if not _equal(first, use_first, speed, columns.use_pool, count, key, representative[member]):
            return np.arange(len(code)), np.arange(len(code))  # two hashes clash: nothing is put together
    return member, representative


def offsets(owner: IntArray, owners: int) -> IntArray:
    """Where each owner's entries begin in an ascending array of owners, and the end (owners + 1,)."""
    with _threads(len(owner)):
        first: IntArray = _offsets(owner, owners)
    return first


def expand(values: FloatArray, member: IntArray, first: IntArray, distinct_first: IntArray) -> FloatArray:
    """Give every column the value of its distinct column (C,) -> (c,)."""
    with _threads(int(first[-1])):
        expanded: FloatArray = _expand(values, member, first, distinct_first)
    return expanded


@contextmanager
def _threads(columns: int) -> Iterator[None]:
    """One thread for so few columns, the caller's number of them for more."""
    usual = numba.get_num_threads()
    numba.set_num_threads(usual if columns >= _PARALLEL_FROM else 1)
    try:
        yield
    finally:
        numba.set_num_threads(usual)


@numba.njit(inline="always")
def _mix(state):  # type: ignore[no-untyped-def]
    state += np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


@numba.njit(parallel=True, cache=True)
def _offsets(owner, owners):  # type: ignore[no-untyped-def]
    first = np.empty(owners + 1, dtype=np.int64)
    entries = len(owner)
    step = (entries + _BLOCKS - 1) // _BLOCKS
    for block in numba.prange(_BLOCKS):
        for entry in range(block * step, min(entries, (block + 1) * step)):
            before = owner[entry - 1] if entry > 0 else -1
            for started in range(before + 1, owner[entry] + 1):
                first[started] = entry
    for empty in range((owner[entries - 1] if entries else -1) + 1, owners + 1):
        first[empty] = entries
    return first


@numba.njit(parallel=True, cache=True)
def _codes(first, use_first, speed, pool, count, key):  # type: ignore[no-untyped-def]
    jobs = len(first) - 1
    code = np.empty(jobs, dtype=np.uint64)
    step = (jobs + _BLOCKS - 1) // _BLOCKS
    for block in numba.prange(_BLOCKS):
        for job in range(block * step, min(jobs, (block + 1) * step)):
            state = np.uint64(first[job + 1] - first[job])
            for column in range(first[job], first[job + 1]):
                state = _mix(state + np.uint64(speed[column]))
                for use in range(use_first[column], use_first[column + 1]):
                    state = _mix(state + np.uint64(pool[use]) * np.uint64(0xD1342543DE82EF95) + np.uint64(count[use]))
            for field in range(key.shape[1]):
                state = _mix(state + np.uint64(key[job, field]))
            code[job] = state
    return code


@numba.njit(cache=True)
def _number(code):  # type: ignore[no-untyped-def]
    """Number equal codes in order of first sight, by a hash table with linear probing."""
    slots = 1024
    while slots < 2 * len(code):
        slots *= 2
    mask = np.uint64(slots - 1)
    table = np.full(slots, -1, dtype=np.int64)
    member = np.empty(len(code), dtype=np.int64)
    representative = np.empty(len(code), dtype=np.int64)
    known = 0
    for job in range(len(code)):
        slot = code[job] & mask
        while table[slot] >= 0 and code[representative[table[slot]]] != code[job]:
            slot = (slot + np.uint64(1)) & mask
        if table[slot] < 0:
            table[slot] = known
            representative[known] = job
            known += 1
        member[job] = table[slot]
    return member, representative[:known].copy()


@numba.njit(parallel=True, cache=True)
def _equal(first, use_first, speed, pool, count, key, like):  # type: ignore[no-untyped-def]
    """Whether every job says what the job `like[job]` says."""
    jobs = len(like)
    step = (jobs + _BLOCKS - 1) // _BLOCKS
    different = np.zeros(_BLOCKS, dtype=np.int64)
    for block in numba.prange(_BLOCKS):
        for job in range(block * step, min(jobs, (block + 1) * step)):
            twin = like[job]
            if twin == job:
                continue
            columns = first[job + 1] - first[job]
            begin, other = use_first[first[job]], use_first[first[twin]]
            uses = use_first[first[job + 1]] - begin
            same = columns == first[twin + 1] - first[twin] and uses == use_first[first[twin + 1]] - other
            for field in range(key.shape[1]):
                same = same and key[job, field] == key[twin, field]
            if not same:
                different[block] += 1
                continue
            wrong = 0
            for i in range(columns):
                column, model = first[job] + i, first[twin] + i
                wrong += speed[column] != speed[model]
                wrong += use_first[column + 1] - begin != use_first[model + 1] - other
            for i in range(uses):
                wrong += pool[begin + i] != pool[other + i]
                wrong += count[begin + i] != count[other + i]
            different[block] += wrong
    return different.sum() == 0


@numba.njit(parallel=True, cache=True)
def _expand(values, member, first, distinct_first):  # type: ignore[no-untyped-def]
    jobs = len(member)
    expanded = np.empty(first[jobs], dtype=np.float64)
    step = (jobs + _BLOCKS - 1) // _BLOCKS
    for block in numba.prange(_BLOCKS):
        for job in range(block * step, min(jobs, (block + 1) * step)):
            begin = distinct_first[member[job]]
            for column in range(first[job], first[job + 1]):
                expanded[column] = values[begin + column - first[job]]
    return expanded
