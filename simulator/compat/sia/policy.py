"""Gavel's sum of throughputs as Sia's simulator states it: rows by name, shares of five decimals."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from optimizer.decision import Memory
from simulator.compat.gavel.cones import ConeSolver, clarabel
from simulator.compat.gavel.policy import Allocation, GavelPolicy
from simulator.compat.gavel.polytope import Polytope, Units
from simulator.compat.gavel.problem import GavelProblem
from simulator.compat.gavel.programs import nothing
from walras.ids import JobId

#: Shares that the solver leaves at 1e-9 are none.
_DECIMALS = 5


@dataclass(frozen=True, slots=True)
class SiaGavel(GavelPolicy):
    """max sum of updates per second."""

    names: Mapping[JobId, str]
    solver: ConeSolver = clarabel

    def allocate(self, problem: GavelProblem, memory: Memory) -> tuple[Allocation, Memory]:
        names = [self.names[JobId(job_id)] for job_id in problem.jobs.job_id.tolist()]
        order = np.array(sorted(range(len(names)), key=names.__getitem__))
        rows, speed = np.arange(len(order)), problem.speed[order]
        nobody = np.full(len(rows), -1)
        units = Units(rows, nobody, problem.count[order], speed, np.zeros_like(speed), len(rows), problem.total)
        polytope = Polytope(units)
        polytope.add_base()
        found = polytope.solve(self.solver, polytope.rate_cost(np.ones(len(problem.total))))
        if found is None:
            return nothing(problem), None
        shares = np.zeros_like(problem.speed)
        shares[order] = np.round(found.x, _DECIMALS)
        return Allocation(shares), None
