"""Which deadlines were held, and was it right to relax the others?

A deadline asks for R / (deadline - now) steps per second. It is hopeless if it has passed, if the job's length is
unknown, or if the job's best configuration all the time would not do. Of the others as much is to be held as can be
together: the largest sum of kept parts.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from optimizer.checking.facts import Facts
from optimizer.decision import Shares
from optimizer.problem import BoolArray, FloatArray

#: A deadline that needs more than all the time by less than this part can be met.
_ROUNDING = 1e-9
#: A floor missed by less than this part is held.
_HELD = 1e-6
#: Sums of kept parts that differ by less than this part of a job are equal.
_AS_MUCH = 1e-4


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """Utility that each job keeps for its deadline (n,), the rows whose deadline was relaxed, and complaints."""

    floor: FloatArray
    relaxed: tuple[int, ...]
    complaints: tuple[str, ...]


def held_deadlines(facts: Facts, shares: Shares) -> Held:
    """What the answer holds of what is asked."""
    needed, hopeless = _needed(facts)
    stated = shares.stages[0].floor if shares.stages else np.zeros(facts.jobs)
    floor = np.minimum(needed, np.maximum(stated, 0.0))
    lowered = floor < needed * (1 - _HELD)
    reached = facts.gained(facts.utility, shares)
    relaxed = hopeless | (reached < needed * (1 - _HELD))
    floor = np.where(lowered, floor, needed)
    return Held(
        floor,
        tuple(int(row) for row in np.flatnonzero(relaxed)),
        tuple(_complaints(facts, needed, floor, lowered)) if lowered.any() else (),
    )


def _needed(facts: Facts) -> tuple[FloatArray, BoolArray]:
    """Fair-share utility that ends each job in time, 0 where nothing can be asked; and who is hopeless (n,)."""
    problem, jobs = facts.problem, facts.problem.jobs
    needed, hopeless = np.zeros(facts.jobs), np.zeros(facts.jobs, dtype=np.bool_)
    best = facts.best(facts.utility)
    for job in np.flatnonzero(np.isfinite(jobs.deadline_at) & (jobs.remaining_steps > 0) & facts.placeable):
        left_s = float(jobs.deadline_at[job]) - problem.at
        asked = float(jobs.gang[job] * jobs.remaining_steps[job] / left_s / facts.equal[job]) if left_s > 0 else np.inf
        hopeless[job] = not asked <= best[job] * (1 + _ROUNDING)
        needed[job] = 0.0 if hopeless[job] else min(asked, best[job])
    return needed, hopeless


def _complaints(facts: Facts, needed: FloatArray, floor: FloatArray, lowered: BoolArray) -> Iterator[str]:
    """Could more have been held?"""
    asking = np.flatnonzero(needed > 0)
    kept = float((floor[asking] / needed[asking]).sum())
    most = _most_kept(facts, needed, asking)
    if kept < most - _AS_MUCH * len(asking):
        ids = ", ".join(str(int(facts.problem.jobs.job_id[row])) for row in np.flatnonzero(lowered)[:5])
        yield f"deadlines (of job {ids}) are relaxed that could be held: {kept:.6g} of {most:.6g}"


def _most_kept(facts: Facts, needed: FloatArray, asking: np.ndarray) -> float:
    """The largest sum of parts of the asked utilities that the fleet can give, as a linear program by scipy."""
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    columns = [c for job in asking for c in facts.columns_of[job] if facts.usable[c]]
    job_of = facts.problem.columns.job
    row_of = {int(job): row for row, job in enumerate(asking)}
    entries: list[tuple[int, int, float]] = []
    for number, column in enumerate(columns):
        row = row_of[int(job_of[column])]
        entries.append((row, number, 1.0))
        entries.append((len(asking) + row, number, -float(facts.utility[column] / needed[job_of[column]])))
        for pool, count in facts.uses[column].items():
            entries.append((2 * len(asking) + pool, number, count))
    entries += [(len(asking) + row, len(columns) + row, 1.0) for row in range(len(asking))]
    rows, places, values = (list(part) for part in zip(*entries, strict=True))
    shape = (2 * len(asking) + len(facts.capacity), len(columns) + len(asking))
    limits = np.concatenate([np.ones(len(asking)), np.zeros(len(asking)), facts.capacity])
    gain = np.concatenate([np.zeros(len(columns)), -np.ones(len(asking))])
    found = linprog(gain, A_ub=coo_array((values, (rows, places)), shape=shape), b_ub=limits, bounds=(0, 1))
    return -float(found.fun) if found.status == 0 else 0.0
