"""Shockwave's mechanism and time model on cases small enough to follow by hand: 120 s rounds on 2 accelerators."""

import pytest

from scheduler.world.attempts import SimulatedJob
from scheduler.world.engine import RunOutcome
from scheduler.world.machines import PoolModel
from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.simulation import SimulationResult, simulate
from simulator.worlds.shockwave.shockwave_scenario import (
    SHOCKWAVE_POLICIES,
    BatchRule,
    BatchSchedule,
    StepCount,
    batch_schedule_of,
    count_round,
    shockwave_alone_s,
    shockwave_fairness,
    shockwave_scenario,
)
from walras.cluster import Pool, PoolId, Shape
from walras.errors import ConfigError
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


def test_a_job_that_nobody_describes_keeps_its_batch() -> None:
    truth = GroundTruth({SpeedKey(Kind("LM (batch size 10)"), "v100", 1): 2.0})
    request = JobRequest(JobId(1), Kind("LM (batch size 10)"), demands=(Demand("v100", 1),), steps=14 * 5968.0)
    result = simulate([SimulatedJob(0.0, request, 14 * 5968.0)], shockwave_scenario(POOL, truth, "gandiva_fair", {}))
    assert result.jobs[0].ended_at == pytest.approx(14 * 5968 / 2.0)


@pytest.mark.parametrize("policy", SHOCKWAVE_POLICIES)
def test_every_policy_finishes_every_job(policy: str) -> None:
    """More jobs than accelerators, arriving one by one, under all that the profile has."""
    result = _run([(number * 100.0, 500.0 + 130.0 * number) for number in range(9)], policy)
    assert len(result.jobs) == 9


def test_a_job_larger_than_the_pool_is_refused() -> None:
    with pytest.raises(ConfigError, match="job 7 wants 4 accelerators, 2 are there"):
        shockwave_scenario(
            POOL, GroundTruth({}), "gandiva_fair", {JobId(7): batch_schedule_of("LM (batch size 10)", 4, "static")}
        )


GNS = BatchSchedule("LM", 10, 1, BatchRule.GNS)
ACCORDION = BatchSchedule("ResNet-50", 64, 1, BatchRule.ACCORDION)


def _known(_: Kind) -> bool:
    return True


def _after(batching: BatchSchedule, epochs: int) -> StepCount:
    """The count of a job that made these epochs at its first batch in one round, of 200."""
    steps = batching.network.epoch_steps(batching.original)
    return count_round(batching, StepCount(batching.original, 0, 200 * steps), epochs * steps, _known)


@pytest.mark.parametrize(
    ("name", "batch", "epochs", "critical"),
    [
        ("LM", 5, 9, True), ("LM", 5, 10, False), ("Recommendation", 512, 29, True), ("Recommendation", 512, 30, False),
        ("Recommendation", 2048, 39, True), ("Recommendation", 4096, 10, False), ("ResNet-18", 16, 10, False),
        ("ResNet-18", 16, 155, True), ("ResNet-18", 16, 160, False), ("Transformer", 16, 50, True),
    ],
)  # fmt: skip
def test_critical_epochs_are_those_of_the_network(name: str, batch: int, epochs: int, critical: bool) -> None:
    assert (_after(BatchSchedule(name, batch, 1, BatchRule.ACCORDION), epochs).next_batch is None) is critical


def test_a_batch_without_a_speed_is_not_taken() -> None:
    """The wish is dropped, and wished again."""
    wishing = _after(GNS, 10)
    assert count_round(GNS, wishing, 5968, lambda _: False) == StepCount(10, 11 * 5968, 200 * 5968, 20)


def test_static_jobs_and_those_without_breaks_never_change() -> None:
    """No rule, a network that no rule is for, and a gang that was not profiled."""
    for batching in (
        BatchSchedule("LM", 10, 1, BatchRule.STATIC),
        BatchSchedule("Transformer", 16, 1, BatchRule.GNS),
        BatchSchedule("Recommendation", 512, 2, BatchRule.GNS),
        BatchSchedule("LM", 80, 1, BatchRule.GNS),
    ):
        assert all(_after(batching, epochs).next_batch is None for epochs in range(120))


@pytest.mark.parametrize(
    ("kind", "rule", "word"),
    [
        ("LM", "static", "batch size"), ("BERT (batch size 8)", "static", "'BERT'"),
        ("LM (batch size 10)", "often", "'often'"), ("LM (batch size 160)", "gns", "160"),
    ],
)  # fmt: skip
def test_what_nobody_profiled_is_named(kind: str, rule: str, word: str) -> None:
    """A row that the rules do not cover is refused, not run in some other way."""
    with pytest.raises(ConfigError, match=word):
        batch_schedule_of(kind, 1, rule)


def test_fairness_is_the_completion_time_over_that_on_an_equal_share() -> None:
    """Two jobs on one accelerator: half of it for each; more accelerators than jobs are no more than one each."""
    static = BatchSchedule("Transformer", 100, 1, BatchRule.STATIC)
    truth = GroundTruth({SpeedKey(static.kind(100), "v100", 1): 2.0})
    assert (
        shockwave_alone_s(static, 250, truth, "v100") == 3 * 50.0
    )  # three epochs of 100 steps, the last one not whole
    assert shockwave_fairness([300.0, 100.0], [150.0, 150.0], 1) == [1.0, 0.33333]
    assert shockwave_fairness([300.0, 100.0], [150.0, 150.0], 4) == [2.0, 0.66667]
    with pytest.raises(ConfigError, match="no speed"):
        shockwave_alone_s(static, 250, GroundTruth({}), "v100")
