"""Jobs whose gangs change, in the Pollux artifact's steps: whatever the workload, nothing is granted twice or lost."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training import steady

from scheduler.core.commands import Command
from scheduler.core.core import SchedulerCore
from scheduler.core.events import Event
from scheduler.world.engine import RunOutcome
from simulator.simulation import Simulation
from simulator.workloads.trace_source import TraceJob
from simulator.worlds.pollux.pollux_scenario import (
    POLLUX_POLICIES,
    RESTART_S,
    T4_POOL,
    pollux_scenario,
    pollux_workload,
)
from tests.support.core_invariants import check_invariants

MACHINES = 3
APPLICATIONS = {
    "short": steady("short", epochs=3, steps=20.5, sync_s=0.05),
    "noisy": steady("noisy", epochs=2, steps=333.3, grad_var=5.0),
    "ncf": steady("ncf", epochs=1, steps=100.0),
}
ROWS = st.lists(
    st.tuples(st.integers(0, 600), st.sampled_from(sorted(APPLICATIONS)), st.integers(1, 12), st.integers(8, 64)),
    min_size=1,
    max_size=12,
)


@pytest.mark.parametrize("policy", POLLUX_POLICIES)
@settings(max_examples=40, deadline=None)
@given(rows=ROWS)
def test_every_job_ends_and_the_ledger_holds_at_every_event(policy: str, rows: list[tuple[int, str, int, int]]) -> None:
    """Places machine by machine, several jobs that move at one instant; under Optimus, gangs that grow and shrink.

    (One rule of the ledger is that a gang is as large as it asked to be: Optimus is held to the world's rules alone.)
    """
    jobs = [
        TraceJob(float(at), f"job-{number}", name, gang, batch=max(batch, gang))
        for number, (at, name, gang, batch) in enumerate(sorted(rows))
    ]
    workload = pollux_workload(jobs, APPLICATIONS, T4_POOL.pool, MACHINES)
    simulation = Simulation(pollux_scenario(workload, policy, pool=replace(T4_POOL, machines=MACHINES)))
    core = simulation.core
    assert isinstance(core, SchedulerCore)

    def watch(event: Event, commands: list[Command]) -> None:
        if policy == "tiresias":
            check_invariants(core)

    result = simulation.run(workload.jobs, watch)
    assert result.outcome is RunOutcome.COMPLETE
    assert result.violations == []
    assert len(result.jobs) == len(jobs)
    for job in result.jobs:
        assert job.attempts == job.preemptions + 1
        assert job.ended_at == int(job.ended_at)
        assert job.overhead_s == RESTART_S * job.attempts
