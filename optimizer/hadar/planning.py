"""One round of Hadar: jobs placed one by one at rising prices, then moved to faster pools that stayed free, and
forked onto what is left.

Without the second step prices push jobs to slow pools while fast ones idle. What is decided here is a heuristic: the
guarantee of online admission needs bookings that are kept, and these are for one round.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.hadar.facts import Facts
from optimizer.hadar.forking import fork_out
from optimizer.hadar.offers import Market, Offers
from optimizer.hadar.pricing import Bounds, bounds_of
from optimizer.problem import FloatArray, IntArray

#: Jobs offered in one round: the most valuable ones, at least so many, or this many for each accelerator.
_LEAST_OFFERED = 256
_OFFERED_PER_ACCELERATOR = 4
#: A pool is faster from here on.
_FASTER = 1.02


@dataclass(frozen=True, slots=True)
class Ways:
    """Parameters of a round."""

    eta4: float
    comm: float
    #: Part of its speed that a forked job loses.
    sync: float
    #: True: nobody is placed whose payoff is not positive.
    strict: bool


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """Who gets what for one round."""

    #: Accelerators of each pool (n, p), and steps per second (n,); 0 for those who wait.
    use: FloatArray
    rate: FloatArray
    #: Those placed, in the order in which they were, then those who wait, the densest first (n,).
    order: IntArray
    #: Prices when all were placed (p,).
    prices: FloatArray
    market: Market


def plan_round(facts: Facts, ways: Ways) -> Round:
    """Decide one round."""
    bounds, market = bounds_of(facts, ways.eta4), Market(facts, ways.comm)
    use, rate = np.zeros(facts.rate.shape), np.zeros(len(facts))
    placed = np.flatnonzero(facts.pinned).tolist()
    use[placed] = facts.held[placed]
    rate[placed] = facts.running_rate[placed]
    waiting = _offered(facts, bounds)
    least = 0.0 if ways.strict else -np.inf
    given = use.sum(axis=0)
    while len(waiting):
        offers = market.offers(waiting, bounds.prices(given), facts.capacity - given)
        density = np.where(offers.payoff[waiting] > least, offers.density[waiting], -np.inf)
        best = int(np.argmax(density))
        if density[best] == -np.inf:
            break
        row = int(waiting[best])
        use[row], rate[row] = _taken(facts, offers, row)
        given += use[row]
        placed.append(row)
        # Room only shrinks: whom nothing fits now, nothing will.
        fits = offers.payoff[waiting] > -np.inf
        fits[best] = False
        waiting = waiting[fits]
    _upgrade(facts, placed, use, rate)
    fork_out(facts, ways.sync, placed, use, rate)
    rest = np.setdiff1d(np.arange(len(facts)), placed)
    rest = rest[np.lexsort((rest, facts.arrived_at[rest], -bounds.density[rest]))]
    order = np.concatenate([np.array(placed, dtype=np.int64), rest])
    return Round(use, rate, order, bounds.prices(use.sum(axis=0)), market)


def _taken(facts: Facts, offers: Offers, row: int) -> tuple[FloatArray, float]:
    """Accelerators of each pool, and the rate, of a job's best candidate (p,)."""
    pool = int(offers.pool[row])
    if pool < 0:
        return offers.use[row], float(offers.rate[row])
    use = np.zeros(len(facts.capacity))
    use[pool] = facts.use[row, pool]
    return use, float(facts.rate[row, pool])


def _offered(facts: Facts, bounds: Bounds) -> IntArray:
    """Jobs that take part, by arrival, then by row: ties go to the first."""
    rows = np.flatnonzero((bounds.density > 0) & ~facts.pinned)
    most = max(_LEAST_OFFERED, int(_OFFERED_PER_ACCELERATOR * facts.capacity.sum()))
    if len(rows) > most:
        rows = rows[np.lexsort((rows, facts.arrived_at[rows], -bounds.density[rows]))[:most]]
    return rows[np.lexsort((rows, facts.arrived_at[rows]))]


def _upgrade(facts: Facts, placed: list[int], use: FloatArray, rate: FloatArray) -> None:
    """Move placed jobs to the fastest pool with room, their own accelerators counted, while somebody gains.

    The restart has to be worth it: at the end of a job a faster pool brings nothing. Every move makes a rate at least
    2 % larger, so it ends.
    """
    free = facts.capacity - use.sum(axis=0)
    moved = True
    while moved:
        moved = False
        for row in placed:
            pool = -1 if facts.pinned[row] else _faster(facts, row, free + use[row], use[row], float(rate[row]))
            if pool >= 0:
                free += use[row]
                use[row], rate[row] = 0.0, facts.rate[row, pool]
                use[row, pool] = facts.use[row, pool]
                free -= use[row]
                moved = True


def _faster(facts: Facts, row: int, room: FloatArray, use: FloatArray, rate: float) -> int:
    """The fastest pool with room where the job runs faster and ends sooner than it does; -1: none."""
    rates = np.where(facts.use[row] <= room, facts.rate[row], 0.0)
    pool = int(np.argmax(rates))
    if not rates[pool] >= _FASTER * rate > 0:
        return -1
    there = np.zeros(len(room))
    there[pool] = facts.use[row, pool]
    before, after = _left_s(facts, row, use, rate), _left_s(facts, row, there, float(rates[pool]))
    return pool if after < before else -1


def _left_s(facts: Facts, row: int, use: FloatArray, rate: float) -> float:
    restart_s = 0.0 if (use == facts.held[row]).all() else float(facts.restart_s[row])
    return float(facts.left_steps[row]) / rate + restart_s
