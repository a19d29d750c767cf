"""The problem job by job, in plain loops: feasible columns, speeds, entitlements, and each job's best response to
prices.

Symbols: T[c] steps/s of column c, N[p] accelerators of pool p, s[m] accelerators of job m's gang, M jobs.

    equal[m]   = sum_p T[m,p] N[p] / sum_p N[p]      steps/s if m's time were split over the pools by their size
    speed[c]   = T[c], or, blind to speeds, equal[m] accelerators[c] / s[m]
    utility[c] = s[m] speed[c] / equal[m]            in accelerators of the fleet's average speed for m
    isolated   = 1/M of every pool for every job

At given prices the shares of a job obey two constraints: its time, and its target if it has one. A best response is
therefore a single configuration, idleness, or a mixture of two of these, and all of them are tried. A menu is a table
of n jobs with m + 1 entries each; entry 0 is idleness, and unused entries repeat it (n, m + 1).

Shares over a tree of entities (`CheckedTree`): its structure and limits, and each job's target at a level. Amounts are
sums of fair-share utilities; a fleet of N accelerators has about N. At level z, by tiers:

    guaranteed    every entity has z times its guaranteed amount, z up to 1
    by weight     a top entity has min(max(B, w z), cap), B its guaranteed amount
    weightless    the same with B the amount that each has by now, and weights of 0 counting as 1

An entity's amount is divided among its children by the same rule (y is the water level at which they have all of it),
or given to its jobs in order of submission. Its cap is what its children can use together; an entity that does not
borrow is capped by its own part of the fleet, too.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from optimizer.decision import ColocatedJobs, Memory, Shares
from optimizer.problem import BoolArray, Entities, FloatArray, Problem

#: A target above the largest reachable utility by at most this part counts as reachable.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class ResponseMenu:
    """Utility of each entry and its cost at given prices; a negative cost is a gain."""

    worth: FloatArray
    cost: FloatArray

    @property
    def most(self) -> FloatArray:
        """Largest utility that each job can have (n,)."""
        return np.asarray(self.worth.max(axis=1))


def cheapest_mixture(menu: ResponseMenu, target: FloatArray) -> FloatArray:
    """Least cost of exactly the target utility; inf where it is out of reach (n,)."""
    most = menu.most
    target = np.where(target <= most * (1 + _ROUNDING), np.minimum(target, most), target)
    least = np.full(len(target), np.inf)
    for worth, cost, other_worth, other_cost in _mixtures(menu):
        between = (np.minimum(worth, other_worth) <= target) & (target <= np.maximum(worth, other_worth))
        width = other_worth - worth
        part = np.divide(target - worth, width, out=np.zeros(len(target)), where=width != 0)
        mixed = np.where(width != 0, cost + part * (other_cost - cost), np.minimum(cost, other_cost))
        least = np.where(between, np.minimum(least, mixed), least)
    return least


def cheapest_mixture_at_least(menu: ResponseMenu, floor: FloatArray) -> FloatArray:
    """Least cost, possibly negative, of at least the floor; inf where it is out of reach (n,)."""
    enough = menu.worth >= floor[:, None]
    alone = np.where(enough, menu.cost, np.inf).min(axis=1)
    return np.asarray(np.minimum(alone, cheapest_mixture(menu, np.maximum(floor, 0.0))))


def largest_log_surplus(menu: ResponseMenu, weight: FloatArray) -> FloatArray:
    """Largest weight log(utility) - cost of each job; 0 for weight 0 (n,)."""
    most = np.where(weight > 0, -np.inf, 0.0)
    for worth, cost, other_worth, other_cost in _mixtures(menu):
        width, rise = other_worth - worth, other_cost - cost
        # An interior optimum of the mixture satisfies weight width / utility = rise in cost.
        utility = np.divide(weight * width, rise, out=np.maximum(worth, other_worth), where=rise != 0)
        utility = np.where((rise != 0) & (width / np.where(rise != 0, rise, 1.0) <= 0), np.inf, utility)
        for candidate in (utility, worth, other_worth):
            inside = np.clip(candidate, np.minimum(worth, other_worth), np.maximum(worth, other_worth))
            part = np.divide(inside - worth, width, out=np.zeros(len(weight)), where=width != 0)
            usable = (inside > 0) & (weight > 0)
            value = weight * np.log(np.where(usable, inside, 1.0)) - (cost + part * rise)
            most = np.where(usable, np.maximum(most, value), most)
    return most


def _mixtures(menu: ResponseMenu) -> Iterator[tuple[FloatArray, FloatArray, FloatArray, FloatArray]]:
    """Generates worths and costs of both ends for every pair of entries, idleness included."""
    for one in range(menu.worth.shape[1]):
        for other in range(one, menu.worth.shape[1]):
            yield menu.worth[:, one], menu.cost[:, one], menu.worth[:, other], menu.cost[:, other]


#: Tolerance for counts computed in floating point.
_WHOLE = 1e-9


@dataclass(frozen=True, slots=True)
class CoLocatedPair:
    """Two co-located jobs: their rows, the columns whose speeds count, the pool, the gang size and share of time."""

    first: int
    second: int
    first_column: int
    second_column: int
    pool: int
    count: float
    share: float
    first_factor: float
    second_factor: float


class JobwiseProblem:
    """Quantities that follow from the problem and the number of rented accelerators alone."""

    def __init__(self, problem: Problem, rent: FloatArray, *, aware: bool, packs: bool = False) -> None:
        columns = problem.columns
        self.problem = problem
        self.capacity = problem.pools.capacity - problem.pools.held + rent
        self.uses: list[dict[int, float]] = [{} for _ in columns.job]
        for column, pool, count in zip(columns.use_column, columns.use_pool, columns.use_count, strict=True):
            self.uses[column][int(pool)] = self.uses[column].get(int(pool), 0.0) + float(count)
        self.columns_of: list[list[int]] = [[] for _ in problem.jobs.job_id]
        for column, job in enumerate(columns.job):
            self.columns_of[job].append(column)
        self.accelerators = np.array([sum(uses.values()) for uses in self.uses], dtype=np.float64)
        self.usable = np.array([self._fits(column) for column in range(len(self.uses))], dtype=np.bool_)
        self.alone = [self._alone(mine) for mine in self.columns_of]
        self.equal = np.array([self._equal(job) for job in range(len(self.columns_of))], dtype=np.float64)
        speed = columns.steps_per_s
        if not aware:
            speed = (self.equal / problem.jobs.gang)[columns.job] * self.accelerators
        self.speed = np.where(self.usable, speed, 0.0)
        per_step = np.divide(problem.jobs.gang, self.equal, out=np.zeros(len(self.equal)), where=self.equal > 0)
        self.utility = per_step[columns.job] * self.speed
        self.weight = self._entitlements()
        #: (Jobs, accelerators that they never exceed together): rows with a price, after those of the pools.
        self.limits: list[tuple[BoolArray, float]] = []
        #: Rows of `Pairs` by which some two jobs could gain from co-location.
        self.pair_rows = [row for row in range(len(problem.pairs or ())) if packs and self._gains(row)]

    def limit(self, limits: list[tuple[BoolArray, float]]) -> None:
        """Limits groups of jobs to a number of accelerators together; columns larger than a limit cannot run."""
        self.limits = limits
        for jobs, allowed in limits:
            self.usable &= ~(jobs[self.problem.columns.job] & (self.accelerators > allowed * (1 + _WHOLE)))
        self.speed, self.utility = (np.where(self.usable, values, 0.0) for values in (self.speed, self.utility))

    @property
    def row_capacity(self) -> FloatArray:
        """Returns the capacity of every row: pools, then limits (r,)."""
        return np.concatenate((self.capacity, [allowed for _, allowed in self.limits]))

    def used(self, shares: Shares) -> FloatArray:
        """Returns how much of every row the shares use (r,)."""
        used, job = np.zeros(len(self.row_capacity)), self.problem.columns.job
        for column, uses in enumerate(self.uses):
            for pool, count in uses.items():
                used[pool] += count * shares.x[column]
        for pair in self.pairs_in(shares.packed):
            used[pair.pool] += pair.count * pair.share
        for row, (jobs, _) in enumerate(self.limits, start=len(self.capacity)):
            used[row] = float((self.accelerators * shares.x)[jobs[job]].sum())
        return used

    @property
    def jobs(self) -> int:
        """Number of jobs, n."""
        return len(self.columns_of)

    @property
    def placeable(self) -> np.ndarray:
        """Jobs that have a usable column (n,)."""
        return np.array([any(self.usable[c] for c in mine) for mine in self.columns_of], dtype=np.bool_)

    def best(self, worth: FloatArray) -> FloatArray:
        """Returns the largest worth among each job's columns, at least 0 (n,)."""
        return np.array([max((worth[c] for c in mine), default=0.0) for mine in self.columns_of], dtype=np.float64)

    def summed(self, values: FloatArray) -> FloatArray:
        """Returns the sum over each job's columns (n,)."""
        return np.array([sum(values[c] for c in mine) for mine in self.columns_of], dtype=np.float64)

    def gained(self, worth: FloatArray, shares: Shares) -> FloatArray:
        """Returns each job's worth of its shares, co-located ones included; `worth` is per column for all the time
        (n,).
        """
        gained = self.summed(worth * shares.x)
        for pair in self.pairs_in(shares.packed):
            gained[pair.first] += pair.first_factor * worth[pair.first_column] * pair.share
            gained[pair.second] += pair.second_factor * worth[pair.second_column] * pair.share
        return gained

    def over_columns(self, shares: Shares) -> tuple[FloatArray, FloatArray]:
        """Returns the time that each column gives its job, and the time that it holds its accelerators (c,), (c,).

        Co-located time counts by the part of the speed that is kept for the first, and by half for the second.
        """
        gives, holds = shares.x.copy(), shares.x.copy()
        for pair in self.pairs_in(shares.packed):
            for column, factor in ((pair.first_column, pair.first_factor), (pair.second_column, pair.second_factor)):
                gives[column] += factor * pair.share
                holds[column] += pair.share / 2
        return gives, holds

    def pairs_in(self, packed: ColocatedJobs) -> Iterator["CoLocatedPair"]:
        """Generates the co-located pairs; pairs that are not feasible are left out."""
        pairs = self.problem.pairs
        if pairs is None:
            return
        for first, second, row, share in zip(packed.first, packed.second, packed.pair, packed.share, strict=True):
            pool = int(pairs.pool[row])
            one, other = self.alone[first].get(pool), self.alone[second].get(pool)
            as_listed = (pairs.kind[first], pairs.kind[second]) == (pairs.first[row], pairs.second[row])
            if one is None or other is None or first == second or not as_listed:
                continue
            if self.uses[one][pool] == self.uses[other][pool]:
                factors = float(pairs.first_factor[row]), float(pairs.second_factor[row])
                yield CoLocatedPair(
                    int(first), int(second), one, other, pool, self.uses[one][pool], float(share), *factors
                )

    def cost(self, prices: FloatArray) -> FloatArray:
        """Returns the cost of each column at the prices of the pools, and of the limits if given (c,)."""
        cost = np.array([sum(n * prices[p] for p, n in uses.items()) for uses in self.uses], dtype=np.float64)
        for (jobs, _), price in zip(self.limits, prices[len(self.capacity) :], strict=False):
            cost += np.where(jobs[self.problem.columns.job], self.accelerators * price, 0.0)
        return cost

    def menu(self, worth: FloatArray, cost: FloatArray) -> ResponseMenu:
        """Returns the usable columns of all jobs as a table, idleness first."""
        width = 1 + max((len(mine) for mine in self.columns_of), default=0)
        worths, costs = np.zeros((self.jobs, width)), np.zeros((self.jobs, width))
        for job, mine in enumerate(self.columns_of):
            usable = [c for c in mine if self.usable[c]]
            worths[job, 1 : 1 + len(usable)] = worth[usable]
            costs[job, 1 : 1 + len(usable)] = cost[usable]
        return ResponseMenu(worths, costs)

    def _gains(self, row: int) -> bool:
        """Returns whether some two jobs of the row together keep more than the speed of one.

        Otherwise time-sharing gives both as much for no more.
        """
        pairs = self.problem.pairs
        assert pairs is not None, "a row of pairs"
        if pairs.first_factor[row] + pairs.second_factor[row] <= 1:
            return False
        pool = int(pairs.pool[row])
        one, other = (
            [(job, self.uses[self.alone[job][pool]][pool]) for job in np.flatnonzero(pairs.kind == kind)
             if pool in self.alone[job]]
            for kind in (pairs.first[row], pairs.second[row])
        )  # fmt: skip
        return any(job != partner and count == same for job, count in one for partner, same in other)

    def _fits(self, column: int) -> bool:
        makes_progress = bool(self.problem.columns.steps_per_s[column] > 0)
        return makes_progress and all(n <= self.capacity[p] + _WHOLE for p, n in self.uses[column].items())

    def _alone(self, mine: list[int]) -> dict[int, int]:
        """Returns the column that represents the job in each pool: its smallest usable gang, the fastest of equals."""
        chosen: dict[int, tuple[float, float, int]] = {}
        for column in mine:
            if self.usable[column] and len(self.uses[column]) == 1:
                [(pool, count)] = self.uses[column].items()
                entry = (count, -float(self.problem.columns.steps_per_s[column]), column)
                chosen[pool] = min(chosen.get(pool, entry), entry)
        return {pool: column for pool, (_, _, column) in chosen.items()}

    def _equal(self, job: int) -> float:
        """Returns equal[m]; for a job that fits into no single pool (mixed gangs only), its largest speed."""
        speeds = self.problem.columns.steps_per_s
        whole = max(float(self.capacity.sum()), 1.0)
        equal = sum(float(speeds[column] * self.capacity[pool]) / whole for pool, column in self.alone[job].items())
        return equal or max((float(speeds[c]) for c in self.columns_of[job] if self.usable[c]), default=0.0)

    def _entitlements(self) -> FloatArray:
        """Returns the jobs' weights after each project that has runnable jobs has divided its weight among them."""
        jobs, entities = self.problem.jobs, self.problem.entities
        own = np.where(self.placeable, jobs.weight, 0.0)
        if not len(entities):
            return own
        project = jobs.entity.copy()
        for parent, row in reversed(list(zip(entities.parent, range(len(entities)), strict=False))):
            project[project == row] = row if parent < 0 else parent
        present = [e for e in range(len(entities)) if own[project == e].sum() > 0]
        total = sum(float(entities.weight[e]) for e in present)
        entitled = np.zeros(len(own))
        for entity in present:
            members = project == entity
            if total > 0:
                part = float(entities.weight[entity]) / total
                entitled[members] = own.sum() * part * own[members] / own[members].sum()
        return entitled


def isolated_shares(facts: JobwiseProblem) -> FloatArray:
    """x[m,p] = N[p] / (M s[m]) in the column that represents m in p, with each job's sum limited to 1 (c,)."""
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
    """For each job (n,): whether it has steps left; t / D; and D / R (1 / iso where R is unknown), D = A + R / iso."""

    rising: BoolArray
    past: FloatArray
    per_rate: FloatArray


def isolated_times(facts: JobwiseProblem, memory: Memory) -> IsolatedTimes:
    """Computes A from the steps, rates and times that the last solve left in `memory`; without memory A = t."""
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


def _isolated_rates(facts: JobwiseProblem) -> FloatArray:
    """Returns each job's isolated rate; a job in no single pool runs its best column for its part of the fleet."""
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


GUARANTEED, BY_WEIGHT, WEIGHTLESS = 0, 1, 2
_HALVINGS = 120
#: Stands for the root above the top entities.
_TOP = -1


@dataclass(slots=True)
class CheckedEntity:
    """One entity under the policy's terms."""

    parent: int
    weight: float = 1.0
    guaranteed: float = 0.0
    limit: float = 1.0
    borrows: bool = True
    fifo: bool = False
    children: list[int] = field(default_factory=list)
    #: Rows of its own jobs, in order of service where the entity serves them in order.
    jobs: list[int] = field(default_factory=list)


class CheckedTree:
    """The entities of a problem under a policy's terms, with the jobs on them."""

    def __init__(self, facts: JobwiseProblem, terms: Mapping[str, Any]) -> None:
        self.fleet = float(facts.problem.pools.capacity.sum())
        self.entities = _entities(facts.problem.entities, terms)
        self.top = [row for row, entity in enumerate(self.entities) if entity.parent < 0]
        self.loose: list[int] = []  # jobs without an entity
        jobs = facts.problem.jobs
        for job in np.lexsort((jobs.job_id, jobs.submitted_at)):
            if not len(facts.problem.entities):
                self.loose.append(int(job))
                continue
            above = self.path(int(jobs.entity[job]))
            served = [row for row in above if self.entities[row].fifo]
            self.entities[served[-1] if served else above[0]].jobs.append(int(job))

    def path(self, row: int) -> list[int]:
        """An entity and its ancestors."""
        path = [row]
        while self.entities[path[-1]].parent >= 0:
            path.append(self.entities[path[-1]].parent)
        return path

    def limits(self, facts: JobwiseProblem) -> list[tuple[BoolArray, float]]:
        """For every entity with a limit: its jobs, and the accelerators that they never exceed together."""
        owned = len(facts.problem.entities) > 0
        of = [self.path(int(row)) if owned else [] for row in facts.problem.jobs.entity]
        return [
            (np.array([row in path for path in of], dtype=np.bool_), entity.limit * self.fleet)
            for row, entity in enumerate(self.entities)
            if entity.limit < 1
        ]

    def own_part(self, row: int) -> float:
        """The amount that caps an entity that does not borrow."""
        entity = self.entities[row]
        if entity.borrows:
            return float("inf")
        part = 1.0
        for each in self.path(row):
            siblings = [other.weight for other in self.entities if other.parent == self.entities[each].parent]
            part *= self.entities[each].weight / sum(siblings) if sum(siblings) > 0 else 0.0
        return max(part, entity.guaranteed) * self.fleet


@dataclass(frozen=True, slots=True, eq=False)
class CheckedTreeTargets:
    """Targets of a tier; jobs that have settled keep their utility (arrays (n,))."""

    tree: CheckedTree
    tier: int
    weight: FloatArray
    kept: FloatArray
    cap: FloatArray
    settled: BoolArray
    #: Cached results of `_group` for whole guarantees, by entity: a search for a level asks for them at every step.
    _groups: dict[int, tuple[FloatArray, FloatArray, FloatArray]] = field(default_factory=dict, init=False, repr=False)

    @property
    def rising(self) -> BoolArray:
        """Jobs that have not settled (n,)."""
        return np.asarray(~self.settled)

    @property
    def highest(self) -> float:
        """Returns the level at which the top entities have all that they can use."""
        if self.tier == GUARANTEED:
            return 1.0
        floors, caps, weights = self._group(_TOP, 1.0)
        rising = (weights > 0) & (caps > floors)
        return float((caps[rising] / weights[rising]).max(initial=0.0))

    def at(self, z: float) -> FloatArray:
        targets = np.zeros(len(self.kept))
        guarantee = z if self.tier == GUARANTEED else 1.0
        floors, caps, weights = self._group(_TOP, guarantee)
        water = 0.0 if self.tier == GUARANTEED else z
        amounts = np.minimum(np.maximum(floors, weights * water), caps)
        self._hand_out(_TOP, amounts, guarantee, targets)
        return targets

    def reached(self, utility: FloatArray, full: float) -> float:
        low, high, enough = 0.0, self.highest, utility * (1 + full)
        if np.all(enough >= self.at(high)):
            return high
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            if middle in (low, high):
                break
            low, high = (middle, high) if np.all(enough >= self.at(middle)) else (low, middle)
        return low

    def _below(self, row: int) -> tuple[list[int], list[int], bool]:
        """Returns the entities and jobs directly below an entity, and whether they are served in order."""
        if row == _TOP:
            return self.tree.top, self.tree.loose, False
        entity = self.tree.entities[row]
        return entity.children, entity.jobs, entity.fifo

    def _hand_out(self, above: int, amounts: FloatArray, guarantee: float, targets: FloatArray) -> None:
        entities, jobs, _ = self._below(above)
        for row, amount in zip(entities, amounts, strict=False):
            floors, caps, weights = self._group(row, guarantee)
            if self.tree.entities[row].fifo:
                before = np.concatenate(([0.0], np.cumsum(caps)))[:-1]
                inside = np.clip(amount - before, 0.0, caps)
            else:
                inside = _divided(float(amount), floors, caps, weights)
            self._hand_out(row, inside, guarantee, targets)
        if jobs:
            targets[jobs] = amounts[len(entities) :]

    def _group(self, above: int, guarantee: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Returns floors, caps and weights of the entities and then the jobs below an entity."""
        if guarantee != 1.0:
            return self._computed_group(above, guarantee)
        if above not in self._groups:
            self._groups[above] = self._computed_group(above, 1.0)
        return self._groups[above]

    def _computed_group(self, above: int, guarantee: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Computes `_group`: a sibling without weight gets only its floor, unless jobs are served in order."""
        entities, jobs, in_order = self._below(above)
        bounds = [self._of(row, guarantee) for row in entities]
        keeps = self.settled[jobs] | (self.tier == WEIGHTLESS)
        own_floor = np.minimum(np.where(keeps, self.kept[jobs], 0.0), self.cap[jobs])
        weight = np.concatenate(([self.tree.entities[row].weight for row in entities], self.weight[jobs]))
        weight = np.where(weight > 0, weight, 1.0) if self.tier == WEIGHTLESS else weight
        floor = np.concatenate(([least for least, _ in bounds], own_floor))
        cap = np.concatenate(([most for _, most in bounds], self.cap[jobs]))
        return floor, cap if in_order else np.where(weight > 0, cap, floor), weight

    def _of(self, row: int, guarantee: float) -> tuple[float, float]:
        """Returns the floor and cap of an entity."""
        entity = self.tree.entities[row]
        _, caps, _ = self._group(row, 1.0)
        cap = min(float(caps.sum()), self.tree.own_part(row))
        if self.tier == WEIGHTLESS:
            return min(self._held(row), cap), cap
        return min(guarantee * min(entity.guaranteed * self.tree.fleet, cap), cap), cap

    def _held(self, row: int) -> float:
        entity = self.tree.entities[row]
        return float(self.kept[entity.jobs].sum()) + sum(self._held(child) for child in entity.children)


def _divided(amount: float, floors: FloatArray, caps: FloatArray, weights: FloatArray) -> FloatArray:
    """Divides an amount by water filling: min(max(floor, w y), cap) at the level y that uses all of it."""

    def at(y: float) -> FloatArray:
        return np.asarray(np.minimum(np.maximum(floors, weights * y), caps))

    if at(0.0).sum() >= amount:
        return at(0.0)
    # The sum is linear between the levels at which some entry leaves its floor or reaches its cap.
    known = weights > 0
    bends = np.unique(np.concatenate(([0.0], floors[known] / weights[known], caps[known] / weights[known])))
    sums = np.minimum(np.maximum(floors, weights * bends[:, None]), caps).sum(axis=1)
    return at(float(np.interp(amount, sums, bends)))


def _entities(known: Entities, terms: Mapping[str, Any]) -> list[CheckedEntity]:
    """Returns the problem's entities under the policy's terms; an entity that only the policy names has no jobs."""

    def stated(array: np.ndarray, row: int, default: Any) -> Any:
        return array[row].item() if len(array) else default

    entities = [
        CheckedEntity(
            stated(known.parent, row, -1),
            float(known.weight[row]),
            stated(known.guaranteed, row, 0.0),
            stated(known.limit, row, 1.0),
            stated(known.borrows, row, True),
            stated(known.fifo, row, False),
        )
        for row in range(len(known))
    ]
    rows = {name: row for row, name in enumerate(known.name)}
    for project, said in terms.items():
        inner = {f"{project}/{user}": each for user, each in (said.get("users") or {}).items()}
        for name, each in {project: said, **inner}.items():
            if name not in rows:
                rows[name] = len(entities)
                entities.append(CheckedEntity(rows[project] if name in inner else -1))
            _apply(entities[rows[name]], each)
    for row, entity in enumerate(entities):
        if entity.parent >= 0:
            entities[entity.parent].children.append(row)
    return entities


def _apply(entity: CheckedEntity, said: Mapping[str, Any]) -> None:
    for name in ("weight", "guaranteed", "limit", "borrows"):
        if said.get(name) is not None:
            setattr(entity, name, said[name])
    if said.get("inside") is not None:
        entity.fifo = said["inside"] == "fifo"
