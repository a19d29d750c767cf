"""Shockwave's mechanism and time model on cases small enough to follow by hand: 120 s rounds on 2 accelerators."""

import pytest

from scheduler.core.rules import parse_policy
from simulator.engine import RunOutcome
from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.machines import PoolModel
from simulator.simulated_jobs import SimulatedJob
from simulator.simulation import SimulationResult, simulate
from simulator.worlds.shockwave.shockwave_batches import batch_schedule_of
from simulator.worlds.shockwave.shockwave_scenario import shockwave_policy_names, shockwave_scenario
from walras.cluster import Pool, PoolId, Shape
from walras.errors import ConfigError, UnknownPolicyError
from walras.job_request import Demand, JobId, JobRequest, Kind

POOL = PoolModel(Pool(PoolId("v100"), Shape("v100", "v100", 1, 1.0, 1)), machines=2)
#: Steps per second by batch.
SPEEDS = {10: 2.0, 20: 1.5}


def _run(jobs: list[tuple[float, float]], policy: str = "gandiva_fair", rule: str = "static") -> SimulationResult:
    """Language models (arrival, steps) that begin at a batch of 10."""
    truth = GroundTruth(
        {SpeedKey(Kind(f"LM (batch size {batch})"), "v100", 1): speed for batch, speed in SPEEDS.items()}
    )
    batching = batch_schedule_of("LM (batch size 10)", 1, rule)
    workload = [
        SimulatedJob(at, JobRequest(JobId(number), batching.kind(10), demands=(Demand("v100", 1),), steps=steps), steps)
        for number, (at, steps) in enumerate(jobs, start=1)
    ]
    batchings = {job.request.job_id: batching for job in workload}
    result = simulate(workload, shockwave_scenario(POOL, truth, policy, batchings))
    assert result.outcome is RunOutcome.COMPLETE
    assert result.violations == []
    return result


def _ends(result: SimulationResult) -> dict[int, float]:
    return {int(job.job_id): job.ended_at for job in result.jobs}


def test_a_start_after_the_first_round_costs_twenty_seconds_of_steps() -> None:
    """The newcomer's first round counts 200 of its 240 steps; the job of the first round pays nothing."""
    ends = _ends(_run([(0.0, 480.0), (100.0, 480.0)]))
    assert ends[1] == 240.0
    assert ends[2] == 120.0 + 240.0 + 20.0


def test_a_start_that_is_through_at_once_costs_nothing() -> None:
    """230 steps are done in 115 s. Of 231 only 231 x 95.5 / 115.5 count, and 40 are left for the next round."""
    assert _ends(_run([(0.0, 480.0), (100.0, 230.0)]))[2] == 120.0 + 115.0
    assert _ends(_run([(0.0, 480.0), (100.0, 231.0)]))[2] == 240.0 + 20.0


def test_a_newcomer_waits_for_the_gate_beside_an_idle_accelerator() -> None:
    """The solve at 120 s closes the gate for 1,000 s: who comes at 130 s starts at 1,200 s."""
    ends = _ends(_run([(0.0, 240.0 * 12), (10.0, 10.0), (130.0, 10.0)]))
    assert ends[2] == 125.0
    assert ends[3] == 1205.0


def test_a_batch_change_takes_the_new_speed_and_count() -> None:
    """Epoch 10 begins in round 224, the change comes with the end of round 225: 4 epochs of 2,984 are left."""
    ends = _ends(_run([(0.0, 14.0 * 5968)], rule="gns"))
    assert ends[1] == pytest.approx(225 * 120.0 + 4 * 2984 / 1.5)


def test_a_job_that_a_change_left_without_steps_leaves_after_five_empty_rounds() -> None:
    """The same change in its last epoch, which counts as done: it ends as the fifth round of nothing begins."""
    ends = _ends(_run([(0.0, 9 * 5968 + 400.0), (0.0, 240.0 * 400)], rule="gns"))
    assert ends[1] == (225 + 4) * 120.0


def test_a_job_that_nobody_describes_keeps_its_batch() -> None:
    """Epochs pass, the batch stays."""
    truth = GroundTruth({SpeedKey(Kind("LM (batch size 10)"), "v100", 1): 2.0})
    request = JobRequest(JobId(1), Kind("LM (batch size 10)"), demands=(Demand("v100", 1),), steps=14 * 5968.0)
    result = simulate([SimulatedJob(0.0, request, 14 * 5968.0)], shockwave_scenario(POOL, truth, "gandiva_fair", {}))
    assert result.jobs[0].ended_at == pytest.approx(14 * 5968 / 2.0)


@pytest.mark.parametrize("policy", shockwave_policy_names())
def test_every_policy_finishes_every_job(policy: str) -> None:
    """More jobs than accelerators, arriving one by one, under all that the profile has."""
    result = _run([(number * 100.0, 500.0 + 130.0 * number) for number in range(9)], policy)
    assert len(result.jobs) == 9


def test_the_profile_is_not_for_servers_and_has_shockwaves_names_only() -> None:
    """A policy file cannot ask for a mechanism that a server does not know."""
    with pytest.raises(ConfigError, match="mechanism"):
        parse_policy({"policy": "fifo", "rules": {"mechanism": "shockwave-nsdi23"}})
    with pytest.raises(UnknownPolicyError, match="gandiva_fair"):
        shockwave_scenario(POOL, GroundTruth({}), "nonesuch", {})


def test_a_job_larger_than_the_pool_is_refused() -> None:
    """Before the run, not by a job that never starts."""
    with pytest.raises(ConfigError, match="job 7 wants 4 accelerators, 2 are there"):
        shockwave_scenario(
            POOL, GroundTruth({}), "gandiva_fair", {JobId(7): batch_schedule_of("LM (batch size 10)", 4, "static")}
        )
