"""Hadar and `walras` through the whole core, on the jobs and the cluster of Hadar's own simulations."""

from pathlib import Path

import pytest

from simulator.reports.baselines import BoundsChoice
from simulator.reports.policy_comparison import compare_policies
from simulator.reports.repeated_runs import ParallelWorkers
from simulator.reports.run_spec import GeneratorOptions, RunSpec, WorkloadSource


@pytest.mark.slow
def test_fifo_is_slower_than_las_and_las_than_hadar_and_hadar_than_walras(tmp_path: Path) -> None:
    """The published order of mean completion times and ours, seed by seed, with all jobs there at the beginning.

    The others know no users; so that one thing is compared, ours knows none here either. Fair shares between
    the eight users of this workload, all of whose jobs wait at once, cost 6 % at most.
    """
    blind = tmp_path / "blind.yaml"
    blind.write_text("policy: {name: walras, parameters: {fairness: 0}}\nrules: {round_s: 360, resolve_min_s: 1}\n")
    source = WorkloadSource("generate:hadar-60", made=GeneratorOptions(jobs=150, rate_per_h=0.0, stretch=0.25))
    cell = RunSpec(source, "hadar-60", "fifo", bounds=BoundsChoice.NONE)
    found = compare_policies(cell, ("fifo", "las", "hadar", str(blind), "walras"), (0, 1), ParallelWorkers())
    assert found.violations == []
    fifo, las, hadar, ours, fair = (
        [row.values["avg_jct_s"] for row in found.rows[policy]] for policy in found.policies
    )
    assert all(
        first > second > third > fourth for first, second, third, fourth in zip(fifo, las, hadar, ours, strict=True)
    )
    assert all(with_users < 1.06 * without for with_users, without in zip(fair, ours, strict=True))


@pytest.mark.slow
def test_gangs_that_need_whole_machines_do_not_starve_under_walras() -> None:
    """Gangs of up to two whole machines among single jobs, four fifths loaded: nobody takes four times as long."""
    source = WorkloadSource("generate:hadar-60", made=GeneratorOptions(jobs=240, rate_per_h=4.8, stretch=0.25))
    found = compare_policies(
        RunSpec(source, "hadar-60", "walras", bounds=BoundsChoice.NONE), ("walras",), (0, 1, 2), ParallelWorkers()
    )
    assert found.violations == []
    assert max(row.values["slowdown_max"] for row in found.rows["walras"]) < 4
