"""How far projects and users are behind their shares, and what that adds to the worth of their jobs.

    entitled_g = share of the capacity by weight among the siblings that have jobs, at most what its jobs ask for;
                 what one cannot use goes to the others
    Q_g(t)     = max(0, integral of (entitled_g - given_g)), old parts halved every `half_life_s`
    behind_g   = Q_g / entitled_g - min over the siblings that have jobs            seconds of its share
    factor_j   = 1 + weight x seconds that the project and the user of j are behind / length of j, seconds

A deficit queue as in the drift-plus-penalty rule (Neely, Stochastic Network Optimization, ch. 4): the worth of serving
g grows with Q_g, so long-run shares hold whatever anybody asks for, and one weight trades completion times for the
speed of repair. The wait is measured by the length of the job that waits: a flood that holds up short jobs is repaired
in minutes, while a job of a day waits for an hour as it would behind short jobs of its own user. Users are siblings
inside their project, projects among themselves. Who has no siblings is behind nobody: with one project and one user
this changes nothing.

Places are whole: who lacks less than its smallest waiting gang, and has something, is not behind by that. Without this
two users at shares of 4.5 accelerators would take one from each other for ever.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from optimizer.classes.segments import sum_by
from optimizer.decision import Memory
from optimizer.problem import FloatArray, IntArray, Problem

#: Jobs count as this long at least; one of unknown length as what it has had, so that it is served soon at first.
_SHORTEST_S = 120.0
#: Accelerator-seconds below which a deficit is forgotten.
_FORGOTTEN = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class FairStanding:
    """Of one decision: where everybody stands (g entities, n jobs)."""

    at: float
    #: What the value of each job is multiplied by (n,).
    factor: FloatArray
    #: Accelerators that each entity is entitled to (g,).
    entitled: FloatArray
    #: Accelerator-seconds that each is behind (g,).
    deficit: FloatArray
    #: Entities that have a sibling with jobs, and jobs (g,).
    contested: IntArray

    def remembered(self, problem: Problem, column: IntArray) -> dict[str, object]:
        """What the next decision has to know: deficits by name, and how fast each grows under this plan (n,)."""
        name, g = problem.entities.name, len(self.entitled)
        taken = _sizes(problem)
        chosen = column >= 0
        size = np.zeros(len(problem.jobs))
        size[chosen] = taken[column[chosen]]
        waiting = np.where(chosen | ~np.isfinite(problem.jobs.gang), np.inf, problem.jobs.gang)
        given, smallest = np.zeros(g), np.full(g, np.inf)
        for entity in _lineage(problem):
            there = entity >= 0
            np.add.at(given, entity[there], size[there])
            np.minimum.at(smallest, entity[there], waiting[there])
        rate = self.entitled - given
        rate[(rate > 0) & (rate < smallest) & (given > 0)] = 0.0
        rate[np.isinf(smallest) & (rate > 0)] = 0.0  # nobody of theirs waits
        contested = set(self.contested.tolist())
        kept = [row for row in range(g) if self.deficit[row] > _FORGOTTEN or (row in contested and rate[row] > 0)]
        return {
            "at": self.at,
            "deficit": {name[row]: float(self.deficit[row]) for row in kept},
            "rate": {name[row]: float(rate[row]) for row in kept if row in contested},
        }


def fair_standing(
    problem: Problem, memory: Memory, length_s: FloatArray, weight: float, half_life_s: float
) -> FairStanding | None:
    """Where projects and users stand now; None where nobody has a sibling and nothing is remembered.

    Args:
        problem: n jobs.
        memory: of the decision before this one; its entry `fair` is what `FairStanding.remembered` gave.
        length_s: of each job at its best; of one of unknown length what it has had (n,).
        weight: what a job gains when those who own it are behind by its length, in multiples of its value.
        half_life_s: after which what somebody is behind counts half.
    """
    entities, jobs = problem.entities, problem.jobs
    before = memory.get("fair") if isinstance(memory, Mapping) else None
    if weight <= 0 or not len(jobs) or len(entities) < 2:
        return None
    g, lineage = len(entities), _lineage(problem)
    demand = np.zeros(g)
    wanted = np.where(np.isfinite(jobs.gang), jobs.gang, 0.0)
    for entity in lineage:
        np.add.at(demand, entity[entity >= 0], wanted[entity >= 0])
    active = np.flatnonzero(demand > 0)
    parent = _parents(problem)
    families = [active[parent[active] == above] for above in (-1, *np.unique(parent[active][parent[active] >= 0]))]
    if before is None and all(len(family) < 2 for family in families):
        return None
    deficit = _deficits(problem, before, half_life_s)
    entitled, behind_s = np.zeros(g), np.zeros(g)
    contested: list[int] = []
    for family in families:  # parents first: -1 stands before the projects' rows
        if not len(family):
            continue
        above = parent[family[0]]
        room = float(problem.pools.capacity.sum()) if above < 0 else float(entitled[above])
        entitled[family] = _filled(np.asarray(entities.weight)[family], demand[family], room)
        if len(family) > 1:
            behind = deficit[family] / np.maximum(entitled[family], 1e-9)
            behind_s[family] = np.minimum(behind - behind.min(), half_life_s)
            contested += family.tolist()
    factor = np.ones(len(jobs))
    for entity in lineage:
        factor += np.where(entity >= 0, weight * behind_s[entity] / np.maximum(length_s, _SHORTEST_S), 0.0)
    return FairStanding(problem.at, factor, entitled, deficit, np.array(contested, dtype=np.int64))


def _lineage(problem: Problem) -> tuple[IntArray, IntArray]:
    """The entity of each job and the one above it, -1: none (n,)."""
    own = problem.jobs.entity
    return own, np.where(own >= 0, _parents(problem)[own], -1)


def _parents(problem: Problem) -> IntArray:
    """The entity above each, -1 at the top (g,)."""
    entities = problem.entities
    return entities.parent if len(entities.parent) else np.full(len(entities), -1, dtype=np.int64)


def _sizes(problem: Problem) -> FloatArray:
    """Accelerators of each column over all pools (c,)."""
    return sum_by(problem.columns.use_column, problem.columns.use_count, len(problem.columns))


def _deficits(problem: Problem, before: Mapping[str, object] | None, half_life_s: float) -> FloatArray:
    """What each entity is behind by now, accelerator-seconds (g,)."""
    deficit = np.zeros(len(problem.entities))
    if before is None:
        return deficit
    told, rates, since = before["deficit"], before["rate"], before["at"]
    assert isinstance(told, Mapping)
    assert isinstance(rates, Mapping)
    assert isinstance(since, float | int)
    passed_s = max(problem.at - since, 0.0)
    kept = 0.5 ** (passed_s / half_life_s)
    for row, name in enumerate(problem.entities.name):
        deficit[row] = max(0.0, kept * told.get(name, 0.0) + rates.get(name, 0.0) * passed_s)
    return deficit


def _filled(weight: FloatArray, demand: FloatArray, room: float) -> FloatArray:
    """Shares by weight of what there is, nobody more than its demand; what one leaves goes to the others (k,)."""
    given, open_ = np.zeros(len(weight)), np.ones(len(weight), dtype=np.bool_)
    while room > 1e-9 and open_.any():
        level = room / weight[open_].sum()
        full = open_ & (demand - given <= weight * level)
        if not full.any():
            given[open_] += weight[open_] * level
            break
        room -= float((demand - given)[full].sum())
        given[full] = demand[full]
        open_ &= ~full
    return given
