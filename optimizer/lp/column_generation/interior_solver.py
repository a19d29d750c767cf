"""Clarabel's interior point method for large linear programs: near the middle of the optima, or near a vertex.

    minimise  cost.x   s.t.  matrix x <= right (= where `equal`),  x >= 0

An interior point method ends in the middle of all optima, where nearly every column has a share of time. With a small
cost of its own on each column the optimum is a vertex: `solve_near_vertex` decides which columns are zero there and
which rows hold with equality by which is larger, the value or its dual value, and then removes the rest of the error
by a projection onto those rows. This takes a quarter of the time of an interior point method with crossover.
"""

from dataclasses import dataclass, replace
from typing import Any

import clarabel
import numpy as np
from scipy import sparse
from scipy.sparse.linalg import splu

from optimizer.problem import BoolArray, FloatArray

_ITERATIONS = 200
#: Sum of the columns' own small costs, as a part of the objective, if every class runs all the time in one column.
_TILT = 1e-3
#: The fractional part of the golden ratio: its multiples modulo 1 are spread evenly, so no two columns have the same
#: cost.
_SPREAD = 0.6180339887498949
_VERTEX_TOLERANCE = 1e-9
#: The part of the diagonal that is added to it, because rows that hold with equality may depend on each other; and its
#: value in a row in which no column runs.
_REGULAR, _EMPTY_ROW = 1e-12, 1e-20
#: The number of projections; in each a value shrinks to no less than the part `_LEAST` of it.
_PROJECTIONS, _LEAST = 4, 0.01


@dataclass(frozen=True, slots=True, eq=False)
class BoundedProgram:
    """Minimise cost.x, matrix x <= right (= where `equal`), x >= 0; the last column is the level, or fixed at zero."""

    matrix: sparse.csc_array
    cost: FloatArray
    right: FloatArray
    equal: BoolArray


@dataclass(frozen=True, slots=True, eq=False)
class ClarabelSolution:
    """Values of the columns, what one more unit of each row's right-hand side saves, and the iterations it took."""

    x: FloatArray
    saves: FloatArray
    work: int


def solve_by_interior_point(program: BoundedProgram, tolerance: float) -> ClarabelSolution | None:
    """Returns a solution in the middle of the optima; None where Clarabel finds no optimum.

    Clarabel solves the dual program. Its variables are the rows, of which there are a quarter as many as columns, so an
    iteration takes less time.

    Args:
        program: m rows, c columns.
        tolerance: relative tolerance of the gap and of residuals.
    """
    (rows, columns), signed = program.matrix.shape, np.flatnonzero(~program.equal)
    signs = sparse.csc_array((np.full(len(signed), -1.0), (np.arange(len(signed)), signed)), shape=(len(signed), rows))
    stacked = sparse.vstack((-program.matrix.T, signs), format="csc")
    sides = np.concatenate((program.cost, np.zeros(len(signed))))
    cones = [clarabel.NonnegativeConeT(columns + len(signed))]
    found = _solve(program.right, stacked, sides, cones, tolerance)
    if found is None:
        return None
    saves = np.array(found.x)
    saves[signed] = np.maximum(saves[signed], 0.0)
    return ClarabelSolution(np.maximum(np.array(found.z)[:columns], 0.0), saves, int(found.iterations))


def _solve_for_values(program: BoundedProgram, tolerance: float) -> ClarabelSolution | None:
    """Returns the same by the program itself, whose values of columns are the more accurate ones."""
    (rows, columns), equal = program.matrix.shape, program.equal
    table = sparse.csr_array(program.matrix)
    stacked = sparse.vstack((table[equal], table[~equal], -sparse.eye_array(columns)), format="csc")
    equations = int(equal.sum())
    cones = [clarabel.ZeroConeT(equations), clarabel.NonnegativeConeT(rows - equations + columns)]
    sides = np.concatenate((program.right[equal], program.right[~equal], np.zeros(columns)))
    found = _solve(program.cost, stacked, sides, cones, tolerance)
    if found is None:
        return None
    dual = np.array(found.z)
    saves = np.zeros(rows)
    saves[equal], saves[~equal] = dual[:equations], dual[equations:rows]
    return ClarabelSolution(np.maximum(np.array(found.x), 0.0), saves, int(found.iterations))


def _solve(cost: FloatArray, stacked: sparse.csc_array, sides: FloatArray, cones: list[Any], tolerance: float) -> Any:
    """Minimises cost.x where sides - stacked x lies in the cones; None without an optimum."""
    nothing = sparse.csc_matrix((len(cost), len(cost)))
    solver = clarabel.DefaultSolver(nothing, cost, sparse.csc_matrix(stacked), sides, cones, _settings(tolerance))
    found = solver.solve()
    solved = found.status in (clarabel.SolverStatus.Solved, clarabel.SolverStatus.AlmostSolved)
    return found if solved else None


def _settings(tolerance: float) -> Any:
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.max_threads = 1
    settings.max_iter = _ITERATIONS
    settings.tol_gap_rel = settings.tol_gap_abs = settings.tol_feas = tolerance
    settings.iterative_refinement_enable = False  # saves a third of the time; its digits are not needed
    settings.direct_solve_method = "qdldl"  # "auto" may choose the supernodal one, which takes three times as long here
    return settings


def solve_near_vertex(program: BoundedProgram, classes: int) -> ClarabelSolution | None:
    """Returns a vertex whose objective is within about 1e-5 of the optimum.

    Returns None where Clarabel finds no optimum, or the rows that hold with equality are too near to each other.

    Args:
        program: its last column is the level.
        classes: the number of classes, whose time the columns share.
    """
    columns = program.matrix.shape[1]
    own = 1 + np.mod(np.arange(columns) * _SPREAD, 1.0)
    own[-1] = 0.0
    scale = float(np.abs(program.cost).max())
    cost = program.cost + _TILT * scale / classes * own
    found = _solve_for_values(replace(program, cost=cost), _VERTEX_TOLERANCE)
    if found is None:
        return None
    unused = cost + program.matrix.T @ found.saves
    left = program.right - program.matrix @ found.x
    runs, tight = found.x > unused, program.equal | (left < found.saves)
    try:
        return replace(found, x=_projected(program, found.x, runs, tight))
    except RuntimeError:  # SuperLU's word for a matrix that is singular to the last digit
        return None


def _projected(program: BoundedProgram, x: FloatArray, runs: BoolArray, tight: BoolArray) -> FloatArray:
    """Returns the values after projection onto the tight rows: only columns that run change, in proportion to them.

    Raises RuntimeError where the rows cannot be told apart.
    """
    runs = runs.copy()
    runs[-1] = False  # The level stays as it is: its column is dense.
    whole = np.where(runs, x, 0.0)
    whole[-1] = x[-1]
    table = sparse.csr_array(program.matrix[:, runs])[tight]
    right = program.right[tight] - program.matrix[:, [-1]].toarray().ravel()[tight] * x[-1]
    x = whole[runs]
    weight = x**2
    normal = (table @ sparse.diags_array(weight) @ table.T).tocsc()
    diagonal = np.maximum(normal.diagonal() * _REGULAR, _EMPTY_ROW)
    factors = splu(
        normal + sparse.diags_array(diagonal, format="csc"),
        permc_spec="MMD_AT_PLUS_A",
        diag_pivot_thresh=0.0,
        options={"SymmetricMode": True},
    )
    for _ in range(_PROJECTIONS):
        x = np.maximum(x + weight * (table.T @ factors.solve(right - table @ x)), _LEAST * x)
    whole[runs] = x
    return whole
