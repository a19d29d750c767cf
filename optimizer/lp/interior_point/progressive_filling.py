"""Progressive filling: levels rise until every class has what it can get, the lexicographic max-min.

One level is the largest z at which every class has its target. Its prices tell what is scarce there, and from then on
no class that still rises uses that: in every optimum a class that reaches its target for nothing uses no priced row,
and all later shares are optima of this level too. So a class that cannot have more than its target without a scarce row
has settled; for the others that part of the problem is gone, and the next level goes on from there. Every level
exhausts a row or fills everybody: there are at most (rows + 1) in a tier.

Tiers follow each other: a rule's first targets rise until nobody gains by them any more, then its next. Classes that
have settled and have only one way to keep what they have leave the program and take their part of the rows along; the
others stay with the columns that cost them least, because they may have to make room.

Between two solves a few jobs come and go: the prices of the last one prove a level close to the next (`FillingStart`).
Loading compiled code takes as long as some dozens of small solves, so the work that a series has had so far decides
whether that pays. Neither changes an answer by more than rounding.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from optimizer.classes.class_problem import (
    FULL,
    ClassProblem,
    ClassSolution,
    MaxMin,
    TargetFunction,
    TierRule,
    level_reached,
    make_feasible,
)
from optimizer.classes.segments import sum_by
from optimizer.decision import Memory, Status
from optimizer.lp.dual_newton.best_responses import prices_per_level
from optimizer.lp.engine_choice import COMPILED_FILLING_COLUMNS, filling_is_compiled
from optimizer.lp.interior_point.level_proofs import LevelProof, ResidualProblem, RestrictedTargets, SubProblem
from optimizer.lp.interior_point.max_level import find_max_level, shares_meet_targets
from optimizer.lp.staged_solution import SolveInput, StagedSolution, stage_over_jobs
from optimizer.problem import BoolArray, FloatArray, Pools


@dataclass(frozen=True, slots=True, eq=False)
class FillingStart:
    """Where the last solve of a series ended; by default there was none."""

    #: Columns of all solves so far.
    columns: int = 0
    #: Of the rows, at the first level (r,); of any other length: unknown.
    prices: FloatArray | None = None


def filling_start(memory: Memory, pools: Pools) -> FillingStart:
    """What this memory says; nothing, where there is none or it is another policy's."""
    columns = memory.get("columns") if isinstance(memory, dict) else None
    if type(columns) is not int:
        return FillingStart()
    prices = np.array([memory.get("prices", {}).get(pool_id, 0.0) for pool_id in pools.pool_id], dtype=np.float64)
    return FillingStart(columns, prices if prices.any() else None)


def filling_memory(memory: Memory, columns: int, prices: FloatArray, pools: Pools) -> Memory:
    """The memory that a solve leaves: columns solved so far, and the prices of its first level (warm start)."""
    so_far = min(filling_start(memory, pools).columns + columns, COMPILED_FILLING_COLUMNS)
    priced = {pool_id: price for pool_id, price in zip(pools.pool_id, prices.tolist(), strict=False) if price > 0}
    return {"columns": so_far, "prices": priced}


#: Prices that make up less than this part of all that is paid at a level are rounding.
_SCARCE = 1e-8
#: Earlier prices are added ten times as often until the targets cost all there is, to this part.
_POWERS = 10
#: What used-up rows cost those who would like them, against all that a level is worth.
_FENCE = 10.0
_PAID = 1e-9
#: A target above the last by no more than this part of it, and of all that is to be had, is no rise.
_RISE = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class FilledLevel:
    """One level over classes."""

    tier: int
    #: Classes that the level raises, what all had before, and what each can have at most of what is left (k,).
    active: BoolArray
    kept: FloatArray
    cap: FloatArray
    settled: BoolArray
    targets: TargetFunction
    #: Price of each row in units of the level, exactly 0 where there is no scarcity (r,).
    prices: FloatArray
    #: The level found, and what the prices prove to be out of reach.
    z: float
    bound: float


@dataclass(frozen=True, slots=True, eq=False)
class FillingResult:
    """Shares of one member in every class column (C,), utilities (k,), and the levels that led there."""

    x: FloatArray
    utility: FloatArray
    levels: tuple[FilledLevel, ...]
    status: Status
    #: "interior", or "interior, highs" where a level needed another method.
    path: str
    #: Iterations of all levels together.
    work: int


def fill_levels(
    class_problem: ClassProblem, worth: FloatArray, rule: TierRule, start: FillingStart | None = None
) -> FillingResult:
    """Raise the rule's targets, tier by tier, level by level.

    Args:
        problem: every class has at least one column.
        worth: utility of each class column, run all the time by one member; > 0 (C,).
        rule: what is to be had.
        start: where the last filling ended, if this is one of a series.
    """
    run = _FillingRun(class_problem, worth, start if start is not None else FillingStart())
    for tier in range(rule.tiers):
        for _ in range(class_problem.rows + 1):
            if not run.raised(tier, rule):
                break
    return run.ended()


class _FillingRun:
    """The state of one filling."""

    def __init__(self, class_problem: ClassProblem, worth: FloatArray, start: FillingStart) -> None:
        self._problem, self._worth, self._owner = class_problem, worth, class_problem.owner()
        self._start, self._compiled = start, filling_is_compiled(start.columns + class_problem.columns)
        self._residual = ResidualProblem(class_problem, worth, compiled=self._compiled)
        self._kept = np.zeros(class_problem.classes)
        self._cap = np.maximum.reduceat(worth, class_problem.first[:-1]) if class_problem.classes else np.zeros(0)
        self._settled = np.zeros(class_problem.classes, dtype=bool)
        self._scarce_rows = np.zeros(class_problem.rows, dtype=bool)
        self._prices = np.zeros(class_problem.rows)
        self._levels: list[FilledLevel] = []
        self._status, self._work = Status.OPTIMAL, 0
        self._paths: dict[str, bool] = {}

    def raised(self, tier: int, rule: TierRule) -> bool:
        """Find one level. Returns False when no class rises in this tier any more, or no method finds how far."""
        targets = rule.targets(tier, self._kept, self._cap, self._settled)
        top = targets.at(targets.highest)[0]
        active = ~self._settled & (top > self._kept * (1 + _RISE) + _RISE * self._cap)
        if not active.any() or self._status is not Status.OPTIMAL:
            return False
        part = self._residual.part(top > 0)
        saturation = self._saturation_level(part, targets)
        z, prices = self._solve(part, RestrictedTargets(targets, part.classes, saturation))
        if self._status is not Status.OPTIMAL:
            return False
        if z >= saturation and saturation < targets.highest:  # it is the turn of somebody who finds everything used up
            prices = np.zeros(self._problem.rows)
        paid = prices * self._problem.capacity  # what is next to nothing of what was not scarce before is rounding
        scarce = self._scarce_rows | (paid > _SCARCE * float(paid[~self._scarce_rows].sum()))
        fresh = np.where(scarce, prices, 0.0)
        prices, bound = self._proved(fresh, targets, z)
        level = FilledLevel(tier, active, self._kept, self._cap, self._settled, targets, prices, z, bound)
        self._levels.append(level)
        self._settle(level, fresh)
        return z < targets.highest

    def _saturation_level(self, part: SubProblem, targets: TargetFunction) -> float:
        """The level above which some class would have to rise by what others have used up."""
        limit = self._kept.copy()
        best = np.maximum.reduceat(part.worth, part.problem.first[:-1]) if len(part.classes) else np.zeros(0)
        limit[part.classes] = np.maximum(best, limit[part.classes])
        limit *= 1 + _RISE
        low, high = 0.0, targets.highest
        if np.all(targets.at(high)[0] <= limit):
            return high
        while high - low > _RISE * max(high, _RISE * targets.highest):  # ends where the turn is at 0, too
            middle = (low + high) / 2
            low, high = (middle, high) if np.all(targets.at(middle)[0] <= limit) else (low, middle)
        return low

    def ended(self) -> FillingResult:
        """The result: shares feasible to the last bit, no class above its target."""
        x = make_feasible(self._problem, self._residual.x)
        utility = sum_by(self._owner, self._worth * x, self._problem.classes)
        above = np.divide(self._kept, utility, out=np.ones(len(utility)), where=utility > self._kept)
        x = x * above[self._owner]
        path = ", ".join(self._paths)
        return FillingResult(x, utility * above, tuple(self._levels), self._status, path, self._work)

    def _solve(self, part: SubProblem, targets: RestrictedTargets) -> tuple[float, FloatArray]:
        """The level of the residual problem, and prices of all rows; the shares are kept by the residual."""
        if not len(part.classes):
            return targets.highest, np.zeros(self._problem.rows)
        known, near = self._start.prices, None
        if not self._levels and known is not None and len(known) == self._problem.rows:
            near = known[part.rows]
        found = find_max_level(part.problem, part.worth, targets, near, compiled=self._compiled)
        self._work += found.work
        self._paths[found.path] = True
        if found.status is Status.OPTIMAL and shares_meet_targets(
            part.problem, part.worth, found.x, targets.at(found.z)[0]
        ):
            self._residual.take(part, found.x)
        else:
            self._status = Status.WORK_LIMIT if self._levels else Status.FAILED
        return found.z, part.all_rows(found.prices, self._problem.rows)

    def _proved(self, prices: FloatArray, targets: TargetFunction, z: float) -> tuple[FloatArray, float]:
        """Prices for the whole problem, and what they prove.

        Those who settled keep off the rows that are left only if what was scarce before stays dear enough: earlier
        prices are added until they do.
        """
        if not prices.any() and z >= targets.highest:
            return prices, targets.highest
        kept = targets.at(z)[0]
        worth = float(prices @ self._problem.capacity) or 1.0
        best, proof = prices, LevelProof.of(self._problem, self._worth, prices, compiled=self._compiled)
        excess = proof.excess(kept)
        for base, earlier in self._bases(prices, worth):
            for power in range(_POWERS if earlier.any() else 0):
                if best.any() and excess >= -_PAID * worth:
                    return best, proof.bound(targets, z)
                more = base + earlier * (worth * 10.0**power)
                other = LevelProof.of(self._problem, self._worth, more, compiled=self._compiled)
                if other.excess(kept) > excess or not best.any():
                    best, proof, excess = more, other, other.excess(kept)
        return best, proof.bound(targets, z)

    def _bases(self, prices: FloatArray, worth: float) -> Iterator[tuple[FloatArray, FloatArray]]:
        """Prices to start from, and earlier ones to add to them (both r).

        Rows that fixed classes use up take no part in a level and have no price in it, though others might want them
        at any price. What those keep off with costs them nothing more: they have no other way. Nor need a level charge
        for rows that are gone where nobody who settled has to make room on them: there its price is any number.
        """
        capacity = self._problem.capacity
        empty = self._residual.empty & (capacity > 0)
        fence = np.divide(1.0, capacity, out=np.zeros(len(capacity)), where=empty) / max(int(empty.sum()), 1)
        hidden = np.where(empty & ~self._scarce_rows, fence, 0.0)
        for base in (prices, np.where(self._scarce_rows, 0.0, prices)):
            yield base, hidden + np.where(hidden > 0, 0.0, self._prices)
            if empty.any():
                yield base + fence * (_FENCE * worth), np.where(hidden > 0, 0.0, self._prices)

    def _settle(self, level: FilledLevel, fresh: FloatArray) -> None:
        """Mark the classes that cannot rise further as settled, and the scarce rows as closed to the others."""
        target = level.targets.at(level.z)[0]
        self._kept = np.where(self._settled, self._kept, np.maximum(target, self._kept))
        if level.prices.any():
            latest = level.prices / float(level.prices @ self._problem.capacity)
            forgotten = self._scarce_rows & (level.prices == 0)
            self._prices = latest + (10 * self._prices if forgotten.any() else 0.0)
        self._scarce_rows = self._scarce_rows | (level.prices > 0)
        free = self._residual.free_of(self._scarce_rows)
        live = np.maximum.reduceat(np.where(free, self._worth, 0.0), self._problem.first[:-1])
        settling = level.active & (self._kept >= np.minimum(live, self._cap) * (1 - FULL))
        cap = np.where(settling | self._settled, self._kept, np.maximum(np.minimum(self._cap, live), self._kept))
        self._settled, self._cap = self._settled | settling, cap
        self._residual.settle(settling, self._kept, fresh, free, self._settled)


def fill_in_stages(request: SolveInput, rule: TierRule, memory: Memory) -> tuple[StagedSolution, Memory]:
    """Raise the rule's targets until no class can rise. Returns no stage when no method finds the first level.

    `memory`: what the policy's last solve left, and what this one leaves (`filling_memory`).
    """
    classes = request.classes
    worth = classes.per_column(request.utility.worth)
    filling = fill_levels(classes.problem, worth, rule, filling_start(memory, request.problem.pools))
    stages = []
    for level in filling.levels:
        objective, raised = MaxMin(worth, level.targets), np.where(level.active, filling.utility, np.inf)
        reached = min(level_reached(level.targets, raised, level.z), level.bound)
        prices = prices_per_level(classes.problem, objective, level.prices, level.bound)
        found = ClassSolution(filling.status, filling.x, prices, reached, level.bound, filling.path)
        stages.append(stage_over_jobs(classes, found, objective, level.active))
    problem, prices = request.problem, filling.levels[0].prices if filling.levels else np.zeros(0)
    memory = filling_memory(memory, len(problem.columns), prices, problem.pools)
    return StagedSolution(request, filling.status, filling.path, classes.to_columns(filling.x), tuple(stages)), memory
