"""A lower bound on the mean completion time of any schedule: preemptive, migrating, clairvoyant, with free restarts.

For any prices l[i, r] >= 0 of an accelerator-second of pool r in interval i of time, Lagrangian duality gives

    sum_j flow[j]  >=  sum_j min over j's own schedules (flow[j] + price of what it uses)  -  sum_{i,r} capacity l

since the capacity that all use together costs no more than all there is. The prices are improved by a subgradient
method with momentum; any of them proves its value. Gangs are divisible here, so the bound is looser for gangs.

The inner minimum is compiled (importing this module imports numba) and exact but for the last interval of a job, where
two tangents of a convex function give a value on the safe side. For a finish time f a job takes the cheapest work of
its arrival..f: in each interval the lower hull of its points (speed, price of speed) gives pieces of work at rising
cost, and the cheapest pieces that add up to its work are taken. As f grows, new pieces displace the most expensive
ones, which are the top of a heap.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from optimizer.bounds.instance import FloatArray, SchedulingInstance
from optimizer.classes.compiled_loops import njit
from optimizer.problem import IntArray


class PricedTime(NamedTuple):
    """Prices of an accelerator-second in every interval of time (i, p), and how long an interval is, seconds."""

    prices: FloatArray
    interval_s: float


class _Work(NamedTuple):
    """A job's arrival, its steps and accelerators, its speed on each pool, and the pools by speed, the slowest first
    (p,).
    """

    arrival: float
    steps: float
    gang: float
    speed: FloatArray
    order: IntArray


class _Pieces(NamedTuple):
    """Work space: the lower hull of idling and the points (speed, price of the gang) in one interval, as pieces from
    one pool (-1: idle) to a faster one with what a step costs, and the heap of the pieces that are bought.
    """

    low: IntArray
    high: IntArray
    slope: FloatArray
    heap: FloatArray


def cheapest_flows(instance: SchedulingInstance, time: PricedTime) -> tuple[FloatArray, FloatArray]:
    """Returns a lower bound on flow time plus price of each job's cheapest schedule (n,), in seconds, and the
    accelerator-seconds that these schedules use (i, p). Intervals begin at instant 0.
    """
    order = np.argsort(instance.steps_per_s, axis=1, kind="stable")
    jobs = instance.arrival_at, instance.steps, instance.gang, instance.steps_per_s, order
    flows, used = _flows(jobs, time)
    return flows, used


@njit(cache=True)
def _find_hull(job, price, pieces):  # type: ignore[no-untyped-def]
    """Writes the hull at the prices of one interval; returns how many pieces it has."""
    (_, _, gang, row, order), (low, high, slope, _) = job, pieces
    count = 0
    for place in range(len(order)):
        pool = order[place]
        if row[pool] <= 0:
            continue
        while True:
            below = high[count - 1] if count else -1
            speed = row[below] if below >= 0 else 0.0
            cost = gang * price[below] if below >= 0 else 0.0
            rise = row[pool] - speed
            steep = (gang * price[pool] - cost) / rise if rise > 0 else -1.0
            if rise <= 0 and gang * price[pool] >= cost:
                break
            if count and (rise <= 0 or steep <= slope[count - 1]):
                count -= 1
                continue
            if steep < 0:
                steep = 0.0
            low[count], high[count], slope[count] = below, pool, steep
            count += 1
            break
    return count


@njit(cache=True)
def _heap_push(heap, size, entry):  # type: ignore[no-untyped-def]
    """Adds an entry (cost, amount, interval, piece) to the heap, whose top has the largest cost."""
    at, (cost, amount, interval, piece) = size, entry
    while at > 0:
        parent = (at - 1) // 2
        if heap[parent, 0] >= cost:
            break
        for part in range(4):
            heap[at, part] = heap[parent, part]
        at = parent
    heap[at, 0], heap[at, 1], heap[at, 2], heap[at, 3] = cost, amount, interval, piece


@njit(cache=True)
def _heap_pop(heap, size):  # type: ignore[no-untyped-def]
    """Removes the top of a heap of `size` entries."""
    last = size - 1
    cost = heap[last, 0]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= last:
            break
        if child + 1 < last and heap[child + 1, 0] > heap[child, 0]:
            child += 1
        if heap[child, 0] <= cost:
            break
        for part in range(4):
            heap[at, part] = heap[child, part]
        at = child
    for part in range(4):
        heap[at, part] = heap[last, part]


@njit(cache=True)
def _trim_heap(heap, size, work, cost, steps):  # type: ignore[no-untyped-def]
    """Removes the dearest pieces beyond the work; returns (size, work, cost)."""
    while work > steps and size:
        surplus = work - steps
        if heap[0, 1] > surplus:
            heap[0, 1] -= surplus
            return size, steps, cost - surplus * heap[0, 0]
        work -= heap[0, 1]
        cost -= heap[0, 1] * heap[0, 0]
        _heap_pop(heap, size)
        size -= 1
    return size, work, cost


@njit(cache=True)
def _interval_length(interval, intervals, interval_s, arrival, endless):  # type: ignore[no-untyped-def]
    """Returns the seconds of an interval that the job can use; after the last interval nothing has a price, without
    end.
    """
    if interval >= intervals:
        return endless
    return min(interval_s, (interval + 1) * interval_s - arrival)


@njit(cache=True)
def _best_finish(job, time, pieces):  # type: ignore[no-untyped-def]
    """Returns the best finish: (lower bound on its value, interval, seconds into it)."""
    (arrival, steps, _, row, order), (prices, interval_s), (low, high, slope, heap) = job, time, pieces
    intervals = len(prices)
    free = np.zeros(prices.shape[1])
    endless = steps / row[order[-1]]
    best, best_interval, best_after = np.inf, 0, 0.0
    size, work, cost = np.int64(0), 0.0, 0.0
    for interval in range(int(arrival // interval_s), intervals + 1):
        price = prices[interval] if interval < intervals else free
        begins = max(interval * interval_s - arrival, 0.0)
        if begins >= best:
            break
        length = _interval_length(interval, intervals, interval_s, arrival, endless)
        count = _find_hull(job, price, pieces)
        fastest, paid, dearest = row[high[count - 1]], 0.0, 0.0
        for piece in range(count):
            speed = row[high[piece]] - (row[low[piece]] if low[piece] >= 0 else 0.0)
            paid += slope[piece] * speed
            dearest = max(dearest, slope[piece])
        if work + fastest * length < steps * (1 - 1e-12):
            for piece in range(count):
                speed = row[high[piece]] - (row[low[piece]] if low[piece] >= 0 else 0.0)
                _heap_push(heap, size, (slope[piece], speed * length, interval, piece))
                size += 1
            work += fastest * length
            cost += paid * length
            continue
        # The job can finish in this interval, from `early` on. Value and slope of flow + cost at both ends:
        early = max((steps - work) / fastest, 0.0)
        marginal = heap[0, 0] if size else 0.0
        if early > 0:
            marginal = max(dearest, marginal)
        left = begins + early + cost + paid * early
        falls = 1.0
        for piece in range(count):
            speed = row[high[piece]] - (row[low[piece]] if low[piece] >= 0 else 0.0)
            falls += speed * min(slope[piece] - marginal, 0.0)
            _heap_push(heap, size, (slope[piece], speed * length, interval, piece))
            size += 1
        size, work, cost = _trim_heap(heap, size, work + fastest * length, cost + paid * length, steps)
        right = begins + length + cost
        rises = 1.0
        for piece in range(count):
            speed = row[high[piece]] - (row[low[piece]] if low[piece] >= 0 else 0.0)
            rises += speed * min(slope[piece] - heap[0, 0], 0.0)
        value, after = left, early
        if falls < 0:
            value, after = right, length
            if rises > 0:
                after = early + (right - left - rises * (length - early)) / (falls - rises)
                after = min(max(after, early), length)
                value = min(left + falls * (after - early), right)
        if value < best:
            best, best_interval, best_after = value, interval, after
    return best, best_interval, best_after


@njit(cache=True)
def _add_use(job, time, finish, pieces, used):  # type: ignore[no-untyped-def]
    """Adds the accelerator-seconds that the cheapest schedule with that finish uses."""
    (arrival, steps, gang, row, _), (prices, interval_s), (last, after) = job, time, finish
    low, high, slope, heap = pieces
    intervals = len(prices)
    size, work, cost = np.int64(0), 0.0, 0.0
    for interval in range(int(arrival // interval_s), min(last, intervals - 1) + 1):
        length = after if interval == last else _interval_length(interval, intervals, interval_s, arrival, 0.0)
        count = _find_hull(job, prices[interval], pieces)
        for piece in range(count):
            speed = row[high[piece]] - (row[low[piece]] if low[piece] >= 0 else 0.0)
            _heap_push(heap, size, (slope[piece], speed * length, interval, piece))
            size += 1
            work += speed * length
            cost += slope[piece] * speed * length
        size, work, cost = _trim_heap(heap, size, work, cost, steps)
    for entry in range(size):
        interval, piece = int(heap[entry, 2]), int(heap[entry, 3])
        _find_hull(job, prices[interval], pieces)
        slower = low[piece]
        seconds = heap[entry, 1] / (row[high[piece]] - (row[slower] if slower >= 0 else 0.0))
        used[interval, high[piece]] += gang * seconds
        if slower >= 0:
            used[interval, slower] -= gang * seconds


@njit(cache=True)
def _flows(jobs, time):  # type: ignore[no-untyped-def]
    arrival_at, steps, gang, steps_per_s, order = jobs
    n, pools = steps_per_s.shape
    flows, used = np.empty(n), np.zeros(time.prices.shape)
    heap = np.empty(((len(time.prices) + 1) * pools, 4))
    pieces = _Pieces(np.empty(pools, np.int64), np.empty(pools, np.int64), np.empty(pools), heap)
    for j in range(n):
        job = _Work(arrival_at[j], steps[j], gang[j], steps_per_s[j], order[j])
        flows[j], last, after = _best_finish(job, time, pieces)
        _add_use(job, time, (last, after), pieces, used)
    return flows, used


#: How far a price moves per step for a pool overused by its capacity: at first, and at the end. Prices are seconds of
#: waiting per accelerator-second: about one where there is a queue, about the length of the queue where it is long.
_FIRST_STEP, _LAST_STEP = 0.5, 0.003
_MOMENTUM = 0.9


@dataclass(frozen=True, slots=True, eq=False)
class FlowBound:
    """A bound with its proof: prices of an accelerator-second in every interval (i, p), and the mean completion time
    that they prove, seconds.
    """

    mean_s: float
    prices: FloatArray


def flow_time_bound(
    instance: SchedulingInstance, *, interval_s: float = 1800.0, steps: int = 300, there: FloatArray | None = None
) -> FlowBound:
    """Returns the best bound that a subgradient method with momentum and decreasing steps finds in `steps` steps.

    Args:
        instance: the workload.
        interval_s: prices are constant for this long.
        steps: subgradient steps, each a pass over all jobs.
        there: accelerator-seconds of each pool in each interval from the first arrival on (i, p), where machines came
            and went; at most the instance's capacity. Afterwards nothing is scarce. None: the whole capacity is there
            all the time.
    """
    first = float(instance.arrival_at.min())
    most = instance.capacity * interval_s
    if there is None:
        there = np.tile(most, (_interval_count(instance, first, interval_s), 1))
    prices = np.zeros(there.shape)
    best, proof, direction = -np.inf, prices, np.zeros_like(prices)
    from_first = replace(instance, arrival_at=instance.arrival_at - first)
    for step in range(steps):
        flows, used = cheapest_flows(from_first, PricedTime(prices, interval_s))
        value = float(flows.sum() - (there * prices).sum())
        if value > best:
            best, proof = value, prices
        excess = (used - there) / most
        excess[(prices == 0) & (excess < 0)] = 0.0
        direction = _MOMENTUM * direction + (1 - _MOMENTUM) * excess
        length = _FIRST_STEP * (_LAST_STEP / _FIRST_STEP) ** (step / steps)
        prices = np.maximum(prices + length * direction, 0.0)
    return FlowBound(best / len(instance.steps), proof)


def _interval_count(instance: SchedulingInstance, first: float, interval_s: float) -> int:
    """Returns how many intervals there are, so that nothing is scarce after them: even if the last arrival is the
    longest job and waits for all others.
    """
    work = float((instance.gang * instance.alone_s).sum())
    last = float((instance.arrival_at + instance.alone_s).max()) - first
    return int(np.ceil((last + work / float(instance.capacity.sum())) / interval_s)) + 1
