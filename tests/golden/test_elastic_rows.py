"""Our elastic policies in the published worlds, with their defaults, against what others' own policies reached there.

The worlds are those in which the recorded runs of other policies are reproduced exactly (`test_*_exact.py`).
"""

from pathlib import Path

import pytest

from benchmarks.bench_elastic import POLLUX_S, UNFINISHED
from benchmarks.elastic_runs import pollux_run, shockwave_run, sia_run


def test_shockwave_beats_the_published_run_in_all_four_measures(reference_data: Path) -> None:
    """Makespan, mean completion time, worst finish-time fairness and unfair jobs, all at once."""
    run = shockwave_run(reference_data, "shockwave")
    assert len(run.jct_s) == 120
    assert (run.makespan_s < 24_197.0, run.avg_jct_s < 9_958.0) == (True, True)
    assert (max(run.fairness) < 1.784, run.unfair < 0.075) == (True, True)
    # The better of the two runs that were shipped.
    assert (run.makespan_s < 23_399.0, run.avg_jct_s < 9_944.0) == (True, True)
    assert (max(run.fairness) < 1.496, run.unfair < 0.05) == (True, True)


@pytest.mark.slow
def test_jobs_end_sooner_than_under_pollux(reference_data: Path) -> None:
    """Of workload 6, with lengths that nobody knows; steps and noise are known."""
    run = pollux_run(reference_data, "walras", 6)
    assert len(run.jct_s) == 160
    assert run.avg_jct_s < POLLUX_S[6]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["sia", "walras"])
def test_jobs_end_sooner_than_under_sia(reference_data: Path, policy: str) -> None:
    """The 158 that the measured run had finished; all 160 are done."""
    if not (reference_data / "restricted" / "sia_profiles").is_dir():
        pytest.skip("the restricted reference data is not there")
    run = sia_run(reference_data, policy)
    finished = [jct for name, jct in zip(run.names, run.jct_s, strict=True) if name not in UNFINISHED]
    assert (len(run.jct_s), len(finished)) == (160, 158)
    assert sum(finished) / len(finished) <= 1_550.0
