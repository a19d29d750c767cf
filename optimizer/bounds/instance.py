"""A scheduling instance as lower bounds see it: arrivals, work, gangs, speeds. Two of the bounds are here as well.

Without contention every job has the fleet to itself. The makespan's bound is a fluid linear program in which jobs and
gangs are divisible:

    minimise T   s.t.  sum_r rate[j,r] t[j,r] = steps[j],   sum_r t[j,r] <= T - arrival[j],
                       sum_j gang[j] t[j,r] <= capacity[r] (T - first arrival)

t[j,r] is the time that job j spends on pool r. Every schedule's times satisfy this, so no makespan is smaller. Arrivals
limit a job only by its own length.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class SchedulingInstance:
    """n jobs on p pools of constant capacity."""

    #: Instants of arrival, seconds (n,).
    arrival_at: FloatArray
    #: Work of each job, steps > 0 (n,).
    steps: FloatArray
    #: Accelerators of each gang (n,).
    gang: FloatArray
    #: Steps per second of the whole gang on each pool; 0 where it cannot run (n, p).
    steps_per_s: FloatArray
    #: Accelerators of each pool (p,).
    capacity: FloatArray

    def __post_init__(self) -> None:
        if not (self.steps_per_s.max(axis=1, initial=0.0) > 0).all():
            raise ValueError(
                f"job row {int(np.argmin(self.steps_per_s.max(axis=1)))} can run nowhere: nothing bounds it"
            )

    @property
    def alone_s(self) -> FloatArray:
        """Seconds that each job takes alone in the fleet, on its fastest pool (n,)."""
        alone: FloatArray = self.steps / self.steps_per_s.max(axis=1)
        return alone


def no_contention_jct_s(instance: SchedulingInstance) -> float:
    """Returns the mean completion time, in seconds, if every job had the fleet to itself."""
    return float(instance.alone_s.mean())


def fluid_makespan_s(instance: SchedulingInstance) -> float:
    """Returns a lower bound on the makespan, in seconds from the first arrival. It loads SciPy's solver."""
    from scipy import sparse
    from scipy.optimize import linprog

    jobs, pools = instance.steps_per_s.shape
    first = float(instance.arrival_at.min())
    late = instance.arrival_at - first
    scale = float(instance.alone_s.max())  # Scales the rows to order one.
    column = np.arange(jobs * pools)
    job, pool = np.divmod(column, pools)
    work = sparse.csr_array((instance.steps_per_s.ravel() * scale / instance.steps[job], (job, column)))
    time = sparse.csr_array((np.ones(len(column)), (job, column)))
    use = sparse.csr_array((instance.gang[job] / instance.capacity[pool], (pool, column)))
    found = linprog(
        np.r_[np.zeros(len(column)), 1.0],
        A_ub=sparse.vstack(
            [sparse.hstack([time, -np.ones((jobs, 1))]), sparse.hstack([use, -np.ones((pools, 1))])], format="csr"
        ),
        b_ub=np.concatenate([-late / scale, np.zeros(pools)]),
        A_eq=sparse.hstack([work, np.zeros((jobs, 1))], format="csr"),
        b_eq=np.ones(jobs),
        bounds=(0, None),
        method="highs",
    )
    if found.status != 0:
        raise ValueError(f"the fluid makespan was not found: {found.message}")
    return float(found.fun) * scale
