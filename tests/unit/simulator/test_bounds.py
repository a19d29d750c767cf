"""What no schedule can beat."""

from dataclasses import astuple
from itertools import permutations
from math import isfinite, isnan
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from optimizer.bounds import flow_time
from optimizer.bounds.flow_time import FlowBound, PricedTime, cheapest_flows, flow_time_bound
from optimizer.bounds.instance import SchedulingInstance, fluid_makespan_s, no_contention_jct_s
from simulator.reports import baselines as bounding
from simulator.reports.baselines import BoundsChoice, lower_bounds
from simulator.reports.run_spec import GeneratorOptions, RunSpec, WorkloadSource, execute_run
from simulator.reports.run_summary import RunSummary

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
            price.ravel(), A_ub=np.kron(np.eye(intervals), np.ones(len(speed))), b_ub=there,
            A_eq=np.tile(speed, intervals)[None], b_eq=[steps],
        )  # fmt: skip
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
    one = SchedulingInstance(np.array([arrival]), np.array([steps]), np.ones(1), np.array([speed]), np.ones(2))
    flows, used = cheapest_flows(one, PricedTime(table, INTERVAL_S))
    assert flows[0] <= exact + 1e-6
    assert used.min() >= -1e-9
    longer = np.vstack([table, np.zeros((20, 2))])  # it ends where there are intervals
    finely, _ = cheapest_flows(one, PricedTime(np.repeat(longer, 40, axis=0), INTERVAL_S / 40))
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
    with pytest.raises(ValueError, match="job row 1 can run nowhere"):
        instance([0.0, 0.0], [1.0, 1.0], [[1.0], [0.0]], [1.0])


POLICIES = ("fifo", "isolated", "max_min_fairness")


@pytest.mark.parametrize("generator", ["poisson", "burst", "hadar-60"])
def test_no_run_beats_its_bounds(generator: str) -> None:
    """Mean completion time and makespan lie above every bound; policies that end all jobs meet the same bounds."""
    source = WorkloadSource(f"generate:{generator}", made=GeneratorOptions(jobs=12, rate_per_h=240.0, stretch=0.05))
    found = [
        execute_run(RunSpec(source, "hadar-60", policy, 5, BoundsChoice.ALL)).summary.bounds for policy in POLICIES
    ]
    for bounds in found:
        assert min(bounds.no_contention_gap, bounds.makespan_gap, bounds.jct_gap) >= -1e-9
        assert bounds.jct_s >= bounds.no_contention_s * (1 - 1e-12)
    assert len({(each.no_contention_s, each.makespan_s, each.jct_s) for each in found}) == 1


def test_the_bounds_of_the_same_jobs_are_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For all policies that end them; other jobs have bounds of their own, and each is what it was without others."""
    worked_out, bound = [], flow_time.flow_time_bound

    def counted(instance: SchedulingInstance, *, interval_s: float, steps: int) -> FlowBound:
        worked_out.append(instance)
        return bound(instance, interval_s=interval_s, steps=steps)

    monkeypatch.setattr(flow_time, "flow_time_bound", counted)
    source = WorkloadSource("generate:poisson", made=GeneratorOptions(jobs=7, rate_per_h=111.0, stretch=0.05))
    found = [
        execute_run(RunSpec(source, "hadar-60", policy, seed, BoundsChoice.ALL)).summary.bounds.jct_s
        for policy in POLICIES
        for seed in (1, 2)
    ]
    assert len(worked_out) == 2
    assert found[:2] * len(POLICIES) == found
    assert found[0] != found[1]


def test_forks_do_not_beat_the_bounds(tmp_path: Path) -> None:
    """Bounds of jobs that may be forked count all their parts; those of the same jobs whole would be beaten."""
    trace = tmp_path / "forks.csv"
    rows = [f"{60 * number},job-{number},CycleGAN,1,{3600 + 600 * number},{{parts}}" for number in range(6)]

    def run(parts: int) -> RunSummary:
        text = "\n".join(["at,name,kind,gang,steps,fork_max", *rows]).format(parts=parts)
        trace.write_text(text + "\n")
        return execute_run(RunSpec(WorkloadSource(str(trace)), "hadar-60", "hadar", 0, BoundsChoice.ALL)).summary

    whole, forked = run(1), run(4)
    assert forked.avg_jct_s < 0.5 * whole.bounds.no_contention_s
    assert min(forked.bounds.no_contention_gap, forked.bounds.makespan_gap, forked.bounds.jct_gap) >= -1e-9


def test_renting_does_not_beat_the_bounds() -> None:
    """Machines that may be rented count from the beginning, whether or not anybody rents them."""
    bounds = execute_run(
        RunSpec(WorkloadSource("deadlines"), "mixed-cloud", "fifo", 0, BoundsChoice.ALL)
    ).summary.bounds
    assert min(bounds.no_contention_gap, bounds.makespan_gap, bounds.jct_gap) >= -1e-9


def test_large_runs_are_bounded_cheaply_unless_all_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound that would take long at this size is not worked out, and is told as not there."""
    ran = execute_run(RunSpec(WorkloadSource("deadlines"), "mixed-cloud", "fifo", 0, BoundsChoice.NONE))
    assert all(isnan(value) for value in astuple(ran.summary.bounds))
    monkeypatch.setattr(bounding, "PRICED_PAIRS_MAX", 10)
    cheap = lower_bounds(ran.result.jobs, ran.baselines, BoundsChoice.CHEAP)
    assert isnan(cheap.jct_s)
    assert isfinite(cheap.makespan_s)
    monkeypatch.setattr(bounding, "FLUID_PAIRS_MAX", 10)
    assert isnan(lower_bounds(ran.result.jobs, ran.baselines, BoundsChoice.CHEAP).makespan_s)
    assert isfinite(lower_bounds(ran.result.jobs, ran.baselines, BoundsChoice.ALL).makespan_s)


def test_the_shipped_mixed_cloud_run_uses_what_it_pays_for() -> None:
    """A job with a deadline has a machine of eight rented for one accelerator: others use the rest (before: 11 %)."""
    ran = execute_run(RunSpec(WorkloadSource("deadlines"), "mixed-cloud", "walras", bounds=BoundsChoice.NONE))
    rented = [meter for meter in ran.result.pools if ran.result.bills[meter.pool.pool_id] > 0]
    there_s = sum(ran.result.bills[each.pool.pool_id] / each.pool.usd_per_h * 3600 * 8 for each in rented)
    assert rented
    assert sum(meter.held_s for meter in rented) >= 0.6 * there_s
