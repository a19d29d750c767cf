"""How long a plan of `walras` holds: until when the same plan would come out if nothing happened but that time passed.

Most plans of a cluster that is not full change nothing: every job runs in the configuration that it likes most, and no
accelerator has a price. A scheduler that asks again at the end of each round then gets the same answer until something
happens. Why that is exact, for a job with R reference seconds left that runs at the rate r and could run at o
(fractions of its reference rate) after a restart of s seconds:

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
projects or users that share by time (`fair_standing`), weights relative to what users usually state, and money.

The order of importance of its jobs is the one thing that changes meanwhile: whoever needs it asks again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from optimizer.assignment.column_values import LEAST_S, ValueTerms
from optimizer.assignment.plan_draft import accelerators_held
from optimizer.assignment.remaining_time import JobLengths, ReferenceConfigurations
from optimizer.assignment.starvation_guard import LateJobs, StarvationGuard, seconds_until_late
from optimizer.decision import Plan
from optimizer.problem import FloatArray, Problem
from optimizer.utility.fair_share import usable_columns

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
    late: LateJobs
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
    restart_s = jobs.restart_s if len(jobs.restart_s) else np.zeros(len(jobs))
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
