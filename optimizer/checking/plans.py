"""Is a plan possible, and does it hold together? What places are worth is the policy's own to say."""

from collections.abc import Iterator

import numpy as np

from optimizer.decision import Plan
from optimizer.problem import Problem

#: A pool may be exceeded by this part of what it has.
_FEASIBLE = 1e-6


def about_plan(problem: Problem, plan: Plan) -> Iterator[str]:
    """Complaints about a plan."""
    n, columns, pools = len(problem.jobs), problem.columns, problem.pools
    if sorted(plan.rows.tolist()) != list(range(n)) or len(plan.column) != n:
        yield "the plan does not name every job exactly once"
        return
    placed = np.flatnonzero(plan.column >= 0)
    chosen = plan.column[placed]
    if np.any(chosen >= len(columns)) or np.any(columns.job[chosen] != placed):
        yield "a job is planned in a configuration that it has not"
        return
    if np.any(columns.steps_per_s[chosen] <= 0):
        yield "a job is planned in a configuration that cannot run"
    held = np.isin(columns.use_column, chosen)
    used = np.bincount(columns.use_pool[held], columns.use_count[held], len(pools))
    for row in np.flatnonzero(used > pools.capacity * (1 + _FEASIBLE) + _FEASIBLE):
        yield f"{pools.pool_id[row]}: {used[row]:g} accelerators are planned, {pools.capacity[row]:g} are there"
    if not np.all(plan.quote.prices >= 0) or not np.all(plan.surplus >= 0):
        yield "a price or a surplus is negative"
    yardstick = plan.yardstick
    if yardstick is not None and yardstick.objective > yardstick.bound * (1 + _FEASIBLE) + _FEASIBLE:
        yield f"{yardstick.name}: {yardstick.objective:.9g} is above its bound, {yardstick.bound:.9g}"
