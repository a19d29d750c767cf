"""The one policy of Shockwave's simulator that is not Gavel's own program."""

from dataclasses import dataclass

import numpy as np

from optimizer.decision import Memory
from simulator.compat.gavel.policy import Allocation, GavelPolicy
from simulator.compat.gavel.problem import GavelProblem


@dataclass(frozen=True, slots=True)
class GandivaFair(GavelPolicy):
    """Accelerators over jobs, for every job: as shipped, whatever its gang."""

    def allocate(self, problem: GavelProblem, memory: Memory) -> tuple[Allocation, Memory]:
        share = min(1.0, float(problem.total.sum()) / len(problem.jobs))
        return Allocation(np.where(problem.speed > 0, share, 0.0)), None
