"""A solve follows a change of the problem, and nothing else."""

import pytest

from optimizer.policy import PolicySpec
from scheduler.core.commands import Command, Revoke, Solve
from scheduler.core.events import Event
from scheduler.core.rules import RoundRules
from simulator.engine import RunOutcome
from simulator.ground_truth import AttemptCosts, GroundTruth, SpeedKey
from simulator.machines import PoolModel
from simulator.simulated_jobs import SimulatedJob
from simulator.simulation import Scenario, simulate
from walras.cluster import Pool, PoolId, Shape
from walras.job_request import ANY_ACCELERATOR, Demand, JobId, JobRequest, Kind


@pytest.mark.parametrize("policy", ["isolated", "max_min_fairness"])
def test_jobs_that_take_turns_and_move_cause_no_solves(policy: str) -> None:
    """Jobs that move come back for places that they claimed: a solve for an arrival or an end, not for each turn."""
    kind, jobs, rules = Kind("k"), 9, RoundRules(round_s=30, resolve_min_s=5, min_runtime_s=20, restart_default_s=2)
    pools = tuple(PoolModel(Pool(PoolId(name), Shape(name, name, 2, 64.0, 2**40)), 1) for name in ("a100", "v100"))
    truth = GroundTruth({SpeedKey(kind, "a100"): 2.0, SpeedKey(kind, "v100"): 1.0}, {}, AttemptCosts(1.0, 1.0))
    rows = [
        SimulatedJob(0.0, JobRequest(JobId(number), kind, demands=(Demand(ANY_ACCELERATOR, 1),), steps=1000.0), 1000.0)
        for number in range(1, jobs + 1)
    ]
    solves, revoked = 0, 0

    def count(_: Event, commands: list[Command]) -> None:
        nonlocal solves, revoked
        solves += sum(isinstance(command, Solve) for command in commands)
        revoked += sum(isinstance(command, Revoke) for command in commands)

    result = simulate(rows, Scenario(pools, truth, PolicySpec(policy), rules), recorder=count)
    assert result.outcome is RunOutcome.COMPLETE
    assert revoked > 5 * jobs, "they take turns"
    assert solves <= 2 * jobs + 3
