"""What prices prove where jobs may run two by two: those of the rows, and what utility and time are worth to each job.

The prices of the rows do not tell which of its two jobs pays for a pair. So an answer says besides, for each job, what
a unit of its utility is worth (y) and what its time is worth (t). At any p, y >= 0 and any t that leaves no column and
no pair worth more than it costs,

    value[c] + y worth[c]                        <= cost[c] + t           each column
    what both keep of that, in sum               <= count p + t + t'      each pair

the sum of values is at most p . capacity + sum t - y . floor, and a level z is out of reach if y . targets(z) is more
than p . capacity + sum t. The stated t is not believed: it is raised to what columns and pairs ask for.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from optimizer.checking.facts import Facts
from optimizer.decision import Stage
from optimizer.problem import FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class PackedDuals:
    """Worth of a unit of each job's utility (n,), and all that rows and time can earn."""

    utility: FloatArray
    income: float


def packed_duals(facts: Facts, stage: Stage, value: FloatArray, worth: FloatArray) -> PackedDuals:
    """The stage's prices of utility and time, made valid.

    Args:
        facts: of a problem with pairs.
        stage: as stated.
        value: of each column in the stage's objective, besides what utility is worth (c,).
        worth: utility of each column (c,).
    """
    prices = np.maximum(stage.prices, 0.0)
    utility = np.maximum(stage.multiplier, 0.0) if len(stage.multiplier) == facts.jobs else np.zeros(facts.jobs)
    time = np.maximum(stage.time, 0.0) if len(stage.time) == facts.jobs else np.zeros(facts.jobs)
    gain = np.where(facts.usable, value + utility[facts.problem.columns.job] * worth, 0.0)
    time = np.maximum(time, facts.best(np.where(facts.usable, gain - facts.cost(prices), 0.0)))
    pairs = facts.problem.pairs
    assert pairs is not None, "packing needs pairs"
    excess = max((_excess(facts, row, gain, time, prices) for row in facts.pair_rows), default=0.0)
    time = time + np.where(pairs.kind >= 0, max(excess, 0.0) / 2, 0.0)
    return PackedDuals(utility, float(prices @ facts.row_capacity) + float(time.sum()))


def _excess(facts: Facts, row: int, gain: FloatArray, time: FloatArray, prices: FloatArray) -> float:
    """By how much the best pair of two jobs of a listed row is worth more than it costs."""
    pairs = facts.problem.pairs
    assert pairs is not None, "packing needs pairs"
    pool = int(pairs.pool[row])
    firsts = _sides(facts, int(pairs.first[row]), pool, float(pairs.first_factor[row]), gain, time)
    seconds = _sides(facts, int(pairs.second[row]), pool, float(pairs.second_factor[row]), gain, time)
    most = 0.0
    for count in firsts.keys() & seconds.keys():
        best = (
            one + other for one, job in firsts[count][:2] for other, partner in seconds[count][:2] if job != partner
        )
        most = max(most, max(best, default=0.0) - count * float(prices[pool]))
    return most


def _sides(
    facts: Facts, kind: int, pool: int, factor: float, gain: FloatArray, time: FloatArray
) -> dict[float, list[tuple[float, int]]]:
    """What being half of a pair is worth to each job of a kind beyond its time, best first, by size of gang."""
    pairs = facts.problem.pairs
    assert pairs is not None, "packing needs pairs"
    sides: dict[float, list[tuple[float, int]]] = defaultdict(list)
    for job in np.flatnonzero(pairs.kind == kind):
        column = facts.alone[job].get(pool)
        if column is not None:
            sides[facts.uses[column][pool]].append((factor * float(gain[column]) - float(time[job]), int(job)))
    return {count: sorted(each, reverse=True) for count, each in sides.items()}
