"""Guarantees of projects and users as rows of an assignment: floors, as far as whole gangs allow, with prices.

    maximise  sum_c v_c y_c
    s.t.      the rows of jobs, pools and limits
              sum_{c of jobs below e} size[c] y_c >= floor[e]     each guaranteed e       (mu_e)

guaranteed[e] is the part of the fleet that e has before others have more, less what its jobs hold already that do not
compete. No floor is ever out of reach: it is the part of that which the plan gives, and the plan gives as much as
whole gangs allow. A job pays the prices of its pool and limits, less mu of every guarantee above it: so it has a place
that others would pay more for. Where nobody below e waits with a gang that fits what is left of its guarantee, mu is 0
and the plan is what it would be without guarantees.

Where a job does, the plan is made with *bonuses*: a column of a job below e occurs twice, the second time worth `bonus
x size` more and taking as much of a row of guaranteed[e] accelerators. That is a problem of the same form, so any
method solves it. A bonus is worth more than the jobs that may have to leave for it: let top be the largest worth of an
accelerator, S the largest gang, and let a gang of s accelerators wait though s of its row are unused and others have s
accelerators of a pool without a bonus. Displacing these loses at most top x (s + S - 1) <= top x s x S and gains
`bonus x s`, which is more. The bound is that of the program above: every plan that keeps as much of each guarantee is
worth at most

    sum_j max(0, max_c v_c - l.use_c + mu.size_c)  +  l.N  -  mu.floor           for any prices l, mu >= 0

The rows of floors and the copies with a bonus are each made in one pass over the columns, compiled where the work is
enough for it: of 10,000 jobs with twenty columns each, concatenating and sorting arrays takes longer than assigning the
jobs.

Shapes: n jobs that compete, c columns, m guarantees.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from optimizer.assignment.assignment_problem import Assignment, AssignmentProblem
from optimizer.assignment.limit_rows import jobs_below
from optimizer.classes.compiled_loops import CompiledLoops
from optimizer.problem import BoolArray, FloatArray, IntArray, Problem
from optimizer.utility.fair_share import column_accelerators

_loops = CompiledLoops(globals())

#: Slack for comparing counts that were computed in floating point.
_WHOLE = 1e-9


def rows_of_floors(question: AssignmentProblem, inside: BoolArray, floor: FloatArray) -> AssignmentProblem:
    """Returns the problem with one more row for each floor, with negative uses and a negative capacity.

    Args:
        question: over pools and limits.
        inside: whether each of its jobs counts for each guarantee (m, n).
        floor: accelerators that each entity has at least (m,). A floor of 0 makes no row: it holds at any price, and a
            search for prices could not tell which.
    """
    told = question.table, inside & (floor > 0)[:, None]
    return _with_rows(question, -floor, _loops.run("_with_floors", len(question.use_count), *told))


def columns_with_bonuses(
    question: AssignmentProblem, inside: BoolArray, left: FloatArray, bonus: float
) -> tuple[AssignmentProblem, IntArray]:
    """Returns the problem in which columns occur once more for every set of guarantees that they count for, worth
    `bonus` more for each accelerator of each of these, and the column of the question behind each of its columns.

    Args:
        question: over pools and limits.
        inside: whether each of its jobs counts for each guarantee (m, n).
        left: the accelerators that each guarantee still lacks: rows of the problem (m,). Larger gangs count for none.
        bonus: what a guaranteed accelerator is worth.
    """
    told = question.table, (inside, left, bonus)
    origin, value, *uses = _loops.run("_with_copies", 2 * len(question.use_count), *told)
    made = replace(question, job=question.job[origin], value=value, running=_one_copy(question, origin, inside, left))
    return _with_rows(made, left, uses), origin


def waits_for_guarantee(question: AssignmentProblem, inside: BoolArray, left: FloatArray, column: IntArray) -> bool:
    """Returns whether a job without a column (n,) has one that the empty pools hold and that takes no more than is left
    of a guarantee above it (m,).
    """
    hopes = np.flatnonzero((column < 0) & np.any(inside, axis=0))
    most = np.max(np.where(inside, left[:, None], -np.inf), axis=0)
    return bool(_loops.run("_waits", len(question.use_count), question.table, hopes, most))


def _with_rows(question: AssignmentProblem, capacity: FloatArray, uses: Sequence[Any]) -> AssignmentProblem:
    """Returns the problem with these rows appended, given all uses: first of each column, column, row, count."""
    use_first, use_column, use_pool, use_count = uses
    return replace(
        question,
        use_first=use_first,
        use_column=use_column,
        use_pool=use_pool,
        use_count=use_count,
        capacity=np.concatenate((question.capacity, capacity)),
        limits=question.limits + len(capacity),
    )


def _one_copy(question: AssignmentProblem, origin: IntArray, inside: BoolArray, left: FloatArray) -> BoolArray:
    """Marks one copy of each column in which a job runs: the one with all bonuses while guarantees last, the most
    valuable jobs first.

    `origin` ascends; of the copies of one column, the first has no bonus and the last has all.
    """
    if not question.running.any():
        return question.running
    runs, left = np.zeros(len(origin), dtype=np.bool_), left.copy()
    columns = np.flatnonzero(question.running)
    plain, full = np.searchsorted(origin, columns), np.searchsorted(origin, columns, side="right") - 1
    for at in np.argsort(-question.value[columns], kind="stable").tolist():
        use = question.size[columns[at]] * inside[:, question.job[columns[at]]]
        fits = full[at] > plain[at] and bool(np.all((use <= left + _WHOLE) | (use == 0)))
        left -= use if fits else 0.0
        runs[full[at] if fits else plain[at]] = True
    return runs


@_loops
def _waits(table, hopes, most):  # type: ignore[no-untyped-def]
    first, _, size, (use_first, use_pool, use_count), capacity, _ = table
    for j in hopes:
        for c in range(first[j], first[j + 1]):
            fits = size[c] <= most[j] + _WHOLE
            for u in range(use_first[c], use_first[c + 1]):
                fits = fits and use_count[u] <= capacity[use_pool[u]] + _WHOLE
            if fits:
                return True
    return False


@_loops
def _with_floors(table, counts):  # type: ignore[no-untyped-def]
    """Returns the first use of each column, and column, row and count of each use: those of the guarantees that each
    job counts for come after its others.
    """
    first, value, size, (use_first, use_pool, use_count), capacity, _ = table
    floors, total, rows = len(counts), len(use_pool), len(capacity)
    for j in range(len(first) - 1):
        for e in range(floors):
            total += (first[j + 1] - first[j]) * int(counts[e, j])
    begins = np.empty(len(value) + 1, np.int64)
    column, pool, count = np.empty(total, np.int64), np.empty(total, np.int64), np.empty(total)
    at = 0
    for j in range(len(first) - 1):
        for c in range(first[j], first[j + 1]):
            begins[c] = at
            for u in range(use_first[c], use_first[c + 1]):
                column[at], pool[at], count[at] = c, use_pool[u], use_count[u]
                at += 1
            for e in range(floors):
                if counts[e, j]:
                    column[at], pool[at], count[at] = c, rows + e, -size[c]
                    at += 1
    begins[len(value)] = at
    return begins, column, pool, count


@_loops
def _above(j, inside, mine):  # type: ignore[no-untyped-def]
    """Writes the guarantees above job j into `mine`, and returns how many."""
    many = 0
    for e in range(len(inside)):
        if inside[e, j]:
            mine[many] = e
            many += 1
    return many


@_loops
def _counted(size, mine, left, counted):  # type: ignore[no-untyped-def]
    """Writes those of the guarantees `mine` that a gang of so many accelerators counts for into `counted`; returns how
    many.
    """
    few = 0
    for e in mine:
        if size <= left[e] + _WHOLE:
            counted[few] = e
            few += 1
    return few


@_loops
def _with_copies(table, guarantees):  # type: ignore[no-untyped-def]
    """Returns the column behind each copy and its value, the first use of each copy, and copy, row and count of each
    use.

    Copy k of a column has the bonuses of those of its guarantees, in their order, whose bits are set in k.
    """
    first, value, size, (use_first, use_pool, use_count), capacity, _ = table
    (inside, left, bonus), rows = guarantees, len(capacity)
    mine, counted = np.zeros(len(left), np.int64), np.zeros(len(left), np.int64)
    copies, total = 0, 0
    for j in range(len(first) - 1):
        many = _above(j, inside, mine)
        for c in range(first[j], first[j + 1]):
            few = _counted(size[c], mine[:many], left, counted)
            copies += 1 << few
            total += ((use_first[c + 1] - use_first[c]) << few) + (few << few) // 2
    origin, worth, begins = np.empty(copies, np.int64), np.empty(copies), np.empty(copies + 1, np.int64)
    column, pool, count = np.empty(total, np.int64), np.empty(total, np.int64), np.empty(total)
    copy, at = 0, 0
    for j in range(len(first) - 1):
        many = _above(j, inside, mine)
        for c in range(first[j], first[j + 1]):
            few = _counted(size[c], mine[:many], left, counted)
            for k in range(1 << few):
                begins[copy], added = at, 0.0
                for u in range(use_first[c], use_first[c + 1]):
                    column[at], pool[at], count[at] = copy, use_pool[u], use_count[u]
                    at += 1
                for i in range(few):
                    if (k >> i) & 1:
                        added += bonus * size[c]
                        column[at], pool[at], count[at] = copy, rows + counted[i], size[c]
                        at += 1
                origin[copy], worth[copy] = c, value[c] + added
                copy += 1
    begins[copies] = at
    return origin, worth, begins, column, pool, count


@dataclass(frozen=True, slots=True, eq=False)
class GuaranteedEntities:
    """The entities to which a part of the fleet is guaranteed, before others have more."""

    #: Rows of `Entities` (m,), and the accelerators guaranteed to each (m,).
    entity: IntArray
    least: FloatArray
    #: Whether each job belongs to each of these entities (m, n).
    inside: BoolArray
    #: The job of each column, and the accelerators that it takes (c,).
    job: IntArray
    size: FloatArray

    def left(self, column: IntArray) -> FloatArray:
        """Returns how many guaranteed accelerators each entity still lacks (m,) when jobs have these columns (n,), -1:
        none.
        """
        return np.maximum(self.least - self.held(column), 0.0)

    def held(self, column: IntArray) -> FloatArray:
        """Returns the accelerators that each entity has (m,) when jobs have these columns (n,), -1: none."""
        return _held(self.inside, self.job, self.size, column)

    def inside_of(self, kept: IntArray) -> BoolArray:
        """Returns whether each job of a problem of these columns, ascending, belongs to each of the entities."""
        job = self.job[kept]
        return self.inside[:, job[np.append(True, job[1:] != job[:-1])]]

    def credits(self, prices: FloatArray) -> FloatArray:
        """Returns by how much an accelerator costs each job less (n,), because of the prices of the guarantees above
        it (m,).
        """
        return np.asarray(prices @ self.inside, dtype=np.float64)


def guaranteed_entities(problem: Problem) -> GuaranteedEntities | None:
    """Returns the guaranteed entities whose part jobs of others contest; None where there are none."""
    entities, jobs = problem.entities, problem.jobs
    if not len(jobs) or not entities.guaranteed.any():
        return None
    entity = np.flatnonzero(entities.guaranteed > 0)
    inside = jobs_below(problem, entity)
    contested = inside.any(axis=1) & ~inside.all(axis=1)
    if not contested.any():
        return None
    entity, inside = entity[contested], inside[contested]
    least = entities.guaranteed[entity] * float(problem.pools.capacity.sum())
    return GuaranteedEntities(entity, least, inside, problem.columns.job, column_accelerators(problem.columns))


def _held(inside: BoolArray, job: IntArray, size: FloatArray, column: IntArray) -> FloatArray:
    chosen = column[column >= 0]
    return np.asarray((inside[:, job[chosen]] * size[chosen]).sum(axis=1), dtype=np.float64)


def assign_with_guarantees(
    asked: "GuaranteeQuestion", method: Callable[[AssignmentProblem], Assignment]
) -> tuple[Assignment, AssignmentProblem, FloatArray]:
    """Returns the assignment that keeps as much of each guarantee as whole gangs allow.

    Returns:
        the assignment; the problem whose prices bound it; and the prices of the guarantees (m,). Where no job waits for
        accelerators guaranteed to it, these are 0 and the rest is the method's answer without guarantees.
    """
    question, m = asked.question, len(asked.left)
    plain = method(question)
    if not asked.is_short(plain.column):
        return plain, question, np.zeros(m)
    from optimizer.assignment.local_search import (
        prices_of_gangs,  # Compiled code: load it only where a guarantee binds.
    )

    with_bonuses, origin = asked.with_bonuses()
    chosen = method(with_bonuses).column
    chosen = np.where(chosen >= 0, origin[chosen], -1)
    if asked.worth_of(chosen) < asked.worth_of(plain.column):
        chosen = plain.column
    chosen = asked.others_before_equals(chosen)
    floor = np.minimum(asked.held(chosen), asked.left)
    floored = rows_of_floors(question, asked.inside, floor)
    # Start from the prices without guarantees: floors can only lower the value of a plan, and so the bound.
    prices, bound = prices_of_gangs(replace(floored, start=np.concatenate((plain.prices, np.zeros(m)))))
    value, rows = question.value_of(chosen), len(question.capacity)
    of_floors = np.where(floor > 0, prices[rows:], 0.0)
    return Assignment(chosen, prices[:rows], value, max(bound, value)), floored, of_floors


@dataclass(frozen=True, eq=False)
class GuaranteeQuestion:
    """An assignment problem in which entities with guarantees compete."""

    question: AssignmentProblem
    #: The guaranteed accelerators that each entity still lacks (m,), and whether each job is below it (m, n).
    left: FloatArray
    inside: BoolArray

    @classmethod
    def of(
        cls, guarantees: GuaranteedEntities, question: AssignmentProblem, column: IntArray, kept: IntArray
    ) -> "GuaranteeQuestion":
        """Returns the question after what jobs hold that do not compete (`column`, (n,), -1: none); `kept` says which
        column of the problem each column of the question is (c,).
        """
        return cls(question, guarantees.left(column), guarantees.inside_of(kept))

    def is_short(self, column: IntArray) -> bool:
        """Returns whether a job waits whose gang fits what is left of a guarantee above it, when jobs have these
        columns (n,).
        """
        return waits_for_guarantee(self.question, self.inside, self.left - self.held(column), column)

    def held(self, column: IntArray) -> FloatArray:
        """Returns the accelerators that each entity has (m,) when the question's jobs have these columns (n,), -1:
        none.
        """
        return _held(self.inside, self.question.job, self.question.size, column)

    def worth_of(self, column: IntArray) -> float:
        """Returns the value of these columns of jobs (n,), plus the bonus for each guaranteed
        accelerator among them.
        """
        return self.question.value_of(column) + self.bonus * float(np.minimum(self.held(column), self.left).sum())

    def others_before_equals(self, column: IntArray) -> IntArray:
        """Returns these columns of jobs, with places beyond a guarantee given to jobs below none that are worth as
        much (n,).

        A search takes any of several plans worth the same; this is the one that others would call fair. Places are
        exchanged where both columns take as many accelerators of one pool and of no other row, and nobody runs there.
        """
        question, column, spare = self.question, column.copy(), self.held(column) - self.left
        job, (_, value, size, (use_first, use_pool, _), *_) = question.job, question.table
        is_inside: BoolArray = np.any(self.inside, axis=0)
        alike, place = np.diff(use_first) == 1, use_pool[use_first[:-1]]
        if len(question.running):
            alike &= ~question.running
        held = column[column >= 0]
        held = held[alike[held] & is_inside[job[held]]]
        if not len(held):
            return column
        # Who waits outside is looked at only where the place and its size are those of a job below a guarantee.
        sizes, kind = np.unique(size[held], return_inverse=True)
        least = np.full((len(question.capacity), len(sizes)), np.inf)
        np.minimum.at(least, (place[held], kind), value[held])
        others = np.flatnonzero((~is_inside & (column < 0))[job] & alike & (value >= least.min()))
        kind = np.minimum(np.searchsorted(sizes, size[others]), len(sizes) - 1)
        others = others[(sizes[kind] == size[others]) & (value[others] >= least[place[others], kind])]
        for taken in held.tolist():
            use = self.inside[:, job[taken]] * size[taken]
            if np.any((use > 0) & (use > spare + _WHOLE)):
                continue
            equal = (place[others] == place[taken]) & (size[others] == size[taken])
            equal &= (column[job[others]] < 0) & (value[others] >= value[taken])
            if equal.any():
                other = int(others[np.argmax(equal)])
                column[job[taken]], column[job[other]] = -1, other
                spare -= use
        return column

    @cached_property
    def density(self) -> float:
        """The most that any job is worth for each accelerator."""
        return float((self.question.value / self.question.size).max())

    @property
    def bonus(self) -> float:
        """What a guaranteed accelerator adds to the value: twice the least sufficient bonus, for jobs that move to
        other pools.
        """
        return 2.0 * self.density * float(self.question.size.max())

    def with_bonuses(self) -> tuple[AssignmentProblem, IntArray]:
        """Returns the problem in which guaranteed accelerators carry a bonus, and the column of this question behind
        each of its columns.
        """
        question, rows = self.question, len(self.question.capacity)
        made, origin = columns_with_bonuses(question, self.inside, self.left, self.bonus)
        start = np.concatenate((np.zeros(rows), np.full(len(self.left), self.bonus)))
        return replace(made, start=start, step=self.density), origin
