"""No run is better than its bounds, whoever schedules it, and the bounds do not depend on who does."""

from dataclasses import astuple
from math import isfinite, isnan
from pathlib import Path

import pytest

from optimizer.bounds import flow_time
from optimizer.bounds.flow_time import FlowBound
from optimizer.bounds.instance import SchedulingInstance
from simulator.reports import baselines as bounding
from simulator.reports.baselines import BoundsChoice, lower_bounds
from simulator.reports.run_spec import GeneratorOptions, RunSpec, WorkloadSource, execute_run
from simulator.reports.run_summary import RunSummary

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
