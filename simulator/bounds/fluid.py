"""Makespan of the fluid fleet: jobs divided at will, gangs too, arrivals respected only by a job's own length.

    minimise T   s.t.  sum_r rate[j,r] t[j,r] = steps[j],   sum_r t[j,r] <= T - arrival[j],
                       sum_j gang[j] t[j,r] <= capacity[r] (T - first arrival)

t[j,r] is the time that job j spends on pool r. Every schedule's times satisfy this, so no makespan is smaller.
Importing this module imports scipy's solver.
"""

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from simulator.bounds.instance import Instance


def makespan_bound_s(instance: Instance) -> float:
    """Lower bound on the instant at which the last job ends, counted from the first arrival."""
    jobs, pools = instance.steps_per_s.shape
    first = float(instance.arrival_at.min())
    late = instance.arrival_at - first
    scale = float(instance.alone_s.max())  # rows of order one
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
