"""Gavel's mechanism, policies and time model on cases small enough to follow by hand."""

import json
from pathlib import Path

import pytest

from scheduler.world.attempts import SimulatedJob
from scheduler.world.engine import RunOutcome
from scheduler.world.machines import PoolModel
from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.simulation import SimulationResult, simulate
from simulator.workloads.trace_binding import read_pair_speeds, read_throughput_table
from simulator.worlds.gavel.gavel_scenario import GAVEL_POLICIES, gavel_scenario
from walras.cluster import Pool, PoolId, Shape
from walras.errors import ConfigError
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


@pytest.mark.parametrize("policy", GAVEL_POLICIES)
def test_every_policy_finishes_every_job(policy: str) -> None:
    """More jobs than accelerators, arriving one by one, under all that the profile has."""
    jobs = [(number * 200.0, 500.0 + 130.0 * number) for number in range(12)]
    result = _run(policy, jobs, {"v100": 1, "k80": 2})
    assert len(result.jobs) == 12


A, B = "('net', 1)", "('other', 1)"


def _table(folder: Path, entries: object) -> Path:
    path = folder / "speeds.json"
    path.write_text(json.dumps({"v100": {A: entries, B: {"null": 4.0, A: [3.0, 1.5]}}}))
    return path


def test_each_member_of_a_pair_has_its_own_speed(tmp_path: Path) -> None:
    """What stands under a job says first how fast that job is; gangs of other sizes do not pair."""
    path = _table(tmp_path, {"null": 2.0, B: [1.5, 3.0], "('other', 2)": [9.0, 9.0]})
    truth = GroundTruth(read_throughput_table(path), pairs=read_pair_speeds(path, ["v100"]))
    assert truth.colocated_speed(Kind("net"), Kind("other"), "v100", 1) == 1.5
    assert truth.colocated_speed(Kind("other"), Kind("net"), "v100", 1) == 3.0
    assert truth.colocated_speed(Kind("net"), Kind("net"), "v100", 1) == 0.0
    assert truth.speeds[SpeedKey(Kind("net"), "v100", 1)] == 2.0
    assert read_pair_speeds(path, ["k80"]) == {}


@pytest.mark.parametrize("entries", [{"null": -1.0}, {B: [1.0, 1.0]}, {"null": "fast"}])
def test_a_speed_that_is_none_is_refused_by_place(tmp_path: Path, entries: object) -> None:
    with pytest.raises(ConfigError, match=r"v100: \('net', 1\)"):
        read_throughput_table(_table(tmp_path, entries))


@pytest.mark.parametrize("both", [[1.0], [1.0, -2.0], "fast"])
def test_a_pair_needs_two_speeds(tmp_path: Path, both: object) -> None:
    with pytest.raises(ConfigError, match="speeds of both"):
        read_pair_speeds(_table(tmp_path, {"null": 1.0, B: both}), ["v100"])
