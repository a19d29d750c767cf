"""A packed market with jobs of a kind taken for equal: small, and a good guess at who should share with whom.

Classes that may share with the same kinds and use the same pools in the same counts become one group, with the mean of
their worths, values and targets. The best shares of the groups prove nothing about the classes; they name the meetings
of segments that are worth looking at first. Decides nothing but what is alike.
"""

from dataclasses import dataclass, replace

import numpy as np

from optimizer.arrays.groups import bits, group_rows
from optimizer.arrays.owners import best_by, sum_by
from optimizer.market.market import Market
from optimizer.market.objective import Level, Targets, Total
from optimizer.packing.blocks import Block, Sides, joined, no_sides
from optimizer.problem import FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Coarse:
    """g groups of k classes as a market of their own. Columns that use several rows are left out."""

    market: Market
    blocks: tuple[Block, ...]
    #: Group of each class, and its members as a part of the group's (k,), (k,).
    group: IntArray
    part: FloatArray
    #: Class column and class of every column that takes part, and the group column that it belongs to.
    kept: IntArray
    owner: IntArray
    column: IntArray

    def __len__(self) -> int:
        return self.market.classes

    def objective(self, objective: Level | Total) -> Level | Total:
        """The same for the groups."""
        if isinstance(objective, Total):
            floor = sum_by(self.group, self.part * objective.floor, len(self))
            return Total(self._mean(objective.value), self._mean(objective.worth), floor)
        targets = _Mean(objective.targets, self.group, self.part, len(self))
        worth = self._mean(objective.worth)
        best = best_by(self.owner, objective.worth[self.kept], len(self.part))
        of_group, mean = best_by(self.market.owner(), worth, len(self)), sum_by(self.group, self.part * best, len(self))
        raised = np.divide(mean, of_group, out=np.ones(len(self)), where=of_group > 0)  # who is full alone stays so
        return Level(worth * raised[self.market.owner()], targets)

    def sides_of_members(self, blocks: tuple[Block, ...], sides: Sides) -> Sides:
        """Sides of groups as sides of all their classes, which stand in `blocks` as their groups do in this one's."""
        parts = [no_sides()]
        for number, (fine, coarse) in enumerate(zip(blocks, self.blocks, strict=True)):
            here = sides.block == number
            wanted = np.zeros((len(coarse), len(coarse.first)), dtype=bool)
            wanted[sides.place[here], sides.beside[here]] = True
            place_of = np.full(len(self), -1)
            place_of[coarse.member] = np.arange(len(coarse))
            place, beside = np.nonzero(wanted[place_of[self.group[fine.member]]] & (fine.row >= 0)[fine.segment])
            parts.append(Sides(np.full(len(place), number), place, beside))
        return joined(parts)

    def _mean(self, values: FloatArray) -> FloatArray:
        return sum_by(self.column, self.part[self.owner] * values[self.kept], self.market.columns)


@dataclass(frozen=True, slots=True, eq=False)
class _Mean:
    """Targets of groups: the means of their members' (a `Targets`)."""

    of: Targets
    group: IntArray
    part: FloatArray
    groups: int

    @property
    def highest(self) -> float:
        """As for the classes."""
        return self.of.highest

    def at(self, z: float) -> tuple[FloatArray, FloatArray]:
        """Targets, and their slopes just below z."""
        target, slope = self.of.at(z)
        return sum_by(self.group, self.part * target, self.groups), sum_by(self.group, self.part * slope, self.groups)


def coarse_of(market: Market, blocks: tuple[Block, ...]) -> Coarse:
    """The groups of a market's classes."""
    owner, uses = market.owner(), np.diff(market.use_first)
    kept = np.flatnonzero(uses == 1)
    use = market.use_first[kept]
    where = np.stack((market.use_row[use].astype(np.int64), bits(market.use_count[use])), axis=1)
    place = group_rows(where)
    alike = np.zeros((market.classes, len(blocks) + len(place.representative)), dtype=np.int64)
    for number, block in enumerate(blocks):
        alike[block.member, number] = block.segment + 1
    np.add.at(alike, (owner[kept], len(blocks) + place.member), 1)
    group = group_rows(alike).member
    size = sum_by(group, market.size, int(group.max()) + 1)
    column, first = _columns(group[owner[kept]], place.member, len(size))
    shown = np.zeros(len(first[0]), dtype=np.int64)
    shown[column] = use
    coarse = Market(
        size=size,
        first=first[1],
        use_first=np.arange(len(shown) + 1),
        use_row=market.use_row[shown],
        use_count=market.use_count[shown],
        capacity=market.capacity,
    )
    of_column = np.full(market.columns, -1)
    of_column[kept] = column
    return Coarse(
        market=coarse,
        blocks=tuple(_grouped(block, group, of_column, size) for block in blocks),
        group=group,
        part=market.size / size[group],
        kept=kept,
        owner=owner[kept],
        column=column,
    )


def _columns(group: IntArray, place: IntArray, groups: int) -> tuple[IntArray, tuple[IntArray, IntArray]]:
    """Number of the group column of each column; group columns' keys, and where each group's columns begin."""
    width = int(place.max()) + 1
    keys, column = np.unique(group * width + place, return_inverse=True)
    begins = np.concatenate(([0], np.cumsum(np.bincount(keys // width, minlength=groups))))
    return column.reshape(-1).astype(np.int64), (keys, begins.astype(np.int64))


def _grouped(block: Block, group: IntArray, of_column: IntArray, size: FloatArray) -> Block:
    """The same block with groups in its places."""
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
