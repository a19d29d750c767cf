"""Large linear programs solved to somewhere near the middle of their optima, by Clarabel. Decides nothing.

    minimise  cost.x    s.t.  matrix x <= right (= in the rows named),  x >= 0

Such programs are asked again and again while columns join and leave, and what counts is their dual values: a few digits
of these prove as much as all, because what they prove is computed anew. Sparse factors of the whole system take a
third of the time of the basis that HiGHS's interior point method keeps for a vertex that nobody wants yet.
"""

from dataclasses import dataclass
from typing import Any

import clarabel
import numpy as np
from scipy import sparse

from optimizer.problem import BoolArray, FloatArray

_ITERATIONS = 200


@dataclass(frozen=True, slots=True, eq=False)
class Middle:
    """Values of the columns, what one more unit of each row's right-hand side saves, and the iterations it took."""

    x: FloatArray
    saves: FloatArray
    work: int


def solve_to_the_middle(
    matrix: Any, cost: FloatArray, right: FloatArray, equal: BoolArray, tolerance: float
) -> Middle | None:
    """None where Clarabel finds no optimum.

    Args:
        matrix: any sparse one, of m rows and c columns.
        cost: of each column (c,).
        right: right-hand sides; `equal`: rows that are equations (m,).
        tolerance: of gap and residuals, relative.
    """
    rows, columns = matrix.shape
    table = sparse.csr_array(matrix)
    stacked = sparse.vstack((table[equal], table[~equal], -sparse.eye_array(columns)), format="csc")
    equations = int(equal.sum())
    cones = [clarabel.ZeroConeT(equations), clarabel.NonnegativeConeT(rows - equations + columns)]
    sides = np.concatenate((right[equal], right[~equal], np.zeros(columns)))
    nothing = sparse.csc_matrix((columns, columns))
    solved = clarabel.DefaultSolver(
        nothing, cost, sparse.csc_matrix(stacked), sides, cones, _settings(tolerance)
    ).solve()
    if solved.status not in (clarabel.SolverStatus.Solved, clarabel.SolverStatus.AlmostSolved):
        return None
    dual = np.array(solved.z)
    saves = np.zeros(rows)
    saves[equal], saves[~equal] = dual[:equations], dual[equations:rows]
    return Middle(np.maximum(np.array(solved.x), 0.0), saves, int(solved.iterations))


def _settings(tolerance: float) -> Any:
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.max_threads = 1
    settings.max_iter = _ITERATIONS
    settings.tol_gap_rel = settings.tol_gap_abs = settings.tol_feas = tolerance
    settings.iterative_refinement_enable = False  # a third of the time for digits that are not needed
    return settings
