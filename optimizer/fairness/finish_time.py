"""How long jobs take and would take alone: the quantities of finish-time fairness, and what of them is remembered.

    iso   steps/s of a job that has 1/M of every pool to itself
    A     seconds in which the steps done so far would have been done alone, at the isolated rates of then
    D     A + R / iso: how long the whole job takes alone

A grows at each solve by (steps left at the last solve - steps left now) / (isolated rate at the last solve). Decides no
shares.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.arrays.owners import best_by, sum_by
from optimizer.decision import Memory
from optimizer.fairness.equal_shares import equal_shares
from optimizer.fairness.utility import Utility
from optimizer.problem import BoolArray, FloatArray, Problem


@dataclass(frozen=True, slots=True, eq=False)
class FinishTimes:
    """Of each job, all (n,)."""

    #: Has something left to do and somewhere to do it.
    rising: BoolArray
    #: t / D: time since submission over time due alone; 0 where the length is unknown.
    past: FloatArray
    #: R / D, steps/s: rho = t / D + (R / D) / rate; iso where the length is unknown.
    pace: FloatArray
    #: iso, steps/s, and A, seconds.
    isolated_rate: FloatArray
    isolated_s: FloatArray


def finish_times(problem: Problem, utility: Utility, memory: Memory) -> FinishTimes:
    """What the problem and the memory of the last solve say. Without memory, A = t: everybody had its part so far."""
    jobs = problem.jobs
    since_s = np.maximum(problem.at - jobs.submitted_at, 0.0)
    rate = isolated_rate(problem, utility)
    isolated_s = _isolated_s(problem, memory) if _is_ours(memory) else since_s
    known, remaining = np.isfinite(jobs.remaining_steps), jobs.remaining_steps
    rising = (rate > 0) & (remaining > 0)
    finite = rising & known
    alone_s = np.divide(remaining, rate, out=np.zeros(len(jobs)), where=finite)
    due_s = isolated_s + alone_s
    past = np.divide(since_s, due_s, out=np.zeros(len(jobs)), where=finite)
    pace = np.where(rising, rate, 0.0)
    np.divide(remaining, due_s, out=pace, where=finite)
    return FinishTimes(rising, past, pace, rate, isolated_s)


def isolated_rate(problem: Problem, utility: Utility) -> FloatArray:
    """Steps/s of each job with an equal part of every pool; 0 where nothing is usable (n,).

    A job that has only mixed gangs, and so no pool of its own, counts with its best column for its part of the fleet.
    """
    columns, jobs = problem.columns, problem.jobs
    rate = sum_by(columns.job, utility.rate * equal_shares(problem, utility.usable), len(jobs))
    best = best_by(columns.job, utility.rate, len(jobs))
    sharers = max(int((best > 0).sum()), 1)
    part = np.minimum(problem.pools.capacity.sum() / (sharers * jobs.gang), 1.0)
    return np.where(rate > 0, rate, best * part)


def remember(problem: Problem, times: FinishTimes) -> Memory:
    """What the next solve has to know: four parallel lists, unknown lengths as null."""
    remaining = problem.jobs.remaining_steps
    return {
        "job": problem.jobs.job_id.tolist(),
        "remaining": [steps if np.isfinite(steps) else None for steps in remaining.tolist()],
        "isolated_rate": times.isolated_rate.tolist(),
        "isolated_s": times.isolated_s.tolist(),
    }


def _is_ours(memory: Memory) -> bool:
    return isinstance(memory, dict) and {"job", "remaining", "isolated_rate", "isolated_s"} <= memory.keys()


def _isolated_s(problem: Problem, memory: Memory) -> FloatArray:
    """A of each job; 0 for one that the last solve did not know (n,)."""
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
