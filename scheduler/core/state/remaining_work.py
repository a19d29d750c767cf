"""How much a job has left. Each estimate says what it is based on, and so what it serves. Nothing is settled here.

    remaining_here_s           on its present pool, from its last report on   is it too near its end to be moved?
    expected_end_at            on its present pool, as foreseen at its start  reservations: reports must not move them
    unreported_on_best_s       on the fastest pool, by its reported steps     is enough work left for a profiling lease?
    remaining_on_best_s        on the fastest pool, from its last report on   orders of jobs by length

Speeds are those of the job's kind, measured or believed. What a deadline needs on a pool where the job does not run
yet is in `handlers/deadlines.py`; what a policy reads, in steps, in `cycle/problem_snapshot.py`.
"""

from math import inf

import numpy as np

from optimizer.problem import FloatArray, IntArray
from scheduler.core.rules import RoundRules
from scheduler.core.state.fleet import FleetMachine
from scheduler.core.state.ledger import JobRecord, Ledger

#: A job that has done so many times the steps it was said to have is believed to be of unknown length: it must not
#: keep its place for ever by being always about to end.
OVERDUE = 1.1
#: Work of a job whose length nobody knows, where some has to be assumed.
UNKNOWN_LENGTH_S = 3600.0


# ------------------------------------------------------------------------------------------------ where it runs


def remaining_here_s(ledger: Ledger, job: JobRecord) -> float:
    """Seconds that a running job has left where it runs, by its own report and its kind's speed; inf if unknown."""
    total, rate = job.request.steps, ledger.rate_of(job)
    if total is None or rate <= 0:
        return inf
    done = job.steps + rate * max(0.0, ledger.now - float(ledger.columns.steps_at[job.slot]))
    if done > OVERDUE * total:
        return inf  # what was said of its length is not true
    return max(0.0, total - done) / rate


def remaining_here_of_all_s(ledger: Ledger, rows: IntArray) -> FloatArray:
    """`remaining_here_s` of the running jobs in these slots."""
    columns = ledger.columns
    rate, total = ledger.classes.rates[columns.runs_as[rows], columns.pool[rows]], columns.steps_total[rows]
    done = columns.steps[rows] + rate * np.maximum(0.0, ledger.now - columns.steps_at[rows])
    is_known = (rate > 0) & (done <= OVERDUE * total)
    steps = np.maximum(0.0, total - done)
    left: FloatArray = np.divide(steps, rate, out=np.full(len(rows), inf), where=is_known)
    return left


def expected_end_at(ledger: Ledger, job: JobRecord, rules: RoundRules) -> float:
    """When a running job will have ended if left alone, by its known length and speed; inf if unknown.

    It stays what it is while the attempt lasts and no speed or cost becomes another: worked out once.
    """
    known = ledger.classes.version + ledger.costs.version  # neither ever goes back
    if job.ends_version != known:
        total, rate = job.request.steps, ledger.rate_of(job)
        job.ends_version = known
        if total is None or rate <= 0:
            job.ends_at = inf
        else:
            began, left = job.leased_at + ledger.restart_s(job, rules), total - job.start_steps
            job.ends_at = began + left / rate if left > 0 else began
    return job.ends_at


def expected_ends_on(ledger: Ledger, machine: FleetMachine, rules: RoundRules) -> list[float]:
    """When each accelerator that is held on the machine will be free, were its holder left alone; ascending."""
    known = ledger.classes.version + ledger.costs.version
    if machine.ends_version != known:
        machine.ends = []
        for job_id, held in machine.holders.items():
            machine.ends.extend([expected_end_at(ledger, ledger.jobs[job_id], rules)] * len(held))
        machine.ends.sort()
        machine.ends_version = known
    return machine.ends


# ------------------------------------------------------------------------------------------------ on the fastest pool


def unreported_on_best_s(ledger: Ledger, job: JobRecord) -> float:
    """Seconds that the steps nobody has reported yet take on the fastest pool; an hour if unknown, 0 if none can."""
    best = ledger.class_of(job).best_rate
    if best <= 0:
        return 0.0
    return UNKNOWN_LENGTH_S if job.request.steps is None else max(0.0, job.request.steps - job.steps) / best


def remaining_on_best_s(ledger: Ledger, rows: IntArray | slice, attained_s: FloatArray) -> FloatArray:
    """Seconds left of the jobs in these slots, were they on the fastest pool, what they do at present counted as done.

    Of unknown steps, what their submitters guessed less `attained_s` over the gang; inf without either.
    """
    columns = ledger.columns
    if not columns.pools:
        return np.full(len(columns.gang[rows]), inf)
    rates = ledger.classes.rates[columns.class_row[rows]]
    best = rates.max(axis=1, initial=0.0)
    here = ledger.classes.rates[columns.runs_as[rows], columns.pool[rows]]  # of a waiting job: never used
    done = columns.steps[rows] + here * np.maximum(ledger.now - columns.steps_at[rows], 0.0)
    by_steps = np.full(len(best), inf)
    np.divide(np.maximum(columns.steps_total[rows] - done, 0.0), best, out=by_steps, where=best > 0)
    by_guess = np.maximum(columns.duration_s[rows] - attained_s / columns.gang[rows], 0.0)
    return np.where(np.isfinite(columns.steps_total[rows]), by_steps, by_guess)
