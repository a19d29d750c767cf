"""Dual values of a packed market: which pairs of classes they ask for, and what no shares can exceed.

Symbols: h[j, r] what an hour of pool r alone is worth to j (value + y worth), m[j] price of j's time, s p[r] price of the
gang's accelerators, f what is kept of the speed in a pair. Dual values y, m, p >= 0 are *closed* if

    h[j, c] <= m[j] + cost[c]                                         every column alone
    f[i] h[i, r] + f[j] h[j, r] <= m[i] + m[j] + s p[r]               every pair

and then, by weak duality, with N the members of each class:

    Level    the largest z with  sum N y target(z) <= sum N m + p.capacity
    Total    sum N m + p.capacity - sum N y floor

Any y, p >= 0 are closed by a large enough m; half of what a pair lacks, added to both of its jobs, closes it. So the
bound holds for all pairs, whichever were in the program that the dual values come from. Unlike without pairs, prices
alone do not do: which of its two jobs pays for a pair cannot be told from them.

The best partners are found without looking at all pairs of jobs: beside a given segment, what a job adds does not
depend on the partner. Decides nothing about the program.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.market import Market
from optimizer.objective import Level, Targets, Total
from optimizer.owners import sum_by
from optimizer.packing.blocks import Block, PairColumns, joined, no_pairs
from optimizer.problem import FloatArray, IntArray

#: A pair that lacks less than this part of the largest worth is not asked for.
_WORTH_ADDING = 1e-9
#: Sums of costs are equal within this part.
_ROUNDING = 1e-12
#: Halvings of a level.
_HALVINGS = 100


@dataclass(frozen=True, slots=True, eq=False)
class Duals:
    """Dual values, >= 0, in units of the objective."""

    #: Of one more accelerator of each row (r,).
    prices: FloatArray
    #: Of one more unit of utility, and of time, for one member of each class (k,), (k,).
    multiplier: FloatArray
    time: FloatArray


def gain_of(market: Market, objective: Level | Total, duals: Duals) -> FloatArray:
    """What running each column all the time is worth to one member (C,)."""
    gain = duals.multiplier[market.owner()] * objective.worth
    return gain + objective.value if isinstance(objective, Total) else gain


def priced(
    market: Market, blocks: tuple[Block, ...], gain: FloatArray, duals: Duals, partners: int
) -> tuple[FloatArray, PairColumns]:
    """Close dual values, and name pairs that lack most.

    Args:
        market: k classes, C columns.
        blocks: what may be packed.
        gain: what each column is worth to one member (C,).
        duals: any, >= 0.
        partners: segments that each class asks for in each block, at most.

    Returns:
        Prices of time that close the dual values (k,), and the pairs asked for.
    """
    alone = gain - market.cost(duals.prices)
    time = duals.time.copy()
    np.maximum.at(time, market.owner(), alone)
    lacking, asked = np.zeros(market.classes), [no_pairs()]
    least = _WORTH_ADDING * float(np.abs(gain).max(initial=0.0))
    for number, block in enumerate(blocks):
        net = _net(block, gain, time, float(duals.prices[block.pool]))
        beside = _best_beside(block, net)
        np.maximum.at(lacking, block.member, beside.max(axis=1))
        asked.append(_asked(number, block, net, beside, least, partners))
    return time + lacking / 2, joined(asked)


def bound_of(market: Market, objective: Level | Total, duals: Duals) -> float:
    """What no shares can exceed, by closed dual values."""
    income = float(market.size @ duals.time + market.capacity @ duals.prices)
    paid = market.size * duals.multiplier
    if isinstance(objective, Total):
        return income - float(paid @ objective.floor)
    return level_paid(objective.targets, paid, income)


def level_paid(targets: Targets, paid: FloatArray, income: float) -> float:
    """The largest level whose targets cost no more than the income; valid from above however far it is searched."""
    enough = income + _ROUNDING * abs(income)
    low, high = 0.0, targets.highest
    if float(paid @ targets.at(high)[0]) <= enough:
        return high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if float(paid @ targets.at(middle)[0]) <= enough:
            low = middle
        else:
            high = middle
    return high


def _net(block: Block, gain: FloatArray, time: FloatArray, price: float) -> FloatArray:
    """What a place adds to a pair beside each segment, less its time and half the accelerators (m, s)."""
    net = block.keeps[block.segment] * gain[block.column][:, None]
    net -= (time[block.member] + block.count * price / 2)[:, None]
    net[np.isnan(net)] = -np.inf
    return net


def _best_beside(block: Block, net: FloatArray) -> FloatArray:
    """What a pair of each place with the best of each segment, itself only if it is several, has too much (m, s)."""
    most = np.maximum.reduceat(net, block.first, axis=0)
    beside = net + most[:, block.segment].T
    places = np.arange(len(block))
    own = net[places, block.segment]
    best, second = _two_best(block, own)
    partner = np.where((places == best[block.segment]) & ~block.several, second, own[best][block.segment])
    beside[places, block.segment] = own + partner
    return np.where(beside > 0, beside, 0.0)


def _two_best(block: Block, own: FloatArray) -> tuple[IntArray, FloatArray]:
    """The place of the best of each segment (s,), and the second best value of the segment of each place (m,)."""
    order = np.lexsort((-own, block.segment))
    size = np.diff(np.append(block.first, len(block)))
    second = np.where(size > 1, own[order[np.minimum(block.first + 1, len(block) - 1)]], -np.inf)
    return order[block.first], second[block.segment]


def _asked(number: int, block: Block, net: FloatArray, beside: FloatArray, least: float, partners: int) -> PairColumns:
    """For each place the segments where it lacks most: there the best partner, and the one of the same rank.

    If every place asked for its best partner alone, all would ask for the same few.
    """
    wanted = min(partners, beside.shape[1])
    segment = np.argpartition(-beside, wanted - 1, axis=1)[:, :wanted].ravel()
    place = np.repeat(np.arange(len(block)), wanted)
    asking = beside[place, segment] > least
    place, segment = place[asking], segment[asking]
    own = block.segment[place]
    ranked, rank = _ranks(block, net)
    size = np.diff(np.append(block.first, len(block)))[segment]
    start = block.first[segment]
    best = ranked[start, own]
    best = np.where((best == place) & ~block.several[place], ranked[start + np.minimum(1, size - 1), own], best)
    mine = rank[place, segment]
    equal = np.where(own == segment, np.where((mine ^ 1) < size, mine ^ 1, 0), mine % size)
    other = ranked[start + equal, own]
    first, second = np.concatenate((place, place)), np.concatenate((best, other))
    valid = (first != second) | block.several[first]
    valid &= np.isfinite(net[first, block.segment[second]])
    return PairColumns(np.full(int(valid.sum()), number), first[valid], second[valid])


def _ranks(block: Block, net: FloatArray) -> tuple[IntArray, IntArray]:
    """The places of each segment by what they add beside each segment, best first, and the rank of each place (m, s)."""
    ranked = np.repeat(np.arange(len(block))[:, None], net.shape[1], axis=1)
    rank = np.zeros(net.shape, dtype=np.int64)
    ends = np.append(block.first, len(block))
    for start, end in zip(ends[:-1], ends[1:], strict=True):
        if end - start > 1:
            order = np.argsort(-net[start:end], axis=0, kind="stable")
            ranked[start:end] = order + start
            np.put_along_axis(rank[start:end], order, np.arange(end - start)[:, None], axis=0)
    return ranked, rank


def used_by(pairs: PairColumns, blocks: tuple[Block, ...]) -> "PairUses":
    """What each pair of classes takes and gives, as arrays."""
    count, pool = np.zeros(len(pairs)), np.zeros(len(pairs), dtype=np.int64)
    member = np.zeros((2, len(pairs)), dtype=np.int64)
    column, keeps = member.copy(), np.zeros((2, len(pairs)))
    for number, block in enumerate(blocks):
        here = np.flatnonzero(pairs.block == number)
        places = np.stack((pairs.first[here], pairs.second[here]))
        segment = block.segment[places]
        count[here], pool[here] = block.count, block.pool
        member[:, here], column[:, here] = block.member[places], block.column[places]
        keeps[:, here] = block.keeps[segment, segment[::-1]]
    return PairUses(count, pool, member, column, keeps)


@dataclass(frozen=True, slots=True, eq=False)
class PairUses:
    """Pairs of classes spelled out: accelerators and pool (q,); class, class column and kept part of both (2, q)."""

    count: FloatArray
    pool: IntArray
    member: IntArray
    column: IntArray
    keeps: FloatArray

    def by_class(self, per_pair: FloatArray, classes: int) -> FloatArray:
        """Sum over the pairs of each class; (q,) for both members or (2, q). A class beside itself counts twice (k,)."""
        values = np.broadcast_to(per_pair, self.member.shape)
        return sum_by(self.member.ravel(), values.ravel(), classes)
