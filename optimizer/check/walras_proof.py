"""Checks a plan of `walras`: whether it reaches what it says, and whether its prices prove its bound.

    reached   = sum of v of the chosen columns
    surplus_j = max(0, max_c v_c - cost_c)          cost_c: prices of the pools, and of limits less guarantees above j
    bound     = sum of v of places given before jobs compete  +  sum of surplus_j of those who compete  +  prices x rest

The places given before are those of jobs that cannot be moved and, in each priority class, of overdue jobs: these are
placed again here. The last line is exact where one priority class competes and each entity has one limit at most. No
bound that prices prove is below the optimum of the linear program, which is computed here with scipy for each class;
that holds in all cases.

What places are worth, and who comes first, follows job by job from the formulas of docs/walras-policy.md; nothing here
is taken from the policy's code. Accelerator counts that differ by less than 1e-9 are equal.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from optimizer.check.stage_proofs import SAME, PlanProof, report_complaints
from optimizer.decision import Memory, Plan
from optimizer.policy import PolicySpec
from optimizer.problem import FloatArray, IntArray, Problem
from optimizer.registry import make

_WHOLE = 1e-9
#: Accelerator-seconds that count as nothing owed.
_FORGOTTEN = 1.0
#: Lengths assumed of jobs before any has ended, in seconds.
_PRIOR_S = [300.0 * 2880.0 ** (k / 19) for k in range(20)]


@dataclass(frozen=True, slots=True)
class WalrasWorths:
    """By what a plan of one policy is judged."""

    name: str
    unit: str
    #: What each column is worth to its job; 0: it is never taken (c,).
    value: FloatArray
    #: Rows of the jobs that have places before others of their class compete, in their order.
    first: list[int]
    #: Seconds until the job would end in each column; inf where one of `first` may not take it (c,).
    ends_s: FloatArray
    #: Accelerators of each pool that jobs of `first` may take (p,).
    reserve: FloatArray


def walras_measure(problem: Problem, policy: PolicySpec, memory: Memory) -> WalrasWorths:
    """The measure of a plan of `walras`."""
    found = _Walras(problem, make(policy), memory)
    return WalrasWorths(
        "assignment at prices", "worth of one accelerator", found.value, found.first, found.ends_s, found.reserve
    )


class _Columns:
    """The columns as lists: their pools, sizes, and those of each job."""

    def __init__(self, problem: Problem) -> None:
        columns, capacity = problem.columns, problem.pools.capacity
        self.speed = columns.steps_per_s.tolist()
        self.runs = columns.running.tolist()
        self.uses: list[list[tuple[int, float]]] = [[] for _ in self.speed]
        for c, pool, count in zip(columns.use_column, columns.use_pool, columns.use_count, strict=True):
            self.uses[c].append((int(pool), float(count)))
        self.size = [sum(count for _, count in uses) for uses in self.uses]
        self.fits = [
            speed > 0 and all(count <= capacity[pool] + _WHOLE for pool, count in uses)
            for speed, uses in zip(self.speed, self.uses, strict=True)
        ]
        self.of_job: list[list[int]] = [[] for _ in range(len(problem.jobs))]
        for c, job in enumerate(columns.job.tolist()):
            self.of_job[job].append(c)


class _Walras:
    def __init__(self, problem: Problem, policy: Any, memory: Memory) -> None:
        self._problem, self._policy, self._memory = problem, policy, memory
        self._columns = _Columns(problem)
        n = len(problem.jobs)
        self._reference = [self._reference_of(job) for job in range(n)]
        lengths = [self._lengths_of(job) for job in range(n)]
        self._left_s, self._total_s = [each[0] for each in lengths], [each[1] for each in lengths]
        self._known = [each[2] for each in lengths]
        self.value, self.ends_s = np.zeros(len(problem.columns)), np.full(len(problem.columns), np.inf)
        for job in range(n):
            self._value(job)
        late = self._late()
        self.reserve = np.ceil(policy.reserve * problem.pools.capacity - _WHOLE)
        standing = _Standing.of(problem, policy, memory)
        if standing is not None:
            worth = [max((self.value[c] for c in mine), default=0.0) for mine in self._columns.of_job]
            factor = standing.factors(worth, self._total_s, self._columns)
            self.value *= np.array(factor)[problem.columns.job]
            late = standing.within_shares(late)
        self.first = late
        part = float(np.ceil(problem.pools.capacity.sum() / n)) if n else 0.0
        for job, (_, is_elastic, size) in enumerate(self._reference):
            for c in self._columns.of_job[job]:
                if is_elastic and self._columns.size[c] > max(size, part):
                    self.ends_s[c] = np.inf

    def _reference_of(self, job: int) -> tuple[float, bool, float]:
        """Speed of the configuration by which the job is measured; whether it is elastic; accelerators of that."""
        columns = self._columns
        mine = [c for c in columns.of_job[job] if columns.fits[c]]
        sizes: dict[int, set[float]] = {}
        for c in mine:
            sizes.setdefault(columns.uses[c][0][0], set()).add(columns.size[c])
        if not any(len(found) > 1 for found in sizes.values()):
            return max((columns.speed[c] for c in mine), default=0.0), False, 1.0
        best = max(mine, key=lambda c: (columns.speed[c] / columns.size[c], -columns.size[c], -c))
        return columns.speed[best], True, columns.size[best]

    def _lengths_of(self, job: int) -> tuple[float, float, bool]:
        """Seconds left, seconds in all, and whether the length was stated."""
        jobs, rate = self._problem.jobs, self._reference[job][0]
        had_s = float(jobs.attained_s[job]) / max(float(jobs.gang[job]), 1.0)
        steps_left = float(jobs.remaining_steps[job])
        if len(jobs.done_steps):
            by_steps = float(jobs.done_steps[job]) / rate if rate > 0 else 0.0
            had_s = by_steps if by_steps > 0 else 0.0 if np.isfinite(steps_left) else had_s
        told_s = float(jobs.length_s[job]) if len(jobs.length_s) else np.inf
        left_s = steps_left / rate if rate > 0 else np.inf
        if self._policy.hide_lengths:
            told_s = left_s = np.inf
        elif left_s == 0:
            left_s = 0.5 * had_s
        if not np.isfinite(left_s) and np.isfinite(told_s):
            left_s = max(told_s - had_s, 0.05 * told_s) if had_s < told_s else 0.5 * had_s
        if np.isfinite(left_s):
            return left_s, max(left_s + had_s, 1.0), True
        return self._gittins(had_s), max(had_s, 600.0), False

    def _gittins(self, had_s: float) -> float:
        """Least expected service per completion, over all amounts of further service."""
        level = float(np.expm1(np.round(np.log1p(had_s) / 0.01) * 0.01))
        more = sorted(s - level for s in [*_PRIOR_S, *self._problem.finished_s.tolist()] if s > level)
        spent, best = 0.0, np.inf
        for k, each in enumerate(more, start=1):
            spent += each
            best = min(best, (spent + (len(more) - k) * each) / k)
        return best if more else level

    def _value(self, job: int) -> None:
        """v_c = s^(1 - size) D^-gamma (p* / p_c)^eta, less `usd` for each USD per hour."""
        problem, policy, columns, jobs = self._problem, self._policy, self._columns, self._problem.jobs
        pinned = bool(jobs.pinned[job]) if len(jobs.pinned) else False
        mine = [c for c in columns.of_job[job] if columns.fits[c] and (columns.runs[c] or not pinned)]
        if not mine:
            return
        restart_s = float(jobs.restart_s[job]) if len(jobs.restart_s) else 0.0
        rate, is_elastic, size = self._reference[job]
        kept = self._part_kept(job, restart_s) if is_elastic else 1.0
        felt: dict[int, float] = {}
        for c in mine:
            ends_s = max(self._left_s[job] * rate / columns.speed[c], 1.0)
            if not columns.runs[c]:
                ends_s = (ends_s + restart_s) / kept
            self.ends_s[c] = ends_s
            felt[c] = ends_s / (1.0 + policy.stay) if columns.runs[c] else ends_s
        least = min(felt.values())
        if is_elastic:
            least = max(self._left_s[job], 1.0)
        else:
            size = min(columns.size[c] for c in mine if felt[c] <= least)
        weight = float(jobs.weight[job]) / (float(jobs.usual_weight[job]) if len(jobs.usual_weight) else 1.0)
        waited = max(problem.at - float(jobs.submitted_at[job]), 0.0) / self._total_s[job]
        need = size * least / (max(weight, 1e-12) * (1.0 + waited / policy.patience) ** policy.aging)
        priority = size ** (1.0 - policy.size) * need**-policy.gamma
        for c in mine:
            usd_per_h = sum(problem.pools.usd_per_h[pool] * count for pool, count in columns.uses[c])
            beyond = max(columns.size[c] / size - 1.0, 0.0) if is_elastic else 0.0
            worth = priority * max((least / felt[c]) ** policy.eta - policy.thrift * beyond, 0.0)
            self.value[c] = max(worth - policy.usd * usd_per_h, 0.0) if policy.usd > 0 else worth

    def _part_kept(self, job: int, restart_s: float) -> float:
        """The part of an elastic job's age that restarts leave if it is resized now; 1 for one that does not run."""
        problem, columns = self._problem, self._columns
        here = [c for c in columns.of_job[job] if columns.runs[c]]
        age_s = max(problem.at - float(problem.jobs.submitted_at[job]), 0.0)
        if not here or age_s <= restart_s:
            return 1.0
        told = [each for each in (self._memory or {}).get("jobs", []) if each[0] == int(problem.jobs.job_id[job])]
        starts, place = (told[0][2], told[0][3]) if told else (0, None)
        starts += [problem.pools.pool_id[columns.uses[here[0]][0][0]], columns.size[here[0]]] != place
        return max((age_s - max(starts - 1, 0) * restart_s) / (age_s + restart_s), 1e-3)

    def _late(self) -> list[int]:
        """Rows of the overdue jobs: the highest step of stretch first, the shortest of a step first."""
        jobs, policy = self._problem.jobs, self._policy
        told = set((self._memory or {}).get("overdue", []))
        slowdown = [
            (max(self._problem.at - float(jobs.submitted_at[job]), 0.0) + self._left_s[job]) / self._total_s[job]
            for job in range(len(jobs))
        ]
        judged = [job for job in range(len(jobs)) if self._known[job] and np.isfinite(slowdown[job])]
        mean = float(np.mean([slowdown[job] for job in judged])) if judged else np.inf
        limit = max(policy.slowdown, policy.margin * mean)
        late = [job for job in judged if slowdown[job] > limit]
        late += [row for row, job_id in enumerate(jobs.job_id.tolist()) if job_id in told and row not in set(late)]

        def in_order(job: int) -> tuple[int, float, int]:
            stretch = slowdown[job] / policy.slowdown if job in set(judged) else 1.0
            step = math.floor(math.log(max(stretch, 1.0)) / math.log(1.5))
            return -step, self._total_s[job], int(jobs.job_id[job])

        return sorted(late, key=in_order)


class _Standing:
    """How far projects and users are behind their shares."""

    def __init__(self, problem: Problem, policy: Any, before: Mapping[str, Any] | None) -> None:
        entities, pools = problem.entities, problem.pools
        self._problem, self._policy, g = problem, policy, len(entities)
        self._parent = entities.parent.tolist() if len(entities.parent) else [-1] * g
        gang = np.where(np.isfinite(problem.jobs.gang), problem.jobs.gang, 0.0)
        self._gang, self._own = gang.tolist(), problem.jobs.entity.tolist()
        demand = [0.0] * g
        for size, entity in zip(self._gang, self._own, strict=True):
            while entity >= 0:
                demand[entity] += size
                entity = self._parent[entity]
        active = [row for row in range(g) if demand[row] > 0]
        self._families = [[row for row in active if self._parent[row] == above] for above in (-1, *active) if active]
        counted = pools.counted if len(pools.counted) else np.ones(len(pools))
        owned = pools.held <= 0
        there = float((pools.capacity * np.where(owned | ~np.any(pools.capacity[owned] > 0), counted, 0.0)).sum())
        self.entitled = [0.0] * g
        for family in self._families:
            if family:
                above = self._parent[family[0]]
                self._entitle(family, demand, there if above < 0 else self.entitled[above], there)
        self.behind_s, self.deficit = [0.0] * g, [0.0] * g
        if before is not None:
            passed_s = max(problem.at - before["at"], 0.0)
            kept = 0.5 ** (passed_s / policy.fair_half_life)
            for row, name in enumerate(entities.name):
                grown = before["rate"].get(name, 0.0) * passed_s
                self.deficit[row] = max(0.0, kept * before["deficit"].get(name, 0.0) + grown)
        self.contested = {row for family in self._families if len(family) > 1 for row in family}
        for family in self._families:
            behind = [self.deficit[row] / max(self.entitled[row], 1e-9) for row in family]
            for row, seconds in zip(family, behind, strict=True):
                self.behind_s[row] = min(seconds - min(behind), policy.fair_half_life)

    @classmethod
    def of(cls, problem: Problem, policy: Any, memory: Memory) -> "_Standing | None":
        """None where shares say nothing."""
        before = memory.get("fair") if isinstance(memory, Mapping) else None
        if policy.fairness <= 0 or not len(problem.jobs) or len(problem.entities) < 2:
            return None
        found = cls(problem, policy, before)
        return found if before is not None or found.contested else None

    def _entitle(self, family: list[int], demand: list[float], room: float, there: float) -> None:
        """Shares of siblings by weight, up to limits and demands; a guarantee above that share is served first."""
        entities = self._problem.entities
        limit = entities.limit if len(entities.limit) else np.ones(len(entities))
        promised = entities.guaranteed if len(entities.guaranteed) else np.zeros(len(entities))
        most = {row: min(demand[row], float(limit[row]) * there) for row in family}
        level = self._filled(most, room)
        first = {row: min(most[row], float(promised[row]) * there) for row in family}
        scale = min(1.0, room / max(sum(first.values()), 1e-9))
        short = {row: first[row] * scale for row in family if first[row] * scale > level[row]}
        if short:
            rest = {row: most[row] for row in family if row not in short}
            level = {**self._filled(rest, max(0.0, room - sum(short.values()))), **short}
        for row, share in level.items():
            self.entitled[row] = share

    def _filled(self, most: dict[int, float], room: float) -> dict[int, float]:
        """`room` by weight, nobody above `most`; what one cannot use goes to the others."""
        weight, given, open_ = self._problem.entities.weight, dict.fromkeys(most, 0.0), set(most)
        while open_ and room > _WHOLE:
            level = room / sum(float(weight[row]) for row in open_)
            full = {row for row in open_ if most[row] <= float(weight[row]) * level}
            for row in full or open_:
                given[row] = most[row] if full else float(weight[row]) * level
            if not full:
                break
            room -= sum(most[row] for row in full)
            open_ -= full
        return given

    def factors(self, worth: list[float], total_s: list[float], columns: _Columns) -> list[float]:
        """By what the value of each job is multiplied (n,)."""
        own = self._own
        above = [self._parent[entity] if entity >= 0 else -1 for entity in own]
        waits = [not any(columns.runs[c] for c in mine) for mine in columns.of_job]
        per_s = [self._policy.fairness / max(seconds, 120.0) for seconds in total_s]
        mine = self._within_due(own, worth, waits)
        user = [
            1.0 + per_s[job] * self.behind_s[own[job]] if own[job] >= 0 and mine[job] else 1.0
            for job in range(len(own))
        ]
        ours = self._within_due(above, [worth[job] * user[job] for job in range(len(own))], waits)
        projects = {above[job] if above[job] >= 0 else own[job] for job in range(len(own))}
        most_s: dict[int, float] = {}
        for job in range(len(own)):
            if above[job] >= 0 and waits[job] and mine[job]:
                most_s[above[job]] = max(most_s.get(above[job], 0.0), self.behind_s[own[job]])
        found = []
        for job in range(len(own)):
            factor = user[job]
            if above[job] >= 0 and len(projects) > 1:
                project = 1.0 + per_s[job] * (self.behind_s[above[job]] if ours[job] else 0.0)
                factor = min(1.0, user[job] / (1.0 + per_s[job] * most_s.get(above[job], 0.0))) * project
            beyond = (own[job] in self.contested and not mine[job]) or (above[job] in self.contested and not ours[job])
            found.append(factor / 1.1 if beyond and waits[job] else factor)
        return self._with_turns(found, worth, above, waits, mine) if len(projects) > 1 else found

    def _with_turns(
        self, factors: list[float], worth: list[float], above: list[int], waits: list[bool], mine: list[bool]
    ) -> list[float]:
        """The factors, where the job of a user that runs is worth 1.1 times those of its siblings less behind."""
        size = [max(gang, 1.0) for gang in self._gang]
        found = list(factors)
        for job, user in enumerate(self._own):
            if above[job] < 0 or waits[job] or not mine[job] or self.behind_s[user] <= 0:
                continue
            claims = [
                worth[other] * factors[other] / size[other]
                for other, sibling in enumerate(self._own)
                if waits[other] and above[other] == above[job] and self.behind_s[sibling] < self.behind_s[user]
            ]
            found[job] = max(found[job], 1.1 * max(claims, default=0.0) * size[job] / max(worth[job], 1e-12))
        return found

    def _within_due(self, entity: list[int], worth: list[float], waits: list[bool]) -> list[bool]:
        """Whether each job is among the most valuable ones of its entity within what is due to that; the first that
        runs, too, while that is behind.
        """
        restart_s, job_id = self._problem.jobs.restart_s, self._problem.jobs.job_id
        turn_s = max(3600.0, float(np.max(restart_s, initial=0.0)) / 0.02)
        used: dict[int, float] = {}
        fits = [True] * len(entity)
        for job in sorted(range(len(entity)), key=lambda job: (-worth[job], int(job_id[job]))):
            row = entity[job]
            used[row] = used.get(row, 0.0) + self._gang[job]
            if row >= 0:
                due = self.entitled[row] * (1.0 + self.behind_s[row] / turn_s)
                on_turn = not waits[job] and self.behind_s[row] > 0
                is_first = used[row] - self._gang[job] < min(due - _WHOLE, _WHOLE)
                fits[job] = used[row] <= due + _WHOLE or (on_turn and is_first)
        return fits

    def within_shares(self, late: list[int]) -> list[int]:
        """Those of the overdue jobs that are within what their project is entitled to, or owed by an hour of them; by
        anything while they run.
        """
        columns, used = self._problem.columns, dict[int, float]()
        runs = set(columns.job[np.flatnonzero(columns.running)].tolist())
        found = []
        for job in late:
            project = self._own[job]
            while project >= 0 and self._parent[project] >= 0:
                project = self._parent[project]
            if project in self.contested:
                least = max(0.0 if job in runs else 3600.0 * self._gang[job] - _WHOLE, _FORGOTTEN)
                owed = used.get(project, 0.0) == 0 and self.deficit[project] > least
                if used.get(project, 0.0) + self._gang[job] > self.entitled[project] + _WHOLE and not owed:
                    continue
                used[project] = used.get(project, 0.0) + self._gang[job]
            found.append(job)
        return found


#: The program's optimum is exact to this part.
_PROGRAM = 1e-5


@dataclass(frozen=True, slots=True)
class _Row:
    """A limit (most) or a guarantee (least, below 0) of an entity, as a row beside those of the pools."""

    entity: int
    inside: frozenset[int]
    pools: np.ndarray
    accelerators: float


@dataclass(frozen=True, slots=True)
class _Class:
    """What is known of one priority class: who competes, for what, and under which limits and guarantees."""

    jobs: list[int]
    free: FloatArray
    limits: list[tuple[_Row, float]]
    floors: list[tuple[_Row, float]]


def prove_walras_plan(problem: Problem, policy: PolicySpec, plan: Plan, memory: Memory) -> PlanProof:
    """Recompute what a plan of `walras` states. The plan names only columns that its jobs have."""
    if problem.jobs.mixes.any():  # then p* is that of gangs over several pools, which the answer does not list
        return PlanProof(0.0, 0.0, (), ("what a place is worth to a job",))
    return _Proof(problem, plan, walras_measure(problem, policy, memory)).found()


class _Proof:
    def __init__(self, problem: Problem, plan: Plan, measure: WalrasWorths) -> None:
        self._problem, self._plan, self._measure = problem, plan, measure
        self._uses = np.zeros((len(problem.columns), len(problem.pools)))
        np.add.at(self._uses, (problem.columns.use_column, problem.columns.use_pool), problem.columns.use_count)
        self._of_job: list[list[int]] = [[] for _ in range(len(problem.jobs))]
        for c, job in enumerate(problem.columns.job.tolist()):
            self._of_job[job].append(c)
        self._limits, self._guarantees = _limits(problem), _guarantees(problem)
        self._complaints: list[str] = []

    def found(self) -> PlanProof:
        plan, measure = self._plan, self._measure
        objective = float(measure.value[plan.column[plan.column >= 0]].sum())
        given, classes = self._given_places()
        worth_given = float(sum(measure.value[plan.column[job]] for job in given))
        least_cost, most_cost = self._costs(classes)
        self._compare_surplus(least_cost, most_cost)
        self._compare_order()
        program = worth_given + sum(self._program(each) for each in classes)
        exact = len(classes) <= 1 and least_cost is most_cost
        dual = worth_given + sum(self._dual(each, least_cost) for each in classes) if exact else None
        told = (measure.name, measure.unit)
        self._complaints += report_complaints(plan.yardstick, told, objective, dual, program * (1 - _PROGRAM))
        bound = max(dual, objective) if dual is not None else plan.yardstick.bound if plan.yardstick else objective
        unchecked = () if least_cost is most_cost else ("how prices of limits and guarantees add up over classes",)
        return PlanProof(objective, bound, tuple(self._complaints), unchecked)

    def _given_places(self) -> tuple[list[int], list[_Class]]:
        """The jobs whose places are given before others compete, each checked; and the classes that compete."""
        problem, plan = self._problem, self._plan
        jobs, columns = problem.jobs, problem.columns
        at = np.full(len(jobs), -1, dtype=np.int64)
        if len(jobs.pinned):
            stay = np.flatnonzero(columns.running & jobs.pinned[columns.job])
            at[columns.job[stay]] = stay
        given: list[int] = np.flatnonzero(at >= 0).tolist()
        classes: list[_Class] = []
        for priority in sorted(set(jobs.priority_class.tolist()), reverse=True):
            given += self._place_late(priority, at)
            competing: list[int] = np.flatnonzero((jobs.priority_class == priority) & (at < 0)).tolist()
            if any(self._measure.value[c] > 0 for row in competing for c in self._of_job[row]):
                classes.append(self._class_of(competing, at))
                at[competing] = plan.column[competing]
        for job in given:
            if plan.column[job] != at[job] and not self._alike(int(plan.column[job]), int(at[job])):
                self._complaints.append(f"job {int(jobs.job_id[job])} has a place before others, not in the plan")
        return given, classes

    def _place_late(self, priority: int, at: IntArray) -> list[int]:
        """Place the overdue jobs of this class in `at` (n,), within the reserve; returns their rows."""
        reserve, free, placed = self._measure.reserve.copy(), self._free(at), list[int]()
        for job in (row for row in self._measure.first if self._problem.jobs.priority_class[row] >= priority):
            chosen, known = int(at[job]), at[job] >= 0
            if not known:
                chosen = self._soonest(job, reserve, free)
            if chosen >= 0:
                reserve = reserve - self._uses[chosen]
            if chosen >= 0 and not known:
                at[job], free = chosen, free - self._uses[chosen]
                placed.append(job)
        return placed

    def _soonest(self, job: int, reserve: FloatArray, free: FloatArray) -> int:
        """The column with room in which an overdue job ends soonest, -1: none."""
        best, chosen, whole = np.inf, -1, self._measure.reserve
        most = np.maximum(reserve, 0.0) + _WHOLE
        for c in self._of_job[job]:
            uses, ends_s = self._uses[c], float(self._measure.ends_s[c])
            if ends_s < best and np.all((uses <= most) | (uses > whole)) and np.all(uses <= free + _WHOLE):
                best, chosen = ends_s, c
        return chosen

    def _class_of(self, competing: list[int], at: IntArray) -> _Class:
        """Who competes for what others have left, when those before them have these columns (n,)."""
        limits = [(row, max(row.accelerators - self._held(row, at), 0.0)) for row in self._limits]
        left = [max(row.accelerators - self._held(row, at), 0.0) for row in self._guarantees]
        mine = np.full(len(at), -1, dtype=np.int64)
        mine[competing] = self._plan.column[competing]
        floors = [(row, min(self._held(row, mine), room)) for row, room in zip(self._guarantees, left, strict=True)]
        return _Class(competing, self._free(at), limits, floors)

    def _free(self, at: IntArray) -> FloatArray:
        """Accelerators of each pool that nobody has when jobs have these columns (n,)."""
        left: FloatArray = np.maximum(self._problem.pools.capacity - self._uses[at[at >= 0]].sum(axis=0), 0.0)
        return left

    def _alike(self, one: int, other: int) -> bool:
        """Whether two columns end at the same time: rounding decides between them."""
        ends_s = self._measure.ends_s
        return one >= 0 and bool(abs(ends_s[one] - ends_s[other]) <= SAME * ends_s[other])

    def _held(self, row: _Row, at: IntArray) -> float:
        """Accelerators that jobs hold of a limit or guarantee when they have these columns (n,)."""
        return float(sum(self._uses[at[job], row.pools].sum() for job in row.inside if at[job] >= 0))

    def _costs(self, classes: list[_Class]) -> tuple[FloatArray, FloatArray]:
        """What an accelerator of each pool costs each job at least and at most (n, p); one array where it is told.

        An answer adds up the prices of an entity's limits and states the highest of all classes, so with several
        classes, or several limits of an entity, only the range is told.
        """
        problem, quote = self._problem, self._plan.quote
        cost = np.tile(quote.prices, (len(problem.jobs), 1))
        told = {each.name: each for each in quote.entities if each.limit or each.guarantee}
        if not told:
            return cost, cost
        by_entity = [row.entity for row in self._limits]
        exact = len(classes) <= 1 and len(set(by_entity)) == len(by_entity)
        least, most = cost, cost if exact else cost.copy()
        for rows, sign, name in ((self._limits, 1.0, "limit"), (self._guarantees, -1.0, "guarantee")):
            for row in rows:
                price = sign * getattr(told.get(problem.entities.name[row.entity]), name, 0.0)
                jobs = [job for job in row.inside if any(job in each.jobs for each in classes)]
                (most if price > 0 else least)[np.ix_(np.array(jobs, dtype=np.int64), np.flatnonzero(row.pools))] += (
                    price
                )
        return least, most

    def _net(self, job: int, cost: FloatArray) -> float:
        """The value less cost of the job's best column, at least 0."""
        value = self._measure.value
        return max([0.0, *(float(value[c] - cost[job] @ self._uses[c]) for c in self._of_job[job])])

    def _compare_surplus(self, least_cost: FloatArray, most_cost: FloatArray) -> None:
        jobs = self._problem.jobs
        for job in range(len(jobs)):
            low, high = self._net(job, most_cost), self._net(job, least_cost)
            slack = SAME * max([high, 1e-9, *(self._measure.value[c] for c in self._of_job[job])])
            stated = float(self._plan.surplus[job])
            if not low - slack <= stated <= high + slack:
                told = f"job {int(jobs.job_id[job])}: surplus stated {stated:.9g}"
                self._complaints.append(f"{told}, {high:.9g} at the prices")

    def _dual(self, one: _Class, cost: FloatArray) -> float:
        """The bound that the prices prove for a class that competes."""
        quote = self._plan.quote
        told = {each.name: each for each in quote.entities}
        bound = sum(self._net(job, cost) for job in one.jobs) + float(quote.prices @ one.free)
        for rows, sign, name in ((one.limits, 1.0, "limit"), (one.floors, -1.0, "guarantee")):
            for row, count in rows:
                bound += sign * count * getattr(told.get(self._problem.entities.name[row.entity]), name, 0.0)
        return bound

    def _program(self, one: _Class) -> float:
        """The optimum of the linear program of a class that competes; 0 where it could not be solved."""
        from scipy.optimize import linprog
        from scipy.sparse import coo_array

        value = self._measure.value
        columns = [c for job in one.jobs for c in self._of_job[job] if value[c] > 0]
        row_of = {job: row for row, job in enumerate(one.jobs)}
        owner, n = self._problem.columns.job, len(one.jobs)
        bands = [(frozenset(one.jobs), np.eye(len(one.free), dtype=bool)[r], 1.0, f) for r, f in enumerate(one.free)]
        bands += [(row.inside, row.pools, 1.0, most) for row, most in one.limits]
        bands += [(row.inside, row.pools, -1.0, -least) for row, least in one.floors if least > 0]
        entries = [(row_of[int(owner[c])], number, 1.0) for number, c in enumerate(columns)]
        for row, (inside, pools, sign, _) in enumerate(bands):
            for number, c in enumerate(columns):
                used = float(self._uses[c, pools].sum()) if int(owner[c]) in inside else 0.0
                if used:
                    entries.append((n + row, number, sign * used))
        most = np.concatenate([np.ones(n), [limit for *_, limit in bands]])
        rows, places, amounts = (list(part) for part in zip(*entries, strict=True))
        table = coo_array((amounts, (rows, places)), shape=(len(most), len(columns)))
        found = linprog(-value[columns], A_ub=table, b_ub=most, bounds=(0, None), method="highs")
        return -float(found.fun) if found.status == 0 else 0.0

    def _compare_order(self) -> None:
        """The most valuable per accelerator come first in each class, after those that have places before others."""
        problem, measure, jobs = self._problem, self._measure, self._problem.jobs
        size = np.maximum(self._uses.sum(axis=1), 1.0)
        density = [max((measure.value[c] / size[c] for c in mine), default=0.0) for mine in self._of_job]
        rank = {job: row for row, job in enumerate(measure.first)}
        before: tuple[int, int] | None = None
        last = np.inf
        for row in self._plan.rows.tolist():
            key = (-int(jobs.priority_class[row]), rank.get(row, len(rank)))
            if before is not None and (key < before or (key == before and density[row] > last * (1 + SAME))):
                self._complaints.append(f"job {int(problem.jobs.job_id[row])} comes too late in the order of the plan")
            if key != before:
                before, last = key, np.inf
            last = min(last, density[row])


def _limits(problem: Problem) -> list[_Row]:
    """Limits below what is there: of the fleet, and of a type or pool where that is tighter."""
    entities, capacity, found = problem.entities, problem.pools.capacity, []
    fleet = float(capacity.sum())
    part = entities.limit if len(entities.limit) else np.ones(len(entities))
    everywhere = np.ones(len(capacity), dtype=np.bool_)
    for row in np.flatnonzero(part < 1).tolist():
        found.append(_Row(row, _below(problem, row), everywhere, float(part[row]) * fleet))
    if problem.limits is not None:
        for row, most, pools in zip(
            problem.limits.entity.tolist(), problem.limits.accelerators.tolist(), problem.limits.pools, strict=True
        ):
            if most < min(float(capacity[pools].sum()), float(part[row]) * fleet) - _WHOLE:
                found.append(_Row(row, _below(problem, row), pools, most))
    return found


def _guarantees(problem: Problem) -> list[_Row]:
    """Guarantees that somebody inside and somebody outside has an interest in."""
    entities, capacity, found = problem.entities, problem.pools.capacity, []
    everywhere = np.ones(len(capacity), dtype=np.bool_)
    for row in np.flatnonzero(entities.guaranteed > 0).tolist() if len(entities.guaranteed) else []:
        inside = _below(problem, row)
        if 0 < len(inside) < len(problem.jobs):
            found.append(_Row(row, inside, everywhere, float(entities.guaranteed[row] * capacity.sum())))
    return found


def _below(problem: Problem, entity: int) -> frozenset[int]:
    """The jobs that belong to an entity."""
    parent = problem.entities.parent.tolist() if len(problem.entities.parent) else [-1] * len(problem.entities)

    def lineage(row: int) -> Iterator[int]:
        while row >= 0:
            yield row
            row = parent[row]

    return frozenset(job for job, row in enumerate(problem.jobs.entity.tolist()) if entity in lineage(row))
