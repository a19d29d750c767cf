"""Which classes of jobs may be co-located two by two: one column for each two classes and each pool.

A listed pair of kinds is considered only if both jobs keep more than 1 of their speed in sum. With f + g <= 1 the two
can take turns alone in the same pool, f and g of the time, and get the same for less time and no more accelerators, so
no optimum needs the pair. The rest is every pair: their number grows with the square of the number of different jobs,
so it is limited, and a problem above the limit is refused.

`pairs_of_jobs` makes pairs of jobs from the time of pairs of classes. Lay the jobs of each class on a line, every job
as long as its share of time; the lines are equally long, and where they run side by side their jobs form a pair. m and
n jobs make at most m + n - 1 pairs. The line of a class beside itself is folded in the middle: no job meets itself,
because each of at least two holds at most half of the line. Every job gets exactly the time that it was to have,
whoever its partners are: what it gains depends on their kind alone.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.classes.aggregation import AggregatedProblem, JobPartition
from optimizer.decision import NO_COLOCATED_JOBS, ColocatedJobs
from optimizer.lp.engine_choice import PAIR_COLUMNS_MOST
from optimizer.problem import BoolArray, FloatArray, IntArray, Problem
from optimizer.utility.fair_share import pool_columns
from walras.errors import UserError

#: Overlaps shorter than this part of the longest line count as rounding.
_ROUNDING = 1e-13


@dataclass(frozen=True, slots=True, eq=False)
class PairColumns:
    """q pairs of classes, each in one pool: parallel arrays. Both ends may be one class of several jobs."""

    #: The class of the pair's first and second job, and the column of the class on which it runs (2, q).
    member: IntArray
    column: IntArray
    #: The factor of its own speed that each of the two keeps (2, q).
    keeps: FloatArray
    #: Accelerators of a pair, its pool, and its row of `Pairs` (q,).
    count: FloatArray
    pool: IntArray
    row: IntArray

    def __len__(self) -> int:
        return len(self.pool)


def colocation_keys(problem: Problem) -> list[FloatArray]:
    """Returns the keys, besides columns and targets, in which jobs of one class must agree: the job's kind, -1 if it
    is not listed in pairs (n,).
    """
    pairs = problem.pairs
    if pairs is None:
        return []
    listed = np.isin(pairs.kind, np.concatenate((pairs.first, pairs.second)))
    return [np.where(listed, pairs.kind, -1).astype(np.float64)]


def pair_columns(problem: Problem, classes: AggregatedProblem, keep: BoolArray) -> PairColumns:
    """Returns every pair of a problem's classes.

    Args:
        problem: n jobs, c columns, p pools.
        classes: k classes, whose members are all of one kind.
        keep: the columns that take part (c,).

    Raises:
        UserError: there are more than `PAIR_COLUMNS_MOST`.
    """
    none: IntArray = np.zeros(0, dtype=np.int64)
    if problem.pairs is None or not len(problem.pairs):
        nobody: IntArray = np.zeros((2, 0), dtype=np.int64)
        return PairColumns(nobody, nobody, np.zeros((2, 0)), np.zeros(0), none, none)
    pairs, class_of = problem.pairs, classes.classes
    own = pool_columns(problem.columns, keep)
    job = problem.columns.job[own.column]
    shown = (class_of.representative[class_of.member[job]] == job) & (pairs.kind[job] >= 0)
    member, column = class_of.member[job[shown]], class_of.class_column[own.column[shown]]
    pool, count, kind = own.pool[shown], own.count[shown], pairs.kind[job[shown]]
    places = _places_by_kind(pool, kind)
    parts: list[tuple[int, IntArray, IntArray]] = []
    total = 0
    for row in np.flatnonzero(pairs.first_factor + pairs.second_factor > 1).tolist():
        where = int(pairs.pool[row])
        first = places.get((where, int(pairs.first[row])), none)
        second = places.get((where, int(pairs.second[row])), none)
        total += len(first) * len(second) // (2 if pairs.first[row] == pairs.second[row] else 1)
        if total > PAIR_COLUMNS_MOST:
            raise UserError(
                f"the problem's {len(class_of)} different jobs make more than {PAIR_COLUMNS_MOST:,} pairs that may "
                "share accelerators",
                field="pairs",
                fix="leave `packed` out of the policy, list fewer pairs, or make jobs equal: equal jobs count once",
            )
        one, other = (ends.ravel() for ends in np.meshgrid(first, second, indexing="ij"))
        fits = count[one] == count[other]
        if pairs.first[row] == pairs.second[row]:
            fits &= (one < other) | ((one == other) & (class_of.size[member[one]] > 1))
        parts.append((row, one[fits], other[fits]))
    first, second = (np.concatenate([none, *(part[end] for part in parts)]) for end in (1, 2))
    of_pairs = np.repeat([part[0] for part in parts], [len(part[1]) for part in parts]).astype(np.int64)
    ends = np.stack((first, second))
    keeps = np.stack((pairs.first_factor[of_pairs], pairs.second_factor[of_pairs]))
    return PairColumns(member[ends], column[ends], keeps, count[first], pool[first], of_pairs)


def _places_by_kind(pool: IntArray, kind: IntArray) -> dict[tuple[int, int], IntArray]:
    """Returns the places of each pool and kind, ascending."""
    found: dict[tuple[int, int], list[int]] = {}
    for place, key in enumerate(zip(pool.tolist(), kind.tolist(), strict=True)):
        found.setdefault(key, []).append(place)
    return {key: np.array(places, dtype=np.int64) for key, places in found.items()}


@dataclass(frozen=True, slots=True, eq=False)
class _Line:
    """Jobs laid one after the other on a line: their rows, and where each ends."""

    job: IntArray
    end: FloatArray


def pairs_of_jobs(classes: JobPartition, pairs: PairColumns, time: FloatArray) -> ColocatedJobs:
    """Returns the pairs of jobs, with their shares of time, that result from the time of pairs of classes.

    Args:
        classes: k classes of n jobs.
        pairs: q pairs of classes.
        time: for which all members of both classes together run as each pair (q,).
    """
    order = np.argsort(classes.member, kind="stable")
    start = np.searchsorted(classes.member[order], np.arange(len(classes) + 1))
    parts = []
    for pair in np.flatnonzero(time > 0).tolist():
        first, second = pairs.member[:, pair].tolist()
        if first == second:
            one, other, share = _folded(_line(order[start[first] : start[first + 1]], 2 * time[pair]))
        else:
            lines = (_line(order[start[end] : start[end + 1]], time[pair]) for end in (first, second))
            one, other, share = _side_by_side(*lines)
        different = one != other  # Rounding may leave a job beside itself, for a negligible time.
        row = np.full(int(different.sum()), pairs.row[pair])
        parts.append((one[different], other[different], row, share[different]))
    if not parts:
        return NO_COLOCATED_JOBS
    one, other, row, share = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    ranked = np.lexsort((row, other, one))
    return ColocatedJobs(one[ranked], other[ranked], row[ranked], share[ranked])


def _line(jobs: IntArray, length: float) -> _Line:
    """Returns the jobs one after the other, all equally long."""
    return _Line(jobs, length * np.arange(1, len(jobs) + 1) / len(jobs))


def _side_by_side(one: _Line, other: _Line) -> tuple[IntArray, IntArray, FloatArray]:
    length = min(one.end[-1], other.end[-1])
    ends = np.unique(np.concatenate((one.end, other.end)))
    begins = np.concatenate(([0.0], ends[:-1]))
    share = np.minimum(ends, length) - begins
    kept = share > _ROUNDING * length
    begins, share = begins[kept], share[kept]
    return _jobs_at(one, begins + share / 2), _jobs_at(other, begins + share / 2), share


def _folded(line: _Line) -> tuple[IntArray, IntArray, FloatArray]:
    """Returns the overlaps of a line's first half with its second half: jobs of both, and the length of
    each overlap.
    """
    half = line.end[-1] / 2
    before = np.append(line.end[line.end < half], half)
    rest = line.end[line.end > half] - half
    first = _Line(line.job[: len(before)], before)
    second = _Line(line.job[len(line.end) - len(rest) :], rest)
    return _side_by_side(first, second)


def _jobs_at(line: _Line, place: FloatArray) -> IntArray:
    """Returns the job at each place of the line."""
    jobs: IntArray = line.job[np.minimum(np.searchsorted(line.end, place), len(line.job) - 1)]
    return jobs
