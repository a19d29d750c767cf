"""The list schedule of an order, and the bound on mean completion time that it is measured by.

The fleet is fluid (machine borders and start costs do not count), nobody is preempted, and speeds are as stated.
Whenever something is free, the first job in the order takes the configuration it prefers among those that fit.

The bound: at prices l[r] >= 0 per accelerator-second of the pools, with sum_r N[r] l[r] = 1, the work of job j costs at
least

    W[j] = min over its configurations of  remaining steps / steps per second * sum_r use[r] l[r]

and the fleet earns 1 a second. So the jobs end no sooner than on one machine of speed 1 with work W, shortest first
(the squashed area). Let p[j] be the time that j takes on its best configuration, C[j] when it ends, and W sorted
ascending. Then for any schedule, preemptive or not, clairvoyant, with free restarts and moves

    sum C  >=  sum_k (W[1] + .. + W[k] - W[k]/2)  +  1/2 sum p          (Eastman, Even and Isaacs 1964, at prices)
    sum C  >=  sum_k max(W[1] + .. + W[k], k-th smallest p)

The first is concave in the prices: a few multiplicative steps find good ones, and any give a valid bound.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from optimizer.decision import BoundReport, Order
from optimizer.problem import BoolArray, FloatArray, IntArray, Problem
from optimizer.utility.fair_share import usable_columns

#: Slack for comparing counts that were computed in floating point.
_WHOLE = 1e-9

#: The accelerators that a configuration takes, by pool.
PoolUses = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class _Way:
    """One configuration of one job, as the list schedule uses it."""

    uses: PoolUses
    seconds: float


def ends_s(
    problem: Problem, rows: tuple[int, ...], preference: FloatArray, usable: BoolArray, *, strict: bool
) -> FloatArray:
    """Returns the seconds from now until each job ends (n,); inf for a job without a usable configuration.

    Args:
        problem: remaining steps are finite where a configuration is usable.
        rows: the jobs in their order.
        preference: higher first, among the columns of a job (c,).
        usable: columns that fit the empty fleet and make steps (c,).
        strict: the first job that does not fit holds up all behind it.
    """
    ways = _ways(problem, preference, usable)
    queues = _queues(rows, ways)
    free = problem.pools.capacity.tolist()
    ends = np.full(len(problem.jobs), np.inf)
    running: list[tuple[float, int, PoolUses]] = []
    now = 0.0
    while True:
        for row, way in _starts(queues, ways, free, strict=strict):
            ends[row] = now + way.seconds
            heappush(running, (ends[row], row, way.uses))
        if not running:
            return ends
        now = running[0][0]
        while running and running[0][0] <= now:
            for pool, count in heappop(running)[2]:
                free[pool] += count


def _ways(problem: Problem, preference: FloatArray, usable: BoolArray) -> list[list[_Way]]:
    """Returns the usable configurations of each job, the preferred first."""
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


def _queues(rows: tuple[int, ...], ways: list[list[_Way]]) -> list[deque[tuple[int, int]]]:
    """Returns queues of (place in the order, row) of jobs that can run; jobs in one queue all fit or all fail to fit
    together.
    """
    queues: dict[frozenset[PoolUses], deque[tuple[int, int]]] = {}
    for place, row in enumerate(rows):
        if ways[row]:
            queues.setdefault(frozenset(way.uses for way in ways[row]), deque()).append((place, row))
    return list(queues.values())


def _starts(
    queues: list[deque[tuple[int, int]]], ways: list[list[_Way]], free: list[float], *, strict: bool
) -> Iterator[tuple[int, _Way]]:
    """Yields the jobs that start with their configurations, and takes these from `free`, in the order of the queues."""
    open_queues = [queue for queue in queues if queue]
    while open_queues:
        queue = min(open_queues, key=lambda queue: queue[0])
        row = queue[0][1]
        way = next((way for way in ways[row] if _fits(way, free)), None)
        if way is None:
            if strict:
                return
            open_queues.remove(queue)
            continue
        queue.popleft()
        if not queue:
            open_queues.remove(queue)
        for pool, count in way.uses:
            free[pool] -= count
        yield row, way


def _fits(way: _Way, free: list[float]) -> bool:
    return all(count <= free[pool] + _WHOLE for pool, count in way.uses)


BOUND_NAME = "mean completion time of the list schedule, against the squashed area at constant prices"
BOUND_UNIT = "s"
#: Multiplicative price steps; and the number of configurations up to which a list schedule is made.
_STEPS = 48
CONFIGURATIONS_MAX = 200_000


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """Jobs that can run, with their usable configurations: k jobs, c configurations, u uses."""

    #: Seconds that a job takes on its best configuration (k,).
    shortest_s: FloatArray
    #: The job of each configuration, ascending, and the seconds that it takes there (c,).
    job: IntArray
    length_s: FloatArray
    use_column: IntArray
    use_pool: IntArray
    use_count: FloatArray
    capacity: FloatArray


def completion_bound_s(problem: Problem, usable: BoolArray) -> float:
    """Returns a lower bound, in seconds, on the sum of the times until all jobs with a usable configuration end.

    Args:
        problem: remaining steps are finite where a configuration is usable.
        usable: columns that count: those that fit the empty fleet and make steps, or those of some jobs (c,).
    """
    work = _work(problem, usable)
    if not len(work.shortest_s):
        return 0.0
    capacity = np.maximum(work.capacity, 1e-12)
    parts = _first_parts(work)
    best = 0.0
    for step in range(1, _STEPS + 1):
        cost, chosen = _cheapest(work, parts / capacity)
        best = max(best, _bound_at(work, cost))
        pull = _price_slope(work, cost, chosen) / capacity
        mean = float(parts @ pull)
        if mean <= 0:
            return best
        parts = parts * np.exp(np.clip(pull / mean - 1.0, -1.0, 1.0) / step)
        parts /= parts.sum()
    return best


def _first_parts(work: _Work) -> FloatArray:
    """Returns for each pool the part of the fleet's earnings at prices in proportion to speed (the mean speed against
    the best).
    """
    speed = work.shortest_s[work.job] / np.maximum(work.length_s, 1e-12)
    uses = np.bincount(work.use_pool, minlength=len(work.capacity))
    mean = np.bincount(work.use_pool, speed[work.use_column], len(work.capacity)) / np.maximum(uses, 1)
    parts: FloatArray = work.capacity * np.maximum(mean, 1e-9)
    return parts / float(parts.sum())


def with_bound_report(problem: Problem, order: Order, *, strict: bool) -> Order:
    """Returns the same order with a bound report, or with the reason why it has none."""
    usable = usable_columns(problem.columns, problem.pools.capacity)
    placeable = np.unique(problem.columns.job[usable])
    unknown = int(np.count_nonzero(~np.isfinite(problem.jobs.remaining_steps[placeable])))
    if unknown:
        return Order(order.rows, order.preference, None, f"{unknown} jobs of unknown length")
    if not len(placeable):
        return Order(order.rows, order.preference, None, "no job has a configuration that fits the fleet")
    if np.count_nonzero(usable) > CONFIGURATIONS_MAX:
        return Order(order.rows, order.preference, None, f"more than {CONFIGURATIONS_MAX} configurations")
    ends = ends_s(problem, order.rows, order.preference, usable, strict=strict)
    objective, bound = float(ends[placeable].mean()), completion_bound_s(problem, usable) / len(placeable)
    gap = (objective - bound) / max(1e-12, bound)
    return Order(order.rows, order.preference, BoundReport(BOUND_NAME, BOUND_UNIT, objective, bound, gap))


def _work(problem: Problem, usable: BoolArray) -> _Work:
    columns, capacity = problem.columns, problem.pools.capacity
    kept = np.flatnonzero(usable)
    rows, job = np.unique(columns.job[kept], return_inverse=True)
    length_s = problem.jobs.remaining_steps[columns.job[kept]] / columns.steps_per_s[kept]
    used = usable[columns.use_column]
    column = (np.cumsum(usable) - 1)[columns.use_column[used]]
    shortest_s = np.full(len(rows), np.inf)
    np.minimum.at(shortest_s, job, length_s)
    return _Work(shortest_s, job, length_s, column, columns.use_pool[used], columns.use_count[used], capacity)


def _cheapest(work: _Work, prices: FloatArray) -> tuple[FloatArray, IntArray]:
    """Returns what each job costs at these prices (k,), and the configuration that costs it (k,)."""
    per_s = np.bincount(work.use_column, work.use_count * prices[work.use_pool], len(work.job))
    cost = work.length_s * per_s
    first = np.searchsorted(work.job, np.arange(len(work.shortest_s)))
    least = np.minimum.reduceat(cost, first)
    cheapest = np.flatnonzero(cost <= least[work.job])
    chosen = cheapest[np.searchsorted(work.job[cheapest], np.arange(len(work.shortest_s)))]
    return least, chosen


def _bound_at(work: _Work, cost: FloatArray) -> float:
    done = np.cumsum(np.sort(cost))
    halves = float(done.sum() - 0.5 * cost.sum() + 0.5 * work.shortest_s.sum())
    return max(halves, float(np.maximum(done, np.sort(work.shortest_s)).sum()))


def _price_slope(work: _Work, cost: FloatArray, chosen: IntArray) -> FloatArray:
    """Returns the derivative of the first bound by each pool's price (p,): the work there, each job as often as it
    delays one.
    """
    rank = np.empty(len(cost))
    rank[np.argsort(cost, kind="stable")] = np.arange(len(cost))
    weight = np.zeros(len(work.job))
    weight[chosen] = (len(cost) - rank - 0.5) * work.length_s[chosen]
    pull = work.use_count * weight[work.use_column]
    return np.bincount(work.use_pool, pull, len(work.capacity)).astype(np.float64)
