"""The time that jobs have left, estimated from steps, from the submitter's guess, or only from what other jobs needed.

All in seconds on the configuration by which the job is measured. A rigid job is measured by its fastest configuration.
An elastic one, that may take several counts on one pool, is measured by the one that makes the most steps per
accelerator-second, usually its smallest gang on its best type: the largest gang does the same work with many times the
accelerator time, and would make every job look enormous and short at once.

A job of unknown length is taken to have its Gittins rank left: of a job that has had service a, let S be the service
it will have had when it ends; given d more at most, it ends with probability P(S - a <= d) and takes E min(S - a, d).
The rank is the smallest expected service per completion over all d; running the job with the smallest rank minimises
the mean completion time on one machine (Gittins 1989).

Shapes: n jobs, c columns.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.classes.aggregation import job_offsets
from optimizer.classes.segments import max_by
from optimizer.policy import OrderFacts
from optimizer.problem import BoolArray, Columns, FloatArray, IntArray, Problem
from optimizer.utility.fair_share import column_accelerators, usable_columns


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceConfigurations:
    """The configuration by which the length of every job is measured (n,)."""

    #: Steps per second in it; 0 where the empty fleet could hold none of the job's configurations.
    rate: FloatArray
    #: Whether the job may take several counts on one pool; and for such jobs, the accelerators of the configuration.
    elastic: BoolArray
    size: FloatArray


def best_rates_of(problem: Problem) -> FloatArray:
    """Returns the steps per second of each job's fastest configuration that the empty fleet could hold;
    0: none (n,).
    """
    return _best_rates(problem, usable_columns(problem.columns, problem.pools.capacity))


def _best_rates(problem: Problem, usable: BoolArray) -> FloatArray:
    columns = problem.columns
    return max_by(columns.job, np.where(usable, columns.steps_per_s, 0.0), len(problem.jobs))


def reference_configurations(problem: Problem) -> ReferenceConfigurations:
    """Returns the configuration by which every job is measured, whether it runs or not."""
    columns, jobs = problem.columns, problem.jobs
    is_usable, size = usable_columns(columns, problem.pools.capacity), column_accelerators(columns)
    rate = _best_rates(problem, is_usable)
    elastic, least = np.zeros(len(jobs), dtype=np.bool_), np.ones(len(jobs))
    if np.array_equal(size, jobs.gang[columns.job]):
        return ReferenceConfigurations(rate, elastic, least)  # Every job has one count per pool.
    elastic = _has_counts(columns, is_usable, size, len(jobs), len(problem.pools))
    measured = is_usable & elastic[columns.job]
    at = slice(None) if measured.all() else np.flatnonzero(measured)
    job, speed, size = columns.job[at], columns.steps_per_s[at], size[at]
    best = _most_thrifty(job, speed / size, size)
    rate[job[best]], least[job[best]] = speed[best], size[best]
    return ReferenceConfigurations(rate, elastic, least)


def _most_thrifty(job: IntArray, each: FloatArray, size: FloatArray) -> IntArray:
    """Returns the column of each job (ascending) with the most steps per accelerator; of equals the smallest, then the
    first.
    """
    if not len(job):
        return np.zeros(0, dtype=np.int64)
    begins = np.concatenate(([True], job[1:] != job[:-1]))
    first, row = np.flatnonzero(begins), np.cumsum(begins) - 1
    is_best = each == np.maximum.reduceat(each, first)[row]
    among = np.where(is_best, size, np.inf)
    best = np.flatnonzero(is_best & (among == np.minimum.reduceat(among, first)[row]))
    return best[np.concatenate(([True], job[best[1:]] != job[best[:-1]]))]


def modest_columns(problem: Problem, reference: ReferenceConfigurations) -> BoolArray:
    """Returns the columns no larger than the job's reference or than an equal part of the fleet (c,); all columns of
    rigid jobs.
    """
    columns = problem.columns
    if not reference.elastic.any():
        return np.ones(len(columns), dtype=np.bool_)
    part = np.ceil(problem.pools.capacity.sum() / len(problem.jobs))
    most = np.where(reference.elastic, np.maximum(reference.size, part), np.inf)
    modest: BoolArray = column_accelerators(columns) <= most[columns.job]
    return modest


def _has_counts(columns: Columns, is_usable: BoolArray, size: FloatArray, jobs: int, pools: int) -> BoolArray:
    """Returns whether each job has usable columns of several sizes whose first pool is the same (n,)."""
    at = slice(None) if is_usable.all() else np.flatnonzero(is_usable)
    job, size = columns.job[at], size[at]
    place = job * pools + columns.use_pool[job_offsets(columns.use_column, len(columns))[:-1][at]]
    one_of_them = np.zeros(jobs * pools)
    one_of_them[place] = size
    several = np.zeros(jobs, dtype=np.bool_)
    several[job[size != one_of_them[place]]] = True
    return several


def gittins_rank(observed: FloatArray, attained: FloatArray) -> FloatArray:
    """Returns the Gittins rank of each job (n,), the least expected service per completion; smaller ranks come first.

    Args:
        observed: services that jobs needed, in any order, at least one (m,).
        attained: service received so far (n,). Beyond all that was observed, the rank is the service itself: a job that
            has had more than any before is expected to need as much again.
    """
    needed = np.sort(observed)
    at, inverse = np.unique(attained, return_inverse=True)
    ranks = at.astype(np.float64)
    for row, begun in enumerate(at.tolist()):
        more = needed[np.searchsorted(needed, begun, side="right") :] - begun
        if len(more):
            completions = np.arange(1.0, len(more) + 1.0)
            spent = np.cumsum(more) + (len(more) - completions) * more
            ranks[row] = np.min(spent / completions)
    return ranks[inverse]


def expected_remaining_s(jobs: OrderFacts, unknown_s: float) -> FloatArray:
    """Returns the seconds left on the best configuration (n,); for a job of unknown length, as long as it has run, and
    at least `unknown_s`.

    With heavy-tailed lengths that is the expected time left of a job that has run so long; it also prevents a job of
    unknown length from ranking first for ever.
    """
    guess = np.maximum(unknown_s, jobs.attained_s / np.maximum(jobs.gang, 1.0))
    return np.where(np.isfinite(jobs.remaining_s), jobs.remaining_s, guess)


def rounded_to_margin(amount: FloatArray, margin: float) -> FloatArray:
    """Returns the amounts as numbers of logarithmic steps: amounts in one step differ by less than the part `margin`.
    With margin 0, the amounts themselves.
    """
    if margin <= 0:
        return amount
    steps: FloatArray = np.floor(np.log1p(amount) / np.log1p(margin))
    return steps


#: Lengths assumed before any job has ended: short and long are equally likely.
PRIOR_S: FloatArray = np.geomspace(300.0, 864_000.0, 20)
#: While a guess has not run out, at least this part of it counts as left.
_SMALLEST_PART = 0.05
#: A job that goes on although its stated length has run out is taken to have this part of its service so far left: the
#: mean rest of a length that is log-normal about the stated one, by half a unit. With nothing left it would be worth
#: more than all other jobs, and the same on the fastest as on the slowest accelerator.
_OVERRUN = 0.5
#: A job of unknown length counts as at least so many seconds where its wait is compared with its length.
_UNKNOWN_S = 600.0
#: Services that differ by less than this part count as equal.
_STEP = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class JobLengths:
    """The lengths of all jobs, known or estimated (n,)."""

    left_s: FloatArray
    #: Seconds of the whole run; for a job of unknown length, the service that it has had.
    total_s: FloatArray
    #: Whether the job's length was stated.
    known: BoolArray


def job_lengths_of(problem: Problem, best_rate: FloatArray, hidden: bool) -> JobLengths:
    """Returns what each job has left, known or estimated.

    Args:
        problem: jobs with steps left and done.
        best_rate: steps per second of the best configuration, 0 for a job without one (n,).
        hidden: ignore what jobs state about their length; only the service that they have had counts.
    """
    jobs = problem.jobs
    n = len(jobs)
    done_s = _done_s(problem, best_rate)
    if hidden:
        told_s = left_s = np.full(n, np.inf)
    else:
        told_s = jobs.length_s if len(jobs.length_s) else np.full(n, np.inf)
        left_s = np.full(n, np.inf)
        np.divide(jobs.remaining_steps, best_rate, out=left_s, where=best_rate > 0)
        left_s = np.where(left_s > 0, left_s, _OVERRUN * done_s)
    guessed = ~np.isfinite(left_s) & np.isfinite(told_s)
    by_guess = np.where(done_s < told_s, np.maximum(told_s - done_s, _SMALLEST_PART * told_s), _OVERRUN * done_s)
    left_s = np.where(guessed, by_guess, left_s)
    known = np.isfinite(left_s)
    if not known.all():
        left_s = np.where(known, left_s, _rank_s(problem.finished_s, done_s))
    total_s = np.where(known, left_s + done_s, np.maximum(done_s, _UNKNOWN_S))
    return JobLengths(left_s, np.maximum(total_s, 1.0), known)


def _done_s(problem: Problem, best_rate: FloatArray) -> FloatArray:
    """Returns the service that each job has had, in seconds (n,); from accelerator time where no steps are counted."""
    jobs = problem.jobs
    by_time = jobs.attained_s / np.maximum(jobs.gang, 1.0)
    if not len(jobs.done_steps):
        return by_time
    by_steps = np.zeros(len(jobs))
    np.divide(jobs.done_steps, best_rate, out=by_steps, where=best_rate > 0)
    return np.where(by_steps > 0, by_steps, np.where(np.isfinite(jobs.remaining_steps), 0.0, by_time))


def _rank_s(finished_s: FloatArray, done_s: FloatArray) -> FloatArray:
    """Returns the Gittins ranks of services in seconds, rounded to steps small enough to decide nothing and large
    enough that few values differ.
    """
    level = np.expm1(np.round(np.log1p(done_s) / _STEP) * _STEP)
    return gittins_rank(np.concatenate((PRIOR_S, finished_s)), level)
