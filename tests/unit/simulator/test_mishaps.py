"""What befalls jobs by chance: cancellations and crashes."""

from math import inf

import pytest

from simulator.engine import RandomStreams
from simulator.simulated_jobs import RandomFailures, SimulatedJob, inject_random_failures
from walras.job_request import Demand, JobId, JobRequest, Kind

JOBS = [
    SimulatedJob(10.0 * number, JobRequest(JobId(number), Kind("k"), demands=(Demand("a100", 1),)), 100.0)
    for number in range(1, 1001)
]


def _after(mishaps: RandomFailures, seed: int = 0) -> list[SimulatedJob]:
    return list(inject_random_failures(JOBS, mishaps, RandomStreams(seed)))


def test_nothing_befalls_anybody_by_itself() -> None:
    """The same jobs."""
    assert _after(RandomFailures()) == JOBS


def test_so_many_are_cancelled_after_such_a_time() -> None:
    """By parts of a thousand jobs, never before their submission."""
    delays = [job.cancel_at - job.at for job in _after(RandomFailures(cancelled=0.3, cancelled_after_s=50.0))]
    cancelled = [delay for delay in delays if delay < inf]
    assert 250 < len(cancelled) < 350
    assert min(cancelled) >= 0
    assert sum(cancelled) / len(cancelled) == pytest.approx(50.0, rel=0.2)


def test_so_many_crash_somewhere_in_their_work() -> None:
    """With the code and as often as said."""
    crashes = [
        failure for job in _after(RandomFailures(crashing=0.3, exit_code=7, crashes=2)) for failure in job.failures
    ]
    assert 250 < len(crashes) < 350
    assert {(crash.exit_code, crash.times) for crash in crashes} == {(7, 2)}
    assert 0 <= min(crash.at_steps for crash in crashes) < 5
    assert 95 < max(crash.at_steps for crash in crashes) < 100


def test_one_mishap_does_not_shift_the_other() -> None:
    """Each has a stream of its own, and a draw for every job: more cancellations are those and others."""
    few, many = _after(RandomFailures(cancelled=0.1, crashing=0.1)), _after(RandomFailures(cancelled=0.2, crashing=0.1))
    assert [job.failures for job in few] == [job.failures for job in many]
    assert all(job.cancel_at == other.cancel_at for job, other in zip(few, many, strict=True) if job.cancel_at < inf)
    assert _after(RandomFailures(cancelled=0.1)) != _after(RandomFailures(cancelled=0.1), seed=1)
