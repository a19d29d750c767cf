"""Compiled checks of millions of columns, and one pass that also groups equal jobs. Importing it imports numba.

`columns_are_sound` says whether indices, order and numbers hold together; `optimizer.problem` finds what is wrong.
`check_and_group` does the same for columns of one use each while it groups the jobs. Memory bandwidth is the limit at
that size, so every array is read once. A job that equals an earlier one bit by bit is as sound as that one: only the
first of its group is checked number by number. Candidates are found by a hash of a few words and always compared in
full, so groups are exact. The number of blocks is fixed: results do not depend on the number of cores.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numba
import numpy as np

from optimizer.classes.compiled_loops import njit
from optimizer.classes.segments import as_bits
from optimizer.problem import Columns, IntArray

#: The number of entries from which on threads pay: with fewer, waiting for a thread on a busy core takes longer than
#: the work.
_PARALLEL_FROM = 2_000_000


@contextmanager
def limited_threads(entries: int) -> Iterator[None]:
    """Uses one thread for so few entries, the caller's number of threads for more."""
    usual = numba.get_num_threads()
    numba.set_num_threads(usual if entries >= _PARALLEL_FROM else 1)
    try:
        yield
    finally:
        numba.set_num_threads(usual)


_BLOCKS = 64


def columns_are_sound(columns: Columns, jobs: int, pools: int) -> bool:
    """Returns whether indices are in range and ascend, numbers are finite and not negative, and every column uses a
    pool.

    The lengths of the arrays must be right already.
    """
    with limited_threads(len(columns)):
        sound = _owned(columns.job, jobs, columns.steps_per_s)
        return bool(sound and _used(columns.use_column, len(columns), columns.use_pool, pools, columns.use_count))


@njit(parallel=True, cache=True)
def _owned(job, jobs, steps):  # type: ignore[no-untyped-def]
    entries, wrong = len(job), np.zeros(_BLOCKS, dtype=np.int64)
    part = (entries + _BLOCKS - 1) // _BLOCKS
    for block in numba.prange(_BLOCKS):
        begin, end, missed = block * part, min(entries, (block + 1) * part), 0
        for i in range(max(begin, 1), end):
            missed += job[i] < job[i - 1]
        for i in range(begin, end):
            missed += not (steps[i] >= 0.0 and steps[i] < np.inf)
        wrong[block] = missed
    return wrong.sum() == 0 and (entries == 0 or (job[0] >= 0 and job[-1] < jobs))


@njit(parallel=True, cache=True)
def _used(column, columns, pool, pools, count):  # type: ignore[no-untyped-def]
    entries, wrong = len(column), np.zeros(_BLOCKS, dtype=np.int64)
    part = (entries + _BLOCKS - 1) // _BLOCKS
    for block in numba.prange(_BLOCKS):
        begin, end, missed = block * part, min(entries, (block + 1) * part), 0
        for i in range(max(begin, 1), end):
            missed += column[i] < column[i - 1] or column[i] > column[i - 1] + 1
        for i in range(begin, end):
            missed += pool[i] < 0 or pool[i] >= pools
            missed += not (count[i] > 0.0 and count[i] < np.inf)
        wrong[block] = missed
    whole = column[0] == 0 and column[-1] == columns - 1 if entries > 0 else columns == 0
    return wrong.sum() == 0 and whole


#: The fewest columns of a block: most jobs have an equal job in their block.
_BLOCK_COLUMNS = 262_144
#: The failed comparisons per job of a block above which the hash does not tell its jobs apart.
_FAILED_COMPARISONS = 4
#: Odd multipliers that spread the bits of the words summed in a hash.
_A, _B, _C = np.uint64(0xD1342543DE82EF95), np.uint64(0xA0761D6478BD642F), np.uint64(0xE7037ED1A0B428DB)
_ONE = np.uint64(1)


@dataclass(frozen=True, slots=True, eq=False)
class CheckedGroups:
    """Sound columns of n jobs, of which k are distinct."""

    #: First column of each job, and the end (n + 1,).
    first: IntArray
    #: Distinct job of each job (n,), and the first job of each distinct one, ascending (k,).
    member: IntArray
    representative: IntArray


def check_and_group(columns: Columns, pools: int, key: IntArray) -> CheckedGroups | None:
    """Returns the groups of equal jobs; None where anything may be wrong, a job has no column, or too many hashes
    agree: the caller then uses another method.

    Args:
        columns: c > 0 of n > 0 jobs; their arrays, and those of their uses, are c long.
        pools: indices of pools are below it.
        key: the fields, besides columns, in which jobs may differ, as bits, one row per field (f, n).
    """
    owner, place, n = columns.job, columns.use_column, key.shape[1]
    if owner[0] != 0 or owner[-1] != n - 1:
        return None
    contents = (as_bits(columns.steps_per_s), as_bits(columns.use_pool), as_bits(columns.use_count), key)
    cuts = _block_bounds(owner, min(max(len(owner) // _BLOCK_COLUMNS, 1), _BLOCKS))
    first, member, representatives = (np.empty(n + 1, dtype=np.int64) for _ in range(3))
    first[n] = len(owner)
    code = np.empty(n, dtype=np.uint64)
    with limited_threads(len(owner)):
        known = _walk_blocks((owner, place), contents, (cuts, pools), (first, member, representatives, code))
        if known.min() < 0:
            return None
        number, representative = _number_groups(contents, (cuts, known), owner, (first, representatives, code))
        _renumber_members(cuts, owner, number, member)
    return CheckedGroups(first, member[:n], representative)


def _block_bounds(owner: IntArray, blocks: int) -> IntArray:
    """Returns the first column of each block, and the end: where jobs ascend, every block begins with a
    job (b + 1,).
    """
    even = np.arange(1, blocks) * len(owner) // blocks
    begins = np.searchsorted(owner, owner[even], side="left")
    return np.concatenate(([0], np.maximum.accumulate(begins), [len(owner)])).astype(np.int64)


@njit(inline="always")
def _code(contents, job, begin, end):  # type: ignore[no-untyped-def]
    """Returns a hash of a few of a job's words: speeds of its first, middle and last column, and its keys."""
    speed, _, count, key = contents
    state = np.uint64(speed[begin]) * _A + np.uint64(speed[(begin + end) // 2]) * _B + np.uint64(speed[end - 1]) * _C
    state += np.uint64(count[begin]) + np.uint64(end - begin)
    for field in range(key.shape[0]):
        state = (state ^ (state >> np.uint64(29))) * _A + np.uint64(key[field, job])
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return state ^ (state >> np.uint64(31))


@njit(inline="always")
def _same(contents, first, job, twin):  # type: ignore[no-untyped-def]
    """Returns whether two jobs have equal columns and keys."""
    speed, pool, count, key = contents
    one, two, width = np.uint64(first[job]), np.uint64(first[twin]), first[job + 1] - first[job]
    if width != first[twin + 1] - first[twin]:
        return False
    wrong = np.int64(0)
    for field in range(key.shape[0]):
        wrong |= key[field, job] ^ key[field, twin]
    for i in range(np.uint64(width)):
        wrong |= speed[one + i] ^ speed[two + i]
        wrong |= pool[one + i] ^ pool[two + i]
        wrong |= count[one + i] ^ count[two + i]
    return wrong == 0


@njit(inline="always")
def _job_is_sound(contents, begin, end, pools):  # type: ignore[no-untyped-def]
    """Returns whether a job's numbers are finite and not negative, and its pools exist. The bits of floats that are
    not negative are ordered as the floats are, so that bits can be compared.
    """
    speed, pool, count, _ = contents
    infinite, wrong = np.int64(0x7FF0000000000000), 0
    for i in range(begin, end):
        wrong += (speed[i] < 0 or speed[i] >= infinite) and speed[i] != np.int64(-0x8000000000000000)
        wrong += pool[i] < 0 or pool[i] >= pools
        wrong += count[i] <= 0 or count[i] >= infinite
    return wrong == 0


@njit(inline="always")
def _job_end(whole, job, begin, end, like):  # type: ignore[no-untyped-def]
    """Returns where a job's columns end, trying first as many as `like` has; `begin` where something is wrong with
    them.
    """
    owner, place = whole
    last = begin + like
    if last > end or owner[last - 1] != job or (last < end and owner[last] == job):
        last = begin
        while last < end and owner[last] == job:
            last += 1
    wrong, at = np.int64(0), np.uint64(begin)
    for i in range(np.uint64(last - begin)):
        wrong |= (owner[at + i] ^ job) | (place[at + i] ^ np.int64(at + i))
    return last if wrong == 0 else begin


@njit(parallel=True, cache=True)
def _walk_blocks(whole, contents, limits, found):  # type: ignore[no-untyped-def]
    """Groups the jobs of each block; returns -1 where another method is needed."""
    cuts, pools = limits
    known = np.zeros(len(cuts) - 1, dtype=np.int64)
    for block in numba.prange(len(cuts) - 1):
        known[block] = _walk_block(whole, contents, (cuts[block], cuts[block + 1], pools), found)
    return known


@njit(cache=True)
def _walk_block(whole, contents, limits, found):  # type: ignore[no-untyped-def]
    """Walks over the jobs of one block. Records where each begins, its group within the block, and the first job of
    each group with its hash, from the place of the block's first job on. Returns the number of groups; -1 where
    another method is needed.
    """
    owner, _ = whole
    begin, end, pools = limits
    first, member, representatives, code = found
    if begin == end:
        return 0
    base, past = owner[begin], owner[end - 1]
    if base < 0 or past >= len(code) or base > past or (begin > 0 and owner[begin - 1] != base - 1):
        return -1
    slots, jobs = 64, past - base + 1
    while slots < 2 * jobs:
        slots *= 2
    mask, table = np.uint64(slots - 1), np.full(slots, -1, dtype=np.int32)
    groups, in_vain, like = 0, 0, 1
    for job in range(base, past + 1):
        last = _job_end(whole, job, begin, end, like)
        if last == begin:
            return -1
        first[job], first[job + 1] = begin, last
        mine = _code(contents, job, begin, last)
        slot = mine & mask
        while table[slot] >= 0:
            twin = base + table[slot]
            if code[twin] == mine:
                if _same(contents, first, job, representatives[twin]):
                    break
                in_vain += 1
            slot = (slot + _ONE) & mask
        if table[slot] < 0:
            if not _job_is_sound(contents, begin, last, pools) or in_vain > _FAILED_COMPARISONS * jobs:
                return -1
            table[slot] = groups
            representatives[base + groups], code[base + groups] = job, mine
            groups += 1
        member[job] = table[slot]
        like, begin = last - begin, last
    return groups if begin == end else -1


@njit(cache=True)
def _number_groups(contents, cut, owner, found):  # type: ignore[no-untyped-def]
    """Numbers the groups of all blocks in order of first occurrence; records the number of each, and its first job."""
    cuts, known = cut
    first, representatives, code = found
    total, slots = known.sum(), 64
    while slots < 2 * total:
        slots *= 2
    mask, table = np.uint64(slots - 1), np.full(slots, -1, dtype=np.int64)
    representative, codes = np.empty(total, dtype=np.int64), np.empty(total, dtype=np.uint64)
    number, groups = np.empty(len(code), dtype=np.int64), 0
    for block in range(len(known)):
        base = owner[cuts[block]] if cuts[block] < len(owner) else 0
        for at in range(base, base + known[block]):
            slot = code[at] & mask
            while table[slot] >= 0:
                if codes[table[slot]] == code[at] and _same(
                    contents, first, representatives[at], representative[table[slot]]
                ):
                    break
                slot = (slot + _ONE) & mask
            if table[slot] < 0:
                table[slot] = groups
                representative[groups], codes[groups] = representatives[at], code[at]
                groups += 1
            number[at] = table[slot]
    return number, representative[:groups].copy()


@njit(parallel=True, cache=True)
def _renumber_members(cuts, owner, number, member):  # type: ignore[no-untyped-def]
    for block in numba.prange(len(cuts) - 1):
        begin, end = cuts[block], cuts[block + 1]
        if begin < end:
            base = owner[begin]
            for job in range(base, owner[end - 1] + 1):
                member[job] = number[base + member[job]]
