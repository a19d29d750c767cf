"""Which classes of jobs may be co-located two by two, as dense blocks: one for each pool and gang size.

Within a block classes are grouped into *segments* of one kind: the speed that two jobs lose beside each other depends
on their segments alone, what they gain by running there on the jobs. Only listed pairs are considered of which both
members keep more than 1 in sum. With f + g <= 1 the two can take turns alone in the same pool, f and g of the time,
and get the same for less time and no more accelerators, so no optimum needs the pair.

`coarsen` makes a small problem of the same shape: classes that may share with the same kinds and use the same pools in
the same counts become one group, with the mean of their worths, values and targets. The best shares of the groups
prove nothing about the classes; they show which meetings of segments to try first.
"""

from dataclasses import dataclass, replace

import numpy as np

from optimizer.classes.aggregation import AggregatedProblem
from optimizer.classes.class_problem import ClassProblem, MaxMin, MaxSum, TargetFunction
from optimizer.classes.segments import as_bits, group_rows, max_by, sum_by
from optimizer.problem import BoolArray, FloatArray, IntArray, Pairs, Problem
from optimizer.utility.fair_share import pool_columns


@dataclass(frozen=True, slots=True, eq=False)
class ColocationBlock:
    """The m classes, in s segments, that may share gangs of one size in one pool."""

    pool: int
    #: Accelerators that a pair of jobs takes together.
    count: float
    #: Class, and column of that class, of each place, ordered by segment (m,).
    member: IntArray
    column: IntArray
    #: Whether the class has more than one job, so that two of them may share (m,).
    several: BoolArray
    #: Segment of each place, and the first place of each segment (m,), (s,).
    segment: IntArray
    first: IntArray
    #: The factor of its own speed that a member of segment a keeps beside one of b; nan where the two never share (s,
    #: s).
    keeps: FloatArray
    #: Row of `Pairs`, the same for (a, b) and (b, a); -1 where the two never share, as a segment of one job with
    #: itself. And whether segment a is the first kind of that row (s, s).
    row: IntArray
    leads: BoolArray

    def __len__(self) -> int:
        return len(self.member)


def colocation_keys(problem: Problem) -> list[FloatArray]:
    """Returns the keys, besides columns and targets, in which jobs of one class must agree: the job's kind, -1 if it
    is not listed in pairs (n,).
    """
    pairs = problem.pairs
    if pairs is None:
        return []
    listed = np.isin(pairs.kind, np.concatenate((pairs.first, pairs.second)))
    return [np.where(listed, pairs.kind, -1).astype(np.float64)]


def colocation_blocks(problem: Problem, classes: AggregatedProblem, keep: BoolArray) -> tuple[ColocationBlock, ...]:
    """Returns the blocks of a problem's classes, each with at least one pair; an empty tuple where no jobs may share.

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
    represents = (class_of.representative[class_of.member[job]] == job) & (pairs.kind[job] >= 0)
    member, column = class_of.member[job[represents]], class_of.class_column[own.column[represents]]
    pool, count, kind = own.pool[represents], own.count[represents], pairs.kind[job[represents]]
    several = class_of.size[member] > 1
    blocks = []
    for where, size in np.unique(np.stack((pool.astype(np.float64), count), axis=1), axis=0):
        inside = np.flatnonzero((pool == int(where)) & (count == size))
        inside = inside[np.lexsort((member[inside], kind[inside]))]
        kinds, first, segment = np.unique(kind[inside], return_index=True, return_inverse=True)
        keeps, row, leads = _segment_tables(pairs, int(where), kinds)
        lonely = (np.bincount(segment) == 1) & ~several[inside][first]
        keeps[lonely, lonely], row[lonely, lonely] = np.nan, -1
        block = ColocationBlock(
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


def _segment_tables(pairs: Pairs, pool: int, kinds: IntArray) -> tuple[FloatArray, IntArray, BoolArray]:
    """Returns the listed pairs of these kinds (ascending) in a pool as tables by segment: factors kept, rows of
    `Pairs`, and orientation.
    """
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
class PairSides:
    """Columns of the co-location program: a member of the class at a place, beside a job of a segment. Parallel arrays
    (q,).
    """

    block: IntArray
    place: IntArray
    beside: IntArray

    def __len__(self) -> int:
        return len(self.block)

    def take(self, chosen: BoolArray | IntArray) -> "PairSides":
        """Returns a subset of the sides."""
        return PairSides(self.block[chosen], self.place[chosen], self.beside[chosen])


def join_sides(parts: list[PairSides]) -> PairSides:
    """Returns the union of these sides, each once, ordered by block, place and segment."""
    block = np.concatenate([part.block for part in parts])
    place = np.concatenate([part.place for part in parts])
    beside = np.concatenate([part.beside for part in parts])
    order = np.lexsort((beside, place, block))
    new = np.ones(len(order), dtype=bool)
    for array in (block, place, beside):
        array[:] = array[order]
    new[1:] = (np.diff(block) != 0) | (np.diff(place) != 0) | (np.diff(beside) != 0)
    return PairSides(block[new], place[new], beside[new])


def no_sides() -> PairSides:
    """Returns an empty set of sides."""
    none = np.zeros(0, dtype=np.int64)
    return PairSides(none, none, none)


def count_sides(blocks: tuple[ColocationBlock, ...]) -> int:
    """Returns the number of all possible sides."""
    return sum(int((block.row >= 0).sum(axis=1)[block.segment].sum()) for block in blocks)


def all_sides(blocks: tuple[ColocationBlock, ...]) -> PairSides:
    """Returns all possible sides."""
    parts = [no_sides()]
    for number, block in enumerate(blocks):
        place, beside = np.nonzero(block.row[block.segment] >= 0)
        parts.append(PairSides(np.full(len(place), number), place, beside))
    return join_sides(parts)


@dataclass(frozen=True, slots=True, eq=False)
class SideDetails:
    """The properties of sides, looked up in their blocks (all arrays (q,))."""

    #: The class, the column of the class on which the side runs, and the factor of its speed that it keeps.
    member: IntArray
    column: IntArray
    keeps: FloatArray
    #: Accelerators of a pair, and the pool.
    count: FloatArray
    pool: IntArray
    #: Number of the meeting (a block and two segments), and which of its sides this is: 1, -1, or 0 where both segments
    #: are one.
    meeting: IntArray
    sign: FloatArray

    @property
    def meetings(self) -> int:
        """The number of different meetings."""
        return int(self.meeting.max(initial=-1)) + 1


def side_details(sides: PairSides, blocks: tuple[ColocationBlock, ...]) -> SideDetails:
    """Returns the properties of sides, looked up in their blocks."""
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
    return SideDetails(member, column, keeps, count, pool, meeting.reshape(-1).astype(np.int64), sign)


@dataclass(frozen=True, slots=True, eq=False)
class CoarseProblem:
    """A coarser problem, of g groups that stand for k classes. It leaves out columns that use several rows."""

    problem: ClassProblem
    blocks: tuple[ColocationBlock, ...]
    #: The group of each class (k,), and its members as a part of the group's members (k,).
    group: IntArray
    part: FloatArray
    #: The column and the class of every column that takes part, and the group column to which it belongs.
    kept: IntArray
    owner: IntArray
    column: IntArray

    def __len__(self) -> int:
        return self.problem.classes

    def objective(self, objective: MaxMin | MaxSum) -> MaxMin | MaxSum:
        """Returns the same objective for the groups: means of values and targets over their members."""
        if isinstance(objective, MaxSum):
            floor = sum_by(self.group, self.part * objective.floor, len(self))
            return MaxSum(self._mean(objective.value), self._mean(objective.worth), floor)
        targets = _MeanTargets(objective.targets, self.group, self.part, len(self))
        worth = self._mean(objective.worth)
        best = max_by(self.owner, objective.worth[self.kept], len(self.part))
        of_group, mean = max_by(self.problem.owner, worth, len(self)), sum_by(self.group, self.part * best, len(self))
        raised = np.divide(mean, of_group, out=np.ones(len(self)), where=of_group > 0)  # full alone: still full
        return MaxMin(worth * raised[self.problem.owner], targets)

    def sides_of_members(self, blocks: tuple[ColocationBlock, ...], sides: PairSides) -> PairSides:
        """Returns the sides of groups as sides of all their classes; `blocks` are those of the classes."""
        parts = [no_sides()]
        for number, (fine, coarse) in enumerate(zip(blocks, self.blocks, strict=True)):
            here = sides.block == number
            wanted = np.zeros((len(coarse), len(coarse.first)), dtype=bool)
            wanted[sides.place[here], sides.beside[here]] = True
            place_of = np.full(len(self), -1)
            place_of[coarse.member] = np.arange(len(coarse))
            place, beside = np.nonzero(wanted[place_of[self.group[fine.member]]] & (fine.row >= 0)[fine.segment])
            parts.append(PairSides(np.full(len(place), number), place, beside))
        return join_sides(parts)

    def _mean(self, values: FloatArray) -> FloatArray:
        return sum_by(self.column, self.part[self.owner] * values[self.kept], self.problem.columns)


@dataclass(frozen=True, slots=True, eq=False)
class _MeanTargets:
    """Targets of groups: the means of their members' targets (a `TargetFunction`)."""

    of: TargetFunction
    group: IntArray
    part: FloatArray
    groups: int

    @property
    def highest(self) -> float:
        """The highest level, as for the classes."""
        return self.of.highest

    def at(self, z: float) -> tuple[FloatArray, FloatArray]:
        """Returns the targets at level z, and their slopes just below it."""
        target, slope = self.of.at(z)
        return sum_by(self.group, self.part * target, self.groups), sum_by(self.group, self.part * slope, self.groups)


def coarsen(class_problem: ClassProblem, blocks: tuple[ColocationBlock, ...]) -> CoarseProblem:
    """Returns the coarser problem in which similar classes form one group."""
    owner, uses = class_problem.owner, np.diff(class_problem.use_first)
    kept = np.flatnonzero(uses == 1)
    use = class_problem.use_first[kept]
    where = np.stack((class_problem.use_row[use].astype(np.int64), as_bits(class_problem.use_count[use])), axis=1)
    place = group_rows(where)
    alike = np.zeros((class_problem.classes, len(blocks) + len(place.representative)), dtype=np.int64)
    for number, block in enumerate(blocks):
        alike[block.member, number] = block.segment + 1
    np.add.at(alike, (owner[kept], len(blocks) + place.member), 1)
    group = group_rows(alike).member
    size = sum_by(group, class_problem.size, int(group.max()) + 1)
    column, first = _group_columns(group[owner[kept]], place.member, len(size))
    shown = np.zeros(len(first[0]), dtype=np.int64)
    shown[column] = use
    coarse = ClassProblem(
        size=size,
        first=first[1],
        use_first=np.arange(len(shown) + 1),
        use_row=class_problem.use_row[shown],
        use_count=class_problem.use_count[shown],
        capacity=class_problem.capacity,
    )
    of_column = np.full(class_problem.columns, -1)
    of_column[kept] = column
    return CoarseProblem(
        problem=coarse,
        blocks=tuple(_coarse_block(block, group, of_column, size) for block in blocks),
        group=group,
        part=class_problem.size / size[group],
        kept=kept,
        owner=owner[kept],
        column=column,
    )


def _group_columns(group: IntArray, place: IntArray, groups: int) -> tuple[IntArray, tuple[IntArray, IntArray]]:
    """Returns the number of the group column of each column; the keys of the group columns; and where the columns of
    each group begin.
    """
    width = int(place.max()) + 1
    keys, column = np.unique(group * width + place, return_inverse=True)
    begins = np.concatenate(([0], np.cumsum(np.bincount(keys // width, minlength=groups))))
    return column.reshape(-1).astype(np.int64), (keys, begins.astype(np.int64))


def _coarse_block(block: ColocationBlock, group: IntArray, of_column: IntArray, size: FloatArray) -> ColocationBlock:
    """Returns the block with the groups in place of their classes."""
    member, first_place = np.unique(group[block.member], return_index=True)
    order = np.lexsort((member, block.segment[first_place]))
    member, shown = member[order], first_place[order]
    segment = block.segment[shown]
    return replace(
        block,
        member=member,
        column=of_column[block.column[shown]],
        several=size[member] > 1,
        segment=segment,
        first=np.searchsorted(segment, np.arange(len(block.first))),
    )
