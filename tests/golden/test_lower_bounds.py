"""Lower bounds on the public traces, against those that were published for them."""

from pathlib import Path

import numpy as np
import pytest

from optimizer.bounds.flow_time import flow_time_bound
from optimizer.bounds.instance import SchedulingInstance, fluid_makespan_s, no_contention_jct_s
from simulator.ground_truth import SpeedKey
from simulator.workloads.formats import read_trace
from simulator.workloads.trace_binding import read_throughput_table
from walras.job_request import Kind

TYPES = ("k80", "p100", "v100")
pytestmark = pytest.mark.slow


def instance(data: Path, trace: str, capacity: list[float]) -> SchedulingInstance:
    """A trace on so many K80, P100 and V100."""
    speeds = read_throughput_table(data / "gavel/throughputs/simulation_throughputs.json")
    jobs = read_trace(data / f"gavel/traces/{trace}.tsv").jobs
    return SchedulingInstance(
        arrival_at=np.array([job.at for job in jobs]),
        steps=np.array([job.steps for job in jobs]),
        gang=np.array([float(job.gang) for job in jobs]),
        steps_per_s=np.array(
            [[speeds.get(SpeedKey(Kind(job.kind), name, job.gang), 0.0) for name in TYPES] for job in jobs]
        ),
        capacity=np.array(capacity),
    )


@pytest.mark.parametrize(
    ("trace", "interval_s", "alone_s", "published_s", "reached_s"),
    [
        ("single_small_seed0_rate1.67", 1800.0, 48094, 51234, 51596),
        ("multi_small_seed0_rate0.5", 1800.0, 49410, 50575, 51776),
        ("static_single_seed0_n60", 450.0, 48429, 52289, 52367),
    ],
)
def test_the_flow_bound_is_as_high_as_published_and_below_what_was_reached(
    reference_data: Path, trace: str, interval_s: float, alone_s: float, published_s: float, reached_s: float
) -> None:
    """Mean completion times of all jobs on twelve accelerators of each type: bound, and a schedule's."""
    given = instance(reference_data, trace, [12.0] * 3)
    assert no_contention_jct_s(given) == pytest.approx(alone_s, abs=1)
    assert published_s <= flow_time_bound(given, interval_s=interval_s, steps=200).mean_s <= reached_s


def test_the_fluid_makespan_is_the_published_one(reference_data: Path) -> None:
    """100 jobs on 24 K80, 16 P100 and 8 V100."""
    given = instance(reference_data, "minimize_makespan", [24.0, 16.0, 8.0])
    assert fluid_makespan_s(given) == pytest.approx(63_750, abs=1)
