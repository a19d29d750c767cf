"""Gavel's water filling without entities: raise the least, freeze who cannot rise further, and again.

Who can rise is asked of a linear program. Gavel asks a mixed-integer one, whose answer is the same but for ties: a mean
of points in which some rise is a point in which all of them do.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.decision import Memory
from optimizer.problem import BoolArray, FloatArray
from simulator.compat.gavel.cones import ConeSolver, clarabel
from simulator.compat.gavel.policy import Allocation, GavelPolicy
from simulator.compat.gavel.polytope import Polytope, singles
from simulator.compat.gavel.problem import GavelProblem
from simulator.compat.gavel.programs import nothing, proportional_rate

#: A job rises if it can gain this much; what was reached before may be missed by this factor.
_RISE, _SLACK = 1e-5, 1.0001


@dataclass(frozen=True, slots=True)
class WaterFilling(GavelPolicy):
    """Max-min fairness, level by level: in each the same gain times gang over weight for all who can gain."""

    solver: ConeSolver = clarabel

    def allocate(self, problem: GavelProblem, memory: Memory) -> tuple[Allocation, Memory]:
        count, weight = problem.count.astype(float), problem.jobs.weight
        worth = problem.speed / proportional_rate(problem, problem.speed)[:, None]
        reached, rising = np.zeros(len(count)), np.ones(len(count), bool)
        found = nothing(problem)
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
    ) -> tuple[Allocation, float] | None:
        """max min of (worth x - reached) s/w over those who rise; nobody falls below what was reached."""
        polytope = Polytope(singles(problem, worth), lead=1)
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
    """max sum of rises, none above what counts as one, while all keep what they have."""
    jobs = np.arange(len(worth))
    polytope = Polytope(singles(problem, worth), trail=len(jobs))
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
