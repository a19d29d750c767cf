"""Linear and integer programs over the configurations of contested jobs, as HiGHS solves them (through scipy).

maximise  v.y    s.t.  one column a job,  use.y <= capacity,  0 <= y <= 1  (and whole, in `whole`)
"""

from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

from optimizer.problem import FloatArray, IntArray

#: Branch and bound ends after so many nodes, with the gap that is then left.
_NODES = 50_000
_WHOLE = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Columns of the jobs that compete: owner 0..m-1 (c,), value (c,), accelerators used (p, c), capacity (p,)."""

    owner: IntArray
    value: FloatArray
    load: sparse.csr_array
    capacity: FloatArray

    def rows(self) -> tuple[sparse.csr_array, FloatArray]:
        """Rows of jobs, then of pools, with their limits."""
        jobs = int(self.owner.max()) + 1
        one = sparse.csr_array((np.ones(len(self.owner)), (self.owner, np.arange(len(self.owner)))))
        limits = np.concatenate([np.ones(jobs), self.capacity])
        return sparse.csr_array(sparse.vstack([one, self.load])), limits


def prices_of(program: Program) -> FloatArray | None:
    """Prices of the pools at the fluid optimum (p,); None where no solver answered."""
    rows, limits = program.rows()
    scale = float(program.value.max())
    found = linprog(-program.value / scale, A_ub=rows, b_ub=limits, bounds=(0, None), method="highs")
    if found.status != 0:
        return None
    duals: FloatArray = np.maximum(-found.ineqlin.marginals[-len(program.capacity) :], 0.0) * scale
    return duals


def whole(program: Program, tolerance: float) -> tuple[IntArray | None, float]:
    """(columns chosen, a bound on the best choice): the best whole choice within the tolerance, None without one."""
    rows, limits = program.rows()
    scale = float(program.value.max())
    found = milp(
        -program.value / scale,
        constraints=LinearConstraint(rows, ub=limits),
        integrality=np.ones(len(program.value)),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": tolerance, "node_limit": _NODES},
    )
    bound = np.inf if found.mip_dual_bound is None else -float(found.mip_dual_bound) * scale
    return (None if found.x is None else np.flatnonzero(found.x > _WHOLE)), bound
