"""Guarantees of projects and users as rows of an assignment: floors, as far as whole gangs allow, with prices.

    maximise  sum_c v_c y_c
    s.t.      the rows of jobs, pools and limits
              sum_{c of jobs below e} size[c] y_c >= floor[e]     each guaranteed e       (mu_e)

guaranteed[e] is the part of the fleet that e has before anybody has more, less what its jobs hold already that do not
compete. No floor is ever out of reach: it is the part of that which the plan gives, and the plan gives as much as whole
gangs allow. A job pays the prices of its pool and limits, less mu of every guarantee above it: so it has a place that
others would pay more for. Where nobody below e waits with a gang that fits what is left of its guarantee, mu is 0 and
the plan is what it would be without guarantees.

Where somebody does, the plan is made with *bonuses*: a column of a job below e stands twice, the second time worth
`bonus x size` more and taking as much of a row of guaranteed[e] accelerators. That is a problem of the same form, so
any method solves it. A bonus is worth more than whoever may have to leave for it: let top be the largest worth of an
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

#: Slack for counts that went through float arithmetic.
_WHOLE = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class GuaranteedEntities:
    """The entities that have a part of the fleet before others have more."""

    #: Rows of `Entities` (m,), and the accelerators guaranteed to each (m,).
    entity: IntArray
    least: FloatArray
    #: Whether each job is below each of them (m, n).
    inside: BoolArray
    #: Accelerators of each column, 0 for the columns of jobs that are not below (m, c).
    use: FloatArray

    def left(self, column: IntArray) -> FloatArray:
        """What each is still guaranteed when jobs have these columns, -1: none (n,); (m,)."""
        return np.maximum(self.least - self.held(column), 0.0)

    def held(self, column: IntArray) -> FloatArray:
        """Accelerators that each has when jobs have these columns, -1: none (n,); (m,)."""
        return np.asarray(self.use[:, column[column >= 0]].sum(axis=1), dtype=np.float64)

    def credits(self, prices: FloatArray) -> FloatArray:
        """What an accelerator costs each job less because of the guarantees above it, at their prices (m,); (n,)."""
        return np.asarray(prices @ self.inside, dtype=np.float64)


def guaranteed_entities(problem: Problem) -> GuaranteedEntities | None:
    """The entities with a guarantee that jobs of others contest; None where there are none."""
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
    """The assignment with a row more for each floor: what it uses, and its capacity, are below 0.

    Args:
        question: over pools and limits.
        use: what each of its columns takes of each guarantee (m, c).
        floor: accelerators that each entity has at least (m,). A floor of 0 is no row: it would be kept whatever its
            price, which a search for prices cannot know.
    """
    row, column = np.nonzero((use > 0) & (floor > 0)[:, None])
    return with_rows(question, (row, column, -use[row, column]), -floor)


def assign_with_guarantees(
    asked: "GuaranteeQuestion", method: Callable[[AssignmentProblem], Assignment]
) -> tuple[Assignment, AssignmentProblem, FloatArray]:
    """The assignment that keeps as much of each guarantee as whole gangs allow.

    Returns:
        the assignment; the program whose prices bound it, and the prices of the guarantees (m,). These are 0, and the
        rest is what the method says without guarantees, where nobody below one waits for what it is guaranteed.
    """
    question, m = asked.question, len(asked.left)
    plain = method(question)
    if not asked.is_short(plain.column):
        return plain, question, np.zeros(m)
    from optimizer.assignment.gang_prices import prices_of_gangs  # compiled: only where a guarantee binds

    with_bonuses, origin = asked.with_bonuses()
    chosen = method(with_bonuses).column
    chosen = np.where(chosen >= 0, origin[chosen], -1)
    if asked.worth_of(chosen) < asked.worth_of(plain.column):
        chosen = plain.column
    chosen = asked.others_before_equals(chosen)
    floor = np.minimum(asked.held(chosen), asked.left)
    floored = asked.floors_beside(floor)
    # From the prices without guarantees: floors only lower what a plan could be worth, and so the bound.
    prices, bound = prices_of_gangs(replace(floored, start=np.concatenate((plain.prices, np.zeros(m)))))
    value, rows = question.value_of(chosen), len(question.capacity)
    of_floors = np.where(floor > 0, prices[rows:], 0.0)
    return Assignment(chosen, prices[:rows], value, max(bound, value)), floored, of_floors


@dataclass(frozen=True, slots=True, eq=False)
class GuaranteeQuestion:
    """An assignment in which entities with guarantees compete."""

    question: AssignmentProblem
    #: What each is still guaranteed (m,), and what each column takes of it (m, c).
    left: FloatArray
    use: FloatArray

    @classmethod
    def of(
        cls, guarantees: GuaranteedEntities, question: AssignmentProblem, column: IntArray, kept: IntArray
    ) -> "GuaranteeQuestion":
        """Take what jobs have that do not compete, -1: none (n,), and which columns the question's are (c,)."""
        return cls(question, guarantees.left(column), guarantees.use[:, kept])

    def is_short(self, column: IntArray) -> bool:
        """Whether a job waits whose gang fits what is left of a guarantee above it; columns of jobs (n,)."""
        question = self.question
        too_many = question.use_count > question.capacity[question.use_pool] + _WHOLE
        possible = sum_by(question.use_column, too_many.astype(np.float64), len(question.job)) == 0
        waits = possible & (column < 0)[question.job]
        left = self.left - self.held(column)
        return bool(np.any((self.use > 0) & (self.use <= left[:, None] + _WHOLE) & waits))

    def held(self, column: IntArray) -> FloatArray:
        """Accelerators that each has with these columns of the question's jobs, -1: none (n,); (m,)."""
        return np.asarray(self.use[:, column[column >= 0]].sum(axis=1), dtype=np.float64)

    def worth_of(self, column: IntArray) -> float:
        """What these columns of jobs are worth, with a bonus for each guaranteed accelerator among them (n,)."""
        return self.question.value_of(column) + self.bonus * float(np.minimum(self.held(column), self.left).sum())

    def others_before_equals(self, column: IntArray) -> IntArray:
        """These columns of jobs, with places beyond a guarantee given to jobs below none that are worth as much (n,).

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
        """The assignment with a row more for each guarantee, accelerators that are kept (m,); see `rows_of_floors`."""
        return rows_of_floors(self.question, self.use, floor)

    @property
    def bonus(self) -> float:
        """What a guaranteed accelerator is worth more: twice what is enough, for those that move on to other pools."""
        size = self.question.size
        return 2.0 * float((self.question.value / size).max()) * float(size.max())

    def with_bonuses(self) -> tuple[AssignmentProblem, IntArray]:
        """The assignment in which guaranteed accelerators are worth a bonus; the column of each of its columns."""
        question, pools = self.question, len(self.question.capacity)
        size = question.size
        bonus = self.bonus
        origin, added = np.arange(len(question.job)), np.zeros(len(question.job))
        taken = [np.zeros(0, dtype=np.int64) for _ in self.left]  # of each row, which of the columns so far take of it
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
        """Of each job that runs one column: with all bonuses as far as they go, the most valuable jobs first.

        `origin` ascends; of the columns that are one the first is plain, the last has all bonuses.
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
    """The question with these of its columns, ascending, some of them several times."""
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
