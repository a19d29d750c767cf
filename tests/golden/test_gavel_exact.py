"""Gavel's recorded runs under policies without a solver: every job completes at its recorded millisecond.

They verify clock, gate, counters, selection, pairs and gangs of the profile, through the same `SchedulerCore`.
"""

from pathlib import Path

import pytest
from gavel_runs import MAKESPAN, SMALL, STATIC, recorded, run_again

#: Recorded times are printed to the millisecond.
PRINTED_S = 0.000_51

QUICK = [
    *((STATIC, policy) for policy in ("isolated", "fifo_perf", "allox", "gandiva", "fifo_packed")),
    *((MAKESPAN, policy) for policy in ("isolated", "fifo", "fifo_fixed", "fifo_perf", "gandiva")),
]
LONG = [(SMALL, policy) for policy in ("isolated", "fifo", "fifo_fixed", "fifo_perf", "allox", "gandiva")]


def _check(data: Path, run: tuple[str, str], policy: str) -> None:
    theirs = recorded(data, run, *(("fifo", "fixed") if policy == "fifo_fixed" else (policy,)))
    ours = run_again(data, run, policy, theirs.sim_end_s)
    assert ours.worst_s(theirs) < PRINTED_S
    assert len(ours.jct_s) == len(theirs.jct_s)
    # Gavel may solve once more after the last job of a whole trace.
    assert theirs.solves - ours.result.solves.solves in (0, 1)


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
