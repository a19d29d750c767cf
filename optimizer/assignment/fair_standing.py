"""How far projects and users are behind their shares, and what that adds to the worth of their jobs.

    entitled_g = share of the owned capacity by weight among the siblings that have jobs, at most what its jobs ask for;
                 what one cannot use goes to the others
    Q_g(t)     = max(0, integral of (entitled_g - given_g)), old parts halved every `half_life_s`
    behind_g   = Q_g / entitled_g - min over the siblings that have jobs            seconds of its share
    due_g      = entitled_g (1 + behind_g / turn)                                   accelerators
    f_jg       = 1 + weight x seconds that g is behind / length of j, seconds, for the most valuable jobs within due_g
    factor_j   = f of its project x min(1, f of its user / max f of the project's users who wait);
                 f of its user if there is one project;   divided by 1.1 if j waits beyond due_g;
                 if j runs: at least 1.1 times what is due to those users of its project who wait and are less behind

A deficit queue as in the drift-plus-penalty rule (Neely, Stochastic Network Optimization, ch. 4): the worth of serving
g grows with Q_g, so long-run shares hold whatever jobs are submitted, and one weight trades completion times for the
speed of repair. The wait is measured by the length of the job that waits: a flood that holds up short jobs is repaired
in minutes, while a job of a day waits for an hour as it would behind short jobs of its own user. Users are siblings
inside their project, projects among themselves. An entity without siblings is never behind: with one project and one
user no value changes.

Places are whole: of a share of 4.5 accelerators, four are due at once, and the fifth once it has been owed for a turn,
which repays the restarts of changing places; a gang larger than its share is kept until that is made up. So two users
take turns of hours, one place at a time, and over a week each has its share. The division by 1.1 keeps small
differences of rank from undoing a turn.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from optimizer.classes.segments import sum_by
from optimizer.decision import Memory
from optimizer.problem import BoolArray, Entities, FloatArray, IntArray, Problem

#: Slack for comparing counts that were computed in floating point.
_WHOLE = 1e-9
#: Seconds for which a gang's accelerators must be owed before its project takes a place from another project that is
#: entitled to part of it.
_PATIENCE_S = 3600.0
#: What a job that waits for more than is due to its project or user must be worth more than a running one.
_FOR_MORE = 1.1
#: The part of a turn that the restarts at its ends may take.
_CHANGING = 0.02
#: Jobs count as at least this long, in seconds. A job of unknown length counts as the service that it has had, so it is
#: served soon at first.
_SHORTEST_S = 120.0
#: Deficits below this many accelerator-seconds are forgotten.
_FORGOTTEN = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class FairStanding:
    """How far each project and user is behind its share at one decision (g entities, n jobs)."""

    at: float
    #: The factor by which the value of each job is multiplied (n,).
    factor: FloatArray
    #: Accelerators to which each entity is entitled (g,).
    entitled: FloatArray
    #: Accelerator-seconds by which each entity is behind (g,).
    deficit: FloatArray
    #: Entities that have jobs, and a sibling with jobs (g,).
    contested: IntArray

    def within_shares(self, problem: Problem, overdue: list[int]) -> list[int]:
        """Returns the rows of the overdue jobs that may come first: those within what their project is entitled to.

        A gang larger than that may, once its project is behind by an hour of the gang, and as long as it is behind at
        all while the gang runs. The order given is kept.
        """
        entitled, top = self.entitled, problem.entities.top
        patience_s = np.where(_running(problem) >= 0, 0.0, _PATIENCE_S)
        size = np.where(np.isfinite(problem.jobs.gang), problem.jobs.gang, 0.0)
        contested, used, found = set(self.contested.tolist()), np.zeros(len(entitled)), []
        for row in overdue:
            entity = int(problem.jobs.entity[row])
            project = int(top[entity]) if entity >= 0 else -1
            if project in contested:
                behind = self.deficit[project] > max(patience_s[row] * size[row] - _WHOLE, _FORGOTTEN)
                large = used[project] == 0 and behind
                if used[project] + size[row] > entitled[project] + _WHOLE and not large:
                    continue
                used[project] += size[row]
            found.append(row)
        return found

    def remembered(self, problem: Problem, column: IntArray) -> dict[str, object]:
        """Returns the memory for the next decision: deficits by name, and how fast each grows while jobs have these
        columns (n,).
        """
        name, g = problem.entities.name, len(self.entitled)
        given, smallest = _holdings(problem, column)
        rate = self.entitled - given
        rate[np.isinf(smallest) & (rate > 0)] = 0.0  # No gang of theirs waits.
        contested = set(self.contested.tolist())
        kept = [row for row in range(g) if self.deficit[row] > _FORGOTTEN or (row in contested and rate[row] > 0)]
        return {
            "at": self.at,
            "deficit": {name[row]: float(self.deficit[row]) for row in kept},
            "rate": {name[row]: float(rate[row]) for row in kept if row in contested},
        }


@dataclass(frozen=True, slots=True)
class FairnessTerms:
    """How much a deficit counts."""

    #: What a job gains when those who own it are behind by its length, in multiples of its value.
    weight: float
    #: Seconds after which a deficit counts half.
    half_life_s: float


def fair_standing(
    problem: Problem, memory: Memory, length_s: FloatArray, worth: FloatArray, terms: FairnessTerms
) -> FairStanding | None:
    """Returns how far projects and users are behind now; None where no entity has a sibling and no deficit is
    remembered.

    Args:
        problem: n jobs.
        memory: of the decision before this one; its entry `fair` is what `FairStanding.remembered` gave.
        length_s: seconds of each job on its best configuration; for a job of unknown length, the service that it has
            had (n,).
        worth: of each job, in the place where it is worth most (n,).
        terms: how much a deficit counts.
    """
    entities, jobs, half_life_s = problem.entities, problem.jobs, terms.half_life_s
    before = memory.get("fair") if isinstance(memory, Mapping) else None
    if terms.weight <= 0 or not len(jobs) or len(entities) < 2:
        return None
    if before is None and np.bincount(problem.entities.above + 1).max() < 2:
        return None
    g = len(entities)
    demand = np.zeros(g)
    wanted = np.where(np.isfinite(jobs.gang), jobs.gang, 0.0)
    for entity in _lineage(problem):
        np.add.at(demand, entity[entity >= 0], wanted[entity >= 0])
    active = np.flatnonzero(demand > 0)
    parent = problem.entities.above
    families = [active[parent[active] == above] for above in (-1, *np.unique(parent[active][parent[active] >= 0]))]
    if before is None and all(len(family) < 2 for family in families):
        return None
    deficit, there = _deficits(problem, before, half_life_s), float((problem.pools.capacity * _counted(problem)).sum())
    entitled, behind_s = entitlements(entities, demand, there), np.zeros(g)
    contested: list[int] = []
    for family in families:  # Parents come first: -1 stands before the projects' rows.
        if not len(family):
            continue
        if len(family) > 1:
            behind = deficit[family] / np.maximum(entitled[family], 1e-9)
            behind_s[family] = np.minimum(behind - behind.min(), half_life_s)
            contested += family.tolist()
    claims = _Claims(behind_s, entitled * (1.0 + behind_s / _turn_s(problem)), np.array(contested, dtype=np.int64))
    factor = _job_factors(problem, claims, terms.weight / np.maximum(length_s, _SHORTEST_S), worth)
    return FairStanding(problem.at, factor, entitled, deficit, claims.contested)


@dataclass(frozen=True, slots=True, eq=False)
class _Claims:
    """What the entities may claim because they are behind."""

    #: Seconds of its share that each entity is behind (g,).
    behind_s: FloatArray
    #: Accelerators up to which jobs of each entity gain by that (g,).
    due: FloatArray
    #: The entities that have a sibling with jobs.
    contested: IntArray


def _job_factors(problem: Problem, claims: _Claims, per_s: FloatArray, worth: FloatArray) -> FloatArray:
    """Returns the factor by which the value of each job is multiplied (n,).

    A user who is behind inside a project takes from its other users, not from other projects: a user's factor counts
    relative to the largest factor among the project's users who wait, and between projects only the project's own
    factor counts. While a user who is more behind runs, its job is worth more than those of the others that wait.

    Args:
        problem: n jobs, g entities.
        claims: of the entities.
        per_s: what a second adds to the worth of each job, in multiples of that (n,).
        worth: of each job, in the place where it is worth most (n,).
    """
    (own, above), behind_s = _lineage(problem), claims.behind_s
    nested, waits = above >= 0, _running(problem) < 0
    mine = _within(problem, own, claims, worth)
    user = np.where(own >= 0, 1.0 + per_s * np.where(mine, behind_s[own], 0.0), 1.0)
    ours = _within(problem, above, claims, worth * user)
    beyond = (np.isin(own, claims.contested) & ~mine) | (np.isin(above, claims.contested) & ~ours)
    more = np.where(beyond & waits, 1.0 / _FOR_MORE, 1.0)
    if len(np.unique(np.where(nested, above, own))) < 2:
        return user * more
    first_s, inside = np.zeros(len(behind_s)), nested & waits
    np.maximum.at(first_s, above[inside], np.where(mine, behind_s[own], 0.0)[inside])
    first = 1.0 + per_s * first_s[above]
    project = 1.0 + per_s * np.where(ours, behind_s[above], 0.0)
    factor: FloatArray = np.where(nested, np.minimum(1.0, user / first) * project, user) * more
    size = np.maximum(np.where(np.isfinite(problem.jobs.gang), problem.jobs.gang, 1.0), 1.0)
    on_turn = nested & mine & ~waits
    for entity in np.unique(own[on_turn & (behind_s[own] > 0)]).tolist():
        others = inside & (above == problem.entities.above[entity]) & (behind_s[own] < behind_s[entity])
        claim = _FOR_MORE * float((worth * factor / size).max(where=others, initial=0.0))
        keeps = on_turn & (own == entity)
        factor[keeps] = np.maximum(factor, claim * size / np.maximum(worth, 1e-12))[keeps]
    return factor


def _within(problem: Problem, entity: IntArray, claims: _Claims, worth: FloatArray) -> BoolArray:
    """Returns whether each job is among those of its entity that fit in what is due to it, the most valuable first
    (n,). Where not even the first is due as a whole, it keeps its turn while it runs, as long as its entity is behind.
    """
    jobs = problem.jobs
    size = np.where(np.isfinite(jobs.gang), jobs.gang, 0.0)
    order = np.lexsort((jobs.job_id, -worth, entity))
    total = np.cumsum(size[order])
    starts = np.flatnonzero(np.diff(entity[order], prepend=-2))
    before = np.repeat(total[starts] - size[order][starts], np.diff(np.append(starts, len(order))))
    last, most = total - before, claims.due[entity[order]]
    on_turn = ((_running(problem) >= 0) & (claims.behind_s[entity] > 0))[order]
    fits = np.zeros(len(jobs), dtype=np.bool_)
    fits[order] = (last <= most + _WHOLE) | (on_turn & (last - size[order] < np.minimum(most - _WHOLE, _WHOLE)))
    return fits


def _turn_s(problem: Problem) -> float:
    """Returns the seconds for which a project or user keeps a place that another is entitled to a part of: long enough
    that the restarts of changing places cost at most the part `_CHANGING` of it.
    """
    restart_s = problem.jobs.restart_s
    return max(_PATIENCE_S, float(np.max(restart_s, initial=0.0)) / _CHANGING)


def _running(problem: Problem) -> IntArray:
    """Returns the column in which each job runs (n,), -1 for a job that waits."""
    column = np.full(len(problem.jobs), -1, dtype=np.int64)
    rows = np.flatnonzero(problem.columns.running)
    column[problem.columns.job[rows]] = rows
    return column


def _holdings(problem: Problem, column: IntArray) -> tuple[FloatArray, FloatArray]:
    """Returns the accelerators that each entity holds when jobs have these columns (g,), and its smallest waiting gang
    (g,), inf where none waits.
    """
    g, taken, chosen = len(problem.entities), _sizes(problem), column >= 0
    size = np.zeros(len(problem.jobs))
    size[chosen] = taken[column[chosen]]
    waiting = np.where(chosen | ~np.isfinite(problem.jobs.gang), np.inf, problem.jobs.gang)
    held, smallest = np.zeros(g), np.full(g, np.inf)
    for entity in _lineage(problem):
        there = entity >= 0
        np.add.at(held, entity[there], size[there])
        np.minimum.at(smallest, entity[there], waiting[there])
    return held, smallest


def _lineage(problem: Problem) -> tuple[IntArray, IntArray]:
    """Returns each job's entity and that entity's parent (n,) each, -1 for none."""
    own = problem.jobs.entity
    return own, np.where(own >= 0, problem.entities.above[own], -1)


def _sizes(problem: Problem) -> FloatArray:
    """Returns the accelerators of each column over all pools (c,), as they count against shares."""
    columns = problem.columns
    return sum_by(columns.use_column, columns.use_count * _counted(problem)[columns.use_pool], len(columns))


def _counted(problem: Problem) -> FloatArray:
    """Returns as how many accelerators one of each pool counts (p,): those that money rents count nothing where others
    are owned, so that what somebody is entitled to depends neither on the machines that are rented nor on who has them.
    """
    pools = problem.pools
    counted = pools.counted if len(pools.counted) else np.ones(len(pools))
    owned = pools.held <= 0
    return np.where(owned, counted, 0.0) if np.any(pools.capacity[owned] > 0) else counted


def _deficits(problem: Problem, before: Mapping[str, object] | None, half_life_s: float) -> FloatArray:
    """Returns the accelerator-seconds by which each entity is behind by now (g,)."""
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


def entitlements(entities: Entities, demand: FloatArray, there: float) -> FloatArray:
    """Returns the accelerators out of `there` to which each project and user is entitled (g,), given what its jobs ask
    for (`demand`, (g,)).
    """
    parent = entities.above
    entitled, active = np.zeros(len(entities)), np.flatnonzero(demand > 0)
    for above in (-1, *np.unique(parent[active][parent[active] >= 0])):  # Parents come first: projects have no parent.
        family = active[parent[active] == above]
        if len(family):
            room = there if above < 0 else float(entitled[above])
            entitled[family] = _guaranteed_and_filled(entities, family, demand[family], room, there)
    return entitled


def _guaranteed_and_filled(
    entities: Entities, family: IntArray, demand: FloatArray, room: float, there: float
) -> FloatArray:
    """Returns the shares of siblings (k,): guarantees come first; the rest goes by weight, up to limits and demands."""
    weight = np.asarray(entities.weight)[family]
    if len(entities.limit):
        demand = np.minimum(demand, entities.limit[family] * there)
    if not len(entities.guaranteed) or not entities.guaranteed[family].any():
        return _filled(weight, demand, room)
    first = np.minimum(demand, entities.guaranteed[family] * there)
    first *= min(1.0, room / max(float(first.sum()), 1e-9))
    # An entity with less than its part by weight is filled up to that part: its guarantee is a floor, not an addition.
    level = _filled(weight, demand, room)
    short = first > level
    if not short.any():
        return level
    level[short] = first[short]
    level[~short] = _filled(weight[~short], demand[~short], max(0.0, room - float(first[short].sum())))
    return level


def _filled(weight: FloatArray, demand: FloatArray, room: float) -> FloatArray:
    """Returns the division of `room` by weight among siblings, none above its demand; what one cannot use goes to the
    others (k,).
    """
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
