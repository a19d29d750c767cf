"""Column generation: the best shares with co-located pairs, found with a few columns and proved against all pairs.

The master program over some sides gives feasible shares and dual values. The dual values price all pairs: sides of
positive reduced worth join the program, and made feasible for all pairs (*closed*) they bound the objective. Sides far
from running leave the program; one that is asked for again stays, so that none comes and goes. When value and bound
are close, a last program is solved to a vertex, in which few pairs run and full jobs are full to the last bit.

A level is approached from above, starting from the dual bound: a program scales all targets of that level together as
far as possible, which is Newton's method on the level. (From below, jobs that are full when alone would limit the
scale.) A program aims no further above the expected level than the last program moved it. The last program aims just
below the level, and there keeps full classes at their full target: scaled down by .01 %, a class that fills up early
would be at a far lower level. A problem with few pairs starts with all sides. Limits count rounds, never seconds.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.classes.class_problem import ClassProblem, MaxMin, MaxSum, level_reached
from optimizer.classes.segments import sum_by
from optimizer.decision import Status
from optimizer.lp import engine_choice
from optimizer.lp.column_generation.colocation_blocks import (
    ColocationBlock,
    PairSides,
    SideDetails,
    all_sides,
    coarsen,
    count_sides,
    join_sides,
    no_sides,
    side_details,
)
from optimizer.lp.column_generation.master_program import MasterInput, MasterProgram, MasterSolution
from optimizer.lp.column_generation.pair_pricing import (
    PairDuals,
    PricedPairs,
    column_gain,
    pair_bound,
    price_pairs,
    tighten_duals,
)
from optimizer.lp.dual_newton.dual_bound import dual_bound
from optimizer.problem import BoolArray, FloatArray, IntArray

#: The most segments that a class asks for in each block and round.
_PARTNERS = 2
#: Sides that stay in the program, per class; and sides per class that a coarse problem suggests to the finer one.
_KEPT = 4
_PROMISING = 4
#: At least so many sides stay in any case.
_FEW = 5_000
#: A side leaves the program when it is further from running than this, in units of the mean distance of sides.
_NEAR = 0.03
#: Relative gaps to the bound: an answer within the first is accepted; where a program is expected to end within the
#: second, it is solved to a vertex; with all sides in the program the answer must be within the third.
_CLOSE, _ENOUGH = 1e-4, 7.5e-5
_EXACT = 1e-10
#: A program aims at a level this part above that of the dual values, until the last program, which aims below it.
_ABOVE = 2e-5
_BELOW = 1e-5
#: Early programs aim at this part of the way to the bound, but no further than this above.
_TOWARDS = 0.5
_FAR = 0.03
#: Groups of similar classes are solved first where there are at most this part as many groups as classes.
_COARSER = 0.5
_ROUNDS = 60
#: The search ends after so many rounds without a better answer or bound.
_STALLED = 5
#: A side with more time than this counts as running, even where a program was not solved to the last bit, and stays in
#: the program. With more than the second part of all the time of its class it is in the last program, too.
_STAYS, _RUNS = 1e-4, 1e-4
#: With more sides than this per class the factorisation of a program fills in and takes several times as long: then a
#: side needs more time to stay.
_CROWDED, _STAYS_CROWDED = 7, 3e-3
#: Tolerance of a program while the expected gap exceeds the second number, and its tolerance afterwards.
_ROUGHLY, _ROUGH_ROOM, _WELL = 1e-3, 1e-2, 1e-5
#: The most steps in which prices of time are lowered, after a program of low tolerance and after others.
_FEW_LOWERINGS, _LOWERINGS = 2, 8
#: A job with more than the first part of its segment's line is limited to half of it; less than the second is rounding.
_MUCH = 0.35
_HALF = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class ColocatedSolution:
    """Shares of a packed problem with proof. C class columns, q sides, r rows, k classes."""

    status: Status
    #: Share of time of one member in each class column, alone (C,), and in each side (q,).
    x: FloatArray
    sides: PairSides
    beside: FloatArray
    #: Dual values, closed over all pairs.
    duals: PairDuals
    objective: float
    bound: float
    path: str
    #: Iterations of all programs.
    work: int


class ColumnGenerator:
    """Column generation for one problem. The sides found for one objective are kept for the next (warm start)."""

    def __init__(self, problem: ClassProblem, blocks: tuple[ColocationBlock, ...]) -> None:
        self._problem, self._blocks = problem, blocks
        self._whole = count_sides(blocks) <= engine_choice.ALL_PAIR_SIDES
        self._sides = all_sides(blocks) if self._whole else no_sides()
        self._promising = self._sides
        self._coarse: ColumnGenerator | None = None
        if not self._whole:
            groups = coarsen(problem, blocks)
            if len(groups) <= _COARSER * problem.classes:
                self._groups, self._coarse = groups, ColumnGenerator(groups.problem, groups.blocks)

    @property
    def promising(self) -> PairSides:
        """The sides that ran in the last program, or were close to it."""
        return self._promising

    def solve(self, objective: MaxMin | MaxSum) -> ColocatedSolution:
        """Maximises the objective. Where a solver fails, returns the best solution so far with a status that says so.

        For MaxMin every class has a column of positive worth; for MaxSum infeasible floors give status INFEASIBLE.
        """
        search = _Search(self._problem, self._blocks, objective)
        if self._whole:
            return self._with_all(search)
        if self._coarse is not None:
            search.expect(self._coarse.solve(self._groups.objective(objective)))
            likely = self._groups.sides_of_members(self._blocks, self._coarse.promising)
            self._sides = join_sides([self._sides, likely])
        greedy, left, returned = no_sides(), no_sides(), no_sides()
        last_try = False  # Whether sides left out of the vertex program were needed.
        while search.goes_on:
            found, judged = search.run(self._sides, greedy, _ABOVE, vertex=False)
            if judged is None:
                return search.answer(search.without(found.status))
            self._promising = self._worth_keeping(judged.merit, found.beside, _PROMISING)
            near = search.expected_gap <= _ENOUGH and search.aimed_well
            if near:
                self._finish(search, found, with_all=last_try)
                if search.gap <= _CLOSE:
                    return search.answer(Status.OPTIMAL)
                last_try = True
            greedy = join_sides([greedy, self._sides.take(search.greedy(self._sides, found.beside))])
            returned = join_sides([returned, judged.requested.take(_among(judged.requested, left))])
            wanted = join_sides([self._wanted(search, found, judged, greedy), returned])
            left = join_sides([left, self._sides.take(~_among(self._sides, wanted))])
            self._sides = wanted
        return search.answer(Status.OPTIMAL if search.gap <= _CLOSE else Status.WORK_LIMIT)

    def _wanted(self, search: "_Search", found: MasterSolution, judged: PricedPairs, greedy: PairSides) -> PairSides:
        """Returns the sides of the next program: those near running, those asked for, and the greedy ones."""
        all_stay = search.stalled or len(self._sides) <= _FEW
        kept = self._sides if all_stay else self._worth_keeping(judged.merit, found.beside)
        wanted = join_sides([kept, judged.requested, greedy])
        if all_stay or len(wanted) <= _CROWDED * self._problem.classes:
            return wanted
        kept = self._worth_keeping(judged.merit, found.beside, stays=_STAYS_CROWDED)
        return join_sides([kept, judged.requested, greedy])

    def _finish(self, search: "_Search", found: MasterSolution, *, with_all: bool) -> None:
        """Solves to a vertex over the sides with much time, or (`with_all`) over all sides that run."""
        used = self._sides.take(self._busy(found) > (_EXACT if with_all else _RUNS))
        held = used.take(search.meets_itself(used))
        search.run(used, held, -_BELOW, vertex=True)
        if with_all and search.gap > _CLOSE:
            search.run(used, held, -_BELOW, vertex=True, exact=True)

    def _with_all(self, search: "_Search") -> ColocatedSolution:
        """Solves with all sides in one program, which is exact once no job holds more than half of its
        segment's line.
        """
        greedy = no_sides()
        while search.goes_on:
            found, judged = search.run(self._sides, greedy, 0.0, vertex=True)
            if judged is None:
                return search.answer(search.without(found.status))
            self._promising = self._worth_keeping(judged.merit, found.beside, _PROMISING)
            if search.gap <= _EXACT:
                break
            greedy = join_sides([greedy, self._sides.take(search.greedy(self._sides, found.beside))])
        return search.answer(Status.OPTIMAL if search.gap <= _CLOSE else Status.WORK_LIMIT)

    def _busy(self, found: MasterSolution) -> FloatArray:
        """Returns the shares of sides, as parts of the total time of their class (q,)."""
        owner, member = self._problem.owner, side_details(self._sides, self._blocks).member
        classes = self._problem.classes
        time = sum_by(owner, found.x, classes) + sum_by(member, found.beside, classes)
        busy: FloatArray = found.beside / np.maximum(time, _EXACT)[member]
        return busy

    def _worth_keeping(
        self, merit: FloatArray, beside: FloatArray, kept: int = _KEPT, stays: float = _STAYS
    ) -> PairSides:
        most = kept * self._problem.classes
        if len(self._sides) <= most:
            return self._sides
        best = np.partition(merit, len(merit) - most)[len(merit) - most]
        return self._sides.take((merit >= max(best, -_NEAR * float(np.abs(merit).mean()))) | (beside > stays))


class _Search:
    """State of the search for one objective: the best shares, the best bound, and the rounds done."""

    def __init__(self, problem: ClassProblem, blocks: tuple[ColocationBlock, ...], objective: MaxMin | MaxSum) -> None:
        self._problem, self._blocks, self._objective = problem, blocks, objective
        k = problem.classes
        self._master = MasterProgram(problem, objective)
        self.rounds = self.stalled = self.work = 0
        self._path = "pairs"
        self._value, self._bound = -np.inf, np.inf
        self._duals = PairDuals(np.zeros(problem.rows), np.zeros(k), np.zeros(k))
        self._x, self._sides, self._beside = np.zeros(problem.columns), no_sides(), np.zeros(0)
        self._likely = self._aim = np.nan
        self._moved = np.inf  # How far the last program moved the expected level.
        if isinstance(objective, MaxMin):
            self._likely = dual_bound(problem, objective, np.ones(problem.rows))
            self._bound = objective.targets.highest

    @property
    def goes_on(self) -> bool:
        """Whether rounds are left and recent ones improved the value or the bound."""
        return self.rounds < _ROUNDS and self.stalled < _STALLED

    @property
    def gap(self) -> float:
        """Distance of the best value from the best bound, as a part of the bound."""
        return self._short_of_bound(self._value)

    @property
    def expected_gap(self) -> float:
        """The expected gap, from the exact optimum of the last program by its dual values."""
        return self._short_of_bound(self._likely)

    @property
    def _tolerance(self) -> float:
        """Tolerance of the next program: low accuracy suffices while the dual values still change much."""
        return _ROUGHLY if self.expected_gap > _ROUGH_ROOM else _WELL

    @property
    def aimed_well(self) -> bool:
        """Whether the last program was aimed at about the level that it found."""
        return isinstance(self._objective, MaxSum) or self._aim <= self._likely * (1 + 2 * _CLOSE)

    def _short_of_bound(self, value: float) -> float:
        if not np.isfinite(value) or not np.isfinite(self._bound):
            return np.inf
        return (self._bound - value) / max(abs(self._bound), 1e-12)

    def expect(self, guess: ColocatedSolution) -> None:
        """Makes the search aim first at the level that a similar problem reaches."""
        self.work += guess.work
        if isinstance(self._objective, MaxMin) and np.isfinite(guess.objective):
            self._likely = min(guess.objective, self._bound)

    def _ask(self, beside: float) -> MasterInput:
        """Returns the objective of the next program. Its aim is off the expected level by the part `beside` of it."""
        objective = self._objective
        if isinstance(objective, MaxSum):
            return MasterInput(0.0, np.zeros(self._problem.classes), objective.floor, self._tolerance)
        floor = objective.targets.at(0.0)[0]
        aim = self._likely * (1 + beside)
        if beside > 0 and self.rounds > 0:
            above = min(_TOWARDS * (self._bound - self._likely), self._moved, _FAR * self._likely)
            aim = max(aim, self._likely + above)
        self._aim = min(aim, objective.targets.highest)
        target, slope = objective.targets.at(self._aim)
        if beside < 0:  # classes that do not rise just below the aim are full, and stay so
            floor = np.where(slope > 0, floor, target)
        return MasterInput(1.0, target - floor, floor, self._tolerance)

    def run(
        self, sides: PairSides, greedy: PairSides, beside: float, *, vertex: bool, exact: bool = False
    ) -> tuple[MasterSolution, PricedPairs | None]:
        """Solves one program, then updates value and bound. Returns its solution, and its pricing of all pairs (None
        if it was not solved).

        Args:
            sides: in the program.
            greedy: those of them that are limited to half of their segment's line.
            beside: part of the level by which the aim lies above the expected level; negative: below.
            vertex: end in a vertex, and prefer its few pairs to shares of about the same value.
            exact: solve with HiGHS, whatever the size of the program.
        """
        spelled = side_details(sides, self._blocks)
        found = self._master.solve(spelled, _positions(greedy, sides), self._ask(beside), vertex=vertex, exact=exact)
        self.rounds, self.work = self.rounds + 1, self.work + found.work
        if found.status is not Status.OPTIMAL:
            return found, None
        self._path = f"pairs/{found.solver}"
        before = (self._value, self._bound)
        self._keep(sides, spelled, found, _CLOSE / 10 if vertex else 0.0)
        gain = column_gain(self._problem, self._objective, found.duals)
        judged = price_pairs(self._problem, self._blocks, gain, found.duals, sides, _PARTNERS)
        closed = PairDuals(found.duals.prices, found.duals.multiplier, judged.time)
        steps = _FEW_LOWERINGS if self._tolerance == _ROUGHLY else _LOWERINGS
        duals = tighten_duals(self._problem, self._blocks, gain, closed, steps)
        bound = pair_bound(self._problem, self._objective, duals)
        if bound < self._bound or self.rounds == 1:
            self._bound, self._duals = min(bound, self._bound), duals
        if beside >= 0:
            likely = min(pair_bound(self._problem, self._objective, found.duals), self._bound)
            self._moved = abs(likely - self._likely) if self.rounds > 1 else np.inf
            self._likely = likely
        better = self._value > before[0] + _EXACT * abs(before[0]) or self._bound < before[1] * (1 - _EXACT)
        self.stalled = 0 if better else self.stalled + 1
        return found, judged

    def _keep(self, sides: PairSides, spelled: SideDetails, found: MasterSolution, worse: float) -> None:
        """Stores the shares if they are better than those stored, or worse by at most the part `worse`."""
        x, beside = _feasible(self._problem, spelled, found.x, found.beside)
        value = _value(self._problem, self._objective, spelled, x, beside)
        if value > self._value - worse * abs(self._value) or not np.isfinite(self._value):
            shown = beside > 0
            self._value, self._x, self._sides, self._beside = value, x, sides.take(shown), beside[shown]

    def greedy(self, sides: PairSides, beside: FloatArray) -> BoolArray:
        """Returns the sides of single jobs in segments that meet themselves, where one job has a large part of that
        time.
        """
        spelled, alone = side_details(sides, self._blocks), self.meets_itself(sides)
        total = sum_by(spelled.meeting, self._problem.size[spelled.member] * beside, spelled.meetings)
        broken = spelled.meeting[alone & (beside > _MUCH * total[spelled.meeting] + _HALF)]
        return alone & np.isin(spelled.meeting, broken)

    def meets_itself(self, sides: PairSides) -> BoolArray:
        """Returns the sides of a single job that is paired with its own segment."""
        spelled = side_details(sides, self._blocks)
        alone: BoolArray = (spelled.sign == 0) & (self._problem.size[spelled.member] == 1)
        return alone

    def without(self, status: Status) -> Status:
        """Returns the status of a search that a failed program ends: WORK_LIMIT if there is a solution, else the
        program's.
        """
        return Status.WORK_LIMIT if np.isfinite(self._value) else status

    def answer(self, status: Status) -> ColocatedSolution:
        """Returns the best solution found. Dual values of a level are scaled to units of the level."""
        duals = self._duals
        if isinstance(self._objective, MaxMin):
            rise = self._objective.targets.at(self._bound)[1]
            unit = float(self._problem.size @ (duals.multiplier * rise)) or 1.0
            duals = PairDuals(duals.prices / unit, duals.multiplier / unit, duals.time / unit)
        return ColocatedSolution(
            status, self._x, self._sides, self._beside, duals, self._value, self._bound, self._path, self.work
        )


def _positions(some: PairSides, sides: PairSides) -> IntArray:
    """Returns the indices of some sides among all sides; both are sorted."""
    numbers = _numbers([some, sides])
    return np.searchsorted(numbers[1], numbers[0])


def _among(some: PairSides, others: PairSides) -> BoolArray:
    """Returns which of some sides are among the others."""
    numbers = _numbers([some, others])
    return np.isin(numbers[0], numbers[1])


def _numbers(parts: list[PairSides]) -> list[IntArray]:
    """Returns a number for each side, equal for equal sides, in their order."""
    places = 1 + max(int(part.place.max(initial=0)) for part in parts)
    besides = 1 + max(int(part.beside.max(initial=0)) for part in parts)
    return [(part.block * places + part.place) * besides + part.beside for part in parts]


def _feasible(
    problem: ClassProblem, sides: SideDetails, x: FloatArray, beside: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Returns feasible shares: clips them, and scales them down on overloaded rows and where partners are missing."""
    owner, members = problem.owner, problem.size[sides.member]
    x, beside = np.maximum(x, 0.0), np.maximum(beside, 0.0)
    time = sum_by(owner, x, problem.classes) + sum_by(sides.member, beside, problem.classes)
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
    used = problem.used(x) + sum_by(sides.pool, sides.count / 2 * members * beside, problem.rows)
    full = np.maximum(used / np.where(problem.capacity > 0, problem.capacity, 1.0), 1.0)
    worst = np.ones(problem.columns)
    np.maximum.at(worst, np.repeat(np.arange(problem.columns), np.diff(problem.use_first)), full[problem.use_row])
    return x / worst, beside / full[sides.pool]


def _value(
    problem: ClassProblem, objective: MaxMin | MaxSum, sides: SideDetails, x: FloatArray, beside: FloatArray
) -> float:
    """Returns the objective's value at feasible shares."""
    if isinstance(objective, MaxSum):
        alone = float((problem.size[problem.owner] * objective.value) @ x)
        return alone + float((problem.size[sides.member] * sides.keeps * objective.value[sides.column]) @ beside)
    utility = sum_by(problem.owner, objective.worth * x, problem.classes)
    gained = sum_by(sides.member, sides.keeps * objective.worth[sides.column] * beside, problem.classes)
    return level_reached(objective.targets, utility + gained)
