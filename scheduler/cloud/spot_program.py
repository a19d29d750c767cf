"""The omniscient bound as an integer program: an independent check of `omniscient`, for tests and benchmarks.

    min sum_t s_t + k v_t   s.t.  s_t + v_t <= 1,  s_t <= a_t,  starts counted from s and v,
                                  slot sum_t (s_t + v_t) >= work + changeover * starts          (Wu and others, 2024)

In whole slots: what the last slot does not need is paid, so it is above the exact optimum by at most one slot's price.
"""

from collections.abc import Sequence

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from scheduler.cloud.deadline_job import DeadlineJob


def spot_optimum(job: DeadlineJob, available: Sequence[bool], gap: float = 0.0) -> float | None:
    """Least cost in slots of spot, whole slots; None if there is no plan. `gap`: relative, to stop at."""
    many = job.slots
    # Columns: spot held, on demand held, spot started, on demand started; each slot by slot.
    can = np.array([float(available[index]) for index in range(many)])
    cost = np.concatenate([np.ones(many), np.full(many, job.on_demand_price), np.zeros(2 * many)])
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []

    def put(row: int, column: int, value: float) -> None:
        rows.append(row)
        columns.append(column)
        values.append(value)

    for index in range(many):
        put(index, index, 1.0)
        put(index, many + index, 1.0)
        for kind in range(2):
            # started >= held now - held before
            row = many * (1 + kind) + index
            put(row, kind * many + index, 1.0)
            put(row, (2 + kind) * many + index, -1.0)
            if index:
                put(row, kind * many + index - 1, -1.0)
    for column in range(4 * many):
        put(3 * many, column, -float(job.slot) if column < 2 * many else float(job.changeover))
    upper = np.concatenate([np.ones(many), np.zeros(2 * many), [-float(job.work)]])
    matrix = coo_array((values, (rows, columns)), shape=(3 * many + 1, 4 * many))
    found = milp(
        cost,
        integrality=np.concatenate([np.ones(2 * many), np.zeros(2 * many)]),
        bounds=Bounds(np.zeros(4 * many), np.concatenate([can, np.ones(3 * many)])),
        constraints=LinearConstraint(matrix.tocsr(), -np.inf, upper),
        options={"mip_rel_gap": gap},
    )
    return float(found.fun) if found.status == 0 else None
