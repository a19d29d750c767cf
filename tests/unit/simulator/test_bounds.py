"""What no schedule can beat."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from optimizer.bounds.flow_time import cheapest_flows, flow_time_bound
from optimizer.bounds.instance import SchedulingInstance, fluid_makespan_s, no_contention_jct_s

INTERVAL_S = 10.0
#: Finish times that the programs try.
GRID_S = 1.0


def instance(
    arrival: list[float], steps: list[float], speeds: list[list[float]], capacity: list[float]
) -> SchedulingInstance:
    return SchedulingInstance(
        np.array(arrival), np.array(steps), np.ones(len(steps)), np.array(speeds, dtype=float), np.array(capacity)
    )


def cheapest_by_programs(arrival: float, steps: float, speed: np.ndarray, prices: np.ndarray) -> float:
    """The inner minimum as one linear program for each of many finish times."""
    best = np.inf
    for finish in np.arange(arrival + GRID_S, len(prices) * INTERVAL_S + 60.0, GRID_S):
        intervals = int(np.ceil(finish / INTERVAL_S))
        begin = np.maximum(np.arange(intervals) * INTERVAL_S, arrival)
        end = np.minimum((np.arange(intervals) + 1) * INTERVAL_S, finish)
        there = np.maximum(end - begin, 0.0)
        price = np.vstack([prices, np.zeros((max(0, intervals - len(prices)), len(speed)))])[:intervals]
        found = linprog(
            price.ravel(),
            A_ub=np.kron(np.eye(intervals), np.ones(len(speed))),
            b_ub=there,
            A_eq=np.tile(speed, intervals)[None],
            b_eq=[steps],
        )
        if found.status == 0:
            best = min(best, finish - arrival + found.fun)
    return best


@settings(max_examples=6, deadline=None)
@given(
    arrival=st.floats(0, 15),
    steps=st.floats(1, 40),
    speed=st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]), min_size=2, max_size=2).filter(any),
    prices=st.lists(st.floats(0, 2), min_size=6, max_size=6),
)
def test_a_jobs_cheapest_schedule_is_found(arrival: float, steps: float, speed: list[float], prices: list[float]):
    """As by linear programs over a grid of finish times: never above, and in short intervals hardly below."""
    table = np.array(prices).reshape(3, 2)
    exact = cheapest_by_programs(arrival, steps, np.array(speed), table)
    one = (np.array([arrival]), np.array([steps]), np.ones(1), np.array([speed]))
    flows, used = cheapest_flows(*one, table, INTERVAL_S)
    assert flows[0] <= exact + 1e-6
    assert used.min() >= -1e-9
    longer = np.vstack([table, np.zeros((20, 2))])  # it ends where there are intervals
    finely, _ = cheapest_flows(*one, np.repeat(longer, 40, axis=0), INTERVAL_S / 40)
    assert exact - 2 * GRID_S <= finely[0] <= exact + 1e-6


def best_flow(jobs: list[tuple[float, float]]) -> float:
    """Least total flow time on one machine by trying all orders at every arrival: SRPT is optimal, so run it."""
    left = {j: steps for j, (_, steps) in enumerate(jobs)}
    now, total = 0.0, 0.0
    while left:
        here = [j for j in left if jobs[j][0] <= now + 1e-12]
        coming = min((jobs[j][0] for j in left if jobs[j][0] > now + 1e-12), default=np.inf)
        if not here:
            now = coming
            continue
        job = min(here, key=lambda j: left[j])
        ran = min(left[job], coming - now)
        left[job] -= ran
        now += ran
        if left[job] <= 1e-9:
            del left[job]
            total += now - jobs[job][0]
    return total


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 50), st.floats(1, 40)), min_size=1, max_size=5))
def test_no_schedule_beats_the_flow_bound(jobs: list[tuple[float, float]]):
    """On one accelerator shortest remaining first is optimal: the bound lies between running alone and that."""
    one = instance([a for a, _ in jobs], [s for _, s in jobs], [[1.0]] * len(jobs), [1.0])
    optimum = best_flow(jobs) / len(jobs)
    bound = flow_time_bound(one, interval_s=2.0, steps=60).mean_s
    assert no_contention_jct_s(one) - 1e-6 <= bound <= optimum + 1e-6


def test_the_flow_bound_is_tight_where_jobs_queue():
    """Ten equal jobs on one accelerator: 5.5 lengths on average, and the bound knows most of it."""
    queue = instance([0.0] * 10, [100.0] * 10, [[1.0]] * 10, [1.0])
    assert flow_time_bound(queue, interval_s=10.0, steps=400).mean_s >= 0.98 * 550.0


def test_the_fluid_makespan_divides_the_work():
    """Two unlike pools: everything ends together where each job is relatively best."""
    both = instance([0.0, 0.0], [100.0, 100.0], [[10.0, 1.0], [1.0, 10.0]], [1.0, 1.0])
    assert fluid_makespan_s(both) == pytest.approx(10.0)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 20), st.floats(1, 40)), min_size=1, max_size=4))
def test_no_order_beats_the_fluid_makespan(jobs: list[tuple[float, float]]):
    """Jobs one after the other on one accelerator, in any order."""
    one = instance([a for a, _ in jobs], [s for _, s in jobs], [[1.0]] * len(jobs), [1.0])
    first = min(a for a, _ in jobs)

    def ends(order: tuple[int, ...]) -> float:
        now = first
        for job in order:
            now = max(now, jobs[job][0]) + jobs[job][1]
        return now - first

    assert fluid_makespan_s(one) <= min(ends(order) for order in permutations(range(len(jobs)))) + 1e-6


def test_a_job_that_can_run_nowhere_is_named():
    """There is no bound for it."""
    with pytest.raises(ValueError, match="job row 1 can run nowhere"):
        instance([0.0, 0.0], [1.0, 1.0], [[1.0], [0.0]], [1.0])
