"""FIND_ALLOC: the best gang of each job at given prices, among those that fit what is free.

Candidates of a job, its pools from the fastest down: all workers in that pool; and, where the gang may be mixed, the
cheapest accelerators of all pools at least that fast. The price is paid for every round until the end.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.hadar.facts import Facts, Worth, needed_s, worth
from optimizer.problem import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Offers:
    """The best candidate of each job asked about (m,); of equals the one whose slowest pool is faster."""

    #: Utility minus price until the end; -inf where nothing fits.
    payoff: FloatArray
    #: Rounds until the end.
    rounds: FloatArray
    #: Accelerators of each pool (m, p), and steps per second.
    use: FloatArray
    rate: FloatArray

    @property
    def density(self) -> FloatArray:
        """Payoff per accelerator and round (m,)."""
        return self.payoff / np.maximum(self.use.sum(axis=1) * self.rounds, 1.0)


class Market:
    """Whoever has a configuration, with what does not change during a round worked out once."""

    def __init__(self, facts: Facts, comm: float) -> None:
        """`comm`: part of its rate that a mixed gang loses."""
        self._facts, self._comm = facts, comm
        #: Pools of each job from the fastest down, and the place of each pool in that order (n, p).
        self._pools = np.argsort(-facts.rate, axis=1, kind="stable")
        self._place = np.argsort(self._pools, axis=1, kind="stable")
        self._rate = np.take_along_axis(facts.rate, self._pools, axis=1)
        self._use = np.take_along_axis(facts.use, self._pools, axis=1)
        held = np.take_along_axis(facts.held, self._pools, axis=1)
        stays = (held == self._use) & (facts.held.sum(axis=1, keepdims=True) == self._use)
        lengths_s = needed_s(facts.left_steps[:, None], self._rate) + np.where(stays, 0.0, facts.restart_s[:, None])
        self._worth = worth(facts.best_s[:, None], facts.age_s[:, None], lengths_s, facts.round_s)

    def offers(self, rows: IntArray, prices: FloatArray, free: FloatArray) -> Offers:
        """Ask for some jobs.

        Args:
            rows: jobs to ask for (m,).
            prices: per accelerator and round (p,).
            free: accelerators that candidates may take (p,).
        """
        alone = self._alone(rows, prices, free)
        mixing = np.flatnonzero(self._facts.mixes[rows])
        for place in range(1, len(prices)) if len(mixing) else ():
            self._improve(alone, mixing, self._mixed(rows[mixing], place, prices, free))
        return alone

    def surplus(self, prices: FloatArray) -> FloatArray:
        """The most that each job could gain per round at the prices if the whole fleet were free, >= 0 (n,).

        An upper bound for mixed gangs: their restart is left out, since the gang held now is not among the candidates.
        """
        facts, rows = self._facts, np.arange(len(self._facts))
        fits = (self._rate > 0) & (self._use <= facts.capacity[self._pools])
        gain = self._worth.utility / self._worth.rounds - self._use * prices[self._pools]
        most = np.where(fits, gain, 0.0).max(axis=1, initial=0.0)
        mixing = rows[facts.mixes]
        for place in range(1, len(prices)) if len(mixing) else ():
            offers = self._mixed(mixing, place, prices, facts.capacity)
            lengths_s = needed_s(facts.left_steps[mixing], offers.rate)
            value = worth(facts.best_s[mixing], facts.age_s[mixing], lengths_s, facts.round_s)
            gain = np.where(offers.rate > 0, value.utility / value.rounds - offers.use @ prices, 0.0)
            most[mixing] = np.maximum(most[mixing], gain)
        return most

    def _alone(self, rows: IntArray, prices: FloatArray, free: FloatArray) -> Offers:
        pools, use, rate = self._pools[rows], self._use[rows], self._rate[rows]
        utility, rounds = self._worth.utility[rows], self._worth.rounds[rows]
        fits = (rate > 0) & (use <= free[pools])
        payoff = np.where(fits, utility - rounds * use * prices[pools], -np.inf)
        every, best = np.arange(len(rows)), np.argmax(payoff, axis=1)
        taken = np.zeros(use.shape)
        taken[every, pools[every, best]] = use[every, best]
        return Offers(payoff[every, best], rounds[every, best], taken, rate[every, best])

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
        return Offers(payoff, value.rounds, taken, pace)

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

    @staticmethod
    def _improve(best: Offers, at: IntArray, offers: Offers) -> None:
        """Put better offers for the jobs `at` into the best ones."""
        wins = offers.payoff > best.payoff[at]
        for name in ("payoff", "rounds", "use", "rate"):
            getattr(best, name)[at[wins]] = getattr(offers, name)[wins]
