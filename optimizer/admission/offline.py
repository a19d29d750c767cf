"""The best that anybody could have admitted, all arrivals known: a packing of schedules, for instances of a few rounds.

All schedules are listed, so the size is exponential in the rounds. Importing this module imports scipy's solver.
"""

from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from optimizer.admission.instance import Instance, Schedule
from optimizer.admission.schedules import every_schedule
from optimizer.problem import FloatArray


@dataclass(frozen=True, slots=True)
class Optimum:
    """The largest sum of utilities."""

    #: Of schedules that somebody could keep, and what is proved that nobody exceeds: equal to within the gap asked for.
    value: float
    bound: float
    #: Of fractions of schedules.
    relaxed: float


def offline_optimum(instance: Instance, gap: float = 1e-4) -> Optimum:
    """Solve max sum U z, at most one schedule a job, within every slot's capacity; to a relative `gap`."""
    worth, owner, use = [], [], []
    for row, job in enumerate(instance.applicants):
        for schedule in _undominated(list(every_schedule(instance, job))):
            worth.append(schedule.utility)
            owner.append(row)
            use.append(schedule.use.ravel())
    if not worth:
        return Optimum(0.0, 0.0, 0.0)
    once = sparse.csr_array((np.ones(len(owner)), (owner, np.arange(len(owner)))))
    slots = sparse.csr_array(np.array(use, dtype=np.float64).T)
    limits = np.concatenate([np.ones(once.shape[0]), np.tile(instance.capacity, instance.rounds)])
    rows = LinearConstraint(sparse.vstack([once, slots]).tocsc(), ub=limits)
    value, bound = _most(np.array(worth), rows, gap)
    return Optimum(value, bound, _most(np.array(worth), rows, None)[1])


def _undominated(schedules: list[Schedule]) -> list[Schedule]:
    """Without those that another replaces: one worth no less that holds no more in any slot."""
    schedules.sort(key=lambda schedule: (schedule.use.sum(), -schedule.utility))
    kept: list[Schedule] = []
    uses = np.zeros((len(schedules), schedules[0].use.size if schedules else 0), dtype=np.int64)
    worth = np.zeros(len(schedules))
    for schedule in schedules:
        use, count = schedule.use.ravel(), len(kept)
        if not ((uses[:count] <= use).all(axis=1) & (worth[:count] >= schedule.utility)).any():
            uses[count], worth[count] = use, schedule.utility
            kept.append(schedule)
    return kept


def _most(worth: FloatArray, rows: LinearConstraint, gap: float | None) -> tuple[float, float]:
    """The best sum found and a bound on it; of whole schedules to within the gap, of fractions without one."""
    options = {} if gap is None else {"mip_rel_gap": gap}
    whole = np.full(len(worth), gap is not None)
    found = milp(-worth, constraints=rows, integrality=whole, bounds=Bounds(0, 1), options=options)
    assert found.success, found.message
    return float(-found.fun), float(-(found.fun if gap is None else found.mip_dual_bound))
