"""The simulation that says where completion times of gangs are lost (`benchmarks/gang_losses.py`), on cases known by
hand.
"""

import numpy as np
import pytest

from benchmarks.gang_losses import completion_times, divided, in_hindsight, whole
from optimizer.bounds.instance import SchedulingInstance


def two_gangs(capacity: float, later_at: float = 0.0) -> SchedulingInstance:
    """Two gangs of two accelerators, each ten seconds long, on one pool."""
    return SchedulingInstance(
        arrival_at=np.array([0.0, later_at]),
        steps=np.full(2, 10.0),
        gang=np.full(2, 2.0),
        steps_per_s=np.ones((2, 1)),
        capacity=np.array([capacity]),
    )


def test_whole_gangs_wait_for_room_that_divided_ones_share() -> None:
    """Three accelerators: one gang after the other, or one and a half at a time; with four nobody waits."""
    alike = np.ones(2)
    assert sorted(completion_times(two_gangs(3.0), whole, alike)) == pytest.approx([10.0, 20.0])
    assert sorted(completion_times(two_gangs(3.0), divided, alike)) == pytest.approx([10.0, 15.0])
    for division in (whole, divided):
        assert completion_times(two_gangs(4.0), division, alike) == pytest.approx([10.0, 10.0])
        assert completion_times(two_gangs(3.0, later_at=20.0), division, alike) == pytest.approx([10.0, 10.0])


@pytest.mark.slow
def test_hindsight_ends_jobs_no_later_than_the_rule() -> None:
    """It keeps what ends sooner, and begins with the rule itself; the same seed finds the same."""
    random = np.random.default_rng(0)
    jobs = 12
    instance = SchedulingInstance(
        arrival_at=np.sort(random.uniform(0.0, 50.0, jobs)),
        steps=random.lognormal(3.0, 1.0, jobs),
        gang=random.choice([1.0, 2.0, 4.0], jobs),
        steps_per_s=random.uniform(0.5, 2.0, (jobs, 2)),
        capacity=np.array([4.0, 5.0]),
    )
    plain = float(completion_times(instance, whole, np.ones(jobs)).mean())
    found = [in_hindsight(instance, whole, 20, seed=1) for _ in range(2)]
    assert found[0] == found[1] <= plain
    assert found[0] >= instance.alone_s.mean()
