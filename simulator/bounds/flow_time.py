"""A lower bound on the mean completion time of any schedule: preemptive, migrating, clairvoyant, with free restarts.

For any prices l[i, r] >= 0 of an accelerator-second of pool r in interval i of time,

    sum_j flow[j]  >=  sum_j min over j's own schedules (flow[j] + price of what it uses)  -  sum_{i,r} capacity l

since the capacity that all use together costs no more than all there is. The inner minimum is exact but for the last
interval of a job, where two tangents of a convex function give a value on the safe side. The prices are improved by a
subgradient method; any of them proves its value. Gangs are divisible here, so the bound is looser for gangs.
"""

from dataclasses import dataclass

import numpy as np

from simulator.bounds.flow_kernels import cheapest_flows
from simulator.bounds.instance import FloatArray, Instance

#: How far a price moves per step for a pool overused by its capacity: at first, and at the end. Prices are seconds of
#: waiting per accelerator-second: of order one where there is a queue, of the order of its length where it is long.
_FIRST_STEP, _LAST_STEP = 0.5, 0.003
_MOMENTUM = 0.9


@dataclass(frozen=True, slots=True, eq=False)
class FlowBound:
    """The proof: prices of an accelerator-second in every interval (i, p), and the mean completion time they prove."""

    mean_s: float
    prices: FloatArray
    interval_s: float


def flow_time_bound(instance: Instance, *, interval_s: float = 1800.0, steps: int = 300) -> FlowBound:
    """The best bound found in so many steps of a subgradient method with momentum and falling steps.

    Args:
        instance: the workload.
        interval_s: prices are constant for this long.
        steps: passes over all jobs.
    """
    first = float(instance.arrival_at.min())
    prices = np.zeros((_intervals(instance, first, interval_s), len(instance.capacity)))
    there = np.tile(instance.capacity * interval_s, (len(prices), 1))
    best, proof, direction = -np.inf, prices, np.zeros_like(prices)
    for step in range(steps):
        flows, used = cheapest_flows(
            instance.arrival_at - first, instance.steps, instance.gang, instance.steps_per_s, prices, interval_s
        )
        value = float(flows.sum() - (there * prices).sum())
        if value > best:
            best, proof = value, prices
        excess = used / there - 1.0
        excess[(prices == 0) & (excess < 0)] = 0.0
        direction = _MOMENTUM * direction + (1 - _MOMENTUM) * excess
        length = _FIRST_STEP * (_LAST_STEP / _FIRST_STEP) ** (step / steps)
        prices = np.maximum(prices + length * direction, 0.0)
    return FlowBound(best / len(instance.steps), proof, interval_s)


def _intervals(instance: Instance, first: float, interval_s: float) -> int:
    """Long enough that nothing is scarce afterwards: the last arrival could be the longest job, and wait for all."""
    work = float((instance.gang * instance.alone_s).sum())
    last = float((instance.arrival_at + instance.alone_s).max()) - first
    return int(np.ceil((last + work / float(instance.capacity.sum())) / interval_s)) + 1
