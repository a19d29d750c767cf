"""Goodput as a law: an elastic job whose batch grows with its gang and with the noise of its gradient."""

import pytest

from optimizer.policy import PolicySpec
from scheduler.core.rules import RoundRules
from simulator.goodput.application import (
    AcceleratorProfile,
    Application,
    GangLayout,
    GradientStatistics,
    StepTimes,
    goodput,
    split_batch,
)
from simulator.goodput.laws import GoodputLaw
from simulator.ground_truth import AttemptCosts, GroundTruth
from simulator.machines import PoolModel
from simulator.simulated_jobs import SimulatedJob
from simulator.simulation import Scenario, simulate
from walras.cluster import Pool, PoolId, Shape
from walras.job_request import Demand, JobId, JobRequest, Kind

KIND = Kind("net")


class Linear:
    """A pass takes a fixed time and one per sample; a ring over machines costs, one inside a machine hardly."""

    def times(self, placement: GangLayout, local: int) -> StepTimes:
        ring_s = 0.0 if placement.accelerators == 1 else 0.2 if placement.machines > 1 else 0.02
        return StepTimes(0.05 + 0.001 * local + ring_s, ring_s)


class Noisier:
    """Ten epochs of 100 steps; the noise of the gradient grows tenfold over them."""

    work = tuple(100.0 * epoch for epoch in range(11))

    def noise(self, batch: int, epoch: int) -> GradientStatistics:
        return GradientStatistics(1.0, 1.0 + epoch)

    def updates(self, batch: int, epochs: int) -> float:
        return 0.0


def _application() -> Application:
    return Application("net", 128, 4096, Noisier(), {"a100": AcceleratorProfile(Linear(), 16, 256)})


def test_the_speed_is_that_of_the_best_batch_of_the_epoch() -> None:
    """Never below that of any one batch, above the initial one's where the noise allows; it ends with the epoch."""
    app = _application()
    law = GoodputLaw(app)
    for epoch in (0, 5, 9):
        speed, until = law.speed_segment("a100", (4,), 100.0 * epoch + 50.0)
        assert until == (100.0 * (epoch + 1) if epoch < 9 else float("inf"))
        for batch in (128, 512, 1024):
            split = split_batch(app, "a100", 4, batch)
            assert speed >= 0.98 * goodput(app, "a100", GangLayout((4,)), split, epoch)
    early, late = (law.speed_segment("a100", (8,), steps).steps_per_s for steps in (0.0, 950.0))
    fixed = GoodputLaw(app, batch=128).speed_segment("a100", (8,), 950.0).steps_per_s
    assert late > early
    assert late > fixed
    assert law.speed_segment("v100", (1,), 0.0).steps_per_s == 0.0


def test_a_spread_gang_is_slower_and_a_larger_one_never_proportional() -> None:
    """What a configuration is worth depends on type, count and placement."""
    law = GoodputLaw(_application())
    one, packed, spread = (law.speed_segment("a100", parts, 500.0).steps_per_s for parts in ((1,), (4,), (2, 2)))
    assert one < packed < 4 * one
    assert spread < packed


@pytest.mark.parametrize("policy", ["max_min_fairness", "isolated"])
def test_an_adaptive_job_gains_from_its_own_batch(policy: str) -> None:
    """Simulated whole: with its batch free it ends sooner than with the initial one, to the sum of its epochs."""
    pool = PoolModel(Pool(PoolId("p"), Shape("s", "a100", 8, 8.0, 2**33)), machines=1)
    ends = []
    for law in (GoodputLaw(_application()), GoodputLaw(_application(), batch=128)):
        request = JobRequest(JobId(1), KIND, demands=(Demand("a100", 4),), steps=1000.0, sizes=(1, 2, 4))
        truth = GroundTruth({}, default_costs=AttemptCosts(10.0, 5.0), laws={KIND: law})
        result = simulate(
            [SimulatedJob(0.0, request, 1000.0)], Scenario((pool,), truth, PolicySpec(policy), RoundRules())
        )
        assert not result.violations
        alone_s = sum(100.0 / law.speed_segment("a100", (4,), 100.0 * epoch).steps_per_s for epoch in range(10))
        assert result.last_ended_at == pytest.approx(10.0 + alone_s)
        ends.append(result.last_ended_at)
    assert ends[0] < ends[1]
