"""Shares and a certificate for any number of classes, by Newton's method on the prices (decision 9).

The method solves a sample of the classes, then larger samples, then all: prices that fit a sample nearly fit all, so
that only a few passes over all classes are needed. Every pass over all classes proves a bound and, where its demand
fits, yields shares; the best of each make the certificate. A solve may start from the end of an earlier one.

Primal recovery has two parts. `Incumbent` keeps the best shares and the best bound of all passes and says when the gap
is small enough. The bound of a MaxMin is extrapolated along a tangent from the costs at one level to the level at which
they would exceed the income. That is exact where targets are convex, and only a guess elsewhere; so one more pass
proves it before it counts.

`best_mixture` mixes shares from several points where no single point fits: the master program of Dantzig and Wolfe. A
mixture of what all classes would do at several prices is possible for each class, reaches at least the mixed goals
(worth is linear, its logarithm concave), and takes the mixed demand. The best mixture that fits is a linear program
with a row per price, and its prices say where to look next. It is used where the continuation ends short of the gap:
with few classes the points soon comprise all responses, so that the mixture becomes exact.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.classes.class_problem import ClassProblem, ClassSolution, MaxMin, MaxSum, NashWelfare, Objective
from optimizer.decision import Status
from optimizer.lp.dual_newton.dual_bound import PassEngine, compiled_engine, reachable_level
from optimizer.lp.dual_newton.dual_task import (
    LOG,
    PLAIN,
    DualTask,
    class_worth,
    largest_earnings,
    largest_worth,
    make_task,
    sample_classes,
    unreachable_classes,
)
from optimizer.lp.dual_newton.newton import (
    ContinuationPath,
    DemandLimit,
    DualEvaluation,
    DualPoint,
    WorkBudget,
    follow_path,
    with_least_reference,
    with_new_reference,
)
from optimizer.problem import FloatArray

#: Demand may exceed capacity by this part: shares are then scaled down, and goals missed, by as much.
_FITS = 1e-10
#: The part of the wanted gap that may be used up, so that rounding does not decide whether the gap is met.
_USED = 0.98
#: The part of itself by which a guessed bound is raised before it is proved.
_MARGIN = 1e-8
#: The most bounds that are tried at the end, each four times as far from the value as the one before.
_TRIES = 8
#: Costs are sums with rounding: a cost counts as above the income only if it exceeds it by more than this part.
_ROUNDING = 1e-12


class Incumbent:
    """The best shares and the best bound of all passes over all classes. Shares are kept as the evaluation that yields
    them.
    """

    def __init__(self, engine: PassEngine, task: DualTask, work: WorkBudget, gap: float, highest: float) -> None:
        self._engine, self._task, self._work, self._gap = engine, task, work, gap
        self._scale = largest_earnings(task) if task.kind == LOG else 0.0
        #: The least that any feasible shares earn: a bound below it proves that nothing is feasible.
        self._least = -np.inf
        if task.is_strict and not task.is_level:
            self._least = -largest_earnings(task, -task.value) - 1e-9
        #: The best bound, the prices that prove it, and the derivative of the costs by the level there.
        self.bound = highest if task.is_level else np.inf
        self.prices: FloatArray = np.zeros(task.problem.rows)
        self.rise = 0.0
        #: The best objective, and the evaluation that yields it.
        self.reached = -np.inf
        self.best: DualEvaluation | None = None
        #: Whether some class with a weight has no column of positive worth.
        self.impossible = False
        self._guess, self._guessed_at = np.inf, self.prices

    @property
    def is_done(self) -> bool:
        """Whether the gap is small enough."""
        return self._gap_to(self.bound) <= self._gap

    @property
    def expected(self) -> float:
        """The expected bound, proved or not."""
        return min(self.bound, self._guess)

    def judge(self, evaluated: DualEvaluation) -> bool:
        """Takes over the bound and the shares of an evaluation if they are better; returns True when the gap suffices
        or nothing is feasible.
        """
        if self._task.kind == LOG and evaluated.sums.unreached:
            self.impossible = True
            return True
        if self._task.is_level:
            self._take_level(evaluated)
        elif not evaluated.sums.unreached:
            bound = float(evaluated.at.prices @ self._task.problem.capacity) - evaluated.sums.exact_cost
            if bound < self.bound:
                self.bound, self.prices = bound, evaluated.at.prices
            if bound < self._least:
                return True
        reached = self._reached(evaluated)
        if reached > self.reached:
            self.reached, self.best = reached, evaluated
        if self._gap_to(self.bound) <= _USED * self._gap:
            return True
        return self._task.is_level and self._gap_to(self._guess) <= _USED * self._gap and self._proved()

    def prove_something(self) -> None:
        """Tries to prove a bound with the prices of the guess, at levels four times as far from the value each time."""
        part = 0.9 * self._gap
        for _ in range(_TRIES if self.reached > 0 else 0):
            z = self.reached * (1.0 + part)
            if z >= self.bound or self._too_dear(z):
                return
            part *= 4.0

    def _take_level(self, evaluated: DualEvaluation) -> None:
        at, sums = evaluated.at, evaluated.sums
        income = float(at.prices @ self._task.problem.capacity)
        if at.z < self.bound and (sums.unreached or sums.exact_cost > income * (1 + _ROUNDING)):
            self.bound, self.prices, self.rise = at.z, at.prices, sums.exact_slope
        if sums.exact_slope > 0 and not sums.unreached:
            guess = at.z + (income - sums.exact_cost) / sums.exact_slope
            if guess < self._guess:
                self._guess, self._guessed_at = guess, at.prices

    def _proved(self) -> bool:
        """Proves the guess, or at least a bound that suffices; returns whether it did. A guess that fails is
        forgotten.
        """
        tight, loose = max(self._guess, self.reached) * (1 + _MARGIN), self.reached * (1 + 0.9 * self._gap)
        if self._too_dear(tight) or self._too_dear(loose):
            return self._gap_to(self.bound) <= self._gap
        self._guess = np.inf
        return False

    def _too_dear(self, z: float) -> bool:
        """Returns whether the guess's prices prove that the level is out of reach; if so, the level
        becomes the bound.
        """
        if z >= self.bound:
            return False
        prices = self._guessed_at
        self._work.spend(1.0)
        sums = self._engine.sums(self._task.problem, self._task.goals(z), prices, prices, np.zeros(0))
        if sums.unreached or sums.exact_cost > float(prices @ self._task.problem.capacity) * (1 + _ROUNDING):
            self.bound, self.prices, self.rise = z, prices, sums.exact_slope
            return True
        return False

    def _gap_to(self, bound: float) -> float:
        if self._task.kind == LOG:
            return (bound - self.reached) / max(self._scale, 1e-300) if np.isfinite(self.reached) else np.inf
        return _relative_gap(self.reached, max(bound, self.reached) if self._task.is_level else bound)

    def _reached(self, evaluated: DualEvaluation) -> float:
        task, sums = self._task, evaluated.sums
        over = largest_overload(task.problem, sums.demand)
        if task.is_strict:
            fits = over <= 1.0 + _FITS and not sums.unreached
            return (evaluated.at.z if task.is_level else sums.value) if fits else -np.inf
        over = max(over, 1.0)
        return sums.value - self._scale * float(np.log(over)) if task.kind == LOG else sums.value / over


def largest_overload(problem: ClassProblem, demand: FloatArray) -> float:
    """Returns the largest load of a row, as a part of its capacity."""
    full = demand > 0
    return float((demand[full] / problem.capacity[full]).max(initial=0.0))


def _relative_gap(reached: float, bound: float) -> float:
    if not np.isfinite(reached) or not np.isfinite(bound):
        return np.inf
    return max(bound - reached, 0.0) / max(abs(bound), abs(reached), 1e-12)


#: The number of most recent evaluations that a mixture may use, and the least weight that counts.
_LOOKS = 200
_LEAST = 1e-9
#: Softness of an evaluation at the prices of a mixture: almost exact, so that mixtures of exact responses result.
_SHARP = 1e-6
#: Goals may be missed by this part, and capacities are lowered by it in the program: its solver rounds.
_MIXTURE_ROUNDING = 1e-9
#: Steps of the bisection for the level that shares reach.
_STEPS = 50


@dataclass(frozen=True, slots=True, eq=False)
class PriceMixture:
    """Shares of one member in each column (C,), and the objective that they reach."""

    x: FloatArray
    reached: float


def best_mixture(engine: PassEngine, task: DualTask, looks: list[DualEvaluation]) -> PriceMixture | None:
    """Returns the mixture of evaluations with the largest objective that fits the capacities; None where there is
    none.
    """
    looks = _usable(looks)
    master = _solve_master(task, looks)
    if master is None:
        return None
    problem, chosen = task.problem, np.flatnonzero(master.part[: len(looks)] > _LEAST)
    x = np.zeros(problem.columns)
    for index in chosen:
        at, one = looks[index].at, np.zeros(problem.columns)
        engine.sums(problem, task.goals(at.z), at.prices, at.softness * at.reference, one)
        x += master.part[index] * one
    over = largest_overload(problem, problem.used(x))
    if task.is_strict and over > 1.0 + _MIXTURE_ROUNDING:
        return None
    x /= max(over, 1.0)
    return PriceMixture(x, _mixture_value(task, x))


def suggest_point(task: DualTask, looks: list[DualEvaluation], bound: float) -> DualPoint | None:
    """Returns the next point to evaluate: the prices of the best mixture, and for a MaxMin a level between the
    mixture's and the bound. None where the program has no solution or no prices.
    """
    looks = _usable(looks)
    master = _solve_master(task, looks)
    if master is None or not master.prices.any():
        return None
    last, prices = looks[-1].at, master.prices
    if task.is_level:
        prices = prices / float(prices @ task.problem.capacity)
    return DualPoint(prices, 0.5 * (master.value + bound), _SHARP, np.maximum(prices, _LEAST * last.reference))


@dataclass(frozen=True, slots=True, eq=False)
class _Master:
    """The weight of each evaluation (and, last, of idling), the prices of the rows (r,), and the objective."""

    part: FloatArray
    prices: FloatArray
    value: float


def _usable(looks: list[DualEvaluation]) -> list[DualEvaluation]:
    return [evaluated for evaluated in looks[-_LOOKS:] if not evaluated.sums.unreached]


def _solve_master(task: DualTask, looks: list[DualEvaluation]) -> _Master | None:
    """Returns the best mixture by linear programming, None where there is none. Idling takes part where no goal must
    be reached.
    """
    from scipy.optimize import linprog

    if not looks:
        return None
    used = task.problem.capacity > 0
    gain = np.array([evaluated.at.z if task.is_level else evaluated.sums.value for evaluated in looks])
    load = np.array([evaluated.sums.demand[used] / task.problem.capacity[used] for evaluated in looks]).T
    if task.kind == PLAIN or (task.is_level and not task.goals(0.0).goal.any()):
        gain, load = np.append(gain, 0.0), np.hstack([load, np.zeros((len(load), 1))])
    unit = max(float(np.abs(gain).max()), 1e-300)
    found = linprog(
        -gain / unit,
        A_ub=load,
        b_ub=np.full(len(load), 1.0 - _MIXTURE_ROUNDING),
        A_eq=np.ones((1, len(gain))),
        b_eq=[1.0],
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10},
    )
    if found.status != 0:
        return None
    prices = np.zeros(task.problem.rows)
    prices[used] = np.maximum(-found.ineqlin.marginals, 0.0) * unit / task.problem.capacity[used]
    return _Master(np.maximum(found.x, 0.0), prices, -float(found.fun) * unit)


def _mixture_value(task: DualTask, x: FloatArray) -> float:
    problem = task.problem
    if not task.is_level and task.kind != LOG:
        return float((task.value * np.repeat(problem.size, np.diff(problem.first))) @ x)
    worth = class_worth(problem, task.worth, x)
    if task.kind == LOG:
        heavy = task.goal > 0
        return float((problem.size * task.goal)[heavy] @ np.log(worth[heavy]))
    low, high = 0.0, task.targets.highest if task.targets is not None else 0.0
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        if (task.goals(middle).goal <= worth * (1 + _MIXTURE_ROUNDING)).all():
            low = middle
        else:
            high = middle
    return low


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
    #: Relative gap that suffices (for a NashWelfare: of the mean weighted logarithm).
    gap: float = 1e-4
    #: The most passes over all classes.
    passes: int = 150


@dataclass(frozen=True, slots=True, eq=False)
class PriceSolve:
    """A solution, and where the solve ended: the next one may start there."""

    solution: ClassSolution
    #: The point whose softened responses are the shares; None where there are none.
    end: DualPoint | None = None
    #: The last passes on the way there, in order.
    trail: tuple[DualEvaluation, ...] = ()


def solve_by_prices(problem: ClassProblem, objective: Objective, limits: SolveLimits | None = None) -> ClassSolution:
    """Returns the shares and prices, with the gap between what they reach and what the prices prove.

    Returns:
        OPTIMAL within the gap; WORK_LIMIT with the gap that was reached; INFEASIBLE where floors cannot be met, alone
        (`best_responses.unreachable_classes` lists the classes) or together (then the prices prove it: see
        `dual_bound`).
    """
    return solve_from(None, problem, objective, limits).solution


def solve_from(
    start: DualPoint | None,
    problem: ClassProblem,
    objective: Objective,
    limits: SolveLimits | None = None,
    engine: PassEngine | None = None,
) -> PriceSolve:
    """Does what `solve_by_prices` does, from the end of a solve of a similar problem, and returns its own end, too."""
    limits, engine = limits or SolveLimits(), engine or compiled_engine()
    task = make_task(problem, objective)
    hopeless = _has_unreachable_floor(problem, objective)
    if hopeless or not problem.columns:
        status = Status.INFEASIBLE if hopeless else Status.EMPTY
        return PriceSolve(_no_solution(problem, status, f"price/{engine.name}"))
    highest = 0.0
    if isinstance(objective, MaxMin):
        highest = reachable_level(largest_worth(problem, objective.worth), objective.targets)
    work = WorkBudget(float(limits.passes))
    record = Incumbent(engine, task, work, limits.gap, highest)
    point = _start_from_samples(engine, task, limits, highest, work) if start is None else with_least_reference(start)
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
) -> PriceSolve:
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
        return PriceSolve(_without_shares(problem, objective, record, name, round(path.work.done)))
    path.work.spend(1.0)
    if task.is_level and not record.is_done:
        record.prove_something()
    prices = record.prices
    if task.is_level and record.rise > 0:  # to the level gained per unit of capacity
        prices = prices / record.rise
    status = Status.OPTIMAL if record.is_done else Status.WORK_LIMIT
    at = record.best.at if record.best is not None else path.trail[-1].at
    solution = ClassSolution(status, x, prices, record.reached, record.bound, name, round(path.work.done))
    return PriceSolve(solution, at, tuple(path.trail[-2 * problem.rows :]))


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
    floors = solve_by_prices(problem, MaxMin(objective.worth, _FloorTargets(floor)))
    infeasible = floors.bound < 1.0
    prices, bound = (floors.prices, -np.inf) if infeasible else (record.prices, record.bound)
    status = Status.INFEASIBLE if infeasible else Status.WORK_LIMIT
    return ClassSolution(status, np.zeros(problem.columns), prices, -np.inf, bound, path, work)
