"""Two jobs on one accelerator in simulated runs: what is gained, what a pair that loses costs, and what it comes to."""

import pytest

from optimizer.policy import PolicySpec
from scheduler.core.rules import RoundRules
from scheduler.world.attempts import AttemptCosts, SimulatedJob, WorldParameters
from scheduler.world.machines import PoolModel
from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.simulation import Scenario, SimulationResult, simulate
from walras.cluster import Pool, PoolId, Shape
from walras.job_request import Demand, DeviceShare, JobId, JobRequest, Kind

GIB = 1 << 30
POOL = Pool(PoolId("g"), Shape("g", "g", 1, 4.0, 8 * GIB, accelerator_memory_bytes=16 * GIB), usd_per_h=1.0)
STEPS = 36_000.0


def _run(kept: float | None, *, agreed: bool = True, policy: str = "fifo", jobs: int = 4) -> SimulationResult:
    """Jobs of an hour alone, all there from the start, on one accelerator.

    `kept`: part of its speed that each has beside another; None: as both state of themselves.
    """
    kinds = [Kind("x"), Kind("y")]
    keys = [SpeedKey(kind, "g", 1) for kind in kinds]
    pairs = {} if kept is None else {(key, kind): 10.0 * kept for key in keys for kind in kinds}
    shared = DeviceShare(8 * GIB, 0.5) if agreed else None
    scenario = Scenario(
        pools=(PoolModel(POOL, machines=1),),
        truth=GroundTruth(dict.fromkeys(keys, 10.0), default_costs=AttemptCosts(start_s=5.0), pairs=pairs),
        policy=PolicySpec(policy, {}),
        rules=RoundRules(round_s=60.0, restart_default_s=5.0),
        world=WorldParameters(report_s=30.0, forward_every_s=30.0),
    )
    rows = [
        JobRequest(JobId(number + 1), kinds[number % 2], demands=(Demand("g", 1),), steps=STEPS, shared=shared)
        for number in range(jobs)
    ]
    result = simulate([SimulatedJob(0.0, request, STEPS) for request in rows], scenario)
    assert result.violations == []
    assert len(result.jobs) == jobs
    return result


@pytest.mark.parametrize("policy", ["fifo", "las", "max_min_fairness", "walras"])
def test_jobs_that_leave_the_device_idle_are_done_in_half_the_time(policy: str) -> None:
    alone, shared = _run(None, agreed=False, policy=policy), _run(None, policy=policy)
    assert shared.last_ended_at < 0.55 * alone.last_ended_at
    paid = sum(job.usd for job in shared.jobs)
    assert paid == pytest.approx(shared.last_ended_at / 3600.0, rel=0.02), "the two pay for one accelerator together"


def test_a_pair_that_loses_costs_little_and_is_not_tried_again() -> None:
    """Each keeps a third of its speed, though both state half of the device: after some minutes they are apart."""
    alone, lost = _run(None, agreed=False), _run(1 / 3)
    assert lost.last_ended_at < 1.05 * alone.last_ended_at
    assert sum(job.attempts for job in lost.jobs) <= 8


def test_a_pair_that_gains_little_is_kept_by_measurement() -> None:
    """Each keeps .6 of its speed: 1.2 in sum."""
    alone, shared = _run(None, agreed=False), _run(0.6)
    assert shared.last_ended_at == pytest.approx(alone.last_ended_at / 1.2, rel=0.05)
