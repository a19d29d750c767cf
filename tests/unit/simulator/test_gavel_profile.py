"""Gavel's mechanism, policies and time model on cases small enough to follow by hand."""

from math import inf

import pytest

from scheduler.core.rules import parse_policy
from simulator.engine import RunOutcome
from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.machines import PoolModel
from simulator.simulated_jobs import SimulatedJob
from simulator.simulation import SimulationResult, simulate
from simulator.worlds.gavel.gavel_scenario import gavel_policy_names, gavel_scenario
from walras.cluster import Pool, PoolId, Shape
from walras.errors import ConfigError, UnknownPolicyError
from walras.job_request import Demand, JobId, JobRequest, Kind

KIND = Kind("net")
FLEET = {"v100": 2.0, "k80": 1.0}


def _run(policy: str, jobs: list[tuple[float, float]], counts: dict[str, int], kept: float = 0.6) -> SimulationResult:
    """Jobs (arrival, steps) at 2 steps per second on a V100 and 1 on a K80; beside another a job keeps `kept`."""
    speeds = {SpeedKey(KIND, name, 1): FLEET[name] for name in counts}
    pairs = {(key, KIND): speed * kept for key, speed in speeds.items()}
    pools = tuple(
        PoolModel(Pool(PoolId(name), Shape(name, name, 1, 1.0, 1)), machines=count) for name, count in counts.items()
    )
    demands = tuple(Demand(name, 1) for name in counts)
    workload = [
        SimulatedJob(at, JobRequest(JobId(number), KIND, demands=demands, steps=steps), steps)
        for number, (at, steps) in enumerate(jobs, start=1)
    ]
    result = simulate(workload, gavel_scenario(pools, GroundTruth(speeds, pairs=pairs), policy))
    assert result.outcome is RunOutcome.COMPLETE
    assert result.violations == []
    return result


def _ends(result: SimulationResult) -> dict[int, float]:
    return {int(job.job_id): job.ended_at for job in result.jobs}


def test_a_round_has_whole_steps_and_an_early_end_leaves_its_place_idle() -> None:
    """The second job waits for the round's end though the first is through after 50 s: one of two runs a round."""
    ends = _ends(_run("fifo_perf", [(0.0, 100.0), (0.0, 1000.0), (0.0, 720.0)], {"v100": 2}))
    assert ends[1] == 50.0
    assert ends[2] == 500.0  # 720 steps in the first round, 280 in the second
    # The gate is open after the solve at 0, so the third job is placed at 360.
    assert ends[3] == 720.0


def test_a_newcomer_waits_for_the_gate_beside_an_idle_accelerator() -> None:
    """Two solves close the gate for 1,920 s: the job that comes at 400 s starts at the first round end after that."""
    ends = _ends(_run("fifo_perf", [(0.0, 20_000.0), (100.0, 360.0), (400.0, 360.0)], {"v100": 3}))
    assert ends[2] == 360.0 + 180.0
    assert ends[3] == 360.0 + 6 * 360.0 + 180.0


def test_the_clock_jumps_to_the_next_arrival_and_no_job_is_stranded_at_the_end() -> None:
    """Jobs that come to an idle cluster behind a closed gate start with the next arrival, the last one anyhow."""
    ends = _ends(_run("isolated", [(0.0, 100.0), (1000.0, 100.0), (1100.0, 100.0), (1300.0, 100.0)], {"v100": 4}))
    assert ends[1] == 50.0
    assert all(end < inf for end in ends.values())
    assert ends[4] - 1300.0 < 360.0


def test_both_members_of_a_pair_complete_with_the_slower() -> None:
    """Two jobs on one accelerator at 0.6 of their speed, more together than apart."""
    result = _run("max_min_fairness_packed", [(0.0, 240.0), (0.0, 360.0)], {"v100": 1})
    assert _ends(result) == {1: 300.0, 2: 300.0}
    assert result.pools[0].held_s == pytest.approx(300.0)


@pytest.mark.parametrize("policy", gavel_policy_names())
def test_every_policy_finishes_every_job(policy: str) -> None:
    """More jobs than accelerators, arriving one by one, under all that the profile has."""
    jobs = [(number * 200.0, 500.0 + 130.0 * number) for number in range(12)]
    result = _run(policy, jobs, {"v100": 1, "k80": 2})
    assert len(result.jobs) == 12


def test_equal_scenarios_give_equal_runs() -> None:
    """Types are drawn in another order every round, from a seed."""
    jobs = [(0.0, 700.0 + number) for number in range(9)]
    first, second = (_ends(_run("isolated", jobs, {"v100": 2, "k80": 2})) for _ in range(2))
    assert first == second


def test_the_profile_is_not_for_servers_and_has_gavels_names_only() -> None:
    """A policy file cannot ask for a mechanism that a server does not know."""
    with pytest.raises(ConfigError, match="mechanism"):
        parse_policy({"policy": "fifo", "rules": {"mechanism": "gavel"}})
    with pytest.raises(UnknownPolicyError, match="fifo_perf"):
        gavel_scenario((), GroundTruth({}), "nonesuch")
