"""`walras` and `makespan` keep to their goals on the small ones of Gavel's traces (`benchmarks/bench_grounds_*.py`)."""

from functools import partial
from pathlib import Path

import pytest

from benchmarks.bench_grounds_conditions import paced, told_wrong
from benchmarks.bench_grounds_traces import TRACES, source_of
from benchmarks.grounds import excess, serve
from benchmarks.grounds_pairs import in_pairs
from benchmarks.grounds_rounds import in_gavel_rounds
from simulator.reports.run_spec import WorkloadSource

STATIC = TRACES[0]


@pytest.fixture(autouse=True)
def _data(reference_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WALRAS_DATA", str(reference_data))


@pytest.mark.slow
def test_gavels_own_rounds_are_used_better_than_by_gavel() -> None:
    """In rounds of 360 s, x against Gavel's recorded run is below .47, and nobody is slowed down by more than 3."""
    served = serve(source_of(STATIC), STATIC.cluster, "walras", change=in_gavel_rounds)
    assert excess(served, STATIC.jct_s) < 0.47
    assert max(served.slowdowns) < 3


@pytest.mark.slow
def test_wrong_lengths_cost_little() -> None:
    """Jobs told up to twice as long or half as long as they are take at most 1 % longer on average."""
    known = serve(source_of(STATIC), STATIC.cluster, "walras")
    wrong = serve(source_of(STATIC), STATIC.cluster, "walras", retell=partial(told_wrong, seed=0))
    assert wrong.mean_s < 1.01 * known.mean_s


@pytest.mark.slow
def test_not_knowing_how_fast_each_job_is_costs_little() -> None:
    """Jobs 10 % slower or faster than their kind take at most 1 % longer on average than if that were known."""
    known, unknown = (
        serve(source_of(STATIC), STATIC.cluster, "walras", retell=partial(paced, seed=0, told=told))
        for told in (True, False)
    )
    assert unknown.mean_s < 1.01 * known.mean_s


@pytest.mark.slow
def test_the_last_of_a_hundred_jobs_ends_early(reference_data: Path) -> None:
    """The makespan stays below 64,150 s for jobs alone, and below 60,000 s for pairs."""
    source = WorkloadSource(str(reference_data / "gavel" / "traces" / "minimize_makespan.tsv"))
    assert serve(source, "gavel-8-16-24", "makespan").makespan_s < 64_150
    assert serve(source, "gavel-8-16-24", "makespan", change=in_pairs).makespan_s < 60_000
