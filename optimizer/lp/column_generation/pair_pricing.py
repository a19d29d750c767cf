"""Pricing of pairs: which pairs the dual values ask for, and the upper bound that they prove.

Symbols: h[j, r] what pool r alone is worth to j (value + y worth), m[j] price of j's time, s p[r] price of the gang's
accelerators, f what is kept of the speed in a pair. Dual values y, m, p >= 0 are *closed* if

    h[j, c] <= m[j] + cost[c]                                         every column alone
    f[i] h[i, r] + f[j] h[j, r] <= m[i] + m[j] + s p[r]               every pair

and then, by weak duality, with N the members of each class:

    MaxMin   the largest z with  sum N y target(z) <= sum N m + p.capacity
    MaxSum   sum N m + p.capacity - sum N y floor

Any y, p >= 0 are closed by a large enough m: adding half of a pair's reduced worth to the price of time of both of its
jobs closes that pair. So the bound holds for all pairs, whichever were in the program that the dual values come from.
Unlike without pairs, prices of pools alone do not suffice: they do not say which of its two jobs pays for a pair.

The best partners are found without looking at all pairs of jobs: beside a given segment, what a job adds does not
depend on the partner.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.classes.class_problem import ClassProblem, MaxMin, MaxSum, TargetFunction
from optimizer.lp.column_generation.colocation_blocks import ColocationBlock, PairSides, join_sides, no_sides
from optimizer.problem import FloatArray, IntArray

#: Pairs whose reduced worth is below minus this part of the largest worth are not asked for.
_WORTH_ADDING = 1e-9
#: Prices of time that fall by less than this part have converged.
_WORTH_LOWERING = 1e-6
#: Sums of costs that agree to this part count as equal.
_ROUNDING = 1e-12
#: The most halvings in the search for a level.
_HALVINGS = 100


@dataclass(frozen=True, slots=True, eq=False)
class PairDuals:
    """Dual values, >= 0, in units of the objective."""

    #: Value of one more accelerator of each row (r,).
    prices: FloatArray
    #: Value of one more unit of utility, and of time, for one member of each class (k,), (k,).
    multiplier: FloatArray
    time: FloatArray


def column_gain(problem: ClassProblem, objective: MaxMin | MaxSum, duals: PairDuals) -> FloatArray:
    """Returns the worth of running each column all the time to one member (C,), value and utility together."""
    gain = duals.multiplier[problem.owner] * objective.worth
    return gain + objective.value if isinstance(objective, MaxSum) else gain


@dataclass(frozen=True, slots=True, eq=False)
class PricedPairs:
    """The reduced worths of all pairs at given dual values."""

    #: Prices of time that close the dual values for all pairs (k,).
    time: FloatArray
    #: Sides of the pairs with the largest reduced worth.
    requested: PairSides
    #: Reduced worth of the best pair with each of the program's sides (q,); negative where its prices exceed its worth.
    merit: FloatArray


def price_pairs(
    problem: ClassProblem,
    blocks: tuple[ColocationBlock, ...],
    gain: FloatArray,
    duals: PairDuals,
    sides: PairSides,
    most: int,
) -> PricedPairs:
    """Returns the reduced worths of all pairs, with prices of time that close them.

    Args:
        problem: k classes, C columns.
        blocks: the classes that may be co-located.
        gain: the worth of each column to one member (C,).
        duals: any, >= 0.
        sides: q sides of the program, whose reduced worth is wanted.
        most: the most segments that each place asks for in each block.
    """
    alone = gain - problem.cost(duals.prices)
    time = duals.time.copy()
    np.maximum.at(time, problem.owner, alone)
    lacking, requested, merit = np.zeros(problem.classes), [no_sides()], np.zeros(len(sides))
    least = _WORTH_ADDING * float(np.abs(gain).max(initial=0.0))
    for number, block in enumerate(blocks):
        net = _net(block, gain, time, float(duals.prices[block.pool]))
        partners = _partners(block, net)
        above = _reduced_worth(block, net, partners)
        here = sides.block == number
        merit[here] = above[sides.place[here], sides.beside[here]]
        above = np.where(above > 0, above, 0.0)
        np.maximum.at(lacking, block.member, above.max(axis=1))
        requested.append(_requested_sides(number, block, above, partners, least, most))
    return PricedPairs(time + lacking / 2, join_sides(requested), merit)


def tighten_duals(
    problem: ClassProblem, blocks: tuple[ColocationBlock, ...], gain: FloatArray, duals: PairDuals, most: int
) -> PairDuals:
    """Returns dual values with lower prices of time that are closed, too.

    The least price of a job's time, at the others' prices, is T[i] = max(its columns alone, pairs less the other's
    time, 0). Where m is closed m >= T, and (m + T) / 2 is closed, too: a pair's worth is at most m[i] + T[j] and at
    most T[i] + m[j], thus at most the mean of both.
    """
    alone = gain - problem.cost(duals.prices)
    least = np.zeros(problem.classes)
    np.maximum.at(least, problem.owner, alone)
    time = duals.time
    for _ in range(most):
        needed = least.copy()
        for block in blocks:
            net = _net(block, gain, time, float(duals.prices[block.pool]))
            above = _reduced_worth(block, net, _partners(block, net)).max(axis=1)
            np.maximum.at(needed, block.member, time[block.member] + np.minimum(above, 0.0))
        lower = time - np.maximum(time - needed, 0.0) / 2
        saved, time = float(problem.size @ (time - lower)), lower
        if saved <= _WORTH_LOWERING * float(problem.size @ time):
            break
    return PairDuals(duals.prices, duals.multiplier, time)


def pair_bound(problem: ClassProblem, objective: MaxMin | MaxSum, duals: PairDuals) -> float:
    """Returns the upper bound on the objective that closed dual values prove."""
    income = float(problem.size @ duals.time + problem.capacity @ duals.prices)
    paid = problem.size * duals.multiplier
    if isinstance(objective, MaxSum):
        return income - float(paid @ objective.floor)
    return affordable_level(objective.targets, paid, income)


def affordable_level(targets: TargetFunction, paid: FloatArray, income: float) -> float:
    """Returns the largest level whose targets cost no more than the income, approached from above: every iterate is a
    valid bound.
    """
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


def _net(block: ColocationBlock, gain: FloatArray, time: FloatArray, price: float) -> FloatArray:
    """Returns what a place adds to a pair beside each segment (m, s): its worth less its time and half the
    accelerators.
    """
    net = block.keeps[block.segment] * gain[block.column][:, None]
    net -= (time[block.member] + block.count * price / 2)[:, None]
    net[np.isnan(net)] = -np.inf
    return net


@dataclass(frozen=True, slots=True, eq=False)
class _Partners:
    """The best partner for each segment: the best place beside another segment (s, s), and the second best beside
    itself (s,).
    """

    best: IntArray
    second: IntArray


def _partners(block: ColocationBlock, net: FloatArray) -> _Partners:
    most = np.maximum.reduceat(net, block.first, axis=0)
    place, beside = np.nonzero(net >= most[block.segment])
    best = np.zeros(most.shape, dtype=np.int64)
    best[block.segment[place[::-1]], beside[::-1]] = place[::-1]  # Of equals, the first.
    own = net[np.arange(len(block)), block.segment].copy()
    own[best.diagonal()[~block.several[best.diagonal()]]] = -np.inf
    order = np.lexsort((-own, block.segment))
    return _Partners(best, order[block.first])


def _reduced_worth(block: ColocationBlock, net: FloatArray, partners: _Partners) -> FloatArray:
    """Returns the reduced worth of the pair of each place with the best place of each segment (m, s)."""
    places, segment = np.arange(len(block)), block.segment
    alike = np.arange(len(partners.best))
    worth = net[partners.best, alike[None, :]]  # [b, a]: the best of b beside a
    above = net + worth[:, segment].T
    own, best = net[places, segment], partners.best.diagonal()
    second = own[partners.second]
    itself = (places == best[segment]) & ~block.several
    above[places, segment] = own + np.where(itself, second[segment], own[best][segment])
    return above


def _requested_sides(
    number: int, block: ColocationBlock, above: FloatArray, partners: _Partners, least: float, most: int
) -> PairSides:
    """Returns, for each place, the segments in which its reduced worth is largest, with its best partner there."""
    wanted = min(most, above.shape[1])
    beside = np.argpartition(-above, wanted - 1, axis=1)[:, :wanted].ravel()
    place = np.repeat(np.arange(len(block)), wanted)
    asking = above[place, beside] > least
    place, beside = place[asking], beside[asking]
    own = block.segment[place]
    met = np.where(partners.best[beside, own] == place, partners.second[own], partners.best[beside, own])
    return PairSides(np.full(2 * len(place), number), np.concatenate((place, met)), np.concatenate((beside, own)))
