"""Which classes of jobs may be packed two by two, as dense blocks: one for each pool and gang size.

Within a block classes are grouped into *segments* of one kind: what two jobs lose beside each other depends on their
segments alone, what they gain by running there on themselves. Decides which listed pairs are worth considering: those
of which both members keep more than 1 in sum. With f + g <= 1 the two can take turns alone in the same pool, f and g of
the time, and get the same for less time and no more accelerators, so no optimum needs the pair.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.fairness.utility import pool_columns
from optimizer.market.class_market import ClassMarket
from optimizer.problem import BoolArray, FloatArray, IntArray, Pairs, Problem


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
    #: Part of its own speed that a member of segment a keeps beside one of b; nan where they never share (s, s).
    keeps: FloatArray
    #: Row of `Pairs`, the same either way; -1 where they never share, as a job that is alone in its segment never does
    #: beside itself. True: segment a is the row's first kind (s, s).
    row: IntArray
    leads: BoolArray

    def __len__(self) -> int:
        return len(self.member)


def sharing_keys(problem: Problem, *, packed: bool) -> list[FloatArray]:
    """What tells jobs apart where they may share, besides columns and targets: their kind, -1 if not listed (n,)."""
    pairs = problem.pairs
    if pairs is None or not packed:
        return []
    listed = np.isin(pairs.kind, np.concatenate((pairs.first, pairs.second)))
    return [np.where(listed, pairs.kind, -1).astype(np.float64)]


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
        lonely = (np.bincount(segment) == 1) & ~several[inside][first]
        keeps[lonely, lonely], row[lonely, lonely] = np.nan, -1
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
class Sides:
    """Columns of the packed program: a member of a place, beside somebody of a segment. Parallel arrays (q,)."""

    block: IntArray
    place: IntArray
    beside: IntArray

    def __len__(self) -> int:
        return len(self.block)

    def take(self, chosen: BoolArray | IntArray) -> "Sides":
        """Some of them."""
        return Sides(self.block[chosen], self.place[chosen], self.beside[chosen])


def joined(parts: list[Sides]) -> Sides:
    """All of them, each once, ordered by block, place, segment."""
    block = np.concatenate([part.block for part in parts])
    place = np.concatenate([part.place for part in parts])
    beside = np.concatenate([part.beside for part in parts])
    order = np.lexsort((beside, place, block))
    new = np.ones(len(order), dtype=bool)
    for array in (block, place, beside):
        array[:] = array[order]
    new[1:] = (np.diff(block) != 0) | (np.diff(place) != 0) | (np.diff(beside) != 0)
    return Sides(block[new], place[new], beside[new])


def no_sides() -> Sides:
    """None."""
    none = np.zeros(0, dtype=np.int64)
    return Sides(none, none, none)


def how_many(blocks: tuple[Block, ...]) -> int:
    """Sides that there are in all."""
    return sum(int((block.row >= 0).sum(axis=1)[block.segment].sum()) for block in blocks)


def all_sides(blocks: tuple[Block, ...]) -> Sides:
    """Every side."""
    parts = [no_sides()]
    for number, block in enumerate(blocks):
        place, beside = np.nonzero(block.row[block.segment] >= 0)
        parts.append(Sides(np.full(len(place), number), place, beside))
    return joined(parts)


@dataclass(frozen=True, slots=True, eq=False)
class Spelled:
    """Sides spelled out (all arrays (q,)): what each takes and gives, and with whom it must agree."""

    #: Class, its class column that the side runs on, and part of its speed that it keeps.
    member: IntArray
    column: IntArray
    keeps: FloatArray
    #: Accelerators of a pair, and the pool.
    count: FloatArray
    pool: IntArray
    #: Number of the meeting (block and two segments), and which side of it: 1, -1, or 0 where both are one segment.
    meeting: IntArray
    sign: FloatArray

    @property
    def meetings(self) -> int:
        """How many different ones there are."""
        return int(self.meeting.max(initial=-1)) + 1


def spell(sides: Sides, blocks: tuple[Block, ...]) -> Spelled:
    """What sides are, looked up in their blocks."""
    q = len(sides)
    member, column, pool, segment = (np.zeros(q, dtype=np.int64) for _ in range(4))
    keeps, count = np.zeros(q), np.zeros(q)
    for number, block in enumerate(blocks):
        here = np.flatnonzero(sides.block == number)
        place = sides.place[here]
        member[here], column[here], segment[here] = block.member[place], block.column[place], block.segment[place]
        keeps[here] = block.keeps[block.segment[place], sides.beside[here]]
        count[here], pool[here] = block.count, block.pool
    low, high = np.minimum(segment, sides.beside), np.maximum(segment, sides.beside)
    width = int(high.max(initial=0)) + 1
    _, meeting = np.unique((sides.block * width + low) * width + high, return_inverse=True)
    sign = np.sign(sides.beside - segment).astype(np.float64)
    return Spelled(member, column, keeps, count, pool, meeting.reshape(-1).astype(np.int64), sign)
