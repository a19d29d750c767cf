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

Shapes: n jobs, c columns, m guarantees.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from optimizer.assignment.assignment_problem import Assignment, AssignmentProblem
from optimizer.assignment.limit_rows import jobs_below, with_rows
from optimizer.classes.segments import concatenated_ranges, sum_by
from optimizer.problem import BoolArray, FloatArray, IntArray, Problem
from optimizer.utility.fair_share import column_accelerators

#: Slack for comparing counts that were computed in floating point.
_WHOLE = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class GuaranteedEntities:
    """The entities to which a part of the fleet is guaranteed, before others have more."""

    #: Rows of `Entities` (m,), and the accelerators guaranteed to each (m,).
    entity: IntArray
    least: FloatArray
    #: Whether each job belongs to each of these entities (m, n).
    inside: BoolArray
    #: Accelerators of each column; 0 for columns of jobs outside the entity (m, c).
    use: FloatArray

    def left(self, column: IntArray) -> FloatArray:
        """Returns how many guaranteed accelerators each entity still lacks (m,) when jobs have these columns (n,), -1:
        none.
        """
        return np.maximum(self.least - self.held(column), 0.0)

    def held(self, column: IntArray) -> FloatArray:
        """Returns the accelerators that each entity has (m,) when jobs have these columns (n,), -1: none."""
        return np.asarray(self.use[:, column[column >= 0]].sum(axis=1), dtype=np.float64)

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
    return GuaranteedEntities(
        entity, least, inside, column_accelerators(problem.columns) * inside[:, problem.columns.job]
    )


def rows_of_floors(question: AssignmentProblem, use: FloatArray, floor: FloatArray) -> AssignmentProblem:
    """Returns the problem with one more row for each floor, with negative uses and a negative capacity.

    Args:
        question: over pools and limits.
        use: what each of its columns takes of each guarantee (m, c).
        floor: accelerators that each entity has at least (m,). A floor of 0 makes no row: it holds at any price, and a
            search for prices could not tell which.
    """
    row, column = np.nonzero((use > 0) & (floor > 0)[:, None])
    return with_rows(question, (row, column, -use[row, column]), -floor)


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
    from optimizer.assignment.gang_prices import prices_of_gangs  # Compiled code: load it only where a guarantee binds.

    with_bonuses, origin = asked.with_bonuses()
    chosen = method(with_bonuses).column
    chosen = np.where(chosen >= 0, origin[chosen], -1)
    if asked.worth_of(chosen) < asked.worth_of(plain.column):
        chosen = plain.column
    chosen = asked.others_before_equals(chosen)
    floor = np.minimum(asked.held(chosen), asked.left)
    floored = asked.floors_beside(floor)
    # Start from the prices without guarantees: floors can only lower the value of a plan, and so the bound.
    prices, bound = prices_of_gangs(replace(floored, start=np.concatenate((plain.prices, np.zeros(m)))))
    value, rows = question.value_of(chosen), len(question.capacity)
    of_floors = np.where(floor > 0, prices[rows:], 0.0)
    return Assignment(chosen, prices[:rows], value, max(bound, value)), floored, of_floors


@dataclass(frozen=True, slots=True, eq=False)
class GuaranteeQuestion:
    """An assignment problem in which entities with guarantees compete."""

    question: AssignmentProblem
    #: The guaranteed accelerators that each entity still lacks (m,), and how many of them each column takes (m, c).
    left: FloatArray
    use: FloatArray

    @classmethod
    def of(
        cls, guarantees: GuaranteedEntities, question: AssignmentProblem, column: IntArray, kept: IntArray
    ) -> "GuaranteeQuestion":
        """Returns the question after what jobs hold that do not compete (`column`, (n,), -1: none); `kept` says which
        column of the problem each column of the question is (c,).
        """
        return cls(question, guarantees.left(column), guarantees.use[:, kept])

    def is_short(self, column: IntArray) -> bool:
        """Returns whether a job waits whose gang fits what is left of a guarantee above it, when jobs have these
        columns (n,).
        """
        question = self.question
        too_many = question.use_count > question.capacity[question.use_pool] + _WHOLE
        possible = sum_by(question.use_column, too_many.astype(np.float64), len(question.job)) == 0
        waits = possible & (column < 0)[question.job]
        left = self.left - self.held(column)
        return bool(np.any((self.use > 0) & (self.use <= left[:, None] + _WHOLE) & waits))

    def held(self, column: IntArray) -> FloatArray:
        """Returns the accelerators that each entity has (m,) when the question's jobs have these columns (n,), -1:
        none.
        """
        return np.asarray(self.use[:, column[column >= 0]].sum(axis=1), dtype=np.float64)

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
        question, column = self.question, column.copy()
        many, place = np.bincount(question.use_column, minlength=len(question.job)), np.zeros(len(question.job), int)
        place[question.use_column] = question.use_pool
        is_running = question.running if len(question.running) else np.zeros(len(question.job), dtype=np.bool_)
        alike, size = (many == 1) & ~is_running, question.size
        is_inside: BoolArray = np.any(self.use > 0, axis=0)
        spare = self.held(column) - self.left
        held = column[column >= 0]
        held = held[alike[held] & is_inside[held]]
        if not len(held):
            return column
        waits = (column < 0)[question.job]
        others = np.flatnonzero(alike & ~is_inside & waits & (question.value >= question.value[held].min()))
        for taken in held.tolist():
            use = self.use[:, taken]
            if np.any((use > 0) & (use > spare + _WHOLE)):
                continue
            equal = (place[others] == place[taken]) & (size[others] == size[taken])
            equal &= (column[question.job[others]] < 0) & (question.value[others] >= question.value[taken])
            if equal.any():
                other = int(others[np.argmax(equal)])
                column[question.job[taken]], column[question.job[other]] = -1, other
                spare -= use
        return column

    def floors_beside(self, floor: FloatArray) -> AssignmentProblem:
        """Returns the problem with a row more for each guarantee, which keeps `floor` accelerators (m,); see
        `rows_of_floors`.
        """
        return rows_of_floors(self.question, self.use, floor)

    @property
    def bonus(self) -> float:
        """What a guaranteed accelerator adds to the value: twice the least sufficient bonus, for jobs that move to
        other pools.
        """
        size = self.question.size
        return 2.0 * float((self.question.value / size).max()) * float(size.max())

    def with_bonuses(self) -> tuple[AssignmentProblem, IntArray]:
        """Returns the problem in which guaranteed accelerators carry a bonus, and the column of this question behind
        each of its columns.
        """
        question, pools = self.question, len(self.question.capacity)
        size = question.size
        bonus = self.bonus
        origin, added = np.arange(len(question.job)), np.zeros(len(question.job))
        taken = [np.zeros(0, dtype=np.int64) for _ in self.left]  # For each row, which of the columns so far use it.
        for row, left in enumerate(self.left.tolist()):
            mine = np.flatnonzero((self.use[row, origin] > 0) & (self.use[row, origin] <= left + _WHOLE))
            place = len(origin) + np.arange(len(mine))
            taken = [np.concatenate((each, place[np.isin(mine, each)])) for each in taken]
            taken[row] = place
            origin = np.concatenate((origin, origin[mine]))
            added = np.concatenate((added, added[mine] + bonus * size[origin[mine]]))
        order = np.argsort(origin, kind="stable")
        back = np.empty(len(order), dtype=np.int64)
        back[order] = np.arange(len(order))
        in_row = np.repeat(np.arange(len(taken)), [len(each) for each in taken])
        column = back[np.concatenate(taken)]
        origin, added = origin[order], added[order]
        made = _repeated(question, origin)
        made = replace(made, value=made.value + added, running=self._running(origin))
        start = np.concatenate((np.zeros(pools), np.full(len(self.left), bonus)))
        made = with_rows(made, (in_row, column, self.use[in_row, origin[column]]), self.left)
        return replace(made, start=start, step=float((question.value / size).max())), origin

    def _running(self, origin: IntArray) -> BoolArray:
        """Marks one column of each running job (c,): the one with all bonuses while guarantees last, the most valuable
        jobs first.

        `origin` ascends; of the copies of one column, the first has no bonus and the last has all.
        """
        question = self.question
        if not question.running.any():
            return question.running
        runs, left = np.zeros(len(origin), dtype=np.bool_), self.left.copy()
        columns = np.flatnonzero(question.running)
        plain, full = np.searchsorted(origin, columns), np.searchsorted(origin, columns, side="right") - 1
        for at in np.argsort(-question.value[columns], kind="stable").tolist():
            use = self.use[:, columns[at]]
            fits = full[at] > plain[at] and bool(np.all((use <= left + _WHOLE) | (use == 0)))
            left -= use if fits else 0.0
            runs[full[at] if fits else plain[at]] = True
        return runs


def _repeated(question: AssignmentProblem, origin: IntArray) -> AssignmentProblem:
    """Returns the problem over these of its columns, ascending; a column may occur several times."""
    first = np.searchsorted(question.use_column, np.arange(len(question.job) + 1))
    uses = concatenated_ranges(first[origin], first[origin + 1])
    width = np.diff(first)[origin]
    return replace(
        question,
        job=question.job[origin],
        value=question.value[origin],
        use_column=np.repeat(np.arange(len(origin)), width),
        use_pool=question.use_pool[uses],
        use_count=question.use_count[uses],
    )
