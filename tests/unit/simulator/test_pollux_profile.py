"""The Pollux artifact's mechanism, policies and time model on cases small enough to follow by hand."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from training import steady

from scheduler.world.engine import RunOutcome
from simulator.goodput import Application, OutsideProfileError
from simulator.ground_truth import SpeedKey
from simulator.simulation import SimulationResult, simulate
from simulator.workloads.trace_source import TraceJob
from simulator.worlds.pollux.pollux_scenario import (
    POLLUX_POLICIES,
    T4_POOL,
    PackedGangSpeeds,
    PolluxWorkload,
    pollux_scenario,
    pollux_workload,
)
from walras.errors import ConfigError
from walras.job_request import Kind

#: Arrival, accelerators, batch.
Row = tuple[float, int, int]
NET = steady()


def _workload(rows: Sequence[Row], application: Application = NET, machines: int = 2) -> PolluxWorkload:
    jobs = [TraceJob(at, f"job-{n}", application.name, gang, batch=batch) for n, (at, gang, batch) in enumerate(rows)]
    return pollux_workload(jobs, {application.name: application}, T4_POOL.pool, machines)


def _run(policy: str, rows: Sequence[Row], application: Application = NET, machines: int = 2) -> SimulationResult:
    workload = _workload(rows, application, machines)
    result = simulate(workload.jobs, pollux_scenario(workload, policy, pool=replace(T4_POOL, machines=machines)))
    assert result.outcome is RunOutcome.COMPLETE
    assert result.violations == []
    return result


def _ends(result: SimulationResult) -> list[float]:
    return [job.ended_at for job in sorted(result.jobs, key=lambda job: job.job_id)]


def test_the_scheduler_is_told_mean_speeds_of_packed_gangs() -> None:
    """Of every number of accelerators that there are, of no other type, and nothing of kinds that are not there."""
    kind = Kind("net (batch size 8)")
    speeds = PackedGangSpeeds(_workload([(0.0, 1, 8)]).trainings, replace(T4_POOL, machines=2))
    assert speeds[SpeedKey(kind, "t4", 4)] == 4.0
    assert len(speeds) == len(list(speeds)) == 8
    assert all(speeds[key] >= 1.0 for key in speeds)
    for key in (SpeedKey(kind, "t4", 9), SpeedKey(kind, "v100", 1), SpeedKey(Kind("ent"), "t4", 1)):
        assert key not in speeds


def test_a_job_cancelled_within_a_step_is_credited_what_it_made() -> None:
    """At 100 s, 10 s after its start: its place is free at the end of the step, when the other gets it."""
    workload = _workload([(0.0, 8, 64), (1.0, 8, 64)])
    jobs = (replace(workload.jobs[0], cancel_at=100.0), workload.jobs[1])
    result = simulate(jobs, pollux_scenario(workload, "tiresias", pool=replace(T4_POOL, machines=2)))
    assert result.violations == []
    assert _ends(result) == [100.0, 120.0 + 130.0]
    assert result.worked_steps == 110.0


@pytest.mark.parametrize("policy", POLLUX_POLICIES)
def test_every_policy_finishes_every_job_whatever_was_idle_between(policy: str) -> None:
    """Jobs of all sizes, some after a long gap, and the same again on a second run."""
    rows = [(number * 37.0 + (number > 8) * 5000.0, 1 + number % 8, 8 + number) for number in range(14)]
    result = _run(policy, rows)
    assert len(result.jobs) == 14
    assert _ends(result) == _ends(_run(policy, rows))


def test_a_workload_that_does_not_hold_together_is_named() -> None:
    """No batch, no profile, a gang beyond it, more accelerators than there are."""
    with pytest.raises(ConfigError, match="'job-0' wants 9 accelerators, 8 are there"):
        _workload([(0.0, 9, 8)])
    with pytest.raises(ConfigError, match="'job' has no batch size"):
        pollux_workload([TraceJob(0.0, "job", "net", 1)], {"net": NET}, T4_POOL.pool, 2)
    with pytest.raises(ConfigError, match="no profile of application 'ent'") as caught:
        pollux_workload([TraceJob(0.0, "job", "ent", 1, batch=8)], {"net": NET}, T4_POOL.pool, 2)
    assert "net" in caught.value.fix
    with pytest.raises(OutsideProfileError, match="64 samples for 65 accelerators"):
        _workload([(0.0, 65, 8)], machines=17)
