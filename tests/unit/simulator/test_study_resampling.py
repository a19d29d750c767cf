"""Comparisons in which seeds change nothing: one run of each policy, and intervals from the jobs of the trace."""

from collections.abc import Callable
from dataclasses import replace
from math import isnan, nan
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from scipy import stats

from scheduler.world.engine import RandomStreams
from simulator.reports.baselines import BoundsChoice
from simulator.reports.policy_comparison import (
    JobResampling,
    PolicyComparison,
    compare_policies,
    comparison_json,
    comparison_tables,
    format_number,
)
from simulator.reports.repeated_runs import (
    ParallelWorkers,
    RunMetrics,
    estimate_mean,
    execute_for_metrics,
    paired_difference,
)
from simulator.reports.run_spec import GeneratorOptions, RunSpec, WorkloadSource
from simulator.reports.run_summary import RUN_METRICS, TIME_METRICS
from simulator.reports.timeline import JobOutcomes

TRACE = RunSpec(WorkloadSource("three-types"), "gavel-12-12-12", "fifo", bounds=BoundsChoice.NONE)
GENERATED = replace(TRACE, source=WorkloadSource("generate:gavel", made=GeneratorOptions(jobs=8, rate_per_h=4.0)))
JCT = next(measure for measure in RUN_METRICS if measure.name == "avg_jct_s")


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The runs that are made from now on: policy and seed."""
    made: list[tuple[str, int]] = []

    def run(cell: RunSpec, *more: object, **named: object) -> object:
        made.append((cell.policy, cell.seed))
        return execute_for_metrics(cell, *more, **named)  # type: ignore[arg-type]

    monkeypatch.setattr("simulator.reports.repeated_runs.execute_for_metrics", run)
    return made


def compared(cell: RunSpec, on_run: Callable[[], None] = lambda: None) -> PolicyComparison:
    return compare_policies(cell, ["fifo", "las"], (3, 4, 5), ParallelWorkers(), on_run)


def shown(comparison: PolicyComparison) -> str:
    console = Console(width=300)
    with console.capture() as captured:
        for table in comparison_tables(comparison):
            console.print(table)
    return captured.get()


def test_seeds_that_change_nothing_are_run_once_and_no_sign_is_sure(ran: list[tuple[str, int]]) -> None:
    """A trace without conditions: identical runs are no evidence."""
    counted: list[None] = []
    found = compared(TRACE, lambda: counted.append(None))
    assert ran == [("fifo", 3), ("las", 3)]
    assert (found.seeds, found.unused_seeds, found.nothing_random) == ((3,), (4, 5), True)
    assert len(counted) == 6
    text = shown(found)
    assert "sure" not in text
    assert "drawing 60 jobs again, in blocks of 4" in text
    body = comparison_json(found)
    assert (body["seeds"], body["unused_seeds"], body["intervals_over"]) == ([3], [4, 5], "jobs")
    las = body["measures"]["avg_jct_s"]["policies"]["las"]
    assert las["low"] < las["mean"] < las["high"]
    assert las["difference"]["low"] < las["difference"]["mean"] < las["difference"]["high"]
    # One worst job, and the sum of a bill, are no means of jobs.
    assert body["measures"]["slowdown_max"]["policies"]["las"]["low"] is None
    assert body["measures"]["usd"]["policies"]["las"]["difference"]["low"] is None


@pytest.mark.parametrize(
    ("conditions", "runs"),
    [("costs: {start: 20s, checkpoint: 5s}", 2), ("noise: {speeds: 0.1}", 6), ("crashes: {part: 0.5}", 6)],
)
def test_only_what_a_run_draws_makes_its_seeds_matter(
    tmp_path: Path, ran: list[tuple[str, int]], conditions: str, runs: int
) -> None:
    """Costs are the same for every seed; noise and crashes are not."""
    path = tmp_path / "conditions.yaml"
    path.write_text(conditions + "\n")
    found = compared(replace(TRACE, conditions=str(path)))
    assert (len(ran), found.nothing_random) == (runs, runs == 2)
    assert comparison_json(found)["intervals_over"] == ("jobs" if runs == 2 else "seeds")


def test_generated_jobs_are_others_for_every_seed(ran: list[tuple[str, int]]) -> None:
    found = compared(GENERATED)
    assert len(ran) == 6
    assert (found.unused_seeds, found.resampling) == ((), None)


def test_one_seed_that_was_asked_for_shows_no_interval(ran: list[tuple[str, int]]) -> None:
    """Nobody asked how sure it is."""
    found = compare_policies(TRACE, ["fifo", "las"], (0,), ParallelWorkers())
    assert (len(ran), found.nothing_random) == (2, False)
    assert comparison_json(found)["intervals_over"] is None


def test_a_stream_that_nobody_draws_from_counts_as_unused() -> None:
    streams = RandomStreams(7)
    stream = streams.stream("faults")
    assert not streams.drawn
    stream.gauss(0.0, 1.0)
    assert streams.drawn


def outcomes(jct_s: list[float]) -> JobOutcomes:
    n = len(jct_s)
    values = tuple(jct_s)
    return JobOutcomes(tuple(range(n)), ("p",) * n, values, values, values, values)


def test_the_interval_of_independent_jobs_is_about_students() -> None:
    """400 jobs of the same law: the interval of their mean is within a fifth of 1.96 standard errors to each side."""
    values = np.random.default_rng(3).exponential(100.0, 400)
    found = JobResampling({"a": outcomes(values.tolist())}).estimate("a", "avg_jct_s", float(values.mean()))
    half = 1.96 * values.std(ddof=1) / 20
    assert found.mean - found.low == pytest.approx(half, rel=0.2)
    assert found.high - found.mean == pytest.approx(half, rel=0.2)


def test_jobs_of_one_crowd_count_less_than_independent_ones() -> None:
    """Twenty crowds of 20 equal jobs: the interval is more than twice as wide as if the 400 jobs told 400 things."""
    crowds = np.random.default_rng(3).exponential(100.0, 20)
    values = np.repeat(crowds, 20)
    found = JobResampling({"a": outcomes(values.tolist())}).estimate("a", "avg_jct_s", float(values.mean()))
    assert found.high - found.low > 2 * 2 * 1.96 * values.std(ddof=1) / 20


def test_differences_are_taken_job_by_job() -> None:
    """A policy that serves every job 1 s sooner is surely better, however much the jobs differ; itself it never is."""
    values = np.random.default_rng(5).exponential(1000.0, 50)
    jobs = {"a": outcomes(values.tolist()), "b": outcomes((values - 1.0).tolist()), "c": outcomes(values.tolist())}
    resampling = JobResampling(jobs)
    sooner = resampling.difference("b", "a", "avg_jct_s", -1.0)
    assert [sooner.low, sooner.high] == pytest.approx([-1.0, -1.0])
    assert sooner.excludes_zero
    assert not resampling.difference("c", "a", "avg_jct_s", 0.0).excludes_zero


@pytest.mark.parametrize("case", ["few", "other jobs", "none done"])
def test_where_jobs_tell_nothing_there_is_no_interval(case: str) -> None:
    many, short = [float(value) for value in range(1, 31)], [1.0, 2.0, 3.0]
    jobs = {
        "few": {"a": outcomes(short)},
        "other jobs": {"a": outcomes(many), "b": outcomes(many[:20])},
        "none done": {"a": outcomes([float("nan")] * 30)},
    }[case]
    found = JobResampling(jobs).estimate("a", "avg_jct_s", 2.0)
    assert found.mean == 2.0
    assert isnan(found.low)


#: Student's own sleep data (1908): extra hours under two drugs, ten patients.
FIRST = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
SECOND = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]


def test_a_known_interval() -> None:
    """The paired difference of Student's sleep data: 1.58, 95 % interval 0.70 to 2.46."""
    found = paired_difference(SECOND, FIRST)
    assert (found.mean, found.low, found.high) == (
        pytest.approx(1.58), pytest.approx(0.7001142, abs=1e-6), pytest.approx(2.4598858, abs=1e-6),
    )  # fmt: skip
    assert found.excludes_zero


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30))
def test_intervals_are_scipys(values: list[float]) -> None:
    found = estimate_mean(values)
    assert found.mean == pytest.approx(np.mean(values), abs=1e-6)
    spread = stats.sem(values)
    if spread > 1e-6:
        low, high = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=spread)
        assert (found.low, found.high) == (
            pytest.approx(low, rel=1e-9, abs=1e-6),
            pytest.approx(high, rel=1e-9, abs=1e-6),
        )


def test_no_interval_from_one_value_and_no_mean_from_none() -> None:
    """One seed shows a mean alone; a figure that does not exist in one of the runs has no mean."""
    one = estimate_mean([3.0])
    assert one.mean == 3.0
    assert isnan(one.low)
    assert not one.excludes_zero
    assert isnan(estimate_mean([]).mean)
    assert isnan(estimate_mean([1.0, nan]).mean)


def row(**values: float) -> RunMetrics:
    named = {measure.name: 1.0 for measure in RUN_METRICS} | values
    return RunMetrics(named, {measure.name: 0.5 for measure in TIME_METRICS}, "complete", ())


def comparison(first: list[float], second: list[float]) -> PolicyComparison:
    rows = {"a": [row(avg_jct_s=value) for value in first], "b": [row(avg_jct_s=value) for value in second]}
    return PolicyComparison(("a", "b"), tuple(range(len(first))), rows)


def test_the_best_is_marked_and_the_difference_is_taken_pair_by_pair() -> None:
    """A policy that is better by 1 for every seed is surely better, however much the seeds differ."""
    body = comparison_json(comparison([100.0, 200.0, 400.0], [99.0, 199.0, 399.0]))
    first, second = (body["measures"]["avg_jct_s"]["policies"][name] for name in "ab")
    assert (first["best"], second["best"]) == (False, True)
    assert second["difference"]["mean"] == pytest.approx(-1.0)
    assert second["difference"]["high"] == pytest.approx(-1.0)
    assert first["difference"] is None
    # Where all are alike nobody is best.
    assert not any(each["best"] for each in body["measures"]["usd"]["policies"].values())


def test_one_seed_shows_no_interval() -> None:
    """Neither in the table nor in JSON; and there is no table of differences."""
    alone = comparison([100.0], [99.0])
    (table,) = comparison_tables(alone)
    assert table.row_count > 0
    assert comparison_json(alone)["measures"]["avg_jct_s"]["policies"]["a"]["low"] is None
    assert not alone.nothing_random


def test_numbers_are_short() -> None:
    """Four digits, all of those before the point, and a dash for what does not exist."""
    assert [format_number(value) for value in (0.123456, 12345.6, nan)] == ["0.1235", "12,346", "-"]
