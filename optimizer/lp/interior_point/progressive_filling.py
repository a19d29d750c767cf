"""Progressive filling (water filling): raise max-min levels one after the other, to the lexicographic max-min.

A level is the largest z at which every class reaches its target. The prices of its program mark the scarce rows. A
class that still rises uses none of them from then on: in every optimum of the level, a class that reaches its target
at no cost uses no priced row, and all later shares are optima of this level, too. A class that needs a scarce row to
exceed its target has *settled*. The next level is found on the rows that remain. Each level exhausts a row or fills
all classes, so a tier has at most (rows + 1) levels.

Tiers follow each other: when no class gains by a rule's first targets any more, its next targets rise. A settled class
with a unique cheapest way to its utility leaves the program: it is the same in every later optimum, and its use is
subtracted from the rows. The other settled classes stay, restricted to their cheapest columns, because they may have
to move to make room.

Few jobs change between two solves, so the prices of the last solve prove a level close to the next one (warm start,
`FillingStart`). Loading compiled code takes as long as dozens of small solves; it is loaded once the solves of a
series have had enough columns in total. Neither the warm start nor compiled code changes an answer by more than
rounding.

Each level is found by a primal-dual interior-point method:

    maximise theta    s.t.  sum_C x + idle = 1                              time of one member          mu[k]
                            worth.x - spare = floor + rise theta            utility of one member       y[k]
                            sum_C size use x + left = capacity              each row                    p[r]

An iteration is a few passes over the columns, and their number (15 to 30) hardly grows with the problem. The solution
is interior to the set of optima: a column that some optimum uses has a share, one that none uses has none, and ties do
no harm.

A level is found from above: prices prove levels out of reach, and the level aimed at falls to what is proved until
shares reach it.

1. Roughly: all targets scaled together, on a sample where classes are many. Its prices prove a level within a few
   percent of the answer.
2. Exactly: at that level each target is taken for the straight line that it follows just below, those that are full
   there run their best column, and one program tells how far the others rise. Its prices prove the next level; where
   that is the level found, it is the answer. Where no target has a kink in between, that is so at once.

Levels not found in this way are left to a solver's linear programs.
"""

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
from optimizer.lp.dual_newton.dual_task import prices_per_level
from optimizer.lp.engine_choice import COMPILED_FILLING_COLUMNS
from optimizer.lp.interior_point.level_proofs import RestrictedTargets, SubProblem, cost_hulls, sub_problem
from optimizer.lp.interior_point.mehrotra_step import LevelProgram, MehrotraStep
from optimizer.lp.staged_solution import SolveInput, StagedSolution, stage_over_jobs
from optimizer.problem import BoolArray, FloatArray, Pools

#: The most iterations for one level; 20 to 40 are used.
MOST_ITERATIONS = 100
#: Duality gap and residuals, in parts of the level, at which the method has converged.
CONVERGED = 1e-11
#: After so many iterations without a better point the method stops: rounding prevents progress.
_PATIENCE = 6


@dataclass(frozen=True, slots=True, eq=False)
class InteriorSolution:
    """A nearly optimal pair of shares and prices. Neither is quite feasible: callers repair and prove."""

    theta: float
    #: Shares of one member (C,).
    x: FloatArray
    #: Price of each whole row, where theta has the value 1 (r,).
    prices: FloatArray
    iterations: int
    #: The largest of the duality gap and the residuals.
    error: float


def solve_interior(program: LevelProgram, *, compiled: bool = False) -> InteriorSolution:
    """Iterates until gap and residuals are small, the iterations are used up, or rounding prevents progress.

    Args:
        program: of the problem.
        compiled: whether to use compiled code.
    """
    point = program.start
    best, best_error, since, done = point, np.inf, 0, 0
    if compiled:
        from optimizer.lp.interior_point import interior_kernels

        best, done, best_error = interior_kernels.iterate_compiled(
            program, point, MOST_ITERATIONS, CONVERGED, _PATIENCE
        )
    while not compiled and done < MOST_ITERATIONS:
        step = MehrotraStep(program, point)
        following = step.taken()
        since = 0 if step.error < best_error else since + 1
        if since == 0:
            best, best_error = point, step.error
        if best_error <= CONVERGED or since >= _PATIENCE or following is None:
            break
        point = following
        done += 1
    x, prices = best.primal[: program.problem.columns], best.dual[-program.problem.rows :]
    return InteriorSolution(best.theta, x, prices, done, best_error)


#: A level within the first part of the proved one counts as reached; within the second, it suffices where no program
#: comes closer.
REACHED = 1e-9
_CLOSE = 1e-6
#: The part by which shares may violate the rows of a program.
_FEASIBLE = 1e-8
#: A level below this part of the highest counts as 0: what others keep leaves nothing.
_NOTHING = 1e-8
#: The most programs of the exact phase; one to four are used.
_PROGRAMS = 12
#: The number of classes that the rough prices are computed from, and the most iterations for them.
_SAMPLE = 512
_ROUGH_ITERATIONS = 25
_ROUGH = 0.97
#: Relative accuracy of a level in the rough phase: it only has to lie above the answer.
_COARSE = 1e-4
#: A target within this part of the best column is full.
_FULL = 1e-9
#: The part by which the shares of a level may miss their targets.
_HONEST = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class LevelFound:
    """The level found, shares of one member that reach it (C,), prices of the rows (r,)."""

    status: Status
    z: float
    x: FloatArray
    prices: FloatArray
    #: "interior", or the solver that had to help.
    path: str
    work: int


def find_max_level(
    problem: ClassProblem,
    worth: FloatArray,
    targets: TargetFunction,
    near: FloatArray | None = None,
    *,
    compiled: bool = False,
) -> LevelFound:
    """Returns the largest level, with shares that reach it. Every class must have a column, every column a positive
    worth, every row some capacity.

    Args:
        near: prices that may prove a level close to the answer, instead of the rough phase (r,).
        compiled: whether to use compiled code.
    """
    work = 0
    for prices in [None] if near is None else [near, None]:
        if prices is None:
            prices, iterations = _rough_prices(problem, worth, targets, compiled=compiled)
            work += iterations
        z = cost_hulls(problem, worth, prices, compiled=compiled).bound(targets, 0.0, _COARSE)
        best, iterations = _exact_level(problem, worth, targets, z, compiled=compiled)
        work += iterations
        if best is not None:
            return LevelFound(Status.OPTIMAL, *best, "interior", work)
    return _by_solver(problem, worth, targets, work)


def _exact_level(
    problem: ClassProblem, worth: FloatArray, targets: TargetFunction, z: float, *, compiled: bool
) -> tuple[tuple[float, FloatArray, FloatArray] | None, int]:
    """Goes from a level proved out of reach down to the answer; returns level, shares and prices (None if they are not
    found), and the number of iterations.
    """
    work, best = 0, None
    for _ in range(_PROGRAMS):
        found = _level_on_tangents(problem, worth, targets, z, compiled=compiled)
        if found is None:
            break
        level, x, prices, iterations, error = found
        work += iterations
        if not shares_meet_targets(problem, worth, x, targets.at(min(level, targets.highest))[0]):
            error = np.inf  # a kink lies between: the straight lines from z do not meet the targets at the level
        if error <= _FEASIBLE and level >= targets.highest * (1 - REACHED):  # Nothing that any class wants is scarce.
            best = (targets.highest, x, np.zeros(problem.rows))
            break
        bound = cost_hulls(problem, worth, prices, compiled=compiled).bound(targets, level)
        if error <= _FEASIBLE and (bound <= level * (1 + REACHED) or max(bound, level) <= _NOTHING * targets.highest):
            best = (max(level, 0.0), x, prices)
            break
        if error <= _FEASIBLE and bound <= level * (1 + _CLOSE):
            best = (level, x, prices)
        if bound >= z * (1 - 1e-9):
            break
        z = bound
    return best, work


def shares_meet_targets(problem: ClassProblem, worth: FloatArray, x: FloatArray, target: FloatArray) -> bool:
    """Returns whether shares fit the rows and give every class its target, so that a solver's claim holds."""
    utility = sum_by(problem.owner, worth * x, problem.classes)
    fits = np.all(problem.used(x) <= problem.capacity * (1 + _HONEST) + _HONEST)
    return bool(fits and np.all(utility >= target * (1 - _HONEST) - _HONEST))


def _rough_prices(
    problem: ClassProblem, worth: FloatArray, targets: TargetFunction, *, compiled: bool
) -> tuple[FloatArray, int]:
    """Returns the prices at which a sample of the classes reaches its level (equal prices for rows that it does not
    use), and the iterations.
    """
    stride = -(-problem.classes // _SAMPLE)
    sampled_classes = np.arange(problem.classes) % stride == 0
    part = sub_problem(problem, worth, sampled_classes[problem.owner], problem.capacity / stride)
    sampled = RestrictedTargets(targets, part.classes, targets.highest)
    equal = np.ones(part.problem.rows)
    z = cost_hulls(part.problem, part.worth, equal, compiled=compiled).bound(sampled, 0.0, _COARSE)
    program = LevelProgram(part.problem, part.worth, np.zeros(part.problem.classes), sampled.at(z)[0])
    point, iterations, step_of = program.start, 0, MehrotraStep
    if compiled:
        from optimizer.lp.interior_point import interior_kernels

        step_of = interior_kernels.CompiledStep
    while iterations < _ROUGH_ITERATIONS and point.theta < _ROUGH:
        step = step_of(program, point)
        following = step.taken()
        if following is None or step.error <= CONVERGED:
            break
        point, iterations = following, iterations + 1
        prices = point.dual[-len(part.rows) :] / part.problem.capacity
        proof = cost_hulls(part.problem, part.worth, prices, compiled=compiled)
        if proof.excess(sampled.at(z)[0]) > 0:
            z = min(z, proof.bound(sampled, 0.0, _COARSE))
        program.rise = sampled.at(z)[0] / program.best
    prices = point.dual[-len(part.rows) :] / part.problem.capacity
    return sum_by(part.rows, prices, problem.rows), iterations


def _level_on_tangents(
    problem: ClassProblem, worth: FloatArray, targets: TargetFunction, z: float, *, compiled: bool
) -> tuple[float, FloatArray, FloatArray, int, float] | None:
    """Returns the level reached if every target continues along its tangent below z: level, shares, prices,
    iterations, error. None where the program fails.
    """
    target, slope = targets.at(z)
    owner = problem.owner
    best = np.maximum.reduceat(worth, problem.first[:-1])
    full = target >= best * (1 - _FULL)
    top = worth >= (best * (1 - _FULL))[owner]
    alone = full & (np.add.reduceat(top.astype(np.int64), problem.first[:-1]) == 1)
    x = np.where(top & alone[owner], 1.0, 0.0)
    left = problem.capacity - problem.used(x)
    least = -_FEASIBLE if alone.all() else 1e-9
    if np.any(left < least * problem.capacity):
        return None
    prices, level, iterations, error = np.zeros(problem.rows), z, 0, 0.0
    if not alone.all():
        part = sub_problem(problem, worth, ~alone[owner], left)
        own, rise = target[part.classes], slope[part.classes] * z
        rise = rise if rise.any() else own  # if none rises just below z: can all have their targets?
        found = solve_interior(LevelProgram(part.problem, part.worth, own - rise, rise), compiled=compiled)
        prices = sum_by(part.rows, found.prices / part.problem.capacity, problem.rows) / max(z, 1e-9)
        level, iterations, error = z * found.theta, found.iterations, found.error
        x[part.columns] = found.x
    return level, x, prices, iterations, error


def _by_solver(problem: ClassProblem, worth: FloatArray, targets: TargetFunction, work: int) -> LevelFound:
    from optimizer.lp.exact_solver import solve_exactly  # imports cvxpy: hardly ever needed

    found = solve_exactly(problem, MaxMin(worth, targets))
    return LevelFound(found.status, found.objective, found.x, found.prices, found.path, work + found.work)


@dataclass(frozen=True, slots=True, eq=False)
class FillingStart:
    """The end of the last solve of a series, for a warm start; the default is a first solve."""

    #: Columns of all solves so far.
    columns: int = 0
    #: Prices of the rows at the first level (r,); an array of another length is ignored.
    prices: FloatArray | None = None


def filling_start(memory: Memory, pools: Pools) -> FillingStart:
    """Returns the start that a policy's memory holds; a first start where it holds none."""
    columns = memory.get("columns") if isinstance(memory, dict) else None
    if type(columns) is not int:
        return FillingStart()
    prices = np.array([memory.get("prices", {}).get(pool_id, 0.0) for pool_id in pools.pool_id], dtype=np.float64)
    return FillingStart(columns, prices if prices.any() else None)


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
#: A column belongs to a cheapest way if it costs more by at most this part of the class's dearest column.
_AS_CHEAP = 1e-9
#: Utilities that agree to this part are the same corner.
_CORNER = 1e-9
#: A row is exhausted when less than this part of its capacity is left.
_EMPTY = 1e-9
#: Capacity added to each row, as a part of it, so that rounding cannot make the next level infeasible. It is less than
#: what proofs allow for rounding. `make_feasible` scales the final shares back.
_ROOM = 1e-10


@dataclass(frozen=True, slots=True, eq=False)
class FilledLevel:
    """One level over classes: the classes that it raises, and its prices."""

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
    """Raises the rule's targets, tier by tier and level by level; returns the shares and the levels.

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
    owner = class_problem.owner
    x = make_feasible(class_problem, run.x)  # to the last bit
    utility = sum_by(owner, worth * x, class_problem.classes)
    above = np.divide(run.kept, utility, out=np.ones(len(utility)), where=utility > run.kept)  # no class is
    x, path = x * above[owner], ", ".join(run.paths)
    return FillingResult(x, utility * above, tuple(run.levels), run.status, path, run.work)


class _FillingRun:
    """The state of one filling: shares, utilities kept, settled classes, scarce rows, and the levels so far."""

    def __init__(self, class_problem: ClassProblem, worth: FloatArray, start: FillingStart) -> None:
        self._problem, self._worth, self._owner = class_problem, worth, class_problem.owner
        self._start = start
        self._compiled = start.columns + class_problem.columns >= COMPILED_FILLING_COLUMNS
        #: Columns in which shares may still change (C,), and classes whose shares may not (k,).
        self._open = np.ones(class_problem.columns, dtype=bool)
        self._fixed = np.zeros(class_problem.classes, dtype=bool)
        self._cap = np.maximum.reduceat(worth, class_problem.first[:-1]) if class_problem.classes else np.zeros(0)
        self._settled = np.zeros(class_problem.classes, dtype=bool)
        self._scarce_rows = np.zeros(class_problem.rows, dtype=bool)
        self._prices = np.zeros(class_problem.rows)
        #: Shares of one member (C,), and the utility that each class keeps (k,).
        self.x, self.kept = np.zeros(class_problem.columns), np.zeros(class_problem.classes)
        self.levels: list[FilledLevel] = []
        self.status, self.work = Status.OPTIMAL, 0
        self.paths: dict[str, bool] = {}

    def raised(self, tier: int, rule: TierRule) -> bool:
        """Finds one level. Returns False when no class rises in this tier any more, or no method finds how far."""
        targets, problem = rule.targets(tier, self.kept, self._cap, self._settled), self._problem
        top = targets.at(targets.highest)[0]
        active = ~self._settled & (top > self.kept * (1 + _RISE) + _RISE * self._cap)
        if not active.any() or self.status is not Status.OPTIMAL:
            return False
        # The classes that want something and are not fixed, on the capacity that the fixed ones leave.
        left = problem.capacity * (1 + _ROOM) - problem.used(np.where(self._fixed[self._owner], self.x, 0.0))
        empty = left <= _EMPTY * problem.capacity
        wanted = self._open & ((top > 0) & ~self._fixed)[self._owner] & (problem.cost(empty.astype(np.float64)) == 0)
        part = sub_problem(problem, self._worth, wanted, left)
        saturation = self._saturation_level(part, targets)
        z, prices = self._solve(part, RestrictedTargets(targets, part.classes, saturation))
        if self.status is not Status.OPTIMAL:
            return False
        if z >= saturation and saturation < targets.highest:  # a class now has to rise whose rows are all exhausted
            prices = np.zeros(problem.rows)
        paid = prices * problem.capacity  # a tiny part of what the rows not yet scarce are worth is rounding
        scarce = self._scarce_rows | (paid > _SCARCE * float(paid[~self._scarce_rows].sum()))
        fresh = np.where(scarce, prices, 0.0)
        prices, bound = self._proved(fresh, targets, z, empty & (problem.capacity > 0))
        level = FilledLevel(tier, active, self.kept, self._cap, self._settled, targets, prices, z, bound)
        self.levels.append(level)
        self._settle(level, fresh)
        return z < targets.highest

    def _saturation_level(self, part: SubProblem, targets: TargetFunction) -> float:
        """Returns the level above which some class could rise only on exhausted rows."""
        limit = self.kept.copy()
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

    def _solve(self, part: SubProblem, targets: RestrictedTargets) -> tuple[float, FloatArray]:
        """Returns the level of the residual problem and prices of all rows (r,). Its shares are taken over."""
        if not len(part.classes):
            return targets.highest, np.zeros(self._problem.rows)
        known, near = self._start.prices, None
        if not self.levels and known is not None and len(known) == self._problem.rows:
            near = known[part.rows]
        found = find_max_level(part.problem, part.worth, targets, near, compiled=self._compiled)
        self.work += found.work
        self.paths[found.path] = True
        if found.status is Status.OPTIMAL and shares_meet_targets(
            part.problem, part.worth, found.x, targets.at(found.z)[0]
        ):
            self.x[np.isin(self._owner, part.classes)] = 0.0
            self.x[part.columns] = found.x
        else:
            self.status = Status.WORK_LIMIT if self.levels else Status.FAILED
        return found.z, sum_by(part.rows, found.prices, self._problem.rows)

    def _proved(
        self, prices: FloatArray, targets: TargetFunction, z: float, empty: BoolArray
    ) -> tuple[FloatArray, float]:
        """Returns the prices for the whole problem, and the level that they prove to be out of reach.

        Settled classes stay off the remaining rows only while the rows that were scarce before cost enough. Earlier
        prices are added with growing factors until they do.

        Rows that fixed classes exhaust (`empty`) are not part of a level's program and have no price in it, though
        other classes would use them at a low one. A price on them costs the fixed classes nothing more, as they have
        no alternative. Where no settled class has to make room on an exhausted row, any price of it is valid.
        """
        if not prices.any() and z >= targets.highest:
            return prices, targets.highest
        kept, capacity = targets.at(z)[0], self._problem.capacity
        worth = float(prices @ capacity) or 1.0
        best, proof = prices, cost_hulls(self._problem, self._worth, prices, compiled=self._compiled)
        excess = proof.excess(kept)
        fence = np.divide(1.0, capacity, out=np.zeros(len(capacity)), where=empty) / max(int(empty.sum()), 1)
        hidden = np.where(empty & ~self._scarce_rows, fence, 0.0)
        known = np.where(hidden > 0, 0.0, self._prices)
        # Prices to start from, and earlier ones to add to them.
        pairs = []
        for base in (prices, np.where(self._scarce_rows, 0.0, prices)):
            pairs.append((base, hidden + known))
            if empty.any():
                pairs.append((base + fence * (_FENCE * worth), known))
        for base, earlier in pairs:
            for power in range(_POWERS if earlier.any() else 0):
                if best.any() and excess >= -_PAID * worth:
                    return best, proof.bound(targets, z)
                more = base + earlier * (worth * 10.0**power)
                other = cost_hulls(self._problem, self._worth, more, compiled=self._compiled)
                if other.excess(kept) > excess or not best.any():
                    best, proof, excess = more, other, other.excess(kept)
        return best, proof.bound(targets, z)

    def _settle(self, level: FilledLevel, fresh: FloatArray) -> None:
        """Marks the classes that cannot rise further as settled, and the scarce rows as closed to the others."""
        target = level.targets.at(level.z)[0]
        self.kept = np.where(self._settled, self.kept, np.maximum(target, self.kept))
        if level.prices.any():
            latest = level.prices / float(level.prices @ self._problem.capacity)
            forgotten = self._scarce_rows & (level.prices == 0)
            self._prices = latest + (10 * self._prices if forgotten.any() else 0.0)
        self._scarce_rows = self._scarce_rows | (level.prices > 0)
        problem, owner = self._problem, self._owner
        free = problem.cost(self._scarce_rows.astype(np.float64)) == 0  # columns that use no scarce row
        live = np.maximum.reduceat(np.where(free, self._worth, 0.0), problem.first[:-1])
        settling = level.active & (self.kept >= np.minimum(live, self._cap) * (1 - FULL))
        cap = np.where(settling | self._settled, self.kept, np.maximum(np.minimum(self._cap, live), self.kept))
        self._settled, self._cap = self._settled | settling, cap
        # Settling classes are restricted to their cheapest columns, rising ones to columns on free rows.
        kept, cost = self.kept, problem.cost(fresh)
        hulls = cost_hulls(problem, np.where(self._open, self._worth, 0.0), fresh, compiled=self._compiled)
        low_worth, low_cost, high_worth, high_cost = hulls.edge_of(kept)
        rise = np.divide(
            high_cost - low_cost, high_worth - low_worth, out=np.zeros(len(kept)), where=high_worth > low_worth
        )
        dearest = np.maximum.reduceat(cost, problem.first[:-1])
        line = (low_cost + _AS_CHEAP * dearest)[owner] + rise[owner] * (self._worth - low_worth[owner])
        at_corner = kept >= high_worth * (1 - _CORNER)
        same = ~at_corner[owner] | (self._worth >= (high_worth * (1 - _CORNER))[owner])
        cheapest = (cost <= line) & same
        self._open = np.where(settling[owner], self._open & cheapest, self._open & (free | self._settled[owner]))
        ways = np.add.reduceat((self._open & cheapest).astype(np.int64), problem.first[:-1])
        mixed = ~at_corner & (low_worth > 0)
        self._fixed |= settling & ((kept <= 0) | (ways <= 1) | (mixed & (ways == 2)))


def fill_in_stages(request: SolveInput, rule: TierRule, memory: Memory) -> tuple[StagedSolution, Memory]:
    """Raises the rule's targets until no class can rise, and returns every level as a stage over jobs.

    Args:
        request: the problem, its utilities and its classes.
        rule: the targets of each tier.
        memory: what the policy's last solve returned: columns solved so far, and the prices of its first level.

    Returns:
        The stages, none where no method finds the first level, and the memory for the next solve.
    """
    classes, pools = request.classes, request.problem.pools
    worth, start = classes.per_column(request.utility.worth), filling_start(memory, pools)
    filling = fill_levels(classes.problem, worth, rule, start)
    stages = []
    for level in filling.levels:
        objective, raised = MaxMin(worth, level.targets), np.where(level.active, filling.utility, np.inf)
        reached = min(level_reached(level.targets, raised, level.z), level.bound)
        prices = prices_per_level(classes.problem, objective, level.prices, level.bound)
        found = ClassSolution(filling.status, filling.x, prices, reached, level.bound, filling.path)
        stages.append(stage_over_jobs(classes, found, objective, level.active))
    first = filling.levels[0].prices.tolist() if filling.levels else []
    priced = {pool_id: price for pool_id, price in zip(pools.pool_id, first, strict=False) if price > 0}
    columns = min(start.columns + len(request.problem.columns), COMPILED_FILLING_COLUMNS)
    x = classes.to_columns(filling.x)
    solved = StagedSolution(request, filling.status, filling.path, x, tuple(stages))
    return solved, {"columns": columns, "prices": priced}
