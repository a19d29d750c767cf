"""Gavel's policies that solve linear programs, in Gavel's formulation: one stage, ties left to the solver; water
filling.

Water filling (without entities) raises the lowest jobs, freezes those that cannot rise further, and repeats. A linear
program finds the jobs that can rise, where Gavel uses a mixed-integer one. The answers are the same but for ties: the
mean of points in which single jobs rise is a point in which all of them do.

All programs optimise over one polytope of shares, in conic form for an interior-point solver:

    X >= 0;  accelerators of each type: sum s X <= N;  time of each job: sum X <= 1

Columns: type by type in alphabetical order, in each type the units (single jobs by id, then pairs); `lead` columns come
before them and `trail` columns after them. A program minimises c'x where h - Gx lies in a cone.

The choice among several optimal points changes Gavel's results, because its mechanism assigns leftover accelerators by
shares of 1e-9. The solver is therefore fixed: Clarabel, which like the ECOS of the recorded runs ends inside the set of
optimal points, not at a corner of it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np

from optimizer.decision import Memory
from optimizer.problem import BoolArray, FloatArray, IntArray
from simulator.worlds.gavel.heuristic_policies import (
    GavelAllocation,
    GavelPolicy,
    GavelProblem,
    PairSpeeds,
    equal_split_shares,
)


@dataclass(frozen=True, slots=True, eq=False)
class ConeProgram:
    """A conic program: the first rows of h - Gx are >= 0, the others form second-order cones of three rows each."""

    c: FloatArray
    #: A scipy.sparse matrix in compressed columns.
    g: Any
    h: FloatArray
    #: Number of second-order cones at the end of the rows.
    cones: int = 0

    @property
    def nonnegative(self) -> int:
        """Number of rows that are >= 0."""
        return len(self.h) - 3 * self.cones


@dataclass(frozen=True, slots=True, eq=False)
class ConeSolution:
    """Result of a solver. Gavel also accepts a nearly optimal point, but not as a proof of feasibility."""

    x: FloatArray
    is_optimal: bool


#: Returns None where the solver finds no point.
ConeSolver = Callable[[ConeProgram], ConeSolution | None]


def solve_cone_program(program: ConeProgram) -> ConeSolution | None:
    """Solves by Clarabel with its default settings."""
    import clarabel as solver

    settings = solver.DefaultSettings()
    settings.verbose = False
    size = len(program.c)
    cones = [solver.NonnegativeConeT(program.nonnegative), *(solver.SecondOrderConeT(3) for _ in range(program.cones))]
    answer = solver.DefaultSolver(_no_quadratic_part(size), program.c, program.g, program.h, cones, settings).solve()
    if answer.status not in (solver.SolverStatus.Solved, solver.SolverStatus.AlmostSolved):
        return None
    return ConeSolution(np.asarray(answer.x), answer.status == solver.SolverStatus.Solved)


@lru_cache(maxsize=1024)
def _no_quadratic_part(size: int) -> Any:
    """Returns the empty matrix of a linear objective, which takes as long to make as some programs to solve."""
    from scipy import sparse

    return sparse.csc_matrix((size, size))


@dataclass(slots=True)
class SparseRows:
    """Rows of a sparse matrix under construction."""

    columns: int
    row: list[Any] = field(default_factory=list)
    column: list[Any] = field(default_factory=list)
    value: list[Any] = field(default_factory=list)
    rows: int = 0

    def add(self, rows: int, row: Any, column: Any, value: Any) -> None:
        """Appends a block of rows; `row` counts from the block's first row."""
        row, column, value = np.broadcast_arrays(row, column, value)
        self.row.append(row.ravel() + self.rows)
        self.column.append(column.ravel())
        self.value.append(value.ravel().astype(float))
        self.rows += rows

    def csc(self) -> Any:
        """Returns the matrix, without explicit zeros."""
        from scipy import sparse

        row, column, value = (np.concatenate(part) for part in (self.row, self.column, self.value))
        kept = value != 0
        shape = (self.rows, self.columns)
        return sparse.csc_matrix((value[kept], (row[kept], column[kept])), shape=shape)


#: Stands for the second member in a unit of one job.
_NOBODY = -1


@dataclass(frozen=True, slots=True, eq=False)
class ShareUnits:
    """Units to which accelerators are given: rows of their jobs, gang, and each member's speed by type (u, p)."""

    first: IntArray
    second: IntArray
    count: IntArray
    first_speed: FloatArray
    second_speed: FloatArray
    jobs: int
    total: FloatArray

    def __len__(self) -> int:
        return len(self.first)

    @property
    def columns(self) -> int:
        """Number of shares to choose."""
        return len(self) * len(self.total)


def single_units(problem: GavelProblem, speed: FloatArray) -> ShareUnits:
    rows = np.arange(len(problem.jobs))
    no_second = np.full(len(rows), _NOBODY)
    return ShareUnits(rows, no_second, problem.count, speed, np.zeros_like(speed), len(rows), problem.total)


def units_with_pairs(problem: GavelProblem, speed: FloatArray, pairs: PairSpeeds) -> ShareUnits:
    """Returns a unit for each job and for each two jobs with equal gangs. Speeds have single precision, as in Gavel."""
    alone = single_units(problem, speed.astype(np.float32).astype(float))
    couples = [(a, b) for a, b in combinations(range(alone.jobs), 2) if problem.count[a] == problem.count[b]]
    if not couples:
        return alone
    first, second = np.array(couples).T
    names = problem.types
    known: dict[tuple[str, str, int], list[float]] = {}

    def pair_speeds(a: int, b: int) -> list[float]:
        key = problem.kind[a], problem.kind[b], int(problem.count[a])
        if key not in known:
            known[key] = [pairs.colocated_speed(problem.kind[a], problem.kind[b], name, key[2]) for name in names]
        return known[key]

    one = np.array([pair_speeds(a, b) for a, b in couples], np.float32).astype(float)
    two = np.array([pair_speeds(b, a) for a, b in couples], np.float32).astype(float)
    return ShareUnits(
        np.append(alone.first, first),
        np.append(alone.second, second),
        np.append(alone.count, problem.count[first]),
        np.vstack([alone.first_speed, one]),
        np.vstack([alone.second_speed, two]),
        alone.jobs,
        alone.total,
    )


class SharePolytope:
    """The constraints that all programs share; a policy adds its own."""

    def __init__(self, units: ShareUnits, lead: int = 0, trail: int = 0) -> None:
        self.units = units
        self.lead = lead
        self.columns = lead + units.columns + trail
        self.g = SparseRows(self.columns)
        self.h: list[FloatArray] = []
        #: Column of each unit on each type (u, p).
        kinds = len(units.total)
        self._at = lead + np.arange(kinds)[None, :] * len(units) + np.arange(len(units))[:, None]
        paired = units.second != _NOBODY
        #: Members of all units: their job (m,) and their speed on each type (m, p).
        self.job = np.append(units.first, units.second[paired])
        self.speed = np.vstack([units.first_speed, units.second_speed[paired]])
        self._column = np.vstack([self._at, self._at[paired]])

    def add(self, rows: int, row: Any, column: Any, value: Any, h: FloatArray) -> None:
        """Adds rows `Gx <= h`."""
        self.g.add(rows, row, column, value)
        self.h.append(h)

    def add_rates(self, worth: FloatArray, lead: Any, bound: FloatArray, trail: float = 0.0) -> None:
        """Adds rows `lead x[0] - sum of worth x + trail y <= bound`, one per job, where y is the job's column after the
        shares.

        With `lead` None the leading column is left out.
        """
        jobs = np.arange(self.units.jobs)
        row, column = self.job[:, None] + np.zeros_like(self._column), self._column
        row, column, value = row.ravel(), column.ravel(), -worth.ravel()
        if lead is not None:
            row, column = np.append(jobs, row), np.append(np.zeros_like(jobs), column)
            value = np.append(np.broadcast_to(lead, len(jobs)), value)
        if trail:
            row, column = np.append(row, jobs), np.append(column, self.columns - len(jobs) + jobs)
            value = np.append(value, np.full(len(jobs), trail))
        self.add(self.units.jobs, row, column, value, bound)

    def add_base(self) -> None:
        """Adds X >= 0, the accelerators of each type, and the time of each job."""
        units, kinds = self.units, len(self.units.total)
        variables = self.lead + np.arange(units.columns)
        self.add(units.columns, np.arange(units.columns), variables, -1.0, np.zeros(units.columns))
        self.add(kinds, np.arange(kinds)[None, :], self._at, units.count[:, None], units.total.astype(float))
        self.add(units.jobs, self.job[:, None], self._column, 1.0, np.ones(units.jobs))

    def add_inverses(self, inverse: IntArray) -> None:
        """Adds a cone of three rows per job: its column `inverse` is at least 1 / its rate.

        |(rate - u, 2)| <= rate + u
        """
        jobs, row, column = (
            np.arange(self.units.jobs),
            self.job[:, None] + np.zeros_like(self._column),
            self._column,
        )
        row, column, rate = row.ravel(), column.ravel(), self.speed.ravel()
        ones, h = np.ones(len(jobs)), np.zeros(3 * len(jobs))
        h[2::3] = 2.0
        self.add(
            3 * len(jobs),
            np.concatenate([3 * row, 3 * row + 1, 3 * jobs, 3 * jobs + 1]),
            np.concatenate([column, column, inverse, inverse]),
            np.concatenate([-rate, -rate, -ones, ones]),
            h,
        )

    def rate_cost(self, price: FloatArray) -> FloatArray:
        """Returns the objective: minus the sum of all rates, each per USD at the price of its type (p,)."""
        c = np.zeros(self.columns)
        np.add.at(c, self._column, -(self.speed / price))
        return c

    def program(self, c: FloatArray, cones: int = 0) -> ConeProgram:
        """Returns the program of the added rows with an objective."""
        return ConeProgram(c, self.g.csc(), np.concatenate(self.h), cones)

    def solve(
        self, solver: ConeSolver, c: FloatArray, cones: int = 0, *, only_optimal: bool = False
    ) -> GavelAllocation | None:
        """Returns optimal or nearly optimal shares (`only_optimal`: only optimal ones); None where the solver finds
        none.
        """
        point = solver(self.program(c, cones))
        if point is None or (only_optimal and not point.is_optimal):
            return None
        units = self.units
        shares = np.clip(point.x[self._at], 0.0, 1.0)
        pairs = tuple(
            (int(units.first[unit]), int(units.second[unit]), type_, float(shares[unit, type_]))
            for unit in range(units.jobs, len(units))
            for type_ in range(len(units.total))
        )
        return GavelAllocation(shares[: units.jobs], pairs)


#: The type whose speeds policies that ignore heterogeneity use for all types.
_REFERENCE = "v100"
#: Bounds (seconds) between which the shortest makespan is searched, and the ratio at which the bisection ends.
_SHORTEST_S, _LONGEST_S, _CLOSE = 100.0, 1e6, 1.05
#: Largest number of makespans that the search tries.
_SEARCH_MAX = 200


def reference_type_speed(problem: GavelProblem) -> FloatArray:
    """Returns speeds as if every type were as fast as the reference type (n, p)."""
    names = problem.types
    return np.repeat(problem.speed[:, [names.index(_REFERENCE)]], len(names), axis=1)


def proportional_rate(problem: GavelProblem, speed: FloatArray) -> FloatArray:
    """Returns the rate of each job if its time were split over the types in proportion to their accelerators."""
    split = problem.total / len(problem.jobs)
    rate: FloatArray = (speed * (split / split.sum())).sum(axis=1)
    return rate


def no_shares(problem: GavelProblem) -> GavelAllocation:
    """Returns zero shares, for use where the solver finds no solution."""
    return GavelAllocation(np.zeros_like(problem.speed))


def _units_of(problem: GavelProblem, speed: FloatArray, pairs: PairSpeeds | None) -> ShareUnits:
    return single_units(problem, speed) if pairs is None else units_with_pairs(problem, speed, pairs)


@dataclass(frozen=True, slots=True)
class GavelMaxMinFairness(GavelPolicy):
    """Maximises the minimum of s/w rate / (rate at a split of time in proportion to the accelerators)."""

    aware: bool = True
    pairs: PairSpeeds | None = None
    solver: ConeSolver = solve_cone_program

    def allocate(self, problem: GavelProblem, memory: Memory) -> tuple[GavelAllocation, Memory]:
        speed = problem.speed if self.aware else np.ones_like(problem.speed)
        proportional = proportional_rate(problem, speed)
        polytope = SharePolytope(_units_of(problem, speed, self.pairs), lead=1)
        job, weight, count = polytope.job, problem.jobs.weight, problem.count
        # Gavel multiplies in this order; another changes the last digit, and with it the use of leftover accelerators.
        if self.pairs is None:
            scale = (1.0 / weight) * (1.0 / proportional)
            worth = polytope.speed * scale[job][:, None] * count[job][:, None]
        else:
            worth = polytope.speed * (count / weight)[job][:, None] / proportional[job][:, None]
        polytope.add_rates(worth, 1.0, np.zeros(len(problem.jobs)))
        polytope.add_base()
        c = np.zeros(polytope.columns)
        c[0] = -1.0
        return polytope.solve(self.solver, c) or no_shares(problem), None


@dataclass(frozen=True, slots=True)
class GavelMinTotalDuration(GavelPolicy):
    """Finds shares under which all jobs end within nearly the shortest makespan, by bisection."""

    aware: bool = True
    pairs: PairSpeeds | None = None
    solver: ConeSolver = solve_cone_program

    def allocate(self, problem: GavelProblem, memory: Memory) -> tuple[GavelAllocation, Memory]:
        units = _units_of(problem, problem.speed if self.aware else reference_type_speed(problem), self.pairs)
        low_s, high_s = _SHORTEST_S, _LONGEST_S
        found: GavelAllocation | None = None
        for _ in range(_SEARCH_MAX):
            if _CLOSE * low_s >= high_s:
                if found is not None:
                    break
                low_s, high_s = _LONGEST_S, 10.0 * high_s
            middle_s = (low_s + high_s) / 2.0
            feasible = self._within(problem, units, middle_s)
            if feasible is None:
                low_s = middle_s
            else:
                found, high_s = feasible, middle_s
        return found or no_shares(problem), None

    def _within(self, problem: GavelProblem, units: ShareUnits, time_s: float) -> GavelAllocation | None:
        polytope = SharePolytope(units)
        polytope.add_base()
        polytope.add_rates(polytope.speed, None, -problem.jobs.remaining_steps / time_s)
        return polytope.solve(self.solver, np.zeros(polytope.columns), only_optimal=True)


@dataclass(frozen=True, slots=True)
class GavelMaxSumThroughput(GavelPolicy):
    """Maximises steps per second (per dollar, if prices are given), subject to deadlines if they are feasible."""

    #: USD per hour by type; None: prices do not count.
    prices: dict[str, float] | None = None
    keeps_deadlines: bool = False
    solver: ConeSolver = solve_cone_program

    def allocate(self, problem: GavelProblem, memory: Memory) -> tuple[GavelAllocation, Memory]:
        names = problem.types
        price = np.array([1.0 if self.prices is None else self.prices[name] for name in names])
        found = None
        if self.keeps_deadlines and np.isfinite(problem.deadline_at).any():
            found = self._solve(problem, price, within_deadlines=True)
        return found or self._solve(problem, price, within_deadlines=False) or no_shares(problem), None

    def _solve(self, problem: GavelProblem, price: FloatArray, *, within_deadlines: bool) -> GavelAllocation | None:
        polytope = SharePolytope(single_units(problem, problem.speed))
        polytope.add_base()
        if within_deadlines:
            left_s = problem.deadline_at - problem.at
            least = np.divide(problem.jobs.remaining_steps, left_s, out=np.full_like(left_s, np.inf), where=left_s != 0)
            polytope.add_rates(polytope.speed, None, -least)
        return polytope.solve(self.solver, polytope.rate_cost(price))


@dataclass(frozen=True, slots=True)
class GavelFinishTimeFairness(GavelPolicy):
    """Minimises the maximum expected finish time relative to that with 1/M of the cluster.

        rho = (waited + left / rate) / (isolated time so far + left / isolated rate)

    A second-order cone gives 1/rate <= u: |(2, u - rate)| <= u + rate.
    """

    aware: bool = True
    solver: ConeSolver = solve_cone_program

    def allocate(self, problem: GavelProblem, memory: Memory) -> tuple[GavelAllocation, Memory]:
        speed = problem.speed if self.aware else reference_type_speed(problem)
        isolated_x = equal_split_shares(problem, problem.count.astype(float))
        isolated = (speed * isolated_x).sum(axis=1)
        left = problem.jobs.remaining_steps
        so_far = self._isolated_so_far(problem, memory)
        per_alone_s = 1.0 / (so_far + left / isolated)
        waited_s = problem.at - problem.jobs.submitted_at
        # Columns: the largest rho (several copies), the shares, the inverse rates.
        jobs = np.arange(len(problem.jobs))
        lead = int(len(jobs) > 1)
        polytope = SharePolytope(single_units(problem, speed), lead, trail=len(jobs))
        inverse = polytope.columns - len(jobs) + jobs
        c = np.zeros(polytope.columns)
        c[0 if lead else inverse] = 1.0 if lead else left * per_alone_s
        if lead:
            column = np.concatenate([np.zeros_like(jobs), inverse])
            value = np.concatenate([-np.ones(len(jobs)), left * per_alone_s])
            polytope.add(len(jobs), np.tile(jobs, 2), column, value, -(waited_s * per_alone_s))
        polytope.add_base()
        polytope.add_inverses(inverse)
        found = polytope.solve(self.solver, c, cones=len(jobs)) or GavelAllocation(isolated_x)
        ids = problem.jobs.job_id.tolist()
        return found, {
            "so_far_s": dict(zip(ids, so_far.tolist(), strict=True)),
            "left": dict(zip(ids, left.tolist(), strict=True)),
            "isolated": dict(zip(ids, isolated.tolist(), strict=True)),
        }

    def _isolated_so_far(self, problem: GavelProblem, memory: Memory) -> FloatArray:
        """Returns the seconds that each job's steps until now would have taken at the isolated rates of past solves."""
        so_far = np.zeros(len(problem.jobs))
        if memory is not None:
            for row, job_id in enumerate(problem.jobs.job_id.tolist()):
                if job_id in memory["so_far_s"]:
                    made = memory["left"][job_id] - problem.jobs.remaining_steps[row]
                    so_far[row] = memory["so_far_s"][job_id] + made / memory["isolated"][job_id]
        return so_far


def with_cone_solver(policy: GavelPolicy, solver: ConeSolver) -> GavelPolicy:
    """Returns the same policy with another solver; policies without a program stay unchanged."""
    return replace(policy, solver=solver) if hasattr(policy, "solver") else policy  # type: ignore[type-var]


#: A job can rise if it can gain this much; later stages may miss reached levels by this factor.
_RISE, _SLACK = 1e-5, 1.0001


@dataclass(frozen=True, slots=True)
class GavelWaterFilling(GavelPolicy):
    """Max-min fairness by levels: all jobs that can gain get the same gain x gang / weight."""

    solver: ConeSolver = solve_cone_program

    def allocate(self, problem: GavelProblem, memory: Memory) -> tuple[GavelAllocation, Memory]:
        count, weight = problem.count.astype(float), problem.jobs.weight
        worth = problem.speed / proportional_rate(problem, problem.speed)[:, None]
        reached, rising = np.zeros(len(count)), np.ones(len(count), bool)
        found = no_shares(problem)
        for _ in range(len(count)):
            level = self._raise(problem, worth, reached, rising)
            if level is None:
                break
            found, gain = level
            reached = np.where(rising, reached + gain * weight / count, reached)
            still = rising & _can_rise(self.solver, problem, worth, reached)
            if not still.any() or (still == rising).all():
                break
            rising = still
        return found, None

    def _raise(
        self, problem: GavelProblem, worth: FloatArray, reached: FloatArray, rising: BoolArray
    ) -> tuple[GavelAllocation, float] | None:
        """Maximises the minimum of (worth x - reached) s/w over the rising jobs; no job falls below what it has
        reached.
        """
        polytope = SharePolytope(single_units(problem, worth), lead=1)
        scale = problem.count / problem.jobs.weight
        lead = np.where(rising, 1.0, 0.0)
        gained = np.where(rising, scale, 1.0)
        polytope.add_rates(polytope.speed * gained[:, None], lead, -reached * gained)
        polytope.add_base()
        c = np.zeros(polytope.columns)
        c[0] = -1.0
        found = polytope.solve(self.solver, c)
        if found is None:
            return None
        gain = ((worth * found.x).sum(axis=1) - reached) * scale
        return found, max(0.0, float(gain[rising].min()))


def _can_rise(solver: ConeSolver, problem: GavelProblem, worth: FloatArray, reached: FloatArray) -> BoolArray:
    """Returns the jobs that can rise, by maximising the sum of limited rises while all jobs keep what they have."""
    jobs = np.arange(len(worth))
    polytope = SharePolytope(single_units(problem, worth), trail=len(jobs))
    rise = polytope.columns - len(jobs) + jobs
    polytope.add_rates(polytope.speed * _SLACK, None, -reached)
    polytope.add(len(jobs), jobs, rise, 1.0, np.ones(len(jobs)))
    polytope.add(len(jobs), jobs, rise, -1.0, np.zeros(len(jobs)))
    polytope.add_base()
    polytope.add_rates(polytope.speed, None, -reached, trail=_RISE)
    c = np.zeros(polytope.columns)
    c[rise] = -1.0
    point = solver(polytope.program(c))
    return np.zeros(len(jobs), bool) if point is None else point.x[rise] > 0.5
