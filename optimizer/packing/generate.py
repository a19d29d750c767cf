"""The best shares of a packed market, found with a few of its pairs and proved against all of them.

A program over some pairs gives shares, which are feasible, and dual values, which ask for better pairs and, closed over
all pairs, bound what any shares can reach. The pairs asked for join the program, those far from running leave it, and
so on until the two values meet. A level is aimed at from where the dual values put it: a program raises all targets of
that level together, as far as they go, which is Newton's method on the level. A market with few pairs starts with all
of them. Work is limited by rounds. Decides when an answer is good enough.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.decision import Status
from optimizer.market import Market
from optimizer.objective import Level, Total
from optimizer.owners import sum_by
from optimizer.packing.blocks import Block, PairColumns, all_pairs, how_many, joined, no_pairs
from optimizer.packing.master import Ask, Master, MasterSolution
from optimizer.packing.pricing import Duals, PairUses, bound_of, gain_of, level_paid, priced, used_by
from optimizer.prices.bound import bound_at
from optimizer.problem import FloatArray
from optimizer.reached import level_reached

#: Pairs up to which a market starts with all of them.
_ALL_PAIRS = 3_000
#: Segments that a class asks for in each block and round.
_PARTNERS = 3
#: Pairs that stay in the program, for each class.
_KEPT = 4
#: An answer within this part of its bound is good enough; with all pairs in a small program, this one.
_CLOSE = 1e-5
_EXACT = 1e-10
_ROUNDS = 60
#: Rounds without a better answer or bound after which no more is hoped for.
_STALLED = 6


@dataclass(frozen=True, slots=True, eq=False)
class PackedSolution:
    """Shares of a packed market with proof. C class columns, q pairs of classes, r rows, k classes."""

    status: Status
    #: Share of time of one member in each class column, alone (C,).
    x: FloatArray
    #: Pairs of classes, and how many of each run at a time, on average (q,).
    pairs: PairColumns
    running: FloatArray
    #: Dual values, closed over all pairs.
    duals: Duals
    objective: float
    bound: float
    path: str
    #: Iterations of all programs.
    work: int


class Packer:
    """One market and what may be packed in it. Pairs found for one objective are there for the next."""

    def __init__(self, market: Market, blocks: tuple[Block, ...]) -> None:
        self._market, self._blocks = market, blocks
        self._whole = how_many(blocks) <= _ALL_PAIRS
        self._pairs = all_pairs(blocks) if self._whole else no_pairs()

    def solve(self, objective: Level | Total) -> PackedSolution:
        """The largest value of the objective. Solvers that give up are told by the status, with what was found so far.

        Every class has a column of positive worth (Level), and floors leave room (Total, else INFEASIBLE).
        """
        search = _Search(self._market, self._blocks, objective)
        master, close = Master(self._market, objective), _EXACT if self._whole else _CLOSE
        while search.rounds < _ROUNDS and search.stalled < _STALLED:
            uses = used_by(self._pairs, self._blocks)
            found = master.solve(uses, search.ask())
            search.work += found.work
            if found.status is not Status.OPTIMAL:
                return search.answer(found.status)
            asked = search.learn(found, self._pairs, uses)
            path = f"pairs/{found.solver}"
            if search.gap <= close:
                return search.answer(Status.OPTIMAL, path)
            if not self._whole:
                self._pairs = joined([self._worth_keeping(found), asked])
        return search.answer(Status.OPTIMAL if search.gap <= 1e-4 else Status.WORK_LIMIT, f"pairs/{found.solver}")

    def _worth_keeping(self, found: MasterSolution) -> PairColumns:
        most = _KEPT * self._market.classes
        if len(self._pairs) <= most:
            return self._pairs
        return self._pairs.take(np.sort(np.argpartition(-found.lacking, most)[:most]))


class _Search:
    """What is known of one objective so far."""

    def __init__(self, market: Market, blocks: tuple[Block, ...], objective: Level | Total) -> None:
        self._market, self._blocks, self._objective = market, blocks, objective
        k = market.classes
        self.rounds = self.stalled = self.work = 0
        self._value, self._bound = -np.inf, np.inf
        self._duals = Duals(np.zeros(market.rows), np.zeros(k), np.zeros(k))
        self._x, self._pairs, self._running = np.zeros(market.columns), no_pairs(), np.zeros(0)
        self._aim = 0.0
        if isinstance(objective, Level):
            self._aim = bound_at(market, objective, np.ones(market.rows))
            self._bound = objective.targets.highest

    @property
    def gap(self) -> float:
        """Distance of the best answer to the best bound, as a part of the bound."""
        if not np.isfinite(self._value) or not np.isfinite(self._bound):
            return np.inf
        return (self._bound - self._value) / max(abs(self._bound), 1e-12)

    def ask(self) -> Ask:
        """What the next program is to maximise."""
        objective = self._objective
        if isinstance(objective, Total):
            return Ask(0.0, np.zeros(self._market.classes), objective.floor)
        floor = objective.targets.at(0.0)[0]
        return Ask(1.0, objective.targets.at(self._aim)[0] - floor, floor)

    def learn(self, found: MasterSolution, pairs: PairColumns, uses: PairUses) -> PairColumns:
        """Take in what a program found: a better answer, a better bound, the next aim. Returns the pairs asked for."""
        self.rounds += 1
        before = (self._value, self._bound)
        x, running = _feasible(self._market, uses, found.x, found.pairs)
        value = _value(self._market, self._objective, uses, x, running)
        if value > self._value:
            shown = running > 0
            self._value, self._x, self._pairs, self._running = value, x, pairs.take(shown), running[shown]
        gain = gain_of(self._market, self._objective, found.duals)
        time, asked = priced(self._market, self._blocks, gain, found.duals, _PARTNERS)
        duals = Duals(found.duals.prices, found.duals.multiplier, time)
        bound = bound_of(self._market, self._objective, duals)
        if bound < self._bound or self.rounds == 1:
            self._bound, self._duals = min(bound, self._bound), duals
        if isinstance(self._objective, Level):
            paid = self._market.size * found.duals.multiplier
            income = float(self._market.size @ found.duals.time + self._market.capacity @ found.duals.prices)
            level = level_paid(self._objective.targets, paid, income)
            self._aim = min(max(level, self._value), self._bound)
        better = self._value > before[0] + _EXACT * abs(before[0]) or self._bound < before[1] * (1 - _EXACT)
        self.stalled = 0 if better else self.stalled + 1
        return asked

    def answer(self, status: Status, path: str = "pairs") -> PackedSolution:
        """The best that was found."""
        return PackedSolution(
            status, self._x, self._pairs, self._running, self._duals, self._value, self._bound, path, self.work
        )


def _feasible(market: Market, uses: PairUses, x: FloatArray, running: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Clip what a solver left outside, and scale down every column that touches an overfull row."""
    owner = market.owner()
    x, running = np.maximum(x, 0.0), np.maximum(running, 0.0)
    time = sum_by(owner, x, market.classes) + uses.by_class(running / market.size[uses.member], market.classes)
    over = np.maximum(time, 1.0)
    x, running = x / over[owner], running / over[uses.member].max(axis=0, initial=1.0)
    used = market.used(x) + sum_by(uses.pool, uses.count * running, market.rows)
    full = np.maximum(used / np.where(market.capacity > 0, market.capacity, 1.0), 1.0)
    worst = np.ones(market.columns)
    np.maximum.at(worst, np.repeat(np.arange(market.columns), np.diff(market.use_first)), full[market.use_row])
    return x / worst, running / full[uses.pool]


def _value(
    market: Market, objective: Level | Total, uses: PairUses, x: FloatArray, running: FloatArray
) -> float:
    """What the shares reach."""
    if isinstance(objective, Total):
        alone = float((market.size[market.owner()] * objective.value) @ x)
        return alone + float((uses.keeps * objective.value[uses.column]).sum(axis=0) @ running)
    utility = sum_by(market.owner(), objective.worth * x, market.classes)
    gained = uses.keeps * objective.worth[uses.column] * running / market.size[uses.member]
    return level_reached(objective.targets, utility + uses.by_class(gained, market.classes))
