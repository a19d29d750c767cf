"""The fair-share utility of a share of time, weights under projects, and finish times against an equal split.

Symbols: T[c] steps/s of column c, N[p] accelerators of pool p, s[m] accelerators of job m's gang, M jobs.

    equal[m] = sum_p T[m,p] N[p] / sum_p N[p]       steps/s if m's time were split over the pools by their size
    rate[c]  = T[c]                                 aware: the column's own speed
    rate[c]  = equal[m] accelerators[c] / s[m]      agnostic: every accelerator has the job's average speed
    worth[c] = s[m] rate[c] / equal[m]              utility of running column c all the time
    u[m]     = sum_c worth[c] x[c]                  utility, in accelerators of the fleet's average speed for m

So u = s for a gang that runs all the time on an equal split of the pools, and a fleet of N accelerators has about N
units to give. This is Gavel's objective (s[m]/w[m]) thr[m](x) / equal[m] (Narayanan et al., OSDI 2020), with u set
against w; agnostic, a utility is simply a number of accelerators. A column that makes no step, or whose gang is larger
than a whole pool, is not usable: it never gets a share.

Finish-time fairness (Themis) compares with the time that a job would take alone on 1/M of every pool:

    iso   steps/s of a job that has 1/M of every pool to itself
    A     seconds in which the steps done so far would have been done alone, at the isolated rates of then
    D     A + R / iso: how long the whole job takes alone, R its steps left

A grows at each solve by (steps left at the last solve - steps left now) / (isolated rate at the last solve).
"""

from dataclasses import dataclass

import numpy as np

from optimizer.classes.segments import max_by, sum_by
from optimizer.decision import Memory
from optimizer.policy import Newcomer
from optimizer.problem import BoolArray, Columns, FloatArray, IntArray, Jobs, Problem

#: A job within this part of its own best counts as full, so that rounding cannot make it look starved.
FULL = 1e-9
#: Slack for comparing counts that were computed in floating point.
_WHOLE = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Utility:
    """The utilities of a problem's columns, and the entitlements of its jobs."""

    #: Columns that can run (c,).
    usable: BoolArray
    #: Steps/s of a column as the policy sees them; 0 where it is not usable (c,).
    rate: FloatArray
    #: Steps/s of each job if its time were split over the pools by their size; 0 where nothing is usable (n,).
    equal: FloatArray
    #: Utility of a column that runs all the time; 0 where it is not usable (c,).
    worth: FloatArray
    #: Entitlement of each job against the others, projects divided among their jobs; 0 where nothing is usable (n,).
    weight: FloatArray
    #: Utility of each job's best column, alone in the fleet; 0 where nothing is usable (n,).
    best: FloatArray


def fair_share_utility(problem: Problem, *, aware: bool) -> Utility:
    """Returns the utility of every column, on the capacity that the problem states."""
    columns, jobs, pools = problem.columns, problem.jobs, problem.pools
    usable = usable_columns(columns, pools.capacity)
    equal = equal_split_rate(columns, usable, pools.capacity, len(jobs))
    average = np.divide(equal, jobs.gang, out=np.zeros(len(jobs)), where=equal > 0)[columns.job]  # of one accelerator
    accelerators = column_accelerators(columns)
    rate = np.where(usable, columns.steps_per_s if aware else average * accelerators, 0.0)
    worth = np.where(usable, accelerators, 0.0)
    if aware:
        np.divide(rate, average, out=worth, where=usable)
    best = max_by(columns.job, worth, len(jobs))
    return Utility(usable, rate, equal, worth, entitled_weights(problem, best > 0), best)


def newcomer_worth(newcomer: Newcomer, *, aware: bool) -> FloatArray:
    """Returns the utility of each configuration of a job that arrived after the problem was stated (c,); 0 where it
    cannot run.
    """
    columns = _newcomer_columns(newcomer)
    usable = usable_columns(columns, newcomer.capacity)
    if not aware or not usable.any():
        return np.where(usable, newcomer.count, 0.0)
    equal = equal_split_rate(columns, usable, newcomer.capacity, 1)[0]
    return np.where(usable, newcomer.count.min() * newcomer.steps_per_s / equal, 0.0)


def newcomer_rate(newcomer: Newcomer, *, aware: bool) -> FloatArray:
    """Returns the steps per second of each configuration of an arriving job as the policy sees them (c,); 0 where it
    cannot run.
    """
    columns = _newcomer_columns(newcomer)
    usable = usable_columns(columns, newcomer.capacity)
    if aware or not usable.any():
        return np.where(usable, newcomer.steps_per_s, 0.0)
    equal = equal_split_rate(columns, usable, newcomer.capacity, 1)[0]
    return np.where(usable, equal * newcomer.count / newcomer.count.min(), 0.0)


def _newcomer_columns(newcomer: Newcomer) -> Columns:
    count = len(newcomer.count)
    return Columns(
        job=np.zeros(count, dtype=np.int64),
        steps_per_s=newcomer.steps_per_s,
        use_column=np.arange(count),
        use_pool=newcomer.pool,
        use_count=newcomer.count,
        running=np.zeros(count, dtype=bool),
    )


def usable_columns(columns: Columns, capacity: FloatArray) -> BoolArray:
    """Returns whether each column makes progress and its gang fits each pool that it uses while nothing else runs
    (c,).
    """
    usable: BoolArray = columns.steps_per_s > 0
    too_large = columns.use_count > capacity[columns.use_pool] + _WHOLE
    usable[columns.use_column[too_large]] = False
    return usable


def equal_split_rate(columns: Columns, usable: BoolArray, capacity: FloatArray, jobs: int) -> FloatArray:
    """Returns the steps per second of each job if its time were split over the pools by their size (n,).

    A pool counts with the speed of the job's column of `pool_columns`, with 0 where there is none. Mixed gangs have no
    pool of their own: they count only for a job that has nothing else, which is then compared with its own best rate.
    """
    chosen = pool_columns(columns, usable)
    speed = columns.steps_per_s[chosen.column] * capacity[chosen.pool]
    job = columns.job[chosen.column]
    equal = sum_by(job, speed, jobs) / max(float(capacity.sum()), 1.0)
    return np.where(equal > 0, equal, max_by(columns.job, np.where(usable, columns.steps_per_s, 0.0), jobs))


@dataclass(frozen=True, slots=True, eq=False)
class PoolColumns:
    """One column for each pool that a job can use alone: parallel arrays, by job, then pool."""

    column: IntArray
    pool: IntArray
    count: FloatArray


def pool_columns(columns: Columns, usable: BoolArray) -> PoolColumns:
    """Returns one column for each pool that a job can use alone: its smallest usable gang there, the fastest of
    equals.
    """
    uses = np.bincount(columns.use_column, minlength=len(columns))
    start = np.cumsum(uses) - uses
    single = np.flatnonzero(usable & (uses == 1))
    pool, count, speed = columns.use_pool[start[single]], columns.use_count[start[single]], columns.steps_per_s[single]
    place = columns.job[single] * (int(pool.max(initial=0)) + 1) + pool
    if not np.all(place[1:] > place[:-1]):  # a job has several columns in a pool, or pools in another order
        places = int(place.max()) + 1
        smallest, fastest = np.full(places, np.inf), np.zeros(places)
        np.minimum.at(smallest, place, count)
        eligible = count == smallest[place]
        np.maximum.at(fastest, place, np.where(eligible, speed, 0.0))
        eligible &= speed == fastest[place]
        first = np.full(places, len(place))
        np.minimum.at(first, place[eligible], np.flatnonzero(eligible))
        chosen = first[first < len(place)]
        single, pool, count = single[chosen], pool[chosen], count[chosen]
    return PoolColumns(single, pool, count)


def entitled_weights(problem: Problem, placeable: BoolArray) -> FloatArray:
    """Returns the weights of the jobs after projects have divided theirs among their jobs (n,).

    Each project that has a placeable job holds (its weight / weights of such projects) of the total, and divides it in
    proportion to its jobs' weights. The total is that of the jobs' own weights, so one project changes nothing.
    """
    jobs: Jobs = problem.jobs
    weight = np.where(placeable, jobs.weight, 0.0)
    if not len(problem.entities):
        return weight
    project, all_of_them = problem.entities.top[jobs.entity], weight * jobs.counts
    within = sum_by(project, all_of_them, len(problem.entities))
    entity = np.where(within > 0, problem.entities.weight, 0.0)
    if not entity.sum() > 0:
        return np.zeros(len(jobs))
    part = np.divide(entity, within, out=np.zeros(len(entity)), where=within > 0) / entity.sum()
    entitled: FloatArray = weight * part[project] * all_of_them.sum()
    return entitled


def column_accelerators(columns: Columns) -> FloatArray:
    """Returns the accelerators that each column uses over all pools (c,)."""
    return sum_by(columns.use_column, columns.use_count, len(columns))


def column_costs(columns: Columns, prices: FloatArray) -> FloatArray:
    """Returns the price of running each column all the time (c,)."""
    return sum_by(columns.use_column, columns.use_count * prices[columns.use_pool], len(columns))


def max_min_level(utility: FloatArray, weight: FloatArray, cap: FloatArray, full: float = FULL) -> float:
    """Returns the level that utilities reach: the largest z with u >= min(w z, cap) for every job with a weight.

    A job within `full` of its cap counts as full, so that rounding cannot make it look starved. Where all jobs are
    full, it is the level at which the last one was filled; where no job has a weight, 0.
    """
    entitled = weight > 0
    if not entitled.any():
        return 0.0
    highest = float((cap[entitled] / weight[entitled]).max())
    short = entitled & (utility < cap * (1 - full))
    return min(float((utility[short] / weight[short]).min()), highest) if short.any() else highest


def equal_shares(problem: Problem, usable: BoolArray) -> FloatArray:
    """Returns the shares x[m,p] = N[p] / (M s[m]), scaled down where a job's sum exceeds 1 (c,).

    A mixed gang has no pool of its own: a job that has nothing else gets nothing.
    """
    columns, x = problem.columns, np.zeros(len(problem.columns))
    chosen = pool_columns(columns, usable)
    job = columns.job[chosen.column]
    sharers = float(problem.jobs.counts[np.unique(job)].sum())
    if not sharers:
        return x
    x[chosen.column] = problem.pools.capacity[chosen.pool] / (sharers * chosen.count)
    time = sum_by(columns.job, x, len(problem.jobs))
    return x / np.maximum(time, 1.0)[columns.job]


@dataclass(frozen=True, slots=True, eq=False)
class FinishTimeFacts:
    """The terms of finish-time fairness of each job, all (n,)."""

    #: Whether the job has work left and a configuration that can run.
    rising: BoolArray
    #: t / D: time since submission over time due alone; 0 where the length is unknown.
    past: FloatArray
    #: R / D, steps/s: rho = t / D + (R / D) / rate; iso where the length is unknown.
    pace: FloatArray
    #: iso in steps per second, and A in seconds.
    isolated_rate: FloatArray
    isolated_s: FloatArray


def finish_time_facts(problem: Problem, utility: Utility, memory: Memory) -> FinishTimeFacts:
    """Returns the terms of finish-time fairness. Without a memory A = t, as if every job had had its equal part so
    far.
    """
    jobs = problem.jobs
    since_s = np.maximum(problem.at - jobs.submitted_at, 0.0)
    rate = isolated_rate(problem, utility)
    isolated_s = _isolated_seconds(problem, memory) if _is_finish_time_memory(memory) else since_s
    known, remaining = np.isfinite(jobs.remaining_steps), jobs.remaining_steps
    rising = (rate > 0) & (remaining > 0)
    finite = rising & known
    alone_s = np.divide(remaining, rate, out=np.zeros(len(jobs)), where=finite)
    due_s = isolated_s + alone_s
    past = np.divide(since_s, due_s, out=np.zeros(len(jobs)), where=finite)
    pace = np.where(rising, rate, 0.0)
    np.divide(remaining, due_s, out=pace, where=finite)
    return FinishTimeFacts(rising, past, pace, rate, isolated_s)


def isolated_rate(problem: Problem, utility: Utility) -> FloatArray:
    """Returns the steps per second of each job with an equal part of every pool (n,); 0 where nothing is usable.

    A job that has only mixed gangs, and so no pool of its own, counts with its best column for its part of the fleet.
    """
    columns, jobs = problem.columns, problem.jobs
    rate = sum_by(columns.job, utility.rate * equal_shares(problem, utility.usable), len(jobs))
    best = max_by(columns.job, utility.rate, len(jobs))
    sharers = max(int((best > 0).sum()), 1)
    part = np.minimum(problem.pools.capacity.sum() / (sharers * jobs.gang), 1.0)
    return np.where(rate > 0, rate, best * part)


def remember_isolated_time(problem: Problem, times: FinishTimeFacts) -> Memory:
    """Returns the memory for the next solve: four parallel lists, with null for unknown lengths."""
    remaining = problem.jobs.remaining_steps
    return {
        "job": problem.jobs.job_id.tolist(),
        "remaining": [steps if np.isfinite(steps) else None for steps in remaining.tolist()],
        "isolated_rate": times.isolated_rate.tolist(),
        "isolated_s": times.isolated_s.tolist(),
    }


def _is_finish_time_memory(memory: Memory) -> bool:
    return isinstance(memory, dict) and {"job", "remaining", "isolated_rate", "isolated_s"} <= memory.keys()


def _isolated_seconds(problem: Problem, memory: Memory) -> FloatArray:
    """Returns A of each job in seconds (n,); 0 for a job that the last solve did not know."""
    known = np.array(memory["job"], dtype=np.int64)
    isolated_s = np.zeros(len(problem.jobs))
    _, here, there = np.intersect1d(problem.jobs.job_id, known, assume_unique=True, return_indices=True)
    before = np.array(memory["remaining"], dtype=np.float64)[there]  # null becomes nan
    rate = np.array(memory["isolated_rate"], dtype=np.float64)[there]
    now = problem.jobs.remaining_steps[here]
    countable = np.isfinite(before) & np.isfinite(now) & (rate > 0)
    done = np.where(countable, np.maximum(before - np.where(countable, now, 0.0), 0.0), 0.0)
    gained = np.divide(done, rate, out=np.zeros(len(here)), where=countable)
    isolated_s[here] = np.array(memory["isolated_s"], dtype=np.float64)[there] + gained
    return isolated_s
