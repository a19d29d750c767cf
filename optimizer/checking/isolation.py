"""What each job would have, and would have had, with 1/M of every pool to itself."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from optimizer.checking.facts import Facts
from optimizer.decision import Memory
from optimizer.problem import BoolArray, FloatArray


def isolated_shares(facts: Facts) -> FloatArray:
    """x[m,p] = N[p] / (M s[m]) in the column that stands for m in p, each job's sum brought down to 1 (c,)."""
    x = np.zeros(len(facts.uses))
    sharers = [job for job, alone in enumerate(facts.alone) if alone]
    for job in sharers:
        parts = {
            column: float(facts.capacity[pool]) / (len(sharers) * facts.uses[column][pool])
            for pool, column in facts.alone[job].items()
        }
        for column, part in parts.items():
            x[column] = part / max(1.0, sum(parts.values()))
    return x


@dataclass(frozen=True, slots=True, eq=False)
class IsolatedTimes:
    """Of each job, all (n,): has something to do; t / D; and D / R (1 / iso where R is unknown), D = A + R / iso."""

    rising: BoolArray
    past: FloatArray
    per_rate: FloatArray


def isolated_times(facts: Facts, memory: Memory) -> IsolatedTimes:
    """With what the last solve left: the steps, rates and times of then. Without: A = t."""
    jobs, iso = facts.problem.jobs, _isolated_rates(facts)
    rising = (iso > 0) & (jobs.remaining_steps > 0)
    past, per_rate = np.zeros(facts.jobs), np.zeros(facts.jobs)
    for job in np.flatnonzero(rising):
        left, since_s = float(jobs.remaining_steps[job]), max(facts.problem.at - float(jobs.submitted_at[job]), 0.0)
        if np.isinf(left):
            per_rate[job] = 1 / iso[job]
            continue
        due_s = _isolated_s(int(jobs.job_id[job]), left, since_s, memory) + left / iso[job]
        past[job], per_rate[job] = since_s / due_s, due_s / left
    return IsolatedTimes(rising, past, per_rate)


def _isolated_rates(facts: Facts) -> FloatArray:
    """A job without a pool of its own counts with its best column for its part of the fleet."""
    rates, x = facts.summed(facts.speed * isolated_shares(facts)), isolated_shares(facts)
    best, sharers = facts.best(facts.speed), max(int(facts.placeable.sum()), 1)
    part = np.minimum(facts.capacity.sum() / (sharers * facts.problem.jobs.gang), 1.0)
    return np.where(facts.summed(x) > 0, rates, best * part)


def _isolated_s(job_id: int, left: float, since_s: float, memory: Memory) -> float:
    if not isinstance(memory, dict):
        return since_s
    remembered: dict[str, Any] = memory
    if job_id not in remembered["job"]:
        return 0.0
    row = remembered["job"].index(job_id)
    before, rate = remembered["remaining"][row], remembered["isolated_rate"][row]
    done = max(before - left, 0.0) if before is not None and rate > 0 else 0.0
    return float(remembered["isolated_s"][row]) + (done / rate if done else 0.0)
