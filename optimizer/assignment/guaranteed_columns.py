"""Columns of an assignment with the rows of guarantees beside those of pools: floors, and copies that carry a bonus.

`guarantee_rows` says what for. Both tables are made in one pass over the columns, compiled where the work is enough for
it: of 10,000 jobs with twenty columns each, concatenating and sorting arrays takes longer than assigning the jobs.

Shapes: n jobs that compete, c columns, m guarantees.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from optimizer.assignment.assignment_problem import AssignmentProblem
from optimizer.classes.compiled_loops import CompiledLoops
from optimizer.problem import BoolArray, FloatArray, IntArray

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
    steps, rows = len(question.use_count), len(question.capacity)
    told = *question.table, question.size, rows, inside & (floor > 0)[:, None]
    return _with_rows(question, -floor, _loops.run("_with_floors", steps, *told))


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
    steps, rows = 2 * len(question.use_count), len(question.capacity)
    told = *question.table, question.size, rows, inside, left, bonus
    origin, value, *uses = _loops.run("_with_copies", steps, *told)
    made = replace(question, job=question.job[origin], value=value, running=_one_copy(question, origin, inside, left))
    return _with_rows(made, left, uses), origin


def waits_for_guarantee(question: AssignmentProblem, inside: BoolArray, left: FloatArray, column: IntArray) -> bool:
    """Returns whether a job without a column (n,) has one that the empty pools hold and that takes no more than is left
    of a guarantee above it (m,).
    """
    hopes = np.flatnonzero((column < 0) & np.any(inside, axis=0))
    most = np.max(np.where(inside, left[:, None], -np.inf), axis=0)
    told = *question.table, question.size, question.capacity, hopes, most
    return bool(_loops.run("_waits", len(question.use_count), *told))


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
def _waits(first, value, use_first, use_pool, use_count, size, capacity, hopes, most):  # type: ignore[no-untyped-def]
    for j in hopes:
        for c in range(first[j], first[j + 1]):
            fits = size[c] <= most[j] + _WHOLE
            for u in range(use_first[c], use_first[c + 1]):
                fits = fits and use_count[u] <= capacity[use_pool[u]] + _WHOLE
            if fits:
                return True
    return False


@_loops
def _with_floors(first, value, use_first, use_pool, use_count, size, rows, counts):  # type: ignore[no-untyped-def]
    """Returns the first use of each column, and column, row and count of each use: those of the guarantees that each
    job counts for come after its others.
    """
    floors, total = len(counts), len(use_pool)
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
def _counted(c, size, mine, many, left, counted):  # type: ignore[no-untyped-def]
    """Writes those of the first `many` guarantees of `mine` that column c counts for into `counted`; returns how
    many.
    """
    few = 0
    for i in range(many):
        if size[c] <= left[mine[i]] + _WHOLE:
            counted[few] = mine[i]
            few += 1
    return few


@_loops
def _with_copies(  # type: ignore[no-untyped-def]
    first, value, use_first, use_pool, use_count, size, rows, inside, left, bonus
):
    """Returns the column behind each copy and its value, the first use of each copy, and copy, row and count of each
    use.

    Copy k of a column has the bonuses of those of its guarantees, in their order, whose bits are set in k.
    """
    mine, counted = np.zeros(len(left), np.int64), np.zeros(len(left), np.int64)
    copies, total = 0, 0
    for j in range(len(first) - 1):
        many = _above(j, inside, mine)
        for c in range(first[j], first[j + 1]):
            few = _counted(c, size, mine, many, left, counted)
            copies += 1 << few
            total += ((use_first[c + 1] - use_first[c]) << few) + (few << few) // 2
    origin, worth, begins = np.empty(copies, np.int64), np.empty(copies), np.empty(copies + 1, np.int64)
    column, pool, count = np.empty(total, np.int64), np.empty(total, np.int64), np.empty(total)
    copy, at = 0, 0
    for j in range(len(first) - 1):
        many = _above(j, inside, mine)
        for c in range(first[j], first[j + 1]):
            few = _counted(c, size, mine, many, left, counted)
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
