"""`optimizer.classes.aggregation`, compiled: the same groups and expansions for millions of columns.

Jobs are cut into a fixed number of blocks, so results do not depend on the number of cores. Importing it imports numba.
"""

import numba
import numpy as np

from optimizer.classes.check_kernels import limited_threads
from optimizer.classes.compiled_loops import njit
from optimizer.classes.segments import as_bits
from optimizer.problem import Columns, FloatArray, IntArray

_BLOCKS = 64
#: The fewest jobs of a block: most jobs have an equal job in their block.
_BLOCK_JOBS = 16_384
#: Odd multipliers that spread the bits of the words summed in a hash.
_A, _B = np.uint64(0xD1342543DE82EF95), np.uint64(0xA0761D6478BD642F)
_C, _D = np.uint64(0xE7037ED1A0B428DB), np.uint64(0x8EBC6AF09C88C6E3)


def group_equal_jobs(
    columns: Columns, first: IntArray, use_first: IntArray, key: IntArray
) -> tuple[IntArray, IntArray]:
    """Returns the distinct job of each job (n,), and the first job of each distinct one, ascending (k,).

    `use_first` is empty where every column has one use.
    """
    n = len(first) - 1
    contents = (first, use_first, as_bits(columns.steps_per_s), columns.use_pool, as_bits(columns.use_count), key)
    blocks = min(max(n // _BLOCK_JOBS, 1), _BLOCKS)
    step = -(-n // blocks) if n else 1
    slots = 1 << (2 * step - 1).bit_length()
    with limited_threads(len(columns)):
        code, member, representatives = (
            np.empty(n, dtype=np.uint64),
            np.empty(n, dtype=np.int64),
            np.empty(n, dtype=np.int64),
        )
        known = _group_blocks(
            contents, step, np.full((blocks, slots), -1, dtype=np.int32), (code, member, representatives)
        )
        if known.min() >= 0:
            representative, clash = _merge(contents, step, known, (code, member, representatives))
            if not clash:
                return member, representative
    return np.arange(n), np.arange(n)  # Two different jobs share a hash: every job is a group of its own.


def compiled_offsets(owner: IntArray, owners: int) -> IntArray:
    """Returns where each owner's entries begin in an ascending array of owners, and the end (owners + 1,)."""
    first = np.empty(owners + 1, dtype=np.int64)  # Allocated by numpy, which asks for large pages.
    with limited_threads(len(owner)):
        _offsets(owner, first)
    return first


def expand_to_columns(values: FloatArray, member: IntArray, first: IntArray, distinct_first: IntArray) -> FloatArray:
    """Returns for every column the value of its distinct column: (C,) -> (c,)."""
    expanded = np.empty(int(first[-1]))
    with limited_threads(len(expanded)):
        _expand(values, member, first, distinct_first, expanded)
    return expanded


@njit(inline="always")
def _mix(state):  # type: ignore[no-untyped-def]
    state += np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


@njit(parallel=True, cache=True)
def _offsets(owner, first):  # type: ignore[no-untyped-def]
    entries, owners = len(owner), len(first) - 1
    step = (entries + _BLOCKS - 1) // _BLOCKS
    for block in numba.prange(_BLOCKS):
        for entry in range(block * step, min(entries, (block + 1) * step)):
            before = owner[entry - 1] if entry > 0 else -1
            for started in range(before + 1, owner[entry] + 1):
                first[started] = entry
    for empty in range((owner[entries - 1] if entries else -1) + 1, owners + 1):
        first[empty] = entries


@njit(inline="always")
def _code(contents, job):  # type: ignore[no-untyped-def]
    """Returns a 64-bit hash of all of a job's words: a sum of mixed words, so that no word waits for the one before."""
    first, use_first, speed, pool, count, key = contents
    begin, end = first[job], first[job + 1]
    state = np.uint64(end - begin)
    if len(use_first) == 0:
        for column in range(begin, end):
            word = np.uint64(speed[column]) * _A + np.uint64(pool[column]) * _B + np.uint64(count[column]) * _C
            state += _mix(word + np.uint64(column - begin) * _D)
    else:
        for column in range(begin, end):
            uses = use_first[column]
            word = np.uint64(speed[column]) * _A + np.uint64(column - begin) * _D
            for use in range(uses, use_first[column + 1]):
                word += _mix(np.uint64(pool[use]) * _B + np.uint64(count[use]) * _C + np.uint64(use - uses) * _D)
            state += _mix(word)
    for field in range(key.shape[0]):
        state = _mix(state + np.uint64(key[field, job]))
    return _mix(state)


@njit(inline="always")
def _same(contents, job, twin):  # type: ignore[no-untyped-def]
    """Returns whether two jobs have equal columns and keys."""
    first, use_first, speed, pool, count, key = contents
    begin, other, columns = first[job], first[twin], first[job + 1] - first[job]
    if columns != first[twin + 1] - first[twin]:
        return False
    wrong = 0
    for field in range(key.shape[0]):
        wrong += key[field, job] != key[field, twin]
    for i in range(columns):
        wrong += speed[begin + i] != speed[other + i]
    uses = columns
    if len(use_first) > 0:
        one, two = use_first[begin], use_first[other]
        uses = use_first[first[job + 1]] - one
        for i in range(columns):
            wrong += use_first[begin + i + 1] - one != use_first[other + i + 1] - two
        begin, other = one, two
    if wrong > 0:
        return False
    for i in range(uses):
        wrong += pool[begin + i] != pool[other + i]
        wrong += count[begin + i] != count[other + i]
    return wrong == 0


@njit(parallel=True, cache=True)
def _group_blocks(contents, step, table, found):  # type: ignore[no-untyped-def]
    """Groups each block's jobs with hash tables (linear probing). Records each job's hash, its group within the block,
    and the first job of each group, from the block's first place on. Returns the number of groups per block; -1 where
    two different jobs share a hash.
    """
    code, member, representatives = found
    jobs, mask = len(code), np.uint64(table.shape[1] - 1)
    known = np.zeros(len(table), dtype=np.int64)
    for block in numba.prange(len(table)):
        begin, groups = block * step, 0
        for job in range(begin, min(jobs, begin + step)):
            code[job] = _code(contents, job)
            slot = code[job] & mask
            while table[block, slot] >= 0 and code[representatives[begin + table[block, slot]]] != code[job]:
                slot = (slot + np.uint64(1)) & mask
            group = table[block, slot]
            if group < 0:
                table[block, slot] = groups
                representatives[begin + groups] = job
                member[job] = groups
                groups += 1
            elif _same(contents, job, representatives[begin + group]):
                member[job] = group
            else:
                groups = -1
                break
        known[block] = groups
    return known


@njit(cache=True)
def _merge(contents, step, known, found):  # type: ignore[no-untyped-def]
    """Numbers the groups of all blocks in order of first occurrence, and their members; also returns whether two
    different jobs share a hash.
    """
    code, member, representatives = found
    slots, total = 1024, known.sum()
    while slots < 2 * total:
        slots *= 2
    mask = np.uint64(slots - 1)
    table = np.full(slots, -1, dtype=np.int64)
    representative, number = np.empty(total, dtype=np.int64), np.empty(len(code), dtype=np.int64)
    groups = 0
    for block in range(len(known)):
        for place in range(block * step, block * step + known[block]):
            job = representatives[place]
            slot = code[job] & mask
            while table[slot] >= 0 and code[representative[table[slot]]] != code[job]:
                slot = (slot + np.uint64(1)) & mask
            if table[slot] < 0:
                table[slot] = groups
                representative[groups] = job
                groups += 1
            elif not _same(contents, job, representative[table[slot]]):
                return representative, True
            number[place] = table[slot]
    for job in range(len(code)):
        member[job] = number[job // step * step + member[job]]
    return representative[:groups].copy(), False


@njit(parallel=True, cache=True)
def _expand(values, member, first, distinct_first, expanded):  # type: ignore[no-untyped-def]
    jobs = len(member)
    step = (jobs + _BLOCKS - 1) // _BLOCKS
    for block in numba.prange(_BLOCKS):
        for job in range(block * step, min(jobs, (block + 1) * step)):
            begin = distinct_first[member[job]]
            for column in range(first[job], first[job + 1]):
                expanded[column] = values[begin + column - first[job]]
