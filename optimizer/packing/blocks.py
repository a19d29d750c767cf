"""Which classes of jobs may be packed two by two, as dense blocks: one for each pool and gang size.

Within a block classes are grouped into *segments* of one kind: what two jobs lose beside each other depends on their
segments alone, what they gain by running there on themselves. Decides which listed pairs are worth considering: those
of which both members keep more than 1 in sum. With f + g <= 1 the two can take turns alone in the same pool, f and g of
the time, and get the same for less time and no more accelerators, so no optimum needs the pair.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from optimizer.class_market import ClassMarket
from optimizer.problem import BoolArray, FloatArray, IntArray, Pairs, Problem
from optimizer.utility import pool_columns


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """m classes in s segments that may share gangs of one size in one pool."""

    pool: int
    #: Accelerators that a pair takes.
    count: float
    #: Class and class column of each place, by segment (m,).
    member: IntArray
    column: IntArray
    #: More than one job: two of the class may share (m,).
    several: BoolArray
    #: Segment of each place, and the first place of each segment (m,), (s,).
    segment: IntArray
    first: IntArray
    #: Part of its own speed that a member of segment a keeps beside one of segment b; nan where they never share (s, s).
    keeps: FloatArray
    #: Row of `Pairs`, the same either way; -1 where they never share. True: segment a is the row's first kind (s, s).
    row: IntArray
    leads: BoolArray

    def __len__(self) -> int:
        return len(self.member)


def blocks_of(problem: Problem, classes: ClassMarket, keep: BoolArray) -> tuple[Block, ...]:
    """The blocks of a problem's classes, each with at least one pair; none where nothing may be shared.

    Args:
        problem: n jobs, c columns, p pools.
        classes: k classes, whose members are all of one kind.
        keep: the columns that take part (c,).
    """
    if problem.pairs is None or not len(problem.pairs):
        return ()
    pairs, class_of = problem.pairs, classes.classes
    own = pool_columns(problem.columns, keep)
    job = problem.columns.job[own.column]
    spoken = (class_of.representative[class_of.member[job]] == job) & (pairs.kind[job] >= 0)
    member, column = class_of.member[job[spoken]], class_of.class_column[own.column[spoken]]
    pool, count, kind = own.pool[spoken], own.count[spoken], pairs.kind[job[spoken]]
    several = class_of.size[member] > 1
    blocks = []
    for where, size in np.unique(np.stack((pool.astype(np.float64), count), axis=1), axis=0):
        inside = np.flatnonzero((pool == int(where)) & (count == size))
        inside = inside[np.lexsort((member[inside], kind[inside]))]
        kinds, first, segment = np.unique(kind[inside], return_index=True, return_inverse=True)
        keeps, row, leads = _tables(pairs, int(where), kinds)
        block = Block(
            pool=int(where),
            count=float(size),
            member=member[inside],
            column=column[inside],
            several=several[inside],
            segment=segment.astype(np.int64),
            first=first.astype(np.int64),
            keeps=keeps,
            row=row,
            leads=leads,
        )
        if np.any(row >= 0):
            blocks.append(block)
    return tuple(blocks)


def _tables(pairs: Pairs, pool: int, kinds: IntArray) -> tuple[FloatArray, IntArray, BoolArray]:
    """What is listed of these kinds (ascending) in a pool, as tables of segments."""
    listed = np.flatnonzero((pairs.pool == pool) & (pairs.first_factor + pairs.second_factor > 1))
    a, b = np.searchsorted(kinds, pairs.first[listed]), np.searchsorted(kinds, pairs.second[listed])
    here = (a < len(kinds)) & (b < len(kinds))
    here[here] &= (kinds[a[here]] == pairs.first[listed[here]]) & (kinds[b[here]] == pairs.second[listed[here]])
    a, b, listed = a[here], b[here], listed[here]
    keeps = np.full((len(kinds), len(kinds)), np.nan)
    row = np.full(keeps.shape, -1, dtype=np.int64)
    leads = np.zeros(keeps.shape, dtype=bool)
    keeps[b, a], keeps[a, b] = pairs.second_factor[listed], pairs.first_factor[listed]
    row[a, b] = row[b, a] = listed
    leads[a, b] = True
    return keeps, row, leads


@dataclass(frozen=True, slots=True, eq=False)
class PairColumns:
    """Pairs of classes: parallel arrays of the block and the places in it, first <= second (q,)."""

    block: IntArray
    first: IntArray
    second: IntArray

    def __len__(self) -> int:
        return len(self.block)

    def take(self, chosen: BoolArray | IntArray) -> "PairColumns":
        """Some of them."""
        return PairColumns(self.block[chosen], self.first[chosen], self.second[chosen])


def no_pairs() -> PairColumns:
    """None."""
    none = np.zeros(0, dtype=np.int64)
    return PairColumns(none, none, none)


def joined(parts: list[PairColumns]) -> PairColumns:
    """All of them, each once, in a fixed order."""
    table = np.concatenate([np.stack((part.block, part.first, part.second), axis=1) for part in parts])
    low, high = table[:, 1:].min(axis=1, initial=np.iinfo(np.int64).max), table[:, 1:].max(axis=1, initial=0)
    order = np.lexsort((high, low, table[:, 0]))
    block, low, high = table[order, 0], low[order], high[order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (np.diff(block) != 0) | (np.diff(low) != 0) | (np.diff(high) != 0)
    return PairColumns(block[new], low[new], high[new])


def how_many(blocks: tuple[Block, ...]) -> int:
    """Pairs of classes that there are in all, counted from above: a class of one job is counted beside itself."""
    total = 0
    for block in blocks:
        size = np.diff(np.append(block.first, len(block)))
        listed = block.row >= 0
        total += int(((listed * size).T * size).sum() + (size * listed.diagonal()).sum()) // 2
    return total


def all_pairs(blocks: tuple[Block, ...]) -> PairColumns:
    """Every pair of classes. Memory grows with their number."""
    return joined([no_pairs(), *_listed(blocks)])


def _listed(blocks: tuple[Block, ...]) -> Iterator[PairColumns]:
    for number, block in enumerate(blocks):
        first, second = np.triu_indices(len(block))
        listed = block.row[block.segment[first], block.segment[second]] >= 0
        listed &= (first < second) | block.several[first]
        yield PairColumns(np.full(int(listed.sum()), number), first[listed], second[listed])
