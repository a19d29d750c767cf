"""The polytope of shares over which Gavel's programs optimise, in conic form for an interior-point solver.

    X >= 0;  accelerators of each type: sum s X <= N;  time of each job: sum X <= 1

Columns: type by type in alphabetical order, in each type the units (single jobs by id, then pairs); `lead` columns come
before them and `trail` columns after them. A program minimises c'x where h - Gx lies in a cone.

The choice among several optimal points changes Gavel's results, because its mechanism assigns leftover accelerators by
shares of 1e-9. The solver is therefore fixed: Clarabel, which like the ECOS of the recorded runs ends inside the set of
optimal points, not at a corner of it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np

from optimizer.problem import FloatArray, IntArray
from simulator.worlds.gavel.gavel_policy import GavelAllocation, GavelProblem, PairSpeeds


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
    """Returns one unit for each job."""
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
    names = [problem.pools.accelerator[row] for row in problem.pool_row.tolist()]
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
