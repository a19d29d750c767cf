"""Shares and a certificate for any number of classes, by Newton's method on the prices (docs/price-path.md).

The method solves a sample of the classes, then larger samples, then all: prices that fit a sample nearly fit all, so
that only a few passes over all classes are needed. Every pass over all classes proves a bound and, where its demand
fits, yields shares; the best of each make the certificate. A solve may start from the end point of an earlier one
(`WarmStart`).
"""

from dataclasses import dataclass

import numpy as np

from optimizer.classes.class_problem import ClassProblem, ClassSolution, MaxMin, MaxSum, NashWelfare, Objective
from optimizer.decision import Status
from optimizer.lp.dual_newton.best_responses import largest_worth, unreachable_classes
from optimizer.lp.dual_newton.continuation import (
    ContinuationPath,
    WorkBudget,
    follow_path,
    with_least_reference,
    with_new_reference,
)
from optimizer.lp.dual_newton.dual_bound import PassEngine, compiled_engine, reachable_level
from optimizer.lp.dual_newton.dual_task import DualTask, largest_earnings, make_task, sample_classes
from optimizer.lp.dual_newton.newton import AggregateResponse, DemandLimit, DualEvaluation, DualPoint, WarmStart
from optimizer.lp.dual_newton.primal_recovery import Incumbent, best_mixture, largest_overload, suggest_point
from optimizer.problem import FloatArray

#: For each sample: its classes, and the softness and the misfit at which its answer suffices for the next.
_SAMPLES = ((1024, 0.05, 0.03), (8192, 0.02, 0.01), (65536, 0.005, 0.003))
#: A sample is used only if there are at least this many times as many classes.
_WORTHWHILE = 2
_SOFTEST = 1.0
_HARDEST = 1e-7
#: The most passes over the first sample to find a level to begin with, and its relative accuracy.
_FIRST_STEPS, _ROUGHLY = 16, 0.05
#: The most evaluations at prices of mixtures.
_FURTHER = 40
#: The part of the highest level that is left out: at that level itself some class would have no second choice.
_SHORT = 1e-6
#: The part of the wanted gap by which capacities are lowered where classes have floors that must hold.
_SLACK = 0.3


@dataclass(frozen=True, slots=True)
class SolveLimits:
    """The limits at which a solve stops."""

    #: Relative gap that suffices (for a NashWelfare: of the mean weighted logarithm).
    gap: float = 1e-4
    #: The most passes over all classes.
    passes: int = 150


@dataclass(frozen=True, slots=True, eq=False)
class WarmSolution:
    """A solution, with the point from which the next solve can start."""

    solution: ClassSolution
    warm_start: WarmStart | None


def solve_by_prices(
    problem: ClassProblem, objective: Objective, limits: SolveLimits | None = None, start: WarmStart | None = None
) -> ClassSolution:
    """Returns the shares and prices, with the gap between what they reach and what the prices prove.

    Args:
        start: where an earlier solve of a similar problem ended.

    Returns:
        OPTIMAL within the gap; WORK_LIMIT with the gap that was reached; INFEASIBLE where floors cannot be met, alone
        (`best_responses.unreachable_classes` lists the classes) or together (then the prices prove it: see
        `dual_bound`).
    """
    return solve_with_warm_start(problem, objective, limits, start).solution


def solve_with_warm_start(
    problem: ClassProblem,
    objective: Objective,
    limits: SolveLimits | None = None,
    start: WarmStart | None = None,
    engine: PassEngine | None = None,
) -> WarmSolution:
    """Does what `solve_by_prices` does, and returns the end point with the solution."""
    limits, engine = limits or SolveLimits(), engine or compiled_engine()
    task = make_task(problem, objective)
    hopeless = _has_unreachable_floor(problem, objective)
    if hopeless or not problem.columns:
        status = Status.INFEASIBLE if hopeless else Status.EMPTY
        return WarmSolution(_no_solution(problem, status, f"price/{engine.name}"), None)
    highest = 0.0
    if isinstance(objective, MaxMin):
        highest = reachable_level(largest_worth(problem, objective.worth), objective.targets)
    work = WorkBudget(float(limits.passes))
    record = Incumbent(engine, task, work, limits.gap, highest)
    point = (
        _start_from_samples(engine, task, limits, highest, work) if start is None else with_least_reference(start.at)
    )
    limit = _demand_limit(task, highest, _SLACK * limits.gap if task.is_strict else 0.0)
    path = ContinuationPath(
        engine, task, limit, work, 1.0, record.judge, _HARDEST, 0.7 * limits.gap, fits=0.01 * limits.gap
    )
    follow_path(path, point)
    return _conclude(engine, task, objective, record, path)


def _has_unreachable_floor(problem: ClassProblem, objective: Objective) -> bool:
    """Returns whether some class cannot reach its floor, whatever the others get."""
    match objective:
        case MaxSum():
            floor = objective.floor
        case MaxMin():
            floor = objective.targets.at(0.0)[0]
        case NashWelfare():
            return False  # The passes over the classes find that out.
    return bool(floor.any()) and len(unreachable_classes(problem, objective.worth, floor)) > 0


def _no_solution(problem: ClassProblem, status: Status, path: str) -> ClassSolution:
    return ClassSolution(status, np.zeros(problem.columns), np.zeros(problem.rows), 0.0, 0.0, path)


def _demand_limit(task: DualTask, highest: float, slack: float) -> DemandLimit:
    return DemandLimit(task.problem.capacity * (1.0 - slack), highest * (1.0 - _SHORT))


def _start_from_samples(
    engine: PassEngine, task: DualTask, limits: SolveLimits, highest: float, work: WorkBudget
) -> DualPoint:
    """Returns the prices that fit the largest sample, found by way of smaller ones."""
    classes = task.problem.classes
    samples = []
    whole = task
    for count, softness, fit in reversed(_SAMPLES):
        if count * _WORTHWHILE <= whole.problem.classes:
            whole = sample_classes(whole, count)
            samples.append((whole, softness, fit))
    point: DualPoint | None = None
    for part, softness, fit in reversed(samples):
        cost = part.problem.classes / classes
        point = _first_prices(engine, part, highest) if point is None else with_new_reference(part, point)
        limit = _demand_limit(part, highest, 0.0)
        path = ContinuationPath(engine, part, limit, work, cost, lambda _: False, softness, 0.3 * limits.gap, fit, fit)
        point = follow_path(path, point).at
    return _first_prices(engine, task, highest) if point is None else with_new_reference(task, point)


def _first_prices(engine: PassEngine, task: DualTask, highest: float) -> DualPoint:
    """Returns prices at which every row earns the same income, and for a MaxMin a level that the income pays for."""
    problem = task.problem
    used = problem.capacity > 0
    income = 1.0 if task.is_level else max(0.3 * largest_earnings(task), 1e-9)
    prices = np.where(used, income / (problem.rows * np.where(used, problem.capacity, 1.0)), 0.0)
    z = _payable_level(engine, task, prices, income, highest * (1.0 - _SHORT)) if task.is_level else 0.0
    typical = float(prices[used].mean()) if used.any() else 1.0
    # A row without capacity has no price, but a reference price on the scale of the others.
    return with_new_reference(task, DualPoint(prices, z, _SOFTEST, np.where(used, prices, typical)))


def _payable_level(engine: PassEngine, task: DualTask, prices: FloatArray, income: float, highest: float) -> float:
    """Returns about the highest level whose targets the income pays for at these prices."""
    low, high = 0.0, highest
    z = high
    for _ in range(_FIRST_STEPS):
        sums = engine.sums(task.problem, task.goals(z), prices, prices, np.zeros(0))
        over = sums.exact_cost - income
        low, high = (z, high) if over <= 0 else (low, z)
        if high - low <= _ROUGHLY * high or low >= highest:
            break
        newton = z - over / sums.exact_slope if sums.exact_slope > 0 else low
        z = newton if low < newton < high else 0.5 * (low + high)
    return low if low > 0 else high


def _conclude(
    engine: PassEngine, task: DualTask, objective: Objective, record: Incumbent, path: ContinuationPath
) -> WarmSolution:
    """Returns the shares at the best point, or the best mixture where that is better, and the bound at the best
    prices.
    """
    problem, name = task.problem, f"price/{engine.name}"
    mixture = None
    if not record.is_done and not record.impossible:
        _try_mixture_prices(task, record, path)
        mixture = best_mixture(engine, task, path.trail)
    if mixture is not None and mixture.reached > record.reached:
        record.reached, x = mixture.reached, mixture.x
    elif record.best is not None:
        x = _shares(engine, task, record.best.at)
    else:
        return WarmSolution(_without_shares(problem, objective, record, name, round(path.work.done)), None)
    path.work.spend(1.0)
    if task.is_level and not record.is_done:
        record.prove_something()
    prices = record.prices
    if task.is_level and record.rise > 0:  # to the level gained per unit of capacity
        prices = prices / record.rise
    status = Status.OPTIMAL if record.is_done else Status.WORK_LIMIT
    at = record.best.at if record.best is not None else path.trail[-1].at
    warm_start = WarmStart(at, tuple(aggregate_response(evaluated) for evaluated in path.trail[-2 * problem.rows :]))
    return WarmSolution(
        ClassSolution(status, x, prices, record.reached, record.bound, name, round(path.work.done)), warm_start
    )


def _try_mixture_prices(task: DualTask, record: Incumbent, path: ContinuationPath) -> None:
    """Evaluates at the prices of the best mixtures, as long as that suggests new points and work is left."""
    for _ in range(_FURTHER):
        point = suggest_point(task, path.trail, record.expected)
        if point is None or path.work.left <= 0:
            return
        evaluated = path.evaluate(point)
        path.trail.append(evaluated)
        if record.judge(evaluated):
            return


def _shares(engine: PassEngine, task: DualTask, at: DualPoint) -> FloatArray:
    x = np.zeros(task.problem.columns)
    sums = engine.sums(task.problem, task.goals(at.z), at.prices, at.softness * at.reference, x)
    over = largest_overload(task.problem, sums.demand)
    if over > 1.0:
        x /= over
    return x


@dataclass(frozen=True, slots=True, eq=False)
class _FloorTargets:
    """All floors, multiplied by the level."""

    floor: FloatArray
    highest: float = 1.0

    def at(self, z: float) -> tuple[FloatArray, FloatArray]:
        return self.floor * z, self.floor


def _without_shares(
    problem: ClassProblem, objective: Objective, record: Incumbent, path: str, work: int
) -> ClassSolution:
    """Returns the answer where no pass yielded shares that hold all floors: INFEASIBLE if none exist,
    else WORK_LIMIT.
    """
    if isinstance(objective, NashWelfare):
        status = Status.INFEASIBLE if record.impossible else Status.WORK_LIMIT
        return ClassSolution(status, np.zeros(problem.columns), record.prices, -np.inf, record.bound, path, work)
    floor = objective.floor if isinstance(objective, MaxSum) else objective.targets.at(0.0)[0]
    floors = solve_with_warm_start(problem, MaxMin(objective.worth, _FloorTargets(floor))).solution
    infeasible = floors.bound < 1.0
    prices, bound = (floors.prices, -np.inf) if infeasible else (record.prices, record.bound)
    status = Status.INFEASIBLE if infeasible else Status.WORK_LIMIT
    return ClassSolution(status, np.zeros(problem.columns), prices, -np.inf, bound, path, work)


def aggregate_response(evaluated: DualEvaluation) -> AggregateResponse:
    """Returns the part of an evaluation that is kept for later solves."""
    softness = evaluated.at.softness * evaluated.at.reference
    at, sums = evaluated.at, evaluated.sums
    return AggregateResponse(
        at.prices, at.z, softness, sums.demand, sums.value, sums.exact_cost, sums.exact_slope, sums.unreached
    )
