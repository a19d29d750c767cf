"""The list schedule of an order: when each job would end if nobody else came. Decides nothing.

The fleet is fluid (machine borders and start costs do not count), nobody is preempted, and speeds are as stated.
Whenever something is free, the first job in the order takes the configuration it prefers among those that fit.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from optimizer.problem import BoolArray, FloatArray, Problem

#: Slack for counts that went through float arithmetic.
_WHOLE = 1e-9

#: Accelerators by pool that a configuration takes.
Uses = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class _Way:
    """One way to run one job."""

    uses: Uses
    seconds: float


def ends_s(
    problem: Problem, rows: tuple[int, ...], preference: FloatArray, usable: BoolArray, *, strict: bool
) -> FloatArray:
    """Seconds from now until each job ends (n,); inf for a job without a usable configuration.

    Args:
        problem: remaining steps are finite where a configuration is usable.
        rows: the jobs in their order.
        preference: higher first, among the columns of a job (c,).
        usable: columns that fit the empty fleet and make steps (c,).
        strict: the first job that does not fit holds up all behind it.
    """
    ways = _ways(problem, preference, usable)
    lines = _lines(rows, ways)
    free = problem.pools.capacity.tolist()
    ends = np.full(len(problem.jobs), np.inf)
    running: list[tuple[float, int, Uses]] = []
    now = 0.0
    while True:
        for row, way in _starts(lines, ways, free, strict=strict):
            ends[row] = now + way.seconds
            heappush(running, (ends[row], row, way.uses))
        if not running:
            return ends
        now = running[0][0]
        while running and running[0][0] <= now:
            for pool, count in heappop(running)[2]:
                free[pool] += count


def _ways(problem: Problem, preference: FloatArray, usable: BoolArray) -> list[list[_Way]]:
    """The usable configurations of each job, the preferred first."""
    columns = problem.columns
    first = np.searchsorted(columns.use_column, np.arange(len(columns) + 1))
    pool, count = columns.use_pool.tolist(), columns.use_count.tolist()
    ways: list[list[_Way]] = [[] for _ in range(len(problem.jobs))]
    chosen = np.flatnonzero(usable)
    order = chosen[np.lexsort((-preference[chosen], columns.job[chosen]))]
    seconds = problem.jobs.remaining_steps[columns.job[order]] / columns.steps_per_s[order]
    for column, row, length in zip(order.tolist(), columns.job[order].tolist(), seconds.tolist(), strict=True):
        at, end = int(first[column]), int(first[column + 1])
        ways[row].append(_Way(tuple(zip(pool[at:end], count[at:end], strict=True)), length))
    return ways


def _lines(rows: tuple[int, ...], ways: list[list[_Way]]) -> list[deque[tuple[int, int]]]:
    """(place in the order, row) of the jobs that can run, one line for all that fit and fail to fit together."""
    lines: dict[frozenset[Uses], deque[tuple[int, int]]] = {}
    for place, row in enumerate(rows):
        if ways[row]:
            lines.setdefault(frozenset(way.uses for way in ways[row]), deque()).append((place, row))
    return list(lines.values())


def _starts(
    lines: list[deque[tuple[int, int]]], ways: list[list[_Way]], free: list[float], *, strict: bool
) -> Iterator[tuple[int, _Way]]:
    """Take what is free, in order."""
    open_lines = [line for line in lines if line]
    while open_lines:
        line = min(open_lines, key=lambda line: line[0])
        row = line[0][1]
        way = next((way for way in ways[row] if _fits(way, free)), None)
        if way is None:
            if strict:
                return
            open_lines.remove(line)
            continue
        line.popleft()
        if not line:
            open_lines.remove(line)
        for pool, count in way.uses:
            free[pool] -= count
        yield row, way


def _fits(way: _Way, free: list[float]) -> bool:
    return all(count <= free[pool] + _WHOLE for pool, count in way.uses)
