"""The largest level at which every class has its target, by a primal-dual interior-point method.

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

from optimizer.classes.class_problem import ClassProblem, MaxMin, TargetFunction
from optimizer.classes.segments import sum_by
from optimizer.decision import Status
from optimizer.lp.interior_point.level_proofs import RestrictedTargets, cost_hulls, sub_problem
from optimizer.lp.interior_point.mehrotra_step import LevelProgram, MehrotraStep
from optimizer.problem import FloatArray

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
