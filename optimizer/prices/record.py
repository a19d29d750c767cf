"""The best shares and the best bound that a solve has seen. Decides when the gap between them is small enough.

A level's bound is found by a line from the costs at one level to where they would be too high. That is exact where
targets are convex, and only a guess elsewhere; so it is proved by one more pass before it counts.
"""

import numpy as np

from optimizer.market.market import Market
from optimizer.market.objective import Nash, Objective
from optimizer.prices.engine import Engine
from optimizer.prices.follow import Work
from optimizer.prices.newton import Look
from optimizer.prices.softened import LOG
from optimizer.prices.task import Task, earnings
from optimizer.problem import FloatArray

#: Demand that is over by no more fits: shares are then scaled down, and goals missed, by so much.
_FITS = 1e-10
#: Part of the gap that is used up: rounding does not decide whether a gap is met.
_USED = 0.98
#: A guess is proved so much above itself.
_MARGIN = 1e-8
#: Bounds that are tried to be proved when the work is done, each four times as far as the one before.
_TRIES = 8
#: Costs are sums with rounding: only what is dearer by more than this part is too dear.
_ROUNDING = 1e-12


class Record:
    """What all looks at all classes have shown. Shares are remembered as the look that yields them."""

    def __init__(self, engine: Engine, task: Task, work: Work, gap: float, highest: float) -> None:
        self._engine, self._task, self._work, self._gap = engine, task, work, gap
        self._scale = earnings(task) if task.kind == LOG else 0.0
        #: Nothing that is feasible earns less: a bound below it says that nothing is.
        self._least = -np.inf
        if task.is_strict and not task.is_level:
            self._least = -earnings(task, -task.value) - 1e-9
        #: What is proved, and the prices that prove it, with how the costs rise with the level there.
        self.bound = highest if task.is_level else np.inf
        self.prices: FloatArray = np.zeros(task.market.rows)
        self.rise = 0.0
        #: What is reached, and where.
        self.reached = -np.inf
        self.best: Look | None = None
        #: True: some class with a weight has no column of any worth.
        self.impossible = False
        self._guess, self._guessed_at = np.inf, self.prices

    @property
    def is_done(self) -> bool:
        """True: the gap is small enough."""
        return self._gap_to(self.bound) <= self._gap

    @property
    def expected(self) -> float:
        """The bound as it seems, proved or not."""
        return min(self.bound, self._guess)

    def judge(self, seen: Look) -> bool:
        """Take what the look proves and yields; True: it is enough, or nothing is feasible."""
        if self._task.kind == LOG and seen.sums.unreached:
            self.impossible = True
            return True
        if self._task.is_level:
            self._take_level(seen)
        elif not seen.sums.unreached:
            bound = float(seen.at.prices @ self._task.market.capacity) - seen.sums.exact_cost
            if bound < self.bound:
                self.bound, self.prices = bound, seen.at.prices
            if bound < self._least:
                return True
        reached = self._reached(seen)
        if reached > self.reached:
            self.reached, self.best = reached, seen
        if self._gap_to(self.bound) <= _USED * self._gap:
            return True
        return self._task.is_level and self._gap_to(self._guess) <= _USED * self._gap and self._proved()

    def prove_something(self) -> None:
        """A bound that the prices of the guess prove, as near to what is reached as four times its distance."""
        part = 0.9 * self._gap
        for _ in range(_TRIES if self.reached > 0 else 0):
            z = self.reached * (1.0 + part)
            if z >= self.bound or self._too_dear(z):
                return
            part *= 4.0

    def _take_level(self, seen: Look) -> None:
        at, sums = seen.at, seen.sums
        income = float(at.prices @ self._task.market.capacity)
        if at.z < self.bound and (sums.unreached or sums.exact_cost > income * (1 + _ROUNDING)):
            self.bound, self.prices, self.rise = at.z, at.prices, sums.exact_slope
        if sums.exact_slope > 0 and not sums.unreached:
            guess = at.z + (income - sums.exact_cost) / sums.exact_slope
            if guess < self._guess:
                self._guess, self._guessed_at = guess, at.prices

    def _proved(self) -> bool:
        """Prove the guess, or at least a bound that is good enough; else forget it."""
        tight, loose = max(self._guess, self.reached) * (1 + _MARGIN), self.reached * (1 + 0.9 * self._gap)
        if self._too_dear(tight) or self._too_dear(loose):
            return self._gap_to(self.bound) <= self._gap
        self._guess = np.inf
        return False

    def _too_dear(self, z: float) -> bool:
        """Whether the guess's prices prove that the level is out of reach; if so, it is the bound."""
        if z >= self.bound:
            return False
        prices = self._guessed_at
        self._work.spend(1.0)
        sums = self._engine.sums(self._task.market, self._task.wants(z), prices, prices, np.zeros(0))
        if sums.unreached or sums.exact_cost > float(prices @ self._task.market.capacity) * (1 + _ROUNDING):
            self.bound, self.prices, self.rise = z, prices, sums.exact_slope
            return True
        return False

    def _gap_to(self, bound: float) -> float:
        if self._task.kind == LOG:
            return (bound - self.reached) / max(self._scale, 1e-300) if np.isfinite(self.reached) else np.inf
        return _relative(self.reached, max(bound, self.reached) if self._task.is_level else bound)

    def _reached(self, seen: Look) -> float:
        task, sums = self._task, seen.sums
        over = overload(task.market, sums.demand)
        if task.is_strict:
            fits = over <= 1.0 + _FITS and not sums.unreached
            return (seen.at.z if task.is_level else sums.value) if fits else -np.inf
        over = max(over, 1.0)
        return sums.value - self._scale * float(np.log(over)) if task.kind == LOG else sums.value / over


def gap_of(market: Market, objective: Objective, reached: float, bound: float) -> float:
    """By which part the bound is above what is reached; for a Nash: by how much the mean weighted logarithm is."""
    if isinstance(objective, Nash):
        return max(bound - reached, 0.0) / max(float(market.size @ objective.weight), 1e-300)
    return _relative(reached, bound)


def overload(market: Market, demand: FloatArray) -> float:
    """The largest demand for a row, as a part of its capacity."""
    full = demand > 0
    return float((demand[full] / market.capacity[full]).max(initial=0.0))


def _relative(reached: float, bound: float) -> float:
    if not np.isfinite(reached) or not np.isfinite(bound):
        return np.inf
    return max(bound - reached, 0.0) / max(abs(bound), abs(reached), 1e-12)
