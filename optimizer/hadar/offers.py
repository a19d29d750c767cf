"""FIND_ALLOC: the best gang of each job at given prices, among those that fit what is free.

Candidates of a job, its pools from the fastest down: all workers in that pool; and, where the gang may be mixed, the
cheapest accelerators of all pools at least that fast. The price is paid for every round until the end.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.hadar.facts import Facts, Worth, needed_s, worth
from optimizer.hadar.forking import most_by_forking
from optimizer.problem import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Offers:
    """The best candidate of each job (n,)."""

    #: Utility minus price until the end; -inf where nothing fits.
    payoff: FloatArray
    #: Accelerators times rounds until the end.
    size: FloatArray
    #: Pool of a gang that sits in one; -1: it is mixed.
    pool: IntArray
    #: Accelerators of each pool, and steps per second, of mixed gangs; 0 for the others (n, p), (n,).
    use: FloatArray
    rate: FloatArray

    @property
    def density(self) -> FloatArray:
        """Payoff per accelerator and round (n,)."""
        return self.payoff / self.size


class Market:
    """The jobs of a round and their configurations. What depends on prices is kept per pool until its price changes."""

    def __init__(self, facts: Facts, comm: float) -> None:
        """`comm`: part of its rate that a mixed gang loses."""
        self._facts, self._comm = facts, comm
        #: Place of each pool when a job's pools are sorted from the fastest down (n, p).
        self._place = np.argsort(np.argsort(-facts.rate, axis=1, kind="stable"), axis=1, kind="stable")
        stays = (facts.held == facts.use) & (facts.held.sum(axis=1, keepdims=True) == facts.use)
        lengths_s = needed_s(facts.left_steps[:, None], facts.rate) + np.where(stays, 0.0, facts.restart_s[:, None])
        alone = worth(facts.best_s[:, None], facts.age_s[:, None], lengths_s, facts.round_s)
        # Of gangs in one pool, by pool (p, n): what changes with a price is one row.
        self._runs = np.ascontiguousarray(facts.rate.T > 0)
        self._use = np.ascontiguousarray(facts.use.T)
        self._utility = np.ascontiguousarray(alone.utility.T)
        self._rounds = np.ascontiguousarray(alone.rounds.T)
        self._size = np.maximum(self._use * self._rounds, 1.0)
        self._payoff = np.full(self._use.shape, -np.inf)
        self._priced = np.full((2, len(facts.capacity)), np.nan)

    def offers(self, rows: IntArray, prices: FloatArray, free: FloatArray) -> Offers:
        """The best candidates of all jobs, of equals the one in the first pool; mixed ones only for `rows`.

        Args:
            rows: jobs that are still to be placed.
            prices: per accelerator and round (p,).
            free: accelerators that candidates may take (p,).
        """
        self._reprice(prices, free)
        pool, every = np.argmax(self._payoff, axis=0), np.arange(len(self._facts))
        payoff, size = self._payoff[pool, every], self._size[pool, every]
        offers = Offers(payoff, size, pool, np.zeros(self._facts.rate.shape), np.zeros(len(every)))
        mixing = rows[self._facts.mixes[rows]]
        for place in range(1, len(prices)) if len(mixing) else ():
            mixed = self._mixed(mixing, place, prices, free)
            wins = mixed.payoff > offers.payoff[mixing]
            for name in ("payoff", "size", "pool", "use", "rate"):
                getattr(offers, name)[mixing[wins]] = getattr(mixed, name)[wins]
        return offers

    def _reprice(self, prices: FloatArray, free: FloatArray) -> None:
        for pool in np.flatnonzero((self._priced != (prices, free)).any(axis=0)).tolist():
            fits = self._runs[pool] & (self._use[pool] <= free[pool])
            gain = self._utility[pool] - self._size[pool] * prices[pool]
            self._payoff[pool] = np.where(fits, gain, -np.inf)
            self._priced[:, pool] = prices[pool], free[pool]

    def surplus(self, prices: FloatArray) -> FloatArray:
        """The most that each job could gain per round at the prices if the whole fleet were free, >= 0 (n,).

        An upper bound for mixed gangs and forks: their restart is left out, since what is held now is not among the
        candidates.
        """
        facts = self._facts
        fits = self._runs & (self._use <= facts.capacity[:, None])
        gain = self._utility / self._rounds - self._use * prices[:, None]
        most: FloatArray = np.where(fits, gain, 0.0).max(axis=0, initial=0.0)
        most = np.maximum(most, most_by_forking(facts, prices))
        mixing = np.flatnonzero(facts.mixes)
        for place in range(1, len(prices)) if len(mixing) else ():
            offers = self._mixed(mixing, place, prices, facts.capacity)
            lengths_s = needed_s(facts.left_steps[mixing], offers.rate)
            value = worth(facts.best_s[mixing], facts.age_s[mixing], lengths_s, facts.round_s)
            per_round = np.where(offers.rate > 0, value.utility / value.rounds - offers.use @ prices, 0.0)
            most[mixing] = np.maximum(most[mixing], per_round)
        return most

    def _mixed(self, rows: IntArray, place: int, prices: FloatArray, free: FloatArray) -> Offers:
        """The cheapest accelerators of a job's fastest pools, up to the one in that place; equally dear: slower first.

        Workers are the same everywhere: a gang that takes more accelerators on one pool than on another has no mixture.
        """
        facts = self._facts
        rate, use = facts.rate[rows], facts.use[rows]
        among = (self._place[rows] <= place) & (rate > 0)
        gang = use.max(axis=1, initial=0.0)
        order = np.lexsort((rate, np.broadcast_to(prices, rate.shape)), axis=1)
        room = np.take_along_axis(np.where(among, np.floor(free), 0.0), order, axis=1)
        before = np.cumsum(room, axis=1) - room
        taken = np.zeros(rate.shape)
        np.put_along_axis(taken, order, np.clip(gang[:, None] - before, 0.0, room), axis=1)
        exists = self._is_mixture(taken, use, among, gang)
        slowest = np.where(taken > 0, rate, np.inf).min(axis=1, initial=np.inf)
        pace = np.where(exists, slowest * (1.0 - self._comm), 0.0)
        value = self._worth_of(rows, taken, pace)
        payoff = np.where(exists, value.utility - value.rounds * (taken @ prices), -np.inf)
        return Offers(payoff, np.maximum(gang * value.rounds, 1.0), np.full(len(rows), -1), taken, pace)

    def _is_mixture(self, taken: FloatArray, use: FloatArray, among: BoolArray, gang: FloatArray) -> BoolArray:
        several = (taken > 0).sum(axis=1) > 1
        whole = taken.sum(axis=1) == gang
        equal = (np.where(among, use, gang[:, None]) == gang[:, None]).all(axis=1)
        found: BoolArray = several & whole & equal
        return found

    def _worth_of(self, rows: IntArray, use: FloatArray, rate: FloatArray) -> Worth:
        facts = self._facts
        moves = (use != facts.held[rows]).any(axis=1)
        lengths_s = needed_s(facts.left_steps[rows], rate) + np.where(moves, facts.restart_s[rows], 0.0)
        return worth(facts.best_s[rows], facts.age_s[rows], lengths_s, facts.round_s)
