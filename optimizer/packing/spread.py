"""From time spent beside a kind of job to pairs of concrete jobs, each with a share of time.

Two segments that meet: lay the jobs of each on a line, every job as long as its share of time; the lines are equally
long, and where they run side by side their jobs are a pair. m and n jobs make at most m + n - 1 pairs.

A segment that meets itself: lay its jobs on one line, fold it in the middle. Nobody meets itself, because nobody holds
more than half of the line: a job that reaches over the fold ends before the place that lies on its own beginning. n
jobs make at most n pairs.

Every job gets exactly the time that it was to have, whoever its partners are: what it gains depends on their kind
alone. Decides who meets whom, by order of rows; equal jobs stay with few partners.
"""

from dataclasses import dataclass

import numpy as np

from optimizer.decision import Packed
from optimizer.market.aggregate import Classes
from optimizer.packing.blocks import Block, Sides
from optimizer.problem import FloatArray, IntArray

#: Overlaps shorter than this part of the longest line are rounding.
_ROUNDING = 1e-13


@dataclass(frozen=True, slots=True, eq=False)
class _Line:
    """Jobs one after the other: rows, and where each ends."""

    job: IntArray
    end: FloatArray


def pairs_of(classes: Classes, blocks: tuple[Block, ...], sides: Sides, beside: FloatArray) -> Packed:
    """The shares of pairs of jobs that time spent in sides comes to.

    Args:
        classes: k classes of n jobs.
        blocks: those that the sides belong to.
        sides: q of them.
        beside: time of one member in each, the same for all members of both sides of a meeting together (q,).
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
        different = first != second  # rounding may leave a job beside itself for no time to speak of
        first, second, share = first[different], second[different], share[different]
        if not block.leads[low, high]:
            first, second = second, first
        parts.append((first, second, np.full(len(first), block.row[low, high]), share))
    if not parts:
        return Packed(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
    first, second, pair, share = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    ranked = np.lexsort((pair, second, first))
    return Packed(first[ranked], second[ranked], pair[ranked], share[ranked])


def _line(member: IntArray, time: FloatArray, order: IntArray, start: IntArray) -> _Line:
    """The jobs of classes, one after the other, each as long as its time."""
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
    return _at(one, begins + share / 2), _at(other, begins + share / 2), share


def _folded(line: _Line) -> tuple[IntArray, IntArray, FloatArray]:
    """The first half of a line beside the second."""
    half = line.end[-1] / 2
    before = np.append(line.end[line.end < half], half)
    rest = line.end[line.end > half] - half
    first = _Line(line.job[: len(before)], before)
    second = _Line(line.job[len(line.end) - len(rest) :], rest)
    return _side_by_side(first, second)


def _at(line: _Line, place: FloatArray) -> IntArray:
    """The job that holds each place."""
    jobs: IntArray = line.job[np.minimum(np.searchsorted(line.end, place), len(line.job) - 1)]
    return jobs
