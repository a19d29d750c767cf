"""What an hour of use of a rented machine costs, when it comes late and is billed for some time at least.

    usd per useful hour = usd_per_h * (1 + hysteresis) * max(use, minimum billing) / use

use: how long there is work for it once it has come. Booting is not paid, but work goes on meanwhile: a machine that
comes when all is done is of no use at any price. A machine that is held, or on its way, costs its market price: what is
spent is spent. So a machine is fetched only for more than what keeps one. The hysteresis stands for what nobody states:
whoever moves to the machine is restarted. Whether it is worth that is decided in `optimizer.renting.machines`.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.arrays.owners import best_by
from optimizer.fairness.utility import usable_columns
from optimizer.problem import BoolArray, FloatArray, Problem

#: A machine must be worth this part more than its price to be fetched, or prices that wander would move jobs about.
HYSTERESIS = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class Fetching:
    """What machines are that are still to be asked for."""

    #: There is work for it when it comes (p,).
    useful: BoolArray
    #: Price of an accelerator per useful hour, USD, at least its market price (p,).
    usd_per_h: FloatArray


def fetching(problem: Problem, value: FloatArray, largest: FloatArray) -> Fetching:
    """Use and price of machines that are not there yet.

    Args:
        problem: n jobs, p pools.
        value: of an hour of each job, USD; jobs without any rent nothing (n,).
        largest: accelerators of each pool if all were rented (p,).
    """
    pools = problem.pools
    if not (pools.boot_s.any() or pools.minimum_billing_s.any()):
        return Fetching(np.ones(len(pools), dtype=bool), pools.usd_per_h)
    boot_s, least_s = (each if len(each) else np.zeros(len(pools)) for each in (pools.boot_s, pools.minimum_billing_s))
    use_s = _use_s(problem, value, largest, boot_s)
    ends = (use_s > 0) & np.isfinite(use_s)
    times = np.divide(np.maximum(use_s, least_s), use_s, out=np.ones(len(pools)), where=ends)
    return Fetching(use_s > 0, pools.usd_per_h * times * (1.0 + HYSTERESIS))


def _use_s(problem: Problem, value: FloatArray, largest: FloatArray, boot_s: FloatArray) -> FloatArray:
    """Seconds of work for a machine of each pool after its boot: inf for a job of unknown length (p,).

    Of the longest job, if until then it runs at its best on the machines that are there; or of all jobs one after
    another on all that there would be, if all machines that are there work off theirs until then.
    """
    columns, jobs, pools = problem.columns, problem.jobs, problem.pools
    counts = usable_columns(columns, largest) & (value[columns.job] > 0)
    now = np.where(usable_columns(columns, pools.capacity), columns.steps_per_s, 0.0)
    pace = best_by(columns.job, now, len(jobs))[columns.job][columns.use_column]
    speed = np.where(counts, columns.steps_per_s, np.inf)[columns.use_column]
    left = jobs.remaining_steps[columns.job][columns.use_column]
    pool, taken = columns.use_pool, np.where(np.isfinite(speed), columns.use_count, 0.0)
    longest_s, work = np.zeros(len(pools)), np.zeros(len(pools))
    late = np.where(np.isfinite(left), np.maximum(left - pace * boot_s[pool], 0.0), left)
    np.maximum.at(longest_s, pool, np.where(taken > 0, late, 0.0) / speed)
    np.add.at(work, pool, np.where(taken > 0, left * taken, 0.0) / speed)
    queued = np.maximum(work - boot_s * pools.capacity.sum(), 0.0)
    return np.asarray(np.maximum(longest_s, np.divide(queued, largest, out=np.zeros(len(pools)), where=largest > 0)))
