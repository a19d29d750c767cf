"""Gavel as measured in Sia's simulator: 160 adaptive jobs on three types of accelerators.

Only totals were kept; every job adds to them. The measured data may not be passed on, so this runs where it is.
"""

from pathlib import Path

import pytest
from ecos_solver import ecos
from sia_runs import Measured, Ours, measured, run_again

from simulator.worlds.gavel.program_policies import ConeSolver, solve_cone_program

pytestmark = pytest.mark.slow


def _assert_equal(ours: Ours, theirs: Measured) -> None:
    assert len(ours.jct_s) == 160
    assert ours.avg_jct_s == pytest.approx(theirs.avg_jct_s, rel=1e-12)
    assert max(ours.jct_s) == pytest.approx(theirs.longest_jct_s, rel=1e-12)
    assert ours.result.ended_at == pytest.approx(theirs.makespan_s, rel=1e-12)
    assert ours.restarts_per_job == theirs.restarts_per_job


@pytest.mark.parametrize("solver", [ecos, solve_cone_program])
def test_the_run_is_the_measured_one(reference_data: Path, solver: ConeSolver) -> None:
    """Mean and longest completion time, end and restarts; shares of five decimals do not tell these solvers apart."""
    _assert_equal(run_again(reference_data, solver), measured(reference_data))
