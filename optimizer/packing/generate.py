"""The best shares of a packed market, found with a few of its columns and proved against all pairs.

A program over some sides gives shares, which are feasible, and dual values, which ask for better sides and, closed over
all pairs, bound what any shares can reach. The sides asked for join the program, those far from running leave it, until
the two values meet; a last program then ends in a vertex, where few pairs run and full jobs are full to the last bit.

A level is aimed at from above, from where the dual values put it: a program raises all targets of that level together,
as far as they go, which is Newton's method on the level. (From below, jobs that are full alone would decide how far.)
A market with few pairs starts with all of them. Work is limited by rounds. Decides when an answer is good enough.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.decision import Status
from optimizer.market import Market
from optimizer.objective import Level, Total
from optimizer.owners import sum_by
from optimizer.packing.blocks import Block, Sides, Spelled, all_sides, how_many, joined, no_sides, spell
from optimizer.packing.coarse import coarse_of
from optimizer.packing.master import Ask, Master, MasterSolution
from optimizer.packing.pricing import Duals, Priced, bound_of, gain_of, priced
from optimizer.prices.bound import bound_at
from optimizer.problem import FloatArray, IntArray
from optimizer.reached import level_reached

#: Sides up to which a market starts with all of them.
_ALL_SIDES = 3_000
#: Segments that a class asks for in each block and round.
_PARTNERS = 3
#: Sides that stay in the program, for each class.
_KEPT = 10
#: An answer within this part of its bound is good enough; with all sides in the program, this one.
_CLOSE = 2e-4
_EXACT = 1e-10
#: A level is aimed at from this part above where the dual values put it, until the last program, which aims below.
_ABOVE = 2e-5
_BELOW = 8e-5
#: While little is known, it is aimed at this part of the way to the bound, but no further than this above.
_TOWARDS = 0.5
_FAR = 0.03
#: Groups of classes alike are solved first where they are at most this part of the classes.
_COARSER = 0.5
_ROUNDS = 60
#: Rounds without a better answer or bound after which no more is hoped for.
_STALLED = 5
#: A side with more time than this runs, even where a program was not solved to the last bit.
_RUNS = 1e-6
#: Part of its segment's line from which a job is watched, lest it should hold more than half; less is rounding.
_MUCH = 0.35
_HALF = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class PackedSolution:
    """Shares of a packed market with proof. C class columns, q sides, r rows, k classes."""

    status: Status
    #: Share of time of one member in each class column, alone (C,), and in each side (q,).
    x: FloatArray
    sides: Sides
    beside: FloatArray
    #: Dual values, closed over all pairs.
    duals: Duals
    objective: float
    bound: float
    path: str
    #: Iterations of all programs.
    work: int


class Packer:
    """One market and what may be packed in it. Sides found for one objective are there for the next."""

    def __init__(self, market: Market, blocks: tuple[Block, ...]) -> None:
        self._market, self._blocks = market, blocks
        self._whole = how_many(blocks) <= _ALL_SIDES
        self._sides = all_sides(blocks) if self._whole else no_sides()
        self._coarse: Packer | None = None
        if not self._whole:
            groups = coarse_of(market, blocks)
            if len(groups) <= _COARSER * market.classes:
                self._groups, self._coarse = groups, Packer(groups.market, groups.blocks)

    @property
    def sides(self) -> Sides:
        """Those of the last program."""
        return self._sides

    def solve(self, objective: Level | Total) -> PackedSolution:
        """The largest value of the objective. Solvers that give up are told by the status, with what was found so far.

        Every class has a column of positive worth (Level), and floors leave room (Total, else INFEASIBLE).
        """
        search = _Search(self._market, self._blocks, objective)
        if self._coarse is not None:
            search.expect(self._coarse.solve(self._groups.objective(objective)))
            likely = self._groups.sides_of_members(self._blocks, self._coarse.sides)
            self._sides = joined([self._sides, likely])
        master, close = Master(self._market, objective), _EXACT if self._whole else _CLOSE
        greedy, path, vertex = no_sides(), "pairs", self._whole
        while search.rounds < _ROUNDS and search.stalled < _STALLED:
            sides = spell(self._sides, self._blocks)
            found = master.solve(
                sides, _positions(greedy, self._sides), search.ask(self._beside_level(vertex)), vertex=vertex
            )
            search.work += found.work
            if found.status is not Status.OPTIMAL:
                return search.answer(found.status, path)
            path = f"pairs/{found.solver}"
            judged = search.learn(found, self._sides, sides)
            if search.gap <= close:
                return search.answer(Status.OPTIMAL, path)
            more = self._sides.take(_greedy(self._market, sides, found.beside))
            greedy = joined([greedy, more])
            if not self._whole:
                vertex = search.room <= close / 2
                self._sides = joined([self._worth_keeping(judged.merit, found.beside), judged.asked, greedy])
        return search.answer(Status.OPTIMAL if search.gap <= close else Status.WORK_LIMIT, path)

    def _beside_level(self, vertex: bool) -> float:
        if self._whole:
            return 0.0
        return -_BELOW if vertex else _ABOVE

    def _worth_keeping(self, merit: FloatArray, beside: FloatArray) -> Sides:
        most = _KEPT * self._market.classes
        if len(self._sides) <= most:
            return self._sides
        best = np.partition(merit, len(merit) - most)[len(merit) - most]
        return self._sides.take((merit >= min(best, -_FAR * float(np.abs(merit).mean()))) | (beside > _RUNS))


class _Search:
    """What is known of one objective so far."""

    def __init__(self, market: Market, blocks: tuple[Block, ...], objective: Level | Total) -> None:
        self._market, self._blocks, self._objective = market, blocks, objective
        k = market.classes
        self.rounds = self.stalled = self.work = 0
        self._value, self._bound = -np.inf, np.inf
        self._duals = Duals(np.zeros(market.rows), np.zeros(k), np.zeros(k))
        self._x, self._sides, self._beside = np.zeros(market.columns), no_sides(), np.zeros(0)
        self._likely = np.nan
        if isinstance(objective, Level):
            self._likely = bound_at(market, objective, np.ones(market.rows))
            self._bound = objective.targets.highest

    @property
    def gap(self) -> float:
        """Distance of the best answer to the best bound, as a part of the bound."""
        return self._short_of_bound(self._value)

    @property
    def room(self) -> float:
        """The same distance of what the last program would reach, were it solved to the last bit."""
        return self._short_of_bound(self._likely)

    def _short_of_bound(self, value: float) -> float:
        if not np.isfinite(value) or not np.isfinite(self._bound):
            return np.inf
        return (self._bound - value) / max(abs(self._bound), 1e-12)

    def expect(self, guess: PackedSolution) -> None:
        """Aim first at what a similar market reaches."""
        self.work += guess.work
        if isinstance(self._objective, Level) and np.isfinite(guess.objective):
            self._likely = min(guess.objective, self._bound)

    def ask(self, beside: float) -> Ask:
        """What the next program is to maximise. A level is aimed at this part of it beside where it should be."""
        objective = self._objective
        if isinstance(objective, Total):
            return Ask(0.0, np.zeros(self._market.classes), objective.floor)
        floor = objective.targets.at(0.0)[0]
        aim = self._likely * (1 + beside)
        if beside > 0 and self.rounds > 0:
            aim = max(aim, min((1 - _TOWARDS) * self._likely + _TOWARDS * self._bound, (1 + _FAR) * self._likely))
        aim = min(aim, objective.targets.highest)
        return Ask(1.0, objective.targets.at(aim)[0] - floor, floor)

    def learn(self, found: MasterSolution, sides: Sides, spelled: Spelled) -> Priced:
        """Take in what a program found: a better answer, a better bound, the next aim. Returns its word on pairs."""
        self.rounds += 1
        before = (self._value, self._bound)
        x, beside = _feasible(self._market, spelled, found.x, found.beside)
        value = _value(self._market, self._objective, spelled, x, beside)
        if value > self._value:
            shown = beside > 0
            self._value, self._x, self._sides, self._beside = value, x, sides.take(shown), beside[shown]
        gain = gain_of(self._market, self._objective, found.duals)
        priced_all = priced(self._market, self._blocks, gain, found.duals, sides, _PARTNERS)
        duals = Duals(found.duals.prices, found.duals.multiplier, priced_all.time)
        bound = bound_of(self._market, self._objective, duals)
        if bound < self._bound or self.rounds == 1:
            self._bound, self._duals = min(bound, self._bound), duals
        self._likely = min(bound_of(self._market, self._objective, found.duals), self._bound)
        better = self._value > before[0] + _EXACT * abs(before[0]) or self._bound < before[1] * (1 - _EXACT)
        self.stalled = 0 if better else self.stalled + 1
        return priced_all

    def answer(self, status: Status, path: str) -> PackedSolution:
        """The best that was found. A level's dual values are told in units of the level."""
        duals = self._duals
        if isinstance(self._objective, Level):
            rise = self._objective.targets.at(self._bound)[1]
            unit = float(self._market.size @ (duals.multiplier * rise)) or 1.0
            duals = Duals(duals.prices / unit, duals.multiplier / unit, duals.time / unit)
        return PackedSolution(
            status, self._x, self._sides, self._beside, duals, self._value, self._bound, path, self.work
        )


def _positions(some: Sides, sides: Sides) -> IntArray:
    """Where some sides, both in order, are among all of them."""
    if not len(some):
        return np.zeros(0, dtype=np.int64)
    most = [int(max(array.max(), 0)) + 1 for array in (sides.place, sides.beside)]
    keys = [(s.block * most[0] + s.place) * most[1] + s.beside for s in (some, sides)]
    return np.searchsorted(keys[1], keys[0])


def _greedy(market: Market, sides: Spelled, beside: FloatArray) -> IntArray:
    """Sides of one job each, in segments where one runs for much of all the time that the segment meets itself."""
    total = sum_by(sides.meeting, market.size[sides.member] * beside, sides.meetings)
    alone = (sides.sign == 0) & (market.size[sides.member] == 1)
    broken = sides.meeting[alone & (beside > _MUCH * total[sides.meeting] + _HALF)]
    return np.flatnonzero(alone & np.isin(sides.meeting, broken))


def _feasible(market: Market, sides: Spelled, x: FloatArray, beside: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Clip what a solver left outside, and scale down what touches an overfull row or has nobody to meet."""
    owner, members = market.owner(), market.size[sides.member]
    x, beside = np.maximum(x, 0.0), np.maximum(beside, 0.0)
    time = sum_by(owner, x, market.classes) + sum_by(sides.member, beside, market.classes)
    over = np.maximum(time, 1.0)
    x, beside = x / over[owner], beside / over[sides.member]
    ahead = sum_by(sides.meeting, np.where(sides.sign > 0, members * beside, 0.0), sides.meetings)
    behind = sum_by(sides.meeting, np.where(sides.sign < 0, members * beside, 0.0), sides.meetings)
    mine = np.where(sides.sign > 0, ahead[sides.meeting], behind[sides.meeting])
    met = np.minimum(ahead, behind)[sides.meeting]
    beside = np.where(sides.sign == 0, beside, beside * np.divide(met, mine, out=np.zeros_like(mine), where=mine > 0))
    total = sum_by(sides.meeting, members * beside, sides.meetings)
    alone = (sides.sign == 0) & (members == 1)
    beside = np.where(alone, np.minimum(beside, total[sides.meeting] - beside), beside)
    used = market.used(x) + sum_by(sides.pool, sides.count / 2 * members * beside, market.rows)
    full = np.maximum(used / np.where(market.capacity > 0, market.capacity, 1.0), 1.0)
    worst = np.ones(market.columns)
    np.maximum.at(worst, np.repeat(np.arange(market.columns), np.diff(market.use_first)), full[market.use_row])
    return x / worst, beside / full[sides.pool]


def _value(market: Market, objective: Level | Total, sides: Spelled, x: FloatArray, beside: FloatArray) -> float:
    """What the shares reach."""
    if isinstance(objective, Total):
        alone = float((market.size[market.owner()] * objective.value) @ x)
        return alone + float((market.size[sides.member] * sides.keeps * objective.value[sides.column]) @ beside)
    utility = sum_by(market.owner(), objective.worth * x, market.classes)
    gained = sum_by(sides.member, sides.keeps * objective.worth[sides.column] * beside, market.classes)
    return level_reached(objective.targets, utility + gained)
