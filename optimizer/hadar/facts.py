"""The jobs of one round as Hadar sees them: rigid gangs, their speed on each pool, and what is left of them.

One pool stands for one type. Shapes: n jobs, p pools.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.fairness.utility import pool_columns, usable_columns
from optimizer.problem import BoolArray, FloatArray, IntArray, Problem


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """One row per job of the problem, in its order."""

    round_s: float
    arrived_at: FloatArray
    #: Seconds in the system so far (n,).
    age_s: FloatArray
    #: Seconds of the whole run alone on the best pool (n,).
    best_s: FloatArray
    left_steps: FloatArray
    #: Cost of a start or a move, seconds (n,).
    restart_s: FloatArray
    #: Steps per second of the whole gang in one pool, 0 where it cannot run; accelerators it takes there (n, p).
    rate: FloatArray
    use: FloatArray
    #: Row of `Columns` of that configuration, -1 without one (n, p).
    column: IntArray
    #: Accelerators held now (n, p).
    held: FloatArray
    #: Row of `Columns` in which the job runs, -1 if it does not (n,).
    running: IntArray
    #: Steps per second there, 0 if it does not (n,).
    running_rate: FloatArray
    #: Running, and cannot be stopped (n,).
    pinned: BoolArray
    #: Whether the gang may sit in several pools (n,).
    mixes: BoolArray
    #: Parts that the job may be forked into (n,).
    forks: FloatArray
    capacity: FloatArray

    def __len__(self) -> int:
        return len(self.age_s)


@dataclass(frozen=True, slots=True, eq=False)
class Worth:
    """What configurations are worth, in any shape: their utility (0: it never ends), and the rounds that they take."""

    utility: FloatArray
    rounds: FloatArray


def worth(best_s: FloatArray, age_s: FloatArray, needed_s: FloatArray, round_s: float) -> Worth:
    """Utility best / (time in the system at the end), and rounds max(1, time needed / round)."""
    ends = np.isfinite(needed_s)
    utility = np.where(ends, best_s / np.maximum(age_s + needed_s, 1e-9), 0.0)
    return Worth(utility, np.where(ends, np.maximum(1.0, needed_s / round_s), 1.0))


def needed_s(steps: FloatArray, rate: FloatArray) -> FloatArray:
    """Seconds for steps at a rate; inf where the rate is 0."""
    lengths = np.full(rate.shape, np.inf)
    np.divide(np.broadcast_to(steps, rate.shape), rate, out=lengths, where=rate > 0)
    return lengths


def facts_of(problem: Problem, round_s: float, mixed: bool) -> Facts:
    """The problem's rigid gangs: of several counts on one pool the smallest is the gang."""
    jobs, columns, pools = problem.jobs, problem.columns, problem.pools
    n, p = len(jobs), len(pools)
    chosen = pool_columns(columns, usable_columns(columns, pools.capacity))
    job = columns.job[chosen.column]
    rate, use, column = np.zeros((n, p)), np.zeros((n, p)), np.full((n, p), -1)
    rate[job, chosen.pool] = columns.steps_per_s[chosen.column]
    use[job, chosen.pool], column[job, chosen.pool] = chosen.count, chosen.column
    held, running = np.zeros((n, p)), np.full(n, -1)
    runs = np.flatnonzero(columns.running)
    running[columns.job[runs]] = runs
    ours = columns.running[columns.use_column]
    held[columns.job[columns.use_column[ours]], columns.use_pool[ours]] = columns.use_count[ours]
    fastest = rate.max(axis=1, initial=0.0)
    done = jobs.done_steps if len(jobs.done_steps) else np.zeros(n)
    left = _left_steps(problem, fastest, done, round_s)
    return Facts(
        round_s=round_s,
        arrived_at=jobs.submitted_at,
        age_s=np.maximum(problem.at - jobs.submitted_at, 0.0),
        best_s=np.divide(left + done, fastest, out=np.zeros(n), where=fastest > 0),
        left_steps=left,
        restart_s=jobs.restart_s if len(jobs.restart_s) else np.zeros(n),
        rate=rate,
        use=use,
        column=column,
        held=held,
        running=running,
        running_rate=np.where(running >= 0, np.append(columns.steps_per_s, 0.0)[running], 0.0),
        pinned=(running >= 0) & jobs.pinned if len(jobs.pinned) else np.zeros(n, dtype=np.bool_),
        mixes=jobs.mixes & (use.max(axis=1, initial=0.0) > 1)
        if mixed and len(jobs.mixes)
        else np.zeros(n, dtype=np.bool_),
        forks=jobs.fork_max if len(jobs.fork_max) else np.ones(n),
        capacity=pools.capacity,
    )


def _left_steps(problem: Problem, fastest: FloatArray, done: FloatArray, round_s: float) -> FloatArray:
    """Steps left (n,): as known, else by the submitter's guess, else as much as is behind the job.

    Never less than a round's where it is a guess.
    """
    jobs = problem.jobs
    guessed = jobs.length_s if len(jobs.length_s) else np.full(len(jobs), np.inf)
    rest = np.where(np.isfinite(guessed), np.where(np.isfinite(guessed), guessed, 0.0) * fastest - done, done)
    return np.where(np.isfinite(jobs.remaining_steps), jobs.remaining_steps, np.maximum(rest, fastest * round_s))
