"""Co-located solves in stages, and pairs of concrete jobs from time spent beside a kind of job.

`solve_colocated_in_stages` is what `optimizer.lp.solver.solve` does where jobs may be co-located. A policy makes its
classes with the jobs' kinds among the keys (`colocation_keys`) and states the same objective as without co-location.
Every stage carries the prices of utility and of time beside those of the pools: with pairs, those alone prove nothing.

Two segments that meet: lay the jobs of each on a line, every job as long as its share of time; the lines are equally
long, and where they run side by side their jobs form a pair. m and n jobs make at most m + n - 1 pairs. A segment that
meets itself: lay its jobs on one line and fold it in the middle. No job meets itself, because none holds more than
half of the line: a job that reaches over the fold ends before the place that lies on its own beginning. n jobs make at
most n pairs. Every job gets exactly the time that it was to have, whoever its partners are: what it gains depends on
their kind alone.
"""

from dataclasses import dataclass, replace

import numpy as np

from optimizer.classes.aggregation import JobPartition
from optimizer.classes.class_problem import FULL, ClassProblem, ClassSolution, MaxMin, MaxSum
from optimizer.classes.segments import max_by, sum_by
from optimizer.decision import ColocatedJobs, SolveStage, Status
from optimizer.lp.column_generation.colocation_blocks import ColocationBlock, PairSides, colocation_blocks, side_details
from optimizer.lp.column_generation.pair_generation import ColocatedSolution, ColumnGenerator
from optimizer.lp.staged_solution import SolveInput, StagedSolution, rising_classes, scarce_pools, stage_over_jobs
from optimizer.problem import FloatArray, IntArray

#: Overlaps shorter than this part of the longest line count as rounding.
_ROUNDING = 1e-13


@dataclass(frozen=True, slots=True, eq=False)
class _Line:
    """Jobs laid one after the other on a line: their rows, and where each ends."""

    job: IntArray
    end: FloatArray


def pairs_of_jobs(
    classes: JobPartition, blocks: tuple[ColocationBlock, ...], sides: PairSides, beside: FloatArray
) -> ColocatedJobs:
    """Returns the pairs of jobs, with their shares of time, that result from the time of sides.

    Args:
        classes: k classes of n jobs.
        blocks: the blocks of the sides.
        sides: q of them.
        beside: time of one member in each side (q,); the members of both sides of a meeting have the same time in all.
    """
    order = np.argsort(classes.member, kind="stable")
    start = np.searchsorted(classes.member[order], np.arange(len(classes) + 1))
    parts: list[tuple[IntArray, IntArray, IntArray, FloatArray]] = []
    segment = np.zeros(len(sides), dtype=np.int64)
    for number, block in enumerate(blocks):
        here = sides.block == number
        segment[here] = block.segment[sides.place[here]]
    meetings = np.stack((sides.block, np.minimum(segment, sides.beside), np.maximum(segment, sides.beside)), axis=1)
    unique, meeting = np.unique(meetings, axis=0, return_inverse=True)
    by_meeting = np.argsort(meeting.reshape(-1), kind="stable")
    bounds = np.searchsorted(meeting.reshape(-1)[by_meeting], np.arange(len(unique) + 1))
    for (number, low, high), begin, end in zip(unique, bounds[:-1], bounds[1:], strict=True):
        mine = by_meeting[begin:end]
        block = blocks[number]
        lines = [
            _line(block.member[sides.place[part]], beside[part], order, start)
            for part in (mine[segment[mine] == low], mine[segment[mine] == high])
        ]
        first, second, share = _folded(lines[0]) if low == high else _side_by_side(lines[0], lines[1])
        different = first != second  # Rounding may leave a job beside itself, for a negligible time.
        first, second, share = first[different], second[different], share[different]
        if not block.leads[low, high]:
            first, second = second, first
        parts.append((first, second, np.full(len(first), block.row[low, high]), share))
    if not parts:
        return ColocatedJobs(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
    first, second, pair, share = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    ranked = np.lexsort((pair, second, first))
    return ColocatedJobs(first[ranked], second[ranked], pair[ranked], share[ranked])


def _line(member: IntArray, time: FloatArray, order: IntArray, start: IntArray) -> _Line:
    """Returns the members of each class laid one after the other, each as long as its time."""
    job = [order[start[m] : start[m + 1]] for m in member]
    size = [len(jobs) for jobs in job]
    rows = np.concatenate(job) if job else np.zeros(0, dtype=np.int64)
    return _Line(rows, np.cumsum(np.repeat(time, size)))


def _side_by_side(one: _Line, other: _Line) -> tuple[IntArray, IntArray, FloatArray]:
    if not len(one.job) or not len(other.job):
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
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


#: Floors are lowered by this part, so that rounding cannot make the next program infeasible.
_SLACK = 1e-9
#: A stage is dropped if it takes more than this part of what it had to keep.
_KEPT = 1e-7


def solve_colocated_in_stages(
    request: SolveInput, objective: MaxMin | MaxSum, *, leftover: bool = True
) -> StagedSolution | None:
    """Returns the optimum of the objective, followed (if `leftover`) by the largest sum of utilities that keeps it.

    Returns None where no jobs may be co-located, or no solver answers: the caller then decides without co-location.

    Args:
        request: the problem and its classes, each of one kind.
        objective: of the first stage; its worth is the fair-share utility if something is to follow.
        leftover: if False, return the shares of the first stage.
    """
    class_problem = request.classes.problem
    blocks = colocation_blocks(request.problem, request.classes, request.classes.classes.class_column >= 0)
    if not blocks or (isinstance(objective, MaxMin) and not rising_classes(class_problem, objective).any()):
        return None
    packer = ColumnGenerator(class_problem, blocks)
    found = packer.solve(objective)
    if found.status not in (Status.OPTIMAL, Status.WORK_LIMIT) or not np.isfinite(found.objective):
        return None
    stages = [_colocated_stage(request, objective, found)]
    shown = found
    if leftover and isinstance(objective, MaxMin):
        kept = np.minimum(
            objective.targets.at(found.objective)[0], _utility(class_problem, blocks, objective.worth, found)
        )
        if _can_add(class_problem, objective, kept, found.duals.prices):
            total = MaxSum(objective.worth, objective.worth, kept * (1 - _SLACK))
            more = packer.solve(total)
            if np.all(_utility(class_problem, blocks, objective.worth, more) >= kept * (1 - _KEPT)):
                shown = more
                stages.append(_colocated_stage(request, total, more))
    packed = pairs_of_jobs(request.classes.classes, blocks, shown.sides, shown.beside)
    x = request.classes.to_columns(shown.x)
    return StagedSolution(request, found.status, found.path, x, tuple(stages), packed)


def _colocated_stage(request: SolveInput, objective: MaxMin | MaxSum, found: ColocatedSolution) -> SolveStage:
    """Returns a solution over classes as a stage over jobs."""
    duals = found.duals
    alone = ClassSolution(found.status, found.x, duals.prices, found.objective, found.bound, found.path, found.work)
    stage = stage_over_jobs(request.classes, alone, objective)
    to_jobs = request.classes.to_jobs
    return replace(stage, multiplier=to_jobs(duals.multiplier), time=to_jobs(duals.time))


def _utility(
    class_problem: ClassProblem, blocks: tuple[ColocationBlock, ...], worth: FloatArray, found: ColocatedSolution
) -> FloatArray:
    """Returns the utility that the shares give one member of each class (k,)."""
    sides = side_details(found.sides, blocks)
    beside = sum_by(sides.member, sides.keeps * worth[sides.column] * found.beside, class_problem.classes)
    return sum_by(class_problem.owner, worth * found.x, class_problem.classes) + beside


def _can_add(class_problem: ClassProblem, objective: MaxMin, kept: FloatArray, prices: FloatArray) -> bool:
    """Returns whether some class below its best has a column that uses no scarce row."""
    taken = scarce_pools(prices, class_problem.capacity).astype(np.float64)
    below_best = kept < max_by(class_problem.owner, objective.worth, class_problem.classes) * (1 - FULL)
    return bool(np.any(below_best[class_problem.owner] & (class_problem.cost(taken) == 0) & (objective.worth > 0)))
