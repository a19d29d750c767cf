"""The omniscient bound as an integer program: an independent check of `omniscient`.

    min sum_t s_t + k v_t   s.t.  s_t + v_t <= 1,  s_t <= a_t,  starts counted from s and v,
                                  slot sum_t (s_t + v_t) >= work + changeover * starts          (Wu and others, 2024)

In whole slots: what the last slot does not need is paid, so it is above the exact optimum by at most one slot's price.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from scheduler.cloud.deadline_job import DeadlineJob


@dataclass(frozen=True, slots=True)
class Optimum:
    """The least cost, in slots of spot: between `at_least`, which is proven, and `usd`, for which there is a plan."""

    usd: float
    at_least: float


def spot_optimum(job: DeadlineJob, available: Sequence[bool], gap: float = 0.0) -> float | None:
    """Least cost in slots of spot, whole slots; None if there is no plan. `gap`: relative, to stop at."""
    found = zones_optimum(job, [available], gap)
    return None if found is None else found.usd


def zones_optimum(
    job: DeadlineJob, zones: Sequence[Sequence[bool]], gap: float = 0.0, limit_s: float = inf
) -> Optimum | None:
    """The same with a spot machine in one of several zones: a zone is a market of its own, so a change is a start.

    `limit_s`: None, too, if it is not solved within so long.
    """
    many, kinds = job.slots, len(zones) + 1
    columns = kinds * many
    held = sparse.identity(columns)
    before = sparse.block_diag([sparse.eye(many, k=-1)] * kinds)
    matrix = sparse.bmat(
        [
            [sparse.hstack([sparse.identity(many)] * kinds), None],  # one machine at a time
            [held - before, -held],  # started >= held now - held before
            [np.full((1, columns), -float(job.slot)), np.full((1, columns), float(job.changeover))],
        ]
    )
    upper = np.concatenate([np.ones(many), np.zeros(columns), [-float(job.work)]])
    can = np.concatenate([*(np.array(zone[:many], dtype=float) for zone in zones), np.ones(many)])
    price = np.concatenate([np.ones(columns - many), np.full(many, job.on_demand_price)])
    found = milp(
        np.concatenate([price, np.zeros(columns)]),
        integrality=np.concatenate([np.ones(columns), np.zeros(columns)]),
        bounds=Bounds(np.zeros(2 * columns), np.concatenate([can, np.ones(columns)])),
        constraints=LinearConstraint(matrix.tocsr(), -np.inf, upper),
        options={"mip_rel_gap": gap, "time_limit": limit_s},
    )
    return Optimum(float(found.fun), float(found.mip_dual_bound)) if found.status == 0 else None
