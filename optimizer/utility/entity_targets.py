"""Water filling over a tree of projects and users: the target of each class of jobs at a level of the top.

Amounts are sums of fair-share utilities: one unit is one accelerator of average speed for the job that has it, and a
fleet of N accelerators has about N to give. At level z

    a top entity e has    Y[e] = min(max(B[e], w[e] z), cap[e])
    inside e (by weight)  the water y rises until  sum_i min(max(B[i], w[i] y), cap[i]) = Y[e]  over its children i
    inside e (fifo)       its jobs in order of submission: each all it can use of what those before it leave

where cap is what an entity's jobs can use together (for one that does not borrow, at most its own part of the fleet)
and B a floor. Three tiers follow each other:

    guaranteed    Y[e] = z B[e], B the guaranteed amounts, z up to 1
    by weight     z from 0, floors the guaranteed amounts
    weightless    those of weight 0 count as 1, floors what everybody has by now

This module states the targets; `optimizer.lp.interior_point` finds how far they can rise.

Guarantees, limits and borrowing of projects and users become numbers, as a tree over the classes of a problem:

    guaranteed    g N units of utility
    limit         a row of the class problem: all columns of the jobs below use it by their accelerators; it has l N
    own part      of an entity that does not borrow: N times the product of its and its ancestors' weights, each over
                  those of all siblings, idle ones included; its guaranteed amount if that is more
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np

from optimizer.classes.aggregation import AggregatedProblem
from optimizer.classes.class_problem import with_class_rows
from optimizer.classes.segments import sum_by
from optimizer.problem import BoolArray, Entities, FloatArray, IntArray, Problem
from optimizer.utility.fair_share import column_accelerators

GUARANTEED, BY_WEIGHT, WEIGHTLESS = 0, 1, 2
#: A sum of weights below this part of the largest counts as 0: rounding left it.
_NO_SPEED = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class EntityTree:
    """K entities, then k classes of jobs, as items 0..K+k-1 (all arrays (K + k,) unless another shape is given)."""

    entities: int
    #: The parent of each item, -1 at the top. Entities come after their parents.
    parent: IntArray
    #: Weight against the siblings: of an entity, or of all members of a class together.
    weight: FloatArray
    #: Amount that the item gets before the rest is shared; 0 for classes.
    guaranteed: FloatArray
    #: Amount that the item never exceeds; inf for those that borrow, and for classes.
    most: FloatArray
    #: Whether the entity serves its jobs in the order of `rank` (K,).
    fifo: BoolArray
    #: The order among the classes of an entity that serves in order.
    rank: FloatArray
    #: The number of members of each class (k,).
    size: FloatArray

    def sums(self, values: FloatArray) -> FloatArray:
        """Returns for each item the sum of per-member values of the classes (k,) below it, without regard to limits (K
        + k,).
        """
        totals = np.concatenate((np.zeros(self.entities), values * self.size))
        for level in reversed(self.generations()):
            below = level[self.parent[level] >= 0]
            np.add.at(totals, self.parent[below], totals[below])
        return totals

    def generations(self) -> list[IntArray]:
        """Returns the items by their depth in the tree, classes included."""
        depth = np.zeros(len(self.parent), dtype=np.int64)
        for item in range(self.entities):
            depth[item] = depth[self.parent[item]] + 1 if self.parent[item] >= 0 else 0
        leaf = np.arange(self.entities, len(self.parent))
        depth[leaf] = np.where(self.parent[leaf] >= 0, depth[self.parent[leaf]] + 1, 0)
        return [np.flatnonzero(depth == d) for d in range(int(depth.max(initial=-1)) + 1)]


@dataclass(frozen=True, slots=True, eq=False)
class EntityTargets:
    """Targets of the classes at a level of the top. `floor` and `cap` are amounts of items; 0 <= floor <= cap."""

    tree: EntityTree
    weight: FloatArray
    floor: FloatArray
    cap: FloatArray
    #: Whether the floors themselves rise with z up to 1, while nothing else does.
    guarantees: bool
    generations: tuple[IntArray, ...]
    #: The sibling groups of each generation; not used where floors rise, because they then change with z.
    families: "tuple[_SiblingGroup, ...]"

    @property
    def highest(self) -> float:
        """The level at which the top has all that it can use."""
        if self.guarantees:
            return 1.0
        top = self.generations[0] if self.generations else np.zeros(0, dtype=np.int64)
        rising = top[(self.weight[top] > 0) & (self.cap[top] > self.floor[top])]
        return float((self.cap[rising] / self.weight[rising]).max(initial=0.0))

    def at(self, z: float) -> tuple[FloatArray, FloatArray]:
        """Returns the targets of one member of each class, and their slopes just below z (k,), (k,)."""
        families = self.families
        if self.guarantees:
            own = np.arange(len(self.cap)) < self.tree.entities
            floor = np.where(own, np.minimum(z * self.floor, self.cap), self.floor)
            growth = np.where(own & (z * self.floor <= self.cap), self.floor, 0.0)
            families = sibling_groups(self.tree, self.generations, self.weight, (floor, self.cap, growth))
        amount, slope = np.zeros(len(self.cap)), np.zeros(len(self.cap))
        for depth, family in enumerate(families):
            items = family.shared
            if depth == 0:
                amount[items], slope[items] = family.siblings.at(0.0 if self.guarantees else z)
                continue
            if len(family.queued):
                self._in_order(family.queued, amount, slope)
            if len(items):
                amount[items], slope[items] = family.siblings.divided(family.parent, family.ladder, amount, slope)
        leaves = slice(self.tree.entities, None)
        return amount[leaves] / self.tree.size, slope[leaves] / self.tree.size

    def _in_order(self, items: IntArray, amount: FloatArray, slope: FloatArray) -> None:
        """Gives each item what those before it leave."""
        order = items[np.lexsort((self.tree.rank[items], self.tree.parent[items]))]
        parent, cap = self.tree.parent[order], self.cap[order]
        through = np.cumsum(cap)
        first = np.flatnonzero(np.diff(parent, prepend=-2))
        before = through - cap - np.repeat((through - cap)[first], np.diff(first, append=len(order)))
        amount[order] = np.clip(amount[parent] - before, 0.0, cap)
        taking = (amount[parent] > before) & (amount[parent] <= before + cap)
        slope[order] = np.where(taking, slope[parent], 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class _Siblings:
    """Items that rise together: min(max(floor, weight y), cap). `growth`: derivative of the floors by the level of the
    top.
    """

    weight: FloatArray
    floor: FloatArray
    cap: FloatArray
    growth: FloatArray

    def at(self, y: float) -> tuple[FloatArray, FloatArray]:
        """Returns the amounts and slopes of the items at water level y."""
        water = self.weight * y
        amount = np.minimum(np.maximum(self.floor, water), self.cap)
        slope = np.where((water > self.floor) & (water <= self.cap), self.weight, 0.0)
        return amount, np.where(water > self.floor, slope, self.growth)

    def none(self) -> "_Siblings":
        """Returns an empty group: items at the top have no parent that divides among them."""
        return _Siblings(self.weight[:0], self.floor[:0], self.cap[:0], self.growth[:0])

    def ladder(self, parent: IntArray, items: int) -> "_Breakpoints":
        """Returns the breakpoints of each parent, in order: the levels at which one of its items starts or stops
        rising.
        """
        floats = np.flatnonzero(self.weight > 0)
        of = np.concatenate((parent[floats], parent[floats]))
        points = np.concatenate((self.floor[floats], self.cap[floats])) / np.tile(self.weight[floats], 2)
        change = np.concatenate((self.weight[floats], -self.weight[floats]))
        order = np.lexsort((points, of))
        of, points, change = of[order], points[order], change[order]
        first = np.flatnonzero(np.diff(of, prepend=-2))
        length = np.diff(first, append=len(of))
        speed = np.cumsum(change)
        speed = np.maximum(speed - np.repeat(speed[first] - change[first], length), 0.0)
        height = np.concatenate(([0.0], speed[:-1] * np.diff(points))) if len(of) else np.zeros(0)
        height[first] = 0.0
        height = np.cumsum(height)
        height -= np.repeat(height[first], length)
        fixed = sum_by(parent, np.minimum(self.floor, self.cap), items)
        still = _NO_SPEED * self.weight.max(initial=0.0)
        halvings = int(length.max(initial=1) - 1).bit_length()
        return _Breakpoints(of[first], first, first + length, points, speed, height, fixed, still, halvings)

    def divided(
        self, parent: IntArray, ladder: "_Breakpoints", amount: FloatArray, slope: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Returns the amounts and slopes after each parent's amount is divided among its children."""
        water = self.weight * ladder.water(amount)[parent]
        low, high = water <= self.floor, water >= self.cap
        given = np.where(low, self.floor, np.where(high, self.cap, water))
        share = np.where(~low & ~high & (self.weight > 0), self.weight, 0.0)
        total = np.bincount(parent, weights=share, minlength=len(amount))
        missing = amount - np.bincount(parent, weights=given, minlength=len(amount))
        part = np.divide(share, total[parent], out=np.zeros(len(share)), where=total[parent] > 0)
        given = np.clip(given + part * missing[parent], np.minimum(self.floor, self.cap), self.cap)
        growth = np.where(low, self.growth, 0.0)
        left = slope - np.bincount(parent, weights=growth, minlength=len(amount))
        return given, np.maximum(growth + part * left[parent], 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class _Breakpoints:
    """The total of each parent's children at the water levels where one of them starts or stops rising, parent by
    parent.
    """

    #: Parents with children that rise, and the range of breakpoints of each.
    parent: IntArray
    first: IntArray
    end: IntArray
    #: Level of each breakpoint, the slope of the total above it, and the total gained up to it.
    point: FloatArray
    speed: FloatArray
    height: FloatArray
    #: For every item, the amount that its children have at any level.
    fixed: FloatArray
    #: A slope below this counts as 0.
    still: float
    #: Bisection steps that leave one breakpoint of a parent.
    halvings: int

    def water(self, amount: FloatArray) -> FloatArray:
        """Returns the water level inside each item at which its children have this amount in total."""
        wanted = (amount - self.fixed)[self.parent]
        last, end = self.first, self.end  # The last breakpoint at which the total is not above the wanted amount.
        for _ in range(self.halvings):
            middle = (last + end) // 2
            passed = self.height[middle] <= wanted
            last, end = np.where(passed, middle, last), np.where(passed, end, middle)
        rest, speed = np.maximum(wanted - self.height[last], 0.0), self.speed[last]
        water = np.zeros(len(amount))
        water[self.parent] = self.point[last] + np.divide(
            rest, speed, out=np.zeros(len(last)), where=speed > self.still
        )
        return water


@dataclass(frozen=True, slots=True, eq=False)
class _SiblingGroup:
    """The items of a generation: those served in order, and those that share with their siblings."""

    queued: IntArray
    shared: IntArray
    #: For those that share: their parents, how they rise, and their breakpoints.
    parent: IntArray
    siblings: _Siblings
    ladder: _Breakpoints


def sibling_groups(
    tree: EntityTree,
    generations: tuple[IntArray, ...],
    weight: FloatArray,
    rises: tuple[FloatArray, FloatArray, FloatArray],
) -> tuple[_SiblingGroup, ...]:
    """Returns the groups of siblings of a tree, one per generation; `rises`: floors, caps and the floors' growth of
    all items.
    """
    families = []
    for depth, items in enumerate(generations):
        in_order = tree.fifo[tree.parent[items]] if depth else np.zeros(len(items), dtype=bool)
        queued, shared = items[in_order], items[~in_order]
        parent = tree.parent[shared]
        siblings = _Siblings(weight[shared], *(values[shared] for values in rises))
        above, those = (parent, siblings) if depth else (parent[:0], siblings.none())
        families.append(_SiblingGroup(queued, shared, parent, siblings, those.ladder(above, len(tree.parent))))
    return tuple(families)


@dataclass(frozen=True, slots=True, eq=False)
class EntityTierRule:
    """The rule of a tree, for `optimizer.lp.interior_point.progressive_filling`."""

    #: The three tiers: guaranteed, by weight, weightless.
    tiers: ClassVar[int] = 3

    tree: EntityTree

    def targets(self, tier: int, kept: FloatArray, cap: FloatArray, settled: BoolArray) -> EntityTargets:
        """Returns the targets of one tier, given what classes keep (k,) and the most that they can still have (k,)."""
        tree = self.tree
        generations = tuple(tree.generations())
        floor = tree.sums(kept) if tier == WEIGHTLESS else tree.guaranteed.copy()
        cap = np.concatenate((np.zeros(tree.entities), cap * tree.size))
        keeps = settled | (tier == WEIGHTLESS)
        floor[tree.entities :] = np.where(keeps, kept * tree.size, 0.0)
        one_each = np.concatenate((np.ones(tree.entities), tree.size))
        weight = np.where(tree.weight > 0, tree.weight, one_each) if tier == WEIGHTLESS else tree.weight
        in_order = np.concatenate((tree.fifo, [False]))[tree.parent]
        for items in reversed(generations):
            own = items[items < tree.entities]
            cap[own] = np.minimum(cap[own], tree.most[own])
            floor[items] = np.minimum(floor[items], cap[items])
            stays = items[(weight[items] == 0) & ~in_order[items]]
            cap[stays] = floor[stays]
            below = items[tree.parent[items] >= 0]
            np.add.at(cap, tree.parent[below], cap[below])
        families = (
            sibling_groups(tree, generations, weight, (floor, cap, np.zeros(len(cap)))) if tier != GUARANTEED else ()
        )
        return EntityTargets(tree, weight, floor, cap, tier == GUARANTEED, generations, families)


@dataclass(frozen=True, slots=True)
class EntityTerms:
    """Configured terms of one entity. None keeps the term of the problem."""

    weight: float | None = None
    guaranteed: float | None = None
    limit: float | None = None
    borrows: bool | None = None
    fifo: bool | None = None


#: What an empty array of entities stands for; a new entity has these terms.
_DEFAULTS: dict[str, Any] = {
    "weight": 1.0, "parent": -1, "guaranteed": 0.0, "limit": 1.0, "borrows": True, "fifo": False,
}  # fmt: skip


def configure_entities(entities: Entities, terms: Mapping[str, EntityTerms], below: Mapping[str, str]) -> Entities:
    """Returns the entities under the configured terms, every array complete; unknown names are added as entities
    without jobs.

    Args:
        entities: of the problem.
        terms: by name, parents before children.
        below: the name of the parent, by name, for those that have one.
    """
    listed = [
        {name: getattr(entities, name)[row].item() for name in _DEFAULTS if len(getattr(entities, name))}
        for row in range(len(entities))
    ]
    rows = {name: row for row, name in enumerate(entities.name)}
    for name, given in terms.items():
        if name not in rows:
            rows[name] = len(listed)
            listed.append({"parent": rows[below[name]] if name in below else -1})
        listed[rows[name]] |= {term: value for term, value in asdict(given).items() if value is not None}
    arrays = {
        name: np.array([each.get(name, default) for each in listed], dtype=type(default))
        for name, default in _DEFAULTS.items()
    }
    return Entities(tuple(rows), **arrays)


@dataclass(frozen=True, slots=True, eq=False)
class EntityHoldings:
    """The complete entities of a problem, and for each job the entity that divides its part among such jobs."""

    entities: Entities
    #: The entity of every job (n,), or its topmost ancestor that serves jobs in order; -1 where the problem has no
    #: entities, though the policy may name some.
    place: IntArray
    #: Place of a job in the order of submission where its entity serves in order, else 0 (n,).
    rank: FloatArray
    #: Entities with a limit, ascending (l,); the accelerators that they may hold (l,); and whether each job is below
    #: them (l, n).
    limited: IntArray
    allowed: FloatArray
    below: BoolArray

    def blocked(self, problem: Problem) -> BoolArray:
        """Returns the columns that are larger than a limit of their job (c,)."""
        accelerators, job = column_accelerators(problem.columns), problem.columns.job
        blocked = np.zeros(len(problem.columns), dtype=bool)
        for allowed, jobs in zip(self.allowed, self.below, strict=True):
            blocked |= jobs[job] & (accelerators > allowed * (1 + 1e-9))
        return blocked

    def used(self, problem: Problem, x: FloatArray) -> FloatArray:
        """Returns the accelerators that each limited entity holds (l,)."""
        taken = column_accelerators(problem.columns) * x
        return np.array([taken[jobs[problem.columns.job]].sum() for jobs in self.below], dtype=np.float64)

    def rows(self, classes: AggregatedProblem) -> AggregatedProblem:
        """Returns the class problem with a row for each limit, after the rows of the pools."""
        problem = classes.problem
        if not len(self.limited):
            return classes
        total = np.add.reduceat(problem.use_count, problem.use_first[:-1])
        row, column = np.nonzero(self.below[:, classes.classes.representative[problem.owner]])
        return replace(classes, problem=with_class_rows(problem, (column, row, total[column]), self.allowed))

    def tree(self, classes: AggregatedProblem, weight: FloatArray, accelerators: float) -> EntityTree:
        """Returns the tree over the classes; `weight` of each job against its siblings (n,)."""
        entities, k = self.entities, len(self.entities)
        size, own = classes.problem.size, non_borrowing_caps(entities, accelerators)
        return EntityTree(
            entities=k,
            parent=np.concatenate((entities.parent, self.place[classes.classes.representative])),
            weight=np.concatenate((entities.weight, classes.per_class(weight) * size)),
            guaranteed=np.concatenate((entities.guaranteed * accelerators, np.zeros(len(size)))),
            most=np.concatenate((own, np.full(len(size), np.inf))),
            fifo=entities.fifo,
            rank=np.concatenate((np.zeros(k), classes.per_class(self.rank))),
            size=size,
        )


def non_borrowing_caps(entities: Entities, accelerators: float) -> FloatArray:
    """Returns the amount that each entity never exceeds: inf for those that borrow (k,)."""
    return np.where(entities.borrows, np.inf, np.maximum(_weight_parts(entities), entities.guaranteed) * accelerators)


def entity_holdings(problem: Problem, entities: Entities) -> EntityHoldings:
    """Returns the entity of each job and the limits on it. `entities` are complete, those of the problem first."""
    jobs, k, owned = problem.jobs, len(entities), len(problem.entities) > 0
    fleet = float(problem.pools.capacity.sum())
    chains = [_ancestors(entities.parent, row) for row in range(k)]
    heads = np.array(
        [next((e for e in reversed(chain) if entities.fifo[e]), chain[0]) for chain in chains], dtype=np.int64
    )
    place = heads[jobs.entity] if owned else np.full(len(jobs), -1)
    order = np.lexsort((jobs.job_id, jobs.submitted_at))
    rank = np.empty(len(jobs))
    rank[order] = np.arange(len(jobs))
    in_order = entities.fifo[place] if owned else np.zeros(len(jobs), dtype=bool)
    limited = np.flatnonzero(entities.limit < 1)
    inside = np.array([[e in chain for chain in chains] for e in limited], dtype=bool).reshape(len(limited), k)
    below = inside[:, jobs.entity] if owned else np.zeros((len(limited), len(jobs)), dtype=bool)
    return EntityHoldings(
        entities, place, np.where(in_order, rank, 0.0), limited, entities.limit[limited] * fleet, below
    )


def _ancestors(parent: Sequence[int] | IntArray, row: int) -> list[int]:
    """Returns the entity and all its ancestors."""
    chain = [row]
    while parent[chain[-1]] >= 0:
        chain.append(int(parent[chain[-1]]))
    return chain


def _weight_parts(entities: Entities) -> FloatArray:
    """Returns the part of the fleet of each entity by weights alone, with idle siblings included (k,)."""
    siblings = np.bincount(entities.parent + 1, weights=entities.weight, minlength=len(entities) + 1)[
        entities.parent + 1
    ]
    part = np.divide(entities.weight, siblings, out=np.zeros(len(entities)), where=siblings > 0)
    for row in range(len(entities)):  # Parents come before their children.
        if entities.parent[row] >= 0:
            part[row] *= part[entities.parent[row]]
    return part
