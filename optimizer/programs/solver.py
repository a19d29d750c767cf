"""Hand a cvxpy program to a solver and say how it went. Decides which solver; knows nothing of jobs.

Importing this module imports cvxpy (seconds): only code that is about to solve does so.
"""

import warnings
from dataclasses import dataclass
from typing import Any

import cvxpy as cp

from optimizer.decision import Status

#: Rows up to which HiGHS's dual simplex is the faster one; above, its interior point method.
_SIMPLEX_ROWS = 1000
#: HiGHS's smallest: a full job must not look short of its best by rounding.
_TOLERANCE = 1e-10
#: Clarabel's, tighter than usual: shares are known to about the root of the gap.
_CLARABEL_TOLERANCES = {"tol_gap_abs": 1e-12, "tol_gap_rel": 1e-12, "tol_feas": 1e-10}
#: Bounds on the work of one program; no clock is read here.
_SIMPLEX_ITERATIONS = 200_000
_IPM_ITERATIONS = 500


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one program ended. Values sit in the program's variables only where `solved`."""

    status: Status
    solver: str
    #: Iterations.
    work: int = 0

    @property
    def solved(self) -> bool:
        """True: the variables hold an optimum of the program as the solver understood it."""
        return self.status is Status.OPTIMAL


def solve_program(program: Any, rows: int) -> Outcome:
    """Solve by HiGHS (a vertex, exact duals); where that fails, by Clarabel.

    Args:
        program: a cvxpy problem.
        rows: constraints, which decide between simplex and interior point.
    """
    outcome = _attempt(program, "highs", _highs_options(rows))
    if outcome.status in (Status.OPTIMAL, Status.INFEASIBLE):
        return outcome
    fallback = solve_by_clarabel(program)
    return fallback if fallback.solved else outcome


def solve_by_clarabel(program: Any) -> Outcome:
    """Solve by an interior point method: logarithms, and the middle of what is optimal."""
    options = {"solver": cp.CLARABEL, "max_iter": _IPM_ITERATIONS, **_CLARABEL_TOLERANCES}
    return _attempt(program, "clarabel", options)


def _highs_options(rows: int) -> dict[str, Any]:
    return {
        "solver": cp.HIGHS,
        "highs_options": {
            "solver": "simplex" if rows <= _SIMPLEX_ROWS else "ipm",
            "simplex_iteration_limit": _SIMPLEX_ITERATIONS,
            "ipm_iteration_limit": _IPM_ITERATIONS,
            "primal_feasibility_tolerance": _TOLERANCE,
            "dual_feasibility_tolerance": _TOLERANCE,
            "threads": 1,
        },
    }


def _attempt(program: Any, name: str, options: dict[str, Any]) -> Outcome:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "may be inaccurate": the certificate measures that
            program.solve(**options)
    except cp.SolverError:
        return Outcome(Status.FAILED, name)
    stats = program.solver_stats
    return Outcome(_STATUS.get(program.status, Status.FAILED), name, int(stats.num_iters or 0) if stats else 0)


_STATUS = {
    cp.OPTIMAL: Status.OPTIMAL,
    cp.OPTIMAL_INACCURATE: Status.OPTIMAL,
    cp.INFEASIBLE: Status.INFEASIBLE,
    cp.INFEASIBLE_INACCURATE: Status.INFEASIBLE,
    cp.USER_LIMIT: Status.WORK_LIMIT,
}
