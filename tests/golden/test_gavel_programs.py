"""Gavel's recorded runs under its programs, solved by Clarabel: averages within what another solver may move them.

The runs were recorded with ECOS. Which of several optimal points a solver ends at decides who fills what is left over,
so single jobs differ by rounds, and the averages by about as much as they do when Gavel multiplies in another order.
"""

from pathlib import Path

import pytest
from gavel_runs import GANGS, MAKESPAN, SMALL, STATIC, WEIGHTED, recorded, run_again

#: Run, policy, and by how much the average completion time and the end may differ.
QUICK = [
    (STATIC, "max_min_fairness", 0.01, 0.01),
    (STATIC, "max_min_fairness_perf", 0.01, 0.01),
    (STATIC, "min_total_duration_perf", 0.01, 0.01),
    (MAKESPAN, "max_min_fairness", 0.01, 0.01),
    (MAKESPAN, "max_min_fairness_perf", 0.01, 0.01),
    (MAKESPAN, "finish_time_fairness", 0.025, 0.04),
    (MAKESPAN, "finish_time_fairness_perf", 0.025, 0.04),
    (MAKESPAN, "max_sum_throughput_perf", 0.01, 0.01),
    (MAKESPAN, "min_total_duration", 0.01, 0.01),
    (MAKESPAN, "min_total_duration_perf", 0.01, 0.01),
    (MAKESPAN, "max_min_fairness_water_filling_perf", 0.01, 0.01),
]
LONG = [
    (STATIC, "max_min_fairness_packed", 0.01, 0.01), (STATIC, "min_total_duration_packed", 0.01, 0.03),
    (SMALL, "max_min_fairness_perf", 0.01, 0.01), (SMALL, "finish_time_fairness_perf", 0.01, 0.01),
    (SMALL, "max_sum_throughput_perf", 0.01, 0.01), (SMALL, "min_total_duration_perf", 0.05, 0.01),
    (GANGS, "max_min_fairness_perf", 0.01, 0.01), (WEIGHTED, "max_min_fairness_perf", 0.02, 0.05),
]  # fmt: skip


def _check(data: Path, run: tuple[str, str], policy: str, avg: float, end: float) -> None:
    theirs = recorded(data, run, policy)
    # Enough of the trace for the measured jobs to end a little later than they did.
    ours = run_again(data, run, policy, theirs.sim_end_s * (1.01 + end))
    assert abs(ours.avg_off(theirs)) < avg
    assert abs(ours.end_off(theirs)) < end


@pytest.mark.parametrize(("run", "policy", "avg", "end"), QUICK, ids=lambda value: str(value).split("'")[-1])
def test_the_averages_are_those_of_gavel(
    reference_data: Path, run: tuple[str, str], policy: str, avg: float, end: float
) -> None:
    """60 single jobs, and 100 jobs with gangs, all there at once."""
    _check(reference_data, run, policy, avg, end)


@pytest.mark.slow
@pytest.mark.parametrize(("run", "policy", "avg", "end"), LONG, ids=lambda value: str(value).split("'")[-1])
def test_the_averages_of_long_traces_are_those_of_gavel(
    reference_data: Path, run: tuple[str, str], policy: str, avg: float, end: float
) -> None:
    """Jobs that arrive one by one: alone, with gangs, with weights; pairs. Larger clusters: `test_gavel_ecos.py`."""
    _check(reference_data, run, policy, avg, end)


@pytest.mark.slow
def test_prices_and_deadlines_are_those_of_gavel(reference_data: Path) -> None:
    """Throughput per dollar, with and without deadlines that are kept where that is possible for all."""
    name = "max_sum_throughput_normalized_by_cost_perf"
    for policy, option, with_slos in ((name, "prices", False), (f"{name}_SLOs", "slos", True)):
        theirs = recorded(reference_data, SMALL, policy, option)
        ours = run_again(reference_data, SMALL, policy, theirs.sim_end_s * 1.02, with_slos=with_slos)
        assert abs(ours.avg_off(theirs)) < 0.01
        assert abs(ours.end_off(theirs)) < 0.01
