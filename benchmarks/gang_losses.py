"""Where the completion times of gangs are lost: the values of `walras` at events, in whole gangs and in parts of them.

A small simulation of one instance with free restarts: at every arrival and end, jobs are valued as `walras` values them
(`optimizer/assignment/column_values.py` has the formula; no job is called overdue), and share out the pools

    whole     in whole gangs, by the assignment that the policy uses
    divided   in any parts of gangs, by the linear program of the same values: what whole gangs cost is the difference

`hindsight` searches weights of the jobs under which the same rule ends them sooner, knowing all that will arrive: what
it finds is a schedule, so the best one is at least as good; a bound that lies below it may or may not be reached.
"""

from collections.abc import Callable

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from optimizer.assignment.assignment_problem import AssignmentProblem
from optimizer.assignment.transportation import assign_by_search
from optimizer.bounds.instance import FloatArray, SchedulingInstance
from optimizer.policies.walras import Walras
from optimizer.problem import BoolArray, IntArray

_RULE = Walras()
#: Parts of a job or of a step below this are rounding.
_ROUNDING = 1e-9
#: The part of the jobs whose weight a step of the search in hindsight changes, and by how much (of its logarithm).
_CHANGED, _CHANGE = 0.1, 1.0
#: By how much the exponent `size` of the policy is larger in what the search begins with.
_SIZES = (0.0, 0.2, 0.4, 0.6)

#: Parts of time of each job on each pool (n, p), from values (n, p; 0: impossible), gangs (n,), capacities (p,), and
#: where each job runs (n, p).
Division = Callable[[FloatArray, FloatArray, FloatArray, BoolArray], FloatArray]


def whole(value: FloatArray, gang: FloatArray, capacity: FloatArray, runs: BoolArray) -> FloatArray:
    """Each job in one pool, or waiting."""
    job, pool = np.nonzero(value > 0)
    share = np.zeros(value.shape)
    if len(job):
        row, column = np.unique(job, return_inverse=True)[1], np.arange(len(job))
        chosen = assign_by_search(
            AssignmentProblem(row, value[job, pool], column, pool, gang[job], capacity, runs[job, pool])
        ).column
        placed = chosen[chosen >= 0]
        share[job[placed], pool[placed]] = 1.0
    return share


def divided(value: FloatArray, gang: FloatArray, capacity: FloatArray, runs: BoolArray) -> FloatArray:
    """Each job in parts: maximise sum v y, s.t. sum_r y <= 1, sum_j gang y <= capacity."""
    job, pool = np.nonzero(value > 0)
    share = np.zeros(value.shape)
    if len(job):
        column = np.arange(len(job))
        rows = sparse.csr_array(
            (
                np.concatenate((np.ones(len(job)), gang[job])),
                (np.concatenate((job, len(value) + pool)), np.concatenate((column, column))),
            ),
            shape=(len(value) + len(capacity), len(job)),
        )
        most = np.concatenate((np.ones(len(value)), capacity))
        found = linprog(-value[job, pool], A_ub=rows, b_ub=most, bounds=(0, 1), method="highs")
        assert found.status == 0, found.message
        share[job, pool] = np.clip(found.x, 0.0, 1.0)
    return share


def completion_times(instance: SchedulingInstance, division: Division, weight: FloatArray) -> FloatArray:
    """Seconds from arrival to end of each job (n,), decided anew at every arrival and end."""
    arrival, rate, gang = instance.arrival_at, instance.steps_per_s, instance.gang
    left, ended, now = instance.steps.copy(), np.full(len(arrival), np.inf), float(arrival.min())
    runs = np.zeros(rate.shape, dtype=np.bool_)
    fits = (rate > 0) & (gang[:, None] <= instance.capacity)
    while np.isinf(ended).any():
        rows = np.flatnonzero((arrival <= now) & np.isinf(ended))
        worth = _values(instance, rows, left[rows], now, runs[rows], weight[rows])
        share = division(np.where(fits[rows], worth, 0.0), gang[rows], instance.capacity, runs[rows])
        runs[rows] = share > 0.5
        speed = (share * rate[rows]).sum(axis=1)
        ends = np.min(left[rows][speed > 0] / speed[speed > 0], initial=np.inf)
        until = min(float(ends), float(np.min(arrival[arrival > now], initial=np.inf)) - now)
        assert np.isfinite(until), "nothing runs and nothing will arrive"
        left[rows] -= speed * until
        now += until
        done = rows[left[rows] <= _ROUNDING * instance.steps[rows]]
        ended[done] = now
        runs[done] = False
    return np.asarray(ended - arrival, dtype=np.float64)


def _values(
    instance: SchedulingInstance, rows: IntArray, left: FloatArray, now: float, runs: BoolArray, weight: FloatArray
) -> FloatArray:
    """What each pool is worth to each of these jobs (k, p)."""
    gang = instance.gang[rows][:, None]
    with np.errstate(divide="ignore"):
        needs_s = np.maximum(left[:, None] / instance.steps_per_s[rows], 1.0)
    needs_s = np.where(runs, needs_s / (1.0 + _RULE.stay), needs_s)
    least_s = needs_s.min(axis=1, keepdims=True)
    waited = (now - instance.arrival_at[rows]) / (instance.alone_s[rows] * _RULE.patience)
    need = gang * least_s / (weight * (1.0 + waited) ** _RULE.aging)[:, None]
    return np.asarray(gang ** (1.0 - _RULE.size) * need**-_RULE.gamma * (least_s / needs_s) ** _RULE.eta)


def in_hindsight(instance: SchedulingInstance, division: Division, steps: int, seed: int) -> float:
    """The least mean completion time, s, under weights found in so many steps, each of which keeps what ends sooner.

    It begins with the weights that come to a larger `size` of the policy, whichever is best.
    """
    random, gamma = np.random.default_rng(seed), _RULE.gamma

    def reached(weight: FloatArray) -> float:
        return float(completion_times(instance, division, weight).mean())

    begun = [instance.gang ** (-more / gamma) for more in _SIZES]
    best, row = min((reached(weight), row) for row, weight in enumerate(begun))
    weight = begun[row]
    for _ in range(steps):
        changed = random.random(len(weight)) < _CHANGED
        tried = weight * np.exp(np.where(changed, random.normal(0.0, _CHANGE / gamma, len(weight)), 0.0))
        found = reached(tried)
        if found < best:
            best, weight = found, tried
    return best
