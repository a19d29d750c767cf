"""What the scheduler is knows of lengths."""

from math import exp, log
from random import Random
from statistics import fmean, pstdev

import pytest

from optimizer.policy import PolicySpec
from scheduler.core.rules import RoundRules
from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.machines import PoolModel
from simulator.simulated_jobs import LengthEstimates, SimulatedJob, with_estimate_error
from simulator.simulation import Scenario, simulate
from walras.cluster import Pool, PoolId, Shape
from walras.job_request import Demand, JobId, JobRequest, Kind

KIND = Kind("k")


def _job(number: int, steps: float, at: float = 0.0, stated: float | None = None) -> SimulatedJob:
    request = JobRequest(JobId(number), KIND, demands=(Demand("a100", 1),), steps=stated or steps, duration_s=7.0)
    return SimulatedJob(at, request, steps)


def test_lengths_can_be_hidden_and_can_be_wrong() -> None:
    """The request alone changes: hidden says nothing, wrong is log-normal around the truth."""
    jobs = [_job(number, 100.0) for number in range(4000)]
    assert list(with_estimate_error(jobs, LengthEstimates(), Random(1))) == jobs
    hidden = next(with_estimate_error(jobs, LengthEstimates(known=False), Random(1)))
    assert (hidden.steps, hidden.request.steps, hidden.request.duration_s) == (100.0, None, None)
    wrong = list(with_estimate_error(jobs, LengthEstimates(spread=0.5), Random("1/lengths")))
    logs = [log(job.request.steps / 100.0) for job in wrong if job.request.steps is not None]
    assert {job.steps for job in wrong} == {100.0}
    assert (fmean(logs), pstdev(logs)) == (pytest.approx(0.0, abs=0.03), pytest.approx(0.5, rel=0.05))
    assert wrong[0].request.duration_s == pytest.approx(7.0 * exp(logs[0]))


def test_a_run_whose_lengths_are_wrong_ends_all_the_same() -> None:
    """The order follows the stated lengths, the work is the true one, and one seed gives one result."""
    pool = PoolModel(Pool(PoolId("p"), Shape("s", "a100", 2, 8.0, 2**30)), machines=1)
    truth = GroundTruth({SpeedKey(KIND, "a100"): 1.0})
    jobs = [_job(number, 50.0 + number) for number in range(1, 30)]
    ends = []
    for spread in (0.0, 1.0, 1.0):
        scenario = Scenario((pool,), truth, PolicySpec("srtf"), lengths=LengthEstimates(spread=spread), seed=3)
        result = simulate(jobs, scenario)
        assert not result.violations
        ends.append([job.job_id for job in result.jobs])
    assert ends[0] == sorted(ends[0])
    assert ends[1] == ends[2] != ends[0]


def test_a_job_that_was_said_to_be_short_does_not_keep_its_place_for_ever() -> None:
    """By its stated length it is always about to end; far beyond that, it counts as a job of unknown length."""
    pool = PoolModel(Pool(PoolId("p"), Shape("s", "a100", 1, 8.0, 2**30)), machines=1)
    truth = GroundTruth({SpeedKey(KIND, "a100"): 1.0})
    rules = RoundRules(round_s=60.0, restart_default_s=5.0, min_runtime_s=20.0)
    liar, other = _job(1, 1e5, stated=30.0), _job(2, 100.0, at=10.0)
    result = simulate([liar, other], Scenario((pool,), truth, PolicySpec("max_min_fairness"), rules))
    ended = {job.job_id: job.ended_at for job in result.jobs}
    assert ended[JobId(2)] < 2000.0
