"""How long jobs have left, by what is known of them: steps, the submitter's guess, or only what others needed.

All in seconds on the configuration by which the job is measured (`optimizer.plans.reference`). A job of unknown length
is taken to have its Gittins rank left: the smallest expected service per completion, by the lengths of the jobs that
have ended (`optimizer.orders.gittins`).
"""

from dataclasses import dataclass

import numpy as np

from optimizer.orders.gittins import gittins_rank
from optimizer.problem import BoolArray, FloatArray, Problem

#: Lengths that are expected before any job has ended: as likely short as long.
PRIOR_S: FloatArray = np.geomspace(300.0, 864_000.0, 20)
#: Of a guess at least this part counts as left until it has run out.
_SMALLEST_PART = 0.05
#: A job that goes on although what was told of it has run out is taken to have this part of what it has had before it:
#: the mean of what is left of a length that is log-normal about what was told, by half a unit. Nothing left would make
#: it worth more than all others, and alike on the fastest and on the slowest accelerator.
_OVERRUN = 0.5
#: A job of unknown length counts as at least this long where its wait is set against its length.
_UNKNOWN_S = 600.0
#: Services closer than this part count as equal.
_STEP = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class Lengths:
    """Of each job (n,)."""

    left_s: FloatArray
    #: The whole run; of an unknown one, what it has had.
    total_s: FloatArray
    #: Whether anybody said how long it is.
    known: BoolArray


def lengths_of(problem: Problem, best_rate: FloatArray, hidden: bool) -> Lengths:
    """Estimate what is left.

    Args:
        problem: jobs with steps left and done.
        best_rate: steps per second of the best configuration, 0 for a job without one (n,).
        hidden: what jobs say of their length is not to be believed; only what they have had counts.
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
    return Lengths(left_s, np.maximum(total_s, 1.0), known)


def _done_s(problem: Problem, best_rate: FloatArray) -> FloatArray:
    """Service so far; by accelerator time where nobody counts steps."""
    jobs = problem.jobs
    by_time = jobs.attained_s / np.maximum(jobs.gang, 1.0)
    if not len(jobs.done_steps):
        return by_time
    by_steps = np.zeros(len(jobs))
    np.divide(jobs.done_steps, best_rate, out=by_steps, where=best_rate > 0)
    return np.where(by_steps > 0, by_steps, np.where(np.isfinite(jobs.remaining_steps), 0.0, by_time))


def _rank_s(finished_s: FloatArray, done_s: FloatArray) -> FloatArray:
    """Gittins ranks of services, in steps so small that they decide nothing and so large that few differ."""
    level = np.expm1(np.round(np.log1p(done_s) / _STEP) * _STEP)
    return gittins_rank(np.concatenate((PRIOR_S, finished_s)), level)
