"""Max-min over classes of jobs, in levels, as linear programs.

Symbols (k classes, C class columns, p pools; everything per member of a class):

    x[C] shares    u = U x utilities    w[k] weights    M[k] utility of the best column alone    f[k] floors

A level z gives every active class the target t(z) = min(w z, M): its part, or all it can use. The largest feasible z is
found by raising all targets together (`theta`), with the dual as the guide:

    theta(t) = max theta    s.t.  u >= theta t (active),  u >= f (others),  time and pool rows
    any duals y, l >= 0 prove   sum y t(z) + sum y f <= l.capacity + sum mu(y, l)   for every feasible z (the cut)

Starting from the cut of guessed prices, z falls to the bound of each program's cut until its shares reach z: one
program where nobody is full, two to six elsewhere. What binds at that level keeps its utility from then on:
full classes, and classes whose row has a positive dual, whose utility is the same in every optimum (complementary
slackness). Pools with a positive price are used up by those in every optimum, so they are gone for the rest, whose M
falls accordingly. Each level therefore uses up a pool or ends the story: there are at most as many levels as pools,
plus one.

Classes of weight 0 are entitled to no level: they share what the levels leave, by the largest sum of utilities
subject to all floors. So does everybody still active when `max_levels` is used up.
"""

from dataclasses import dataclass

import cvxpy as cp
import numpy as np

from optimizer.decision import StageKind, Status
from optimizer.owners import best_by, sum_by
from optimizer.problem import BoolArray, FloatArray
from optimizer.program import ClassProgram
from optimizer.quoting import scarce
from optimizer.solve import Outcome, solve_program
from optimizer.utility import FULL, level_of

#: Floors are held with this slack, so that rounding cannot make the next program infeasible.
_FLOOR_SLACK = 1e-10
#: A level reached within this part is reached.
_REACHED = 1e-8
#: A dual below this part of the whole is zero.
_BINDS = 1e-9
#: Sums of dual values are equal within this part: whether all caps are covered must not hang on the last bit.
_ROUNDING = 1e-10
#: Programs per level; one to six are used.
_MAX_PASSES = 40


@dataclass(frozen=True, slots=True, eq=False)
class ClassStage:
    """One stage over classes. The fields mean what they mean in `decision.Stage`; multipliers are per member."""

    kind: StageKind
    active: BoolArray
    floor: FloatArray
    cap: FloatArray
    prices: FloatArray
    multiplier: FloatArray
    objective: float
    bound: float


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """Shares per class column (C,), the stages that led to them, and how the last program ended."""

    x: FloatArray
    stages: tuple[ClassStage, ...]
    outcome: Outcome


@dataclass(frozen=True, slots=True, eq=False)
class _Duals:
    """Multipliers of the utility rows, per member (k,), and of the pools, per accelerator (p,). Never negative."""

    multiplier: FloatArray
    prices: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class _Pass:
    theta: float
    duals: _Duals
    outcome: Outcome


class LevelProgram:
    """The programs of one decision: compiled once, solved with different targets and floors."""

    def __init__(self, program: ClassProgram, worth: FloatArray, weight: FloatArray) -> None:
        self._program, self._worth, self._weight = program, worth, weight
        self._best = self._best_column(np.zeros(len(program.capacity), dtype=bool))
        self._members = float(program.size.sum())
        self._x = cp.Variable(len(worth), nonneg=True)
        self._theta = cp.Variable(nonneg=True)
        self._target = cp.Parameter(len(weight), nonneg=True)
        self._floor = cp.Parameter(len(weight), nonneg=True)
        self._by_level = cp.Parameter(nonneg=True)  # 1: raise the targets; 0: raise the sum
        relative = program.utility(worth / self._best[program.owner]) @ self._x  # rows of one scale: parts of the best
        self._rows = [
            relative >= self._target * self._theta + self._floor,
            program.time @ self._x <= 1,
            program.load @ self._x <= 1,
        ]
        mean = (program.size * self._best / self._members) @ relative
        objective = self._by_level * self._theta + (1 - self._by_level) * mean
        self._cvxpy = cp.Problem(cp.Maximize(objective), self._rows)

    def solve(self, max_levels: int) -> Solution:
        """Raise levels, then hand out the leftover. Ends early, with the stages so far, if the solvers give up."""
        active, kept, cap = self._weight > 0, np.zeros(len(self._weight)), self._best
        gone = np.zeros(len(self._program.capacity), dtype=bool)
        stages: list[ClassStage] = []
        x = np.zeros(len(self._worth))
        outcome = Outcome(Status.OPTIMAL, "none")
        guess = self._typical_prices(active)
        while active.any() and len(stages) < max_levels:
            stage, outcome = self._level(active, np.where(active, 0.0, kept * (1 - _FLOOR_SLACK)), cap, guess)
            if stage is None:
                return Solution(x, tuple(stages), outcome)
            x = self._shares()
            stages.append(stage)
            target = np.minimum(self._weight * stage.objective, cap)
            kept = np.where(active, np.minimum(target, self._utility()), kept)
            settled = self._settled(stage, target)
            new = scarce(stage.prices, self._program.capacity) & ~gone
            if new.any():
                guess = np.where(new, stage.prices / stage.multiplier[active & settled].mean(), guess)
            gone, active = gone | new, active & ~settled
            cap = np.where(active, np.maximum(self._best_column(gone), target), cap)
        if not active.any() and self._weight.all():
            return Solution(x, tuple(stages), outcome)
        leftover, outcome = self._leftover(kept * (1 - _FLOOR_SLACK))
        if leftover is None:
            return Solution(x, tuple(stages), outcome)
        return Solution(self._shares(), (*stages, leftover), outcome)

    def _level(
        self, active: BoolArray, floor: FloatArray, cap: FloatArray, guess: FloatArray
    ) -> tuple[ClassStage | None, Outcome]:
        """The largest level of the active classes while the others keep their floors."""
        weight = np.where(active, self._weight, 0.0)
        highest = float((cap[active] / weight[active]).max())
        proof = self._cheapest(guess)
        z = self._cut(proof, active, floor, cap)
        if z >= highest:  # nothing is known to be scarce; zero duals say so
            z, proof = highest, self._cheapest(np.zeros(len(guess)))
        for _ in range(_MAX_PASSES):
            found = self._run(np.minimum(weight * z, cap), floor, by_level=1.0)
            if not found.outcome.solved:
                return None, found.outcome
            cut = self._cut(found.duals, active, floor, cap)
            if cut < highest and cut <= z * (1 + _REACHED):  # the solver's duals rather than the guess
                proof = found.duals
            stalled = cut >= z * (1 - 1e-14)
            z = min(z, cut)
            level = level_of(self._utility(), weight, cap)
            if level >= z * (1 - _REACHED) or stalled:
                break
        bound = min(self._cut(proof, active, floor, cap), highest)
        stage = ClassStage(StageKind.LEVEL, active, floor, cap, proof.prices, proof.multiplier, level, bound)
        return stage, found.outcome

    def _typical_prices(self, active: BoolArray) -> FloatArray:
        """A first guess: an accelerator of a pool is worth what it gives the mean member that can use it (p,)."""
        program = self._program
        members = program.size[program.owner] * active[program.owner] * (self._worth > 0)
        per_accelerator = self._worth / program.cost(np.ones(len(program.capacity)))
        there = program.use.astype(bool).astype(np.float64)
        users = there @ members
        total: FloatArray = there @ (members * per_accelerator)
        return np.asarray(np.divide(total, users, out=np.zeros(len(users)), where=users > 0))

    def _cheapest(self, prices: FloatArray) -> _Duals:
        """Any prices prove something, with each class paying for its utility where that is cheapest."""
        program, per_unit = self._program, np.full(len(self._weight), np.inf)
        np.minimum.at(per_unit, program.owner, program.cost(prices) / self._worth)
        return _Duals(per_unit, prices)

    def _leftover(self, floor: FloatArray) -> tuple[ClassStage | None, Outcome]:
        """Among the shares that keep all floors, the largest sum of utilities."""
        found = self._run(np.zeros(len(floor)), floor, by_level=0.0)
        if not found.outcome.solved:
            return None, found.outcome
        size, duals = self._program.size, found.duals
        objective = float(size @ self._utility())
        bound = self._income(duals, 1.0) - float((size * duals.multiplier) @ floor)
        everybody = np.ones(len(floor), dtype=bool)
        stage = ClassStage(
            StageKind.SUM, everybody, floor, self._best, duals.prices, duals.multiplier, objective, bound
        )
        return stage, found.outcome

    def _run(self, target: FloatArray, floor: FloatArray, *, by_level: float) -> _Pass:
        self._target.value, self._floor.value = target / self._best, floor / self._best
        self._by_level.value = by_level
        outcome = solve_program(self._cvxpy, self._program.rows)
        if not outcome.solved:
            return _Pass(0.0, _Duals(np.zeros(0), np.zeros(0)), outcome)
        unit = 1.0 if by_level else self._members  # the sum was solved as a mean
        multiplier = np.maximum(self._rows[0].dual_value, 0.0) * unit / (self._program.size * self._best)
        capacity = self._program.capacity
        prices = np.maximum(self._rows[2].dual_value, 0.0) * unit / np.where(capacity > 0, capacity, np.inf)
        return _Pass(float(np.asarray(self._theta.value)), _Duals(multiplier, prices), outcome)

    def _shares(self) -> FloatArray:
        return np.asarray(self._x.value, dtype=np.float64)

    def _utility(self) -> FloatArray:
        return sum_by(self._program.owner, self._worth * self._shares(), len(self._weight))

    def _best_column(self, gone: BoolArray) -> FloatArray:
        """Utility of each class's best column among those that use no pool that is gone; 0 if there is none (k,)."""
        worth = np.where(self._program.cost(gone.astype(np.float64)) > 0, 0.0, self._worth)
        return best_by(self._program.owner, worth, len(self._weight))

    def _settled(self, stage: ClassStage, target: FloatArray) -> BoolArray:
        """Active classes that cannot rise above this level: full ones, and those that its prices bind."""
        part = self._program.size * stage.multiplier * target
        settled: BoolArray = (target >= stage.cap * (1 - FULL)) | (part > _BINDS * max(float(part.sum()), 1e-300))
        return settled

    def _cut(self, duals: _Duals, active: BoolArray, floor: FloatArray, cap: FloatArray) -> float:
        """The level that these duals prove to be out of reach: the z where the targets cost all there is."""
        cost = self._program.size * duals.multiplier
        income = self._income(duals, 0.0) - float(cost @ floor)
        return level_for(income, (cost * self._weight)[active], (cost * cap)[active])

    def _income(self, duals: _Duals, direct: float) -> float:
        """All that can be earned: pools at their prices, and each member's time at its best surplus."""
        program = self._program
        gain = (duals.multiplier + direct)[program.owner] * self._worth - program.cost(duals.prices)
        surplus = best_by(program.owner, gain, len(program.size))
        return float(program.capacity @ duals.prices + program.size @ surplus)


def level_for(income: float, slope: FloatArray, cap: FloatArray) -> float:
    """Largest z with sum min(slope z, cap) <= income; inf if income covers every cap, 0 if it is negative."""
    paying = slope > 0
    slope, cap = slope[paying], cap[paying]
    income *= 1 + _ROUNDING
    if cap.sum() <= income:
        return np.inf
    order = np.argsort(cap / slope)
    slope, cap = slope[order], cap[order]
    full = np.concatenate(([0.0], np.cumsum(cap)[:-1]))  # paid to those already full when this one is next
    rest = np.cumsum(slope[::-1])[::-1]
    z = (income - full) / rest
    index = int(np.argmax(full + rest * (cap / slope) >= income))
    return max(float(z[index]), 0.0)
