"""Guarantees, limits and borrowing of projects and users in numbers, as a tree over the classes of a problem.

N is the number of accelerators in the fleet.

    guaranteed    g N units of utility
    limit         a row of the class problem: all columns of the jobs below use it by their accelerators; it has l N
    own part      of an entity that does not borrow: N times the product of its and its ancestors' weights, each over
                  those of all siblings, idle ones included; its guaranteed amount if that is more
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from optimizer.classes.aggregation import AggregatedProblem
from optimizer.classes.class_problem import ClassProblem
from optimizer.problem import BoolArray, Entities, FloatArray, IntArray, Problem
from optimizer.utility.entity_targets import EntityTree
from optimizer.utility.fair_share import column_accelerators

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class EntityTerms:
    """Configured terms of one entity. None keeps the term of the problem."""

    weight: float | None = None
    guaranteed: float | None = None
    limit: float | None = None
    borrows: bool | None = None
    fifo: bool | None = None


def with_entity_defaults(entities: Entities) -> Entities:
    """Returns the entities with every empty array filled by its default."""
    k = len(entities)

    def filled(array: np.ndarray, default: float | bool) -> np.ndarray:
        return array if len(array) else np.full(k, default)

    return Entities(
        entities.name,
        entities.weight,
        filled(entities.parent, -1).astype(np.int64),
        filled(entities.guaranteed, 0.0),
        filled(entities.limit, 1.0),
        filled(entities.borrows, True),
        filled(entities.fifo, False),
    )


def configure_entities(entities: Entities, terms: Mapping[str, EntityTerms], below: Mapping[str, str]) -> Entities:
    """Returns the entities under the configured terms; unknown names are added as entities without jobs.

    Args:
        entities: of the problem.
        terms: by name, parents before children.
        below: the name of the parent, by name, for those that have one.
    """
    whole = with_entity_defaults(entities)
    names = list(whole.name)
    rows = {name: row for row, name in enumerate(names)}
    columns = [whole.weight.tolist(), whole.parent.tolist(), whole.guaranteed.tolist(), whole.limit.tolist()]
    weight, parent, guaranteed, limit = columns
    borrows, fifo = whole.borrows.tolist(), whole.fifo.tolist()
    for name, given in terms.items():
        row = rows.setdefault(name, len(names))
        if row == len(names):
            names.append(name)
            for values, default in zip((*columns, borrows, fifo), (1.0, -1, 0.0, 1.0, True, False), strict=True):
                values.append(default)
            parent[row] = rows[below[name]] if name in below else -1
        weight[row] = _given_or(given.weight, weight[row])
        guaranteed[row], limit[row] = _given_or(given.guaranteed, guaranteed[row]), _given_or(given.limit, limit[row])
        borrows[row], fifo[row] = _given_or(given.borrows, borrows[row]), _given_or(given.fifo, fifo[row])
    return Entities(
        tuple(names),
        np.array(weight, float),
        np.array(parent, np.int64),
        np.array(guaranteed, float),
        np.array(limit, float),
        np.array(borrows, bool),
        np.array(fifo, bool),
    )


def _given_or(given: _T | None, default: _T) -> _T:
    return default if given is None else given


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
        class_problem = classes.problem
        if not len(self.limited):
            return classes
        owner = class_problem.owner
        total = np.add.reduceat(class_problem.use_count, class_problem.use_first[:-1])
        column, row, count = (
            [np.repeat(np.arange(class_problem.columns), np.diff(class_problem.use_first))],
            [class_problem.use_row],
            [class_problem.use_count],
        )
        for index, jobs in enumerate(self.below):
            mine = np.flatnonzero(jobs[classes.classes.representative][owner])
            column.append(mine)
            row.append(np.full(len(mine), class_problem.rows + index, dtype=np.int32))
            count.append(total[mine])
        order = np.argsort(np.concatenate(column), kind="stable")
        uses = np.bincount(np.concatenate(column), minlength=class_problem.columns)
        with_limits = ClassProblem(
            class_problem.size,
            class_problem.first,
            np.concatenate(([0], np.cumsum(uses))),
            np.concatenate(row)[order].astype(np.int32),
            np.concatenate(count)[order],
            np.concatenate((class_problem.capacity, self.allowed)),
        )
        return replace(classes, problem=with_limits)

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
