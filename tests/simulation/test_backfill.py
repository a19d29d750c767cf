"""EASY backfill with exact lengths: whoever passes the head of the line does not delay it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.policy import PolicySpec
from scheduler.core.rules import Backfill, RoundRules
from simulator.engine import RunOutcome
from simulator.ground_truth import AttemptCosts, GroundTruth, SpeedKey
from simulator.machines import PoolModel
from simulator.simulated_jobs import SimulatedJob
from simulator.simulation import Scenario, simulate
from walras.cluster import Pool, PoolId, Shape
from walras.job_request import Demand, JobId, JobRequest, Kind

KIND = Kind("k")


def head_starts_at(rows: list[tuple[int, int]], size: int, start_s: float, backfill: Backfill, head: int) -> float:
    """When the head's ranks were up."""
    jobs = [
        SimulatedJob(
            float(at),
            JobRequest(JobId(at + 1), KIND, demands=(Demand("a100", gang),), steps=float(steps)),
            float(steps),
        )
        for at, (gang, steps) in enumerate(rows)
    ]
    scenario = Scenario(
        (PoolModel(Pool(PoolId("a"), Shape("a", "a100", size, 64.0, 2**40)), 1),),
        GroundTruth({SpeedKey(KIND, "a100"): 1.0}, {}, AttemptCosts(start_s)),
        PolicySpec("fifo", {"strict": False}),
        RoundRules(backfill=backfill),
    )
    result = simulate(jobs, scenario)
    assert result.outcome is RunOutcome.COMPLETE
    return next(job.first_run_at for job in result.jobs if job.job_id == head)


@given(
    size=st.integers(2, 5),
    start_s=st.sampled_from([0.0, 3.0]),
    rows=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 60)), min_size=3, max_size=12),
)
@settings(max_examples=150, deadline=None)
def test_backfill_never_delays_the_first_that_has_to_wait(
    size: int, start_s: float, rows: list[tuple[int, int]]
) -> None:
    """The first job that cannot start at once starts under EASY no later than if nobody might pass it."""
    rows = [(min(gang, size), steps) for gang, steps in rows]
    for head in range(1, len(rows) + 1):
        plain = head_starts_at(rows, size, start_s, Backfill.NONE, head)
        if plain > head - 1 + start_s:  # it arrives at second head - 1
            assert head_starts_at(rows, size, start_s, Backfill.EASY, head) <= plain + 1e-6
            return
