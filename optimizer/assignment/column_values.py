"""What a place is worth to a job, which jobs are placed first, and how long a plan holds.

Three parts: values of places, protection against starvation, and the life of a plan of `walras`. A value is a concave
priority times the relative efficiency of the place:

    p_c = left on c + restart [c is another place than now];  divided by (1 + stay) where it runs now
    p*  = min_c p_c
    D   = s p* / (w (1 + waited / length / patience)^aging)      accelerator-seconds still needed, discounted
    v_c = s^(1 - size) D^-gamma (p* / p_c)^eta                   s: accelerators of the best configuration
    on rented machines, for a job worth V USD per hour:  v_c (1 - price of c / (V e_c)),  e_c its relative speed

For an elastic job p* and s are those of its reference, the configuration of most steps per accelerator-second
(`remaining_time.reference_configurations`), so that larger gangs are worth more than that: v grows with the root of
the speed. At prices a job grows to where the next accelerators add less than they cost; arrivals raise prices, and it
shrinks. A resize is seldom the last: one that was resized often will be again. So p_c of a change is divided by the
part k of the job's age that its restarts, this one included, leave (`plan_draft.restart_factor`); not on rented
machines that it pays for, since these come for the size that is worth their price. Where accelerators
are idle, prices end no growth: `thrift` does, where s_c / s - 1 more references would add less than that part each:

    v_c = s^(1 - size) D^-gamma ((p* / p_c)^eta - thrift max(s_c / s - 1, 0))

gamma = eta = 1 is the greedy rate of completion. Small exponents favour short jobs without letting them take the
places on which others are far more productive. In money, what a place costs is subtracted.

Protection against starvation: overdue jobs are placed first. A job is overdue, until it ends, once (waited + left) /
length, its predicted slowdown or *stretch*, exceeds rho = max(`slowdown`, `margin` x the mean of all active jobs).
Within a priority class those of the highest step of stretch are placed first, where a step is a factor of 1.5 from
`slowdown` on, and the shortest of a step before the others: a short job behind a long one would end many of its own
lengths late, while a long job that lets a short one pass ends hardly later. Each has its fastest column with room:
gangs of s accelerators up to b = ceil(`reserve` x N) share b accelerators of every pool, larger ones have what those
before them leave of all N. Once a job has reached a step, only jobs of that step or a higher one delay it, so with M =
b for the former and M = N for the latter

    time to completion <= stretch at which the step begins x length + B / (M - s + 1) + restarts

where B is what other jobs of that step or a higher one are given meanwhile on its best pool, in accelerator-seconds
(`docs/walras-policy.md`). Jobs of unknown length have no predicted slowdown.

A plan of `walras` holds until time alone would change it. Most plans of a cluster that is not full change nothing:
every job runs in the configuration that it likes most, and no accelerator has a price. A scheduler that asks again at
the end of each round then gets the same answer until something happens. Why that is exact, for a job with R reference
seconds left that runs at the rate r and could run at o (fractions of its reference rate) after a restart of s seconds:

    seconds to the end    here R / r,   there R / o + s              (each at least 1 s; here divided by 1 + stay)
    there over here       (1 + stay) (r / o + s r / R)               grows as R falls

So a job that likes its place most likes it most for as long as it runs, and where o <= r that holds for every R: for a
job of unknown length, whose R is a Gittins rank and may rise. All wants fit together, hence the prices stay 0, whatever
the values of jobs are. What else depends on time bounds the plan's life:

    stated work runs out     R / r falls to 1 s; a job that goes on is then treated as longer than stated
    a job becomes overdue    its predicted slowdown grows by at most 1 / length per second, while the limit never falls:
                             no job runs above its reference rate, so that the mean slowdown does not fall either

Whether a job may be moved (`Jobs.pinned`) changes nothing, as none has a better place. Plans of other cases may change
at once: with prices, waiting jobs, elastic jobs, gangs over several pools, rented machines, limits, guarantees,
projects or users that share by time (`fair_standing`), weights relative to what users usually state, and money. While a
plan holds, only the order of importance of its jobs changes: whoever needs it asks again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from optimizer.assignment.assignment_problem import ColumnUses
from optimizer.assignment.plan_draft import PlanDraft, accelerators_held
from optimizer.assignment.remaining_time import JobLengths, ReferenceConfigurations
from optimizer.classes.aggregation import job_offsets
from optimizer.classes.compiled_loops import CompiledLoops
from optimizer.classes.segments import max_by, sum_by
from optimizer.decision import Memory, Plan
from optimizer.problem import BoolArray, FloatArray, IntArray, Problem
from optimizer.utility.fair_share import usable_columns

#: Restarts that came one after the other leave a job at least this part of its time, so that it can be moved at all.
_LEAST_KEPT = 1e-3
#: The time left counts as at least this many seconds, so that the value of a job close to its end stays bounded.
LEAST_S = 1.0


@dataclass(frozen=True, slots=True)
class ValueTerms:
    """The exponents and factors in the value of a column (the formula is at the top of this module)."""

    gamma: float = 0.15
    eta: float = 0.5
    patience: float = 1.0
    aging: float = 1.0
    stay: float = 0.05
    #: What one USD per hour is worth, in the unit of the values.
    usd: float = 0.0
    #: Exponent by which a gang is worth less the more accelerators it takes.
    size: float = 0.0
    #: What an elastic job's accelerators beyond its reference must add each, over what those of the reference do.
    thrift: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class ColumnValues:
    """The values of all columns, with the times from which they follow."""

    #: Worth of each column, 0 where it cannot be used (c,).
    value: FloatArray
    #: Seconds until the job would end there, its restart included; inf where it cannot be used (c,).
    ends_s: FloatArray


def column_values_of(
    problem: Problem,
    lengths: JobLengths,
    reference: ReferenceConfigurations,
    terms: ValueTerms,
    kept: FloatArray | None = None,
) -> ColumnValues:
    """Returns the value of every column of every job (the formula above), with its time.

    `kept`: the part of the time that restarts leave a job in each column, k above (c,); None: 1 for all.
    """
    jobs, columns = problem.jobs, problem.columns
    n, c = len(jobs), len(columns)
    size = sum_by(columns.use_column, columns.use_count, c)
    usable = _allowed(problem)
    at = slice(None) if usable.all() else usable
    ends_s = np.full(c, np.inf)
    ratio = np.zeros(c)
    np.divide(reference.rate[columns.job], columns.steps_per_s, out=ratio, where=usable)
    restart_s = jobs.start_s[columns.job]
    ends_s[at] = np.maximum((lengths.left_s[columns.job] * ratio)[at], LEAST_S)
    ends_s += np.where(columns.running, 0.0, restart_s)
    surplus = _surplus_shares(problem)
    if kept is not None:  # machines that a job pays for were rented for its size: money has weighed the change
        ends_s /= np.where(surplus < 1.0, 1.0, np.maximum(kept, _LEAST_KEPT))
    felt_s = np.where(columns.running, ends_s / (1.0 + terms.stay), ends_s)
    least_s = _least_by(columns.job, felt_s, n)
    best_size = _size_of_best(columns.job, felt_s, least_s, size, n)
    if reference.elastic.any():
        least_s = np.where(reference.elastic, np.maximum(lengths.left_s, LEAST_S), least_s)
        best_size = np.where(reference.elastic, reference.size, best_size)
    waited = np.maximum(problem.at - jobs.submitted_at, 0.0) / lengths.total_s
    age = (1.0 + waited / terms.patience) ** terms.aging
    need = best_size * least_s / (np.maximum(jobs.relative_weight, 1e-12) * age)
    priority = np.zeros(n)
    able = np.isfinite(need) & (need > 0)
    priority[able] = best_size[able] ** (1.0 - terms.size) * need[able] ** -terms.gamma
    value = np.zeros(c)
    job = columns.job[at]
    worth = (least_s[job] / felt_s[at]) ** terms.eta
    if reference.elastic.any():
        beyond = np.where(reference.elastic[job], np.maximum(size[at] / reference.size[job] - 1.0, 0.0), 0.0)
        worth = np.maximum(worth - terms.thrift * beyond, 0.0)
    value[at] = priority[job] * worth
    value *= surplus
    if terms.usd > 0:
        cost = problem.pools.usd_per_h[columns.use_pool] * columns.use_count
        value = np.maximum(value - terms.usd * sum_by(columns.use_column, cost, c), 0.0)
    return ColumnValues(value, np.where(usable, ends_s, np.inf))


def _surplus_shares(problem: Problem) -> FloatArray:
    """Returns the part of what each column earns a job in USD that its market price leaves (c,).

    It is 1 on owned machines and for jobs whose hour has no value in USD, 0 where the price is not earned.
    """
    columns, pools, stated = problem.columns, problem.pools, problem.jobs.value_usd_per_h
    share = np.ones(len(columns))
    if not (pools.held.any() and np.any(stated > 0)):
        return share
    usd_per_h = np.where(pools.held > 0, pools.usd_per_h, 0.0)
    cost = sum_by(columns.use_column, usd_per_h[columns.use_pool] * columns.use_count, len(columns))
    best = max_by(columns.job, columns.steps_per_s, len(problem.jobs))[columns.job]
    earned = np.nan_to_num(stated)[columns.job] * np.divide(
        columns.steps_per_s, best, out=np.zeros(len(columns)), where=best > 0
    )
    pays = (cost > 0) & (np.nan_to_num(stated) > 0)[columns.job]
    share[pays] = np.maximum(
        1.0 - np.divide(cost[pays], earned[pays], out=np.ones(int(pays.sum())), where=earned[pays] > 0), 0.0
    )
    return share


def _allowed(problem: Problem) -> BoolArray:
    """Returns the columns that fit the empty fleet (c,). A job that cannot be moved has only the column in which it
    runs.
    """
    usable = usable_columns(problem.columns, problem.pools.capacity)
    if len(problem.jobs.pinned):
        usable &= ~problem.jobs.pinned[problem.columns.job] | problem.columns.running
    return usable


def _least_by(owner: IntArray, amount: FloatArray, n: int) -> FloatArray:
    """Returns the smallest amount of each owner (n,); inf for an owner without any."""
    least = np.full(n, np.inf)
    np.minimum.at(least, owner, amount)
    return least


def _size_of_best(
    owner: IntArray,
    felt_s: FloatArray,
    least_s: FloatArray,
    size: FloatArray,
    n: int,
) -> FloatArray:
    """Returns the accelerators of each job's best column (n,), the fewest among equals; 1 for a job
    without a column.
    """
    smallest = np.full(n, np.inf)
    best = felt_s <= least_s[owner]
    np.minimum.at(smallest, owner[best], size[best])
    return np.where(np.isfinite(smallest), smallest, 1.0)


_loops = CompiledLoops(globals())

_WHOLE = 1e-9
#: Overdue jobs give way to those whose stretch has reached a step above theirs: each is this many times the last.
_STEP = 1.5


@dataclass(frozen=True, slots=True)
class StarvationGuard:
    """The limits beyond which jobs are overdue, and the part of the fleet reserved for them."""

    slowdown: float = 2.5
    margin: float = 1.5
    reserve: float = 0.5

    def limit(self, predicted: FloatArray) -> float:
        """Returns the slowdown beyond which a job is overdue, given those predicted (any number, at least one)."""
        return max(self.slowdown, self.margin * float(predicted.mean()))

    def reserved(self, capacity: FloatArray) -> FloatArray:
        """Returns the accelerators of each pool that overdue jobs may take (p,)."""
        return np.ceil(self.reserve * capacity - _WHOLE)


def late_jobs(problem: Problem, lengths: JobLengths, memory: Memory, guard: StarvationGuard) -> list[int]:
    """Returns the rows of the overdue jobs in the order of placement: those that the memory lists, and those that have
    become so now.
    """
    predicted, judged = _predicted_slowdowns(problem, lengths)
    late = judged & (predicted > _limit(predicted, judged, guard))
    if memory is not None:
        late |= np.isin(problem.jobs.job_id, np.array(memory.get("overdue", []), dtype=np.int64))
    rows = np.flatnonzero(late)
    stretch = np.where(judged[rows], predicted[rows] / guard.slowdown, 1.0)
    step = np.floor(np.log(np.maximum(stretch, 1.0)) / np.log(_STEP))
    order = np.lexsort((problem.jobs.job_id[rows], lengths.total_s[rows], -step))
    found: list[int] = rows[order].tolist()
    return found


def seconds_until_late(problem: Problem, lengths: JobLengths, late: Sequence[int], guard: StarvationGuard) -> float:
    """Returns seconds within which no job becomes overdue that is not, if all jobs run, none faster than it is measured
    by; inf if none can. `late`: what `late_jobs` found now.
    """
    predicted, judged = _predicted_slowdowns(problem, lengths)
    limit = _limit(predicted, judged, guard)
    judged[list(late)] = False
    return float(((limit - predicted) * lengths.total_s)[judged].min(initial=np.inf))


def _limit(predicted: FloatArray, judged: BoolArray, guard: StarvationGuard) -> float:
    """Returns the slowdown beyond which a job is overdue; inf where none is predicted."""
    return guard.limit(predicted[judged]) if judged.any() else np.inf


def _predicted_slowdowns(problem: Problem, lengths: JobLengths) -> tuple[FloatArray, BoolArray]:
    """Returns the slowdown with which each job would end if it ran from now on, and whether that is known (n,)."""
    predicted = (np.maximum(problem.at - problem.jobs.submitted_at, 0.0) + lengths.left_s) / lengths.total_s
    return predicted, lengths.known & np.isfinite(predicted)


def place_overdue(
    problem: Problem, ends_s: FloatArray, overdue: list[int], plan: PlanDraft, guard: StarvationGuard
) -> None:
    """Places overdue jobs in the plan. Overdue jobs that cannot be moved count against the reserve too.

    `ends_s`: seconds until the job would end in each column (c,); inf where it may not take it.
    """
    if not overdue:
        return
    columns = problem.columns
    left = guard.reserved(problem.pools.capacity)
    reserve = Reserve(left, left.copy(), plan.free)
    uses = ColumnUses(job_offsets(columns.use_column, len(columns)), columns.use_pool, columns.use_count)
    timed = job_offsets(columns.job, len(problem.jobs)), ends_s, uses
    told = np.array(overdue, dtype=np.int64), timed, reserve, plan.column
    _loops.run("_place_in_order", len(columns.use_count), *told)


class Reserve(NamedTuple):
    """The accelerators of each pool that overdue jobs may still take, those they might take at first, and those that
    are free (p,).
    """

    left: FloatArray
    whole: FloatArray
    free: FloatArray


@_loops
def _in_reserve(uses, reserve, c):  # type: ignore[no-untyped-def]
    """Returns whether column c fits what is left of the reserves, or of the pool where it is larger than a reserve."""
    left, whole, free = reserve
    possible = True
    for u in range(uses.first[c], uses.first[c + 1]):
        r, count = uses.pool[u], uses.amount[u]
        large = count > whole[r]
        possible = possible and (count <= left[r] + _WHOLE or large) and count <= free[r] + _WHOLE
    return possible


@_loops
def _place_in_order(overdue, timed, reserve, column):  # type: ignore[no-untyped-def]
    """Places these jobs in their order, each in the fitting column in which it ends soonest. `timed`: the first column
    of each job (n + 1,), when it would end in each column (c,), and what columns use.
    """
    (first, ends_s, uses), (left, _, free) = timed, reserve
    for row in overdue:
        best, chosen = np.inf, column[row]
        if chosen < 0:
            for c in range(first[row], first[row + 1]):
                if ends_s[c] < best and _in_reserve(uses, reserve, c):
                    best, chosen = ends_s[c], c
        if chosen < 0:
            continue
        for u in range(uses.first[chosen], uses.first[chosen + 1]):
            left[uses.pool[u]] -= uses.amount[u]
            if column[row] < 0:
                free[uses.pool[u]] -= uses.amount[u]
        column[row] = chosen


#: A column counts as better than another if it is by this part, so that no rounding decides.
_CLEAR = 1e-9
#: A plan's life ends at least so much of it early, for the same reason.
_EARLY = 1e-6
#: The longest life of a plan, seconds.
_LONGEST_S = 30 * 86_400.0


@dataclass(frozen=True, slots=True, eq=False)
class PlanGrounds:
    """What a plan of `walras` was made from, besides the problem."""

    lengths: JobLengths
    reference: ReferenceConfigurations
    terms: ValueTerms
    guard: StarvationGuard
    #: Rows of all overdue jobs.
    late: Sequence[int]
    #: Rows of the jobs that come before all others.
    first: Sequence[int]


def holds_until(problem: Problem, plan: Plan, grounds: PlanGrounds) -> float | None:
    """Returns the instant until which time alone does not change the plan (see above); None if it may at once.

    No job of the problem may be of a project or user that shares by time.
    """
    jobs, columns, lengths = problem.jobs, problem.columns, grounds.lengths
    if plan.quote.prices.any() or not _is_simple(problem, grounds):
        return None
    if (plan.column < 0).any() or not columns.running[plan.column].all() or columns.running.sum() != len(jobs):
        return None
    stated = lengths.known & np.isfinite(jobs.remaining_steps) & (jobs.remaining_steps > 0)
    if not np.array_equal(stated, lengths.known):
        return None
    speed = columns.steps_per_s[plan.column]
    here_s = np.full(len(jobs), np.inf)  # of a job of unknown length it may become anything
    np.divide(jobs.remaining_steps, speed, out=here_s, where=stated & (speed > 0))
    if not (_all_stay(problem, plan, here_s, grounds) and _all_fit(problem, plan, grounds)):
        return None
    late_s = seconds_until_late(problem, lengths, grounds.late, grounds.guard)
    life_s = min(float(here_s.min()) - LEAST_S, late_s, _LONGEST_S) * (1.0 - _EARLY)
    return problem.at + life_s if life_s > 0 else None


def _is_simple(problem: Problem, grounds: PlanGrounds) -> bool:
    """Returns whether nothing but the speeds and lengths of jobs, and what a restart costs, decides about places."""
    jobs, columns, pools, entities = problem.jobs, problem.columns, problem.pools, problem.entities
    terms = grounds.terms
    return (
        len(jobs) > 0
        and terms.usd == 0
        and terms.eta * np.log1p(terms.stay) >= _CLEAR
        and len(columns.use_column) == len(columns)
        and problem.limits is None
        and not (len(jobs.usual_weight) or len(pools.prepaid) or len(jobs.unstoppable))
        and not (jobs.mixes.any() or (jobs.fork_max > 1).any() or grounds.reference.elastic.any())
        and not (pools.rentable.any() or pools.held.any())
        and not (entities.guaranteed.any() or (entities.limit < 1).any())
    )


def _all_stay(problem: Problem, plan: Plan, here_s: FloatArray, grounds: PlanGrounds) -> bool:
    """Returns whether every job clearly likes the column in which it runs best, from now on.

    `here_s`: seconds that each job still needs there; inf if unknown (n,).
    """
    columns, jobs, terms = problem.columns, problem.jobs, grounds.terms
    usable = usable_columns(columns, problem.pools.capacity)
    if not usable[plan.column].all():
        return False
    restart_s = jobs.start_s
    there = np.flatnonzero(usable & ~columns.running)
    job = columns.job[there]
    slower = columns.steps_per_s[plan.column][job] / columns.steps_per_s[there]  # below 1: faster there
    longer = slower + restart_s[job] / here_s[job]
    faster = slower < 1.0
    if np.any(terms.eta * np.log((1.0 + terms.stay) * longer[faster]) < _CLEAR):
        return False
    # Overdue jobs take the column in which they end soonest, without a bonus for the one they have.
    comes_first = np.zeros(len(jobs), dtype=np.bool_)
    comes_first[list(grounds.first)] = True
    return bool(np.isfinite(here_s[comes_first]).all() and np.all(longer[comes_first[job]] > 1.0 + _CLEAR))


def _all_fit(problem: Problem, plan: Plan, grounds: PlanGrounds) -> bool:
    """Returns whether all jobs fit their pools, and the overdue ones what is reserved for them, in whatever order."""
    capacity = problem.pools.capacity
    held = accelerators_held(problem, plan.column)
    first = accelerators_held(problem, plan.column[list(grounds.first)])
    return bool(np.all(held <= capacity) and np.all(first <= grounds.guard.reserved(capacity)))
