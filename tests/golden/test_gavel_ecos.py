"""Gavel's recorded runs under its programs, solved by the recorded solver: every job at its recorded millisecond.

Needs the extra `golden`.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from ecos_solver import ecos
from gavel_runs import BIG, GANGS, MAKESPAN, SMALL, STATIC, WEIGHTED, assert_exact, recorded, run_again

from simulator.worlds.gavel.gavel_scenario import GAVEL_RULES

QUICK = [
    *((STATIC, policy) for policy in ("max_min_fairness", "max_min_fairness_perf")),
    *((STATIC, policy) for policy in ("min_total_duration", "min_total_duration_perf")),
    *((MAKESPAN, policy) for policy in ("max_min_fairness", "max_min_fairness_perf", "max_sum_throughput_perf")),
    *((MAKESPAN, policy) for policy in ("finish_time_fairness", "finish_time_fairness_perf")),
    *((MAKESPAN, policy) for policy in ("min_total_duration", "min_total_duration_perf")),
]
LONG = [
    *((STATIC, policy) for policy in ("max_min_fairness_packed", "min_total_duration_packed")),
    (SMALL, "max_min_fairness_packed"),
    *((SMALL, policy) for policy in ("max_min_fairness", "max_min_fairness_perf", "max_sum_throughput_perf")),
    *((SMALL, policy) for policy in ("finish_time_fairness", "finish_time_fairness_perf")),
    *((SMALL, policy) for policy in ("min_total_duration", "min_total_duration_perf")),
    *((GANGS, policy) for policy in ("max_min_fairness", "max_min_fairness_perf")),
    (WEIGHTED, "max_min_fairness_perf"),
    (BIG, "max_min_fairness_perf"),
]


def _check(data: Path, run: tuple[str, str], policy: str) -> None:
    theirs = recorded(data, run, policy)
    assert_exact(run_again(data, run, policy, theirs.sim_end_s, solver=ecos), theirs)


@pytest.mark.parametrize(("run", "policy"), QUICK, ids=lambda value: value if isinstance(value, str) else value[0])
def test_every_job_completes_when_gavel_says(reference_data: Path, run: tuple[str, str], policy: str) -> None:
    """60 single jobs, and 100 jobs with gangs, all there at once."""
    _check(reference_data, run, policy)


@pytest.mark.slow
@pytest.mark.parametrize(("run", "policy"), LONG, ids=lambda value: value if isinstance(value, str) else value[0])
def test_every_job_of_a_long_trace_completes_when_gavel_says(
    reference_data: Path, run: tuple[str, str], policy: str
) -> None:
    """Jobs that arrive one by one: alone, with gangs, with weights, on 36 and on 108 accelerators; and pairs."""
    _check(reference_data, run, policy)


@pytest.mark.slow
def test_an_open_gate_prices_and_deadlines_are_exact_too(reference_data: Path) -> None:
    """The runs that were recorded with other options."""
    open_gate = replace(GAVEL_RULES, resolve_min_s=0.0)
    theirs = recorded(reference_data, SMALL, "max_min_fairness_perf", "min_reset0")
    ours = run_again(reference_data, SMALL, "max_min_fairness_perf", theirs.sim_end_s, solver=ecos, rules=open_gate)
    assert_exact(ours, theirs)
    name = "max_sum_throughput_normalized_by_cost_perf"
    for policy, option, with_slos in ((name, "prices", False), (f"{name}_SLOs", "slos", True)):
        theirs = recorded(reference_data, SMALL, policy, option)
        ours = run_again(reference_data, SMALL, policy, theirs.sim_end_s, solver=ecos, with_slos=with_slos)
        assert_exact(ours, theirs)
