"""Shares over a tree of entities: its structure and limits, and each job's target at a level.

Amounts are sums of fair-share utilities; a fleet of N accelerators has about N. At level z, by tiers:

    guaranteed    every entity has z times its guaranteed amount, z up to 1
    by weight     a top entity has min(max(B, w z), cap), B its guaranteed amount
    weightless    the same with B the amount that each has by now, and weights of 0 counting as 1

An entity's amount is divided among its children by the same rule (y is the water level at which they have all of it),
or given to its jobs in order of submission. Its cap is what its children can use together; an entity that does not
borrow is capped by its own part of the fleet, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from optimizer.check.jobwise_problem import JobwiseProblem
from optimizer.problem import BoolArray, Entities, FloatArray

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
