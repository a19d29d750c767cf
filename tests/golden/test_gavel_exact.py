"""Gavel's recorded runs under policies without a solver: every job completes at its recorded millisecond.

They verify clock, gate, counters, selection, pairs and gangs of the profile, through the same `SchedulerCore`.
"""

from pathlib import Path

import pytest
from gavel_runs import MAKESPAN, SMALL, STATIC, assert_exact, recorded, run_again

QUICK = [
    *((STATIC, policy) for policy in ("isolated", "fifo_perf", "allox", "gandiva", "fifo_packed")),
    *((MAKESPAN, policy) for policy in ("isolated", "fifo", "fifo_fixed", "fifo_perf", "gandiva")),
]
LONG = [(SMALL, policy) for policy in ("isolated", "fifo", "fifo_fixed", "fifo_perf", "allox", "gandiva")]


def _check(data: Path, run: tuple[str, str], policy: str) -> None:
    theirs = recorded(data, run, *(("fifo", "fixed") if policy == "fifo_fixed" else (policy,)))
    assert_exact(run_again(data, run, policy, theirs.sim_end_s), theirs)


@pytest.mark.parametrize(("run", "policy"), QUICK, ids=lambda value: value if isinstance(value, str) else value[0])
def test_every_job_completes_when_gavel_says(reference_data: Path, run: tuple[str, str], policy: str) -> None:
    """60 single jobs, and 100 jobs with gangs, all there at once."""
    _check(reference_data, run, policy)


@pytest.mark.slow
@pytest.mark.parametrize(("run", "policy"), LONG, ids=lambda value: value if isinstance(value, str) else value[0])
def test_every_job_of_a_long_trace_completes_when_gavel_says(
    reference_data: Path, run: tuple[str, str], policy: str
) -> None:
    """1,200 jobs that arrive one by one (1.67 an hour), up to the recorded end: about 23 days of the cluster."""
    _check(reference_data, run, policy)
