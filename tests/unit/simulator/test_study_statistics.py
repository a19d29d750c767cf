"""Means over seeds, and what the comparison makes of them."""

from math import isnan, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from simulator.reports.policy_comparison import PolicyComparison, comparison_json, comparison_tables, format_number
from simulator.reports.repeated_runs import RunMetrics, estimate_mean, paired_difference
from simulator.reports.run_summary import RUN_METRICS, TIME_METRICS

#: Student's own sleep data (1908): extra hours under two drugs, ten patients.
FIRST = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
SECOND = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]


def test_a_known_interval() -> None:
    """The paired difference of Student's sleep data: 1.58, 95 % interval 0.70 to 2.46."""
    found = paired_difference(SECOND, FIRST)
    assert (found.mean, found.low, found.high) == (
        pytest.approx(1.58),
        pytest.approx(0.7001142, abs=1e-6),
        pytest.approx(2.4598858, abs=1e-6),
    )
    assert found.excludes_zero


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30))
def test_intervals_are_scipys(values: list[float]) -> None:
    """The interval is that of scipy's t test of one sample."""
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
