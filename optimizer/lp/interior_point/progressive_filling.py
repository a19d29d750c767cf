"""Progressive filling (water filling): raise max-min levels one after the other, to the lexicographic max-min.

A level is the largest z at which every class reaches its target. The prices of its program mark the scarce rows. A
class that still rises uses none of them from then on: in every optimum of the level, a class that reaches its target at
no cost uses no priced row, and all later shares are optima of this level, too. A class that needs a scarce row to
exceed its target has *settled*. The next level is found on the rows that remain. Each level exhausts a row or fills all
classes, so a tier has at most (rows + 1) levels.

Tiers follow each other: when no class gains by a rule's first targets any more, its next targets rise. A settled class
with a unique cheapest way to its utility leaves the program, and its use is subtracted from the rows. The other settled
classes stay, restricted to their cheapest columns, because they may have to move to make room.

Few jobs change between two solves, so the prices of the last solve prove a level close to the next one (warm start,
`FillingStart`). Loading compiled code takes as long as dozens of small solves; it is loaded once the solves of a series
have had enough columns in total. Neither changes an answer by more than rounding.
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
    """The end of the last solve of a series, for a warm start; the default is a first solve."""

    #: Columns of all solves so far.
    columns: int = 0
    #: Prices of the rows at the first level (r,); an array of another length is ignored.
    prices: FloatArray | None = None


def filling_start(memory: Memory, pools: Pools) -> FillingStart:
    """Read a policy's memory; without one, or with another policy's, the series starts afresh."""
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
#: Earlier prices are added with a factor that grows tenfold, this many times, until the targets cost all that the rows
#: are worth, to the part `_PAID`.
_POWERS = 10
_PAID = 1e-9
#: Price of exhausted rows in a proof, relative to the worth of all rows at the level.
_FENCE = 10.0
#: A target that exceeds the last one by no more than this part of it, and of the class's cap, counts as equal.
_RISE = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class FilledLevel:
    """One level over classes."""

    tier: int
    #: Classes that the level raises; utility of each class before; upper bound of it on the remaining rows (k,).
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
        class_problem: every class has at least one column.
        worth: utility of each class column, run all the time by one member; > 0 (C,).
        rule: the targets of each tier.
        start: the end of the last filling of the series, if there was one.
    """
    run = _FillingRun(class_problem, worth, start if start is not None else FillingStart())
    for tier in range(rule.tiers):
        for _ in range(class_problem.rows + 1):
            if not run.raised(tier, rule):
                break
    return run.ended()


class _FillingRun:
    """The state of one filling: utilities kept, settled classes, scarce rows, and the levels so far."""

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
        if z >= saturation and saturation < targets.highest:  # a class now has to rise whose rows are all exhausted
            prices = np.zeros(self._problem.rows)
        paid = prices * self._problem.capacity  # a tiny part of what the rows not yet scarce are worth is rounding
        scarce = self._scarce_rows | (paid > _SCARCE * float(paid[~self._scarce_rows].sum()))
        fresh = np.where(scarce, prices, 0.0)
        prices, bound = self._proved(fresh, targets, z)
        level = FilledLevel(tier, active, self._kept, self._cap, self._settled, targets, prices, z, bound)
        self._levels.append(level)
        self._settle(level, fresh)
        return z < targets.highest

    def _saturation_level(self, part: SubProblem, targets: TargetFunction) -> float:
        """The level above which some class could rise only on exhausted rows."""
        limit = self._kept.copy()
        best = np.maximum.reduceat(part.worth, part.problem.first[:-1]) if len(part.classes) else np.zeros(0)
        limit[part.classes] = np.maximum(best, limit[part.classes])
        limit *= 1 + _RISE
        low, high = 0.0, targets.highest
        if np.all(targets.at(high)[0] <= limit):
            return high
        while high - low > _RISE * max(high, _RISE * targets.highest):  # terminates at level 0, too
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
        """The level of the residual problem and prices of all rows (r,). `ResidualProblem` takes the shares."""
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
        """Prices for the whole problem, and the level that they prove to be out of reach.

        Settled classes stay off the remaining rows only while the rows that were scarce before cost enough. Earlier
        prices are added with growing factors until they do.
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
        """Pairs of prices to start from and earlier prices to add to them, all (r,).

        Rows that fixed classes exhaust are not part of a level's program and have no price in it, though other classes
        would use them at a low one. A price on them costs the fixed classes nothing more, as they have no alternative.
        Where no settled class has to make room on an exhausted row, any price of it is valid.
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
    """Raise the rule's targets until no class can rise, and state every level as a stage over jobs.

    Args:
        request: the problem, its utilities and its classes.
        rule: the targets of each tier.
        memory: what the policy's last solve returned (`filling_memory`).

    Returns:
        The stages, none where no method finds the first level, and the memory for the next solve.
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
