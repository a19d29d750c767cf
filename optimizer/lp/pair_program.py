"""Space sharing: one linear program over every column of the classes alone and every pair of two classes.

    maximise  value.x + pair values.v + gain theta
    s.t.      time of one member, pool rows, and for each class   utility of one member >= floor + rise theta

with x the share of time of one member in each column alone, and v the time of all members together in each pair
(`pair_columns`), each pair holding its accelerators once. Dual values y (utility), m (time) and p (accelerators), >= 0,
are *closed* if, with h[j, c] what column c alone is worth to j (value + y worth),

    h[j, c] <= m[j] + cost[c]                                         every column alone
    f[i] h[i, r] + f[j] h[j, r] <= m[i] + m[j] + s p[r]               every pair

and then, by weak duality, with N the members of each class:

    MaxMin   the largest z with  sum N y target(z) <= sum N m + p.capacity
    MaxSum   sum N m + p.capacity - sum N y floor

Those of the program are closed up to rounding, which adding half of a pair's excess to the price of time of both its
jobs removes. Unlike without pairs, prices of pools alone do not suffice: they do not say which of its two jobs pays.

A level is approached from above (Newton): each program raises the targets of one level together as far as it can, and
the level that its dual values prove is the next one to try. Rows are scaled so that right-hand sides are about 1.
Limits count iterations, never seconds.
"""

from dataclasses import dataclass, replace

import highspy
import numpy as np
from scipy import sparse

from optimizer.classes.class_problem import (
    ClassProblem,
    ClassSolution,
    MaxMin,
    MaxSum,
    TargetFunction,
    bisected,
    level_reached,
)
from optimizer.classes.segments import max_by, sum_by
from optimizer.decision import SolveStage, Status
from optimizer.lp.dual_newton.dual_bound import dual_bound
from optimizer.lp.highs import STATUS_OF_HIGHS, highs_model, simplex_solver
from optimizer.lp.pair_columns import PairColumns, pair_columns, pairs_of_jobs
from optimizer.lp.staged_solution import SolveInput, StagedSolution, can_add, rising_classes, stage_over_jobs
from optimizer.problem import FloatArray

#: Of HiGHS, its smallest: a full job must not look short of its best by rounding.
_TOLERANCE = 1e-10
_SIMPLEX_ITERATIONS = 500_000
#: A level within this part of the proved one counts as reached; and the most programs for one level.
_REACHED = 1e-9
_MAX_PASSES = 40
#: Sums of costs that agree to this part count as equal.
_ROUNDING = 1e-12
#: Floors are lowered by this part, so that rounding cannot make the next program infeasible.
_SLACK = 1e-9
#: A stage is dropped if it takes more than this part of what it had to keep.
_KEPT = 1e-7


@dataclass(frozen=True, slots=True, eq=False)
class PairDuals:
    """Dual values, >= 0, in units of the objective."""

    #: Value of one more accelerator of each row (r,).
    prices: FloatArray
    #: Value of one more unit of utility, and of time, for one member of each class (k,), (k,).
    multiplier: FloatArray
    time: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class PairSolution:
    """Shares with proof: of one member in each class column alone (C,), and of all members in each pair (q,)."""

    status: Status
    x: FloatArray
    paired: FloatArray
    #: Closed over all pairs.
    duals: PairDuals
    objective: float
    bound: float
    #: Iterations of all programs.
    work: int


def solve_colocated_in_stages(
    request: SolveInput, objective: MaxMin | MaxSum, *, leftover: bool = True
) -> StagedSolution | None:
    """Returns the optimum of the objective, followed (if `leftover`) by the largest sum of utilities that keeps it.

    Returns None where no jobs may be co-located, or no solver answers: the caller then decides without co-location.

    Args:
        request: the problem and its classes, each of one kind.
        objective: of the first stage; its worth is the fair-share utility if something is to follow.
        leftover: if False, return the shares of the first stage.

    Raises:
        UserError: there are too many pairs.
    """
    class_problem = request.classes.problem
    pairs = pair_columns(request.problem, request.classes, request.classes.classes.class_column >= 0)
    if not len(pairs) or (isinstance(objective, MaxMin) and not rising_classes(class_problem, objective).any()):
        return None
    program = PairProgram(class_problem, pairs, objective.worth)
    found = program.solve(objective)
    if found.status is not Status.OPTIMAL:
        return None
    stages = [_colocated_stage(request, objective, found)]
    shown = found
    if leftover and isinstance(objective, MaxMin):
        kept = np.minimum(objective.targets.at(found.objective)[0], program.utility(found))
        if can_add(class_problem, objective, kept, found.duals.prices):
            total = MaxSum(objective.worth, objective.worth, kept * (1 - _SLACK))
            more = program.solve(total)
            if more.status is Status.OPTIMAL and np.all(program.utility(more) >= kept * (1 - _KEPT)):
                shown = more
                stages.append(_colocated_stage(request, total, more))
    packed = pairs_of_jobs(request.classes.classes, pairs, shown.paired)
    x = request.classes.to_columns(shown.x)
    return StagedSolution(request, found.status, "pairs/highs", x, tuple(stages), packed)


def _colocated_stage(request: SolveInput, objective: MaxMin | MaxSum, found: PairSolution) -> SolveStage:
    """Returns a solution over classes as a stage over jobs."""
    duals = found.duals
    alone = ClassSolution(found.status, found.x, duals.prices, found.objective, found.bound, "pairs/highs", found.work)
    stage = stage_over_jobs(request.classes, alone, objective)
    to_jobs = request.classes.to_jobs
    return replace(stage, multiplier=to_jobs(duals.multiplier), time=to_jobs(duals.time))


class PairProgram:
    """The programs of one problem and one utility; objectives, floors and rises vary from call to call."""

    def __init__(self, problem: ClassProblem, pairs: PairColumns, worth: FloatArray) -> None:
        self._problem, self._pairs, self._worth = problem, pairs, worth
        best = max_by(problem.owner, worth, problem.classes)
        self._best = np.where(best > 0, best, 1.0)
        self._capacity = np.where(problem.capacity > 0, problem.capacity, 1.0)
        #: What a unit of time of each pair gives one member of both its classes (2, q).
        self._part = pairs.keeps / problem.size[pairs.member]
        self._matrix = self._columns()
        self._highs = simplex_solver(_SIMPLEX_ITERATIONS, _TOLERANCE)

    def solve(self, objective: MaxMin | MaxSum) -> PairSolution:
        """Maximises the objective. Where HiGHS does not answer, the status says so and nothing else counts.

        For MaxMin every class has a column of positive worth.
        """
        if isinstance(objective, MaxMin):
            return self._solve_level(objective)
        found = self._run(objective, 0.0, np.zeros(self._problem.classes), objective.floor)
        if found.status is not Status.OPTIMAL:
            return found
        members = self._problem.size[self._problem.owner]
        gained = (self._pairs.keeps * objective.value[self._pairs.column]).sum(axis=0)
        value = float((members * objective.value) @ found.x + gained @ found.paired)
        paid = self._problem.size * found.duals.multiplier
        return replace(found, objective=value, bound=self._income(found.duals) - float(paid @ objective.floor))

    def _solve_level(self, objective: MaxMin) -> PairSolution:
        targets, work, bound = objective.targets, 0, objective.targets.highest
        floor = targets.at(0.0)[0]
        z = min(dual_bound(self._problem, objective, np.ones(self._problem.rows)), targets.highest)
        proof = PairDuals(np.zeros(self._problem.rows), np.zeros(len(floor)), np.zeros(len(floor)))
        for _ in range(_MAX_PASSES):
            found = self._run(objective, 1.0, targets.at(z)[0] - floor, floor)
            work += found.work
            if found.status is not Status.OPTIMAL:
                return replace(found, work=work)
            paid = self._problem.size * found.duals.multiplier
            proved = affordable_level(targets, paid, self._income(found.duals))
            if proved < bound:
                bound, proof = proved, found.duals
            level = min(level_reached(targets, self.utility(found)), bound)
            if level >= bound * (1 - _REACHED) or proved >= z * (1 - 1e-14) >= bound * (1 - 1e-14):
                break
            z = bound
        unit = float(self._problem.size @ (proof.multiplier * targets.at(bound)[1])) or 1.0
        duals = PairDuals(proof.prices / unit, proof.multiplier / unit, proof.time / unit)
        return replace(found, duals=duals, objective=level, bound=bound, work=work)

    def utility(self, found: PairSolution) -> FloatArray:
        """Returns the utility that the shares give one member of each class (k,)."""
        classes, pairs = self._problem.classes, self._pairs
        gained = (self._part * self._worth[pairs.column] * found.paired).ravel()
        alone = sum_by(self._problem.owner, self._worth * found.x, classes)
        return alone + sum_by(pairs.member.ravel(), gained, classes)

    def _income(self, duals: PairDuals) -> float:
        return float(self._problem.size @ duals.time + self._problem.capacity @ duals.prices)

    def _run(self, objective: MaxMin | MaxSum, gain: float, rise: FloatArray, floor: FloatArray) -> PairSolution:
        """Solves one program. Objective and bound are left at 0."""
        problem, pairs, k = self._problem, self._pairs, self._problem.classes
        value = objective.value if isinstance(objective, MaxSum) else np.zeros(problem.columns)
        gained = (pairs.keeps * value[pairs.column]).sum(axis=0)
        cost = np.concatenate((problem.size[problem.owner] * value, gained, [gain]))
        scale = float(np.abs(cost).max(initial=0.0)) or 1.0
        right = np.concatenate((np.ones(k + problem.rows), -floor / self._best))
        upper = np.full(len(cost), highspy.kHighsInf)
        upper[-1] = highspy.kHighsInf if gain else 0.0
        risen = np.concatenate((np.zeros(k + problem.rows), rise / self._best))[:, None]
        matrix = sparse.hstack((self._matrix, sparse.csc_array(risen)), format="csc")
        basis = self._highs.getBasis()  # of the last program: most of it is right for this one
        self._highs.passModel(highs_model(-cost / scale, matrix, right, upper=upper))
        if basis.valid:
            self._highs.setBasis(basis)
        self._highs.run()
        status = STATUS_OF_HIGHS.get(self._highs.getModelStatus(), Status.FAILED)
        solution, info = self._highs.getSolution(), self._highs.getInfo()
        work = max(int(info.simplex_iteration_count), 0)
        if status is Status.OPTIMAL and not solution.dual_valid:
            status = Status.FAILED
        if status is not Status.OPTIMAL:
            none = np.zeros(0)
            return PairSolution(status, none, none, PairDuals(none, none, none), 0.0, 0.0, work)
        dual = np.maximum(-np.array(solution.row_dual) * scale, 0.0)
        duals = PairDuals(
            prices=dual[k : k + problem.rows] / self._capacity,
            multiplier=dual[k + problem.rows :] / (self._best * problem.size),
            time=dual[:k] / problem.size,
        )
        shares = np.array(solution.col_value)
        x, paired = self._feasible(shares[: problem.columns], shares[problem.columns : -1])
        return PairSolution(status, x, paired, self._closed(value, duals), 0.0, 0.0, work)

    def _closed(self, value: FloatArray, duals: PairDuals) -> PairDuals:
        """Returns dual values with prices of time that leave no column and no pair worth more than it costs."""
        problem, pairs = self._problem, self._pairs
        gain = duals.multiplier[problem.owner] * self._worth + value
        time = duals.time.copy()
        np.maximum.at(time, problem.owner, gain - problem.cost(duals.prices))
        excess = (pairs.keeps * gain[pairs.column] - time[pairs.member]).sum(axis=0)
        excess -= pairs.count * duals.prices[pairs.pool]
        lacking = np.zeros(problem.classes)
        np.maximum.at(lacking, pairs.member.ravel(), np.tile(np.maximum(excess, 0.0) / 2, 2))
        return PairDuals(duals.prices, duals.multiplier, time + lacking)

    def _feasible(self, x: FloatArray, paired: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Returns shares that rounding has not taken beyond a row: clipped, and scaled down where one is overloaded."""
        problem, pairs = self._problem, self._pairs
        owner, member = problem.owner, pairs.member
        x, paired = np.maximum(x, 0.0), np.maximum(paired, 0.0)
        spent = (paired / problem.size[member]).ravel()
        time = sum_by(owner, x, problem.classes) + sum_by(member.ravel(), spent, problem.classes)
        over = np.maximum(time, 1.0)
        x, paired = x / over[owner], paired / over[member].max(axis=0)
        used = problem.used(x) + sum_by(pairs.pool, pairs.count * paired, problem.rows)
        full = np.maximum(used / self._capacity, 1.0)
        worst = np.ones(problem.columns)
        uses = np.repeat(np.arange(problem.columns), np.diff(problem.use_first))
        np.maximum.at(worst, uses, full[problem.use_row])
        return x / worst, paired / full[pairs.pool]

    def _columns(self) -> sparse.csc_array:
        """Returns the rows of time, pools and utilities over the C shares alone and the q pairs."""
        problem, pairs, k = self._problem, self._pairs, self._problem.classes
        owner, uses, q = problem.owner, np.diff(problem.use_first), len(pairs)
        alone, pair = np.arange(problem.columns), problem.columns + np.arange(q)
        utility = k + problem.rows
        load = problem.use_count * np.repeat(problem.size[owner], uses) / self._capacity[problem.use_row]
        gained = -self._part * self._worth[pairs.column] / self._best[pairs.member]
        entries = (
            (np.ones(problem.columns), owner, alone),
            (load, k + problem.use_row, np.repeat(alone, uses)),
            (-self._worth / self._best[owner], utility + owner, alone),
            *((1 / problem.size[member], member, pair) for member in pairs.member),
            (pairs.count / self._capacity[pairs.pool], k + pairs.pool, pair),
            *((part, utility + member, pair) for part, member in zip(gained, pairs.member, strict=True)),
        )
        values, rows, columns = (np.concatenate(arrays) for arrays in zip(*entries, strict=True))
        # Both ends of a pair may be one class: its entries add up.
        return sparse.csc_array((values, (rows, columns)), shape=(2 * k + problem.rows, problem.columns + q))


def affordable_level(targets: TargetFunction, paid: FloatArray, income: float) -> float:
    """Returns the largest level whose targets cost no more than the income, approached from above: every iterate is a
    valid bound.
    """
    enough = income + _ROUNDING * abs(income)

    def affords(z: float) -> bool:
        return float(paid @ targets.at(z)[0]) <= enough

    highest = targets.highest
    return highest if affords(highest) else bisected(affords, 0.0, highest)[1]
